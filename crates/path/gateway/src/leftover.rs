//! What nobody read of a request's body when its response is known, as for a function that does not exist. The next request of an
//! HTTP/1.1 connection comes behind it.

use std::time::Duration;

use http_body_util::BodyExt as _;

use crate::connection::line::Usage;
use crate::request_body::RequestBody;

/// Reads a small rest, so that the connection can be used again. A larger or slower one stays, and ends the connection (RFC 9112,
/// section 9.3). `body` is `None` if it has been begun, or will not come without being asked for.
pub(crate) async fn read(body: Option<RequestBody>, usage: &Usage) {
    let Some(mut body) = body else {
        return;
    };
    let whole = async {
        let mut left = BYTES_MAX;
        while let Some(frame) = body.frame().await {
            let len = frame.ok()?.data_ref().map_or(0, bytes::Bytes::len);
            left = left.checked_sub(len)?;
        }
        Some(())
    };
    if let Ok(Some(())) = tokio::time::timeout(PATIENCE, whole).await {
        usage.body_was_read();
    }
}

/// A body that a function may leave, and that is not longer, has usually come with its head. Then hyper has read it, and the connection
/// can be used again.
pub(crate) const WITH_HEAD_MAX: u64 = 4096;

const BYTES_MAX: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_millis(500);
