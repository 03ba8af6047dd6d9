//! `pipe`: a file read into a pipe, compressed, and written from a second pipe, as a backup does.
//! What the size of the requests at both ends is worth, past the cache and through it.
//!
//! ```text
//!   file ──read──► reader ──pipe──► compressor ──pipe──► writer ──write──► file
//!         requests of one size                          of the same size
//! ```

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::time::Instant;

use bedplate::AlignedBuf;
use parking_lot::Mutex;

use super::{Env, Work, sampled, sizes};
use crate::driver::{Class, Job, Phase, Worker, run};
use crate::results::{Case, Measurement};
use crate::target::{FileSpec, FileState, Target, TargetFile, fill_pattern};
use crate::{Error, Result};

/// Options of `pipe`.
#[derive(Debug, Clone)]
pub struct Pipe {
    /// Size of the file in bytes.
    pub size_bytes: u64,
    /// Sizes of one request at both ends in bytes; each is a case.
    pub request_bytes: Vec<u64>,
    /// Level of zstd, 1 to 19.
    pub level: u8,
}

impl Default for Pipe {
    fn default() -> Self {
        Self { size_bytes: 1 << 30, request_bytes: vec![4096, 65_536, 1 << 20, 8 << 20], level: 1 }
    }
}

const SOURCE: &str = "pipe-source";
const OUTPUT: &str = "pipe-output";

/// What each of the three threads has.
enum End {
    Reader(PipeWriter),
    Compressor(PipeReader, PipeWriter),
    Writer(PipeReader),
}

impl Pipe {
    /// Compressed it is smaller, but the compressor need not find out that it is.
    fn output_bytes(&self) -> u64 {
        (self.size_bytes + self.size_bytes / 8 + (1 << 20))
            .next_multiple_of(self.request_bytes.iter().copied().max().unwrap_or(4096))
    }

    fn read(
        &self,
        worker: &mut Worker<'_>,
        file: &dyn TargetFile,
        bytes: u64,
        mut to: PipeWriter,
    ) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(bytes as usize);
        for offset in (0..self.size_bytes).step_by(bytes as usize) {
            let begin = Instant::now();
            file.read_at(&mut buf, offset)?;
            let end = Instant::now();
            worker.record(Class::Read, begin, end, bytes);
            to.write_all(&buf).map_err(piped)?;
            if worker.done(end) {
                break;
            }
        }
        Ok(())
    }

    fn compress(&self, mut from: PipeReader, to: PipeWriter) -> Result<()> {
        let mut encoder = zstd::Encoder::new(to, i32::from(self.level)).map_err(piped)?;
        let mut buf = vec![0; 64 << 10];
        loop {
            match from.read(&mut buf).map_err(piped)? {
                0 => return encoder.finish().map(drop).map_err(piped),
                n => encoder.write_all(&buf[..n]).map_err(piped)?,
            }
        }
    }
}

fn piped(error: std::io::Error) -> Error {
    Error::io("the pipe", "cannot move data through it", error)
}

/// Writes all that comes in requests of one size, the last of them padded as the file demands, and
/// makes it durable.
fn write(
    worker: &mut Worker<'_>,
    file: &dyn TargetFile,
    bytes: u64,
    mut from: PipeReader,
) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(bytes as usize);
    let mut offset = 0;
    loop {
        let mut filled = 0;
        while filled < buf.len() {
            match from.read(&mut buf[filled..]).map_err(piped)? {
                0 => break,
                n => filled += n,
            }
        }
        let padded = filled.next_multiple_of(file.align_bytes() as usize);
        buf[filled..padded].fill(0);
        if filled > 0 {
            let begin = Instant::now();
            file.write_at(&buf[..padded], offset)?;
            worker.record(Class::Write, begin, Instant::now(), 0);
            offset += padded as u64;
        }
        if filled < buf.len() {
            return file.sync_data();
        }
    }
}

/// Digits, of which a compressor makes half as much.
fn fill_digits(buf: &mut [u8], seed: u64) {
    fill_pattern(buf, seed);
    buf.iter_mut().for_each(|byte| *byte = b"0123456789abcdef"[usize::from(*byte & 15)]);
}

impl Work for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn title(&self) -> &'static str {
        "a file through a pipe, a compressor and another pipe, durable at the end"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), bedplate::format_size(self.size_bytes)),
            ("requests".into(), sizes(&self.request_bytes)),
            ("compressor".into(), format!("zstd level {}", self.level)),
        ])
    }

    fn validate(&self) -> Result<()> {
        if self.request_bytes.is_empty() || !(1..=19).contains(&self.level) {
            return Err(Error::usage("pipe needs sizes of requests, and a level from 1 to 19"));
        }
        match self
            .request_bytes
            .iter()
            .find(|&&b| b < 512 || !b.is_multiple_of(512) || !self.size_bytes.is_multiple_of(b))
        {
            Some(b) => Err(Error::usage(format!(
                "--size must be a multiple of the request of {b} bytes, which must be one of 512"
            ))),
            None => Ok(()),
        }
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&bytes: &u64| Case {
            name: format!("{} requests", bedplate::format_size(bytes)),
            curve: "pipe".into(),
            axis: "request bytes".into(),
            x: bytes as f64,
        };
        self.request_bytes.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.size_bytes + self.output_bytes()
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        const PIECE: u64 = 1 << 20;
        target.create(&FileSpec::written(SOURCE, self.size_bytes))?;
        let file = target.open(SOURCE)?;
        let mut buf = AlignedBuf::zeroed(PIECE.min(self.size_bytes) as usize);
        let mut offset = 0;
        while offset < self.size_bytes {
            let len = (self.size_bytes - offset).min(PIECE) as usize;
            fill_digits(&mut buf[..len], offset);
            file.write_at(&buf[..len], offset)?;
            offset += len as u64;
        }
        file.sync_data()
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let bytes = self.request_bytes[case];
        let size_bytes = self.output_bytes();
        target.create(&FileSpec { name: OUTPUT.into(), size_bytes, state: FileState::Empty })?;
        target.make_cold()?;
        let (from_reader, to_compressor) = std::io::pipe().map_err(piped)?;
        let (from_compressor, to_writer) = std::io::pipe().map_err(piped)?;
        let ends = [
            End::Reader(to_compressor),
            End::Compressor(from_reader, to_writer),
            End::Writer(from_compressor),
        ]
        .map(|end| Mutex::new(Some(end)));
        let classes = [Class::Read, Class::Write];
        let job = Job {
            target,
            threads: ends.len(),
            phase: Phase::Work,
            classes: &classes,
            rated: &[Class::Read],
            sample_every: Some(sampled(env.time)),
            stop: env.stop,
        };
        let mut measurement = run(&job, |index| {
            // Taken before anything can fail: an end that is dropped ends the others.
            let end = ends[index].lock().take().expect("each thread takes its own, once");
            let file = match end {
                End::Writer(_) => target.open(OUTPUT)?,
                _ => target.open(SOURCE)?,
            };
            Ok(move |worker: &mut Worker<'_>| match end {
                End::Reader(to) => self.read(worker, &*file, bytes, to),
                End::Compressor(from, to) => self.compress(from, to),
                End::Writer(from) => write(worker, &*file, bytes, from),
            })
        })?;
        measurement.rate = measurement.bytes as f64 / measurement.elapsed_s / f64::from(1 << 20);
        measurement.figures.insert(
            "page cache growth MiB".into(),
            measurement.page_cache_growth_bytes as f64 / f64::from(1 << 20),
        );
        Ok(measurement)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        target.remove(SOURCE)?;
        target.remove(OUTPUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Targets;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn s_545_what_left_the_pipe_is_what_went_in() {
        let pipe =
            Pipe { size_bytes: 2 << 20, request_bytes: vec![4096, 1 << 20], ..Pipe::default() };
        pipe.validate().unwrap();
        let texts = ["memory:16M", "volume:memory:64M", "volume:memory:64M,mode=cached"];
        let specs =
            texts.iter().enumerate().map(|(i, text)| format!("t{i}={text}").parse().unwrap());
        let targets = Targets::open(&specs.collect::<Vec<_>>(), &mut |_| false).unwrap();
        let stop = AtomicBool::new(false);
        let env = Env { warm_up: Duration::ZERO, time: Duration::from_millis(50), stop: &stop };
        for target in &targets.0 {
            pipe.prepare(&**target).unwrap();
            for case in 0..2 {
                let measured = pipe.run(case, &**target, &env).unwrap();
                let writes = measured.latency["write"].count;
                assert_eq!(measured.latency["read"].count, (2 << 20) / pipe.request_bytes[case]);
                assert_eq!(measured.bytes, 2 << 20, "each byte of the file once");
                // Half as much is written, in requests as large.
                let most = (2 << 20) / pipe.request_bytes[case];
                assert!((most / 3..=most * 2 / 3 + 1).contains(&writes), "{writes} of {most}");
                let len = (writes * pipe.request_bytes[case]).min(pipe.output_bytes());
                let output = target.open(OUTPUT).unwrap();
                let mut compressed = AlignedBuf::zeroed(len as usize);
                let mut read = 0;
                // The last request was shorter than the others.
                while read < len
                    && output.read_at(&mut compressed[read as usize..][..512], read).is_ok()
                {
                    read += 512;
                }
                let mut content = vec![0; 2 << 20];
                let mut decoder = zstd::Decoder::new(&compressed[..]).unwrap().single_frame();
                decoder.read_exact(&mut content).unwrap();
                assert_eq!(decoder.read(&mut [0]).unwrap(), 0);
                let mut expected = vec![0; 1 << 20];
                for (i, piece) in content.chunks(1 << 20).enumerate() {
                    fill_digits(&mut expected, (i as u64) << 20);
                    assert!(piece == expected, "piece {i}");
                }
            }
            pipe.clean(&**target).unwrap();
        }
    }
}
