//! The messages of failed requests to the daemon.

use std::io::ErrorKind;
use std::net::ToSocketAddrs;

use pilot_model::api::ApiError;
use ureq::http::StatusCode;

use super::super::failure::Failure;
use super::tls;
use crate::control_socket::GROUP;

/// A request without a response.
pub(super) fn not_sent(endpoint: &str, error: ureq::Error) -> anyhow::Error {
    let unreachable = match &error {
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::NotFound
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
        ),
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::Timeout(_) => true,
        _ => false,
    };
    if let ureq::Error::Io(error) = &error
        && error.kind() == ErrorKind::PermissionDenied
    {
        let problem = format!(
            "this user may not use the control socket {endpoint}: run pilot as the daemon's user, or as a member of the group \
             {GROUP} if the daemon is the system's service"
        );
        return anyhow::anyhow!(problem);
    }
    if let Some(problem) = tls::problem(endpoint, &error) {
        return anyhow::anyhow!(problem);
    }
    // The resolver's errors have no kind of their own.
    let has_address = has_address(endpoint);
    if unreachable || !has_address {
        return Failure::Unreachable {
            endpoint: endpoint.to_owned(),
            has_address,
        }
        .into();
    }
    anyhow::Error::new(error).context(format!("the daemon at {} hung up", endpoint))
}

/// Whether the name of the endpoint's host can be resolved.
fn has_address(endpoint: &str) -> bool {
    let Some((scheme, authority)) = endpoint.split_once("://") else {
        return true;
    };
    let found = if authority.ends_with(']') || !authority.contains(':') {
        let port = if scheme == "https" { 443 } else { 80 };
        format!("{authority}:{port}").to_socket_addrs()
    } else {
        authority.to_socket_addrs()
    };
    found.is_ok_and(|mut all| all.next().is_some())
}

/// An error response.
pub(super) fn refused(endpoint: &str, status: StatusCode, body: &[u8]) -> Failure {
    let mut error = serde_json::from_slice(body).unwrap_or_else(|_| ApiError {
        code: "unknown".to_owned(),
        message: format!("{} answers {status}: is it a Pilotlight daemon?", endpoint),
        detail: String::from_utf8_lossy(&body[..body.len().min(FOREIGN_BODY_BYTES_MAX)])
            .into_owned(),
    });
    if status == StatusCode::UNAUTHORIZED {
        error.message = format!(
            "{} (give the daemon's token with --token or PILOT_TOKEN)",
            error.message
        );
    }
    Failure::Refused {
        status: status.as_u16(),
        error,
    }
}

/// How much of a response that is not Pilotlight's is shown.
const FOREIGN_BODY_BYTES_MAX: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_not_ours_asks_whether_it_is_a_daemon_and_shows_what_came() {
        let failure = refused("http://h", StatusCode::NOT_FOUND, b"<html>nginx</html>");
        assert!(
            failure.to_string().contains("is it a Pilotlight daemon?"),
            "{failure}"
        );
        match failure {
            Failure::Refused { status: 404, error } => {
                assert_eq!(error.detail, "<html>nginx</html>")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_missing_token_says_how_to_give_one() {
        let body = br#"{"code":"unauthorized","message":"a token is needed"}"#;
        let failure = refused("http://h", StatusCode::UNAUTHORIZED, body);
        assert!(failure.to_string().contains("PILOT_TOKEN"), "{failure}");
    }
}
