//! What nobody read of a request's body when its response is known, as for a function that does not exist. The next request of an
//! HTTP/1.1 connection comes behind it. Over HTTP/2, the stream is reset if a rest stays, and some clients lose the response
//! then (curl before 8, httpx).

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::runtime::Handle;

use crate::connection::line::Usage;
use crate::request_body::RequestBody;

/// Reads a small rest, so that the connection can be used again. A larger or slower one stays, and ends the connection (RFC 9112,
/// section 9.3). Returns it.
pub(crate) async fn read(mut body: RequestBody, usage: &Usage) -> Option<RequestBody> {
    let whole = async {
        let mut left = BYTES_MAX;
        while let Some(frame) = body.frame().await {
            let len = frame.ok()?.data_ref().map_or(0, bytes::Bytes::len);
            left = left.checked_sub(len)?;
        }
        Some(())
    };
    match tokio::time::timeout(PATIENCE, whole).await {
        Ok(Some(())) => {
            usage.body_was_read();
            None
        }
        _ => Some(body),
    }
}

/// The same for a body of HTTP/2 that a function has read in part, while it responds. A rest that stays is kept until the client has the
/// response.
pub(crate) fn read_meanwhile(body: RequestBody, usage: Arc<Usage>) {
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    runtime.spawn(async move {
        if let Some(rest) = read(body, &usage).await {
            usage.keeps_rest(rest.into_rest());
        }
    });
}

/// A body that a function may leave, and that is not longer, has usually come with its head. Then hyper has read it, and the connection
/// can be used again.
pub(crate) const WITH_HEAD_MAX: u64 = 4096;

const BYTES_MAX: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_millis(500);
