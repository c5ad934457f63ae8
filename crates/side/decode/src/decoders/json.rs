//! JSON: the same text without a byte order mark and white space, if it is one that every reader understands alike. It is UTF-8,
//! has no name twice in an object, no half of a surrogate pair, and no number beyond a double (I-JSON, RFC 7493, section 2, but for
//! the precision of numbers). Names keep their order, and numbers and texts are as they were written.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use pilot_model::inputs::decoded::{DecodeRequest, Layout};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::{Made, too_long};

pub(super) fn decode(request: &DecodeRequest, mut bytes: Vec<u8>) -> Result<Made, String> {
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| format!("it is not UTF-8 at byte {}", error.valid_up_to()))?;
    serde_json::from_str::<Unambiguous>(text).map_err(|error| error.to_string())?;
    compact(&mut bytes);
    let len = bytes.len() as u64;
    match len <= request.bytes_max {
        true => Ok(Made {
            layout: Layout::Json {},
            parts: vec![bytes],
        }),
        false => Err(too_long(len, request)),
    }
}

/// Removes what is between the parts of a valid text.
fn compact(text: &mut Vec<u8>) {
    let (mut is_text, mut is_escaped) = (false, false);
    text.retain(|byte| {
        if !is_text {
            is_text = *byte == b'"';
            return !b" \t\r\n".contains(byte);
        }
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_text = false,
            _ => {}
        }
        true
    });
}

/// A value in which no object has a name twice.
struct Unambiguous;

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Checking)
    }
}

struct Checking;

impl<'de> Visitor<'de> for Checking {
    type Value = Unambiguous;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unambiguous, A::Error> {
        while items.next_element::<Unambiguous>()?.is_some() {}
        Ok(Unambiguous)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Unambiguous, A::Error> {
        let mut names = HashSet::new();
        while let Some(Name(name)) = members.next_key::<Name<'de>>()? {
            if names.contains(&name) {
                let shown: String = name.chars().take(SHOWN_MAX).collect();
                return Err(A::Error::custom(format!(
                    "an object has the name {shown:?} twice"
                )));
            }
            names.insert(name);
            members.next_value::<Unambiguous>()?;
        }
        Ok(Unambiguous)
    }
}

/// A name, which is copied only if it has escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Naming)
    }
}

struct Naming;

impl<'de> Visitor<'de> for Naming {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Characters of a name that an error shows.
const SHOWN_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use pilot_model::inputs::{Decoder, Form};
    use serde_json::Value;

    use super::*;

    fn decoded(text: &[u8], bytes_max: u64) -> Result<String, String> {
        let request = DecodeRequest {
            by: Decoder::Json,
            form: Form::File,
            len: None,
            bytes_max,
            memory_bytes: 1 << 30,
        };
        let made = decode(&request, text.to_vec())?;
        assert_eq!(made.layout, Layout::Json {});
        let [text] = made.parts.as_slice() else {
            panic!("{:?}", made.parts);
        };
        Ok(String::from_utf8(text.clone()).unwrap())
    }

    #[test]
    fn a_text_keeps_all_but_its_white_space() {
        for (text, compact) in [
            ("\u{feff} [ 1 , 2.50 ,\t-3e+2\r\n] ", "[1,2.50,-3e+2]"),
            (
                r#"{ "b" : " a \" , \\" , "a" : { "b" : null } }"#,
                r#"{"b":" a \" , \\","a":{"b":null}}"#,
            ),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (r#" "\ud83d\ude00\/ä" "#, r#""\ud83d\ude00\/ä""#),
            ("[{\"a\":1},{\"a\":2}]", "[{\"a\":1},{\"a\":2}]"),
            (" true ", "true"),
        ] {
            let found = decoded(text.as_bytes(), 1 << 20).unwrap();
            assert_eq!(found, compact);
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(read(&found), read(text.trim_start_matches('\u{feff}')));
        }
    }

    #[test]
    fn what_readers_understand_differently_is_refused_in_words() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for (text, said) in [
            (&b"{\"a\": 1"[..], "EOF while parsing an object at line 1"),
            (b"", "EOF"),
            (b"[1] 2", "trailing characters at line 1 column 5"),
            (b"[\xff]", "it is not UTF-8 at byte 1"),
            (
                b"{\"a\": 1, \"\\u0061\": 2}",
                "an object has the name \"a\" twice at line 1",
            ),
            (b"[1e999]", "number out of range"),
            (b"[NaN]", "expected value"),
            (br#"["\ud83d"]"#, "hex escape"),
            (br#"{"\udc00": 1}"#, "surrogate"),
            (deep.as_bytes(), "recursion limit"),
        ] {
            let found = decoded(text, 1 << 20).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
        let found = decoded(b"[1, 2]", 4).unwrap_err();
        assert!(found.contains("the result would have 5 bytes"), "{found}");
    }
}
