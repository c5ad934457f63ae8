//! Which web pages of other sites may call a function's URL: cross-origin resource sharing, with the keys of AWS Lambda's
//! `FunctionUrlConfig.Cors`. The gateway answers preflights and sets the headers (Fetch standard, "CORS protocol").

use serde::{Deserialize, Serialize};

use crate::checks::KeyProblem;

/// The `[functions.NAME.cors]` table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CorsSpec {
    /// Origins, `SCHEME://HOST[:PORT]`; `*`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_origins: Vec<String>,
    /// `GET`, …; `*`: all. Default: `GET`, `HEAD` and `POST` with simple headers need no permission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_methods: Vec<String>,
    /// Headers of requests; `*`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_headers: Vec<String>,
    /// Headers of responses that the page may read; `*`: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose_headers: Vec<String>,
    /// Whether the page may send cookies and read the response. Default: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_credentials: Option<bool>,
    /// For how long a browser may remember a preflight's answer, seconds, at most 86,400. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u32>,
}

/// The checked form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cors {
    /// Which pages.
    pub allow_origins: Allowed,
    /// In capitals.
    pub allow_methods: Allowed,
    /// In lower case.
    pub allow_headers: Allowed,
    /// In lower case.
    pub expose_headers: Allowed,
    /// Never with all origins.
    pub allow_credentials: bool,
    /// Seconds.
    pub max_age: u32,
}

/// What is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Allowed {
    /// Everything.
    All,
    /// These.
    Only(Vec<String>),
}

impl Allowed {
    /// Whether it is allowed. Letters are compared as they are.
    #[must_use]
    pub fn has(&self, wanted: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(these) => these.iter().any(|one| one == wanted),
        }
    }

    fn of(these: &[String], fold: fn(&str) -> String) -> Self {
        if these.iter().any(|one| one == "*") {
            return Self::All;
        }
        Self::Only(these.iter().map(|one| fold(one)).collect())
    }
}

impl CorsSpec {
    /// Checks every key.
    ///
    /// # Errors
    /// The first key with an invalid value, with what is allowed.
    pub(crate) fn check(&self) -> Result<Cors, KeyProblem> {
        let lists = [
            ("cors.allow_origins", &self.allow_origins, 100),
            ("cors.allow_methods", &self.allow_methods, METHODS.len()),
            ("cors.allow_headers", &self.allow_headers, 100),
            ("cors.expose_headers", &self.expose_headers, 100),
        ];
        for (key, list, most) in lists {
            if list.len() > most {
                return Err((
                    key,
                    format!("has {} entries, must have at most {most}", list.len()),
                ));
            }
            let checked = list.iter().try_for_each(|entry| match key {
                _ if entry == "*" => Ok(()),
                "cors.allow_origins" => check_origin(entry),
                "cors.allow_methods" => check_method(entry),
                _ => check_header(entry),
            });
            checked.map_err(|problem| (key, problem))?;
            if list.len() > 1 && list.iter().any(|entry| entry == "*") {
                return Err((key, "has \"*\" and others: leave the others out".to_owned()));
            }
        }
        let allow_credentials = self.allow_credentials.unwrap_or(false);
        if self.allow_origins.is_empty() {
            return Err((
                "cors.allow_origins",
                "is missing: list the origins whose pages may call the function, or [\"*\"]"
                    .to_owned(),
            ));
        }
        for (key, list, _) in [lists[0], lists[3]] {
            if allow_credentials && list.iter().any(|entry| entry == "*") {
                return Err((
                    key,
                    "is \"*\", which cannot be used with allow_credentials: list them".to_owned(),
                ));
            }
        }
        let max_age = self.max_age.unwrap_or(0);
        if max_age > MAX_AGE_S {
            return Err((
                "cors.max_age",
                format!("is {max_age}, must be from 0 to {MAX_AGE_S}"),
            ));
        }
        Ok(Cors {
            allow_origins: Allowed::of(&self.allow_origins, str::to_ascii_lowercase),
            allow_methods: Allowed::of(&self.allow_methods, str::to_owned),
            allow_headers: Allowed::of(&self.allow_headers, str::to_ascii_lowercase),
            expose_headers: Allowed::of(&self.expose_headers, str::to_ascii_lowercase),
            allow_credentials,
            max_age,
        })
    }
}

/// `SCHEME://HOST[:PORT]`, as browsers send it: nothing behind it.
fn check_origin(origin: &str) -> Result<(), String> {
    let site = origin
        .split_once("://")
        .filter(|(scheme, _)| {
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
        })
        .map(|(_, site)| site);
    let fits = |site: &str| {
        !site.is_empty()
            && site
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
    };
    if origin.len() <= ORIGIN_BYTES_MAX && site.is_some_and(fits) {
        return Ok(());
    }
    Err(format!(
        "has \"{}\", must be an origin such as \"https://www.example.com\" or \"http://localhost:3000\" (without a path), or \"*\"",
        origin.escape_default().take(100).collect::<String>()
    ))
}

fn check_method(method: &str) -> Result<(), String> {
    if METHODS.contains(&method) {
        return Ok(());
    }
    Err(format!(
        "has \"{}\", must be {} or \"*\" (preflights, OPTIONS, are always answered)",
        method.escape_default().take(100).collect::<String>(),
        METHODS.join(", ")
    ))
}

fn check_header(name: &str) -> Result<(), String> {
    if name.len() <= HEADER_BYTES_MAX && http::HeaderName::from_bytes(name.as_bytes()).is_ok() {
        return Ok(());
    }
    Err(format!(
        "has \"{}\", must be the names of headers or \"*\"",
        name.escape_default().take(100).collect::<String>()
    ))
}

/// Lambda's.
const METHODS: [&str; 6] = ["GET", "PUT", "HEAD", "POST", "PATCH", "DELETE"];
const MAX_AGE_S: u32 = 86_400;
const ORIGIN_BYTES_MAX: usize = 253;
const HEADER_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str) -> Result<Cors, KeyProblem> {
        let spec: CorsSpec = toml::from_str(toml).unwrap();
        spec.check()
    }

    #[test]
    fn a_policy_is_read_with_lambdas_keys() {
        let cors = check(
            "allow_origins = [\"https://Shop.example\", \"http://[::1]:3000\"]\nallow_methods = [\"PUT\"]\nallow_headers = [\"X-A\"]\n\
             expose_headers = [\"X-B\"]\nallow_credentials = true\nmax_age = 60\n",
        )
        .unwrap();
        assert!(cors.allow_origins.has("https://shop.example"));
        assert!(!cors.allow_origins.has("https://shop.example.evil"));
        assert!(cors.allow_methods.has("PUT") && !cors.allow_methods.has("GET"));
        assert!(cors.allow_headers.has("x-a") && cors.allow_credentials && cors.max_age == 60);
        assert!(
            check("allow_origins = [\"*\"]")
                .unwrap()
                .allow_origins
                .has("null")
        );
    }

    #[test]
    fn a_policy_that_cannot_hold_is_refused_with_its_key() {
        for (toml, key, words) in [
            ("max_age = 1", "cors.allow_origins", "is missing"),
            (
                "allow_origins = [\"shop.example\"]",
                "cors.allow_origins",
                "must be an origin",
            ),
            (
                "allow_origins = [\"https://shop.example/\"]",
                "cors.allow_origins",
                "without a path",
            ),
            (
                "allow_origins = [\"https://*.shop.example\"]",
                "cors.allow_origins",
                "must be an origin",
            ),
            (
                "allow_origins = [\"*\", \"https://a.example\"]",
                "cors.allow_origins",
                "and others",
            ),
            (
                "allow_origins = [\"*\"]\nallow_credentials = true",
                "cors.allow_origins",
                "allow_credentials",
            ),
            (
                "allow_origins = [\"https://a.example\"]\nexpose_headers = [\"*\"]\nallow_credentials = true",
                "cors.expose_headers",
                "allow_credentials",
            ),
            (
                "allow_origins = [\"*\"]\nallow_methods = [\"get\"]",
                "cors.allow_methods",
                "GET, PUT",
            ),
            (
                "allow_origins = [\"*\"]\nallow_methods = [\"OPTIONS\"]",
                "cors.allow_methods",
                "OPTIONS",
            ),
            (
                "allow_origins = [\"*\"]\nallow_headers = [\"a b\"]",
                "cors.allow_headers",
                "names of headers",
            ),
            (
                "allow_origins = [\"*\"]\nmax_age = 86401",
                "cors.max_age",
                "from 0 to 86400",
            ),
        ] {
            let (found, problem) = check(toml).unwrap_err();
            assert_eq!(found, key, "{toml}");
            assert!(problem.contains(words), "{toml}: {problem}");
        }
    }
}
