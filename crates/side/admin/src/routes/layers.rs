//! Layers: whether one is there, and its upload. A layer is identified by the hash over its content, so an upload can be repeated
//! and changes nothing that is there.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use futures_util::StreamExt;
use pilot_model::LayerId;
use pilot_model::access::Caller;
use pilot_model::api::{ApiError, LayerInfo};

use crate::admin::Admin;
use crate::error::Failure;

/// A layer.
#[utoipa::path(
    get, path = "/_pilot/v1/layers/{id}", tag = "layers",
    params(("id" = String, Path, description = "The SHA-256 over its content, 64 hexadecimal digits")),
    responses(
        (status = 200, description = "It is there, and stays for the deployment that follows", body = LayerInfo),
        (status = 400, description = "Not an id", body = ApiError),
        (status = 404, description = "It must be uploaded", body = ApiError),
    ),
)]
pub(crate) async fn find(
    State(admin): State<Admin>,
    Path(id): Path<String>,
) -> Result<Json<LayerInfo>, Failure> {
    let id = layer_id(&id)?;
    let found = admin.inner.parts.control.layer(&id).await?;
    found.map(Json).ok_or_else(|| {
        Failure::new(
            "not_found",
            format!("there is no layer {id}: upload it with PUT"),
        )
    })
}

/// Uploads a layer.
#[utoipa::path(
    put, path = "/_pilot/v1/layers/{id}", tag = "layers",
    params(("id" = String, Path, description = "The SHA-256 over its content, 64 hexadecimal digits")),
    request_body(content = super::RawBody, description = "A gzip-compressed tar of its files", content_type = "application/gzip"),
    responses(
        (status = 200, description = "It is there, and stays for the deployment that follows", body = LayerInfo),
        (status = 400, description = "The archive is invalid, or its content has another id", body = ApiError),
        (status = 413, description = "The layer is over a limit", body = ApiError),
        (status = 507, description = "The disk is full", body = ApiError),
    ),
)]
pub(crate) async fn add(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<LayerInfo>, Failure> {
    let id = layer_id(&id)?;
    let control = &admin.inner.parts.control;
    let mut spool = admin.spool(&caller, "layer").await?;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = spool.next(chunks.next()).await? {
        let chunk = chunk.map_err(|error| {
            Failure::new("bad_request", format!("the upload broke off: {error}"))
        })?;
        spool.add(chunk).await?;
    }
    let (file, _share) = spool.finish().await?;
    Ok(Json(control.add_layer(id, file).await?))
}

fn layer_id(text: &str) -> Result<LayerId, Failure> {
    text.parse()
        .map_err(|error: pilot_model::layer::InvalidLayer| {
            Failure::new("bad_name", error.to_string())
        })
}
