//! A component's file: read, checked, compiled, and loaded.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use pilot_model::size::Size;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::engine::{self, link};
use crate::in_words;

/// The longest component, bytes. Those with an interpreter of Python or JavaScript have 10 to 40 MiB.
const COMPONENT_LEN_MAX: u64 = 64 << 20;

/// Compiles a component, and writes its machine code to a file.
///
/// # Errors
/// What is wrong with the component, and what to do.
pub fn compile(component: &Path, into: &Path) -> Result<(), String> {
    let engine = engine::compiling().map_err(|error| in_words(&error))?;
    let (component, _) = from_source(&engine, component)?;
    let code = component
        .serialize()
        .map_err(|error| format!("its machine code cannot be written: {}", in_words(&error)))?;
    let written = File::create(into).and_then(|mut file| file.write_all(&code));
    written.map_err(|error| format!("its machine code cannot be written: {error}"))
}

/// Compiles a component and checks what it imports and exports.
fn from_source(engine: &Engine, path: &Path) -> Result<(Component, Linked), String> {
    let bytes = read(path)?;
    check_kind(&bytes)?;
    let component = Component::from_binary(engine, &bytes)
        .map_err(|error| format!("it cannot be compiled: {}", in_words(&error)))?;
    let linked = link(engine, &component).map_err(|error| unlinked(&error))?;
    Ok((component, linked))
}

/// A component with everything that it imports.
pub(crate) type Linked = wasmtime_wasi_http::bindings::ProxyPre<crate::state::InstanceState>;

/// Loads what a build has compiled. After an update of Pilotlight it may not fit: then the component is compiled here, and the second
/// value says so.
///
/// # Errors
/// Neither can be used.
pub(crate) fn load(
    engine: &Engine,
    compiled: &Path,
    source: &Path,
) -> Result<(Linked, Option<String>), String> {
    #[expect(
        unsafe_code,
        reason = "the only way to load a compiled component without a second compilation"
    )]
    // SAFETY: the function requires that the file is what `Component::serialize` has written, and that it does not change. A build of
    // this binary has written it (`compile`); the code's folder is mounted read-only here and never changes. If it were neither, it
    // would be machine code of the function's deployer, in a sandbox that is made for such code.
    let loaded = unsafe { Component::deserialize_file(engine, compiled) };
    match loaded {
        Ok(component) => {
            let linked = link(engine, &component).map_err(|error| unlinked(&error))?;
            Ok((linked, None))
        }
        Err(error) => {
            let said = format!(
                "the compiled component is not used: {}: it was compiled again; deploy the function again to make starts short",
                in_words(&error)
            );
            let (_, linked) = from_source(engine, source)?;
            Ok((linked, Some(said)))
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let missing =
        |error| format!("cannot be read: {error}: put the file into the function's folder");
    let file = File::open(path).map_err(missing)?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let read = file.take(COMPONENT_LEN_MAX + 1).read_to_end(&mut bytes);
    read.map_err(missing)?;
    if bytes.len() as u64 > COMPONENT_LEN_MAX {
        return Err(format!(
            "has more than {}: build it with optimisation for size and without debug information",
            Size(COMPONENT_LEN_MAX)
        ));
    }
    Ok(bytes)
}

/// Says what a file is that is no component.
fn check_kind(bytes: &[u8]) -> Result<(), &'static str> {
    match bytes {
        [0, b'a', b's', b'm', _, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(
            "is a core module: build a component, for example with the target wasm32-wasip2, or make one of it with \
             `wasm-tools component new`",
        ),
        [0x7f, b'E', b'L', b'F', ..] => Err(
            "is native code, which is never accepted: upload the .wasm file, which is compiled here",
        ),
        [b'(', ..] => {
            Err("is WebAssembly as text: convert it, for example with `wasm-tools parse`")
        }
        _ => Err("is not a WebAssembly component"),
    }
}

fn unlinked(error: &wasmtime::Error) -> String {
    format!(
        "it does not fit the world wasi:http/proxy: {}: a component must export wasi:http/incoming-handler@0.2, and can import only the \
         interfaces of WASI 0.2 (clocks, random, cli, io, filesystem, sockets, http)",
        in_words(error)
    )
}
