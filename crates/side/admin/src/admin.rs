//! `Admin`: what the control API's handlers share, and the router made of them.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use parking_lot::Mutex;
use pilot_model::ports::{ControlPlane, TemplateMemory};
use pilot_telemetry::Metrics;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::{Access, Token, require_token};
use crate::error::Failure;
use crate::observe::Observations;
use crate::routes::{deploy, functions, logs, process};

/// How the control API behaves.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// Asked of every call, if there is one.
    pub token: Option<Token>,
    /// Whether `/metrics` asks for it too.
    pub metrics: Access,
    /// Largest archive taken, bytes.
    pub archive_bytes_max: usize,
    /// Deployments whose archives may be in memory at the same time; more wait.
    pub uploads_max: usize,
    /// The daemon's version.
    pub version: &'static str,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            token: None,
            metrics: Access::Open,
            archive_bytes_max: 50 << 20,
            uploads_max: 4,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// What the control API translates to.
pub struct AdminParts {
    /// Deploys, lists, removes.
    pub control: Arc<dyn ControlPlane>,
    /// Counts and logs.
    pub observations: Arc<Observations>,
    /// What `/metrics` prints.
    pub metrics: Arc<Metrics>,
    /// The templates that are up.
    pub templates: Arc<dyn Fn() -> Vec<TemplateMemory> + Send + Sync>,
    /// Whether the daemon can take requests.
    pub readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

impl fmt::Debug for AdminParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminParts")
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// Whether requests are taken.
    pub ready: bool,
    /// If not, why; otherwise what is not enforced or does not work.
    pub reasons: Vec<String>,
}

/// The control API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admin {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) parts: AdminParts,
    pub(crate) config: AdminConfig,
    /// One permit for each archive in memory.
    pub(crate) uploads: Arc<Semaphore>,
    /// Deployments under way: they go on when their clients hang up. Guards the set alone.
    pub(crate) deployments: Mutex<JoinSet<()>>,
}

impl Admin {
    /// Puts the control API together.
    #[must_use]
    pub fn new(parts: AdminParts, config: AdminConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                uploads: Arc::new(Semaphore::new(config.uploads_max)),
                parts,
                config,
                deployments: Mutex::default(),
            }),
        }
    }

    /// Everything below `/_pilot/`, and `/metrics`, `/healthz`, `/readyz`.
    pub fn router(&self) -> Router {
        let config = &self.inner.config;
        let metrics_token = match config.metrics {
            Access::Open => None,
            Access::Token => config.token.clone(),
        };
        let mut router = Router::new();
        for route in routes() {
            let token = match route.access {
                RouteAccess::Token => config.token.clone(),
                RouteAccess::Metrics => metrics_token.clone(),
                RouteAccess::Open => None,
            };
            let handler = route
                .handler
                .layer(from_fn_with_state(token, require_token));
            router = router.route(route.path, handler);
        }
        router
            .fallback(unknown_route)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(self.clone())
    }

    /// Waits for the deployments under way.
    pub async fn finish(&self) {
        let mut deployments = std::mem::take(&mut *self.inner.deployments.lock());
        while deployments.join_next().await.is_some() {}
    }
}

/// A line of the table of routes.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    access: RouteAccess,
    handler: MethodRouter<Admin>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteAccess {
    Token,
    Metrics,
    Open,
}

/// The one table of routes. The OpenAPI document is compared with it.
pub(crate) fn routes() -> Vec<Route> {
    use RouteAccess::{Metrics, Open, Token};
    let route = |method, path, access, handler| Route {
        method,
        path,
        access,
        handler,
    };
    vec![
        route(Method::GET, FUNCTIONS, Token, get(functions::list)),
        route(Method::GET, FUNCTION, Token, get(functions::describe)),
        route(
            Method::PUT,
            FUNCTION,
            Token,
            // The archive is streamed against a limit of its own.
            put(deploy::deploy).layer(DefaultBodyLimit::disable()),
        ),
        route(Method::DELETE, FUNCTION, Token, delete(functions::remove)),
        route(Method::POST, SCALE, Token, post(functions::scale)),
        route(Method::GET, LOGS, Token, get(logs::logs)),
        route(Method::GET, VERSION, Token, get(process::version)),
        route(Method::GET, OPENAPI, Token, get(process::openapi)),
        route(Method::GET, "/metrics", Metrics, get(process::metrics)),
        route(Method::GET, "/healthz", Open, get(process::healthz)),
        route(Method::GET, "/readyz", Open, get(process::readyz)),
    ]
}

async fn unknown_route(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    let known: Vec<&str> = routes().iter().map(|route| route.path).collect();
    let hint = pilot_model::nearest::nearest(&path, known.into_iter())
        .map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Failure::new(
        "unknown_route",
        format!("there is no route {method} {path}{hint} ({OPENAPI} lists all)"),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(200).collect();
    let taken: Vec<Method> = routes()
        .into_iter()
        .filter(|route| is_at(route.path, uri.path()))
        .map(|route| route.method)
        .collect();
    let taken: Vec<&str> = taken.iter().map(Method::as_str).collect();
    Failure::new(
        "method_not_allowed",
        format!(
            "{path} does not take {method}; it takes {}",
            taken.join(", ")
        ),
    )
}

/// Whether a path is one of a route's, whose `{parts}` stand for anything.
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
const LOGS: &str = "/_pilot/v1/functions/{name}/logs";
const VERSION: &str = "/_pilot/v1/version";
const OPENAPI: &str = "/_pilot/v1/openapi.json";
/// Largest body of calls other than a deployment.
const BODY_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests;
