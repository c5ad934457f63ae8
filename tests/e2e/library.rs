//! Features that ordinary Python code needs work inside the sandbox: threads, child processes, files, names. There is one test per
//! feature, so that the failures show which part of the filter or of the mounts is too strict.

use serde_json::{Value, json};

use crate::{answer, lab};

/// Runs these lines as the body of a handler, and compares the result.
#[track_caller]
fn gives(lines: &str, expected: Value) {
    let indented: Vec<String> = lines.lines().map(|line| format!("    {line}")).collect();
    let daemon = lab(
        &format!(
            "import os, sys\n\ndef handler(event, context):\n{}\n",
            indented.join("\n")
        ),
        json!({"timeout_s": 8}),
    );
    assert_eq!(answer(&daemon, "lab", json!({})), expected);
}

#[test]
fn threads() {
    gives(
        "import threading\nsaid = []\nthread = threading.Thread(target=said.append, args=(1,))\nthread.start()\nthread.join()\nreturn said",
        json!([1]),
    );
}

#[test]
fn thread_pools() {
    gives(
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor() as pool:\n    return list(pool.map(abs, [-1, 2]))",
        json!([1, 2]),
    );
}

#[test]
fn process_pools() {
    gives(
        "import multiprocessing\nwith multiprocessing.Pool(2) as pool:\n    return pool.map(abs, [-1, 2])",
        json!([1, 2]),
    );
}

#[test]
fn subprocesses() {
    gives(
        "import subprocess\nreturn subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True, text=True).stdout",
        json!("7\n"),
    );
}

#[test]
fn asyncio_with_threads_and_subprocesses() {
    gives(
        "import asyncio\nasync def both():\n    number = await asyncio.to_thread(abs, -3)\n    child = await asyncio.create_subprocess_exec('/bin/echo', 'hi', stdout=-1)\n    return [number, (await child.communicate())[0].decode()]\nreturn asyncio.run(both())",
        json!([3, "hi\n"]),
    );
}

#[test]
fn sqlite_in_tmp() {
    gives(
        "import sqlite3\nbase = sqlite3.connect('/tmp/base.db')\nbase.execute('create table t(a)')\nbase.execute('insert into t values (5)')\nbase.commit()\nreturn base.execute('select a from t').fetchall()",
        json!([[5]]),
    );
}

#[test]
fn certificates() {
    gives(
        "import ssl\nreturn ssl.create_default_context().cert_store_stats()['x509_ca'] > 0",
        json!(true),
    );
}

#[test]
fn time_zones() {
    gives(
        "import datetime, zoneinfo\nreturn datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset().seconds",
        json!(7200),
    );
}

#[test]
fn names_of_this_machine_and_user() {
    gives(
        "import getpass, pathlib, socket, tempfile\nassert getpass.getuser()\nassert pathlib.Path.home().is_dir()\nassert socket.gethostname()\nreturn [socket.getaddrinfo('localhost', 80, socket.AF_INET)[0][4][0], tempfile.gettempdir()]",
        json!(["127.0.0.1", "/tmp"]),
    );
}

#[test]
fn a_server_and_a_client_on_the_sandboxs_own_loopback() {
    gives(
        "import socket\nserver = socket.create_server(('127.0.0.1', 0))\nclient = socket.create_connection(server.getsockname())\npeer, _ = server.accept()\nclient.sendall(b'hello')\nreturn peer.recv(5).decode()",
        json!("hello"),
    );
}

#[test]
fn shared_memory_and_memory_maps() {
    gives(
        "import mmap\nfrom multiprocessing import shared_memory\nblock = shared_memory.SharedMemory(create=True, size=64)\nblock.buf[0] = 9\nvalue = block.buf[0]\nblock.close()\nblock.unlink()\nregion = mmap.mmap(-1, 4096)\nregion[0] = 1\nreturn [value, region[0]]",
        json!([9, 1]),
    );
}

#[test]
fn timers_and_signals() {
    gives(
        "import signal, time\nsaid = []\nsignal.signal(signal.SIGALRM, lambda *_: said.append('rang'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.2)\nreturn said",
        json!(["rang"]),
    );
}

#[test]
fn named_pipes() {
    gives(
        "import threading\nos.mkfifo('/tmp/fifo')\nwriter = threading.Thread(target=lambda: open('/tmp/fifo', 'w').write('through'))\nwriter.start()\ntext = open('/tmp/fifo').read()\nwriter.join()\nreturn text",
        json!("through"),
    );
}

#[test]
fn dev_stdout_and_dev_stderr_are_the_functions_output() {
    let code = r#"
import os, subprocess
with open("/dev/stderr", "w") as stderr:
    print("at import", file=stderr)

def handler(event, context):
    with open("/dev/stdout", "a") as stdout:
        print("to stdout", file=stdout)
    subprocess.run(["sh", "-c", "echo from a child > /dev/stderr"], check=True)
    try:
        os.open("/dev/stdout", os.O_RDONLY | os.O_NONBLOCK)
        return "may be read"
    except PermissionError:
        return "for writing"
"#;
    for keys in [json!({}), json!({"template": "off"})] {
        let daemon = lab(code, keys);
        let (response, tail) = daemon.invoke_tail("lab", &json!({}));
        assert!(!tail.contains("Error"), "{tail}");
        // Without root, functions have the user of the daemon, to whom the pipe belongs.
        if nix::unistd::geteuid().is_root() {
            assert_eq!(response.json(), json!("for writing"));
        }
        assert!(tail.contains("to stdout\n"), "{tail}");
        assert!(tail.contains("from a child\n"), "{tail}");
    }
}
