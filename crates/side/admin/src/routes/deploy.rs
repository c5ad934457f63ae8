//! A deployment. The upload is read and its limits are checked. Then the response has a line of JSON per event, as it happens.
//! After the upload, the deployment runs to its end even if the client disconnects.

use std::fs::File;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError, MultipartRejection};
use axum::extract::{Multipart, Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::api::{ApiError, DeployEvent};
use pilot_model::asynchronous::Destination;
use pilot_model::deployment::{DeployError, Progress};
use pilot_model::ports::{Actor, Deployment};
use pilot_model::size::Size;
use pilot_model::{FunctionName, FunctionSpec};
use tokio::sync::{mpsc, oneshot};

use super::function_name;
use super::pace::Pace;
use crate::access::{actor, known, owns};
use crate::admin::Admin;
use crate::error::{Failure, api_error};
use crate::shares::{Share, share_of_owner};

/// The form of a deployment, for the OpenAPI document.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the form; the form is read part by part"
)]
pub(crate) struct DeployForm {
    /// The function's configuration.
    spec: FunctionSpec,
    /// The code: a gzip-compressed tar.
    #[schema(value_type = String, format = Binary)]
    code: Vec<u8>,
}

/// Deploys a function atomically.
#[utoipa::path(
    put, path = "/_pilot/v1/functions/{name}", tag = "functions",
    params(("name" = String, Path, description = "The function")),
    request_body(content = DeployForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, description = "A line of JSON per event; the last is done or failed", body = DeployEvent, content_type = "application/x-ndjson"),
        (status = 400, description = "The form is invalid", body = ApiError),
        (status = 413, description = "The archive is over the limit", body = ApiError),
        (status = 503, description = "Too many uploads or deployments run or wait", body = ApiError),
        (status = 507, description = "The disk is full", body = ApiError),
    ),
)]
pub(crate) async fn deploy(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Response, Failure> {
    let name = function_name(&name)?;
    let form = form.map_err(|error| bad_form(&error.body_text()))?;
    let mut upload = read_form(&admin, &caller, form).await?;
    let grant = known(&caller)?;
    upload.spec.owner = owner(grant, &name, upload.spec.owner)?;
    // Again, because the function may have got an owner while the upload arrived.
    owns(&admin, grant, &name).await?;
    super::secrets::resolve(&admin, grant, &name, &mut upload.spec)?;
    may_invoke(grant, &mut upload.spec)?;
    // And once more when its turn has come: another deployment of the same name may be before it.
    let mut actor = actor(&admin, grant);
    if let Some(owner) = upload.spec.owner.as_ref().filter(|_| grant.is_admin()) {
        // An administrator may deploy for many. They do not wait for each other.
        actor.share = share_of_owner(owner);
    }
    let mut place = admin.inner.places.of(&actor.share);
    if !place.grow(1) {
        let problem = format!(
            "too many deployments run or wait, also of {}: try again when some have ended",
            place.owner()
        );
        return Err(Failure::new("busy", problem));
    }
    let body = start(&admin, name, upload, actor, place);
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// The owner of a deployment: an administrator chooses it; a token that has an owner gives it to everything that it deploys; any other
/// token cannot choose one, because functions of one owner reuse each other's runtimes.
fn owner(
    grant: &Grant,
    function: &FunctionName,
    wanted: Option<String>,
) -> Result<Option<String>, Failure> {
    if grant.is_admin() {
        return Ok(wanted);
    }
    let own = grant.owner.as_deref().unwrap_or(function.as_str());
    match wanted {
        Some(wanted) if wanted != own => Err(Failure::new(
            "forbidden",
            format!(
                "the token '{}' may only deploy for the owner '{own}', not for '{}': remove the key owner",
                grant.name,
                wanted.escape_debug().take(100).collect::<String>()
            ),
        )),
        wanted => Ok(grant.owner.clone().or(wanted)),
    }
}

/// What a function may invoke is at most what its deployer may: a limited token names no others, and one that has an owner stays with
/// the functions of this owner.
fn may_invoke(grant: &Grant, spec: &mut FunctionSpec) -> Result<(), Failure> {
    spec.invokes_own_only = grant.owner.is_some() && !grant.is_admin();
    let is_for_all = grant.functions.is_empty();
    let destinations = spec
        .asynchronous
        .iter()
        .flat_map(|spec| [&spec.on_success, &spec.on_failure]);
    let mut destinations = destinations.flatten();
    let is_file = |text: &str| matches!(text.parse(), Ok(Destination::File(_)));
    if let Some(text) =
        destinations.find(|text| !is_file(text) && !grant.permits(Role::Invoke, text))
    {
        return Err(Failure::new(
            "forbidden",
            format!(
                "the token '{}' may not invoke '{}', so it may not be a destination: remove it from the table async, or deploy with a token \
                 that has the role 'invoke' for it",
                grant.name,
                text.escape_debug().take(100).collect::<String>()
            ),
        ));
    }
    let refused = spec.invokes.iter().find(|entry| match entry.contains('*') {
        true => !(grant.is_admin() || grant.has(Role::Invoke) && is_for_all),
        false => !grant.permits(Role::Invoke, entry),
    });
    let Some(entry) = refused else {
        return Ok(());
    };
    Err(Failure::new(
        "forbidden",
        format!(
            "the token '{}' may not invoke '{}', so a function that it deploys may not either: remove it from the key invokes, or deploy \
             with a token that has the role 'invoke' for it",
            grant.name,
            entry.escape_debug().take(100).collect::<String>()
        ),
    ))
}

/// The parts of a form.
struct Upload {
    spec: FunctionSpec,
    code: File,
    share: Share,
}

async fn read_form(admin: &Admin, caller: &Caller, mut form: Multipart) -> Result<Upload, Failure> {
    let (mut spec, mut code) = (None, None);
    // The code has a pace of its own, so each part begins a new one.
    while let Some(field) = Pace::new()
        .next(form.next_field())
        .await?
        .map_err(|error| broken(&error))?
    {
        match field.name() {
            // Otherwise a client could send one after the other without end.
            Some(name @ "spec") if spec.is_some() => return Err(twice(name)),
            Some(name @ "code") if code.is_some() => return Err(twice(name)),
            Some("spec") => {
                let text = read_spec(field).await?;
                spec = Some(parse_spec(&text)?);
            }
            Some("code") => code = Some(read_code(admin, caller, field).await?),
            other => {
                let name: String = other.unwrap_or("").escape_debug().take(50).collect();
                return Err(bad_form(&format!("it has a part '{name}'")));
            }
        }
    }
    match (spec, code) {
        (Some(spec), Some((code, share))) => Ok(Upload { spec, code, share }),
        (None, _) => Err(bad_form("it has no part 'spec'")),
        (_, None) => Err(bad_form("it has no part 'code'")),
    }
}

async fn read_spec(mut field: Field<'_>) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::new();
    let mut pace = Pace::new();
    while let Some(chunk) = pace
        .next(field.chunk())
        .await?
        .map_err(|error| broken(&error))?
    {
        pace.came(chunk.len());
        if bytes.len() + chunk.len() > SPEC_BYTES_MAX {
            let problem = format!(
                "the part 'spec' is larger than the limit of {}",
                Size(SPEC_BYTES_MAX as u64)
            );
            return Err(Failure::new("too_large", problem));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

async fn read_code(
    admin: &Admin,
    caller: &Caller,
    mut field: Field<'_>,
) -> Result<(File, Share), Failure> {
    let mut spool = admin.spool(caller, "code").await?;
    while let Some(chunk) = spool
        .next(field.chunk())
        .await?
        .map_err(|error| broken(&error))?
    {
        spool.add(chunk).await?;
    }
    spool.finish().await
}

fn parse_spec(text: &[u8]) -> Result<FunctionSpec, Failure> {
    super::from_json(text).map_err(|problem| {
        Failure::new(
            "bad_config",
            format!("the part 'spec' is invalid: {problem}"),
        )
    })
}

/// Runs the deployment in a separate task, and returns the response body that reports it.
fn start(admin: &Admin, name: FunctionName, upload: Upload, actor: Actor, place: Share) -> Body {
    let (line, lines) = mpsc::channel::<Bytes>(LINES_MAX);
    let (last, done) = oneshot::channel::<Bytes>();
    let share = upload.share;
    let progress = Arc::new(move |progress: Progress| {
        // A client that does not read misses lines, but never the last one.
        let _ = line.try_send(json_line(&DeployEvent::Progress(progress)));
    });
    let deployment = admin.inner.parts.control.deploy(Deployment {
        name,
        spec: upload.spec,
        archive: upload.code,
        actor,
        progress,
    });
    let mut deployments = admin.inner.deployments.lock();
    while deployments.try_join_next().is_some() {}
    deployments.spawn(async move {
        let event = match deployment.await {
            Ok(report) => DeployEvent::Done(Box::new(report)),
            Err(error) => DeployEvent::Failed(api_error(error)),
        };
        drop((place, share));
        // The client may have disconnected.
        let _ = last.send(json_line(&event));
    });
    let lines = Lines {
        lines,
        last: Some(done),
    };
    Body::from_stream(stream::unfold(lines, Lines::next))
}

/// The progress, and then the outcome.
struct Lines {
    lines: mpsc::Receiver<Bytes>,
    last: Option<oneshot::Receiver<Bytes>>,
}

impl Lines {
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        // Ends when the deployment drops its sender, which it does at its end.
        if let Some(line) = self.lines.recv().await {
            return Some((Ok(line), self));
        }
        let last = self.last.take()?.await.unwrap_or_else(|_| {
            json_line(&DeployEvent::Failed(api_error(DeployError::Internal {
                message: "the deployment ended without a result; see the daemon's log".to_owned(),
            })))
        });
        Some((Ok(last), self))
    }
}

fn json_line(event: &DeployEvent) -> Bytes {
    let mut line = serde_json::to_vec(event).unwrap_or_else(|error| {
        // These are our own types, with strings and numbers only, so this does not happen.
        tracing::error!(%error, "a deployment's event cannot be written as JSON");
        Vec::new()
    });
    line.push(b'\n');
    line.into()
}

fn broken(error: &MultipartError) -> Failure {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Failure::new("too_large", error.body_text());
    }
    bad_form(&error.body_text())
}

fn twice(part: &str) -> Failure {
    bad_form(&format!("it has the part '{part}' twice"))
}

fn bad_form(problem: &str) -> Failure {
    Failure::new(
        "bad_request",
        format!(
            "the form is invalid ({problem}); send multipart/form-data with the parts 'spec' (JSON) and 'code' (tar.gz)"
        ),
    )
}

/// How many progress lines a slow client may lag behind.
const LINES_MAX: usize = 256;
const SPEC_BYTES_MAX: usize = 256 * 1024;
