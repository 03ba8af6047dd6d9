//! Databases on volumes of several devices that change under them: SQLite and fio while a stripe
//! gets a column and another unit; PostgreSQL on a mirror and on a RAID-5 while a member is pulled
//! and a spare takes over; and a bit that turns on one copy of a mirror.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Options;
use super::bed::Bed;
use super::fio;
use super::ledger::{Acknowledged, Client};
use super::postgres::{Cluster, mount_options};
use super::sqlite;

/// How long a spare may take to be filled.
const REBUILD_LIMIT: Duration = Duration::from_secs(120);
/// Where the data of a member begins.
pub const DATA_START: u64 = 4 << 20;

/// What is left when a member was pulled under load and the spare has its place.
struct Survived {
    first: PathBuf,
    spare: PathBuf,
    /// The file of the largest table, below the cluster's directory.
    relation: String,
}

/// Runs pgbench on a group, pulls a member in the middle, waits for the spare, and looks at all of
/// the database and the file system.
fn survive(
    bed: &mut Bed,
    options: &Options,
    layout: &str,
    more_members: usize,
) -> Result<Survived> {
    let size = format!("{}M", 256 + options.scale * 40 + u32::try_from(options.seconds)? * 8);
    // The member that will be pulled lies on a volume of its own, whose server is killed: from then
    // on every call on it fails.
    let carrier = bed.format(
        "carrier.img",
        &format!("{}M", 400 + options.scale * 40 + u32::try_from(options.seconds)? * 8),
    )?;
    let mut carrier_mount = bed.mount(&carrier, "mode=concurrent")?;
    let (first, pulled, spare) =
        (bed.path("first.img"), carrier_mount.path("pulled.img"), bed.path("spare.img"));
    let more: Vec<PathBuf> = (0..more_members).map(|n| bed.path(&format!("more{n}.img"))).collect();
    let create = ["volume", "create", "tank", "--layout", layout].map(OsStr::new);
    let members = [&first, &pulled].into_iter().chain(&more).map(|path| path.as_os_str());
    bed.succeeds(create.into_iter().chain(members).chain([
        OsStr::new("--spare"),
        spare.as_os_str(),
        OsStr::new("--size"),
        OsStr::new(&size),
    ]))?;
    bed.succeeds([OsStr::new("format"), first.as_os_str()])?;

    let mounted = bed.mount(&first, &mount_options("concurrent"))?;
    let cluster = Cluster::new(bed, &mounted.directory)?;
    cluster.initialise(16)?;
    let server = cluster.start(&[])?;
    cluster.fill(options.scale)?;
    let bench = cluster.bench(options.seconds)?;
    std::thread::sleep(Duration::from_millis(options.seconds * 500));
    carrier_mount.crash()?;
    let seconds = bench.succeed()?;
    let rates: Vec<String> = seconds.values().map(u64::to_string).collect();
    println!(
        "    {layout}: transactions in each second, the member pulled in the middle: {}",
        rates.join(" ")
    );
    if let Some(directory) = &options.plot {
        plot(directory, layout, &seconds.values().copied().collect::<Vec<_>>())?;
    }
    ensure!(seconds.values().sum::<u64>() > 0, "pgbench did nothing");
    wait_for_spare(bed, &first, &spare)?;
    cluster.verify_sums()?;
    let relation = cluster.sql("SELECT pg_relation_filepath('pgbench_accounts')")?;
    server.stop()?;
    mounted.unmount(bed)?;
    carrier_mount.clear()?;
    bed.check(&first)?;
    Ok(Survived { first, spare, relation })
}

/// S-60, S-63, S-64: no client is told that a member of a mirror dies; the spare holds everything
/// in the end; a scrub mends a page by its checksum.
pub fn member_pulled(bed: &mut Bed, options: &Options) -> Result<()> {
    let Survived { first, spare, relation } = survive(bed, options, "mirror", 0)?;
    let address = page_address(bed, &first, &format!("/cluster/{relation}"))?;
    turn_a_bit(&spare, DATA_START + address + 5000)?;
    let found = bed.succeeds([
        OsStr::new("volume"),
        OsStr::new("scrub"),
        OsStr::new("--repair"),
        first.as_os_str(),
    ])?;
    for words in
        [relation.as_str(), "PostgreSQL page", "first.img is right", "1 difference, 0 left"]
    {
        ensure!(found.contains(words), "the scrub does not say '{words}': {found}");
    }
    println!("    {}", found.lines().next().unwrap_or_default());

    // What the spare holds is all there is now.
    std::fs::remove_file(&first)?;
    bed.succeeds([
        OsStr::new("volume"),
        OsStr::new("import"),
        OsStr::new("--degraded"),
        spare.as_os_str(),
    ])?;
    let mounted = bed.mount(&spare, &mount_options("concurrent"))?;
    cluster_is_whole(bed, &mounted.directory)?;
    mounted.unmount(bed)?;
    bed.check(&spare)
}

/// S-90, S-91, S-94: SQLite commits and fio verifies while columns are added and the unit changes;
/// the server is killed in the middle of it.
pub fn relayout(bed: &mut Bed, _: &Options) -> Result<()> {
    let (first, second, third) =
        (bed.path("first.img"), bed.path("second.img"), bed.path("third.img"));
    make_stripe(bed, &first, &second)?;
    std::fs::File::create(&third)?.set_len(260 << 20)?;
    let begin = |column: &Path, more: &[&'static str]| -> Result<()> {
        bed.succeeds(
            [words(&["volume", "add"]), vec![first.as_os_str(), column.as_os_str()]].concat(),
        )?;
        bed.succeeds(
            [words(&["volume", "relayout"]), vec![first.as_os_str()], words(more)].concat(),
        )
        .map(drop)
    };

    let mut mounted = bed.mount(&first, "mode=concurrent")?;
    let database = mounted.path("ledger.sqlite");
    sqlite::query(
        &database,
        "PRAGMA journal_mode=DELETE; CREATE TABLE ledger(n INTEGER PRIMARY KEY, payload BLOB);",
    )?;
    let client = |first| sqlite::start(&database, first);
    let clients: Vec<Client> = [1, 1_000_001].into_iter().map(client).collect::<Result<_>>()?;
    clients.iter().try_for_each(|client| client.wait_for(20))?;
    begin(&third, &["--columns", "3", "--unit", "256K", "--step", "1M"])?;
    // Not more: on a busy machine staying within the foreground's latency takes its time.
    wait_for_move(bed, &first, 5)?;
    mounted.crash()?;
    let mut told: Vec<Acknowledged> = clients.into_iter().map(Client::finish).collect();
    mounted.clear()?;

    let mounted = bed.mount(&first, "mode=concurrent")?;
    sqlite::verify(&mounted.path("ledger.sqlite"), &told).context("after the kill")?;
    let clients: Vec<Client> = [2_000_001, 3_000_001]
        .into_iter()
        .map(|first| sqlite::start(&mounted.path("ledger.sqlite"), first))
        .collect::<Result<_>>()?;
    for job in &fio::JOBS[..2] {
        fio::run(job, &mounted.directory, true)?;
    }
    // The rest without regard to the foreground.
    bed.succeeds([
        OsStr::new("volume"),
        OsStr::new("tune"),
        first.as_os_str(),
        OsStr::new("--foreground"),
        OsStr::new("off"),
    ])?;
    wait_for_move(bed, &first, 100)?;
    told.extend(clients.into_iter().map(Client::finish));
    sqlite::verify(&mounted.path("ledger.sqlite"), &told).context("in the new layout")?;
    bed.succeeds([OsStr::new("grow"), mounted.directory.as_os_str()])?;
    mounted.unmount(bed)?;
    let sum: u64 = told.iter().map(|client| client.count).sum();
    println!(
        "    a column more and another unit under {sum} acknowledged transactions and a killed \
         server, none missing"
    );
    bed.check(&first)
}

fn words(words: &[&'static str]) -> Vec<&'static OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

/// Makes a striped volume of two images, with a file system.
fn make_stripe(bed: &Bed, first: &Path, second: &Path) -> Result<()> {
    let create = [
        words(&["volume", "create", "tank"]),
        vec![first.as_os_str(), second.as_os_str()],
        words(&["--layout", "stripe", "--size", "260M"]),
    ];
    bed.succeeds(create.concat())?;
    bed.succeeds([OsStr::new("format"), first.as_os_str()]).map(drop)
}

/// Waits until so many percent of a relayout have moved.
fn wait_for_move(bed: &Bed, group: &Path, percent: u64) -> Result<()> {
    let start = Instant::now();
    loop {
        let told = bed.json([OsStr::new("volume"), OsStr::new("show"), group.as_os_str()])?;
        let relayout = &told["volumes"][0]["relayout"];
        let bytes = |name: &str| relayout[name].as_u64().unwrap_or(0);
        if relayout.is_null()
            || bytes("moved_bytes") * 100 >= bytes("total_bytes") * percent && percent < 100
        {
            return Ok(());
        }
        ensure!(
            start.elapsed() < REBUILD_LIMIT,
            "the relayout is not over after {} s: {relayout}",
            REBUILD_LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// S-60, S-63: no client is told that a member of a RAID-5 dies; every row agrees in the end, and
/// another member may go.
pub fn raid5_member_pulled(bed: &mut Bed, options: &Options) -> Result<()> {
    let Survived { first, spare, .. } = survive(bed, options, "raid5", 1)?;
    let found = bed.succeeds([OsStr::new("volume"), OsStr::new("scrub"), first.as_os_str()])?;
    ensure!(found.contains("0 differences, 0 left"), "the rows do not agree: {found}");
    std::fs::remove_file(&first)?;
    bed.succeeds([
        OsStr::new("volume"),
        OsStr::new("import"),
        OsStr::new("--degraded"),
        spare.as_os_str(),
    ])?;
    let mounted = bed.mount(&spare, &mount_options("concurrent"))?;
    cluster_is_whole(bed, &mounted.directory)?;
    mounted.unmount(bed)?;
    bed.check(&spare)
}

/// Writes the transactions of every second as a table and as a picture, with the moment at which
/// the member was pulled.
fn plot(directory: &Path, layout: &str, rates: &[u64]) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let rows = rates
        .iter()
        .enumerate()
        .map(|(second, rate)| format!("{second},{rate}\n"))
        .collect::<String>();
    std::fs::write(
        directory.join(format!("{layout}-member-pulled.csv")),
        format!("second,transactions\n{rows}"),
    )?;
    let most = rates.iter().copied().max().unwrap_or(1).max(1);
    let (width, height) = (600 * rates.len().max(2) / (rates.len().max(2) - 1), 200);
    let step = 600 / (rates.len().max(2) - 1);
    let points: Vec<String> = rates
        .iter()
        .enumerate()
        .map(|(at, rate)| format!("{},{}", at * step, 20 + 180 * (most - rate) / most))
        .collect();
    let middle = rates.len() / 2 * step;
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-60 0 {} {}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<polyline points=\"{}\" fill=\"none\" \
         stroke=\"#1f77b4\" stroke-width=\"2\"/>\n<line x1=\"{middle}\" x2=\"{middle}\" y1=\"20\" \
         y2=\"200\" stroke=\"#d62728\" stroke-dasharray=\"4\"/>\n<text x=\"{middle}\" y=\"14\" \
         text-anchor=\"middle\">a member is pulled</text>\n<text x=\"-4\" y=\"24\" \
         text-anchor=\"end\">{most}/s</text>\n<text x=\"-4\" y=\"204\" \
         text-anchor=\"end\">0</text>\n<text x=\"300\" y=\"220\" text-anchor=\"middle\">pgbench on \
         {layout}: transactions in each of {} seconds</text>\n</svg>\n",
        width + 80,
        height + 40,
        points.join(" "),
        rates.len()
    );
    Ok(std::fs::write(directory.join(format!("{layout}-member-pulled.svg")), svg)?)
}

/// Starts the cluster where it is now and looks at all of it.
pub fn cluster_is_whole(bed: &Bed, directory: &Path) -> Result<()> {
    let cluster = Cluster::new(bed, directory)?;
    cluster.verify_checksums()?;
    let server = cluster.start(&[])?;
    cluster.verify_sums()?;
    cluster.verify_structure()?;
    server.stop()
}

/// Waits until the spare has the place of the member that was pulled and is up to date.
fn wait_for_spare(bed: &Bed, group: &Path, spare: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        let told = bed.json([OsStr::new("volume"), OsStr::new("stat"), group.as_os_str()])?;
        let members = told["members"].as_array().context("the statistics name no members")?;
        let state = |member: &Value| {
            (member["path"].as_str() == spare.to_str())
                .then(|| member["state"].as_str().unwrap_or("").to_owned())
        };
        let state = members.iter().find_map(state).context("the spare is not a member")?;
        if state == "active" {
            println!(
                "    the spare was filled {:.1} s after the load had ended",
                start.elapsed().as_secs_f64()
            );
            return Ok(());
        }
        ensure!(
            start.elapsed() < REBUILD_LIMIT,
            "the spare is {state} after {} s: {told}",
            REBUILD_LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns where on the volume a page in the middle of a file lies.
fn page_address(bed: &Bed, group: &Path, file: &str) -> Result<u64> {
    page_address_of(bed, &format!("{}:{file}", group.display()))
}

/// As [`page_address`], of a file as `stat` takes it.
pub fn page_address_of(bed: &Bed, name: &str) -> Result<u64> {
    let told = bed.json(["stat", name, "--extents"])?;
    let extent = told["extents"]
        .as_array()
        .and_then(|extents| extents.first())
        .context("the file has no extents")?;
    let (offset, address) = (extent["file_offset"].as_u64(), extent["volume_offset"].as_u64());
    let (offset, address) =
        offset.zip(address).with_context(|| format!("an extent tells no offsets: {extent}"))?;
    // The second page of the file, wherever the extent begins.
    Ok(address + 8192_u64.saturating_sub(offset))
}

pub fn turn_a_bit(path: &Path, offset: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[byte[0] ^ 8], offset)?;
    Ok(file.sync_all()?)
}
