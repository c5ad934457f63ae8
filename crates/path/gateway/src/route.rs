//! Maps a request's path to its route, by prefix. Borrows from the path and allocates nothing. Names stay as they were sent; the
//! route's code checks them.
//!
//! Paths that are not on the data path go to the control handler.

/// The route of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/2015-03-31/functions/NAME/invocations`; the name as sent, perhaps percent-encoded.
    Invoke {
        /// Name, ARN or partial ARN, perhaps with a qualifier.
        name: &'a str,
    },
    /// `/2021-11-15/functions/NAME/response-streaming-invocations`; the name as above.
    InvokeStreaming {
        /// Name, ARN or partial ARN, perhaps with a qualifier.
        name: &'a str,
    },
    /// `/fn/NAME…`
    FunctionUrl {
        /// `NAME` or `NAME:QUALIFIER`, as sent.
        name: &'a str,
        /// The path that the application is mounted at: `/fn/NAME`.
        root: &'a str,
        /// The rest of the path; `/` if it is empty.
        path: &'a str,
    },
    /// A known operation of AWS Lambda that is not supported.
    Unsupported {
        /// The operation's name.
        operation: &'static str,
    },
    /// Below a prefix of Lambda's operations, but unknown.
    UnknownOperation,
    /// Not on the data path.
    Control,
}

/// The route of `path` (raw, without the query).
pub(crate) fn route(path: &str) -> Route<'_> {
    if let Some(rest) = path.strip_prefix(INVOKE_PREFIX) {
        return match rest.split_once('/') {
            Some((name, "invocations")) => Route::Invoke { name },
            _ => Route::UnknownOperation,
        };
    }
    if let Some(rest) = path.strip_prefix(FUNCTION_URL_PREFIX) {
        let name_len = rest.find('/').unwrap_or(rest.len());
        let root_len = FUNCTION_URL_PREFIX.len() + name_len;
        return Route::FunctionUrl {
            name: &rest[..name_len],
            root: &path[..root_len],
            path: if name_len == rest.len() {
                "/"
            } else {
                &rest[name_len..]
            },
        };
    }
    if let Some(rest) = path.strip_prefix(STREAMING_PREFIX) {
        return match rest.split_once('/') {
            Some((name, "response-streaming-invocations")) => Route::InvokeStreaming { name },
            _ => Route::UnknownOperation,
        };
    }
    let operation = path.strip_suffix('/').unwrap_or(path);
    if path.starts_with("/2014-11-13/functions/") && operation.ends_with("/invoke-async") {
        return Route::Unsupported {
            operation: "InvokeAsync",
        };
    }
    if has_date(path) {
        return Route::UnknownOperation;
    }
    Route::Control
}

/// Whether it begins with a date, which is a version of Lambda's API: `/2017-03-31/tags/…`. Each operation has the version that
/// it came with.
fn has_date(path: &str) -> bool {
    let shape = b"/20dd-dd-dd/";
    let begins = path.as_bytes().get(..shape.len());
    begins.is_some_and(|begins| {
        begins.iter().zip(shape).all(|(byte, shape)| match shape {
            b'd' => byte.is_ascii_digit(),
            shape => byte == shape,
        })
    })
}

const INVOKE_PREFIX: &str = "/2015-03-31/functions/";
const STREAMING_PREFIX: &str = "/2021-11-15/functions/";
const FUNCTION_URL_PREFIX: &str = "/fn/";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_invoke_api_gives_the_name_as_it_was_sent() {
        assert_eq!(
            route("/2015-03-31/functions/arn%3Aaws%3Alambda/invocations"),
            Route::Invoke {
                name: "arn%3Aaws%3Alambda"
            }
        );
    }

    #[test]
    fn a_streaming_invocation_gives_the_name_as_it_was_sent() {
        assert_eq!(
            route("/2021-11-15/functions/a%3A1/response-streaming-invocations"),
            Route::InvokeStreaming { name: "a%3A1" }
        );
    }

    #[test]
    fn another_operation_of_lambda_is_an_unknown_operation() {
        for path in [
            "/2015-03-31/functions/",
            "/2015-03-31/functions/invert",
            "/2015-03-31/functions/invert/invocations/",
            "/2015-03-31/event-source-mappings",
            "/2021-11-15/functions/invert",
            "/2021-11-15/functions/invert/url/response-streaming-invocations",
            "/2017-03-31/tags/arn%3Aaws%3Alambda",
            "/2018-10-31/layers",
            "/2020-04-22/code-signing-configs/",
            "/2014-11-13/functions/invert",
        ] {
            assert_eq!(route(path), Route::UnknownOperation, "{path}");
        }
    }

    #[test]
    fn the_old_asynchronous_operation_is_known_with_a_slash_at_its_end() {
        for path in [
            "/2014-11-13/functions/invert/invoke-async",
            "/2014-11-13/functions/invert/invoke-async/",
        ] {
            let operation = "InvokeAsync";
            assert_eq!(route(path), Route::Unsupported { operation }, "{path}");
        }
    }

    #[test]
    fn a_function_url_is_split_behind_the_name() {
        let cases = [
            ("/fn/web", "web", "/fn/web", "/"),
            ("/fn/web/", "web", "/fn/web", "/"),
            ("/fn/web//a%2Fb/", "web", "/fn/web", "//a%2Fb/"),
            ("/fn/web:2/x", "web:2", "/fn/web:2", "/x"),
            ("/fn/", "", "/fn/", "/"),
        ];
        for (given, name, root, path) in cases {
            assert_eq!(
                route(given),
                Route::FunctionUrl { name, root, path },
                "{given}"
            );
        }
    }

    #[test]
    fn everything_else_is_controls() {
        for path in [
            "/",
            "",
            "*",
            "/fn",
            "/fnord/web",
            "/metrics",
            "/_pilot/v1/functions",
            "/2015-03-31",
            "/2015-3-31/functions",
            "/2015-03-31x/functions",
            "/1015-03-31/functions/",
        ] {
            assert_eq!(route(path), Route::Control, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_function_urls_root_and_path_make_up_the_whole(path in "/fn/[a-z:%]{0,8}(/[a-zé%/]{0,12})?") {
            let Route::FunctionUrl { root, path: rest, .. } = route(&path) else {
                panic!("{path} is a function URL");
            };
            prop_assert!(path == [root, rest].concat() || path == root);
        }

        #[test]
        fn any_path_has_a_route(path in any::<String>()) {
            route(&path);
        }
    }
}
