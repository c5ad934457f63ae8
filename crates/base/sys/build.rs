//! Compiles the C parts of the binary: the templates' inner loop, a shared object that workers' interpreters load; the shim, which
//! is process 1 of containers, a static program; and the holder of inputs, another one.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fork_server(&out);
    shim(&out);
    holder(&out);
}

fn fork_server(out: &Path) {
    println!("cargo::rerun-if-changed=native/fork_server.c");
    let object = out.join("fork_server.so");
    let compiler = cc::Build::new().opt_level(2).get_compiler();
    let status = compiler
        .to_command()
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        // No C library, not even for stack protection or memset, so that any interpreter can load it, with glibc or musl.
        .args([
            "-ffreestanding",
            "-fno-stack-protector",
            "-nostdlib",
            "-shared",
            "-fPIC",
        ])
        .args([
            "-fvisibility=default",
            "-Wl,-z,now",
            "-Wl,--build-id=none",
            "-s",
        ])
        .arg("native/fork_server.c")
        .arg("-o")
        .arg(&object)
        .status()
        .expect("a C compiler runs: it is needed to build Pilotlight (Debian: apt install gcc)");
    assert!(status.success(), "native/fork_server.c does not compile");
}

/// A compile error ends the build. A link error does not: without a static C library there is no support for containers, which
/// the daemon reports when a container is requested; everything else works.
fn shim(out: &Path) {
    let compiler = cc::Build::new().opt_level_str("s").get_compiler();
    println!("cargo::rerun-if-changed=native/shim.h");
    let objects = ["shim", "shim_users", "shim_clean"].map(|part| {
        let source = format!("native/{part}.c");
        println!("cargo::rerun-if-changed={source}");
        let object = out.join(format!("{part}.o"));
        let compiled = compiler
            .to_command()
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"])
            .args(["-ffunction-sections", "-fdata-sections"])
            .args(["-c", &source, "-o"])
            .arg(&object)
            .status()
            .expect("a C compiler runs: fork_server.c was compiled");
        assert!(compiled.success(), "{source} does not compile");
        object
    });
    let program = out.join("shim");
    let linked = compiler
        .to_command()
        .args(["-static", "-no-pie", "-Wl,--gc-sections"])
        .args(["-Wl,-z,now", "-Wl,--build-id=none", "-s"])
        .args(objects)
        .arg("-o")
        .arg(&program)
        .status()
        .is_ok_and(|status| status.success());
    if !linked {
        println!(
            "cargo::warning=there is no static C library (Debian: libc6-dev): this build runs no containers"
        );
        std::fs::write(&program, []).expect("OUT_DIR can be written to");
    }
}

fn holder(out: &Path) {
    println!("cargo::rerun-if-changed=native/holder.c");
    let compiler = cc::Build::new().opt_level_str("s").get_compiler();
    let status = compiler
        .to_command()
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        // No C library: it is executed often, in any root.
        .args(["-ffreestanding", "-fno-stack-protector", "-nostdlib"])
        .args(["-fno-asynchronous-unwind-tables", "-static", "-no-pie"])
        .args(["-Wl,--build-id=none", "-Wl,-z,noexecstack", "-s"])
        .arg("native/holder.c")
        .arg("-o")
        .arg(out.join("holder"))
        .status()
        .expect("a C compiler runs: fork_server.c was compiled");
    assert!(status.success(), "native/holder.c does not compile");
}
