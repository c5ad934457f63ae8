//! The part of `pilot describe` about the kept runtimes of a function that does not fork: which runtimes exist, their counts so
//! far, and where the newest worker got its runtime.

use std::fmt::Write as _;

use pilot_model::status::{Availability, RuntimeCounts, RuntimeStart, RuntimeStatus};

use super::super::output::{self, STRONG};

/// The kept runtimes; empty for a function that forks.
pub(super) fn section(status: Option<&RuntimeStatus>) -> String {
    let Some(status) = status else {
        return String::new();
    };
    let state = match status.availability {
        Availability::NotExisting => "none of its key exists",
        Availability::NotAvailable => "none of its key is available",
        Availability::Available => "available",
    };
    let mut text = format!("\n{STRONG}runtimes{STRONG:#}  {state}\n");
    let mut line = |key: &str, value: &str| {
        for (at, part) in folded(value).into_iter().enumerate() {
            let key = if at == 0 { key } else { "" };
            let _ = writeln!(text, "  {key:<13}{part}");
        }
    };
    line("key", &format!("{}: {}", status.key, status.line));
    line("of its key", &counts(&status.own));
    line("same base", &counts(&status.base));
    let totals = &status.totals;
    line(
        "so far",
        &format!(
            "{} reused, {} adapted, {} started; {} cleaned, {} destroyed, {} evicted, {} let go",
            totals.reused,
            totals.adapted,
            totals.started,
            totals.cleaned,
            totals.destroyed,
            totals.evicted,
            totals.let_go,
        ),
    );
    if let Some(last) = &status.last {
        line("last start", &start(last));
    }
    if let Some(forecast) = &status.forecast {
        let wanted = output::count(u64::from(forecast.target), "runtime");
        line(
            "forecast",
            &format!("{} wants {wanted} of its base key", forecast.policy),
        );
        line("", &forecast.reason);
    }
    text
}

fn start(last: &RuntimeStart) -> String {
    let saved = match last.saved_ms {
        Some(saved) if saved >= 0.0 => format!(", {saved:.1} ms less than a fresh start"),
        Some(saved) => format!(", {:.1} ms more than a fresh start", -saved),
        None => String::new(),
    };
    format!("{} in {:.1} ms{saved}", last.how, last.took_ms)
}

fn counts(counts: &RuntimeCounts) -> String {
    let words = [
        (counts.available, "available"),
        (counts.leased, "leased"),
        (counts.starting, "starting"),
        (counts.adapting, "adapting"),
        (counts.cleaning, "cleaning"),
    ];
    let some: Vec<_> = words
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if some.is_empty() {
        "none".to_owned()
    } else {
        some.join(", ")
    }
}

/// Folds a text into lines that fit the page, at spaces.
pub(super) fn folded(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let length = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// The page's 80 columns without the label before a value.
const WIDTH: usize = 80 - 15;

#[cfg(test)]
mod tests {
    use pilot_model::status::{ForecastStatus, RuntimeTotals};

    use super::*;

    fn a_status() -> RuntimeStatus {
        RuntimeStatus {
            key: "1a2b3c4d".to_owned(),
            line: "sandbox with /usr/bin/node, owner web, network outbound, 256 MB, 1 CPU, 2 mounts, 1 variable".to_owned(),
            availability: Availability::Available,
            own: RuntimeCounts {
                available: 1,
                leased: 2,
                ..RuntimeCounts::default()
            },
            base: RuntimeCounts::default(),
            totals: RuntimeTotals {
                reused: 12,
                adapted: 3,
                started: 2,
                cleaned: 14,
                destroyed: 1,
                ..RuntimeTotals::default()
            },
            last: Some(RuntimeStart {
                how: "adapted from 9f8e7d6c: owner, environment, mounts".to_owned(),
                took_ms: 3.21,
                saved_ms: Some(41.0),
            }),
            forecast: Some(ForecastStatus {
                policy: "smoothing-markov:margin=1".to_owned(),
                target: 4,
                idle_s: None,
                reason: "smoothed to 3.0 at once: 3.0 at once + 1 = 4 workers".to_owned(),
            }),
        }
    }

    #[test]
    fn what_is_kept_is_told_on_lines_that_fit_the_page() {
        let text = section(Some(&a_status()));
        let text = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(text, include_str!("runtimes.txt"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_start_that_took_longer_than_a_fresh_one_says_so() {
        let last = RuntimeStart {
            how: "reused".to_owned(),
            took_ms: 50.0,
            saved_ms: Some(-9.0),
        };
        let text = start(&last);
        assert_eq!(text, "reused in 50.0 ms, 9.0 ms more than a fresh start");
    }

    #[test]
    fn nothing_is_said_of_a_function_that_forks() {
        assert_eq!(section(None), "");
    }
}
