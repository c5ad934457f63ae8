//! What stands around every measurement: a progress bar on a terminal, and Ctrl-C, which ends the measurement with the figures so far.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pilot_loadgen::control::Control;

use super::super::interrupt;
use super::super::output;

/// When a measurement ends: after a number of requests, after a time, or with the first of both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) requests: Option<u64>,
    pub(super) duration: Option<Duration>,
}

/// Runs a measurement. From now on the first Ctrl-C stops it, and the second one ends the process.
pub(super) fn watched<T>(
    extent: Extent,
    measure: impl FnOnce(&Control) -> anyhow::Result<T>,
) -> anyhow::Result<(T, Ending)> {
    let control = Arc::new(Control::default());
    let stopped = Arc::clone(&control);
    interrupt::on_interrupt(move || stopped.stop())?;
    let is_over = AtomicBool::new(false);
    let measured = thread::scope(|scope| {
        let bar = stderr()
            .is_terminal()
            .then(|| scope.spawn(|| show(extent, &control, &is_over)));
        let measured = measure(&control);
        is_over.store(true, Ordering::Relaxed);
        if let Some(bar) = bar {
            bar.thread().unpark();
        }
        measured
    })?;
    let ending = if control.is_stopped() {
        Ending::Interrupted
    } else {
        Ending::Whole
    };
    Ok((measured, ending))
}

/// How a measurement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// As planned.
    Whole,
    /// By Ctrl-C.
    Interrupted,
}

/// Draws the bar until the measurement is over. Short measurements get none.
fn show(extent: Extent, control: &Control, is_over: &AtomicBool) {
    let began = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    while !is_over.load(Ordering::Relaxed) {
        thread::park_timeout(DRAW_EVERY);
        if began.elapsed() < SHOWN_AFTER {
            continue;
        }
        let bar = bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}");
            ProgressBar::new(PARTS)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let (done, elapsed) = (control.done(), began.elapsed());
        bar.set_message(format!(
            "{}, {:.0} s; Ctrl-C stops and prints what there is",
            output::count(done, "request"),
            elapsed.as_secs_f64()
        ));
        bar.set_position(parts(extent, done, elapsed));
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}

/// How much is done, of [`PARTS`].
fn parts(extent: Extent, done: u64, elapsed: Duration) -> u64 {
    let of_requests = extent
        .requests
        .map_or(0, |all| done.saturating_mul(PARTS) / all.max(1));
    let of_time = extent.duration.map_or(0, |all| {
        let parts = elapsed.as_millis().saturating_mul(PARTS.into()) / all.as_millis().max(1);
        u64::try_from(parts).unwrap_or(PARTS)
    });
    of_requests.max(of_time).min(PARTS)
}

const PARTS: u64 = 1_000;
const DRAW_EVERY: Duration = Duration::from_millis(200);
const SHOWN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_that_of_the_limit_that_comes_first() {
        let extent = Extent {
            requests: Some(200),
            duration: Some(Duration::from_secs(10)),
        };
        assert_eq!(parts(extent, 100, Duration::from_secs(1)), 500);
        assert_eq!(parts(extent, 10, Duration::from_secs(9)), 900);
        assert_eq!(parts(extent, 400, Duration::ZERO), PARTS);
        assert_eq!(parts(Extent::default(), 7, Duration::from_secs(1)), 0);
    }
}
