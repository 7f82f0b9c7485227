//! The metrics of the process itself, under the names that Prometheus' client libraries share:
//! <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>

use std::fmt;

use procfs::{WithCurrentSystemInfo as _, process::Process};

use super::{MetricType, NO_LABELS, Page, counter};

/// Writes the metrics. Without a readable `/proc` it writes none.
pub(super) fn metrics(page: &mut Page<'_>) -> fmt::Result {
    let Ok(process) = Process::myself() else {
        return Ok(());
    };
    let Ok(stat) = process.stat() else {
        return Ok(());
    };
    #[allow(clippy::cast_precision_loss)] // 52 bits hold the ticks of a million years.
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    let time = [(NO_LABELS, seconds(stat.utime + stat.stime))];
    page.write(
        MetricType::Counter,
        "process_cpu_seconds",
        "Processor time of the process, in seconds",
        [],
        time,
        counter,
    )?;
    let help = "Memory of the process that is in the machine's memory, in bytes";
    let resident = stat.rss_bytes().get();
    page.gauge("process_resident_memory_bytes", help, resident)?;
    let help = "Address space of the process, in bytes";
    page.gauge("process_virtual_memory_bytes", help, stat.vsize)?;
    let help = "Threads of the process";
    page.gauge("process_threads", help, stat.num_threads)?;
    if let Ok(open) = process.fd_count() {
        page.gauge("process_open_fds", "Open files and sockets", open)?;
    }
    if let Ok(limits) = process.limits()
        && let procfs::process::LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        page.gauge("process_max_fds", "Most open files and sockets", most)?;
    }
    let Ok(boot) = procfs::boot_time_secs() else {
        return Ok(());
    };
    let help = "When the process started, in seconds of the Unix epoch";
    let start = boot + stat.starttime / procfs::ticks_per_second();
    page.gauge("process_start_time_seconds", help, start)
}
