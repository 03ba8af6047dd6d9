//! The options of the workloads of `bedplate bench`, and what they are when they are not given.

use std::time::Duration;

use bedplate::{parse_duration, parse_size};
use bedplate_bench::{DataLayout, LogState, PageMoves, Workload};
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub struct Increments {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Steps and how much of the file is read with each, as in 1:1M,4K:1G
    #[arg(long, value_name = "STEP:LENGTH", value_delimiter = ',', default_value = "1:1M,4K:1G,10M:1G", value_parser = pair)]
    steps: Vec<(u64, u64)>,
}

/// Reads two sizes with a colon between them.
fn pair(text: &str) -> Result<(u64, u64), String> {
    let (a, b) = text.split_once(':').ok_or_else(|| {
        format!("'{text}' is not a pair: write two sizes with a colon between them, as in 4K:1G")
    })?;
    Ok((parse_size(a)?, parse_size(b)?))
}

impl Increments {
    pub fn workload(&self) -> Workload {
        // The last steps need not divide the file: 10 MiB steps over 1 GiB end a little before its
        // end.
        Workload::Increments(bedplate_bench::Increments {
            size_bytes: self.size,
            steps: self.steps.clone(),
        })
    }
}

/// How pages are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// One synchronous call a page
    Threads,
    /// Lists through a queue
    Queue,
}

impl Engine {
    fn moves(self) -> PageMoves {
        match self {
            Self::Threads => PageMoves::Calls,
            Self::Queue => PageMoves::Lists,
        }
    }
}

#[derive(Debug, Args)]
pub struct Database {
    /// Size of all data files together
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Number of data files
    #[arg(long, default_value_t = 4)]
    files: usize,
    /// Number of tables
    #[arg(long, default_value_t = 40)]
    tables: u64,
    /// Size of the redo log
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    log_size: u64,
    /// Block size of the redo log
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    log_block: u64,
    /// Threads that write dirty pages
    #[arg(long, default_value_t = 4)]
    writers: usize,
    /// Pages that a transaction touches
    #[arg(long, default_value_t = 8)]
    pages: usize,
    /// Redo that a transaction writes
    #[arg(long, value_name = "SIZE", default_value = "2K", value_parser = parse_size)]
    redo: u64,
    /// How pages are moved
    #[arg(long, value_enum, default_value = "threads")]
    engine: Engine,
    /// Length of the ramp-up and of the ramp-down
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    ramp: Duration,
}

impl Database {
    fn options(&self, updates_percent: u8) -> bedplate_bench::Oltp {
        bedplate_bench::Oltp {
            data_bytes: self.size,
            files: self.files,
            tables: self.tables,
            log_bytes: self.log_size,
            log_block_bytes: self.log_block,
            writers: self.writers,
            pages_per_transaction: self.pages,
            updates_percent,
            redo_bytes: self.redo,
            moves: self.engine.moves(),
            ramp: self.ramp,
            ..bedplate_bench::Oltp::default()
        }
    }
}

#[derive(Debug, Args)]
pub struct Oltp {
    #[command(flatten)]
    database: Database,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "16,64")]
    clients: Vec<usize>,
    /// Sizes of a page, each a series
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "8K", value_parser = parse_size)]
    page: Vec<u64>,
    /// How the data files lie, each a series: contiguous, scattered (in pieces of 64 KiB)
    #[arg(long, value_name = "LAYOUT", value_delimiter = ',', default_value = "contiguous")]
    layout: Vec<DataLayout>,
    /// Numbers of checkpoints made during a measurement, each a series; of a path reflinks. Without
    /// numbers none and four
    #[arg(
        long,
        value_name = "NUMBER",
        value_delimiter = ',',
        num_args = 0..=1,
        require_equals = true,
        default_value = "0",
        default_missing_value = "0,4"
    )]
    checkpoints: Vec<usize>,
    /// Percent of the touched pages that a transaction changes
    #[arg(long, value_name = "PERCENT", default_value_t = 75)]
    updates: u8,
    /// The database's own cache in percent of the data
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
    database_cache: f64,
    /// Let a real database do the transactions: its files in the target's directory, a server of
    /// its own
    #[arg(long = "database", id = "real", value_enum, value_name = "DATABASE", conflicts_with_all = SYNTHETIC)]
    real: Option<Real>,
    /// Size of the real database's tables, in units of 100,000 accounts
    #[arg(long, default_value_t = 10, requires = "real")]
    scale: u64,
    /// A setting of the real database, instead of or besides its own, as in full_page_writes=off
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = setting, requires = "real")]
    settings: Vec<(String, String)>,
}

/// What a real database decides itself.
const SYNTHETIC: [&str; 14] = [
    "page",
    "layout",
    "checkpoints",
    "size",
    "files",
    "tables",
    "log_size",
    "log_block",
    "writers",
    "pages",
    "redo",
    "engine",
    "updates",
    "database_cache",
];

/// A real database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Real {
    /// A cluster and a server of its own
    Postgresql,
    /// One file, with its write-ahead log
    Sqlite,
}

/// Reads a name and a value with an equals sign between them.
fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        format!("'{text}' is no setting: write NAME=VALUE, as in full_page_writes=off")
    })?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Oltp {
    pub fn workload(&self) -> Workload {
        if let Some(database) = self.real {
            let engine = match database {
                Real::Postgresql => bedplate_bench::Engine::Postgresql,
                Real::Sqlite => bedplate_bench::Engine::Sqlite,
            };
            let (clients, settings) = (self.clients.clone(), self.settings.clone());
            return Workload::Server(bedplate_bench::Server {
                engine,
                scale: self.scale,
                clients,
                ramp: self.database.ramp,
                settings,
            });
        }
        let database = self.database.options(self.updates);
        Workload::Oltp(bedplate_bench::Oltp {
            clients: self.clients.clone(),
            page_bytes: self.page.clone(),
            layouts: self.layout.clone(),
            checkpoints: self.checkpoints.clone(),
            cache_percent: self.database_cache,
            ..database
        })
    }
}

/// A database under one number of clients.
#[derive(Debug, Args)]
struct Transactions {
    #[command(flatten)]
    database: Database,
    /// Number of clients
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Percent of the touched pages that a transaction changes
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    updates: u8,
}

impl Transactions {
    fn options(&self) -> bedplate_bench::Oltp {
        self.database.options(self.updates)
    }
}

#[derive(Debug, Args)]
pub struct Cached {
    #[command(flatten)]
    transactions: Transactions,
    /// Memory for both caches in percent of the data
    #[arg(long, value_name = "PERCENT", default_value_t = 60.0)]
    memory: f64,
    /// Sizes of the database's own cache in percent of the data
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "50,30,15,5")]
    database_cache: Vec<f64>,
}

impl Cached {
    pub fn workload(&self) -> Workload {
        let (database, clients) = (self.transactions.options(), self.transactions.clients);
        Workload::Cached(bedplate_bench::Cached {
            database,
            clients,
            memory_percent: self.memory,
            cache_percents: self.database_cache.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Scan {
    #[command(flatten)]
    transactions: Transactions,
    /// The database's own cache in percent of the data
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    database_cache: f64,
    /// The second-level cache in percent of the data; also of the kernel, where root may limit it
    #[arg(long, value_name = "PERCENT", default_value_t = 40.0)]
    cache: f64,
    /// Sizes of the scanned file, as multiples of that cache
    #[arg(long, value_name = "TIMES", value_delimiter = ',', default_value = "8")]
    scan: Vec<u64>,
    /// Size of one read of the scan
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = parse_size)]
    scan_block: u64,
}

impl Scan {
    pub fn workload(&self) -> Workload {
        let database = bedplate_bench::Oltp {
            cache_percent: self.database_cache,
            ..self.transactions.options()
        };
        let (clients, cache_percent, multiples) =
            (self.transactions.clients, self.cache, self.scan.clone());
        Workload::Scan(bedplate_bench::Scan {
            database,
            clients,
            cache_percent,
            multiples,
            block_bytes: self.scan_block,
        })
    }
}

#[derive(Debug, Args)]
pub struct Writers {
    /// Size of the file: each thread writes an equal part of it
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Size of one write
    #[arg(long, value_name = "SIZE", default_value = "8K", value_parser = parse_size)]
    block: u64,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    threads: Vec<usize>,
}

impl Writers {
    pub fn workload(&self) -> Workload {
        Workload::Writers(bedplate_bench::Writers {
            size_bytes: self.size,
            block_bytes: self.block,
            threads: self.threads.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Mixed {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Sizes of one operation
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "8K", value_parser = parse_size)]
    block: Vec<u64>,
    /// Percent of operations that read
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "100,0,50")]
    reads: Vec<u8>,
    /// Percent of operations at a random place
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "100")]
    random: Vec<u8>,
    /// Numbers of threads with synchronous calls [default: 1,4,16,64, or none when --depth is
    /// given]
    #[arg(long, value_delimiter = ',')]
    threads: Option<Vec<usize>>,
    /// Depths of a queue [default: 1,32,128, or none when --threads is given]
    #[arg(long, value_delimiter = ',')]
    depth: Option<Vec<usize>>,
    /// Threads that have a queue each
    #[arg(long, value_name = "THREADS", default_value_t = 1)]
    queue_threads: usize,
    /// Take the file's advisory lock around every access
    #[arg(long)]
    locking: bool,
    /// Latencies to give the device one after the other (memory only), as in 0s,50us,1ms: what a
    /// lock held meanwhile costs
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = parse_duration)]
    latency: Vec<Duration>,
}

impl Mixed {
    pub fn workload(&self) -> Workload {
        let defaults = bedplate_bench::Mixed::default();
        let (threads, depths) = match (&self.threads, &self.depth) {
            (None, None) if self.locking || !self.latency.is_empty() => {
                (defaults.threads, Vec::new())
            }
            (None, None) => (defaults.threads, defaults.depths),
            (threads, depths) => {
                (threads.clone().unwrap_or_default(), depths.clone().unwrap_or_default())
            }
        };
        Workload::Mixed(bedplate_bench::Mixed {
            size_bytes: self.size,
            block_bytes: self.block.clone(),
            reads_percent: self.reads.clone(),
            random_percent: self.random.clone(),
            threads,
            depths,
            queue_threads: self.queue_threads,
            locking: self.locking,
            latencies: self.latency.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Sio {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Sizes of a record
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "2K,8K,32K", value_parser = parse_size)]
    block: Vec<u64>,
    /// Percent of accesses that read
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "100,50,0")]
    reads: Vec<u8>,
    /// Percent of accesses at a random place; the others go on in order
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    random: u8,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_value = "16")]
    threads: Vec<usize>,
}

impl Sio {
    pub fn workload(&self) -> Workload {
        Workload::Sio(bedplate_bench::Sio {
            size_bytes: self.size,
            block_bytes: self.block.clone(),
            reads_percent: self.reads.clone(),
            random_percent: self.random,
            threads: self.threads.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Pipe {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Sizes of one request at both ends
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "4K,64K,1M,8M", value_parser = parse_size)]
    requests: Vec<u64>,
    /// Level of zstd, from 1 to 19
    #[arg(long, default_value_t = 1)]
    level: u8,
}

impl Pipe {
    pub fn workload(&self) -> Workload {
        Workload::Pipe(bedplate_bench::Pipe {
            size_bytes: self.size,
            request_bytes: self.requests.clone(),
            level: self.level,
        })
    }
}

#[derive(Debug, Args)]
pub struct Sequential {
    /// Size of each file
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Size of one read
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    block: u64,
    /// Numbers of streams
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    streams: Vec<usize>,
}

impl Sequential {
    pub fn workload(&self) -> Workload {
        Workload::Sequential(bedplate_bench::Sequential {
            size_bytes: self.size,
            block_bytes: self.block,
            streams: self.streams.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Redo {
    /// Sizes of one append
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "512,4K,16K", value_parser = parse_size)]
    append: Vec<u64>,
    /// Numbers of threads that commit
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    committers: Vec<usize>,
    /// States of the log's file: extending, unwritten, written
    #[arg(
        long,
        value_name = "STATE",
        value_delimiter = ',',
        default_value = "extending,unwritten,written"
    )]
    state: Vec<LogState>,
    /// The most that the log grows to in one measurement
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: u64,
}

impl Redo {
    pub fn workload(&self) -> Workload {
        Workload::Redo(bedplate_bench::Redo {
            append_bytes: self.append.clone(),
            committers: self.committers.clone(),
            states: self.state.clone(),
            size_bytes: self.size,
        })
    }
}

#[derive(Debug, Args)]
pub struct Copy {
    /// Size of the file
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Sizes of one request and how many are in flight, as in 4K:1,2M:4
    #[arg(long, value_name = "SIZE:NUMBER", value_delimiter = ',', default_value = "4K:1,8M:1,2M:4", value_parser = requests)]
    requests: Vec<(u64, usize)>,
}

fn requests(text: &str) -> Result<(u64, usize), String> {
    let (bytes, in_flight) = pair(text)?;
    Ok((
        bytes,
        usize::try_from(in_flight)
            .map_err(|_| format!("'{text}' has too many requests in flight"))?,
    ))
}

impl Copy {
    pub fn workload(&self) -> Workload {
        Workload::Copy(bedplate_bench::Copy {
            size_bytes: self.size,
            requests: self.requests.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub struct Checkpoint {
    /// Size of the file; a target needs three times as much
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Size of a page
    #[arg(long, default_value = "8K", value_parser = parse_size)]
    page: u64,
    /// Pages in flight on one thread's queue; 0 leaves these cases out
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Threads with a page each; 0 leaves these cases out
    #[arg(long, default_value_t = 16)]
    threads: usize,
}

impl Checkpoint {
    pub fn workload(&self) -> Workload {
        Workload::Checkpoint(bedplate_bench::Checkpoint {
            size_bytes: self.size,
            page_bytes: self.page,
            depth: self.depth,
            threads: self.threads,
        })
    }
}

#[derive(Debug, Args)]
pub struct Images {
    /// Sizes of the file: preallocated, and written in --pieces
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "1G,10G,100G", value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Pieces of 64 KiB in which a file of a size is written
    #[arg(long, default_value_t = 1024)]
    pieces: u64,
    /// Extents of 4 KiB of one more file; 0 leaves it out
    #[arg(long, default_value_t = 1_000_000)]
    extents: u64,
    /// How many images are made one after the other, of which the last is timed; 0 leaves them out
    #[arg(long, default_value_t = 1000)]
    many: u64,
}

impl Images {
    pub fn workload(&self) -> Workload {
        let Self { pieces, extents, many, .. } = *self;
        Workload::Images(bedplate_bench::Images {
            sizes_bytes: self.sizes.clone(),
            pieces,
            extents,
            many,
        })
    }
}
