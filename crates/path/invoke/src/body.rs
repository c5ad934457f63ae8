//! The body of an application's HTTP response: in one piece, or streamed from the worker.

use bytes::Bytes;

use crate::error::InvokeError;

/// A response body. While it streams it holds the worker; dropped before its end, the worker is killed and the
/// invocation recorded as cancelled.
#[derive(Debug)]
pub struct HttpBody {
    whole: Option<Bytes>,
}

impl HttpBody {
    /// The whole body, when the answer came in one piece and nothing of it was taken yet.
    #[must_use]
    pub fn complete(&self) -> Option<&Bytes> {
        self.whole.as_ref()
    }

    /// The next part; `None` at the end. After an error there is no more.
    ///
    /// # Errors
    /// [`InvokeError::BodyTimedOut`] and [`InvokeError::BodyBroken`].
    pub async fn next(&mut self) -> Option<Result<Bytes, InvokeError>> {
        self.whole.take().map(Ok)
    }
}
