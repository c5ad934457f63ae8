//! [`Capped`]: a connection on which a server may send only so much until it is asked again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose reader keeps an answer until it is complete. What the server may send between two requests has a limit, so that the
/// reader does not keep an answer without end. Beyond it, the connection reads as broken.
#[derive(Debug)]
pub struct Capped<S> {
    stream: S,
    bytes_max: usize,
    /// What may still come, bytes.
    left: usize,
    problem: &'static str,
}

impl<S> Capped<S> {
    /// At most this many bytes until something is written. The problem is what a reader is told beyond that.
    pub fn new(stream: S, bytes_max: usize, problem: &'static str) -> Self {
        Self {
            stream,
            bytes_max,
            left: bytes_max,
            problem,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Capped<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = &polled {
            let read = buf.filled().len() - before;
            let Some(left) = this.left.checked_sub(read) else {
                buf.set_filled(before);
                let error = io::Error::new(io::ErrorKind::InvalidData, this.problem);
                return Poll::Ready(Err(error));
            };
            this.left = left;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Capped<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = &polled {
            this.left = this.bytes_max;
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn an_answer_has_a_limit_and_each_request_gives_it_again() {
        let (ours, mut server) = duplex(64);
        let mut capped = Capped::new(ours, 10, "too long");
        let mut read = [0; 10];
        for _ in 0..3 {
            server.write_all(&[7; 10]).await.unwrap();
            assert_eq!(capped.read_exact(&mut read).await.unwrap(), 10);
            capped.write_all(b"more").await.unwrap();
        }
        server.write_all(&[7; 11]).await.unwrap();
        let mut all = Vec::new();
        let error = capped.read_to_end(&mut all).await.unwrap_err();
        assert_eq!(error.to_string(), "too long");
        assert!(all.len() <= 10, "{}", all.len());
    }
}
