//! What S3 says about an object besides its bytes: metadata, type, version. A tag speaks of the bytes alone, so an object with the same
//! tag may have been described anew.

use std::sync::Arc;
use std::time::Duration;

use http::header::{DATE, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;

/// A state of what is said about an object. Two of them differ if it was described anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    modified: String,
    version: Option<String>,
}

impl Described {
    /// Of any answer about the object, also of 304. `None`: it does not say when the object was modified, or too much.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |value: &HeaderValue| {
            let text = value.to_str().ok().filter(|it| it.len() <= TEXT_LEN_MAX);
            text.map(str::to_owned)
        };
        Some(Self {
            modified: headers.get(LAST_MODIFIED).and_then(text)?,
            version: match headers.get(VERSION) {
                Some(version) => Some(text(version)?),
                None => None,
            },
        })
    }

    /// Of an answer with the object. `None`: it has no version of its own, and was modified just before: it may be once more in the same
    /// second, and S3 says no less than that.
    fn settled(headers: &HeaderMap) -> Option<Self> {
        let described = Self::of(headers)?;
        if described
            .version
            .as_deref()
            .is_some_and(|it| it != UNVERSIONED)
        {
            return Some(described);
        }
        let answered = headers.get(DATE)?.to_str().ok()?;
        let time = |text: &str| httpdate::parse_http_date(text).ok();
        let age = time(answered)?.duration_since(time(&described.modified)?);
        (age.ok()? > UNSETTLED_MAX).then_some(described)
    }
}

/// Goes with a request, and learns what the answer says. `object_store` does not pass it on.
#[derive(Debug, Clone, Default)]
pub(super) struct Learns(Arc<Mutex<Option<Described>>>);

impl Learns {
    pub(super) fn object(&self, headers: &HeaderMap) {
        *self.0.lock() = Described::settled(headers);
    }

    pub(super) fn unchanged(&self, headers: &HeaderMap) {
        *self.0.lock() = Described::of(headers);
    }

    pub(super) fn learnt(&self) -> Option<Described> {
        self.0.lock().take()
    }
}

const VERSION: &str = "x-amz-version-id";
/// The version of what was stored while the bucket had no versions.
const UNVERSIONED: &str = "null";
/// A version of S3 is at most as long.
const TEXT_LEN_MAX: usize = 1024;
const UNSETTLED_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn an_object_is_described_as_before_if_its_date_and_version_are_the_same() {
        let date = ("date", "Tue, 24 Nov 2026 09:00:10 GMT");
        let modified = ("last-modified", "Tue, 24 Nov 2026 09:00:07 GMT");
        let version = ("x-amz-version-id", "1");
        let known = Described::settled(&headers(&[date, modified, version]));
        let said = |pairs: &[_]| Described::of(&headers(pairs));
        assert!(known.is_some() && known == said(&[modified, version]));
        for other in [
            &[modified][..],
            &[version],
            &[modified, ("x-amz-version-id", "2")],
            &[("last-modified", "Tue, 24 Nov 2026 09:00:08 GMT"), version],
        ] {
            assert_ne!(known, said(other), "{other:?}");
        }
    }

    #[test]
    fn what_was_modified_just_before_the_answer_is_not_settled() {
        let date = ("date", "Tue, 24 Nov 2026 09:00:10 GMT");
        for pairs in [
            &[date, ("last-modified", "Tue, 24 Nov 2026 09:00:08 GMT")][..],
            &[date, ("last-modified", "Tue, 24 Nov 2026 09:00:11 GMT")],
            &[date, ("last-modified", "yesterday")],
            &[("last-modified", "Tue, 24 Nov 2026 09:00:00 GMT")],
            &[date],
            &[
                date,
                ("last-modified", date.1),
                ("x-amz-version-id", "null"),
            ],
        ] {
            assert_eq!(Described::settled(&headers(pairs)), None, "{pairs:?}");
        }
        let version = [date, ("last-modified", date.1), ("x-amz-version-id", "x1")];
        assert!(Described::settled(&headers(&version)).is_some());
    }
}
