//! Entries of a stream of Redis as one JSON text: `KEY?stream&after=ID&to=ID&last=N`.
//!
//! They are read in parts. What is added after the first part was asked for is left out, so a stream that grows comes to an end. Entries
//! never change, but what is trimmed meanwhile is missing.
//!
//! Redis finds the entries at the end only from the end. If they are short, one part has them all. Otherwise they are read twice:
//! to find out where they begin, up to the longest input, and then in their order.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pilot_model::ports::InputFaultKind as Kind;
use redis::{RedisError, Value};
use serde_json::{Map, json};

use super::{Lent, RedisStore, StoreError, failed};
use crate::stores::too_large;

/// Which entries of which stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) key: String,
    /// As XRANGE takes it: `-`, an id, or `(` and an id.
    from: String,
    /// As XRANGE takes it.
    to: String,
    first: Option<u64>,
    last: Option<u64>,
}

impl Range {
    /// What follows the last `?` of a key, if that is `stream` and perhaps more. `None`: the key is that of a string.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub(super) fn of(key: &str) -> Result<Option<Self>, String> {
        let Some((key, query)) = key.rsplit_once('?') else {
            return Ok(None);
        };
        let mut parts = query.split('&');
        if parts.next() != Some("stream") {
            return Ok(None);
        }
        let mut range = Self {
            key: key.to_owned(),
            from: "-".to_owned(),
            to: "+".to_owned(),
            first: None,
            last: None,
        };
        let mut names = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "from" => range.from = id(name, value)?,
                "after" => range.from = format!("({}", id(name, value)?),
                "to" => range.to = id(name, value)?,
                "first" => range.first = Some(count(name, value)?),
                "last" => range.last = Some(count(name, value)?),
                _ => {
                    return Err(format!(
                        "\"{}\" is unknown: after ?stream come &from=ID or &after=ID, &to=ID, and &first=N or &last=N",
                        name.escape_default()
                    ));
                }
            }
            names.push(name);
        }
        for [one, other] in [["from", "after"], ["first", "last"]] {
            if names.contains(&one) && names.contains(&other) {
                return Err(format!(
                    "{one} and {other} exclude each other: leave one out"
                ));
            }
        }
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("{} is there twice", twice[0]));
        }
        Ok(Some(range))
    }
}

/// `1526919030474-55`, or without the second part.
fn id(name: &str, value: &str) -> Result<String, String> {
    let mut parts = value.splitn(2, '-');
    let is_id = parts.all(|part| part.parse::<u64>().is_ok() && !part.starts_with('+'));
    match is_id {
        true => Ok(value.to_owned()),
        false => Err(format!(
            "{name} is \"{}\", must be the id of an entry, such as 1526919030474-0, or Unix milliseconds",
            value.escape_default()
        )),
    }
}

fn count(name: &str, value: &str) -> Result<u64, String> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        format!(
            "{name} is \"{}\", must be a number of entries from 1",
            value.escape_default()
        )
    })
}

/// What is wrong with the key of a location, as far as that is known before there are values. `key` has [`VALUE`] for each.
///
/// # Errors
/// What is wrong, and what to write.
pub(super) fn check(key: &str) -> Result<(), String> {
    let query = key.rsplit_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').map(|part| match part.split_once('=') {
        Some((name, _)) => name,
        None => part,
    });
    // A value may be such a name, or more of the query.
    if names.clone().any(|name| name.contains(VALUE)) {
        return Ok(());
    }
    // That is an id and a number of entries.
    Range::of(&key.replace(VALUE, "1")).map(drop)
}

/// Whether it is the location that names a stream, and not a value in it. `location` is its key, with [`VALUE`] for each value.
///
/// # Errors
/// What is wrong with the key.
pub(super) fn check_key(location: &str, key: &str) -> Result<(), String> {
    let query = |key: &str| key.rsplit_once('?').map(|(_, query)| query.to_owned());
    let names_stream = query(location).is_some_and(|query| query.starts_with("stream"));
    if names_stream || Range::of(key) == Ok(None) {
        return Ok(());
    }
    Err("a value of it ends in ?stream: only the location itself says that the entries of a stream are wanted".to_owned())
}

/// Stands for a value. No key has it.
pub(super) const VALUE: char = '\0';

/// A stream of which a part was read.
pub(super) struct Entries {
    store: RedisStore,
    lent: Option<Lent>,
    key: String,
    /// From where the next part is.
    from: String,
    /// The last entry. `None`: there is none, or all was read.
    to: Option<String>,
    left: u64,
    at_once: u64,
    /// What was read from the end already, from new to old: the texts of parts.
    read: Vec<Bytes>,
    is_begun: bool,
    is_ended: bool,
}

impl Entries {
    /// Finds out where the entries begin and end.
    pub(super) async fn begin(
        store: RedisStore,
        lent: Lent,
        range: Range,
    ) -> Result<Self, StoreError> {
        let mut entries = Self {
            store,
            lent: Some(lent),
            key: range.key,
            from: range.from,
            to: None,
            left: range.first.unwrap_or(u64::MAX),
            at_once: AT_ONCE_MIN,
            read: Vec::new(),
            is_begun: false,
            is_ended: false,
        };
        if let Some(last) = range.last {
            entries.seek(range.to, last).await?;
            return Ok(entries);
        }
        let newest = entries.part(Order::Falling, &range.to, 1).await?;
        entries.to = newest.first().map(|entry| entry.id.clone());
        Ok(entries)
    }

    /// Finds the last entries. If they are short, they are read by then.
    async fn seek(&mut self, mut to: String, mut last: u64) -> Result<(), StoreError> {
        let (mut found, mut len) = (None, 0);
        while last > 0 {
            let count = last.min(self.at_once);
            let part = self.part(Order::Falling, &to, count).await?;
            let (Some(newest), Some(oldest)) = (part.first(), part.last()) else {
                break;
            };
            self.to.get_or_insert_with(|| newest.id.clone());
            to = format!("({}", oldest.id);
            found = Some(oldest.id.clone());
            last = last.saturating_sub(part.len() as u64);
            let text = texts(part.iter().rev());
            len += text.len() as u64;
            if len > self.store.bytes_max {
                return Err(too_large(None, self.store.bytes_max));
            }
            self.adapt(text.len());
            self.read.push(text.into());
            if len > PART_LEN as u64 {
                // They are read again.
                self.read.clear();
            }
        }
        if self.read.is_empty() {
            self.from = found.unwrap_or_else(|| self.from.clone());
        } else {
            self.to = None;
        }
        Ok(())
    }

    /// The next part of the text.
    pub(super) async fn next(mut self) -> Result<Option<(Bytes, Self)>, StoreError> {
        if self.is_ended {
            return Ok(None);
        }
        let part = match self.read.pop() {
            Some(text) => Some(text),
            None => self.after().await?,
        };
        let mut text = Vec::new();
        if !self.is_begun {
            text.push(b'[');
        } else if part.is_some() {
            text.push(b',');
        }
        self.is_begun = true;
        match part {
            Some(part) => text.extend(part),
            None => {
                text.push(b']');
                self.is_ended = true;
                if let Some(lent) = self.lent.take() {
                    lent.give_back();
                }
            }
        }
        Ok(Some((text.into(), self)))
    }

    /// The text of the entries after those that were read, from old to new. `None`: these were all.
    async fn after(&mut self) -> Result<Option<Bytes>, StoreError> {
        let Some(to) = self.to.clone().filter(|_| self.left > 0) else {
            return Ok(None);
        };
        let count = self.left.min(self.at_once);
        let part = self.part(Order::Rising, &to, count).await?;
        let Some(last) = part.last() else {
            return Ok(None);
        };
        self.from = format!("({}", last.id);
        if last.id == to {
            self.to = None;
        }
        self.left -= part.len() as u64;
        let text = texts(part.iter());
        self.adapt(text.len());
        Ok(Some(text.into()))
    }

    /// A part has about PART_LEN: entries of a stream mostly have the same length.
    fn adapt(&mut self, len: usize) {
        self.at_once = match len < PART_LEN {
            true => (self.at_once * 2).min(AT_ONCE_MAX),
            false => (self.at_once / 2).max(1),
        };
    }

    /// At most so many entries between `from` and here. If the answer is too long, it is asked for fewer, on another connection.
    async fn part(
        &mut self,
        order: Order,
        to: &str,
        mut count: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        loop {
            let mut lent = match self.lent.take() {
                Some(lent) => lent,
                None => self.store.connection().await?,
            };
            let mut command = redis::cmd(order.command());
            let (one, other) = match order {
                Order::Rising => (self.from.as_str(), to),
                Order::Falling => (to, self.from.as_str()),
            };
            let command = command.arg(&self.key).arg(one).arg(other);
            let asked = command.arg("COUNT").arg(count);
            let answer: Result<Value, RedisError> =
                asked.query_async(&mut lent.connection.requests).await;
            match answer {
                Ok(answer) => {
                    self.lent = Some(lent);
                    return entries(answer, count);
                }
                Err(error) if is_broken(&error) && count > 1 => {
                    count = count.div_ceil(8).min(count - 1);
                    self.at_once = count;
                }
                Err(error) if is_broken(&error) => {
                    let problem = format!(
                        "{error}; an entry has at most {} MiB",
                        super::PART_LEN >> 20
                    );
                    return Err(StoreError::new(Kind::Unavailable, &problem));
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    }
}

/// Whether the connection ended, as it does if the answer is too long.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped()
}

/// From old to new, or from new to old.
#[derive(Debug, Clone, Copy)]
enum Order {
    Rising,
    Falling,
}

impl Order {
    fn command(self) -> &'static str {
        match self {
            Self::Rising => "XRANGE",
            Self::Falling => "XREVRANGE",
        }
    }
}

/// One entry.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    id: String,
    words: Vec<Vec<u8>>,
}

impl Entry {
    /// As a trigger has it.
    fn text(&self) -> Vec<u8> {
        let (mut fields, mut binary) = (Map::new(), Map::new());
        for pair in self.words.chunks_exact(2) {
            let name = String::from_utf8_lossy(&pair[0]).into_owned();
            match std::str::from_utf8(&pair[1]) {
                Ok(text) => _ = fields.insert(name, json!(text)),
                Err(_) => _ = binary.insert(name, json!(STANDARD.encode(&pair[1]))),
            }
        }
        let mut entry = json!({"id": self.id, "fields": fields});
        if !binary.is_empty() {
            entry["binaryFields"] = serde_json::Value::Object(binary);
        }
        entry.to_string().into_bytes()
    }
}

/// With commas between them.
fn texts<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in entries {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend(entry.text());
    }
    text
}

/// At most so many entries, whatever the server sends.
fn entries(answer: Value, count: u64) -> Result<Vec<Entry>, StoreError> {
    let odd = || {
        StoreError::new(
            Kind::Unavailable,
            "the server's answer is no list of entries",
        )
    };
    let Value::Array(list) = answer else {
        return Err(odd());
    };
    let asked = usize::try_from(count).unwrap_or(usize::MAX);
    let read = list.into_iter().take(asked).map(|entry| {
        let entry: (String, Vec<Vec<u8>>) = redis::from_redis_value(entry).map_err(|_| odd())?;
        let (id, words) = entry;
        Ok(Entry { id, words })
    });
    read.collect()
}

const AT_ONCE_MIN: u64 = 64;
const AT_ONCE_MAX: u64 = 4096;
const PART_LEN: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_a_range_of_a_stream() {
        let range = |key: &str| Range::of(key).unwrap();
        for key in [
            "orders",
            "what?",
            "orders?streams",
            "a?b&stream",
            "a/stream",
        ] {
            assert_eq!(range(key), None, "{key}");
        }
        let all = range("a?b/orders?stream").unwrap();
        assert_eq!((&*all.key, &*all.from, &*all.to), ("a?b/orders", "-", "+"));
        let some = range("orders?stream&after=1526919030474-55&to=1526919030999&last=10").unwrap();
        assert_eq!(
            (&*some.from, &*some.to, some.first, some.last),
            ("(1526919030474-55", "1526919030999", None, Some(10))
        );
        for (key, said) in [
            (
                "o?stream&after=x",
                "after is \"x\", must be the id of an entry",
            ),
            ("o?stream&from=", "must be the id"),
            ("o?stream&to=1-2-3", "must be the id"),
            ("o?stream&to=+1", "must be the id"),
            ("o?stream&last=0", "must be a number of entries from 1"),
            ("o?stream&count=1", "\"count\" is unknown"),
            (
                "o?stream&from=1&after=2",
                "from and after exclude each other",
            ),
            ("o?stream&to=1&to=2", "to is there twice"),
        ] {
            let found = Range::of(key).unwrap_err();
            assert!(found.contains(said), "{key}: {found}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_range_is_known_before_there_are_values() {
        let check = |from: &str| {
            let location: pilot_model::inputs::Location = from.parse().unwrap();
            check(&location.key_with(VALUE))
        };
        for fine in [
            "redis://cache/what?",
            "redis://cache/{event.key}",
            "redis://cache/o?stream&after={event.id}&first={event.n}",
            "redis://cache/{event.of}?stream&after={event.ms}-{event.n}",
            // These may be anything.
            "redis://cache/o?stream{event.more}",
            "redis://cache/o?stream&{event.which}=1-0",
        ] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for (from, said) in [
            ("redis://cache/o?stream&after=x", "must be the id"),
            (
                "redis://cache/o?stream&from={event.id}&last=0",
                "must be a number of entries",
            ),
            (
                "redis://cache/{event.key}?stream&count=3",
                "\"count\" is unknown",
            ),
            (
                "redis://cache/o?stream&after={event.a}&from={event.b}",
                "exclude each other",
            ),
        ] {
            let found = check(from).unwrap_err();
            assert!(found.contains(said), "{from}: {found}");
        }
    }

    #[test]
    fn a_value_makes_no_stream_of_a_string() {
        for (location, key, fits) in [
            ("\0", "orders", true),
            ("\0", "what?", true),
            ("\0", "orders?stream", false),
            ("\0", "orders?stream&last=100", false),
            ("a/\0", "a/o?stream&count=1", false),
            ("o?\0", "o?stream", false),
            ("what?/\0", "what?/o?stream", false),
            ("\0?stream&last=\0", "o?stream&last=3", true),
            ("o?stream\0", "o?stream&last=3", true),
            // A request names it as a whole.
            ("o?stream", "o?stream", true),
        ] {
            assert_eq!(check_key(location, key).is_ok(), fits, "{location:?} {key}");
        }
    }

    #[test]
    fn an_entry_is_as_a_trigger_has_it() {
        let words = [&b"a"[..], b"1\"", b"b", b"\xff", b"odd"].map(<[u8]>::to_vec);
        let entry = Entry {
            id: "1-0".to_owned(),
            words: words.to_vec(),
        };
        let text: serde_json::Value = serde_json::from_slice(&entry.text()).unwrap();
        assert_eq!(
            text,
            json!({"id": "1-0", "fields": {"a": "1\""}, "binaryFields": {"b": "/w=="}})
        );
        assert!(entries(Value::Int(1), 5).is_err());
        let odd = Value::Array(vec![Value::Array(vec![Value::Int(1)])]);
        assert!(entries(odd, 5).is_err());
    }
}
