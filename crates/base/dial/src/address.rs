//! URLs of servers that an operator writes. Clients take some that name no server: the crate `object_store` panics at each request, and
//! others connect to another port.

use url::Url;

/// Whether a URL begins with one of these schemes (`http://`), and has a host and no port that does not exist.
#[must_use]
pub fn names_server(url: &str, schemes: [&str; 2]) -> bool {
    let rest = schemes
        .into_iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    // The parser skips slashes before a host, and leaves out tabs and line breaks.
    let is_plain = |rest: &str| {
        !rest.starts_with(['/', '\\'])
            && !rest.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    let has_server =
        |url: Url| url.host_str().is_some_and(|host| !host.is_empty()) && url.port() != Some(0);
    rest.is_some_and(is_plain) && Url::parse(url).is_ok_and(has_server)
}

/// Refuses a URL that names no server, or has more than a server and a path.
///
/// # Errors
/// What the URL must be, after its key's name.
pub fn check_url(url: &str, schemes: [&str; 2]) -> Result<(), String> {
    if names_server(url, schemes) && !url.contains(['?', '#', '@']) {
        return Ok(());
    }
    let [plain, tls] = schemes;
    Err(format!(
        "is \"{}\", must be {plain}HOST:PORT or {tls}HOST:PORT, without a user and a query",
        shown_url(url)
    ))
}

/// A URL for a message: escaped, not too long, and without what may be a secret: the query, and all before the last `@` but the
/// user's name. It need not be a URL that a parser takes.
#[must_use]
pub fn shown_url(url: &str) -> String {
    let at = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(at);
    let (user, rest) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((before, rest)) => (Some(before), rest),
    };
    let user = user.map_or(String::new(), |before| match before.split_once(':') {
        Some((user, _)) => format!("{user}:…@"),
        None => "…@".to_owned(),
    });
    let rest = match rest.split_once('?') {
        None => rest.to_owned(),
        Some((rest, _)) => format!("{rest}?…"),
    };
    let shown = format!("{scheme}{user}{rest}");
    shown.escape_debug().take(SHOWN_CHARS_MAX).collect()
}

const SHOWN_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_and_nothing_else() {
        let http = |url: &str| check_url(url, ["http://", "https://"]);
        let redis = |url: &str| check_url(url, ["redis://", "rediss://"]);
        for url in [
            "http://h",
            "https://h:65535/",
            "http://[::1]:9000/a",
            "http://127.0.0.1:9000",
        ] {
            assert_eq!(http(url), Ok(()), "{url}");
        }
        assert_eq!(redis("rediss://h:6379/2"), Ok(()));
        for rest in [
            "", "/", "/h", ":9000", "h:65536", "h:99999", "h:0", "h:x", "a b", "[::1", "a\tb",
            "h\n", "u@h", "h?a", "h#a", " h", "\\h",
        ] {
            let found = [
                http(&format!("http://{rest}")),
                redis(&format!("redis://{rest}")),
            ];
            for found in found {
                let problem = found.unwrap_err();
                assert!(problem.contains("://HOST:PORT or"), "{rest}: {problem}");
            }
        }
        assert!(!http("http://ada:pass/w@rd@h").unwrap_err().contains("pass"));
        assert!(http("ftp://h").is_err() && http("h:1").is_err());
        assert!(
            http(&format!("http://{}:@", "a".repeat(10_000)))
                .unwrap_err()
                .len()
                < 400
        );
    }

    #[test]
    fn a_url_in_a_message_has_no_secrets() {
        for (url, shown) in [
            ("http://h:1/a", "http://h:1/a"),
            ("http://ada:secret@h/a", "http://ada:…@h/a"),
            ("redis://:secret@h", "redis://:…@h"),
            ("http://token@h", "http://…@h"),
            ("http://ada:a/b?c#d@e@h", "http://ada:…@h"),
            ("ada:secret@h", "ada:…@h"),
            ("http:/ada:secret@h", "http:…@h"),
            ("redis://h?password=secret", "redis://h?…"),
            ("http://a\nb", "http://a\\nb"),
        ] {
            assert_eq!(shown_url(url), shown, "{url}");
        }
    }
}
