//! Percent-decoding, for names in paths and for query strings. Nothing here fails: what is not a valid escape stays as it is.

use std::borrow::Cow;

/// Decodes `%41`; text without escapes is borrowed. Bytes that are not UTF-8 become U+FFFD.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    if text.contains('%') {
        into_text(bytes(text.as_bytes(), Plus::Stays))
    } else {
        Cow::Borrowed(text)
    }
}

/// As [`decode`], and `+` is a space: what forms write into a query string.
pub(crate) fn decode_form(text: &str) -> Cow<'_, str> {
    if text.contains(['%', '+']) {
        into_text(bytes(text.as_bytes(), Plus::Space))
    } else {
        Cow::Borrowed(text)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    Stays,
    Space,
}

fn bytes(text: &[u8], plus: Plus) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return decoded,
            [b'%', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                decoded.push(digit(*high) << 4 | digit(*low));
                tail
            }
            [b'+', tail @ ..] if plus == Plus::Space => {
                decoded.push(b' ');
                tail
            }
            [byte, tail @ ..] => {
                decoded.push(*byte);
                tail
            }
        };
    }
}

/// Value of a hexadecimal digit.
fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}

fn into_text(bytes: Vec<u8>) -> Cow<'static, str> {
    Cow::Owned(
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_decoded_and_what_is_none_stays() {
        let cases = [
            ("plain", "plain"),
            ("arn%3Aaws%3alambda", "arn:aws:lambda"),
            ("caf%C3%A9", "café"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("a+b", "a+b"),
        ];
        for (given, wanted) in cases {
            assert_eq!(decode(given), wanted, "{given}");
        }
        assert_eq!(decode_form("a+b%2B"), "a b+");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(decode("%FF!"), "\u{fffd}!");
    }

    proptest! {
        #[test]
        fn an_escaped_text_comes_back(text in any::<String>()) {
            let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decode(&escaped), text.as_str());
        }

        #[test]
        fn no_text_is_refused(text in any::<String>()) {
            decode(&text);
            decode_form(&text);
        }
    }
}
