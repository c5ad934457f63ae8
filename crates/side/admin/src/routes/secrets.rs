//! Secrets: set, listed, removed. Nothing returns a value.
//!
//! A token without limits is for all secrets. One that has an owner is for those of its owner; one that is for some functions is for
//! those whose owner is such a function, which is what functions without an owner have.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use pilot_model::access::{Caller, Grant, check_owner};
use pilot_model::api::{ApiError, SecretInfo};
use pilot_model::ports::{SecretUser, Secrets as _};
use pilot_model::secret::{SecretSpec, VALUE_BYTES_MAX, as_variable};
use pilot_model::{FunctionName, FunctionSpec, SecretId};
use serde::Deserialize;

use crate::access::known;
use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;
use crate::secrets::Stored;

/// Which secret, besides its name.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SecretQuery {
    /// The owner of the functions that may use it. Left out: the token's; without one, the secret is shared by all owners.
    owner: Option<String>,
    /// For a removal: even if functions use it.
    #[serde(default)]
    force: bool,
}

/// Sets a secret's value. The workers of functions that use it are replaced.
#[utoipa::path(
    put, path = "/_pilot/v1/secrets/{secret}", operation_id = "set_secret", tag = "secrets",
    params(("secret" = String, Path, description = "The secret's name"), SecretQuery),
    request_body(content = super::RawBody, content_type = "application/octet-stream", description = "The value"),
    responses(
        (status = 200, description = "It is set", body = SecretInfo),
        (status = 400, description = "The name or the value is not valid", body = ApiError),
        (status = 413, description = "The value is too long", body = ApiError),
    ),
)]
pub(crate) async fn set(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Query(query): Query<SecretQuery>,
    Extension(caller): Extension<Caller>,
    value: Result<Bytes, BytesRejection>,
) -> Result<Json<SecretInfo>, Failure> {
    let value = value.map_err(|_| {
        let problem = format!("a secret has at most {VALUE_BYTES_MAX} bytes");
        Failure::new("too_large", problem)
    })?;
    let set = move || {
        let id = secret_id(&caller, &name, query.owner)?;
        let users = own_users(&admin, &caller, &id)?;
        if let Some((user, problem)) = unfit(&users, &value) {
            return Err(Failure::new("bad_request", format!("{user} {problem}")));
        }
        let parts = &admin.inner.parts;
        let stored = parts.secrets.set(id.clone(), &value)?;
        renew(&admin, &users);
        tracing::info!(secret = %id, "a secret was set");
        Ok(info(id, &stored, users))
    };
    blocking(set).await.map(Json)
}

/// All secrets that the token is for, without their values.
#[utoipa::path(
    get, path = "/_pilot/v1/secrets", operation_id = "list_secrets", tag = "secrets",
    responses((status = 200, description = "Their names and who uses them", body = [SecretInfo])),
)]
pub(crate) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Vec<SecretInfo>>, Failure> {
    let list = move || {
        let grant = known(&caller)?;
        let parts = &admin.inner.parts;
        let listed = parts.secrets.list().into_iter();
        let listed = listed.filter(|(id, _)| is_for(grant, &id.owner));
        Ok(listed
            .map(|(id, stored)| {
                let users = parts.control.users(&id);
                info(id, &stored, users)
            })
            .collect())
    };
    blocking(list).await.map(Json)
}

/// Removes a secret.
#[utoipa::path(
    delete, path = "/_pilot/v1/secrets/{secret}", operation_id = "remove_secret", tag = "secrets",
    params(("secret" = String, Path, description = "The secret's name"), SecretQuery),
    responses(
        (status = 204, description = "It is removed"),
        (status = 400, description = "Not a name, or a parameter is invalid", body = ApiError),
        (status = 404, description = "No such secret", body = ApiError),
        (status = 409, description = "Functions use it", body = ApiError),
    ),
)]
pub(crate) async fn remove(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Query(query): Query<SecretQuery>,
    Extension(caller): Extension<Caller>,
) -> Result<StatusCode, Failure> {
    let remove = move || {
        let id = secret_id(&caller, &name, query.owner)?;
        let users = own_users(&admin, &caller, &id)?;
        let parts = &admin.inner.parts;
        if !parts.secrets.has(&id) {
            let problem = format!("there is no secret {id}: `pilot secret list` lists all");
            return Err(Failure::new("not_found", problem));
        }
        if !users.is_empty() && !query.force {
            let names: Vec<&str> = users.iter().map(|user| user.function.as_str()).collect();
            let problem = format!(
                "the secret {id} is used by {} (the live version, or one that is kept for a rollback): deploy without it, or use --force; \
                 then their next workers do not start",
                names.join(", ")
            );
            return Err(Failure::new("in_use", problem));
        }
        parts.secrets.remove(&id)?;
        renew(&admin, &users);
        tracing::info!(secret = %id, "a secret was removed");
        Ok(StatusCode::NO_CONTENT)
    };
    blocking(remove).await
}

/// Decides of which owner the secrets of a deployment are: its own, or shared ones, which limited tokens may not use. All of them must
/// be there.
pub(super) fn resolve(
    admin: &Admin,
    grant: &Grant,
    name: &FunctionName,
    spec: &mut FunctionSpec,
) -> Result<(), Failure> {
    let secrets = &admin.inner.parts.secrets;
    let owner = spec.owner.as_deref().unwrap_or(name.as_str());
    spec.shared_secrets.clear();
    for used in spec.secrets.values() {
        let secret = match used {
            SecretSpec::Name(secret) => secret,
            SecretSpec::Table(table) => &table.secret,
        };
        // The check below refuses a name that is not valid.
        let Ok(parsed) = secret.parse() else { continue };
        let own = SecretId {
            owner: owner.to_owned(),
            name: parsed,
        };
        let shared = SecretId {
            owner: String::new(),
            name: own.name.clone(),
        };
        if secrets.has(&own) || grant.is_limited() {
            continue;
        }
        // One that is nowhere would be shared, which is what an administrator's `pilot secret set` makes.
        spec.shared_secrets.insert(shared.name.as_str().to_owned());
    }
    // The deployment reports what else is wrong with the configuration.
    let Ok(config) = spec.check(name) else {
        return Ok(());
    };
    match secrets.values(&config.secrets) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new("bad_secret", error.to_string())),
    }
}

/// Whether a token is for the secrets of this owner.
fn is_for(grant: &Grant, owner: &str) -> bool {
    !grant.is_limited() || owners(grant).contains(&owner)
}

/// The owners that a limited token is for.
fn owners(grant: &Grant) -> Vec<&str> {
    match &grant.owner {
        Some(owner) => vec![owner],
        None => grant.functions.iter().map(FunctionName::as_str).collect(),
    }
}

fn secret_id(caller: &Caller, name: &str, owner: Option<String>) -> Result<SecretId, Failure> {
    let grant = known(caller)?;
    let name = name
        .parse()
        .map_err(|problem| Failure::new("bad_name", problem))?;
    let owner = owner.unwrap_or_default();
    if !owner.is_empty() {
        check_owner(&owner)
            .map_err(|problem| Failure::new("bad_request", format!("owner {problem}")))?;
    }
    if is_for(grant, &owner) {
        return Ok(SecretId { owner, name });
    }
    let own = owners(grant);
    match (owner.is_empty(), own.as_slice()) {
        (true, [own]) => Ok(SecretId {
            owner: (*own).to_owned(),
            name,
        }),
        _ => Err(Failure::new(
            "forbidden",
            format!(
                "the token '{}' is for secrets of the owner {}: say which with --owner",
                grant.name,
                own.join(" or ")
            ),
        )),
    }
}

/// The functions that use a secret. A token that is for some functions may not change a secret that others use, too.
fn own_users(admin: &Admin, caller: &Caller, id: &SecretId) -> Result<Vec<SecretUser>, Failure> {
    let grant = known(caller)?;
    let users = admin.inner.parts.control.users(id);
    let is_foreign = |user: &&SecretUser| {
        !grant.functions.is_empty() && !grant.functions.contains(&user.function)
    };
    if !grant.is_admin()
        && let Some(foreign) = users.iter().find(is_foreign)
    {
        let problem = format!(
            "the token '{}' is not for '{}', which uses the secret {id}, too",
            grant.name, foreign.function
        );
        return Err(Failure::new("forbidden", problem));
    }
    Ok(users)
}

/// The first use of a value as a variable that it cannot be.
fn unfit(users: &[SecretUser], value: &[u8]) -> Option<(String, &'static str)> {
    let problem = as_variable(value).err()?;
    let (user, variable) = users
        .iter()
        .find_map(|user| Some((&user.function, user.variable.as_ref()?)))?;
    let user = format!("the function '{user}' has the secret as the variable {variable}, and");
    Some((user, problem))
}

fn renew(admin: &Admin, users: &[SecretUser]) {
    for user in users {
        admin.inner.parts.control.renew(&user.function);
    }
}

fn info(id: SecretId, stored: &Stored, users: Vec<SecretUser>) -> SecretInfo {
    SecretInfo {
        name: id.name,
        owner: id.owner,
        created_unix_s: stored.created_unix_s,
        changed_unix_s: stored.changed_unix_s,
        used_by: users.into_iter().map(|user| user.function).collect(),
    }
}
