//! The token of a caller. It may be in one of three headers, so that every client can set one of them:
//! - `X-Pilot-Token: TOKEN`, which leaves `Authorization` to the application;
//! - `Authorization: Bearer TOKEN`;
//! - `X-Amz-Security-Token: TOKEN`, which AWS SDKs send if `AWS_SESSION_TOKEN` is set. Then their signature is not checked.
//!
//! Without one of them, a request may be signed with a token's access key (`signature`).
//!
//! Every header with the token is removed, so that a function never sees it.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use pilot_model::access::{Grant, Role};
use pilot_model::ports::Tokens;

use crate::headers;

/// What the token in the headers permits. Every header with a valid token is removed.
///
/// # Errors
/// [`TokenError`]: it is missing or wrong.
pub(crate) fn take(tokens: &dyn Tokens, from: &mut HeaderMap) -> Result<Arc<Grant>, TokenError> {
    let (mut shown, mut granted) = (false, None);
    for name in CARRIERS {
        let is_bearer = name == headers::AUTHORIZATION;
        let mut carries = None;
        for value in from.get_all(&name) {
            let value = value.as_bytes();
            let token = if is_bearer {
                bearer(value)
            } else {
                Some(value)
            };
            shown |= token.is_some();
            carries = carries.or_else(|| tokens.grant(token?));
        }
        if carries.is_some() {
            from.remove(name);
            granted = granted.or(carries);
        }
    }
    match (granted, shown) {
        (Some(grant), _) => Ok(grant),
        (None, true) => Err(TokenError::Wrong),
        (None, false) => Err(TokenError::Missing),
    }
}

/// Why a caller is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    /// There is no token.
    #[error(
        "Missing Authentication Token: this daemon requires its token in X-Pilot-Token, in Authorization: Bearer, or from AWS \
         SDKs as AWS_SESSION_TOKEN or by a signature with its access key"
    )]
    Missing,
    /// The token is wrong.
    #[error("The security token included in the request is invalid.")]
    Wrong,
    /// The token is valid for something else.
    #[error("the token does not have the role '{}' for this function", .0.as_str())]
    Denied(Role),
}

impl TokenError {
    /// AWS's name of the error.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Missing => "MissingAuthenticationTokenException",
            Self::Wrong => "UnrecognizedClientException",
            Self::Denied(_) => "AccessDeniedException",
        }
    }
}

/// The headers that may carry a token.
pub(crate) const CARRIERS: [HeaderName; 3] = [
    headers::PILOT_TOKEN,
    headers::SECURITY_TOKEN,
    headers::AUTHORIZATION,
];

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use pilot_testkit::FixedTokens;

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
        let tokens = FixedTokens::one("s3cret", Grant::of("x", Role::Invoke));
        (super::take(&*tokens, &mut headers).map(drop), headers)
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
}
