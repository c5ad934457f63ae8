use proptest::prelude::*;

use super::*;

/// Feeds `bytes` in pieces of these lengths (repeated), and returns the result with the whole body.
fn read(bytes: &[u8], lengths: &[usize]) -> Result<(HttpHead, Vec<u8>), PreludeError> {
    let mut prelude = Prelude::default();
    let mut rest = bytes;
    let mut lengths = lengths.iter().cycle();
    loop {
        if rest.is_empty() {
            return Err(PreludeError::Ended);
        }
        let (chunk, after) = rest.split_at((*lengths.next().unwrap()).clamp(1, rest.len()));
        rest = after;
        if let Some((head, body)) = prelude.feed(chunk)? {
            return Ok((head, [&body, rest].concat()));
        }
    }
}

fn head(json: &str) -> Result<HttpHead, PreludeError> {
    let bytes = [json.as_bytes(), &[0; 8]].concat();
    read(&bytes, &[usize::MAX]).map(|(head, _)| head)
}

#[test]
fn status_headers_and_cookies_are_read() {
    let json = r#"{"statusCode": 201, "headers": {"b": "2", "a": ["1", "x"], "n": 3}, "cookies": ["c=1", "d=2"]}"#;
    let head = head(json).unwrap();
    assert_eq!(head.status, 201);
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        headers,
        [
            ("a", "1"),
            ("a", "x"),
            ("b", "2"),
            ("n", "3"),
            ("set-cookie", "c=1"),
            ("set-cookie", "d=2")
        ]
    );
}

#[test]
fn everything_may_be_missing() {
    let head = head("{}").unwrap();
    assert_eq!((head.status, head.headers.len()), (200, 0));
}

#[test]
fn what_is_no_prelude_is_told() {
    assert!(matches!(head("{"), Err(PreludeError::Json { .. })));
    assert!(matches!(head(""), Err(PreludeError::Json { .. })));
    assert_eq!(
        head(r#"{"statusCode": 42}"#),
        Err(PreludeError::Status { status: 42 })
    );
    assert_eq!(
        read(b"{}\0\0\0x\0\0\0\0\0", &[3]),
        Err(PreludeError::Delimiter)
    );
    assert_eq!(read(b"{}\0\0\0", &[1]), Err(PreludeError::Ended));
    let endless = vec![b' '; PRELUDE_LEN_MAX + 1];
    assert_eq!(read(&endless, &[4096]), Err(PreludeError::TooLong));
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same(
        json in prop_oneof![
            Just(r#"{"statusCode":418,"headers":{"x":"é\u0000"},"cookies":["a=b"]}"#.to_owned()),
            Just("{}".to_owned()),
            "[ -~]{0,24}",
        ],
        nuls in 0usize..12,
        body in proptest::collection::vec(any::<u8>(), 0..40),
        lengths in proptest::collection::vec(1usize..12, 1..20),
    ) {
        let bytes = [json.as_bytes(), &vec![0; nuls], &body].concat();
        prop_assert_eq!(read(&bytes, &lengths), read(&bytes, &[usize::MAX]));
    }
}
