//! Cross-origin resource sharing on function URLs (Fetch standard, "CORS protocol"), by the function's `[cors]`. Preflights are answered
//! here: they carry no token, and start no worker. The function's own `Access-Control-` headers are replaced, as on Lambda.

use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use pilot_model::Version;
use pilot_model::cors::{Allowed, Cors};

use crate::headers;
use crate::reply::{Reply, ReplyBody};

/// The policy of a function, and the page that calls.
#[derive(Debug)]
pub(crate) struct Sharing {
    version: Arc<Version>,
    origin: Option<HeaderValue>,
}

impl Sharing {
    /// `None`: the function has no policy.
    pub(crate) fn of(version: &Arc<Version>, head: &Parts) -> Option<Self> {
        version.config.cors.as_ref()?;
        Some(Self {
            version: Arc::clone(version),
            origin: head.headers.get(headers::ORIGIN).cloned(),
        })
    }

    /// The answer to a preflight. `None`: the request is none.
    pub(crate) fn preflight(&self, head: &Parts) -> Option<Reply> {
        let cors = self.version.config.cors.as_ref()?;
        let method = head.headers.get(headers::REQUEST_METHOD)?;
        if head.method != Method::OPTIONS || self.origin.is_none() {
            return None;
        }
        let mut reply = Reply::new(ReplyBody::empty());
        let into = reply.headers_mut();
        self.mark(into);
        let varies = HeaderValue::from_static(
            "Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        );
        into.insert(headers::VARY, varies);
        let method_text = headers::text(method);
        let asked = head.headers.get(headers::REQUEST_HEADERS);
        let asked_text = asked.map(headers::text).unwrap_or_default();
        let mut names = asked_text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        // GET, HEAD and POST need no permission of their own.
        let is_method = cors.allow_methods.has(&method_text) || SIMPLE.contains(&&*method_text);
        let are_headers = names.all(|name| cors.allow_headers.has(&name.to_ascii_lowercase()));
        if !self.is_allowed(cors) || !is_method || !are_headers {
            into.remove(headers::ALLOW_ORIGIN);
            into.remove(headers::ALLOW_CREDENTIALS);
            into.remove(headers::EXPOSE_HEADERS);
            return Some(reply);
        }
        // What was asked for, and not a wildcard, which browsers do not take with credentials.
        into.insert(headers::ALLOW_METHODS, method.clone());
        if let Some(asked) = asked {
            into.insert(headers::ALLOW_HEADERS, asked.clone());
        }
        into.remove(headers::EXPOSE_HEADERS);
        into.insert(headers::MAX_AGE, HeaderValue::from(cors.max_age));
        Some(reply)
    }

    /// Says in a reply what the page may see.
    pub(crate) fn mark(&self, into: &mut HeaderMap) {
        let Some(cors) = &self.version.config.cors else {
            return;
        };
        for name in OWN {
            into.remove(name);
        }
        let all = cors.allow_origins == Allowed::All;
        if !all {
            // A cache must not give one page what was for another.
            into.append(headers::VARY, HeaderValue::from_static("Origin"));
        }
        let Some(origin) = self.origin.as_ref().filter(|_| self.is_allowed(cors)) else {
            return;
        };
        let star = HeaderValue::from_static("*");
        let origin = if all { star.clone() } else { origin.clone() };
        into.insert(headers::ALLOW_ORIGIN, origin);
        if cors.allow_credentials {
            into.insert(headers::ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        let exposed = match &cors.expose_headers {
            Allowed::All => Some(star),
            Allowed::Only(names) if names.is_empty() => None,
            Allowed::Only(names) => headers::value(&names.join(", ")),
        };
        if let Some(exposed) = exposed {
            into.insert(headers::EXPOSE_HEADERS, exposed);
        }
    }

    fn is_allowed(&self, cors: &Cors) -> bool {
        let origin = self.origin.as_ref().map(headers::text);
        origin.is_some_and(|origin| cors.allow_origins.has(&origin.to_ascii_lowercase()))
    }
}

/// Methods that pages use without a preflight's permission.
const SIMPLE: [&str; 3] = ["GET", "HEAD", "POST"];

/// The headers that the policy decides.
const OWN: [http::HeaderName; 6] = [
    headers::ALLOW_ORIGIN,
    headers::ALLOW_CREDENTIALS,
    headers::ALLOW_METHODS,
    headers::ALLOW_HEADERS,
    headers::EXPOSE_HEADERS,
    headers::MAX_AGE,
];
