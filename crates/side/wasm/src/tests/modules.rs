//! What a deployment refuses, and that all descriptions of the host's functions say the same.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::Version;
use pilot_model::ports::InitRunner;

use crate::fakes::{World, root, script};

async fn refused(world: &World, module: &[u8]) -> String {
    let version = world.version(module, |_| {});
    world.initscripts().prepare(&version).await.unwrap_err()
}

#[tokio::test]
async fn what_is_no_module_is_refused_with_the_reason() {
    let world = World::new();
    let large = vec![0; (1 << 20) + 1];
    for (module, problem) in [
        (&b""[..], "is not a WebAssembly module"),
        (b"\0asm\x01\0\0\0garbage", "it cannot be compiled"),
        (
            b"\x7fELF\x02\x01\x01\0",
            "is native code, which is never accepted",
        ),
        (b"\0asm\x0d\0\x01\0", "is a component"),
        (b"(module)", "is WebAssembly as text"),
        (&large, "has more than 1 MB"),
    ] {
        let found = refused(&world, module).await;
        assert!(found.contains(problem), "{found}");
        assert!(
            found.starts_with("functions.f.initscript.module \"init.wasm\""),
            "{found}"
        );
    }
    for (text, problem) in [
        (
            r#"(module (memory (export "memory") 1))"#,
            "does not export a function \"run\"",
        ),
        (
            r#"(module (func (export "run")))"#,
            "does not export its memory",
        ),
        (
            r#"(module (memory (export "memory") 1) (func (export "run") (param i32)))"#,
            "without arguments",
        ),
        (
            r#"(module (memory (export "memory") 100) (func (export "run")))"#,
            "initscript.memory_mb is 2: raise it",
        ),
        (
            r#"(module (import "wasi_snapshot_preview1" "fd_write" (func)) (memory (export "memory") 1) (func (export "run")))"#,
            "it imports what there is not",
        ),
        (
            r#"(module (import "pilotlight_v1" "connect" (func)) (memory (export "memory") 1) (func (export "run")))"#,
            "it imports what there is not",
        ),
        (
            r#"(module (memory (export "memory") 1) (memory 1) (func (export "run")))"#,
            "it cannot be compiled",
        ),
    ] {
        let found = refused(&world, &wat::parse_str(text).unwrap()).await;
        assert!(found.contains(problem), "{text}: {found}");
    }
}

#[tokio::test]
async fn a_module_that_this_engine_compiled_before_is_refused() {
    let world = World::new();
    let module = wat::parse_str(script(r#"(func (export "run"))"#)).unwrap();
    let native = crate::engine::engine()
        .unwrap()
        .precompile_module(&module)
        .unwrap();
    let found = refused(&world, &native).await;
    assert!(
        found.contains("is native code, which is never accepted"),
        "{found}"
    );
}

#[tokio::test]
async fn a_file_outside_of_the_functions_folder_is_refused() {
    let world = World::new();
    let outside = tempfile::NamedTempFile::new().unwrap();
    let version = world.version(b"", |config| config.module = "link.wasm".to_owned());
    symlink(outside.path(), world.code().join("link.wasm")).unwrap();
    let found = world.initscripts().prepare(&version).await.unwrap_err();
    assert!(
        found.contains("leads out of the function's folder"),
        "{found}"
    );
    let version = world.version(b"", |config| config.module = "none.wasm".to_owned());
    let found = world.initscripts().prepare(&version).await.unwrap_err();
    assert!(
        found.contains("put the file into the function's folder"),
        "{found}"
    );
    fs::create_dir(world.code().join("folder.wasm")).unwrap();
    let version = world.version(b"", |config| config.module = "folder.wasm".to_owned());
    let found = world.initscripts().prepare(&version).await.unwrap_err();
    assert!(
        found.contains("is not a file") || found.contains("directory"),
        "{found}"
    );
}

#[tokio::test]
async fn after_a_start_of_the_daemon_a_module_is_compiled_in_the_background() {
    let world = World::new();
    let module = wat::parse_str(script(r#"(func (export "run"))"#)).unwrap();
    let version: Arc<Version> = world.version(&module, |_| {});
    world.initscripts().activate(&version);
    while !world.initscripts().has(&version) {
        tokio::task::yield_now().await;
    }
    let run = world.initscripts().run(&version, Bytes::new(), None).await;
    assert_eq!(run.said, None);
}

/// A module that takes the compiler a while; `salt` makes another one.
fn large(salt: usize) -> Vec<u8> {
    let functions: String = (0..3000)
        .map(|at| {
            format!(
                "(func (param i32) (result i32) (i32.add (local.get 0) (i32.const {})))",
                at + salt
            )
        })
        .collect();
    wat::parse_str(script(&format!(r#"(func (export "run")) {functions}"#))).unwrap()
}

#[tokio::test]
async fn after_a_start_of_the_daemon_the_module_that_is_asked_for_is_compiled_first() {
    let world = World::new();
    // This one is the last to be compiled.
    let others: Vec<_> = (0..12)
        .map(|salt| world.version(&large(salt), |_| {}))
        .collect();
    let version = world.version(&large(12), |_| {});
    for other in &others {
        world.initscripts().activate(other);
    }
    world.initscripts().activate(&version);
    let runs = || world.initscripts().run(&version, Bytes::new(), None);
    let (one, other) = tokio::join!(runs(), runs());
    assert_eq!((one.said, other.said), (None, None));
    let compiled = others.iter().filter(|other| world.initscripts().has(other));
    assert!(compiled.count() < others.len());
}

#[tokio::test]
async fn a_module_that_is_not_compiled_in_time_is_left_out_once() {
    let world = World::new();
    let version = world.version(&large(0), |config| config.timeout_ms = 1);
    let early = world.initscripts().run(&version, Bytes::new(), None).await;
    assert!(early.said.unwrap().contains("not compiled in time"));
    while !world.initscripts().has(&version) {
        tokio::task::yield_now().await;
    }
}

/// The imports of the linker, of the SDK, of the description and of the manual are the same.
#[test]
fn everything_that_describes_the_host_names_the_same_functions() {
    let names_of = |text: &str, before: &str, after: &str| -> BTreeSet<String> {
        let names = text.lines().filter_map(|line| {
            let (_, rest) = line.trim().split_once(before)?;
            rest.split_once(after)
                .map(|(name, _)| name.replace('-', "_"))
        });
        names
            .filter(|name| {
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            })
            .collect()
    };
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let sdk = names_of(&read("sdk/initscript/src/host.rs"), "pub fn ", "(");
    let wit = names_of(&read("sdk/initscript/initscript.wit"), "", ": func(");
    let here = names_of(&read("crates/side/wasm/src/host.rs"), "\"", "\",");
    let manual = names_of(&read("docs/initscripts.md"), "| `", "(");
    let c = read("sdk/initscript/c/pilotlight_initscript.h");
    let mut c = names_of(&c, "PILOTLIGHT_HOST(", ")");
    assert!(c.remove("name"), "the macro's argument");
    assert!(sdk.len() >= 14);
    assert_eq!(sdk, c);
    assert_eq!(sdk, wit);
    assert_eq!(sdk, here);
    assert_eq!(sdk, manual);
    let tests: BTreeSet<String> = names_of(&script(""), "\"pilotlight_v1\" \"", "\"");
    assert_eq!(sdk, tests);
}

/// A module with exactly the imports that the description has is linked: parameters and results are the same.
#[test]
fn the_types_of_the_description_are_those_of_the_host() {
    let wit = fs::read_to_string(root().join("sdk/initscript/initscript.wit")).unwrap();
    let core = |kind: &str| match kind.trim() {
        "string" | "list<u8>" => "i32 i32",
        "u32" | "s32" => "i32",
        "u64" | "s64" => "i64",
        other => panic!("{other} is not a type of the interface"),
    };
    let functions = wit.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(": func(")?;
        let (parameters, result) = rest.split_once(')')?;
        let kinds = parameters.split(',').filter_map(|one| one.split_once(':'));
        let kinds: Vec<&str> = kinds.map(|(_, kind)| core(kind)).collect();
        let result = result.trim_end_matches(';').trim().strip_prefix("->");
        let result = result.map_or(String::new(), |kind| format!("(result {})", core(kind)));
        let name = name.replace('-', "_");
        (name != "export run").then(|| {
            let parameters = kinds.join(" ");
            format!(r#"(import "pilotlight_v1" "{name}" (func (param {parameters}) {result}))"#)
        })
    });
    let imports: Vec<String> = functions.collect();
    assert!(imports.len() >= 14, "{imports:?}");
    let engine = crate::engine::engine().unwrap();
    let linker = crate::host::linker(&engine).unwrap();
    for import in imports {
        let module = wat::parse_str(format!("(module {import})")).unwrap();
        let module = wasmtime::Module::from_binary(&engine, &module).unwrap();
        let linked = linker.instantiate_pre(&module);
        assert!(linked.is_ok(), "{import}: {:?}", linked.err());
    }
}
