//! An HTTP request as it passes through to a function's own server: bodies are streams both ways, and a connection that is
//! upgraded (RFC 9110, 7.8) becomes a tunnel.
//!
//! Upgrades travel as `hyper::upgrade::OnUpgrade` in the extensions of a response with status 101, so that this crate need
//! not know hyper.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// What a body fails with.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body of unknown length that may still be arriving.
pub type StreamedBody = UnsyncBoxBody<Bytes, BodyError>;

/// A request for the function's server. The URI is path and query alone, as the server is to see them; hop-by-hop headers but those
/// of an upgrade are gone.
pub type PassedRequest = http::Request<StreamedBody>;

/// The server's response.
pub type PassedResponse = http::Response<StreamedBody>;
