//! Blocking work, on blocking threads.

/// Runs `work` to its end on a blocking thread, even if the future is dropped. A panic in it is passed on to the caller.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The async runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}
