//! The settings of wasmtime. Everything that shapes machine code is in [`config`], so that what a build has compiled fits the workers.

use pilot_model::runtime::wasm::WorkerSettings;
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Result};
use wasmtime_wasi_http::bindings::ProxyPre;

use crate::in_words;
use crate::memory::{MEMORIES_MAX, TABLE_LEN_MAX, TABLES_MAX};
use crate::state::InstanceState;

/// The stack of a component, bytes.
const STACK_LEN: usize = 512 << 10;
/// The stack of a component and of the host's functions, bytes.
const HOST_STACK_LEN: usize = STACK_LEN + (512 << 10);
/// Core instances of one component. Languages with adapters have about ten.
const CORE_INSTANCES_MAX: u32 = 40;
/// What wasmtime keeps about one instance, bytes.
const INSTANCE_LEN_MAX: usize = 4 << 20;
/// Of a memory that was used, this much is set to zero and kept, bytes: less than what giving it back to the kernel and faulting it in
/// again costs.
const KEPT_LEN: usize = 256 << 10;
const STACK_KEPT_LEN: usize = 16 << 10;

fn config() -> Config {
    let mut config = Config::new();
    config
        .async_support(true)
        .epoch_interruption(true)
        .wasm_component_model(true)
        .wasm_backtrace(true)
        .max_wasm_stack(STACK_LEN)
        .async_stack_size(HOST_STACK_LEN);
    config
}

/// For compiling.
pub(crate) fn compiling() -> Result<Engine> {
    Engine::new(&config())
}

/// For a worker. The places of its instances are made in advance, which takes 4 GiB of address space for each memory. Where there is
/// less (a limit of address space, a small virtual machine), each instance gets its memory when it starts. The second value then says
/// so, for the function's log.
///
/// # Errors
/// The machine cannot run compiled code.
pub(crate) fn serving(settings: &WorkerSettings) -> Result<(Engine, Option<String>)> {
    let mut pooling = config();
    pooling.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(settings)));
    let problem = match Engine::new(&pooling) {
        Ok(engine) => return Ok((engine, None)),
        Err(problem) => problem,
    };
    let engine = Engine::new(&config())?;
    let said = format!(
        "the address space has no room for the memories of {} instances, so each is made when its request comes: {}",
        places(settings),
        in_words(&problem)
    );
    Ok((engine, Some(said)))
}

fn pool(settings: &WorkerSettings) -> PoolingAllocationConfig {
    let instances = places(settings);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .max_component_instance_size(INSTANCE_LEN_MAX)
        .max_core_instance_size(INSTANCE_LEN_MAX)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(instances.saturating_mul(MEMORIES_MAX))
        .total_tables(instances.saturating_mul(TABLES_MAX))
        .total_stacks(instances)
        .table_elements(TABLE_LEN_MAX)
        .max_memory_size(usize::try_from(settings.memory_bytes).unwrap_or(usize::MAX))
        .max_unused_warm_slots(instances)
        .linear_memory_keep_resident(KEPT_LEN)
        .table_keep_resident(4 << 10)
        .async_stack_keep_resident(STACK_KEPT_LEN);
    pool
}

/// Instances at the same time: those that serve, and some that end after their response.
pub(crate) fn places(settings: &WorkerSettings) -> u32 {
    settings.concurrency.saturating_add(8)
}

/// What a component can import, and what it must export.
///
/// # Errors
/// It imports what there is not, or does not export the handler.
pub(crate) fn link(engine: &Engine, component: &Component) -> Result<ProxyPre<InstanceState>> {
    let mut linker: Linker<InstanceState> = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::add_only_http_to_linker_async(&mut linker)?;
    ProxyPre::new(linker.instantiate_pre(component)?)
}
