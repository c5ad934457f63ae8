//! A request of HTTP/2 in the form of HTTP/1, which the rest of the gateway and the functions know: the authority is the header `Host`,
//! the target is path and query, and there is one `Cookie` (RFC 9113 §8.2.3, §8.3.1).

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::headers;

/// Changes the request.
///
/// # Errors
/// What is wrong with it.
pub(super) fn as_http1<B>(request: &mut Request<B>) -> Result<(), &'static str> {
    if request.method() == Method::CONNECT {
        // It has no path. It is refused later.
        return Ok(());
    }
    let uri = std::mem::take(request.uri_mut()).into_parts();
    let path = uri.path_and_query.unwrap_or(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    let headers = request.headers_mut();
    if let Some(authority) = &uri.authority {
        if authority.as_str().contains('@') {
            return Err("its :authority has user information");
        }
        let given = headers.get(headers::HOST);
        if given.is_some_and(|host| {
            !host
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes())
        }) {
            return Err("its Host header and its :authority differ");
        }
        if given.is_none() {
            let host = HeaderValue::from_str(authority.as_str())
                .map_err(|_| "its :authority is not a host")?;
            headers.insert(headers::HOST, host);
        }
    }
    join_cookies(headers)
}

/// A client may send each cookie in a header of its own, so that they compress better.
fn join_cookies(headers: &mut HeaderMap) -> Result<(), &'static str> {
    let mut all = headers.get_all(headers::COOKIE).iter();
    let (Some(first), Some(second)) = (all.next(), all.next()) else {
        return Ok(());
    };
    let mut joined = first.as_bytes().to_vec();
    for cookie in std::iter::once(second).chain(all) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(cookie.as_bytes());
    }
    let joined = HeaderValue::from_bytes(&joined).map_err(|_| "its cookies are malformed")?;
    headers.insert(headers::COOKIE, joined);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uri: &str, pairs: &[(&str, &str)]) -> (Result<(), &'static str>, Request<()>) {
        let mut request = Request::builder().uri(uri);
        for (name, value) in pairs {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).unwrap();
        (as_http1(&mut request), request)
    }

    #[test]
    fn the_authority_is_the_host_and_the_cookies_are_one() {
        let cookies = [("cookie", "a=1"), ("cookie", "b=2"), ("x", "y")];
        let (result, request) = of("https://pilot.example:8443/fn/web/x?y=1", &cookies);
        assert_eq!(result, Ok(()));
        assert_eq!(request.uri(), "/fn/web/x?y=1");
        assert_eq!(request.headers()["host"], "pilot.example:8443");
        let cookies: Vec<_> = request.headers().get_all("cookie").iter().collect();
        assert_eq!(cookies, ["a=1; b=2"]);
    }

    #[test]
    fn a_host_that_is_another_authority_is_refused() {
        assert!(of("http://a/", &[("host", "b")]).0.is_err());
        assert!(of("http://a/", &[("host", "A")]).0.is_ok());
        assert!(of("http://u:p@a/", &[]).0.is_err());
        let (result, request) = of("/only/a/path", &[]);
        assert_eq!(result, Ok(()));
        assert!(!request.headers().contains_key("host"), "refused later");
    }
}
