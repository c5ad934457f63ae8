//! An invocation's timeline as response headers: `Server-Timing` with every phase, and `X-Pilot-Start`. Nothing is measured here.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http::header::HeaderMap;
use pilot_model::{Instant, InvocationId, StartKind, Timeline, Transfer, TransferWay};

use crate::headers;

/// Writes the headers of every response of an invocation. `now` is the end of a timeline that is not finished (the head of a
/// streamed response is sent before its end).
pub(crate) fn write(
    into: &mut HeaderMap,
    id: &InvocationId,
    start: Option<StartKind>,
    timeline: &Timeline,
    transfers: &[Transfer],
    now: Instant,
) {
    write_id(into, id);
    if let Some(start) = start {
        into.insert(
            headers::PILOT_START,
            HeaderValue::from_static(start.as_str()),
        );
    }
    // An application may have its own entries.
    into.append(
        headers::SERVER_TIMING,
        server_timing(timeline, transfers, now),
    );
}

/// Writes only the request id.
pub(crate) fn write_id(into: &mut HeaderMap, id: &InvocationId) {
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        into.insert(headers::REQUEST_ID, value);
    }
}

fn server_timing(timeline: &Timeline, transfers: &[Transfer], now: Instant) -> HeaderValue {
    let mut text = Vec::with_capacity(TEXT_LEN);
    for (name, took) in timeline.phases() {
        entry(&mut text, name, took);
        text.extend_from_slice(b", ");
    }
    let total = timeline
        .total()
        .unwrap_or_else(|| now.since(timeline.received));
    entry(&mut text, "total", total);
    for transfer in transfers {
        text.extend_from_slice(b", ");
        transfer_entry(&mut text, transfer, timeline);
    }
    HeaderValue::from_maybe_shared(Bytes::from(text))
        .unwrap_or_else(|_| HeaderValue::from_static("total"))
}

/// `name;dur=1.234`: milliseconds, to the microsecond. Uses only integers, because it runs for every response.
fn entry(text: &mut Vec<u8>, name: &str, took: Duration) {
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b";dur=");
    let micros = took.as_micros();
    decimal(text, micros / 1000);
    text.push(b'.');
    for place in [100, 10, 1] {
        let digit = micros / place % 10;
        text.push(b'0' + u8::try_from(digit).unwrap_or(0));
    }
}

/// `fetch.NAME;dur=2.000;begin=0.100;bytes=1024;hidden=1.900`: the way of an input, which other phases overlap. `begin` counts from
/// the request's head; `hidden` is the part during which the worker started, and `streamed`, of an input that the worker could read
/// while it arrived, the part during which the handler ran. `decode` is the part during which its decoder had all of the store's
/// bytes. `desc=cached`: the bytes were here; `desc=shared`: another invocation fetched them; `desc=handed`: another function or an
/// initscript handed them over; `desc=kept`: a shared initscript's message was here; `desc=script`: the run of an initscript.
fn transfer_entry(text: &mut Vec<u8>, transfer: &Transfer, timeline: &Timeline) {
    text.extend_from_slice(b"fetch.");
    entry(text, &transfer.input, transfer.took());
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let begin = ms(transfer.began.since(timeline.received));
    let rest = match transfer.error {
        None => format!(
            ";begin={begin:.3};bytes={};hidden={:.3}{}{}",
            transfer.bytes,
            ms(transfer.hidden(timeline)),
            match (transfer.beside_handler(timeline), transfer.decode_took()) {
                (Some(beside), _) => format!(";streamed={:.3}", ms(beside)),
                (None, Some(took)) => format!(";decode={:.3}", ms(took)),
                (None, None) => String::new(),
            },
            match transfer.way {
                TransferWay::Fetched => "",
                TransferWay::Shared => ";desc=shared",
                TransferWay::Cached => ";desc=cached",
                TransferWay::Handed => ";desc=handed",
                TransferWay::Kept => ";desc=kept",
                TransferWay::Script => ";desc=script",
            }
        ),
        Some(_) => format!(";begin={begin:.3};desc=failed"),
    };
    text.extend_from_slice(rest.as_bytes());
}

fn decimal(text: &mut Vec<u8>, value: u128) {
    if value >= 10 {
        decimal(text, value / 10);
    }
    text.push(b'0' + u8::try_from(value % 10).unwrap_or(0));
}

/// Enough for all nine entries of a cold start.
const TEXT_LEN: usize = 192;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timeline(stamps: [u64; 4]) -> Timeline {
        let mut timeline = Timeline::new(Instant(stamps[0]));
        timeline.admitted = Some(Instant(stamps[1]));
        timeline.returned = Some(Instant(stamps[2]));
        timeline.finished = Some(Instant(stamps[3]));
        timeline
    }

    #[test]
    fn every_phase_and_the_total_are_named_in_milliseconds() {
        let timeline = timeline([0, 1_000, 12_345_678, 1_012_345_678]);
        let mut headers = HeaderMap::new();
        write(
            &mut headers,
            &InvocationId::new("id-1"),
            Some(StartKind::ColdShared),
            &timeline,
            &[],
            Instant(0),
        );
        assert_eq!(
            headers["server-timing"],
            "admit;dur=0.001, handler;dur=12.344, answer;dur=1000.000, total;dur=1012.345"
        );
        assert_eq!(headers["x-pilot-start"], "cold");
        assert_eq!(headers["x-amzn-requestid"], "id-1");
    }

    #[test]
    fn an_unfinished_timeline_is_counted_up_to_now() {
        let value = server_timing(&Timeline::new(Instant(5_000)), &[], Instant(15_000));
        assert_eq!(value, "total;dur=0.010");
    }

    proptest! {
        #[test]
        fn any_stamps_make_a_header(stamps in any::<[u64; 4]>()) {
            let value = server_timing(&timeline(stamps), &[], Instant(0));
            prop_assert!(value.to_str().unwrap().contains("total;dur="));
        }
    }
}
