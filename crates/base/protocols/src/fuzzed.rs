//! Fuzz targets: what runtimes send to the Runtime API. Built for tests and with `--cfg fuzzing` only.

use bytes::Bytes;

use crate::error_body::as_error_body;
use crate::provided;

/// The prelude of a streamed answer. Wherever it is cut, the head and the beginning of the body are the same.
///
/// The first byte is the length of the pieces.
pub fn preludes(data: &[u8]) {
    let Some((piece, answer)) = data.split_first() else {
        return;
    };
    let whole = provided::fuzzed_prelude(answer.chunks(answer.len().max(1)));
    let parts = provided::fuzzed_prelude(answer.chunks(usize::from(*piece).max(1)));
    match (whole, parts) {
        // A prelude that is too long may be noticed before its end comes.
        (Err(_), Err(_)) => {}
        (whole, parts) => assert_eq!(whole, parts),
    }
}

/// An error that a runtime reports. Whatever it sends, the caller gets a JSON object.
pub fn errors(data: &[u8]) {
    let (kind, body) = data.split_at(data.len().min(8));
    let kind = String::from_utf8_lossy(kind);
    let sent = Bytes::copy_from_slice(body);
    let body = as_error_body(sent.clone(), Some(&kind));
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(&body) {
        assert!(value.is_object());
        return;
    }
    // An object as it was sent may have what this reader cannot keep: nesting, numbers, halves of surrogate pairs.
    assert_eq!(body, sent);
    assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok());
    assert!(body.trim_ascii_start().starts_with(b"{"));
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn a_prelude_is_the_same_wherever_it_is_cut() {
        corpus("preludes", super::preludes);
    }

    #[test]
    fn every_error_is_an_object() {
        corpus("errors", super::errors);
    }
}
