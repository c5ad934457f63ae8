//! The one table from what can go wrong to what the caller is told: status, AWS error name, whose fault it is, message.
//! No other file decides a status. `errors/table.txt` is the table as a snapshot; a test keeps the two equal.
//!
//! What the *function* does wrong is not here when it is asked through the Invoke API (it is a 200 with
//! `X-Amz-Function-Error`, as in AWS Lambda), and is the last rows of this table behind its URL, where AWS says 502 for all of it.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use pilot_invoke::InvokeError;
use pilot_model::InvocationId;
use pilot_model::ports::StartError;
use serde::{Deserialize, Serialize};

use crate::headers;
use crate::reply::{Reply, ReplyBody};
use crate::timing;

/// Why a request gets no answer of a function.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// Not a name of AWS Lambda's.
    #[error(
        "1 validation error detected: Value '{name}' at 'functionName' failed to satisfy constraint: Member must be a \
         function name (1 to 64 of a-z A-Z 0-9 - _), NAME:QUALIFIER, an ARN or a partial ARN"
    )]
    InvalidName {
        /// As sent, cut to 140 characters.
        name: String,
    },
    /// Not a qualifier of AWS Lambda's.
    #[error(
        "1 validation error detected: Value '{qualifier}' at 'qualifier' failed to satisfy constraint: Member must \
         satisfy regular expression pattern: \\$LATEST|[a-zA-Z0-9-_]+"
    )]
    InvalidQualifier {
        /// As sent, cut to 140 characters.
        qualifier: String,
    },
    /// One qualifier in the name, another in the query.
    #[error(
        "The derived qualifier '{in_name}' from the function name does not match the specified qualifier '{in_query}'."
    )]
    QualifierMismatch {
        /// Behind the name.
        in_name: String,
        /// `?Qualifier=`.
        in_query: String,
    },
    /// A header with a value that is none of its words.
    #[error(
        "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must satisfy \
         enum value set: [{allowed}]"
    )]
    InvalidMember {
        /// The Invoke API's name of it.
        member: &'static str,
        /// As sent, cut to 140 characters.
        value: String,
        /// What would do.
        allowed: &'static str,
    },
    /// The body or the client context cannot be read.
    #[error("{problem}")]
    InvalidContent {
        /// What is wrong with which.
        problem: String,
    },
    /// The body is over the limit.
    #[error("Request must be smaller than {limit} bytes for the InvokeFunction operation")]
    TooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The body did not arrive.
    #[error("the request's body did not arrive: {problem}")]
    Body {
        /// Why.
        problem: String,
    },
    /// Bodies in flight use as much memory as they may.
    #[error("the request bodies in flight use as much memory as they may: try again")]
    BodiesFull,
    /// Something of Lambda's that is not offered.
    #[error("{feature} is not supported: {instead}")]
    NotSupported {
        /// What was asked for.
        feature: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// No such operation, or not with this method.
    #[error(
        "{method} on this path is no operation of the Invoke API: use POST /2015-03-31/functions/NAME/invocations"
    )]
    UnknownOperation {
        /// As sent, cut to 20 characters.
        method: String,
    },
    /// The token is missing or wrong.
    #[error(transparent)]
    Token(#[from] crate::token::TokenError),
    /// No answer to be had.
    #[error(transparent)]
    Invoke(#[from] InvokeError),
}

/// What goes wrong with a function behind its URL, where there is no `X-Amz-Function-Error` to look at.
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
    /// What it returned is no HTTP response.
    #[error("the function returned a malformed HTTP response: {problem}")]
    Malformed {
        /// Which key is how wrong.
        problem: String,
    },
    /// What it returned is over the limit.
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
    /// Ours, or the machine's.
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
            Self::QualifierMismatch { .. } => {
                Row::user(S::BAD_REQUEST, "InvalidParameterValueException")
            }
            Self::InvalidContent { .. } => {
                Row::user(S::BAD_REQUEST, "InvalidRequestContentException")
            }
            Self::TooLarge { .. } => Row::user(S::PAYLOAD_TOO_LARGE, "RequestTooLargeException"),
            Self::Body { .. } => Row::user(S::REQUEST_TIMEOUT, "RequestTimeoutException"),
            Self::BodiesFull => Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
                .with_reason("RequestBodyMemoryLimitExceeded")
                .retry_after(1),
            Self::NotSupported { .. } => Row::user(S::NOT_IMPLEMENTED, "NotImplementedException"),
            Self::UnknownOperation { .. } => Row::user(S::NOT_FOUND, "UnknownOperationException"),
            Self::Token(error) => Row::user(S::FORBIDDEN, error.name()),
            Self::Invoke(error) => invoke_row(error),
        }
    }

    /// The message for the caller: Lambda's words where it has them, with what helps behind them.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Invoke(InvokeError::FunctionNotFound { name }) => {
                format!("Function not found: {ARN_PREFIX}{name}")
            }
            Self::Invoke(InvokeError::VersionNotFound { name, qualifier }) => {
                format!("Function not found: {ARN_PREFIX}{name}:{qualifier}")
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
        if row.kind == Fault::Service {
            tracing::error!(request_id = %id, error = row.name, "{self}");
        }
        render(row, &self.message(), None, id)
    }
}

/// The name that the table gives an error, for where there is no status to give.
pub(crate) fn name(error: &InvokeError) -> &'static str {
    invoke_row(error).name
}

fn invoke_row(error: &InvokeError) -> Row {
    use StatusCode as S;
    match error {
        InvokeError::FunctionNotFound { .. } | InvokeError::VersionNotFound { .. } => {
            Row::user(S::NOT_FOUND, "ResourceNotFoundException")
        }
        InvokeError::TooManyRequests { reason, .. } => {
            Row::user(S::TOO_MANY_REQUESTS, "TooManyRequestsException")
                .with_reason(reason.as_str())
                .retry_after(1)
        }
        InvokeError::PayloadTooLarge { .. } => {
            Row::user(S::PAYLOAD_TOO_LARGE, "RequestTooLargeException")
        }
        InvokeError::StartFailed {
            error: StartError::Sandbox { .. },
            ..
        } => Row::service(S::INTERNAL_SERVER_ERROR, "ServiceException"),
        InvokeError::Broken { .. } | InvokeError::StartFailed { .. } => {
            Row::service(S::BAD_GATEWAY, "InvalidRuntimeException")
        }
        // Most often these break off a response whose status is out; the rows are for one that has not begun.
        InvokeError::BodyTimedOut { .. } => Row::user(S::BAD_GATEWAY, "Sandbox.Timedout"),
        InvokeError::BodyBroken { .. } => Row::user(S::BAD_GATEWAY, "Runtime.ExitError"),
        InvokeError::BodyRaised { .. } => Row::user(S::BAD_GATEWAY, "FunctionError"),
        InvokeError::UploadBroken { .. } => {
            Row::user(S::REQUEST_TIMEOUT, "RequestTimeoutException")
        }
        InvokeError::ShuttingDown => {
            Row::service(S::SERVICE_UNAVAILABLE, "ServiceException").retry_after(1)
        }
    }
}

impl AnswerError {
    /// What the function's error body says: Lambda's, as far as it is one.
    pub(crate) fn raised(body: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Raised {
            error_type: String,
            error_message: String,
        }
        let Raised {
            error_type,
            error_message,
        } = serde_json::from_slice(body).unwrap_or_default();
        Self::Function {
            error_type,
            error_message,
        }
    }

    /// An answer to another kind of request; the invoker gives none such.
    pub(crate) fn unfit() -> Self {
        Self::Malformed {
            problem: "it is no answer to this request".to_owned(),
        }
    }

    /// More headers than [`headers::COUNT_MAX`].
    pub(crate) fn too_many_headers() -> Self {
        Self::Malformed {
            problem: format!("it has more than {} headers", headers::COUNT_MAX),
        }
    }

    /// This error's row. All are 502, a timeout too, as AWS has it: the gateway did wait for long enough, the function did not
    /// answer. Callers tell them apart by `errorType`.
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
        let detail = match &self {
            Self::Function {
                error_type,
                error_message,
            } => (error_type.as_str(), error_message.clone()),
            other => (other.row().name, other.to_string()),
        };
        let mut reply = render(
            self.row(),
            "Internal Server Error",
            Some((detail.0, &detail.1)),
            id,
        );
        reply.headers_mut().insert(
            headers::FUNCTION_ERROR,
            HeaderValue::from_static("Unhandled"),
        );
        reply
    }
}

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

fn render(row: Row, message: &str, detail: Option<(&str, &str)>, id: &InvocationId) -> Reply {
    let body = ErrorBody {
        reason: row.reason,
        r#type: row.kind,
        message,
        error_type: detail.map(|(error_type, _)| error_type),
        error_message: detail.map(|(_, error_message)| error_message),
    };
    let json = serde_json::to_vec(&body).unwrap_or_default();
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

/// What every function's ARN begins with: there is one region and one account.
pub(crate) const ARN_PREFIX: &str = "arn:aws:lambda:local:000000000000:function:";

#[cfg(test)]
mod tests;
