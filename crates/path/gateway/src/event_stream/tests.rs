//! Vectors that botocore's `EventStreamBuffer` reads, and a reader of our own for the property.

use proptest::prelude::*;

use super::*;

/// Headers and payload of a message that is whole; checks every length and checksum.
fn read(message: &[u8]) -> (Vec<(String, String)>, Vec<u8>) {
    let number = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) as usize, message.len());
    assert_eq!(number(8), crc32fast::hash(&message[..8]));
    let end = message.len() - 4;
    assert_eq!(number(end), crc32fast::hash(&message[..end]));
    let (mut rest, payload) = message[12..end].split_at(number(4) as usize);
    let mut headers = Vec::new();
    while let Some((&name_len, after)) = rest.split_first() {
        let (name, after) = after.split_at(usize::from(name_len));
        let (frame, after) = after.split_at(3);
        assert_eq!(frame[0], 7);
        let value_len = u16::from_be_bytes([frame[1], frame[2]]);
        let (value, after) = after.split_at(usize::from(value_len));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        headers.push((text(name), text(value)));
        rest = after;
    }
    (headers, payload.to_vec())
}

#[test]
fn messages_are_the_bytes_that_botocore_reads() {
    assert_eq!(
        hex::encode(message(&[], b"")),
        "000000100000000005c248eb7d98c8ff"
    );
    assert_eq!(
        hex::encode(message(
            &[("content-type", "application/json")],
            b"{'foo':'bar'}"
        )),
        "0000003d0000002007fd83960c636f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e\
         7b27666f6f273a27626172277d8d9c08b1"
    );
    assert_eq!(
        hex::encode(event(EventKind::PayloadChunk, b"hello")),
        "0000006f0000005af5fe871f0b3a6576656e742d7479706507000c5061796c6f61644368756e6b0d3a636f6e\
         74656e742d747970650700186170706c69636174696f6e2f6f637465742d73747265616d0d3a6d6573736167\
         652d747970650700056576656e7468656c6c6f29e71260"
    );
    assert_eq!(
        hex::encode(event(EventKind::InvokeComplete, b"{}")),
        "00000066000000541f56c8690b3a6576656e742d7479706507000e496e766f6b65436f6d706c6574650d3a63\
         6f6e74656e742d747970650700106170706c69636174696f6e2f6a736f6e0d3a6d6573736167652d74797065\
         0700056576656e747b7d7006d467"
    );
}

proptest! {
    #[test]
    fn any_payload_comes_back(payload in any::<Vec<u8>>()) {
        let (headers, read) = read(&event(EventKind::PayloadChunk, &payload));
        prop_assert_eq!(read, payload);
        prop_assert_eq!(headers.len(), 3);
        prop_assert_eq!(&headers[0], &(":event-type".to_owned(), "PayloadChunk".to_owned()));
    }
}
