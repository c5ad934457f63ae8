//! The text of a request, as a script writes it: `METHOD TARGET`, then headers, an empty line and a body where there are any.
//!
//! ```text
//! GET images/cat.jpg
//! ```
//!
//! ```text
//! POST /tasks?max=1
//! content-type: application/json
//!
//! {"worker": 7}
//! ```

use bytes::Bytes;
use pilot_model::ports::RemoteRequest;

/// Reads a request. Lines end with `\n` or `\r\n`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &[u8]) -> Result<RemoteRequest, String> {
    let mut rest = text;
    let first = line(&mut rest)?;
    let (method, key) = first
        .split_once(' ')
        .ok_or("a request begins with a method, a space, and a key or /PATH")?;
    let mut request = RemoteRequest {
        method: method.to_owned(),
        key: key.to_owned(),
        ..RemoteRequest::default()
    };
    while !rest.is_empty() {
        let header = line(&mut rest)?;
        if header.is_empty() {
            request.body = Bytes::copy_from_slice(rest);
            break;
        }
        if request.headers.len() >= HEADERS_MAX {
            return Err(format!("a request has at most {HEADERS_MAX} headers"));
        }
        let (name, value) = header
            .split_once(':')
            .ok_or("a header is a name, a colon and a value")?;
        let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
        request.headers.push((name, value));
    }
    Ok(request)
}

/// Takes a line.
fn line<'a>(rest: &mut &'a [u8]) -> Result<&'a str, String> {
    let end = rest.iter().position(|byte| *byte == b'\n');
    let (line, after) = match end {
        Some(end) => (rest.get(..end), rest.get(end + 1..)),
        None => (Some(*rest), None),
    };
    *rest = after.unwrap_or_default();
    let line = std::str::from_utf8(line.unwrap_or_default())
        .map_err(|_| "the head of a request must be UTF-8")?;
    Ok(line.strip_suffix('\r').unwrap_or(line))
}

const HEADERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_have_spaces() {
        let request = parse("GET images/ä cat.jpg".as_bytes()).unwrap();
        assert_eq!(
            (request.method.as_str(), request.key.as_str()),
            ("GET", "images/ä cat.jpg")
        );
    }

    #[test]
    fn headers_and_a_body_follow() {
        let request = parse(b"POST /x\r\nA: b\r\nc:d\r\n\r\nbody\n\nmore").unwrap();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(request.headers, [header("A", "b"), header("c", "d")]);
        assert_eq!(&request.body[..], b"body\n\nmore");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for text in [&b""[..], b"GET", b"GET /\nx", b"\xff /x"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
