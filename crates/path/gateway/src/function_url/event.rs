//! An HTTP request as a function URL's event: AWS Lambda's payload format 2.0.
//!
//! As in AWS: absent keys are left out, not null. Cookies are in `cookies` instead of the headers. The body is text if its content
//! type is text, JSON, XML or JavaScript and it is UTF-8; otherwise it is base64 (also for HTML forms). `rawPath` is as received.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Version};
use pilot_model::calendar::Utc;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::headers;

/// The inputs of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventSource<'a> {
    /// The request id.
    pub(crate) id: &'a str,
    /// The function's name, in place of AWS's URL id.
    pub(crate) name: &'a str,
    /// `GET`, …
    pub(crate) method: &'a str,
    /// The HTTP version of the request.
    pub(crate) protocol: Version,
    /// The raw path below the function's URL; begins with `/`.
    pub(crate) path: &'a str,
    /// The raw query without `?`; empty if there is none.
    pub(crate) query: &'a str,
    /// The headers for the function.
    pub(crate) headers: &'a HeaderMap,
    /// The client's address.
    pub(crate) client: IpAddr,
    /// The whole body.
    pub(crate) body: &'a [u8],
    /// Now, Unix milliseconds.
    pub(crate) unix_ms: u64,
}

impl EventSource<'_> {
    /// The event, JSON.
    pub(crate) fn build(&self) -> Bytes {
        let header = |name| {
            self.headers
                .get(name)
                .map(headers::text)
                .unwrap_or_default()
        };
        let host = header(headers::HOST);
        let user_agent = header(headers::USER_AGENT);
        let time = clf_time(self.unix_ms);
        let body = Body::of(self.body, &header(headers::CONTENT_TYPE));
        let event = Event {
            version: "2.0",
            route_key: "$default",
            raw_path: self.path,
            raw_query_string: self.query,
            cookies: self
                .headers
                .contains_key(headers::COOKIE)
                .then_some(Cookies(self.headers)),
            headers: Headers(self.headers),
            query_string_parameters: (!self.query.is_empty()).then(|| parameters(self.query)),
            request_context: RequestContext {
                account_id: "anonymous",
                api_id: self.name,
                domain_name: &host,
                domain_prefix: self.name,
                http: Http {
                    method: self.method,
                    path: self.path,
                    protocol: protocol(self.protocol),
                    source_ip: self.client,
                    user_agent: &user_agent,
                },
                request_id: self.id,
                route_key: "$default",
                stage: "$default",
                time: &time,
                time_epoch: self.unix_ms,
            },
            is_base64_encoded: matches!(body, Some(Body::Binary(_))),
            body,
        };
        let mut json = Vec::with_capacity(FRAME_LEN + self.body.len() / 3 * 4);
        // Cannot fail: all keys are strings, and writing to a vector cannot fail.
        let _ = serde_json::to_writer(&mut json, &event);
        Bytes::from(json)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    version: &'a str,
    route_key: &'a str,
    raw_path: &'a str,
    raw_query_string: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cookies: Option<Cookies<'a>>,
    headers: Headers<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query_string_parameters: Option<BTreeMap<String, String>>,
    request_context: RequestContext<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Body<'a>>,
    is_base64_encoded: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestContext<'a> {
    account_id: &'a str,
    api_id: &'a str,
    domain_name: &'a str,
    domain_prefix: &'a str,
    http: Http<'a>,
    request_id: &'a str,
    route_key: &'a str,
    stage: &'a str,
    time: &'a str,
    time_epoch: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Http<'a> {
    method: &'a str,
    path: &'a str,
    protocol: &'a str,
    source_ip: IpAddr,
    user_agent: &'a str,
}

/// The headers with lower-case names, without cookies. Several values are joined by commas.
struct Headers<'a>(&'a HeaderMap);

impl Serialize for Headers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let mut joined = String::new();
        for name in self.0.keys().filter(|name| **name != headers::COOKIE) {
            let mut values = self.0.get_all(name).iter().map(headers::text);
            let first = values.next().unwrap_or_default();
            joined.clear();
            for value in values {
                let separator = if joined.is_empty() { &*first } else { "" };
                let _ = write!(joined, "{separator},{value}");
            }
            let value = if joined.is_empty() { &*first } else { &joined };
            map.serialize_entry(name.as_str(), value)?;
        }
        map.end()
    }
}

struct Cookies<'a>(&'a HeaderMap);

impl Serialize for Cookies<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(None)?;
        for value in self.0.get_all(headers::COOKIE) {
            let text = headers::text(value);
            for cookie in text
                .split(';')
                .map(str::trim)
                .filter(|cookie| !cookie.is_empty())
            {
                sequence.serialize_element(cookie)?;
            }
        }
        sequence.end()
    }
}

enum Body<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

impl<'a> Body<'a> {
    fn of(body: &'a [u8], content_type: &str) -> Option<Self> {
        if body.is_empty() {
            return None;
        }
        let text = is_text(content_type)
            .then(|| std::str::from_utf8(body).ok())
            .flatten();
        Some(text.map_or(Self::Binary(body), Self::Text))
    }
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Binary(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
        }
    }
}

/// Whether AWS treats a body of this content type as text. HTML forms are not text.
fn is_text(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or("").trim();
    let Some((kind, subtype)) = media_type.split_once('/') else {
        return false;
    };
    let subtype = subtype.to_ascii_lowercase();
    kind.eq_ignore_ascii_case("text")
        || ["json", "xml", "javascript"]
            .iter()
            .any(|word| subtype.contains(word))
}

/// The decoded parameters. Several values of one name are joined by commas.
fn parameters(query: &str) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::<String, String>::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        parameters
            .entry(name.into_owned())
            .and_modify(|joined| {
                joined.push(',');
                joined.push_str(&value);
            })
            .or_insert_with(|| value.clone().into_owned());
    }
    parameters
}

/// As AWS writes it. Requests of HTTP/2 are passed on as ones of HTTP/1.1.
fn protocol(version: Version) -> &'static str {
    if version == Version::HTTP_10 {
        "HTTP/1.0"
    } else {
        "HTTP/1.1"
    }
}

/// The time in the Common Log Format: `12/Mar/2020:19:03:58 +0000`.
fn clf_time(unix_ms: u64) -> String {
    let at = Utc::of_unix_ms(unix_ms);
    format!(
        "{:02}/{}/{}:{:02}:{:02}:{:02} +0000",
        at.day,
        at.month_name(),
        at.year,
        at.hour,
        at.minute,
        at.second
    )
}

/// About the size of an event without its body.
const FRAME_LEN: usize = 1536;

#[cfg(test)]
mod tests;
