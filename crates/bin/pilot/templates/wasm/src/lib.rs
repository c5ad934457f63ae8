//! __NAME__: a WebAssembly component of the world `wasi:http/proxy`. `GET /?name=Ada` greets.

use std::io::Write;

use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam};

wasip2::http::proxy::export!(Component);

struct Component;

impl Guest for Component {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let text = format!("Hello, {}!\n", name(&target).unwrap_or("World"));
        let headers = Fields::new();
        let plain = [b"text/plain; charset=utf-8".to_vec()];
        headers.set("content-type", &plain).expect("the header may be set");
        let response = OutgoingResponse::new(headers);
        let body = response.body().expect("it is taken once");
        ResponseOutparam::set(out, Ok(response));
        let mut to = body.write().expect("it is taken once");
        // An error here means that the client has gone.
        let _ = to.write_all(text.as_bytes());
        let _ = to.flush();
        drop(to);
        let _ = OutgoingBody::finish(body, None);
    }
}

/// The value of `name` in the query of a target, if it is plain.
fn name(target: &str) -> Option<&str> {
    let (_, query) = target.split_once('?')?;
    let mut values = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = values.find(|(key, _)| *key == "name")?;
    (!value.is_empty() && value.chars().all(char::is_alphanumeric)).then_some(value)
}
