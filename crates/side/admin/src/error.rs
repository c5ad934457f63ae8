//! Errors of the control API. Every error is a status and an [`ApiError`]. One table maps codes to statuses.

use axum::Json;
use axum::body::to_bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pilot_model::FunctionName;
use pilot_model::api::ApiError;
use pilot_model::deployment::DeployError;

/// An error response.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    error: ApiError,
}

impl Failure {
    /// `code` must be in the table; it decides the status.
    pub(crate) fn new(code: &'static str, message: String) -> Self {
        Self {
            status: status(code),
            error: ApiError {
                code: code.to_owned(),
                message,
                detail: String::new(),
            },
        }
    }

    pub(crate) fn not_found(name: &FunctionName) -> Self {
        Self::new(
            "not_found",
            format!("there is no function named '{name}': deploy it, or see `pilot list`"),
        )
    }
}

impl From<DeployError> for Failure {
    fn from(error: DeployError) -> Self {
        let error = api_error(error);
        Self {
            status: status(&error.code),
            error,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.error)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"pilotlight\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from_static("5");
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// Gives errors that axum's extractors make, which are plain text, the form of all others: a body over the limit, a query or a path
/// that cannot be read.
pub(crate) async fn in_json(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    if !is_text || !response.status().is_client_error() {
        return response;
    }
    let status = response.status();
    let text = to_bytes(response.into_body(), TEXT_BYTES_MAX).await;
    let message = match text {
        Ok(text) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => status.to_string(),
    };
    let failure = match status {
        StatusCode::PAYLOAD_TOO_LARGE => Failure::new(
            "too_large",
            format!("the body is too long: a request has at most {BODY_BYTES_MAX} bytes here"),
        ),
        status => Failure {
            status,
            ..Failure::new("bad_request", message)
        },
    };
    failure.into_response()
}

/// Longest text of an error that is kept.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// Largest body of a request, except for uploads and secrets, which have limits of their own.
pub(crate) const BODY_BYTES_MAX: usize = 64 * 1024;

/// A deployment's error in the API's form.
pub(crate) fn api_error(error: DeployError) -> ApiError {
    match error {
        DeployError::Invalid {
            code,
            message,
            detail,
        } => ApiError {
            code: code.to_owned(),
            message,
            detail,
        },
        DeployError::Internal { message } => ApiError {
            code: "internal".to_owned(),
            message,
            detail: String::new(),
        },
    }
}

fn status(code: &str) -> StatusCode {
    match code {
        "unauthorized" => StatusCode::UNAUTHORIZED,
        "forbidden" => StatusCode::FORBIDDEN,
        "too_slow" => StatusCode::REQUEST_TIMEOUT,
        "in_use" | "broken" => StatusCode::CONFLICT,
        "busy" => StatusCode::SERVICE_UNAVAILABLE,
        "not_found" | "unknown_version" | "unknown_route" => StatusCode::NOT_FOUND,
        "method_not_allowed" => StatusCode::METHOD_NOT_ALLOWED,
        "too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "disk_full" => StatusCode::INSUFFICIENT_STORAGE,
        "internal" => StatusCode::INTERNAL_SERVER_ERROR,
        // bad_name, bad_request, bad_config, bad_archive, import_failed …: the request is wrong.
        _ => StatusCode::BAD_REQUEST,
    }
}
