//! The table of errors: status, AWS error name, whose fault it is, and message. No other file decides a status. A test compares
//! the table with its snapshot, `errors/table.txt`.
//!
//! Errors of the *function* have no row for the Invoke API, which answers 200 with `X-Amz-Function-Error`, as AWS Lambda does. For
//! function URLs they are the last rows, which all have status 502, as with AWS.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use pilot_invoke::InvokeError;
use pilot_model::calls::Reason;
use pilot_model::log_line::visible;
use pilot_model::ports::{InputFaultKind, NotAccepted, StartError};
use pilot_model::version::REGION;
use pilot_model::{Exception, InvocationId, Seldom};
use serde::Serialize;

use crate::headers;
use crate::reply::{Reply, ReplyBody};
use crate::signature::SignatureError;
use crate::timing;

/// Why a request gets no response of a function.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// Not a valid function name of AWS Lambda.
    #[error(
        "1 validation error detected: Value '{name}' at 'functionName' failed to satisfy constraint: Member must be a \
         function name (1 to 64 of a-z A-Z 0-9 - _), NAME:QUALIFIER, an ARN or a partial ARN"
    )]
    InvalidName {
        /// As sent, shortened to 140 characters.
        name: String,
    },
    /// Not a valid qualifier of AWS Lambda.
    #[error(
        "1 validation error detected: Value '{qualifier}' at 'qualifier' failed to satisfy constraint: Member must \
         satisfy regular expression pattern: \\$LATEST|[a-zA-Z0-9-_]+"
    )]
    InvalidQualifier {
        /// As sent, shortened to 140 characters.
        qualifier: String,
    },
    /// The name and the query have different qualifiers.
    #[error(
        "The derived qualifier '{in_name}' from the function name does not match the specified qualifier '{in_query}'."
    )]
    QualifierMismatch {
        /// The qualifier in the name.
        in_name: String,
        /// The qualifier in `?Qualifier=`.
        in_query: String,
    },
    /// A header with an invalid value.
    #[error(
        "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must satisfy \
         enum value set: [{allowed}]"
    )]
    InvalidMember {
        /// The Invoke API's name of the header.
        member: &'static str,
        /// As sent, shortened to 140 characters.
        value: String,
        /// The valid values.
        allowed: &'static str,
    },
    /// The body or the client context is invalid.
    #[error("{problem}")]
    InvalidContent {
        /// Which of them, and what is wrong.
        problem: String,
    },
    /// A header `X-Pilot-Input` that cannot be used.
    #[error("X-Pilot-Input: {problem}")]
    Input {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A header `X-Pilot-Target` that cannot be used.
    #[error("X-Pilot-Target: {problem}")]
    Target {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The body is larger than the limit.
    #[error("Request must be smaller than {limit} bytes for the InvokeFunction operation")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The request is not valid HTTP in a way that hyper does not refuse.
    #[error("{problem}")]
    Malformed {
        /// What is wrong.
        problem: String,
    },
    /// A web page of another site may have made the request.
    #[error(
        "the header {header} is '{value}', which is not this daemon: add the name to `hosts` in pilotd.toml, or require a token"
    )]
    Foreign {
        /// `Host` or `Origin`.
        header: &'static str,
        /// Its value, shortened.
        value: String,
    },
    /// The body did not arrive.
    #[error("the request's body did not arrive: {problem}")]
    Body {
        /// Why.
        problem: String,
    },
    /// A client of HTTP/2 waits for `100 Continue`.
    #[error(
        "the client waits for 100 Continue, which this daemon does not send over HTTP/2: send the request without Expect, or over HTTP/1.1"
    )]
    Expectation,
    /// The memory for request bodies is used up.
    #[error("the memory for request bodies is used up: try again")]
    BodiesFull,
    /// The client's address, or the listener, has as many requests as it may have.
    #[error("too many open connections and requests: try again, or send fewer at a time")]
    ConnectionsFull,
    /// A WebSocket handshake with another version of the protocol.
    #[error("the WebSocket handshake needs the header Sec-WebSocket-Version: 13")]
    WebSocketVersion,
    /// The daemon has no descriptors left for what the request needs.
    #[error("the daemon has no open files left for this request ({problem}): try again")]
    NoDescriptors {
        /// The kernel's error.
        problem: String,
    },
    /// A feature of Lambda that is not supported.
    #[error("{feature} is not supported: {instead}")]
    NotSupported {
        /// The feature.
        feature: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// There is no such operation, or not with this method.
    #[error(
        "{method} on this path is not an operation of the Invoke API: use POST /2015-03-31/functions/NAME/invocations; `pilot` lists, deploys and removes functions"
    )]
    UnknownOperation {
        /// As sent, shortened to 20 characters.
        method: String,
    },
    /// The token is missing or wrong.
    #[error(transparent)]
    Token(#[from] crate::token::TokenError),
    /// The signature of an AWS client is not valid.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// An asynchronous invocation was not accepted.
    #[error(transparent)]
    NotAccepted(#[from] NotAccepted),
    /// The invocation failed.
    #[error(transparent)]
    Invoke(#[from] InvokeError),
}

/// Errors of a function behind its URL, where clients do not look at `X-Amz-Function-Error`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The function raised, timed out, crashed or ran out of memory.
    #[error("the function failed: {error_type}: {error_message}")]
    Function {
        /// Lambda's `errorType`.
        error_type: String,
        /// Lambda's `errorMessage`.
        error_message: String,
    },
    /// The function's result is not an HTTP response.
    #[error("the function returned a malformed HTTP response: {problem}")]
    Malformed {
        /// Which key is wrong, and why.
        problem: String,
    },
    /// The function's result is larger than the limit.
    #[error("Response payload size exceeded maximum allowed payload size ({limit} bytes).")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    status: StatusCode,
    name: &'static str,
    kind: Fault,
    reason: Option<&'static str>,
    retry_after_s: Option<u32>,
}

/// Whose fault it is: the `Type` of Lambda's error body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Fault {
    /// The caller's, or the function's.
    User,
    /// The daemon's, or the machine's.
    Service,
}

impl Row {
    const fn user(status: StatusCode, name: &'static str) -> Self {
        Self {
            status,
            name,
            kind: Fault::User,
            reason: None,
            retry_after_s: None,
        }
    }

    const fn service(status: StatusCode, name: &'static str) -> Self {
        Self {
            kind: Fault::Service,
            ..Self::user(status, name)
        }
    }

    const fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }
}

impl RequestError {
    /// This error's row.
    pub(crate) fn row(&self) -> Row {
        use StatusCode as S;
        match self {
            Self::InvalidName { .. }
            | Self::InvalidQualifier { .. }
            | Self::InvalidMember { .. } => Row::user(S::BAD_REQUEST, "ValidationException"),
            Self::QualifierMismatch { .. } | Self::Input { .. } | Self::Target { .. } => {
                Row::user(S::BAD_REQUEST, "InvalidParameterValueException")
            }
            Self::InvalidContent { .. } => {
                Row::user(S::BAD_REQUEST, "InvalidRequestContentException")
            }
            Self::Malformed { .. } => Row::user(S::BAD_REQUEST, "BadRequestException"),
            Self::Foreign { .. } => Row::user(S::FORBIDDEN, "AccessDeniedException"),
            Self::TooLarge { .. } => Row::user(S::PAYLOAD_TOO_LARGE, "RequestTooLargeException"),
            Self::Body { .. } => Row::user(S::REQUEST_TIMEOUT, "RequestTimeoutException"),
            Self::Expectation => Row::user(S::EXPECTATION_FAILED, "ExpectationFailedException"),
            Self::BodiesFull => Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
                .with_reason("RequestBodyMemoryLimitExceeded")
                .retry_after(1),
            Self::ConnectionsFull => Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
                .with_reason("ConnectionLimitExceeded")
                .retry_after(1),
            Self::WebSocketVersion => Row::user(S::UPGRADE_REQUIRED, "UpgradeRequiredException"),
            Self::NoDescriptors { .. } => {
                Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1)
            }
            Self::NotSupported { .. } => Row::user(S::NOT_IMPLEMENTED, "NotImplementedException"),
            Self::UnknownOperation { .. } => Row::user(S::NOT_FOUND, "UnknownOperationException"),
            Self::Token(error) => Row::user(S::FORBIDDEN, error.name()),
            Self::Signature(error @ SignatureError::Incomplete { .. }) => {
                Row::user(S::BAD_REQUEST, error.name())
            }
            Self::Signature(error) => Row::user(S::FORBIDDEN, error.name()),
            Self::NotAccepted(NotAccepted::KeyReused { .. }) => {
                Row::user(S::CONFLICT, "ResourceConflictException")
            }
            Self::NotAccepted(_) => {
                Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1)
            }
            Self::Invoke(error) => invoke_row(error),
        }
    }

    /// The message for the caller: Lambda's message where there is one, followed by a hint.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Invoke(InvokeError::FunctionNotFound { name }) => {
                format!("Function not found: {}", arn(name))
            }
            Self::Invoke(InvokeError::VersionNotFound { name, qualifier }) => {
                format!("Function not found: {}:{qualifier}", arn(name))
            }
            Self::Invoke(InvokeError::TooManyRequests { .. }) => format!("Rate Exceeded. {self}"),
            Self::Invoke(InvokeError::PayloadTooLarge { bytes_max, .. }) => {
                Self::TooLarge { limit: *bytes_max }.to_string()
            }
            other => other.to_string(),
        }
    }

    /// The response.
    pub(crate) fn into_reply(self, id: &InvocationId) -> Reply {
        let row = self.row();
        if row.kind == Fault::Service
            && let Some(left_out) = SERVICE_FAULTS.admit(std::time::Instant::now())
        {
            // It may quote what the function said.
            let problem = visible(&self.to_string());
            tracing::error!(request_id = %id, error = row.name, left_out, "{problem}");
        }
        let mut reply = render(row, &self.message(), None, id);
        if matches!(self, Self::WebSocketVersion) {
            // What the client must ask for instead (RFC 9110, section 15.5.22; RFC 6455, section 4.4).
            let into = reply.headers_mut();
            into.insert(
                headers::WEBSOCKET_VERSION,
                HeaderValue::from_static(WEBSOCKET_VERSION),
            );
            into.insert(headers::UPGRADE, HeaderValue::from_static("websocket"));
            into.insert(headers::CONNECTION, HeaderValue::from_static("upgrade"));
        }
        reply
    }
}

/// The version of the WebSocket protocol that is served (RFC 6455).
pub(crate) const WEBSOCKET_VERSION: &str = "13";

/// Faults of the service that are logged per interval. A function whose workers do not come up causes one per request.
static SERVICE_FAULTS: Seldom = Seldom::new(50);

/// The ARN of a function that is not known, so that its region is not either.
fn arn(name: &str) -> String {
    format!("arn:aws:lambda:{REGION}:000000000000:function:{name}")
}

/// The table's name of an error, for responses whose status is already sent.
pub(crate) fn name(error: &InvokeError) -> &'static str {
    invoke_row(error).name
}

fn invoke_row(error: &InvokeError) -> Row {
    use StatusCode as S;
    match error {
        InvokeError::FunctionNotFound { .. } | InvokeError::VersionNotFound { .. } => {
            Row::user(S::NOT_FOUND, "ResourceNotFoundException")
        }
        InvokeError::TooManyRequests {
            reason,
            retry_after_s,
            ..
        } => Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
            .with_reason(reason.as_str())
            .retry_after(*retry_after_s),
        InvokeError::PayloadTooLarge { .. } => {
            Row::user(S::PAYLOAD_TOO_LARGE, "RequestTooLargeException")
        }
        InvokeError::Elsewhere { refusal, .. } => match refusal.reason {
            Reason::Throttled | Reason::NoRoom => {
                Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
                    .with_reason("OtherNodeLimitExceeded")
                    .retry_after(1)
            }
            Reason::Unavailable => Row::service(S::BAD_GATEWAY, "ServiceException"),
            Reason::NotFound => Row::user(S::NOT_FOUND, "ResourceNotFoundException"),
            Reason::Forbidden => Row::user(S::FORBIDDEN, "AccessDeniedException"),
            _ => Row::user(S::BAD_REQUEST, "InvalidParameterValueException"),
        },
        InvokeError::StartFailed {
            error: StartError::Full { .. },
            ..
        } => Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1),
        InvokeError::StartFailed {
            error: StartError::Sandbox { .. },
            ..
        } => Row::service(S::INTERNAL_SERVER_ERROR, "ServiceException"),
        InvokeError::Broken { .. } | InvokeError::StartFailed { .. } => {
            Row::service(S::BAD_GATEWAY, "InvalidRuntimeException")
        }
        // These usually interrupt a response whose status is already sent. The rows are for responses that have not begun.
        InvokeError::BodyTimedOut { .. } => Row::user(S::BAD_GATEWAY, "Sandbox.Timedout"),
        InvokeError::BodyBroken { .. } => Row::user(S::BAD_GATEWAY, "Runtime.ExitError"),
        InvokeError::BodyRaised { .. } => Row::user(S::BAD_GATEWAY, "FunctionError"),
        InvokeError::UploadBroken { .. } => {
            Row::user(S::REQUEST_TIMEOUT, "RequestTimeoutException")
        }
        InvokeError::BodyInput { fault } => match fault.kind {
            InputFaultKind::TooLarge => Row::user(S::PAYLOAD_TOO_LARGE, "RequestTooLargeException"),
            InputFaultKind::TimedOut | InputFaultKind::Broken => {
                Row::user(S::REQUEST_TIMEOUT, "RequestTimeoutException")
            }
            InputFaultKind::Decode => Row::user(S::BAD_REQUEST, "InvalidRequestContentException"),
            // A body has no key and no rights.
            InputFaultKind::Unavailable
            | InputFaultKind::Key
            | InputFaultKind::Forbidden
            | InputFaultKind::NotFound
            | InputFaultKind::Denied => {
                Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1)
            }
        },
        InvokeError::ShuttingDown => {
            Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1)
        }
    }
}

impl AnswerError {
    /// From the function's error body, if that has Lambda's format.
    pub(crate) fn raised(body: &[u8]) -> Self {
        // Both are empty if the body has another form: the reply then says only that the function failed.
        let raised = Exception::read(body).unwrap_or_default();
        Self::Function {
            error_type: raised.error_type,
            error_message: raised.error_message,
        }
    }

    /// A response of the wrong kind. The invoker never returns one.
    pub(crate) fn unfit() -> Self {
        Self::Malformed {
            problem: "it is not a response to this request".to_owned(),
        }
    }

    /// More headers than [`headers::COUNT_MAX`].
    pub(crate) fn too_many_headers() -> Self {
        Self::Malformed {
            problem: format!("it has more than {} headers", headers::COUNT_MAX),
        }
    }

    /// This error's row. All rows have status 502, as with AWS, also timeouts: the gateway waited long enough, but the function did
    /// not answer. Callers distinguish them by `errorType`.
    pub(crate) fn row(&self) -> Row {
        Row::user(
            StatusCode::BAD_GATEWAY,
            match self {
                Self::Function { .. } => "FunctionError",
                Self::Malformed { .. } => "Function.InvalidResponse",
                Self::TooLarge { .. } => "Function.ResponseSizeTooLarge",
            },
        )
    }

    /// The response, with `X-Amz-Function-Error`.
    pub(crate) fn into_reply(self, id: &InvocationId) -> Reply {
        // The client can be anybody: what the function raised is in its log and not here.
        let detail = match &self {
            Self::Function {
                error_type,
                error_message,
            } if FAULTS.contains(&error_type.as_str()) => {
                (error_type.as_str(), Some(error_message.clone()))
            }
            Self::Function { .. } => (self.row().name, None),
            other => (other.row().name, Some(other.to_string())),
        };
        let mut reply = render(
            self.row(),
            "Internal Server Error",
            Some((detail.0, detail.1.as_deref())),
            id,
        );
        reply.headers_mut().insert(
            headers::FUNCTION_ERROR,
            HeaderValue::from_static("Unhandled"),
        );
        reply
    }
}

/// The errors that the daemon words (`pilot_invoke`'s `fault.rs`). They say nothing of the function's code.
const FAULTS: [&str; 5] = [
    "Sandbox.Timedout",
    "Runtime.ServerError",
    "Runtime.ExitError",
    "Runtime.OutOfMemory",
    "Runtime.ProtocolError",
];

/// `{"Type", "Message", "Reason"?, "errorType"?, "errorMessage"?}`: Lambda's error body, with the function's own error if that
/// is the cause.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    r#type: Fault,
    message: &'a str,
    #[serde(rename = "errorType", skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    #[serde(rename = "errorMessage", skip_serializing_if = "Option::is_none")]
    error_message: Option<&'a str>,
}

fn render(
    row: Row,
    message: &str,
    detail: Option<(&str, Option<&str>)>,
    id: &InvocationId,
) -> Reply {
    let body = ErrorBody {
        reason: row.reason,
        r#type: row.kind,
        message,
        error_type: detail.map(|(error_type, _)| error_type),
        error_message: detail.and_then(|(_, error_message)| error_message),
    };
    let json = serde_json::to_vec(&body).expect("texts are always JSON");
    let mut reply = Reply::new(ReplyBody::Full(Bytes::from(json)));
    *reply.status_mut() = row.status;
    let into = reply.headers_mut();
    into.insert(
        headers::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    into.insert(headers::ERROR_TYPE, HeaderValue::from_static(row.name));
    if let Some(seconds) = row.retry_after_s {
        into.insert(headers::RETRY_AFTER, HeaderValue::from(seconds));
    }
    timing::write_id(into, id);
    reply
}

#[cfg(test)]
mod tests;
