//! The control API's OpenAPI document, generated from the handlers and their types.

use axum::Json;
use axum::extract::State;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};

use crate::admin::Admin;

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
        crate::routes::deploy::deploy,
        crate::routes::layers::find,
        crate::routes::layers::add,
        crate::routes::logs::logs,
        crate::routes::tokens::create,
        crate::routes::tokens::list,
        crate::routes::tokens::revoke,
        crate::routes::process::version,
        openapi,
        crate::routes::process::metrics,
        crate::routes::process::healthz,
        crate::routes::process::readyz,
    ),
    tags(
        (name = "functions", description = "What is deployed"),
        (name = "layers", description = "Content that functions share, shown at /opt of their sandboxes"),
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
pub(crate) async fn openapi(State(admin): State<Admin>) -> Json<utoipa::openapi::OpenApi> {
    Json(document(admin.inner.config.version))
}

/// The OpenAPI document of this version.
fn document(version: &str) -> OpenApi {
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
    document
}

const BEARER: &str = "token";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::router::routes;

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let json = serde_json::to_value(document("1.2.3")).unwrap();
        let mut documented = BTreeSet::new();
        for (path, operations) in json["paths"].as_object().unwrap() {
            for method in operations.as_object().unwrap().keys() {
                documented.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        let served: BTreeSet<String> = routes()
            .iter()
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        assert_eq!(documented, served);
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        let json = serde_json::to_value(document("1.2.3")).unwrap();
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
        let json = serde_json::to_value(document("1.2.3")).unwrap();
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
