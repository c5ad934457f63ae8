//! The router of the control API: one table of routes, each with the required authorisation.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Router};

use pilot_model::access::Role;

use crate::access::{RouteAccess, RouteRow, require};
use crate::admin::Admin;
use crate::error::{BODY_BYTES_MAX, Failure, in_json};
use crate::openapi::{self, Documents, page};
use crate::routes::{
    asynchronous, costs, deploy, functions, layers, logs, process, prune, secrets, tokens,
};

impl Admin {
    /// Everything below `/_pilot/`, and `/metrics`, `/healthz`, `/readyz`.
    pub fn router(&self) -> Router {
        let mut router = Router::new();
        let mut rows = Vec::new();
        for Route { row, handler } in routes() {
            let handler = handler.layer(from_fn_with_state((self.clone(), row.access), require));
            router = router.route(row.path, handler);
            rows.push(row);
        }
        router
            .layer(Extension(Arc::new(Documents::of(rows))))
            .fallback(unknown_route)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(map_response(in_json))
            .with_state(self.clone())
    }
}

/// A row of the table of routes, and what answers there.
struct Route {
    row: RouteRow,
    handler: MethodRouter<Admin>,
}

/// The table of routes, without what answers there.
pub(crate) fn rows() -> impl Iterator<Item = RouteRow> {
    routes().into_iter().map(|route| route.row)
}

/// The table of routes. A test compares the OpenAPI document with it.
fn routes() -> Vec<Route> {
    use RouteAccess::{Known, Open, Whole};
    const DEPLOY: RouteAccess = RouteAccess::Role(Role::Deploy);
    const DEPLOY_ALL: RouteAccess = RouteAccess::WholeRole(Role::Deploy);
    const ADMIN: RouteAccess = RouteAccess::Role(Role::Admin);
    let route = |method, path, access, handler| Route {
        row: RouteRow {
            method,
            path,
            access,
        },
        handler,
    };
    vec![
        route(Method::GET, FUNCTIONS, DEPLOY, get(functions::list)),
        route(Method::GET, FUNCTION, DEPLOY, get(functions::describe)),
        route(
            Method::PUT,
            FUNCTION,
            DEPLOY,
            // The archive is streamed and has its own limit.
            put(deploy::deploy).layer(DefaultBodyLimit::disable()),
        ),
        route(Method::DELETE, FUNCTION, DEPLOY, delete(functions::remove)),
        route(Method::POST, SCALE, DEPLOY, post(functions::scale)),
        route(Method::POST, ROLLBACK, DEPLOY, post(functions::rollback)),
        route(Method::GET, LAYER, DEPLOY, get(layers::find)),
        route(
            Method::PUT,
            LAYER,
            DEPLOY,
            // As a deployment.
            put(layers::add).layer(DefaultBodyLimit::disable()),
        ),
        route(Method::GET, LOGS, DEPLOY, get(logs::logs)),
        route(Method::POST, COST, DEPLOY, post(costs::cost)),
        route(Method::GET, USAGE, DEPLOY, get(costs::usage)),
        route(
            Method::POST,
            COST_OF_ALL,
            DEPLOY_ALL,
            post(costs::cost_of_all),
        ),
        route(
            Method::GET,
            USAGE_OF_ALL,
            DEPLOY_ALL,
            get(costs::usage_of_all),
        ),
        route(Method::GET, ASYNC, DEPLOY, get(asynchronous::list)),
        route(Method::GET, ASYNC_ONE, DEPLOY, get(asynchronous::show)),
        route(
            Method::DELETE,
            ASYNC_ONE,
            DEPLOY,
            delete(asynchronous::cancel),
        ),
        route(Method::GET, DLQ, DEPLOY, get(asynchronous::dead_letters)),
        route(Method::POST, REDRIVE, DEPLOY, post(asynchronous::redrive)),
        route(Method::POST, PURGE, DEPLOY, post(asynchronous::purge)),
        route(Method::PUT, SECRET, DEPLOY, put(secrets::set)),
        route(Method::GET, SECRETS, DEPLOY, get(secrets::list)),
        route(Method::DELETE, SECRET, DEPLOY, delete(secrets::remove)),
        route(Method::POST, PRUNE, ADMIN, post(prune::prune)),
        route(Method::POST, TOKENS, ADMIN, post(tokens::create)),
        route(Method::GET, TOKENS, ADMIN, get(tokens::list)),
        route(Method::DELETE, TOKEN, ADMIN, delete(tokens::revoke)),
        route(Method::GET, VERSION, Known, get(process::version)),
        route(Method::GET, OPENAPI, Known, get(openapi::openapi)),
        // A browser cannot send the token, and the page says nothing about this daemon.
        route(Method::GET, DOCS, Open, get(page::page)),
        route(Method::GET, "/metrics", Whole, get(process::metrics)),
        route(Method::GET, "/healthz", Open, get(process::healthz)),
        route(Method::GET, "/readyz", Open, get(process::readyz)),
    ]
}

async fn unknown_route(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    let known: Vec<&str> = rows().map(|row| row.path).collect();
    let hint = pilot_model::nearest::nearest(&path, known.into_iter())
        .map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Failure::new(
        "unknown_route",
        format!(
            "there is no route {method} {path}{hint}; a function is called at /fn/NAME/, and {OPENAPI} lists the control API"
        ),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    let taken: Vec<Method> = rows()
        .filter(|row| is_at(row.path, uri.path()))
        .map(|row| row.method)
        .collect();
    let taken: Vec<&str> = taken.iter().map(Method::as_str).collect();
    Failure::new(
        "method_not_allowed",
        format!(
            "{path} does not accept {method}; it accepts {}",
            taken.join(", ")
        ),
    )
}

/// Whether a path matches a route, whose `{parts}` match any segment.
fn is_at(route: &str, path: &str) -> bool {
    let (route, path) = (route.split('/'), path.split('/'));
    route.clone().count() == path.clone().count()
        && route
            .zip(path)
            .all(|(wanted, part)| wanted.starts_with('{') || wanted == part)
}

const FUNCTIONS: &str = "/_pilot/v1/functions";
const FUNCTION: &str = "/_pilot/v1/functions/{name}";
const SCALE: &str = "/_pilot/v1/functions/{name}/scale";
const ROLLBACK: &str = "/_pilot/v1/functions/{name}/rollback";
const LAYER: &str = "/_pilot/v1/layers/{id}";
const LOGS: &str = "/_pilot/v1/functions/{name}/logs";
const COST: &str = "/_pilot/v1/functions/{name}/cost";
const USAGE: &str = "/_pilot/v1/functions/{name}/usage";
const COST_OF_ALL: &str = "/_pilot/v1/cost";
const USAGE_OF_ALL: &str = "/_pilot/v1/usage";
const ASYNC: &str = "/_pilot/v1/async";
const ASYNC_ONE: &str = "/_pilot/v1/async/{id}";
const DLQ: &str = "/_pilot/v1/dlq";
const REDRIVE: &str = "/_pilot/v1/dlq/redrive";
const PURGE: &str = "/_pilot/v1/dlq/purge";
const SECRETS: &str = "/_pilot/v1/secrets";
const SECRET: &str = "/_pilot/v1/secrets/{secret}";
const PRUNE: &str = "/_pilot/v1/prune";
const TOKENS: &str = "/_pilot/v1/tokens";
const TOKEN: &str = "/_pilot/v1/tokens/{token}";
const VERSION: &str = "/_pilot/v1/version";
const OPENAPI: &str = "/_pilot/v1/openapi.json";
const DOCS: &str = "/_pilot/v1/docs";
