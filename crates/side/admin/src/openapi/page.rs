//! The OpenAPI document as a page for people. It is HTML made from the document, without scripts, and loads nothing. The
//! Content-Security-Policy allows only its own style sheet, by its hash.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Extension;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Documents, document};
use crate::access::RouteRow;

/// This page.
#[utoipa::path(
    get, path = "/_pilot/v1/docs", tag = "daemon",
    responses((status = 200, description = "The calls of the control API, for people", body = String, content_type = "text/html")),
)]
pub(crate) async fn page(Extension(documents): Extension<Arc<Documents>>) -> Response {
    let page = documents.page.get_or_init(|| Page::of(&documents.rows));
    (
        [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, page.policy.as_str()),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (CACHE_CONTROL, "no-cache"),
        ],
        page.html.clone(),
    )
        .into_response()
}

/// The page, and the policy for browsers that show it.
#[derive(Debug)]
pub(super) struct Page {
    html: String,
    policy: String,
}

impl Page {
    fn of(rows: &[RouteRow]) -> Self {
        let hash = STANDARD.encode(Sha256::digest(STYLE));
        let document = document(env!("CARGO_PKG_VERSION"), rows);
        Self {
            html: render(&serde_json::from_str(&document).unwrap_or_default()),
            policy: format!(
                "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
        }
    }
}

fn render(document: &Value) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1><p>{about}</p>\
         <p>Over TCP, calls that can answer 401 need the header <code>Authorization: Bearer TOKEN</code>; over the control socket, they need none. \
         The same as OpenAPI: <a href=\"/_pilot/v1/openapi.json\">openapi.json</a>.</p>",
        title = text(&document["info"]["title"]),
        about = text(&document["info"]["description"]),
    );
    for tag in items(&document["tags"]) {
        let about = text(&tag["description"]);
        // Writing to a String cannot fail.
        let _ = write!(html, "<h2>{}</h2><p>{about}</p>", text(&tag["name"]));
        for (path, operations) in entries(&document["paths"]) {
            for (method, operation) in entries(operations) {
                if items(&operation["tags"]).any(|of| of == &tag["name"]) {
                    call(&mut html, path, method, operation);
                }
            }
        }
    }
    html.push_str("<h2>Types</h2>");
    for (name, schema) in entries(&document["components"]["schemas"]) {
        object(&mut html, name, schema);
    }
    html.push_str("</body></html>\n");
    html
}

fn call(html: &mut String, path: &str, method: &str, operation: &Value) {
    let about = operation
        .get("summary")
        .unwrap_or(&operation["description"]);
    let _ = write!(
        html,
        "<section><h3><code>{} {}</code></h3><p>{}</p><table>",
        escaped(&method.to_uppercase()),
        escaped(path),
        text(about),
    );
    for parameter in items(&operation["parameters"]) {
        let place = format!(
            "{}: {}",
            parameter["in"].as_str().unwrap_or(""),
            kind(&parameter["schema"])
        );
        row(html, &parameter["name"], &place, &parameter["description"]);
    }
    for (media, content) in entries(&operation["requestBody"]["content"]) {
        let what = format!("{media}: {}", kind(&content["schema"]));
        row(
            html,
            &"body".into(),
            &what,
            &operation["requestBody"]["description"],
        );
    }
    for (status, response) in entries(&operation["responses"]) {
        let kinds: Vec<String> = entries(&response["content"])
            .map(|(media, content)| format!("{media}: {}", kind(&content["schema"])))
            .collect();
        row(
            html,
            &status.into(),
            &kinds.join(", "),
            &response["description"],
        );
    }
    html.push_str("</table></section>");
}

fn object(html: &mut String, name: &str, schema: &Value) {
    let _ = write!(
        html,
        "<details id=\"{0}\"><summary><code>{0}</code> {1}</summary><table>",
        escaped(name),
        text(&schema["description"]),
    );
    for (key, property) in entries(&schema["properties"]) {
        row(html, &key.into(), &kind(property), &property["description"]);
    }
    if entries(&schema["properties"]).next().is_none() {
        row(html, &"".into(), &kind(schema), &Value::Null);
    }
    html.push_str("</table></details>");
}

fn row(html: &mut String, name: &Value, what: &str, about: &Value) {
    let (name, about) = (text(name), text(about));
    let _ = write!(
        html,
        "<tr><td><code>{name}</code></td><td>{}</td><td>{about}</td></tr>",
        escaped(what)
    );
}

/// A schema in a few words.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or("").to_owned();
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        let kinds: Vec<String> = items(&schema[several]).map(kind).collect();
        if !kinds.is_empty() {
            return kinds.join(" or ");
        }
    }
    let words: Vec<&str> = items(&schema["enum"]).filter_map(Value::as_str).collect();
    if !words.is_empty() {
        return words.join(", ");
    }
    match &schema["type"] {
        Value::String(one) if one == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(one) => one.clone(),
        several @ Value::Array(_) => {
            let kinds: Vec<&str> = items(several).filter_map(Value::as_str).collect();
            kinds.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = value.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.as_str(), value))
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or(""))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{max-width:60rem;margin:2rem auto;\
    padding:0 1rem}table{border-collapse:collapse;width:100%}td{border-top:1px solid #8884;padding:.2rem .6rem .2rem 0;\
    vertical-align:top}td:first-child{white-space:nowrap}h3{margin-bottom:0}summary{cursor:pointer}";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::rows;

    #[test]
    fn the_page_has_every_call_and_loads_nothing() {
        let rows: Vec<RouteRow> = rows().collect();
        let Page { html, policy } = Page::of(&rows);
        for route in &rows {
            let call = format!("<code>{} {}</code>", route.method, route.path);
            assert!(html.contains(&call), "{call}");
        }
        for word in [
            "<script", "src=", "=\"http", "='http", "url(", "@import", "<link", "<img",
        ] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(html.len() < 128 * 1024, "{}", html.len());
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"));
    }

    #[test]
    fn text_of_the_document_is_not_markup() {
        let document = serde_json::json!({
            "info": {"title": "<b>"}, "tags": [{"name": "t"}],
            "paths": {"/x\"": {"get": {"tags": ["t"], "summary": "<script>&"}}},
        });
        let html = render(&document);
        assert!(
            !html.contains("<b>") && !html.contains("<script>"),
            "{html}"
        );
        assert!(
            html.contains("GET /x&quot;") && html.contains("&lt;script&gt;&amp;"),
            "{html}"
        );
    }
}
