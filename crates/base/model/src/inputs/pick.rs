//! Values out of a JSON text in one pass, without the memory for the rest of it: an event may have megabytes.

use std::fmt;

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The strings, numbers and booleans at these paths of a JSON text, as text; numbers as they are written. A part of a path is a key
/// of an object or an index of an array. `None`: there is nothing, an object, an array or null. Of equal keys the last counts, as
/// for Python's and Node's parsers. All are `None` if the text is not JSON.
#[must_use]
pub(crate) fn pick(json: &[u8], paths: &[&[String]]) -> Vec<Option<String>> {
    let mut found = vec![None; paths.len()];
    let wanted = paths.iter().copied().enumerate().collect();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let walk = Walk {
        wanted,
        found: &mut found,
    };
    if walk
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        .is_err()
    {
        found.fill(None);
    }
    found
}

/// Reads one value.
struct Walk<'a, 'p> {
    /// Which of the paths lead here, and what is left of each.
    wanted: Vec<(usize, &'p [String])>,
    found: &'a mut [Option<String>],
}

impl<'p> Walk<'_, 'p> {
    /// Those that go on with this part.
    fn below(&self, fits: impl Fn(&str) -> bool) -> Vec<(usize, &'p [String])> {
        let below = self.wanted.iter().filter_map(|(index, path)| {
            let (first, rest) = path.split_first()?;
            fits(first).then_some((*index, rest))
        });
        below.collect()
    }

    /// A value that is wanted itself, and perhaps what is in it.
    fn take(self, value: &RawValue) {
        let text = value.get();
        let taken = match text.as_bytes().first() {
            Some(b'"') => serde_json::from_str::<String>(text).ok(),
            Some(b'{' | b'[' | b'n') | None => None,
            // As it is written: a key may be a number that no float can be.
            Some(_) => Some(text.to_owned()),
        };
        let (here, below): (Vec<_>, Vec<_>) =
            (self.wanted.into_iter()).partition(|(_, path)| path.is_empty());
        for (index, _) in here {
            self.found[index].clone_from(&taken);
        }
        if !below.is_empty() {
            let walk = Walk {
                wanted: below,
                found: self.found,
            };
            // It was read as JSON just now.
            let _ = walk.deserialize(&mut serde_json::Deserializer::from_str(text));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // A value of the same key before this one does not count.
        for (index, _) in &self.wanted {
            self.found[*index] = None;
        }
        if self.wanted.iter().any(|(_, path)| path.is_empty()) {
            self.take(<&RawValue>::deserialize(deserializer)?);
            return Ok(());
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let wanted = self.below(|part| part == key);
            if wanted.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Walk {
                    wanted,
                    found: &mut *self.found,
                })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let wanted = self.below(|part| part.parse() == Ok(index));
            let next = if wanted.is_empty() {
                list.next_element::<IgnoredAny>()?.is_some()
            } else {
                let walk = Walk {
                    wanted,
                    found: &mut *self.found,
                };
                list.next_element_seed(walk)?.is_some()
            };
            if !next {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(json: &str, path: &str) -> Option<String> {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        pick(json.as_bytes(), &[&path]).remove(0)
    }

    #[test]
    fn a_number_is_taken_as_it_is_written() {
        for number in ["20000000000000000001", "1.0", "1e30", "-0", "0.10"] {
            let json = format!("{{\"a\": {number} , \"b\": [{number}]}}");
            assert_eq!(picked(&json, "a").as_deref(), Some(number));
            assert_eq!(picked(&json, "b.0").as_deref(), Some(number));
        }
        let both: [&[String]; 2] = [&["a".to_owned()], &["a".to_owned(), "b".to_owned()]];
        let found = pick(br#"{"a": {"b": 7}}"#, &both);
        assert_eq!(found, [None, Some("7".to_owned())]);
    }

    #[test]
    fn a_value_is_found_by_keys_and_indexes() {
        let json = r#"{"a": [1, {"b": "x"}], "c": {"d": true, "e": null}, "f": 1.5, "g": -2}"#;
        assert_eq!(picked(json, "a.1.b").as_deref(), Some("x"));
        assert_eq!(picked(json, "a.0").as_deref(), Some("1"));
        assert_eq!(picked(json, "c.d").as_deref(), Some("true"));
        assert_eq!(picked(json, "f").as_deref(), Some("1.5"));
        assert_eq!(picked(json, "g").as_deref(), Some("-2"));
        for path in ["a", "a.2", "a.1", "a.x", "c.e", "c.e.f", "f.g", "x"] {
            assert_eq!(picked(json, path), None, "{path}");
        }
    }

    #[test]
    fn many_paths_take_one_pass() {
        let paths = [
            vec!["a".to_owned()],
            vec!["b".to_owned(), "c".to_owned()],
            vec!["a".to_owned()],
        ];
        let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
        let found = pick(br#"{"a": "x", "b": {"c": 1}}"#, &paths);
        assert_eq!(
            found,
            [
                Some("x".to_owned()),
                Some("1".to_owned()),
                Some("x".to_owned())
            ]
        );
    }

    #[test]
    fn of_equal_keys_the_last_counts_as_for_the_handler() {
        assert_eq!(picked(r#"{"a": 1, "a": 2}"#, "a").as_deref(), Some("2"));
        assert_eq!(picked(r#"{"a": {"b": 1}, "a": {}}"#, "a.b"), None);
        assert_eq!(picked(r#"{"a": {"b": 1}, "a": 3}"#, "a.b"), None);
    }

    #[test]
    fn what_is_not_json_has_no_values() {
        for json in [
            "",
            "{",
            "\"x\"",
            "{\"a\" 1}",
            "{\"a\": {\"b\": 1}} x",
            "[[[[[",
        ] {
            assert_eq!(picked(json, "a.b"), None, "{json}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(picked(&deep, "0.0.0.0"), None);
    }
}
