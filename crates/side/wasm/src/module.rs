//! The module of a version: read from its code, checked, and compiled here. What was compiled stays in memory and is never stored.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use pilot_model::initscript::{InitscriptConfig, ScriptKind};
use pilot_model::size::Size;
use wasmtime::{ExternType, InstancePre, Linker, Module};

use crate::engine::MODULE_LEN_MAX;
use crate::errors::in_words;
use crate::script::Script;
use crate::trial::Trials;
use crate::turns;

/// The unit of a memory, bytes.
const PAGE_LEN: u64 = 64 << 10;

/// Reads and compiles the module of a version with this folder of code.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(crate) fn compile(
    linker: &Linker<Script>,
    trials: &Trials,
    code_dir: &Path,
    config: &InitscriptConfig,
    kind: ScriptKind,
) -> Result<InstancePre<Script>, String> {
    let key = kind.key();
    let named = |problem: String| format!("{key}.module \"{}\": {problem}", config.module);
    let bytes = read(code_dir, &config.module).map_err(named)?;
    check_kind(&bytes).map_err(|problem| named(problem.to_owned()))?;
    let invalid =
        |error: wasmtime::Error| named(format!("it cannot be compiled: {}", in_words(&error)));
    Module::validate(linker.engine(), &bytes).map_err(invalid)?;
    let bytes = turns::add(&bytes).map_err(named)?;
    trials.run(&bytes).map_err(named)?;
    let module = Module::from_binary(linker.engine(), &bytes).map_err(invalid)?;
    check_exports(&module, key, config.memory_mb).map_err(named)?;
    linker.instantiate_pre(&module).map_err(|error| {
        named(format!(
            "it imports what there is not: {}: a script can use only the functions of \"{}\"",
            in_words(&error),
            crate::host::MODULE
        ))
    })
}

/// The file, which must be inside the folder, wherever links lead.
fn read(code_dir: &Path, module: &str) -> Result<Vec<u8>, String> {
    let missing =
        |error| format!("cannot be read: {error}: put the file into the function's folder");
    let path = fs::canonicalize(code_dir.join(module)).map_err(missing)?;
    let folder = fs::canonicalize(code_dir).map_err(missing)?;
    if !path.starts_with(&folder) {
        return Err("is a link that leads out of the function's folder".to_owned());
    }
    let file = File::open(&path).map_err(missing)?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    let read = file.take(MODULE_LEN_MAX + 1).read_to_end(&mut bytes);
    read.map_err(missing)?;
    if bytes.len() as u64 > MODULE_LEN_MAX {
        return Err(format!(
            "has more than {}: build it with optimisation for size and without debug information",
            Size(MODULE_LEN_MAX)
        ));
    }
    Ok(bytes)
}

/// Says what a file is that is no module.
fn check_kind(bytes: &[u8]) -> Result<(), &'static str> {
    match bytes {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', _, 0, 1, 0, ..] => Err(
            "is a component: build a core module, for example with the target wasm32-unknown-unknown",
        ),
        [0x7f, b'E', b'L', b'F', ..] => Err(
            "is native code, which is never accepted: upload the .wasm file, which is compiled here",
        ),
        [b'(', ..] => Err("is WebAssembly as text: convert it with wat2wasm"),
        _ => Err("is not a WebAssembly module"),
    }
}

fn check_exports(module: &Module, key: &str, memory_mb: u32) -> Result<(), String> {
    match module.get_export("run") {
        Some(ExternType::Func(run)) if run.params().len() == 0 && run.results().len() == 0 => {}
        Some(_) => {
            return Err(
                "its export \"run\" must be a function without arguments and results".to_owned(),
            );
        }
        None => return Err("it does not export a function \"run\"".to_owned()),
    }
    let Some(ExternType::Memory(memory)) = module.get_export("memory") else {
        return Err("it does not export its memory as \"memory\"".to_owned());
    };
    let (needs, has) = (memory.minimum() * PAGE_LEN, u64::from(memory_mb) << 20);
    if needs > has {
        return Err(format!(
            "its memory has {} at the beginning, and {key}.memory_mb is {memory_mb}: raise it, or give the program a smaller stack",
            Size(needs)
        ));
    }
    Ok(())
}
