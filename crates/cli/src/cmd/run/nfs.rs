//! `bedplate run --nfs SERVER=DIR -- PROGRAM ...`
//!
//! ```text
//!   server reached ── mounts hidden ── mounted ── program ── it and all that it left have ended ── unmounted, synced
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use bedplate_nfs::{Client, Handle, Kind, Mode, Url};
use bedplate_serve::remote::{RemoteMount, RemoteSettings, hide_mounts};

use super::children::{Children, Signals};
use super::program;
use crate::failure::{Failure, Result};

/// What `--nfs` says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    url: Url,
    mode: Mode,
    dir: PathBuf,
}

/// A directory of a server that was reached.
struct Reached {
    client: Client,
    root: Handle,
    place: Place,
}

pub fn run(places: &[String], name: &OsStr, arguments: &[OsString]) -> Result<()> {
    let places = places.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let signals = Signals::take()?;
    let is_root = rustix::process::geteuid().is_root();
    // Before the first thread, so that all of them see the same.
    let is_hidden = is_root && hide_mounts()?;
    let reached = places.into_iter().map(reach).collect::<Result<Vec<_>>>()?;
    let mut mounts = Vec::new();
    for Reached { client, root, place } in reached {
        let settings =
            RemoteSettings { mode: place.mode, allow_other: is_root, auto_unmount: !is_hidden };
        mounts.push(RemoteMount::start((client, &root), &place.dir, settings)?);
    }
    let ran = run_program(name, arguments, &mounts, signals);
    let mut ended = Ok(());
    for mount in mounts {
        ended = ended.and(mount.end());
    }
    let status = ran?;
    ended?;
    // As a shell says it of a program that a signal ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code == 0 { Ok(()) } else { std::process::exit(code) }
}

/// Runs the program until it and all that it started have ended.
fn run_program(
    name: &OsStr,
    arguments: &[OsString],
    mounts: &[RemoteMount],
    signals: Signals,
) -> Result<ExitStatus> {
    // It may lie on the server.
    let path = program::find(name)?;
    let helpers = mounts.iter().filter_map(RemoteMount::helper).collect();
    let children = Children::adopt(helpers)?;
    let own = PathBuf::from("/proc/self/exe");
    let mut command = Command::new(&own);
    command.args(["run", "--ends-with", &std::process::id().to_string(), "--"]);
    command.arg(path).args(arguments);
    let child = command.spawn().map_err(|error| Failure::system("run", &own, &error))?;
    children.wait(child.id(), signals)
}

/// Mounts a directory of a server in this process.
fn reach(place: Place) -> Result<Reached> {
    let (client, rest) = Client::connect(&place.url)?;
    let found = client.find(&rest)?;
    if found.attr.kind != Kind::Directory {
        return Err(Failure::usage(format!("{} is no directory: name one", place.url)));
    }
    Ok(Reached { client, root: found.handle, place })
}

/// Reads `HOST:/EXPORT[?OPTIONS]=/DIR`, and the same with a URL.
fn parse(text: &str) -> Result<Place> {
    let wrong =
        |why: &str| Failure::usage(format!("--nfs {text}: {why}, as in --nfs HOST:/EXPORT=/DIR"));
    let at =
        text.rfind("=/").ok_or_else(|| wrong("name a directory of this machine behind '='"))?;
    let (server, dir) = (&text[..at], &text[at + 1..]);
    let (server, options) = server.split_once('?').unwrap_or((server, ""));
    let mut mode = Mode::Concurrent;
    let mut others = Vec::new();
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.strip_prefix("mode=") {
            Some(told) => mode = told.parse()?,
            None => others.push(option),
        }
    }
    if !others.iter().any(|option| option.starts_with("locks=")) {
        // Programs are written for locks that all see.
        others.push("locks=auto");
    }
    let place = if server.starts_with("nfs://") {
        server.to_owned()
    } else {
        let at = server.find(":/").ok_or_else(|| wrong("name a host and what it exports"))?;
        let (host, path) = (&server[..at], &server[at + 1..]);
        format!("nfs://{host}{}", path.replace('%', "%25"))
    };
    let url = format!("{place}?{}", others.join("&")).parse()?;
    Ok(Place { url, mode, dir: PathBuf::from(dir) })
}

#[cfg(test)]
mod tests {
    use bedplate_nfs::LocksAt;

    use super::*;

    #[test]
    fn a_place_is_a_server_its_options_and_a_directory() {
        let place = parse("host:/a 50%/b=c=/mnt/x").unwrap();
        let locks = LocksAt::Either;
        let url = Url { locks, ..Url::new("host", b"/a 50%/b=c") };
        assert_eq!(place, Place { url, mode: Mode::Concurrent, dir: "/mnt/x".into() });
        let place = parse("nfs://[::1]:77/e%20f?mode=cached&nconnect=2&soft=/mnt").unwrap();
        assert_eq!(
            (place.mode, place.url.connections, place.url.nfs_port),
            (Mode::Cached, 2, Some(77))
        );
        assert_eq!((&place.url.path[..], &place.url.host[..]), (&b"/e f"[..], "::1"));
        assert_eq!(parse("[::1]:/e?mode=direct=/m").unwrap().url.host, "::1");
        let locks = |options: &str| parse(&format!("host:/e{options}=/m")).unwrap().url.locks;
        assert_eq!(locks("?locks=local"), LocksAt::Client);
        assert_eq!(locks("?soft&locks=server"), LocksAt::Server);
        for (text, part) in [
            ("host:/export", "behind '='"),
            ("host:/export=relative", "behind '='"),
            ("export=/mnt", "name a host"),
            ("host:/e?sec=krb5=/mnt", "'sec' is not known"),
            ("host:/e?mode=fast=/mnt", "'fast' is no mode"),
            (":/e=/mnt", "the host is missing"),
        ] {
            let failure = parse(text).unwrap_err();
            assert!(failure.message.contains(part), "{text}: {}", failure.message);
        }
    }
}
