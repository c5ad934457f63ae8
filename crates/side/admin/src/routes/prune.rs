//! Removing what nothing uses.

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use pilot_model::api::{ApiError, PruneReport, PruneRequest};

use crate::admin::Admin;
use crate::error::Failure;

/// Removes what nothing uses.
#[utoipa::path(
    post, path = "/_pilot/v1/prune", tag = "daemon",
    request_body = Option<PruneRequest>,
    responses(
        (status = 200, description = "What was removed, or would be", body = PruneReport),
        (status = 400, description = "The request is invalid", body = ApiError),
        (status = 409, description = "A backup is being made", body = ApiError),
    ),
)]
pub(crate) async fn prune(
    State(admin): State<Admin>,
    body: Bytes,
) -> Result<Json<PruneReport>, Failure> {
    let request: PruneRequest = super::from_optional_json(&body).map_err(|problem| {
        let form = r#"{"dry_run": BOOL, "versions": BOOL, "older_than_s": N}, or nothing"#;
        Failure::new("bad_request", format!("{problem}; send {form}"))
    })?;
    let pruned = admin.inner.parts.control.prune(request).await?;
    Ok(Json(pruned))
}
