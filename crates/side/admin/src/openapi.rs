//! The control API's OpenAPI document, generated from the handlers and their types.

use std::sync::{Arc, OnceLock};

use axum::Extension;
use axum::extract::State;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr};

use crate::access::{RouteAccess, RouteRow};
use crate::admin::Admin;

pub(crate) mod page;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Pilotlight control API",
        description = "Deploys and describes functions. Errors are ApiError with a suitable status.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        crate::routes::functions::list,
        crate::routes::functions::describe,
        crate::routes::functions::remove,
        crate::routes::functions::scale,
        crate::routes::functions::rollback,
        crate::routes::deploy::deploy,
        crate::routes::layers::find,
        crate::routes::layers::add,
        crate::routes::logs::logs,
        crate::routes::costs::cost,
        crate::routes::costs::usage,
        crate::routes::costs::cost_of_all,
        crate::routes::costs::usage_of_all,
        crate::routes::asynchronous::list,
        crate::routes::asynchronous::show,
        crate::routes::asynchronous::cancel,
        crate::routes::asynchronous::dead_letters,
        crate::routes::asynchronous::redrive,
        crate::routes::asynchronous::purge,
        crate::routes::secrets::set,
        crate::routes::secrets::list,
        crate::routes::secrets::remove,
        crate::routes::prune::prune,
        crate::routes::tokens::create,
        crate::routes::tokens::list,
        crate::routes::tokens::revoke,
        crate::routes::process::version,
        openapi,
        page::page,
        crate::routes::process::metrics,
        crate::routes::process::healthz,
        crate::routes::process::readyz,
    ),
    tags(
        (name = "functions", description = "What is deployed"),
        (name = "layers", description = "Content that functions share, shown at /opt of their sandboxes"),
        (name = "secrets", description = "Values that functions are given and nobody else sees"),
        (name = "async", description = "Invocations whose callers do not wait, and dead letters"),
        (name = "tokens", description = "Who may do what"),
        (name = "daemon", description = "The daemon itself"),
    ),
)]
struct Document;

/// This document.
#[utoipa::path(
    get, path = "/_pilot/v1/openapi.json", tag = "daemon",
    responses((status = 200, description = "The OpenAPI document", body = Object)),
)]
pub(crate) async fn openapi(
    State(admin): State<Admin>,
    Extension(documents): Extension<Arc<Documents>>,
) -> impl IntoResponse {
    let made = documents.openapi.get_or_init(|| {
        let document = document(admin.inner.config.version, &documents.rows);
        Bytes::from(document)
    });
    ([(CONTENT_TYPE, "application/json")], made.clone())
}

/// What describes the routes. It is made once, when somebody asks for it.
#[derive(Debug)]
pub(crate) struct Documents {
    rows: Vec<RouteRow>,
    openapi: OnceLock<Bytes>,
    page: OnceLock<page::Page>,
}

impl Documents {
    pub(crate) fn of(rows: Vec<RouteRow>) -> Self {
        Self {
            rows,
            openapi: OnceLock::new(),
            page: OnceLock::new(),
        }
    }
}

/// The OpenAPI document of this version, JSON.
fn document(version: &str, rows: &[RouteRow]) -> String {
    plain(&serde_json::to_string(&described(version, rows)).unwrap_or_default())
}

/// The descriptions are comments of the code. A reader of the document knows JSON, so links to Rust's items become names, and `None`
/// becomes `null`. Neither has a character that JSON escapes.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        plain.push_str(before);
        let Some((name, after)) = link.split_once("`]") else {
            rest = &rest[before.len()..];
            break;
        };
        plain.push_str(&format!("`{name}`"));
        rest = match after
            .strip_prefix('(')
            .and_then(|target| target.split_once(')'))
        {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain.push_str(rest);
    plain.replace("`None`", "`null`")
}

fn described(version: &str, rows: &[RouteRow]) -> OpenApi {
    let mut document = <Document as utoipa::OpenApi>::openapi();
    version.clone_into(&mut document.info.version);
    let components = document.components.get_or_insert_default();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    components.add_security_scheme(BEARER, bearer);
    // Over TCP a token, on the control socket none.
    document.security = Some(vec![
        SecurityRequirement::default(),
        SecurityRequirement::new::<_, [&str; 0], &str>(BEARER, []),
    ]);
    for route in rows {
        let Some(operation) = operation(&mut document, route) else {
            continue;
        };
        if route.access == RouteAccess::Open {
            operation.security = Some(vec![SecurityRequirement::default()]);
        } else {
            let answers = &mut operation.responses.responses;
            answers.insert("401".to_owned(), RefOr::T(unauthorized()));
            if !matches!(route.access, RouteAccess::Known) {
                answers.insert("403".to_owned(), RefOr::T(forbidden()));
            }
        }
    }
    document
}

/// The operation of a route. A test checks that each route has one.
fn operation<'a>(document: &'a mut OpenApi, route: &RouteRow) -> Option<&'a mut Operation> {
    let path = document.paths.paths.get_mut(route.path)?;
    match route.method {
        Method::GET => path.get.as_mut(),
        Method::PUT => path.put.as_mut(),
        Method::POST => path.post.as_mut(),
        Method::DELETE => path.delete.as_mut(),
        _ => None,
    }
}

fn unauthorized() -> Response {
    refusal("The token is missing or wrong")
}

fn forbidden() -> Response {
    refusal("The token does not permit this")
}

fn refusal(description: &str) -> Response {
    let error = Ref::from_schema_name("ApiError");
    ResponseBuilder::new()
        .description(description)
        .content(
            "application/json",
            ContentBuilder::new().schema(Some(error)).build(),
        )
        .build()
}

const BEARER: &str = "token";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::router::rows;

    fn document(version: &str) -> serde_json::Value {
        let text = super::document(version, &rows().collect::<Vec<_>>());
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn descriptions_have_no_links_to_items_of_rust() {
        for (comment, wanted) in [
            (
                "Of [`A::b`](crate::A::b), and [`C`].",
                "Of `A::b`, and `C`.",
            ),
            ("`None`: it is unknown.", "`null`: it is unknown."),
            ("An open [`link", "An open [`link"),
            ("Neither", "Neither"),
        ] {
            assert_eq!(plain(comment), wanted);
        }
        let json = document("1.2.3").to_string();
        for word in ["[`", "`None`", "crate::"] {
            assert!(!json.contains(word), "{word}");
        }
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let json = document("1.2.3");
        let mut documented = BTreeSet::new();
        for (path, operations) in json["paths"].as_object().unwrap() {
            for method in operations.as_object().unwrap().keys() {
                documented.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        let served: BTreeSet<String> = rows()
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        assert_eq!(documented, served);
    }

    #[test]
    fn every_call_that_needs_the_token_says_401_and_parameters_are_where_they_are_read() {
        let json = document("1.2.3");
        for route in rows() {
            let method = route.method.as_str().to_lowercase();
            let operation = &json["paths"][route.path][method];
            let says = |status: &str| !operation["responses"][status].is_null();
            let (open, known) = (RouteAccess::Open, RouteAccess::Known);
            assert_eq!(says("401"), route.access != open, "{}", route.path);
            let forbids = route.access != open && route.access != known;
            assert_eq!(says("403"), forbids, "{}", route.path);
            for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
                let name = parameter["name"].as_str().unwrap();
                let in_path = route.path.contains(&format!("{{{name}}}"));
                let place = if in_path { "path" } else { "query" };
                assert_eq!(parameter["in"], place, "{name} of {}", route.path);
                assert_eq!(parameter["required"] == true, in_path, "{name}");
            }
        }
        let logs = &json["paths"]["/_pilot/v1/functions/{name}/logs"]["get"]["parameters"];
        assert_eq!(logs.as_array().unwrap().len(), 6, "{logs}");
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        let json = document("1.2.3");
        let text = json.to_string();
        let mut references = 0;
        for piece in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
            let name = piece.split('"').next().unwrap();
            assert!(
                !json["components"]["schemas"][name].is_null(),
                "{name} is missing"
            );
            references += 1;
        }
        assert!(references > 10, "{text}");
        assert_eq!(json["info"]["version"], "1.2.3");
    }

    #[test]
    fn types_with_their_own_serialisation_are_documented_as_they_are_sent() {
        let json = document("1.2.3");
        let schemas = &json["components"]["schemas"];
        let config = &schemas["FunctionConfig"]["properties"];
        assert_eq!(config["timeout_s"]["type"], "number", "{config}");
        assert_eq!(schemas["FunctionName"]["type"], "string");
        assert_eq!(schemas["Instant"]["type"], "integer");
        assert_eq!(
            schemas["Network"]["enum"],
            serde_json::json!(["none", "outbound", "host"])
        );
    }
}
