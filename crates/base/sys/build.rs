//! Compiles what the binary carries in C: the templates' inner loop, a shared object that languages' workers load, and the
//! containers' process 1, a static program.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fork_server(&out);
    shim(&out);
}

fn fork_server(out: &Path) {
    println!("cargo::rerun-if-changed=native/fork_server.c");
    let object = out.join("fork_server.so");
    let compiler = cc::Build::new().opt_level(2).get_compiler();
    let status = compiler
        .to_command()
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        // No C library, not even for a stack guard's or memset's sake: any interpreter can load it, glibc's or musl's.
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

/// What does not compile ends the build. What cannot be linked does not: where there is no static C library there are no
/// containers, which the daemon says when one is asked for, and everything else is as it is.
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
