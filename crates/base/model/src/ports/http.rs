//! An HTTP request that is passed through to a function's own server. Bodies are streams in both directions. A connection that is
//! upgraded (RFC 9110, 7.8) becomes a tunnel.
//!
//! Upgrades are `hyper::upgrade::OnUpgrade` in the extensions of a response with status 101, so that this crate does not depend
//! on hyper.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

use super::Input;
use crate::invocation::FailedInput;

/// The error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body of unknown length that may still be arriving.
pub type StreamedBody = UnsyncBoxBody<Bytes, BodyError>;

/// A request for the function's server. The URI is path and query, as the server receives them. Hop-by-hop headers are removed,
/// except those of an upgrade.
pub type PassedRequest = http::Request<StreamedBody>;

/// The inputs of a passed request, in its extensions. There if the function declares any.
#[derive(Debug, Clone)]
pub struct PassedInputs {
    /// Those that were fetched.
    pub inputs: Vec<Input>,
    /// Those that were not, and are optional.
    pub failed: Vec<FailedInput>,
}

/// The server's response.
pub type PassedResponse = http::Response<StreamedBody>;
