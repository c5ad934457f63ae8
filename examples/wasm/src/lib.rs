//! A function that is a WebAssembly component: `GET /` greets, and `POST /upper` returns its body in capital letters while it arrives.

use std::env;
use std::io::Write;

use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam};
use wasip2::io::streams::StreamError;

wasip2::http::proxy::export!(Greeter);

struct Greeter;

impl Guest for Greeter {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let response = OutgoingResponse::new(Fields::new());
        let body = response.body().expect("it is taken once");
        ResponseOutparam::set(out, Ok(response));
        let mut to = body.write().expect("it is taken once");
        if request.path_with_query().as_deref() == Some("/upper") {
            let incoming = request.consume().expect("it is taken once");
            let from = incoming.stream().expect("it is taken once");
            loop {
                match from.blocking_read(4096) {
                    Ok(part) => to.write_all(&part.to_ascii_uppercase()).expect("the client reads"),
                    Err(StreamError::Closed) => break,
                    Err(error) => panic!("the request broke off: {error:?}"),
                }
            }
        } else {
            let greeting = env::var("GREETING").unwrap_or_else(|_| "Hello".to_owned());
            to.write_all(format!("{greeting}, World!\n").as_bytes()).expect("the client reads");
        }
        to.flush().expect("the client reads");
        drop(to);
        OutgoingBody::finish(body, None).expect("no length was promised");
    }
}
