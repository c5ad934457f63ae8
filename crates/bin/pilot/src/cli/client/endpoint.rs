//! Checks the daemon's address. Only plain HTTP: for remote access, terminate TLS at a reverse proxy.

use super::super::failure::Failure;

/// The address without a slash at its end.
pub(super) fn checked(endpoint: &str) -> Result<String, Failure> {
    let endpoint = endpoint.trim_end_matches('/');
    let authority = endpoint.strip_prefix("http://").unwrap_or_default();
    if authority.is_empty() || authority.contains(['/', '?', '#', ' ']) {
        return Err(Failure::usage(format!(
            "the endpoint \"{endpoint}\" is not http://HOST:PORT, for example http://127.0.0.1:8080"
        )));
    }
    Ok(endpoint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_http_address_without_a_path() {
        assert_eq!(
            checked("http://127.0.0.1:8080/").unwrap(),
            "http://127.0.0.1:8080"
        );
        for wrong in [
            "",
            "127.0.0.1:8080",
            "https://a",
            "http://",
            "http://a/b",
            "http://a b",
        ] {
            let problem = checked(wrong).unwrap_err().to_string();
            assert!(problem.contains("http://HOST:PORT"), "{wrong}: {problem}");
        }
    }
}
