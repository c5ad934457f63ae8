//! The daemon's own log: lines on standard error, as text for people or as JSON for machines. Functions' output is not in it; the
//! control side writes that to files.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::log_queue::{LogQueue, Queued};

/// The format of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = LoggingError;

    fn from_str(word: &str) -> Result<Self, LoggingError> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LoggingError::Format {
                word: word.to_owned(),
            }),
        }
    }
}

/// Why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// Not a format.
    #[error("log format '{word}' is unknown: use text or json")]
    Format {
        /// The given value.
        word: String,
    },
    /// Not a level or a list of `target=level`.
    #[error(
        "log level '{level}' is invalid: {problem}; use off, error, warn, info, debug, trace, or TARGET=LEVEL,… with one of these levels"
    )]
    Level {
        /// The given value.
        level: String,
        /// The parser's message.
        problem: String,
    },
    /// Logging is already set up in this process.
    #[error("logging is already set up in this process")]
    Twice,
}

/// The log has a thread of its own until this is dropped, which waits for the last lines for a limited time.
#[derive(Debug)]
#[must_use = "the thread ends when it is dropped"]
pub struct LogThread(());

impl Drop for LogThread {
    fn drop(&mut self) {
        QUEUE.finish(LAST_LINES);
    }
}

/// Starts the thread that writes the log. From then on, nobody who logs waits for standard error. A process that is forked later cannot
/// log.
///
/// # Errors
/// The thread cannot be started.
pub fn start_thread() -> io::Result<LogThread> {
    // Not the standard library's, which has a lock: a thread that waits in a write would hold it.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let tell_lost = |lines: u64| {
        tracing::warn!(
            lines,
            "lines of this log were lost: nobody read standard error"
        );
    };
    let log_thread = LogThread(());
    QUEUE.begin();
    thread::Builder::new()
        .name("pilot-log".to_owned())
        .spawn(move || QUEUE.run(stderr, tell_lost))?;
    Ok(log_thread)
}

/// Sets up the process's log on standard error. `level` is a level or a list of `target=level`.
///
/// # Errors
/// The level is invalid, or this is the second call.
pub fn init(format: LogFormat, level: &str) -> Result<(), LoggingError> {
    let subscriber = subscriber(format, level, || Queued(&QUEUE))?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::Twice)
}

fn subscriber<W>(
    format: LogFormat,
    level: &str,
    writer: W,
) -> Result<Box<dyn Subscriber + Send + Sync>, LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = filter(level)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written, for example because the disk is full, is lost. Printing that would panic.
        .log_internal_errors(false)
        .with_writer(writer);
    Ok(match format {
        LogFormat::Text => Box::new(lines.with_target(false).with_ansi(false).finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    })
}

/// Checks a level or a list of `target=level` without setting anything up.
///
/// # Errors
/// It is invalid; the error lists the levels.
pub fn check_level(level: &str) -> Result<(), LoggingError> {
    filter(level).map(|_| ())
}

fn filter(level: &str) -> Result<EnvFilter, LoggingError> {
    let invalid = |problem| LoggingError::Level {
        level: level.to_owned(),
        problem,
    };
    // The parser takes any other word as the name of a target, for which it then enables everything.
    let mut directives = level.split(',').map(str::trim);
    if let Some(word) = directives.find(|one| {
        let is_target = one.contains(['=', '[', ']', '{', '}', '"']);
        !is_target && (one.is_empty() || one.parse::<LevelFilter>().is_err())
    }) {
        return Err(invalid(format!("there is no level '{word}'")));
    }
    // h2 warns of what clients of HTTP/2 do wrong, as often as they do it.
    let quiet = match level.contains("h2") {
        true => level.to_owned(),
        false => format!("{level},h2=off"),
    };
    EnvFilter::try_new(quiet).map_err(|error| invalid(error.to_string()))
}

static QUEUE: LogQueue = LogQueue::new();
/// How long the end waits for the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log_one_line(format: LogFormat, level: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(format, level, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(function = "invert", "deployed");
            tracing::debug!("left out");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_carry_message_and_fields() {
        let text = log_one_line(LogFormat::Json, "info");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.starts_with('{') && text.contains(r#""message":"deployed""#),
            "{text}"
        );
        assert!(text.contains(r#""function":"invert""#), "{text}");
    }

    #[test]
    fn what_clients_do_wrong_in_http2_is_logged_only_if_wanted() {
        for (level, logged) in [("info", false), ("debug", false), ("info,h2=warn", true)] {
            let lines = Lines::default();
            let writer = lines.clone();
            let subscriber = subscriber(LogFormat::Text, level, move || writer.clone()).unwrap();
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "h2::proto", "a strange frame");
            });
            assert_eq!(!lines.0.lock().unwrap().is_empty(), logged, "{level}");
        }
    }

    #[test]
    fn text_lines_have_no_colour_codes() {
        let text = log_one_line(LogFormat::Text, "info");
        assert!(
            text.contains("deployed") && !text.contains('\x1b'),
            "{text}"
        );
    }

    #[test]
    fn a_level_that_does_not_parse_is_named() {
        let error = subscriber(LogFormat::Text, "pilot=loudly", io::sink)
            .err()
            .unwrap();
        assert!(error.to_string().contains("pilot=loudly"), "{error}");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_the_levels() {
        for level in ["loud", "", "info,loud", "pilot_pool"] {
            let error = check_level(level).unwrap_err().to_string();
            assert!(
                error.contains("off, error, warn, info, debug, trace"),
                "{error}"
            );
        }
        assert!(
            check_level("info,loud")
                .unwrap_err()
                .to_string()
                .contains("'loud'")
        );
        for level in [
            "off",
            "INFO",
            "warn",
            "info,pilot_pool=debug",
            "pilot_pool=trace,h2=off",
        ] {
            assert!(check_level(level).is_ok(), "{level}");
        }
    }

    #[test]
    fn an_unknown_format_names_the_known_ones() {
        let error = "xml".parse::<LogFormat>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "log format 'xml' is unknown: use text or json"
        );
    }
}
