//! The function's name as in AWS Lambda: `NAME`, `ACCOUNT:function:NAME`, or a whole ARN. Each may be followed by a qualifier, which
//! may also be in `?Qualifier=`.

use percent_encoding::percent_decode_str;

use crate::errors::RequestError;

/// A function, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// The function's name.
    pub(crate) name: String,
    /// Version number or alias; `None` is the live version.
    pub(crate) qualifier: Option<String>,
}

impl Named {
    /// Parses the path's segment and the query's `Qualifier`.
    ///
    /// # Errors
    /// The name or qualifier is invalid in AWS Lambda, or there are two different qualifiers.
    pub(crate) fn parse(segment: &str, query: Option<&str>) -> Result<Self, RequestError> {
        let text = percent_decode_str(segment).decode_utf8_lossy();
        let malformed = || RequestError::InvalidName {
            name: text.chars().take(140).collect(),
        };
        let (name, in_name) = split(&text).ok_or_else(malformed)?;
        if !is_name(name) {
            return Err(malformed());
        }
        let in_query = query.and_then(qualifier_in);
        let qualifier = match (in_name, in_query) {
            (Some(first), Some(second)) if first != second => {
                return Err(RequestError::QualifierMismatch {
                    in_name: first.to_owned(),
                    in_query: second,
                });
            }
            (Some(first), _) => Some(first.to_owned()),
            (None, second) => second,
        };
        if let Some(qualifier) = qualifier.as_deref().filter(|text| !is_qualifier(text)) {
            return Err(RequestError::InvalidQualifier {
                qualifier: qualifier.chars().take(140).collect(),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            qualifier: qualifier.filter(|qualifier| !LIVE.contains(&qualifier.as_str())),
        })
    }
}

/// Qualifiers of the version that is live. The second is Lambda's for functions on managed instances, where publishing makes a version
/// live; here, deploying does.
const LIVE: [&str; 2] = ["$LATEST", "$LATEST.PUBLISHED"];

/// The function's name and the qualifier in `text`, which is a name or an ARN or a part of one.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    let rest = match text.split_once("function:") {
        None if text.starts_with("arn:") => return None,
        None => text,
        Some((before, rest)) => {
            let fits = before.is_empty()
                || is_account(before.strip_suffix(':')?)
                || is_arn_head(before.strip_suffix(':')?);
            fits.then_some(rest)?
        }
    };
    Some(match rest.split_once(':') {
        None => (rest, None),
        Some((name, qualifier)) => (name, Some(qualifier)),
    })
}

fn is_account(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the text is `arn:PARTITION:lambda:REGION:ACCOUNT`, with any values.
fn is_arn_head(text: &str) -> bool {
    let mut parts = text.split(':');
    let mut next = || parts.next().unwrap_or("");
    let fits = next() == "arn"
        && next().starts_with("aws")
        && next() == "lambda"
        && !next().is_empty()
        && is_account(next());
    fits && parts.next().is_none()
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(is_word)
}

fn is_qualifier(text: &str) -> bool {
    LIVE.contains(&text) || ((1..=128).contains(&text.len()) && text.bytes().all(is_word))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

fn qualifier_in(query: &str) -> Option<String> {
    let mut pairs = query.split('&');
    let pair = pairs.find(|pair| pair.starts_with("Qualifier="))?;
    let (_, value) = form_urlencoded::parse(pair.as_bytes()).next()?;
    Some(value.into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn named(segment: &str, query: Option<&str>) -> Result<(String, Option<String>), RequestError> {
        Named::parse(segment, query).map(|named| (named.name, named.qualifier))
    }

    #[test]
    fn every_form_of_a_name_is_read() {
        let cases = [
            ("invert", None),
            ("invert:2", Some("2")),
            ("invert%3A2", Some("2")),
            ("invert:$LATEST", None),
            ("invert:%24LATEST", None),
            ("invert:$LATEST.PUBLISHED", None),
            ("function:invert", None),
            ("000000000000:function:invert", None),
            ("000000000000:function:invert:prod", Some("prod")),
            (
                "arn:aws:lambda:us-east-1:000000000000:function:invert",
                None,
            ),
            (
                "arn:aws:lambda:us-east-1:000000000000:function:invert:3",
                Some("3"),
            ),
            (
                "arn%3Aaws-cn%3Alambda%3Acn-north-1%3A123456789012%3Afunction%3Ainvert",
                None,
            ),
        ];
        for (given, qualifier) in cases {
            let (name, found) = named(given, None).unwrap();
            assert_eq!(
                (name.as_str(), found.as_deref()),
                ("invert", qualifier),
                "{given}"
            );
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        let long = "a".repeat(65);
        for given in [
            "",
            "a b",
            "a%20b",
            "a/b",
            "a.b",
            "%FF",
            "%zz",
            "a+b",
            long.as_str(),
            "arn:aws:s3:::bucket",
            "arn:aws:lambda:us-east-1:function:invert",
            "1234:function:invert",
            ":function:invert",
        ] {
            assert!(
                matches!(named(given, None), Err(RequestError::InvalidName { .. })),
                "{given}"
            );
        }
        for given in ["invert:", "invert:a b", "invert:1:2"] {
            assert!(
                matches!(
                    named(given, None),
                    Err(RequestError::InvalidQualifier { .. })
                ),
                "{given}"
            );
        }
    }

    #[test]
    fn the_qualifier_may_stand_in_the_query() {
        let qualifier = |query| named("invert", Some(query)).unwrap().1;
        assert_eq!(qualifier("Qualifier=2").as_deref(), Some("2"));
        assert_eq!(qualifier("a=b&Qualifier=prod").as_deref(), Some("prod"));
        assert_eq!(qualifier("Qualifier=%24LATEST"), None);
        assert_eq!(qualifier("Qualifier=a%2Db").as_deref(), Some("a-b"));
        assert_eq!(qualifier("x=1&Qualifier"), None);
    }

    #[test]
    fn two_qualifiers_must_agree() {
        assert!(named("invert:2", Some("Qualifier=2")).is_ok());
        assert!(matches!(
            named("invert:2", Some("Qualifier=3")),
            Err(RequestError::QualifierMismatch { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_name_or_query_is_too_odd(segment in any::<String>(), query in any::<String>()) {
            if let Ok(named) = Named::parse(&segment, Some(&query)) {
                prop_assert!(is_name(&named.name));
            }
        }
    }
}
