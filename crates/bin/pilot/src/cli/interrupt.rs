//! Signals that end a command which prints something, or removes something, before it ends.

use std::future::poll_fn;
use std::task::Poll;
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Calls `act` at the first SIGINT instead of ending the process. The second one ends it.
///
/// # Errors
/// The signal cannot be received.
pub(super) fn on_interrupt(act: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    on(&[(SignalKind::interrupt(), EXIT_CODE)], |_| act())
}

/// Calls `act` with the exit code at the first SIGINT or SIGTERM instead of ending the process. The second one ends it.
///
/// # Errors
/// The signals cannot be received.
pub(super) fn on_end(act: impl FnOnce(u8) + Send + 'static) -> anyhow::Result<()> {
    let signals = [
        (SignalKind::interrupt(), EXIT_CODE),
        (SignalKind::terminate(), EXIT_CODE_TERMINATED),
    ];
    on(&signals, act)
}

fn on(kinds: &[(SignalKind, u8)], act: impl FnOnce(u8) + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let mut signals = {
        let _inside = runtime.enter();
        let signals = kinds.iter().map(|(kind, code)| Ok((signal(*kind)?, *code)));
        signals.collect::<std::io::Result<Vec<_>>>()?
    };
    // Lives as long as the process, and holds nothing.
    thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                act(next(&mut signals).await);
                std::process::exit(next(&mut signals).await.into());
            });
        })?;
    Ok(())
}

/// The exit code of the signal that comes next.
async fn next(signals: &mut [(Signal, u8)]) -> u8 {
    poll_fn(|context| {
        for (signal, code) in &mut *signals {
            if signal.poll_recv(context).is_ready() {
                return Poll::Ready(*code);
            }
        }
        Poll::Pending
    })
    .await
}

/// 128 and the number of the signal, as shells report it.
pub(super) const EXIT_CODE: u8 = 130;
pub(super) const EXIT_CODE_TERMINATED: u8 = 143;
