//! Work that waits for the disk, on a thread for that.

/// Runs `work` to its end on a thread that may wait, even when the future is dropped. A panic in it is the caller's.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}
