//! Does what `wasmtime serve` does with a component, with the same release of wasmtime and the same profile as `pilot`: the pooling
//! allocator, an instance and a task per request, HTTP/1.1. The command line of wasmtime itself has several hundred more crates to build.
//!
//! Arguments: the component and a port. It prints `ready` when it listens.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Error, InstanceAllocationStrategy, Result, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::bindings::ProxyPre;
use wasmtime_wasi_http::bindings::http::types::{ErrorCode, Scheme};
use wasmtime_wasi_http::body::HyperOutgoingBody;
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::types::{HostFutureIncomingResponse, OutgoingRequestConfig};
use wasmtime_wasi_http::{HttpResult, WasiHttpCtx, WasiHttpView};

struct InstanceState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
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
        _request: Request<HyperOutgoingBody>,
        _config: OutgoingRequestConfig,
    ) -> HttpResult<HostFutureIncomingResponse> {
        Err(ErrorCode::HttpRequestDenied.into())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(component), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err(Error::msg("arguments: COMPONENT PORT"));
    };
    let mut config = Config::new();
    config
        .async_support(true)
        .allocation_strategy(InstanceAllocationStrategy::pooling());
    let engine = Engine::new(&config)?;
    let component = Component::from_file(&engine, component)?;
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::add_only_http_to_linker_async(&mut linker)?;
    let proxy = ProxyPre::new(linker.instantiate_pre(&component)?)?;
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    println!("ready");
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let proxy = proxy.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(proxy.clone(), request));
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                eprintln!("{error}");
            }
        });
    }
}

async fn answer(
    proxy: ProxyPre<InstanceState>,
    request: Request<Incoming>,
) -> Result<Response<HyperOutgoingBody>> {
    let state = InstanceState {
        wasi: WasiCtx::builder().inherit_stdio().build(),
        http: WasiHttpCtx::new(),
        table: ResourceTable::new(),
    };
    let mut store = Store::new(proxy.engine(), state);
    let (sender, receiver) = oneshot::channel();
    let request = store
        .data_mut()
        .new_incoming_request(Scheme::Http, request)?;
    let out = store.data_mut().new_response_outparam(sender)?;
    let proxy = Arc::new(proxy);
    let task = tokio::spawn(async move {
        let instance = proxy.instantiate_async(&mut store).await?;
        let handler = instance.wasi_http_incoming_handler();
        handler.call_handle(&mut store, request, out).await
    });
    match receiver.await {
        Ok(sent) => Ok(sent?),
        Err(_) => {
            task.await??;
            Err(Error::msg("the component ended without a response"))
        }
    }
}
