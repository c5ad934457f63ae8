//! The deadline that a client gives with its request: `Prefer: wait=SECONDS` (RFC 7240, section 4.3), or `X-Pilot-Deadline-Ms` where
//! seconds are too coarse. Both count from the arrival of the request's head. A request that cannot end before is refused before it
//! is run; one that runs is not ended by it.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use pilot_invoke::Urgency;
use pilot_model::Instant;

use crate::errors::RequestError;
use crate::headers;

/// How urgent a request with these headers is. If both headers are there, the earlier deadline counts.
///
/// # Errors
/// [`RequestError::InvalidContent`]: `X-Pilot-Deadline-Ms` is not a number. A preference that is not understood is ignored, as the
/// RFC says.
pub(crate) fn of(headers: &HeaderMap, received: Instant) -> Result<Urgency, RequestError> {
    let preferred = headers.get_all(headers::PREFER).iter().filter_map(wait);
    let exact = headers.get(headers::PILOT_DEADLINE_MS).map(milliseconds);
    let left = preferred.chain(exact.transpose()?).min();
    Ok(Urgency {
        finish_by: left.map(|left| received.after(left)),
        ..Urgency::CALLER
    })
}

/// The preference `wait` of a header, which may have others: `respond-async, wait=10`.
fn wait(value: &HeaderValue) -> Option<Duration> {
    let preferences = value.to_str().ok()?.split([',', ';']);
    let mut waits = preferences.filter_map(|preference| {
        let (name, seconds) = preference.split_once('=')?;
        let seconds = seconds.trim().trim_matches('"').parse().ok()?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| Duration::from_secs(seconds))
    });
    // Of a preference that is named twice, the first counts.
    waits.next()
}

fn milliseconds(value: &HeaderValue) -> Result<Duration, RequestError> {
    let number = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let number = number.ok_or_else(|| RequestError::InvalidContent {
        problem:
            "X-Pilot-Deadline-Ms must be a whole number of milliseconds, from the request's arrival"
                .to_owned(),
    });
    number.map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECEIVED: Instant = Instant(5);

    fn left_ms(lines: &[(&'static str, &str)]) -> Result<Option<u64>, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let urgency = of(&headers, RECEIVED).map_err(|error| error.to_string())?;
        let end = urgency.finish_by;
        Ok(end.map(|end| (end.0 - RECEIVED.0) / 1_000_000))
    }

    #[test]
    fn a_deadline_is_a_preference_of_the_rfc_or_a_number_of_milliseconds() {
        assert_eq!(left_ms(&[]), Ok(None));
        assert_eq!(left_ms(&[("prefer", "wait=10")]), Ok(Some(10_000)));
        let listed = "respond-async, Wait = \"10\"; x=1";
        assert_eq!(left_ms(&[("prefer", listed)]), Ok(Some(10_000)));
        let twice = [("prefer", "return=minimal"), ("prefer", "wait=3, wait=1")];
        assert_eq!(left_ms(&twice), Ok(Some(3_000)));
        assert_eq!(left_ms(&[("x-pilot-deadline-ms", "250")]), Ok(Some(250)));
        let both = [("prefer", "wait=1"), ("x-pilot-deadline-ms", "2000")];
        assert_eq!(left_ms(&both), Ok(Some(1_000)));
    }

    #[test]
    fn a_preference_that_is_not_understood_is_ignored_and_a_wrong_number_is_refused() {
        for value in ["wait", "wait=", "wait=-1", "wait=soon", "await=1", "=", ","] {
            assert_eq!(left_ms(&[("prefer", value)]), Ok(None), "{value}");
        }
        for value in ["", "1.5", "-1", "1s", "99999999999999999999"] {
            let problem = left_ms(&[("x-pilot-deadline-ms", value)]).unwrap_err();
            assert!(problem.contains("X-Pilot-Deadline-Ms"), "{problem}");
        }
    }

    proptest! {
        #[test]
        fn no_value_is_too_odd(bytes in any::<Vec<u8>>(), number in any::<u64>()) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                headers.insert(headers::PREFER, value);
            }
            headers.insert(headers::PILOT_DEADLINE_MS, HeaderValue::from(number));
            prop_assert!(of(&headers, Instant(u64::MAX - 1)).is_ok());
        }
    }
}
