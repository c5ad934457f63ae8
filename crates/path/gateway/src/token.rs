//! The token that callers of functions must send, if one is configured. It may be in one of three headers, so that every client can
//! set one of them:
//! - `X-Pilot-Token: TOKEN`, which leaves `Authorization` to the application;
//! - `Authorization: Bearer TOKEN`;
//! - `X-Amz-Security-Token: TOKEN`, which AWS SDKs send if `AWS_SESSION_TOKEN` is set. Their signature is not checked.
//!
//! Every header with the token is removed, so that a function never sees it.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;

use crate::headers;

/// A token that callers must send. `Debug` does not print it.
#[derive(Clone)]
pub struct InvokeToken(Arc<str>);

impl InvokeToken {
    /// A token from the configuration; `None` if it is empty or not visible ASCII.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.into()))
    }

    /// Checks the token and removes it from the headers.
    ///
    /// # Errors
    /// [`TokenError`]: it is missing or wrong.
    pub(crate) fn take(&self, from: &mut HeaderMap) -> Result<(), TokenError> {
        let (mut shown, mut right) = (false, false);
        for name in [
            headers::PILOT_TOKEN,
            headers::SECURITY_TOKEN,
            headers::AUTHORIZATION,
        ] {
            let is_bearer = name == headers::AUTHORIZATION;
            let mut carries = false;
            for value in from.get_all(&name) {
                let value = value.as_bytes();
                let token = if is_bearer {
                    bearer(value)
                } else {
                    Some(value)
                };
                shown |= token.is_some();
                carries |= token.is_some_and(|token| self.is(token));
            }
            if carries {
                right = true;
                from.remove(name);
            }
        }
        match (right, shown) {
            (true, _) => Ok(()),
            (false, true) => Err(TokenError::Wrong),
            (false, false) => Err(TokenError::Missing),
        }
    }

    /// Compares in a time that depends only on the length.
    fn is(&self, shown: &[u8]) -> bool {
        let wanted = self.0.as_bytes();
        let differing = wanted
            .iter()
            .zip(shown)
            .fold(0, |differing, (one, other)| differing | (one ^ other));
        wanted.len() == shown.len() && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for InvokeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InvokeToken(..)")
    }
}

/// Why a caller is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// There is no token.
    #[error(
        "Missing Authentication Token: this daemon requires its token in X-Pilot-Token, in Authorization: Bearer, or from AWS \
         SDKs as AWS_SESSION_TOKEN"
    )]
    Missing,
    /// The token is wrong.
    #[error("The security token included in the request is invalid.")]
    Wrong,
}

impl TokenError {
    /// AWS's name of the error.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Missing => "MissingAuthenticationTokenException",
            Self::Wrong => "UnrecognizedClientException",
        }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn take(pairs: &[(&'static str, &'static str)]) -> (Result<(), TokenError>, HeaderMap) {
        let mut headers: HeaderMap = pairs
            .iter()
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        let token = InvokeToken::new("s3cret").unwrap();
        (token.take(&mut headers), headers)
    }

    #[test]
    fn any_of_three_headers_carries_it_and_is_taken_out() {
        for header in [
            ("x-pilot-token", "s3cret"),
            ("authorization", "bearer s3cret"),
            ("x-amz-security-token", "s3cret"),
        ] {
            let (result, headers) = take(&[header]);
            assert_eq!(result, Ok(()), "{header:?}");
            assert!(headers.is_empty(), "{header:?}");
        }
    }

    #[test]
    fn an_applications_own_authorization_stays() {
        let (result, headers) = take(&[
            ("x-pilot-token", "s3cret"),
            ("authorization", "Bearer its-own"),
        ]);
        assert_eq!(result, Ok(()));
        assert_eq!(headers["authorization"], "Bearer its-own");
    }

    #[test]
    fn carried_twice_it_is_taken_out_twice() {
        let (result, headers) = take(&[
            ("x-pilot-token", "s3cret"),
            ("x-amz-security-token", "other"),
            ("authorization", "Bearer s3cret"),
        ]);
        assert_eq!(result, Ok(()));
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-amz-security-token"], "other");
    }

    #[test]
    fn a_missing_token_is_told_from_a_wrong_one() {
        assert_eq!(take(&[]).0, Err(TokenError::Missing));
        let signed = [("authorization", "AWS4-HMAC-SHA256 Credential=x")];
        assert_eq!(take(&signed).0, Err(TokenError::Missing));
        for wrong in ["s3cre", "s3crets", "S3cret"] {
            assert_eq!(
                take(&[("x-pilot-token", wrong)]).0,
                Err(TokenError::Wrong),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_token_is_visible_ascii() {
        assert!(InvokeToken::new("").is_none());
        assert!(InvokeToken::new("a b").is_none());
        assert!(InvokeToken::new("é").is_none());
        assert_eq!(
            format!("{:?}", InvokeToken::new("x").unwrap()),
            "InvokeToken(..)"
        );
    }
}
