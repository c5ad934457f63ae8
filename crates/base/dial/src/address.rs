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
        url.escape_debug().take(SHOWN_CHARS_MAX).collect::<String>()
    ))
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
        assert!(http("ftp://h").is_err() && http("h:1").is_err());
        assert!(
            http(&format!("http://{}@", "a".repeat(10_000)))
                .unwrap_err()
                .len()
                < 400
        );
    }
}
