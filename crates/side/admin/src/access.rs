//! What a caller may do with the control API. The gateway has found out who calls ([`Caller`]); a request without that is refused.

use std::sync::Arc;

use axum::extract::{RawPathParams, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pilot_model::FunctionName;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::ports::Actor;

use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;
use crate::shares::share_of;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteAccess {
    /// Everyone.
    Open,
    /// Everyone with a valid token.
    Known,
    /// Those whose token is for all functions and owners, whatever its role.
    Whole,
    /// Those with this role whose token is for all functions and owners.
    WholeRole(Role),
    /// Those with this role. If the path names a function, they must have it for this function.
    Role(Role),
}

/// A route, and who may use it.
#[derive(Debug, Clone)]
pub(crate) struct RouteRow {
    pub(crate) method: Method,
    /// Its parts in braces match any segment.
    pub(crate) path: &'static str,
    pub(crate) access: RouteAccess,
}

/// Refuses callers without the required rights.
pub(crate) async fn require(
    State((admin, access)): State<(Admin, RouteAccess)>,
    params: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let name = params
        .iter()
        .find_map(|(key, value)| (key == "name").then(|| value.to_owned()));
    match check(&admin, access, request.extensions().get(), name).await {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

async fn check(
    admin: &Admin,
    access: RouteAccess,
    caller: Option<&Caller>,
    name: Option<String>,
) -> Result<(), Failure> {
    if access == RouteAccess::Open {
        return Ok(());
    }
    let grant = match caller {
        Some(Caller::Known(grant)) => grant,
        Some(Caller::WrongToken) => {
            return Err(unauthorized("the token is not valid, or was revoked"));
        }
        Some(Caller::Nobody) | None => {
            return Err(unauthorized(
                "the control API requires a token over TCP: 'Authorization: Bearer TOKEN'; pilot reads it from --token or PILOT_TOKEN. \
                 On the daemon's machine, its socket needs none: leave --endpoint and PILOT_ENDPOINT out",
            ));
        }
    };
    let role = match access {
        RouteAccess::Role(role) => role,
        RouteAccess::WholeRole(role) if !grant.has(role) => return Err(denied(grant, role, None)),
        RouteAccess::Whole | RouteAccess::WholeRole(_) if grant.is_limited() => {
            let problem = format!(
                "the token '{}' is for some functions, and this is about all of them",
                grant.name
            );
            return Err(Failure::new("forbidden", problem));
        }
        RouteAccess::Whole | RouteAccess::WholeRole(_) | RouteAccess::Known | RouteAccess::Open => {
            return Ok(());
        }
    };
    let permitted = match &name {
        Some(function) => grant.permits(role, function),
        None => grant.has(role),
    };
    if !permitted {
        return Err(denied(grant, role, name.as_deref()));
    }
    match name.map(|name| name.parse()) {
        Some(Ok(function)) => owns(admin, grant, &function).await,
        // The handler refuses a name that is not valid.
        Some(Err(_)) | None => Ok(()),
    }
}

/// Whether a token that has an owner may touch this function: it is the owner's, or does not exist.
pub(crate) async fn owns(
    admin: &Admin,
    grant: &Grant,
    function: &FunctionName,
) -> Result<(), Failure> {
    let Some(owner) = grant.owner.as_ref().filter(|_| !grant.is_admin()) else {
        return Ok(());
    };
    let control = Arc::clone(&admin.inner.parts.control);
    let name = function.clone();
    let found = blocking(move || control.describe(&name)).await;
    match found {
        Some(found) if found.config.owner() != owner => Err(Failure::new(
            "forbidden",
            format!(
                "the token '{}' is for functions of '{owner}', and '{function}' has another owner",
                grant.name
            ),
        )),
        _ => Ok(()),
    }
}

/// The grant of a caller that has one.
pub(crate) fn known(caller: &Caller) -> Result<&Arc<Grant>, Failure> {
    match caller {
        Caller::Known(grant) => Ok(grant),
        Caller::WrongToken | Caller::Nobody => Err(unauthorized("nobody is known")),
    }
}

/// What the control plane needs to know of a caller that changes a function.
pub(crate) fn actor(admin: &Admin, grant: &Arc<Grant>) -> Actor {
    let (tokens, of) = (Arc::clone(&admin.inner.parts.tokens), Arc::clone(grant));
    Actor {
        share: share_of(&Caller::Known(Arc::clone(grant))),
        only_of: grant.owner.clone().filter(|_| !grant.is_admin()),
        is_permitted: Arc::new(move || !tokens.is_revoked(&of)),
    }
}

fn denied(grant: &Grant, role: Role, function: Option<&str>) -> Failure {
    let function: String = function.map_or_else(String::new, |name| {
        format!(
            " for '{}'",
            name.escape_debug().take(100).collect::<String>()
        )
    });
    Failure::new(
        "forbidden",
        format!(
            "the token '{}' does not have the role '{}'{function}; an administrator makes tokens with `pilot token create`",
            grant.name,
            role.as_str()
        ),
    )
}

fn unauthorized(message: &str) -> Failure {
    Failure::new("unauthorized", message.to_owned())
}
