//! Compiles the templates' inner loop to a shared object, which the binary carries and languages' workers load.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=native/fork_server.c");
    let object =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("fork_server.so");
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
