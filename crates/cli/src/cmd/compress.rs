//! `bedplate compress FILE`

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bedplate::{format_size, parse_size};
use bedplate_direct::{Method, Route, Sink, is_remote};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::cp::{Requests, rate};
use super::tee::standard;
use crate::failure::{Failure, Result};
use crate::render::output::Output;
use crate::render::progress::Bytes;
use crate::render::text;

/// Compress a file on several threads, with large direct requests, past the page cache
///
/// The result goes to a file or a pipe, and is read by zstd or gzip. The source stays.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The file, or a block device
    file: PathBuf,
    /// Where the result goes: a file, or - for standard output; FILE.zst or FILE.gz where it is not
    /// named
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The format
    #[arg(long, value_enum, default_value = "zstd")]
    format: Format,
    /// How hard to try: 1 to 19 for zstd, 1 to 9 for gzip [default: 3, 6]
    #[arg(long, value_name = "N")]
    level: Option<u8>,
    /// Read no more than so many bytes a second
    #[arg(long, value_parser = parse_size, value_name = "BYTES")]
    rate: Option<u64>,
    #[command(flatten)]
    requests: Requests,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Zstd,
    Gzip,
}

#[derive(Debug, Serialize)]
struct Compressed {
    #[serde(serialize_with = "text::readable")]
    source: PathBuf,
    #[serde(serialize_with = "text::readable")]
    target: PathBuf,
    size_bytes: u64,
    compressed_bytes: u64,
    read_direct: bool,
    write_direct: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let (method, suffix) = match arguments.format {
        Format::Zstd => (Method::Zstd(arguments.level.unwrap_or(3)), "zst"),
        Format::Gzip => (Method::Gzip(arguments.level.unwrap_or(6)), "gz"),
    };
    let limit = rate(arguments.rate)?;
    let source = &arguments.file;
    if std::iter::once(source).chain(&arguments.output).any(|path| is_remote(path)) {
        return Err(Failure::usage(
            "compress takes files of this system: 'bedplate cat URL | zstd' reads one of a server, \
             and 'bedplate compress -o - FILE | bedplate tee -q URL' writes one",
        ));
    }
    let workers = arguments.requests.get();
    let total = std::fs::metadata(source).map_or(0, |is| is.len());
    let bar = Mutex::new(Bytes::new(output, "compress", total));
    let progress = |bytes| {
        bar.lock().unwrap_or_else(std::sync::PoisonError::into_inner).advance(bytes);
    };
    let compress = |out: &mut (dyn io::Write + Send)| {
        bedplate_direct::compress(source, out, method, workers, limit.as_ref(), &progress)
    };
    if arguments.output.as_deref() == Some(Path::new("-")) {
        compress(&mut standard(io::stdout())?)?;
        return Ok(());
    }
    let target = arguments.output.clone().unwrap_or_else(|| {
        let mut name = source.clone().into_os_string();
        name.push(format!(".{suffix}"));
        name.into()
    });
    if target.exists() {
        return Err(Failure::new(
            "exists",
            format!("{} is there already: remove it, or name another output", text::name(&target)),
        ));
    }
    // A source that cannot be opened leaves no empty result.
    std::fs::File::open(source).map_err(|error| Failure::system("open", source, &error))?;
    let mut sink = Sink::create(&target, workers)?;
    let done = compress(&mut sink).map_err(Failure::from);
    let done = done.and_then(|done| Ok((done, sink.finish()?)));
    drop(bar);
    match done {
        Ok(((size_bytes, compressed_bytes, read), (_, write))) => output.show(&Compressed {
            source: source.clone(),
            target,
            size_bytes,
            compressed_bytes,
            read_direct: read == Route::Direct,
            write_direct: write == Route::Direct,
        }),
        Err(failure) => {
            // A part of a result is none.
            let _removed = std::fs::remove_file(&target);
            Err(failure)
        }
    }
}

impl fmt::Display for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} -> {}: {} to {}",
            text::name(&self.source),
            text::name(&self.target),
            format_size(self.size_bytes),
            format_size(self.compressed_bytes)
        )?;
        for (is_direct, path) in
            [(self.read_direct, &self.source), (self.write_direct, &self.target)]
        {
            if !is_direct {
                let path = text::name(path);
                write!(f, "; {path} through the page cache: its file system takes no direct I/O")?;
            }
        }
        Ok(())
    }
}
