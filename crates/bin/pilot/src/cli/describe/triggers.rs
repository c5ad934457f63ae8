//! The part of `pilot describe` about triggers: what they listen to, how far they are behind, and what failed.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use pilot_model::trigger::{TriggerInfo, TriggerState};

use super::super::output::{self, BAD, STRONG};

/// The triggers; empty for a function without any.
pub(super) fn section(triggers: &[TriggerInfo], now_unix_s: u64) -> String {
    if triggers.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{STRONG}triggers{STRONG:#}\n");
    for trigger in triggers {
        let _ = writeln!(text, "  {:<13}{}", trigger.kind, trigger.source);
        let _ = writeln!(text, "  {:<13}{}", "", figures(trigger, now_unix_s));
        if let Some(error) = &trigger.last_error {
            let when = trigger.last_error_unix_ms.unwrap_or_default() / 1000;
            let ago = output::ago(when, now_unix_s);
            let _ = writeln!(text, "  {:<13}last error, {ago}: {error}", "");
        }
    }
    text
}

fn figures(trigger: &TriggerInfo, now_unix_s: u64) -> String {
    let state = match trigger.state {
        TriggerState::Starting | TriggerState::Active => trigger.state.to_string(),
        TriggerState::Failing | TriggerState::Refused => {
            format!("{BAD}{}{BAD:#}", trigger.state)
        }
    };
    let mut figures = vec![
        state,
        format!("{} received", trigger.received),
        output::count(trigger.errors, "error"),
    ];
    if let Some(waiting) = trigger.waiting {
        figures.push(format!("{waiting} waiting"));
    }
    if let Some(lag_s) = trigger.lag_s {
        figures.push(format!("{lag_s:.1} s behind"));
    }
    if let Some(last_ms) = trigger.last_run_unix_ms {
        let ago = output::ago(last_ms / 1000, now_unix_s);
        figures.push(format!("last run {ago}"));
    }
    if let Some(next_s) = trigger.next_run_unix_ms.map(|next_ms| next_ms / 1000)
        && next_s > now_unix_s
    {
        figures.push(next_run(next_s, now_unix_s));
    }
    figures.join(", ")
}

/// A run that is not soon has a date.
fn next_run(next_unix_s: u64, now_unix_s: u64) -> String {
    let left_s = next_unix_s.saturating_sub(now_unix_s);
    if left_s < SOON_S || next_unix_s >= DATES_END_S {
        return format!("next run in {left_s} s");
    }
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(next_unix_s);
    format!("next run at {}", humantime::format_rfc3339_seconds(at))
}

const SOON_S: u64 = 3600;
/// The year 10000, of which there are no dates.
const DATES_END_S: u64 = 253_402_300_800;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_not_soon_has_a_date() {
        assert_eq!(next_run(1_000_060, 1_000_000), "next run in 60 s");
        assert_eq!(
            next_run(1_924_991_999, 1_800_000_000),
            "next run at 2030-12-31T23:59:59Z"
        );
        assert_eq!(next_run(DATES_END_S, 0), "next run in 253402300800 s");
    }

    #[test]
    fn a_trigger_that_fails_says_why() {
        let trigger = TriggerInfo {
            function: "f".parse().unwrap(),
            kind: "folder".to_owned(),
            source: "/srv/in".to_owned(),
            state: TriggerState::Failing,
            lag_s: Some(1.5),
            waiting: Some(2),
            received: 7,
            errors: 1,
            last_run_unix_ms: Some(90_000),
            next_run_unix_ms: None,
            last_error: Some("/srv/in is gone".to_owned()),
            last_error_unix_ms: Some(99_000),
        };
        let text = anstream::adapter::strip_str(&section(&[trigger], 100)).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "",
                "triggers",
                "  folder       /srv/in",
                "               failing, 7 received, 1 error, 2 waiting, 1.5 s behind, last run 10 s ago",
                "               last error, just now: /srv/in is gone",
            ]
        );
        assert_eq!(section(&[], 0), "");
    }
}
