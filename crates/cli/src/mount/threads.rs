//! The threads that serve live mounts: how busy they are, whether they are too few or too many, and
//! what they did between two looks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{IoThreads, Tunable};
use bedplate_serve::control::{Request, ThreadActivity, ThreadReport};
use serde::Serialize;

use crate::failure::Result;
use crate::mount::{Mount, live};
use crate::render::text;

/// From this share of the time on it is worth a word that all threads were busy, or that they
/// waited for a processor.
const SHARE_NOTICEABLE: f64 = 0.05;

/// Asks a mount; `None` where its daemon does not tell this user.
pub fn of(mount: &Mount) -> Result<Option<ThreadReport>> {
    match live::ask(mount, &Request::Threads) {
        Err(failure) if live::is_unreached(&failure) => Ok(None),
        told => told.map(Some),
    }
}

/// Whether the threads are as many as they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// One was free nearly always.
    Enough,
    /// All were busy, and processors were free.
    TooFew,
    /// All were busy, and waited for processors.
    ProcessorsBusy,
    /// They waited for processors, and were never all busy for long.
    TooMany,
}

/// How the threads of a mount stand, with the reason and what to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub standing: Standing,
    /// Why, in a sentence.
    pub why: String,
    /// What to change, where that would help.
    pub change: Option<String>,
    /// What it follows from.
    pub report: ThreadReport,
}

/// Judges by the last seconds.
pub fn judge(report: ThreadReport, dir: &Path) -> Verdict {
    let recent = &report.recent;
    let are_busy = recent.all_busy_share() >= SHARE_NOTICEABLE;
    let runnable_s = seconds(recent.cpu_run_ns) + seconds(recent.cpu_wait_ns);
    let lack = recent.lacks_processors() && runnable_s >= SHARE_NOTICEABLE * recent.seconds;
    let standing = match (are_busy, lack) {
        (false, false) => Standing::Enough,
        (true, false) => Standing::TooFew,
        (true, true) => Standing::ProcessorsBusy,
        (false, true) => Standing::TooMany,
    };
    let (why, change) = (why(&report, standing), change(&report, standing, dir));
    Verdict { standing, why, change, report }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        self.change.iter().try_for_each(|change| write!(f, "\n  change      {change}"))
    }
}

fn why(report: &ThreadReport, standing: Standing) -> String {
    let recent = &report.recent;
    let all = all_busy(report);
    let in_time = format!("the last {:.0} s", recent.seconds);
    let waited = format!(
        "waited for a processor for {:.1} s beside {:.1} s that they ran",
        seconds(recent.cpu_wait_ns),
        seconds(recent.cpu_run_ns)
    );
    let share = recent.all_busy_share() * 100.0;
    match standing {
        Standing::Enough => format!(
            "at most {} of {} were busy at once in {in_time}: they are enough",
            recent.busy_max, report.threads
        ),
        Standing::TooFew if recent.cpu_wait_ns.is_none() => {
            format!("{all} for {share:.0} % of {in_time}, so that requests waited: more may help")
        }
        Standing::TooFew => format!(
            "{all} for {share:.0} % of {in_time}, so that requests waited, and got the processor at \
             once: more may help"
        ),
        Standing::ProcessorsBusy => format!(
            "{all} for {share:.0} % of {in_time}, but {waited}: more threads do not help, the \
             processors have too much to do"
        ),
        Standing::TooMany => format!(
            "in {in_time} the threads {waited}, and at most {} were busy at once: more do not help, \
             and fewer may do as much",
            recent.busy_max
        ),
    }
}

fn all_busy(report: &ThreadReport) -> String {
    if report.processors > 1 {
        let each = report.threads as usize / report.processors;
        return format!("all {} of a processor were busy", text::count(each as u64, "thread"));
    }
    match report.threads {
        1 => "the one thread was busy".to_owned(),
        threads => format!("all {threads} threads were busy"),
    }
}

fn change(report: &ThreadReport, standing: Standing, dir: &Path) -> Option<String> {
    let threads = u64::from(report.threads);
    let wanted = match standing {
        Standing::TooFew => (threads * 2).min(Tunable::Threads.info().max),
        Standing::TooMany => u64::from(report.recent.busy_max / 2).max(2),
        Standing::Enough | Standing::ProcessorsBusy => return None,
    };
    let helps = if standing == Standing::TooFew { wanted > threads } else { wanted < threads };
    if !helps {
        return None;
    }
    Some(if report.transport == "io_uring" {
        format!("unmount, and mount with the option threads={wanted}")
    } else {
        format!("bedplate tune {} threads={wanted}", text::quoted(dir))
    })
}

fn seconds(ns: Option<u64>) -> f64 {
    ns.unwrap_or(0) as f64 / 1e9
}

/// Says in a line how many there are and how busy.
pub fn line(report: &ThreadReport) -> String {
    let mut line = report.threads.to_string();
    if report.processors > 1 || report.transport == "io_uring" {
        let processors = text::count(report.processors as u64, "processor");
        line += &format!(" over io_uring, divided among {processors}");
    }
    if report.threads > report.wanted {
        line += &format!(" ({} are wanted: the others end after a request)", report.wanted);
    }
    let total = &report.total;
    line + &format!(
        ", {} busy, at most {} at once; all busy for {:.1} s of {:.0} s; {}",
        report.busy,
        total.busy_max,
        total.all_busy_ns as f64 / 1e9,
        total.seconds,
        text::count(total.requests, "request")
    )
}

/// Says what the threads had of processors; `None` where the system does not tell.
pub fn processor_line(total: &ThreadActivity) -> Option<String> {
    let (run, wait) = (seconds(Some(total.cpu_run_ns?)), seconds(Some(total.cpu_wait_ns?)));
    Some(format!("ran for {run:.1} s, waited for one for {wait:.1} s"))
}

/// Says in a line how busy the I/O threads of a device's engine are.
pub fn io(told: &IoThreads) -> String {
    let mut line = format!(
        "{} of at most {}, {} busy, {} waiting",
        told.count,
        told.count_max,
        told.busy,
        text::count(told.waiting, "request")
    );
    if told.waited > 0 {
        line += &format!("; requests came {} times while all were busy", told.waited);
    }
    line
}

/// What mounts told at one moment, by where they are mounted.
pub type Looked = BTreeMap<PathBuf, ThreadReport>;

/// Looks at mounts; those that do not tell are left out.
pub fn look(mounts: &[Mount]) -> Result<Looked> {
    let mut looked = Looked::new();
    for mount in mounts {
        looked.extend(of(mount)?.map(|told| (mount.dir.clone(), told)));
    }
    Ok(looked)
}

/// What the threads of one mount did in a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Served {
    mounted_at: PathBuf,
    threads: u32,
    busy: u32,
    /// In the last 10 to 15 seconds.
    busy_max: u32,
    /// Served in this time.
    requests: u64,
    /// Which part of the time all were busy, from 0 to 1.
    all_busy_share: f64,
    /// How long they ran in this time; `None` where the system does not tell.
    cpu_run_ns: Option<u64>,
    /// How long they waited for a processor.
    cpu_wait_ns: Option<u64>,
    /// How long the time was.
    #[serde(skip)]
    seconds: f64,
}

/// Returns what was done between two looks; what was not there at the first counts from its mount.
pub fn between(before: &Looked, now: &Looked) -> Vec<Served> {
    let nothing = ThreadActivity::default();
    let served = |(dir, told): (&PathBuf, &ThreadReport)| {
        let earlier = before
            .get(dir)
            .map(|earlier| &earlier.total)
            // The counters of a new mount start at zero.
            .filter(|earlier| earlier.seconds < told.total.seconds)
            .unwrap_or(&nothing);
        let done = difference(earlier, &told.total);
        Served {
            mounted_at: dir.clone(),
            threads: told.threads,
            busy: told.busy,
            busy_max: told.recent.busy_max,
            requests: done.requests,
            all_busy_share: done.all_busy_share(),
            cpu_run_ns: done.cpu_run_ns,
            cpu_wait_ns: done.cpu_wait_ns,
            seconds: done.seconds,
        }
    };
    now.iter().map(served).collect()
}

fn difference(before: &ThreadActivity, now: &ThreadActivity) -> ThreadActivity {
    let since = |before: Option<u64>, now: Option<u64>| {
        now.map(|now| now.saturating_sub(before.unwrap_or(0)))
    };
    ThreadActivity {
        seconds: (now.seconds - before.seconds).max(0.0),
        busy_max: now.busy_max,
        requests: now.requests.saturating_sub(before.requests),
        all_busy_ns: now.all_busy_ns.saturating_sub(before.all_busy_ns),
        cpu_run_ns: since(before.cpu_run_ns, now.cpu_run_ns),
        cpu_wait_ns: since(before.cpu_wait_ns, now.cpu_wait_ns),
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.seconds.max(1e-3);
        write!(
            f,
            "threads of {}: {}, {} busy, lately at most {}; all busy for {:.0} %, {:.0} requests/s",
            text::name(&self.mounted_at),
            self.threads,
            self.busy,
            self.busy_max,
            self.all_busy_share * 100.0,
            self.requests as f64 / per_second
        )?;
        let (Some(run), Some(wait)) = (self.cpu_run_ns, self.cpu_wait_ns) else { return Ok(()) };
        let share = |ns: u64| ns as f64 / 1e7 / per_second;
        write!(f, "; ran for {:.0} %, waited for a processor for {:.0} %", share(run), share(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What 8 threads did in 10 s: all busy for so long, on a processor and waiting for one.
    fn told(all_busy_s: f64, run_s: f64, wait_s: f64) -> ThreadReport {
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        let recent = ThreadActivity {
            seconds: 10.0,
            busy_max: 8,
            requests: 5000,
            all_busy_ns: ns(all_busy_s),
            cpu_run_ns: Some(ns(run_s)),
            cpu_wait_ns: Some(ns(wait_s)),
        };
        ThreadReport {
            transport: "device".to_owned(),
            processors: 1,
            threads: 8,
            wanted: 8,
            busy: 2,
            total: recent,
            recent,
        }
    }

    fn verdict(report: ThreadReport) -> (Standing, String, Option<String>) {
        let Verdict { standing, why, change, .. } = judge(report, Path::new("/mnt"));
        (standing, why, change)
    }

    #[test]
    fn s_509_threads_that_are_all_busy_and_get_the_processor_are_too_few() {
        assert_eq!(
            verdict(told(3.4, 4.0, 0.2)),
            (
                Standing::TooFew,
                "all 8 threads were busy for 34 % of the last 10 s, so that requests waited, and \
                 got the processor at once: more may help"
                    .to_owned(),
                Some("bedplate tune /mnt threads=16".to_owned())
            ),
            "S-509"
        );
        let most = ThreadReport { threads: 1024, ..told(3.4, 4.0, 0.2) };
        assert_eq!(verdict(most).2, None, "S-509: there cannot be more");
        let ring =
            ThreadReport { transport: "io_uring".to_owned(), processors: 2, ..told(3.4, 4.0, 0.2) };
        let (standing, why, change) = verdict(ring);
        assert_eq!(standing, Standing::TooFew);
        assert!(why.starts_with("all 4 threads of a processor were busy"), "S-509: {why}");
        assert_eq!(
            change.as_deref(),
            Some("unmount, and mount with the option threads=16"),
            "S-509: over io_uring the number is fixed"
        );
    }

    #[test]
    fn s_509_threads_that_wait_for_a_processor_are_not_helped_by_more() {
        let (standing, why, change) = verdict(told(3.4, 4.0, 2.1));
        assert_eq!((standing, change), (Standing::ProcessorsBusy, None), "S-509");
        assert!(
            why.contains("waited for a processor for 2.1 s beside 4.0 s that they ran")
                && why.contains("more threads do not help"),
            "S-509: {why}"
        );
        let (standing, _, change) = verdict(told(0.4, 4.0, 2.1));
        assert_eq!(standing, Standing::TooMany, "S-509");
        assert_eq!(change.as_deref(), Some("bedplate tune /mnt threads=4"), "S-509");
    }

    #[test]
    fn s_509_threads_of_which_one_is_free_are_enough() {
        for report in [
            told(0.4, 4.0, 1.9),
            // A little of everything says nothing.
            told(0.0, 0.1, 0.1),
            ThreadReport::default(),
        ] {
            let (standing, why, change) = verdict(report);
            assert_eq!((standing, change), (Standing::Enough, None), "S-509: {why}");
            assert!(why.ends_with("they are enough"), "S-509: {why}");
        }
        let recent = ThreadActivity { cpu_wait_ns: None, ..told(3.4, 4.0, 0.0).recent };
        let (standing, why, _) = verdict(ThreadReport { recent, ..told(3.4, 4.0, 0.0) });
        assert!(standing == Standing::TooFew && !why.contains("processor"), "S-509: {why}");
    }

    #[test]
    fn s_509_what_threads_did_is_counted_from_look_to_look() {
        let dir = PathBuf::from("/mnt");
        let at = |report: ThreadReport| Looked::from([(dir.clone(), report)]);
        let before = told(3.0, 4.0, 1.0);
        let mut now = before.clone();
        now.total.seconds += 2.0;
        now.total.requests += 300;
        now.total.all_busy_ns += 500_000_000;
        now.total.cpu_run_ns = now.total.cpu_run_ns.map(|ns| ns + 1_000_000_000);
        let served = between(&at(before.clone()), &at(now));
        assert_eq!(
            served[0].to_string(),
            "threads of /mnt: 8, 2 busy, lately at most 8; all busy for 25 %, 150 requests/s; ran \
             for 50 %, waited for a processor for 0 %",
            "S-509"
        );
        let mut anew = told(1.0, 1.0, 1.0);
        anew.total.seconds = 4.0;
        let served = between(&at(before), &at(anew));
        assert!(served[0].to_string().contains("all busy for 25 %, 1250 requests/s"), "S-509");
    }
}
