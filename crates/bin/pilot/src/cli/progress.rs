//! Shows the progress of a deployment: one line that is updated on a terminal, plain lines elsewhere. Writes to standard error, so
//! that standard output has only the report.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::output;

/// The progress of one function's deployment. Clears its line when dropped.
#[derive(Debug)]
pub(super) struct Progress {
    name: String,
    display: Display,
}

#[derive(Debug)]
enum Display {
    Line(ProgressBar),
    Lines,
    Nothing,
}

/// Whether to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// In the form that suits the stream.
    Progress,
    /// Nothing.
    Nothing,
}

impl Progress {
    /// Starts to show progress.
    pub(super) fn new(name: &str, show: Show) -> Self {
        let display = match show {
            Show::Nothing => Display::Nothing,
            Show::Progress if stderr().is_terminal() => {
                let style =
                    ProgressStyle::with_template("{spinner} {prefix}  {wide_msg}  {elapsed}")
                        .unwrap_or_else(|_| ProgressStyle::default_spinner());
                let bar = ProgressBar::new_spinner().with_style(style);
                bar.set_prefix(name.to_owned());
                bar.enable_steady_tick(TICK);
                Display::Line(bar)
            }
            Show::Progress => Display::Lines,
        };
        Self {
            name: name.to_owned(),
            display,
        }
    }

    /// Shows the current step.
    pub(super) fn tell(&self, message: &str) {
        match &self.display {
            Display::Line(bar) => bar.set_message(message.to_owned()),
            Display::Lines => output::note(&format!("{}: {message}", self.name)),
            Display::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Display::Line(bar) = &self.display {
            bar.finish_and_clear();
        }
    }
}

const TICK: Duration = Duration::from_millis(80);
