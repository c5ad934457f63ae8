//! Errors of the control API. Every error is a status and an [`ApiError`]. One table maps codes to statuses.

use axum::Json;
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
        "in_use" => StatusCode::CONFLICT,
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
