//! Who may call the control API: everyone, or only callers with the token.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::Failure;

/// A bearer token. Never printed.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// A token from the configuration.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Compares in a time that depends only on the length of the offered text.
    fn is(&self, offered: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let mut difference = u8::from(own.len() != offered.len());
        for (at, byte) in offered.iter().enumerate() {
            // Any byte is fine beyond the end, because the lengths differ then.
            let own = own.get(at).copied().unwrap_or(0);
            difference = black_box(difference | (own ^ byte));
        }
        difference == 0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether a call needs the token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Everyone may call.
    #[default]
    Open,
    /// Only with the token, if one is configured.
    Token,
}

/// Rejects requests without the token. The state is `None` if no token is configured.
pub(crate) async fn require_token(
    State(token): State<Option<Token>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = token else {
        return next.run(request).await;
    };
    let offered = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| bearer(value.as_bytes()));
    match offered {
        Some(offered) if token.is(offered) => next.run(request).await,
        Some(_) => unauthorized("the bearer token is wrong"),
        None => unauthorized(
            "the control API requires the header 'Authorization: Bearer TOKEN'; the CLI reads the token from PILOT_TOKEN",
        ),
    }
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn unauthorized(message: &str) -> Response {
    Failure::new("unauthorized", message.to_owned()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_it() {
        let token = Token::new("geheim");
        assert!(token.is(b"geheim"));
        for other in ["", "g", "geheimx", "Geheim", "geheim\0"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token::new("geheim")), "Token(…)");
    }

    #[test]
    fn the_scheme_is_case_insensitive() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b""), None);
    }
}
