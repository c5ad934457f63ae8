//! What one instance has and may use: the function's variables, clocks, random numbers, its log, and outgoing requests. No files, no
//! sockets, no standard input.

use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::body::HyperOutgoingBody;
use wasmtime_wasi_http::types::{HostFutureIncomingResponse, OutgoingRequestConfig};
use wasmtime_wasi_http::{HttpResult, WasiHttpCtx, WasiHttpView};

use crate::memory::{Share, WorkerMemory};
use crate::outgoing::Outgoing;

/// Headers of one message, bytes, as wasmtime counts them.
const HEADERS_LEN_MAX: usize = 128 << 10;
/// Handles that an instance has at the same time: bodies, streams, headers, timers.
const HANDLES_MAX: usize = 10_000;
/// Bytes of a body that one write may have.
const CHUNK_LEN_MAX: usize = 64 << 10;

/// What all instances of a worker have in common.
#[derive(Debug)]
pub(crate) struct InstanceParts {
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) memory: Arc<WorkerMemory>,
    pub(crate) outgoing: Outgoing,
}

/// See the module.
pub(crate) struct InstanceState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    outgoing: Outgoing,
    pub(crate) memory: Share,
    /// It is trapped if it computes then.
    pub(crate) deadline: Instant,
}

impl InstanceState {
    pub(crate) fn new(shared: &InstanceParts, deadline: Instant) -> Self {
        let mut wasi = WasiCtx::builder();
        wasi.envs(&shared.variables)
            .inherit_stdout()
            .inherit_stderr()
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(HEADERS_LEN_MAX);
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES_MAX);
        Self {
            wasi: wasi.build(),
            http,
            table,
            outgoing: shared.outgoing.clone(),
            memory: Share::of(&shared.memory),
            deadline,
        }
    }
}

impl WasiView for InstanceState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for InstanceState {
    fn ctx(&mut self) -> &mut WasiHttpCtx {
        &mut self.http
    }

    fn table(&mut self) -> &mut ResourceTable {
        &mut self.table
    }

    fn send_request(
        &mut self,
        request: hyper::Request<HyperOutgoingBody>,
        config: OutgoingRequestConfig,
    ) -> HttpResult<HostFutureIncomingResponse> {
        self.outgoing.send(request, config)
    }

    fn outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_LEN_MAX
    }
}
