//! The gateway on a real socket, with an invoker and functions that a test defines. One program, which is linked once.

#![expect(
    clippy::unwrap_used,
    reason = "tests: clippy knows #[test] functions as such, but not what they share"
)]

mod support;

mod connections;
mod function_url;
mod http1;
mod http2;
mod lambda_api;
mod passing;
mod streaming;
mod upgrades;
