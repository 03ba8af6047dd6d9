//! A cluster under load moves from the host's file system to a mount and back, and the command that
//! moves it is killed at random moments.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::Options;
use super::backups::history;
use super::bed::{Bed, Mounted, kill};
use super::postgres::{Bench, Cluster, leave, mount_options};
use crate::sh;

/// How often the command is killed.
const KILLS: u32 = 10;

/// How long one conversion may take.
const LIMIT: Duration = Duration::from_secs(300);

/// How long a server that was just told to start or stop may take to say so.
const SETTLED_IN: Duration = Duration::from_secs(60);

/// A cluster whose name is converted, with the commands that stop and start its server.
struct Moving<'a> {
    bed: &'a Bed,
    cluster: Cluster,
    mounted: Mounted,
    stop: String,
    start: String,
}

/// Returns a command as a shell reads it.
fn as_shell(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")));
    quoted.collect::<Vec<_>>().join(" ")
}

impl<'a> Moving<'a> {
    fn new(bed: &'a Bed, mounted: Mounted) -> Result<Self> {
        let host = bed.make_directory("host")?;
        let cluster = Cluster::at(bed, host.join("main"), "postgres")?;
        cluster.initialise(1)?;
        let (data, sockets) = (cluster.data.clone(), bed.path("postgres"));
        let control = |words: &[&OsStr]| {
            let mut command = cluster.program("pg_ctl");
            command.arg("-D").arg(&data).args(["-w", "-t", "60"]).args(words);
            as_shell(&command)
        };
        let options = format!(
            "-k {} -c listen_addresses= -c checkpoint_timeout=30s -c max_wal_size=24MB",
            sockets.display()
        );
        let log = sockets.join("server.log");
        let stop = control(&["-m".as_ref(), "fast".as_ref(), "stop".as_ref()]);
        let start = control(&[
            "-l".as_ref(),
            log.as_os_str(),
            "-o".as_ref(),
            options.as_ref(),
            "start".as_ref(),
        ]);
        Ok(Self { bed, cluster, mounted, stop, start })
    }

    fn order(&self, command: &str) -> Result<()> {
        let mut shell = Command::new("/bin/sh");
        let status =
            shell.args(["-c", command]).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        ensure!(status.success(), "{command} ended with {status}: {}", self.cluster.log_end());
        Ok(())
    }

    fn words(&self, words: &[&OsStr], with_commands: bool) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["convert".into(), self.cluster.data.clone().into()];
        all.extend(words.iter().map(OsString::from));
        if with_commands {
            all.extend(["--stop".into(), self.stop.clone().into()]);
            all.extend(["--start".into(), self.start.clone().into()]);
        }
        all
    }

    fn convert(&self, words: &[&OsStr], with_commands: bool) -> Result<Value> {
        let mut command = self.bed.bedplate(self.words(words, with_commands));
        let text = sh::output(command.arg("--json"), LIMIT)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The copy on the mount.
    fn copy(&self) -> PathBuf {
        self.mounted.path("main")
    }

    fn verify(&self, history_min: u64) -> Result<u64> {
        self.cluster.verify_sums()?;
        let found = history(&self.cluster)?;
        ensure!(
            found >= history_min,
            "{history_min} transactions were acknowledged, {found} are there"
        );
        Ok(found)
    }

    /// Moves the cluster under load; the load ends with the stop. Returns how many transactions are
    /// there, all that were acknowledged among them.
    fn under_load(&self, words: &[&OsStr], before: u64) -> Result<u64> {
        let bench = self.cluster.bench(LIMIT.as_secs())?;
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        let told = self.convert(words, true)?;
        let took = start.elapsed();
        let acknowledged = ended(bench)?;
        ensure!(acknowledged > 0, "no transaction ended before the stop");
        let found = self.verify(before + acknowledged)?;
        self.cluster.verify_structure()?;
        let micros = |field: &str| told[field].as_u64().unwrap_or_default() as f64 / 1e6;
        println!(
            "    {}: {:.1} s, stopped for {:.1} s of it ({:.1} s expected), {} passes before, {found} \
             transactions",
            words[0].to_string_lossy(),
            took.as_secs_f64(),
            micros("stopped_us"),
            micros("expected_stop_us"),
            told["passes"].as_array().map_or(0, Vec::len)
        );
        Ok(found)
    }

    fn is_on_the_mount(&self) -> bool {
        self.cluster.data.is_symlink()
    }

    /// Whatever the command was doing, the name leads to a whole cluster.
    fn ensure_whole_side(&self) -> Result<()> {
        for file in ["PG_VERSION", "global/pg_control", "base", "pg_wal"] {
            ensure!(self.cluster.data.join(file).exists(), "the name leads to no whole cluster");
        }
        Ok(())
    }

    /// Kills the command after `delay`; returns whether it had not ended.
    fn killed(&self, words: &[&OsStr], delay: Duration) -> Result<bool> {
        let mut command = self.bed.bedplate(self.words(words, true));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(delay);
        let was_running = child.try_wait()?.is_none();
        kill(child.id());
        child.wait()?;
        Ok(was_running)
    }

    /// Ends a conversion that was killed, with the server that its commands may still be starting
    /// or stopping.
    fn end(&self, how: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.convert(&[how.as_ref()], false) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > SETTLED_IN => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    /// Starts the server where it does not run.
    fn ensure_running(&self) -> Result<()> {
        if self.cluster.sql("SELECT 1").is_err() {
            self.order(&self.start)?;
        }
        Ok(())
    }
}

/// Waits for a load whose server was stopped; returns what it was told.
fn ended(bench: Bench) -> Result<u64> {
    bench.stop();
    bench.finish()
}

/// Returns the phase that the journal of a name tells.
fn phase_of(name: &Path) -> String {
    let journal = name.with_file_name(".main.convert").join("journal");
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let journal: Value = serde_json::from_str(&text).unwrap_or_default();
    journal["phase"].as_str().unwrap_or("none").to_owned()
}

/// S-458, S-460: a cluster under load is moved to a mount and back, and nothing that was
/// acknowledged is lost; killed at random moments, its name leads to a whole side, and the command
/// ends what was begun or gives it up.
pub fn of_a_live_cluster(bed: &mut Bed, options: &Options) -> Result<()> {
    let image = bed.format("volume.img", "1G")?;
    let mounted = bed.mount(&image, &mount_options("cached"))?;
    let moving = Moving::new(bed, mounted)?;
    moving.order(&moving.start)?;
    moving.cluster.fill(options.scale)?;
    let copy = moving.copy();
    let to =
        [OsStr::new("--to"), copy.as_os_str(), "--log-dir".as_ref(), "pg_wal=concurrent".as_ref()];
    let found = moving.under_load(&to, 0)?;
    ensure!(moving.is_on_the_mount(), "the name is a link to the mount");
    let mut found = moving.under_load(&[OsStr::new("--back")], found)?;
    ensure!(!moving.is_on_the_mount(), "the directory has its name again");

    let (mut random, mut hits) = (0x2545_f491_4f6c_dd1d_u64, 0);
    for round in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round.into());
        let delay = Duration::from_millis(100 + (random >> 33) % 6000);
        let bench = moving.cluster.bench(LIMIT.as_secs())?;
        let was_on_the_mount = moving.is_on_the_mount();
        if !was_on_the_mount && copy.exists() {
            std::fs::remove_dir_all(&copy)?;
        }
        let back = [OsStr::new("--back")];
        let words = if was_on_the_mount { &back[..] } else { &to[..2] };
        let was_running = moving.killed(words, delay)?;
        moving.ensure_whole_side()?;
        let phase = phase_of(&moving.cluster.data);
        if was_running && phase != "none" && phase != "done" {
            hits += 1;
            // A conversion whose database was started on the copy is only ended.
            if round % 2 == 0 || moving.end("--abandon").is_err() {
                moving.end("--continue")?;
            }
        }
        moving.ensure_whole_side()?;
        moving.ensure_running()?;
        let acknowledged = ended(bench)?;
        found = moving.verify(found + acknowledged)?;
        println!(
            "    killed after {:.1} s in phase {phase}: {found} transactions, {}",
            delay.as_secs_f64(),
            if moving.is_on_the_mount() { "on the mount" } else { "on the host" }
        );
    }
    if hits == 0 {
        bail!("no conversion was killed before its end");
    }
    if moving.is_on_the_mount() {
        moving.convert(&[OsStr::new("--back")], true)?;
    }
    moving.cluster.verify_structure()?;
    moving.order(&moving.stop)?;
    moving.cluster.verify_checksums()?;
    leave(moving.mounted, bed, &image)
}
