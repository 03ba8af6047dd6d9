//! Where it is looked, and what a Bedplate mount promises there.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bedplate::IoMode;
use bedplate_doctor::{Place, Promise, Question};
use serde_json::Value;

use super::Arguments;
use crate::cmd::mark::untorn;
use crate::database::{self, Named};
use crate::failure::{Failure, Result};
use crate::mount::{self, live};

/// Puts the question that the arguments ask.
pub fn question(arguments: &Arguments) -> Result<Question> {
    let Arguments { postgres, mysql, sqlite, .. } = arguments;
    let database = database::of(Named {
        postgres: postgres.as_ref(),
        mysql: mysql.as_ref(),
        sqlite: sqlite.as_deref(),
    })?;
    let path = match (&arguments.path, &database) {
        (Some(path), _) => path.clone(),
        (None, Some(database)) => database::directory(database)?,
        (None, None) => PathBuf::from("."),
    };
    let (place, promise) =
        if arguments.root.is_some() { (elsewhere(&path)?, None) } else { here(&path)? };
    if let (Some(_), Place::Device(device)) = (&database, &place) {
        let why = "is a device, and a database has its data in a directory";
        return Err(Failure::usage(format!("{} {why}", device.display())));
    }
    let (page_bytes, measure) = (arguments.page, arguments.measure);
    Ok(Question { place, page_bytes, promise, measure, database })
}

/// Finds a place of another machine by its name alone.
fn elsewhere(path: &Path) -> Result<Place> {
    if !path.is_absolute() {
        let why = "is looked for in a copy of a machine: name it by its whole path";
        return Err(Failure::usage(format!("{} {why}", path.display())));
    }
    Ok(match path.starts_with("/dev") {
        true => Place::Device(path.to_owned()),
        false => Place::Directory(path.to_owned()),
    })
}

/// Finds a place of this machine.
fn here(path: &Path) -> Result<(Place, Option<Promise>)> {
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if mount::is_stale(&error) => return Err(live::stale(path)),
        Err(error) => return Err(Failure::system("look at", path, &error)),
    };
    let whole = mount::canonical(path)?;
    if kind.is_block_device() {
        return Ok((Place::Device(whole), None));
    }
    let dir = match whole.parent() {
        _ if kind.is_dir() => whole.clone(),
        Some(parent) if kind.is_file() => parent.to_owned(),
        _ => {
            let why = "is neither a directory, a file nor a block device";
            return Err(Failure::new("unsupported", format!("{} {why}", path.display())));
        }
    };
    let promise = promise(&whole)?;
    Ok((Place::Directory(dir), promise))
}

/// Asks the Bedplate mount that a path lies on, where it does.
fn promise(path: &Path) -> Result<Option<Promise>> {
    if mount::above(path)?.is_none() {
        return Ok(None);
    }
    let mount = live::require_mount(path)?;
    let effective = live::get(path, live::EFFECTIVE_MODE).ok().flatten();
    let own = effective.or(live::get(path, live::MODE)?).filter(|mode| !mode.is_empty());
    let mode = match own {
        Some(mode) => mode,
        None => live::info(&mount)?.get("mode").and_then(Value::as_str).unwrap_or("-").to_owned(),
    };
    let untorn = live::get(path, live::UNTORN)?.and_then(|text| untorn::read(&text));
    Ok(Some(Promise {
        untorn_bytes: untorn.map_or(0, |untorn| untorn.bytes.into()),
        is_cached: mode.parse().is_ok_and(IoMode::writes_behind),
        integrity: live::get(path, live::INTEGRITY)?.is_some_and(|set| set == "on"),
        mode,
    }))
}
