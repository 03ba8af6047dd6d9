//! Metrics of the threads that serve a mount, and of the engine's I/O threads.

use std::fmt;

use bedplate::IoThreads;
use bedplate_serve::control::ThreadReport;

use super::families::Out;

/// The threads that take requests from the kernel.
pub(super) fn serving(out: &mut Out<'_>, told: &ThreadReport) -> fmt::Result {
    let total = &told.total;
    out.gauge("serving_threads", "Threads that serve the mount", told.threads.into())?;
    out.gauge("serving_threads_busy", "Threads of them that serve a request", told.busy.into())?;
    out.gauge(
        "serving_threads_busy_max",
        "The most of them that were busy at once in the last 10 to 15 seconds",
        told.recent.busy_max.into(),
    )?;
    out.seconds(
        "serving_threads_all_busy_seconds",
        "Time in which all of them were busy, so that a request that came had to wait",
        total.all_busy_ns,
    )?;
    out.counter("serving_threads_requests", "Requests that they served", total.requests)?;
    let (Some(run_ns), Some(wait_ns)) = (total.cpu_run_ns, total.cpu_wait_ns) else {
        return Ok(());
    };
    out.seconds("serving_threads_cpu_run_seconds", "Time that they ran on a processor", run_ns)?;
    out.seconds(
        "serving_threads_cpu_wait_seconds",
        "Time that they could have run and waited for a processor",
        wait_ns,
    )
}

/// The threads that do I/O where io_uring is not to be had.
pub(super) fn io(out: &mut Out<'_>, told: &IoThreads) -> fmt::Result {
    out.gauge("io_threads", "Threads of the I/O engine", told.count)?;
    out.gauge("io_threads_max", "Threads that it may have", told.count_max)?;
    out.gauge("io_threads_busy", "Threads of them that carry out a request", told.busy)?;
    out.gauge("io_threads_waiting", "Requests that wait for such a thread", told.waiting)?;
    out.counter(
        "io_threads_waits",
        "Times requests came while every such thread was busy",
        told.waited,
    )
}
