//! Tokens: made, listed, revoked. Only administrators.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use pilot_model::api::{ApiError, CreatedToken, TokenInfo, TokenRequest};

use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;

/// Makes a token.
#[utoipa::path(
    post, path = "/_pilot/v1/tokens", operation_id = "create_token", tag = "tokens",
    request_body = TokenRequest,
    responses(
        (status = 200, description = "The token and its access key, which are shown only here", body = CreatedToken),
        (status = 400, description = "The request is invalid", body = ApiError),
    ),
)]
pub(crate) async fn create(
    State(admin): State<Admin>,
    body: Bytes,
) -> Result<Json<CreatedToken>, Failure> {
    let request: TokenRequest =
        super::from_json(&body).map_err(|problem| Failure::new("bad_request", problem))?;
    let created = blocking(move || admin.inner.parts.tokens.create(request)).await?;
    Ok(Json(created))
}

/// All tokens, without themselves.
#[utoipa::path(
    get, path = "/_pilot/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, description = "Every token that was made by a request", body = [TokenInfo])),
)]
pub(crate) async fn list(State(admin): State<Admin>) -> Json<Vec<TokenInfo>> {
    Json(blocking(move || admin.inner.parts.tokens.list()).await)
}

/// Makes a token invalid.
#[utoipa::path(
    delete, path = "/_pilot/v1/tokens/{token}", operation_id = "revoke_token", tag = "tokens",
    params(("token" = String, Path, description = "The token's name")),
    responses(
        (status = 204, description = "It is not valid any more"),
        (status = 400, description = "Not a name", body = ApiError),
        (status = 404, description = "No such token", body = ApiError),
    ),
)]
pub(crate) async fn revoke(
    State(admin): State<Admin>,
    Path(name): Path<String>,
) -> Result<StatusCode, Failure> {
    let shown: String = name.escape_debug().take(100).collect();
    if blocking(move || admin.inner.parts.tokens.revoke(&name)).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let problem = format!("there is no token named '{shown}': `pilot token list` lists all");
        Err(Failure::new("not_found", problem))
    }
}
