//! Where an input is: `SCHEME://STORE/KEY`, in which the key may have placeholders that each invocation fills in.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::pick;

/// A location with placeholders, for example `s3://photos/{event.user}/{event.key}`.
///
/// The store is a name of `[stores]` in `pilotd.toml`, not a host: only the operator decides what the daemon connects to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Location {
    scheme: Scheme,
    store: String,
    key: Vec<Piece>,
}

/// How a store is spoken to, or another place that an initscript connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon S3's API.
    S3,
    /// GET without TLS.
    Http,
    /// GET over TLS.
    Https,
    /// A folder of the daemon's machine.
    File,
    /// Redis.
    Redis,
    /// Redis over TLS.
    Rediss,
    /// Queues with SQS's API. Only for initscripts.
    Sqs,
    /// gRPC without TLS. Only for initscripts.
    Grpc,
    /// gRPC over TLS. Only for initscripts.
    Grpcs,
    /// A connection without a protocol. Only for initscripts.
    Tcp,
    /// The request itself: its only location is [`Location::BODY`].
    Direct,
}

impl Scheme {
    /// Those of stores.
    const STORES: [Self; 6] = [
        Self::S3,
        Self::Http,
        Self::Https,
        Self::Redis,
        Self::Rediss,
        Self::File,
    ];
    /// What else initscripts connect to.
    const MORE: [Self; 4] = [Self::Sqs, Self::Grpc, Self::Grpcs, Self::Tcp];

    /// The scheme with this word.
    pub(crate) fn named(word: &str) -> Option<Self> {
        let mut all = Self::STORES.into_iter().chain(Self::MORE);
        all.find(|known| known.as_str() == word)
    }

    /// The same, for a store.
    fn of_store(word: &str) -> Option<Self> {
        Self::STORES
            .into_iter()
            .find(|known| known.as_str() == word)
    }

    /// The word before `://`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Http => "http",
            Self::Https => "https",
            Self::File => "file",
            Self::Redis => "redis",
            Self::Rediss => "rediss",
            Self::Sqs => "sqs",
            Self::Grpc => "grpc",
            Self::Grpcs => "grpcs",
            Self::Tcp => "tcp",
            Self::Direct => "direct",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Placeholder),
}

/// What a value is put in for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placeholder {
    from: Source,
    /// Whether the value is URL-encoded, as the keys of S3's events are, and is decoded.
    is_encoded: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// A path into the event.
    Event(Vec<String>),
    /// A header of the HTTP request, lower case.
    Header(String),
    /// A variable of `[functions.NAME.environment]`.
    Environment(String),
}

/// What the placeholders of an invocation stand for.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// The event, JSON.
    pub event: &'a [u8],
    /// The headers of the HTTP request, with lower-case names, of an application. Otherwise they are in the event.
    pub headers: Option<&'a [(String, String)]>,
    /// The variables of the function.
    pub environment: &'a BTreeMap<String, String>,
}

/// Why a location has no key for this invocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Nothing to put there.
    #[error("{{{0}}} has no value in this invocation")]
    Value(String),
    /// The value is not what it is said to be.
    #[error("the value of {{{0}}} is not URL-encoded UTF-8")]
    Encoded(String),
    /// The values make a key that may not be used.
    #[error(
        "the key \"{0}\" has an empty, \".\" or \"..\" part, or a control character, or more than {KEY_BYTES_MAX} bytes"
    )]
    Key(String),
}

impl Location {
    /// The body of the request.
    pub const BODY: &str = "direct://request/body";

    /// How its store is spoken to.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// A location whose key is taken as it is: braces are part of it.
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn literal(text: &str) -> Result<Self, String> {
        Self::parse(text, |key| Ok(vec![Piece::Text(key.to_owned())]))
    }

    fn parse(
        text: &str,
        pieces: impl FnOnce(&str) -> Result<Vec<Piece>, String>,
    ) -> Result<Self, String> {
        let example = "write SCHEME://STORE/KEY, for example \"s3://photos/{event.key}\"";
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| format!("\"{}\" is not a location: {example}", shown(text)))?;
        let scheme = Scheme::of_store(scheme).ok_or_else(|| {
            let known = Scheme::STORES.map(Scheme::as_str).join(", ");
            format!(
                "\"{}\" is not a kind of store: use one of {known}",
                shown(scheme)
            )
        })?;
        let (store, key) = rest.split_once('/').unwrap_or((rest, ""));
        let store_fits = (1..=STORE_BYTES_MAX).contains(&store.len())
            && store
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !store_fits {
            return Err(format!(
                "\"{}\" is not the name of a store: a name has letters, digits, '.', '_' or '-', and no placeholder",
                shown(store)
            ));
        }
        if key.is_empty() {
            return Err(format!("\"{}\" has no key: {example}", shown(text)));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(format!("its key has more than {KEY_BYTES_MAX} bytes"));
        }
        Ok(Self {
            scheme,
            store: store.to_owned(),
            key: pieces(key)?,
        })
    }

    /// Its key, with `value` for each placeholder.
    #[must_use]
    pub fn key_with(&self, value: char) -> String {
        let mut key = String::new();
        for piece in self.pieces() {
            match piece {
                Piece::Text(text) => key.push_str(text),
                Piece::Value(_) => key.push(value),
            }
        }
        key
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.key.iter()
    }
}

/// The keys of locations for one invocation. A value cannot leave the part of the store that the text around it names: `..` is refused.
/// The event is read once, however many placeholders there are.
pub fn keys<'a>(
    locations: impl Iterator<Item = &'a Location> + Clone,
    values: Values<'_>,
) -> Vec<Result<String, Missing>> {
    let header_path = |name: &str| vec!["headers".to_owned(), name.to_owned()];
    let path_of = |piece: &Piece| match piece.source()? {
        Source::Event(path) => Some(path.clone()),
        Source::Header(name) if values.headers.is_none() => Some(header_path(name)),
        _ => None,
    };
    let paths: Vec<Vec<String>> = locations
        .clone()
        .flat_map(Location::pieces)
        .filter_map(path_of)
        .collect();
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    let mut picked = if paths.is_empty() {
        Vec::new()
    } else {
        pick(values.event, &paths)
    }
    .into_iter();
    let mut value_of = |piece: &Piece| match piece {
        Piece::Text(text) => Some(text.clone()),
        Piece::Value(placeholder) => match &placeholder.from {
            Source::Environment(name) => values.environment.get(name).cloned(),
            Source::Event(_) => picked.next().flatten(),
            Source::Header(name) => match values.headers {
                None => picked.next().flatten(),
                Some(headers) => {
                    let header = headers.iter().find(|(header, _)| header == name);
                    header.map(|(_, value)| value.clone())
                }
            },
        },
    };
    locations
        .map(|location| {
            // Every value is taken, so that those of the next location follow.
            let values: Vec<_> = location.pieces().map(&mut value_of).collect();
            key(location, values)
        })
        .collect()
}

fn key(location: &Location, values: Vec<Option<String>>) -> Result<String, Missing> {
    let mut key = String::new();
    for (piece, value) in location.pieces().zip(values) {
        let value = value.ok_or_else(|| Missing::Value(piece.name()))?;
        match piece {
            Piece::Value(placeholder) if placeholder.is_encoded => {
                let decoded = decoded(&value);
                key.push_str(&decoded.ok_or_else(|| Missing::Encoded(piece.name()))?);
            }
            _ => key.push_str(&value),
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Missing::Key(shown(&key)));
        }
    }
    check_key(&key)?;
    Ok(key)
}

/// Checks a key that is used as it is.
///
/// # Errors
/// It leaves its part of the store, or is too long.
pub fn check_key(key: &str) -> Result<(), Missing> {
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    if key.len() > KEY_BYTES_MAX || key.split('/').any(is_odd) || key.contains(char::is_control) {
        return Err(Missing::Key(shown(key)));
    }
    Ok(())
}

/// The text of an `application/x-www-form-urlencoded` value, in which `+` is a space, too. `None`: it is not one of UTF-8.
fn decoded(value: &str) -> Option<String> {
    let spaced = value.replace('+', " ");
    let mut parts = spaced.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

impl Piece {
    fn source(&self) -> Option<&Source> {
        match self {
            Self::Text(_) => None,
            Self::Value(placeholder) => Some(&placeholder.from),
        }
    }

    /// As it is written between braces.
    fn name(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Value(placeholder) => placeholder.to_string(),
        }
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            Source::Event(path) => write!(f, "event.{}", path.join("."))?,
            Source::Header(name) => write!(f, "header.{name}")?,
            Source::Environment(name) => write!(f, "environment.{name}")?,
        }
        if self.is_encoded {
            write!(f, "|{URLDECODE}")?;
        }
        Ok(())
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("direct://") {
            None => Self::parse(text, pieces),
            Some("request/body") => Ok(Self {
                scheme: Scheme::Direct,
                store: "request".to_owned(),
                key: vec![Piece::Text("body".to_owned())],
            }),
            Some(_) => Err(format!(
                "\"{}\" is not a location: the body of the request is \"{}\"",
                shown(text),
                Self::BODY
            )),
        }
    }
}

fn pieces(key: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = key;
    while let Some(at) = rest.find(['{', '}']) {
        let (text, from) = rest.split_at(at);
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
        let inside = from
            .strip_prefix('{')
            .and_then(|from| from.split_once('}'))
            .ok_or_else(|| "its key has a brace without the other one".to_owned())?;
        pieces.push(Piece::Value(placeholder(inside.0)?));
        rest = inside.1;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

fn placeholder(inside: &str) -> Result<Placeholder, String> {
    let (inside, is_encoded) = match inside.rsplit_once('|') {
        None => (inside, false),
        Some((inside, URLDECODE)) => (inside, true),
        Some((_, other)) => {
            return Err(format!(
                "{{{}}}: \"{}\" cannot be done with a value: after | comes {URLDECODE}, or leave it out",
                shown(inside),
                shown(other)
            ));
        }
    };
    let unknown = || {
        format!(
            "{{{}}} is not a placeholder: use {{event.KEY}}, {{header.NAME}} or {{environment.NAME}}",
            shown(inside)
        )
    };
    let (from, name) = inside.split_once('.').ok_or_else(unknown)?;
    if name.is_empty() || name.contains(['{', '}']) || name.contains(char::is_control) {
        return Err(unknown());
    }
    let from = match from {
        "event" => {
            let path: Vec<String> = name.split('.').map(str::to_owned).collect();
            if path.len() > PATH_MAX || path.iter().any(String::is_empty) {
                return Err(unknown());
            }
            Source::Event(path)
        }
        "header" => Source::Header(name.to_ascii_lowercase()),
        "environment" => Source::Environment(name.to_owned()),
        _ => return Err(unknown()),
    };
    Ok(Placeholder { from, is_encoded })
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/", self.scheme.as_str(), self.store)?;
        for piece in &self.key {
            match piece {
                Piece::Text(text) => f.write_str(text)?,
                piece => write!(f, "{{{}}}", piece.name())?,
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Location {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.to_string()
    }
}

/// A text for a message: escaped, and not too long.
fn shown(text: &str) -> String {
    let escaped = text.escape_default();
    let mut shown: String = escaped.clone().take(SHOWN_MAX).collect();
    if escaped.count() > SHOWN_MAX {
        shown.push('…');
    }
    shown
}

/// S3's limit of a key.
const KEY_BYTES_MAX: usize = 1024;
/// S3's limit of a bucket's name, which is the default name of its store.
const STORE_BYTES_MAX: usize = 63;
/// Parts of a path into the event.
const PATH_MAX: usize = 16;
const SHOWN_MAX: usize = 120;
/// After the `|` of a placeholder whose value is URL-encoded.
const URLDECODE: &str = "urldecode";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(location: &str, event: &str) -> Result<String, Missing> {
        let location: Location = location.parse().unwrap();
        let environment = BTreeMap::from([("STAGE".to_owned(), "test".to_owned())]);
        let values = Values {
            event: event.as_bytes(),
            headers: None,
            environment: &environment,
        };
        keys([&location].into_iter(), values).remove(0)
    }

    #[test]
    fn placeholders_are_filled_in_from_event_headers_and_environment() {
        let location = "s3://photos/{environment.STAGE}/{header.X-User}/{event.Records.0.key}.jpg";
        let event = r#"{"Records": [{"key": "a/b c"}], "headers": {"x-user": "ada"}}"#;
        assert_eq!(key(location, event).unwrap(), "test/ada/a/b c.jpg");
        assert_eq!(key("s3://photos/{event.n}", r#"{"n": 7}"#).unwrap(), "7");
    }

    #[test]
    fn several_locations_get_their_own_values() {
        let locations = [
            "s3://a/{event.x}{event.y}",
            "s3://a/{event.none}/{event.x}",
            "s3://a/{event.y}",
        ];
        let locations = locations.map(|location| location.parse::<Location>().unwrap());
        let headers = [("x-user".to_owned(), "ada".to_owned())];
        let values = Values {
            event: br#"{"x": 1, "y": 2}"#,
            headers: Some(&headers),
            environment: &BTreeMap::new(),
        };
        let found = keys(locations.iter(), values);
        assert_eq!(found[0].as_deref(), Ok("12"));
        assert_eq!(found[1], Err(Missing::Value("event.none".to_owned())));
        assert_eq!(found[2].as_deref(), Ok("2"));
        let of_header: Location = "s3://a/{header.X-User}".parse().unwrap();
        assert_eq!(
            keys([&of_header].into_iter(), values)[0].as_deref(),
            Ok("ada")
        );
    }

    #[test]
    fn a_value_is_missing_or_leaves_its_folder() {
        let missing = key("s3://photos/{event.key}", "{}").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "{event.key} has no value in this invocation"
        );
        for event in [
            r#"{"key": "../private/x"}"#,
            r#"{"key": "x/../../y"}"#,
            r#"{"key": "/x"}"#,
            r#"{"key": "x//y"}"#,
            r#"{"key": ""}"#,
            r#"{"key": "a\u0000b"}"#,
        ] {
            let found = key("s3://photos/public/{event.key}", event);
            assert!(matches!(found, Err(Missing::Key(_))), "{event}");
        }
        let long = format!(r#"{{"key": "{}"}}"#, "x".repeat(KEY_BYTES_MAX + 1));
        let found = key("s3://photos/{event.key}", &long);
        assert!(matches!(found, Err(Missing::Key(shown)) if shown.len() < 200));
    }

    #[test]
    fn a_value_that_is_url_encoded_is_decoded_where_that_is_asked_for() {
        let location = "s3://photos/{event.Records.0.s3.object.key|urldecode}";
        let of = |value: &str| {
            let event = format!(r#"{{"Records": [{{"s3": {{"object": {{"key": "{value}"}}}}}}]}}"#);
            key(location, &event)
        };
        for (value, found) in [
            ("my+file%20a.txt", "my file a.txt"),
            ("a%2Bb%2fc+d", "a+b/c d"),
            ("%C3%A4/100%25", "\u{e4}/100%"),
            ("plain", "plain"),
        ] {
            assert_eq!(of(value).as_deref(), Ok(found), "{value}");
        }
        for value in ["100%", "%4", "%zz", "%+1", "%ff", "%\u{e4}a"] {
            let error = of(value).unwrap_err();
            assert_eq!(
                error.to_string(),
                "the value of {event.Records.0.s3.object.key|urldecode} is not URL-encoded UTF-8"
            );
        }
        // What it decodes to stays in its part of the store.
        for value in ["..%2Fx", "a%2F%2e%2e%2fb", "a%00b", "%2F"] {
            assert!(matches!(of(value), Err(Missing::Key(_))), "{value}");
        }
        // A value is taken as it is otherwise.
        let plain = key("s3://photos/{event.key}", r#"{"key": "a+b%20"}"#);
        assert_eq!(plain.as_deref(), Ok("a+b%20"));
        let read: Location = location.parse().unwrap();
        assert_eq!(read.to_string(), location);
    }

    #[test]
    fn a_literal_location_has_no_placeholders_and_stays_in_its_store() {
        let literal = |text: &str| {
            let location = Location::literal(text).unwrap();
            let environment = BTreeMap::from([("STAGE".to_owned(), "secret".to_owned())]);
            let values = Values {
                event: b"{}",
                headers: None,
                environment: &environment,
            };
            keys([&location].into_iter(), values).remove(0)
        };
        assert_eq!(
            literal("s3://photos/{environment.STAGE}/ä b").as_deref(),
            Ok("{environment.STAGE}/ä b")
        );
        assert!(matches!(literal("s3://photos/../x"), Err(Missing::Key(_))));
        assert!(Location::literal("s3://photos").is_err());
    }

    #[test]
    fn the_body_of_the_request_is_a_location_that_only_a_function_declares() {
        let body: Location = Location::BODY.parse().unwrap();
        assert_eq!(body.scheme(), Scheme::Direct);
        assert_eq!(body.to_string(), Location::BODY);
        let values = Values {
            event: b"",
            headers: None,
            environment: &BTreeMap::new(),
        };
        assert_eq!(keys([&body].into_iter(), values), [Ok("body".to_owned())]);
        assert!(Location::literal(Location::BODY).is_err());
    }

    #[test]
    fn a_location_that_cannot_be_read_says_what_to_write() {
        for (text, problem) in [
            ("photos/x", "is not a location"),
            (
                "ftp://photos/x",
                "is not a kind of store: use one of s3, http, https, redis, rediss, file",
            ),
            (
                "direct://body",
                "the body of the request is \"direct://request/body\"",
            ),
            ("s3://photos", "has no key"),
            ("s3://{event.bucket}/x", "is not the name of a store"),
            ("s3:///x", "is not the name of a store"),
            ("s3://photos/{event}", "is not a placeholder"),
            ("s3://photos/{event.}", "is not a placeholder"),
            ("s3://photos/{secret.x}", "is not a placeholder"),
            ("s3://photos/{event.x", "a brace without the other"),
            ("s3://photos/x}", "a brace without the other"),
            (
                "s3://photos/{event.x|upper}",
                "\"upper\" cannot be done with a value: after | comes urldecode",
            ),
            ("s3://photos/{event.|urldecode}", "is not a placeholder"),
        ] {
            let found = Location::from_str(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_as_it_was(text in "s3://[a-z]{1,8}/[a-z./]{0,6}(\\{event\\.[a-z]{1,4}\\})?[a-z]{1,4}") {
            let location: Location = text.parse().unwrap();
            prop_assert_eq!(location.to_string(), text);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,64}") {
            let _ = Location::from_str(&text);
            let _ = Location::from_str(&format!("s3://photos/{text}"));
        }
    }
}
