//! The engine that compiles and runs scripts: what a module may have.

use wasmtime::{Config, Engine};

/// The longest module, bytes.
pub(crate) const MODULE_LEN_MAX: u64 = 1 << 20;
/// The stack of a script, bytes.
const STACK_LEN: usize = 256 << 10;
/// The stack of a script and of the host's functions, bytes.
const HOST_STACK_LEN: usize = STACK_LEN + (768 << 10);
/// What a memory grows by at least, bytes.
const GROWTH_LEN: u64 = 64 << 10;

/// The engine of all scripts.
///
/// # Errors
/// The machine cannot run compiled code.
pub(crate) fn engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .async_support(true)
        .epoch_interruption(true)
        // No handlers of signals in the daemon: checks are compiled in instead.
        .signals_based_traps(false)
        .wasm_backtrace(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false)
        .wasm_relaxed_simd(false)
        .max_wasm_stack(STACK_LEN)
        .async_stack_size(HOST_STACK_LEN)
        // Memories are small: no address space is reserved for them.
        .memory_reservation(0)
        .memory_reservation_for_growth(GROWTH_LEN)
        .memory_guard_size(0);
    Engine::new(&config)
}
