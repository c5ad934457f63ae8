//! Ctrl-C for commands that print something before they end.

use std::thread;

use tokio::signal::unix::{SignalKind, signal};

/// Calls `act` at the first SIGINT instead of ending the process. The second one ends it.
///
/// # Errors
/// The signal cannot be received.
pub(super) fn on_interrupt(act: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let mut interrupt = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt())?
    };
    // Lives as long as the process, and holds nothing.
    thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                interrupt.recv().await;
                act();
                interrupt.recv().await;
                std::process::exit(EXIT_CODE.into());
            });
        })?;
    Ok(())
}

/// 128 and the number of the signal, as shells report it.
pub(super) const EXIT_CODE: u8 = 130;
