//! Layers: content that functions share, shown at `/opt`.

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pilot_harness::{ArchiveEntry, Daemon, Need, Project, Request, archive, eventually, needs};
use serde_json::{Value, json};

use crate::{answer, daemon, plain};

const MANIFEST: &str =
    "[layers.tools]\npath = \"tools\"\n[functions.lab]\npath = \"lab\"\nlayers = [\"tools\"]\n";

/// Runs a command and returns what it prints.
const RUNS: &str = "import subprocess\ndef handler(event, context):\n    return subprocess.run(event, capture_output=True, text=True, check=True).stdout.strip()\n";

fn project(manifest: &str) -> Project {
    Project::empty().file("pilot.toml", manifest)
}

fn program(project: &Project, path: &str, text: &str) {
    project.write(path, text);
    let path = project.path().join(path);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_tool(project: Project, says: &str) -> Project {
    program(
        &project,
        "tools/bin/greet",
        &format!("#!/bin/sh\necho {says}\n"),
    );
    project
}

fn up(daemon: &Daemon, project: &Project) -> String {
    let manifest = project.path().join("pilot.toml");
    daemon.cli_ok(&["up", manifest.to_str().unwrap()])
}

fn up_fails(daemon: &Daemon, project: &Project) -> String {
    let manifest = project.path().join("pilot.toml");
    let output = daemon.cli(&["up", manifest.to_str().unwrap()]);
    assert!(!output.status.success(), "it was deployed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_program_of_a_layer_is_on_the_path_and_read_only() {
    let daemon = daemon();
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "hello");
    up(&daemon, &project);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "hello");
    assert_eq!(answer(&daemon, "lab", json!(["/opt/bin/greet"])), "hello");
    let written = answer(
        &daemon,
        "lab",
        json!([
            "sh",
            "-c",
            "echo x > /opt/bin/greet || touch /opt/new || echo refused"
        ]),
    );
    assert_eq!(written, "refused");
    let described = daemon.cli_ok(&["describe", "lab"]);
    assert!(described.contains("layer        tools ("), "{described}");
}

#[test]
fn a_second_deployment_uploads_no_layer_and_a_changed_layer_makes_a_version() {
    let daemon = daemon();
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "one");
    let first = up(&daemon, &project);
    assert!(first.contains("lab"), "{first}");
    up(&daemon, &project);
    assert_eq!(daemon.describe("lab")["number"], 1);
    project.write("lab/other.txt", "new code");
    let manifest = project.path().join("pilot.toml");
    let output = daemon.cli(&["up", manifest.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("layer 'tools' is there already"), "{told}");
    assert!(!told.contains("uploading layer"), "{told}");
    assert_eq!(daemon.describe("lab")["number"], 2);

    program(&project, "tools/bin/greet", "#!/bin/sh\necho two\n");
    up(&daemon, &project);
    assert_eq!(daemon.describe("lab")["number"], 3);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "two");
    // The old version still has its own layer.
    assert_eq!(answer(&daemon, "lab:2", json!(["greet"])), "one");
}

#[test]
fn python_modules_of_layers_are_imported_after_those_of_the_code() {
    let code = "import sys, common, layered, sited\ndef handler(event, context):\n    return [common.FROM, layered.FROM, sited.FROM]\n";
    let minor = std::process::Command::new("python3")
        .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        .output()
        .unwrap();
    let minor = String::from_utf8(minor.stdout).unwrap();
    let site = format!("tools/python/lib/python{}/site-packages", minor.trim());
    for template in ["on", "off"] {
        let daemon = daemon();
        let project = project(&format!("{MANIFEST}template = \"{template}\"\n"))
            .file("lab/app.py", code)
            .file("lab/common.py", "FROM = 'code'\n")
            .file("tools/python/common.py", "FROM = 'layer'\n")
            .file("tools/python/layered.py", "FROM = 'layer'\n")
            .file(&format!("{site}/sited.py"), "FROM = 'site'\n");
        up(&daemon, &project);
        assert_eq!(
            answer(&daemon, "lab", plain()),
            json!(["code", "layer", "site"]),
            "template = {template}"
        );
    }
}

#[test]
fn a_later_layer_replaces_the_files_of_an_earlier_one() {
    let two = |order: &str| {
        format!(
            "[layers.a]\npath = \"a\"\n[layers.b]\npath = \"b\"\n[functions.lab]\npath = \"lab\"\nlayers = {order}\n"
        )
    };
    let code = "def handler(event, context):\n    return [open('/opt/' + name).read() for name in ('both', 'dir/a', 'dir/b')]\n";
    let project = project(&two("[\"a\", \"b\"]"))
        .file("lab/app.py", code)
        .file("a/both", "a")
        .file("a/dir/a", "a")
        .file("b/both", "b")
        .file("b/dir/b", "b");
    let daemon = daemon();
    up(&daemon, &project);
    assert_eq!(answer(&daemon, "lab", plain()), json!(["b", "a", "b"]));
    project.write("pilot.toml", two("[\"b\", \"a\"]"));
    up(&daemon, &project);
    assert_eq!(daemon.describe("lab")["number"], 2);
    assert_eq!(answer(&daemon, "lab", plain()), json!(["a", "a", "b"]));
}

/// Loads a shared library by its name only, as wrappers of C libraries do.
#[test]
fn libraries_of_layers_are_found_by_name() {
    needs!(Need::Program("cc"));
    let code = "import ctypes\ndef handler(event, context):\n    return ctypes.CDLL('libanswer.so').answer()\n";
    for template in ["on", "off"] {
        let project = project(&format!("{MANIFEST}template = \"{template}\"\n"))
            .file("lab/app.py", code)
            .file("answer.c", "int answer(void) { return 42; }\n")
            .file("tools/lib/README", "");
        let built = std::process::Command::new("cc")
            .args([
                "-shared",
                "-fPIC",
                "-o",
                "tools/lib/libanswer.so",
                "answer.c",
            ])
            .current_dir(project.path())
            .status();
        assert!(built.unwrap().success(), "no C compiler");
        let daemon = daemon();
        up(&daemon, &project);
        assert_eq!(answer(&daemon, "lab", plain()), 42, "template = {template}");
    }
}

#[test]
fn node_finds_the_packages_of_layers() {
    let manifest = "[layers.tools]\npath = \"tools\"\n[functions.lab]\npath = \"lab\"\nruntime = \"node\"\nlayers = [\"tools\"]\n\
                    [functions.bare]\npath = \"bare\"\nruntime = \"node\"\nowner = \"lab\"\n";
    let project = project(manifest)
        .file(
            "lab/index.js",
            "const { execFileSync } = require('child_process');\n\
             exports.handler = async () => [require('layered'), execFileSync('greet').toString().trim()];\n",
        )
        .file(
            "bare/index.js",
            "exports.handler = async () => require('fs').readdirSync('/opt').sort();\n",
        )
        .file("tools/nodejs/node_modules/layered/index.js", "module.exports = 'layer';\n");
    let project = with_tool(project, "hello");
    let daemon = daemon();
    up(&daemon, &project);
    // One after the other, in each other's runtimes.
    for _ in 0..2 {
        assert_eq!(answer(&daemon, "lab", plain()), json!(["layer", "hello"]));
        assert_eq!(
            answer(&daemon, "bare", plain()),
            json!(["environment", "pilot"])
        );
        for name in ["lab", "bare"] {
            daemon.scale(name, 0);
        }
    }
}

/// A bootstrap that answers one event after another.
const BOOTSTRAP: &str = r#"#!/usr/bin/env python3
import json, os, urllib.request
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(api + "next") as event:
        id = event.headers["Lambda-Runtime-Aws-Request-Id"]
        event.read()
    answer = [__file__, open("handler.txt").read()]
    urllib.request.urlopen(urllib.request.Request(api + id + "/response", json.dumps(answer).encode()))
"#;

/// The dynamic linker reads the variable when the interpreter starts, which is before the function is known.
#[test]
fn a_node_with_libraries_of_a_layer_is_started_with_their_folder() {
    let manifest = "[layers.tools]\npath = \"tools\"\n[functions.lab]\npath = \"lab\"\nruntime = \"node\"\nlayers = [\"tools\"]\n";
    let project = project(manifest)
        .file(
            "lab/index.js",
            "const fs = require('fs');\n\
             exports.handler = async () => [\n\
               fs.readFileSync('/proc/self/environ', 'utf8').split('\\0').filter((one) => one.startsWith('LD_')),\n\
               process.env.LD_LIBRARY_PATH,\n\
               fs.readdirSync('/opt/lib'),\n\
             ];\n",
        )
        .file("tools/lib/libx.so", "");
    let daemon = daemon();
    up(&daemon, &project);
    let path = "/var/task:/var/task/lib:/opt/lib";
    let wanted = json!([[format!("LD_LIBRARY_PATH={path}")], path, ["libx.so"]]);
    assert_eq!(answer(&daemon, "lab", plain()), wanted);
}

#[test]
fn the_bootstrap_of_provided_may_be_in_a_layer() {
    let manifest = "[layers.tools]\npath = \"tools\"\n[functions.lab]\npath = \"lab\"\nruntime = \"provided\"\nlayers = [\"tools\"]\n";
    let project = project(manifest).file("lab/handler.txt", "code");
    program(&project, "tools/bootstrap", BOOTSTRAP);
    let daemon = daemon();
    up(&daemon, &project);
    assert_eq!(
        answer(&daemon, "lab", plain()),
        json!(["/opt/bootstrap", "code"])
    );
    program(&project, "lab/bootstrap", BOOTSTRAP);
    up(&daemon, &project);
    assert_eq!(answer(&daemon, "lab", plain())[1], "code");
    assert_ne!(answer(&daemon, "lab", plain())[0], "/opt/bootstrap");
}

#[test]
fn a_server_finds_programs_and_modules_of_layers() {
    let manifest = "[layers.tools]\npath = \"tools\"\n[functions.lab]\npath = \"lab\"\nruntime = \"http\"\ncommand = [\"serve\"]\n\
                    layers = [\"tools\"]\n";
    let server = r#"#!/usr/bin/env python3
import http.server, os, layered
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(layered.FROM.encode())
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;
    let project = project(manifest)
        .file("lab/README", "the server is in the layer")
        .file("tools/python/layered.py", "FROM = 'layer'\n");
    program(&project, "tools/bin/serve", server);
    let daemon = daemon();
    up(&daemon, &project);
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "layer");
}

#[test]
fn layers_that_no_kept_version_uses_are_removed() {
    let mut daemon = daemon();
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "one");
    up(&daemon, &project);
    let folder = daemon.data_dir().join("layers");
    assert_eq!(count(&folder), 2, "the layer and the merged folder");
    daemon.cli_ok(&["remove", "lab"]);
    // After a restart, no deployment is on its way any more.
    daemon.kill();
    daemon.resume();
    eventually("the layer is gone", || (count(&folder) == 0).then_some(()));
}

#[test]
fn a_function_with_layers_survives_a_restart_and_says_if_they_are_gone() {
    let mut daemon = daemon();
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "one");
    up(&daemon, &project);
    daemon.kill();
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "one");
    daemon.kill();
    std::fs::remove_dir_all(daemon.data_dir().join("layers")).unwrap();
    daemon.resume();
    let problem = daemon.describe("lab")["problem"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        problem.contains("layers") && problem.contains("deploy it again"),
        "{problem}"
    );
    up(&daemon, &project);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "one");
}

#[test]
fn layers_that_are_away_at_a_start_cost_no_version() {
    let mut daemon = daemon();
    up(
        &daemon,
        &with_tool(project(MANIFEST).file("lab/app.py", RUNS), "one"),
    );
    daemon.upload_code("lab", &plain(), &RUNS.replace(".strip()", ""));
    let (layers, away) = (
        daemon.data_dir().join("layers"),
        daemon.data_dir().join("away"),
    );
    daemon.kill();
    std::fs::rename(&layers, &away).unwrap();
    daemon.resume();
    let output = daemon.cli(&["rollback", "lab", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("version 1 of function 'lab' cannot run: its layers "),
        "{said}"
    );
    assert!(
        daemon.log().contains("an older version cannot run"),
        "{}",
        daemon.log()
    );
    // The sweep of this deployment comes after that of the start.
    daemon.upload_code("other", &plain(), RUNS);
    daemon.cli_ok(&["remove", "other"]);
    daemon.kill();
    std::fs::remove_dir(&layers).unwrap();
    std::fs::rename(&away, &layers).unwrap();
    daemon.resume();
    daemon.cli_ok(&["rollback", "lab"]);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "one");
}

fn zip(project: &Project, name: &str, script: &str) {
    let script = format!(
        "import zipfile, stat\nwith zipfile.ZipFile('{name}', 'w', zipfile.ZIP_DEFLATED) as z:\n{script}\n"
    );
    let made = std::process::Command::new("python3")
        .args(["-W", "ignore", "-c", &script])
        .current_dir(project.path())
        .status();
    assert!(made.unwrap().success());
}

const ZIPPED: &str =
    "[layers.tools]\npath = \"tools.zip\"\n[functions.lab]\npath = \"lab\"\nlayers = [\"tools\"]\n";

#[test]
fn a_layer_can_be_a_zip_file_with_links() {
    let project = project(ZIPPED).file("lab/app.py", RUNS);
    zip(
        &project,
        "tools.zip",
        "    i = zipfile.ZipInfo('bin/greet-1')\n    i.external_attr = 0o100755 << 16\n    z.writestr(i, '#!/bin/sh\\necho zipped\\n')\n    \
         i = zipfile.ZipInfo('bin/greet')\n    i.external_attr = 0o120777 << 16\n    z.writestr(i, 'greet-1')",
    );
    let daemon = daemon();
    up(&daemon, &project);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "zipped");
}

/// As on Lambda: what `readlink` says is what the zip file has, and what a link leads to is decided at `/opt`.
#[test]
fn links_of_layers_stay_links_and_lead_to_files_of_other_layers() {
    let manifest = "[layers.a]\npath = \"a\"\n[layers.b]\npath = \"b.zip\"\n[functions.lab]\npath = \"lab\"\n\
                    layers = [\"a\", \"b\"]\n";
    let code = "import os\n\
                import linked\n\
                def handler(event, context):\n    \
                    said = {}\n    \
                    for path in event:\n        \
                        path = '/opt/' + path\n        \
                        try:\n            \
                            said[path] = [os.readlink(path), open(path).read()]\n        \
                        except OSError as error:\n            \
                            said[path] = [os.readlink(path), error.strerror]\n    \
                    return [said, linked.__file__]\n";
    let project = project(manifest)
        .file("lab/app.py", code)
        .file("a/lib/x.so.1", "library")
        .file("a/python/real.py", "");
    for (link, target) in [
        ("lib/x.so", "x.so.1"),
        ("absolute", "/opt/lib/x.so"),
        ("other", "/opt/share/of-b"),
        ("python/linked.py", "real.py"),
        ("lib64", "lib"),
    ] {
        std::os::unix::fs::symlink(target, project.path().join("a").join(link)).unwrap();
    }
    let link = |name: &str, target: &str| {
        format!(
            "    i = zipfile.ZipInfo('{name}')\n    i.external_attr = 0o120777 << 16\n    z.writestr(i, '{target}')\n"
        )
    };
    // The daemon's own files are root's: a link to them must lead to the sandbox's.
    let secret = project.path().join("secret");
    std::fs::write(&secret, "of the machine").unwrap();
    zip(
        &project,
        "b.zip",
        &format!(
            "    z.writestr('share/of-b', 'b')\n{}{}{}",
            link("back", "lib64/x.so"),
            link("gone", "nowhere"),
            link("secret", secret.to_str().unwrap()),
        ),
    );
    let daemon = daemon();
    up(&daemon, &project);
    let asked = [
        "lib/x.so",
        "absolute",
        "other",
        "lib64/x.so",
        "back",
        "gone",
        "secret",
    ];
    let gone = "No such file or directory";
    let wanted = json!([
        {
            "/opt/lib/x.so": ["x.so.1", "library"],
            "/opt/absolute": ["/opt/lib/x.so", "library"],
            "/opt/other": ["/opt/share/of-b", "b"],
            "/opt/lib64/x.so": ["x.so.1", "library"],
            "/opt/back": ["lib64/x.so", "library"],
            "/opt/gone": ["nowhere", gone],
            "/opt/secret": [secret.to_str().unwrap(), gone],
        },
        "/opt/python/linked.py",
    ]);
    assert_eq!(answer(&daemon, "lab", json!(asked)), wanted);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the machine");
}

/// A large library with three names was as large as three.
#[test]
fn a_link_of_a_layer_adds_nothing_to_its_size() {
    let project = project(MANIFEST)
        .file("lab/app.py", RUNS)
        .file("tools/lib/x.so.1.2", "");
    let file = std::fs::File::options()
        .write(true)
        .open(project.path().join("tools/lib/x.so.1.2"))
        .unwrap();
    file.set_len(100 << 20).unwrap();
    for link in ["x.so.1", "x.so"] {
        std::os::unix::fs::symlink("x.so.1.2", project.path().join("tools/lib").join(link))
            .unwrap();
    }
    let daemon = daemon();
    up(&daemon, &project);
    let sizes = answer(
        &daemon,
        "lab",
        json!(["stat", "-L", "-c", "%s", "/opt/lib/x.so", "/opt/lib/x.so.1"]),
    );
    assert_eq!(sizes, "104857600\n104857600");
}

#[test]
fn a_bad_zip_file_is_refused_with_the_layers_name() {
    let project = project(ZIPPED).file("lab/app.py", RUNS);
    let daemon = daemon();
    let link = |target: &str| {
        format!(
            "    i = zipfile.ZipInfo('lib/x')\n    i.external_attr = 0o120777 << 16\n    z.writestr(i, '{target}')"
        )
    };
    for (script, wanted) in [
        (
            "    z.writestr('../evil', '')".to_owned(),
            "the entry '../evil' leads out of the layer",
        ),
        (
            "    z.writestr('/etc/evil', '')".to_owned(),
            "has an absolute path",
        ),
        (
            "    z.writestr('a', '1'); z.writestr('a', '2')".to_owned(),
            "duplicate file names",
        ),
        (
            "    z.writestr('a', '1'); z.writestr('a/b', '2')".to_owned(),
            "lies below 'a', which is a file",
        ),
        (link(""), "is a link without a target"),
        (
            "    z.writestr('pilot/node/worker.js', '')".to_owned(),
            "has 'pilot' at its top",
        ),
        ("    pass".to_owned(), "it has no file"),
        (
            "    z.writestr('zeros', b'\\0' * (251 << 20))".to_owned(),
            "is larger than the limit of 250 MB when it is unpacked",
        ),
    ] {
        zip(&project, "tools.zip", &script);
        let told = up_fails(&daemon, &project);
        assert!(told.contains("layer 'tools'"), "{told}");
        assert!(flat(&told).contains(wanted), "{told}");
    }
    project.write("tools.zip", "not a zip");
    let told = up_fails(&daemon, &project);
    assert!(
        flat(&told).contains("is not a zip file that can be read"),
        "{told}"
    );
    std::fs::remove_file(project.path().join("tools.zip")).unwrap();
    let told = up_fails(&daemon, &project);
    assert!(
        flat(&told).contains("layers.tools.path: \"tools.zip\" is neither"),
        "{told}"
    );
    assert_eq!(count(&daemon.data_dir().join("layers")), 0);
}

/// Without the line breaks for the terminal.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn layers_that_cannot_be_merged_are_refused_by_name() {
    let manifest = "[layers.a]\npath = \"a\"\n[layers.b]\npath = \"b\"\n[functions.lab]\npath = \"lab\"\nlayers = [\"a\", \"b\"]\n";
    let project = project(manifest)
        .file("lab/app.py", RUNS)
        .file("a/python/x.py", "")
        .file("b/python", "a file");
    let daemon = daemon();
    let told = up_fails(&daemon, &project);
    let wanted = "layer 'b' has the file 'python', and layer 'a' has a folder there";
    assert!(flat(&told).contains(wanted), "{told}");
}

#[test]
fn code_and_layers_together_are_at_most_250_mb() {
    let project = project(MANIFEST).file("lab/app.py", RUNS);
    for (path, mb) in [("lab/model.bin", 150), ("tools/data.bin", 101)] {
        project.write(path, "");
        let file = std::fs::File::options()
            .write(true)
            .open(project.path().join(path))
            .unwrap();
        file.set_len(mb << 20).unwrap();
    }
    let daemon = daemon();
    let told = flat(&up_fails(&daemon, &project));
    for wanted in [
        "function 'lab' is too large: 251 MB (code 150 MB, layer 'tools' 101 MB), more than the limit of 250 MB",
        "model.bin (150 MB), data.bin of layer 'tools' (101 MB)",
    ] {
        assert!(told.contains(wanted), "{told}");
    }
}

/// What a client other than the command line can send.
#[test]
fn an_upload_is_checked_against_its_id_and_never_half_there() {
    let daemon = daemon();
    let folder = daemon.data_dir().join("layers");
    let put = |id: &str, body: Vec<u8>| {
        let request = Request::new("PUT", &format!("/_pilot/v1/layers/{id}")).body(body);
        let response = daemon.send(&request);
        (response.status, response.json())
    };
    let tar = archive(&[ArchiveEntry::text("bin/x", "x")]);
    let wrong = "0".repeat(64);
    let (status, error) = put(&wrong, tar.clone());
    assert_eq!(
        (status, error["code"].as_str()),
        (400, Some("bad_layer")),
        "{error}"
    );
    let message = error["message"].as_str().unwrap();
    let right = message
        .split(' ')
        .find(|word| word.len() >= 64)
        .unwrap()
        .trim_matches(',')
        .to_owned();
    assert_eq!(count(&folder), 0);
    let (status, _) = put(&right, tar[..tar.len() / 2].to_vec());
    assert_eq!(status, 400);
    let (status, error) = put("..%2Fcode", tar.clone());
    assert_eq!(
        (status, error["code"].as_str()),
        (400, Some("bad_name")),
        "{error}"
    );
    assert_eq!(count(&folder), 0);
    assert_eq!(
        daemon.get(&format!("/_pilot/v1/layers/{right}")).status,
        404
    );
    let (status, info) = put(&right, tar);
    assert_eq!((status, info["files"].as_u64()), (200, Some(1)), "{info}");
    assert_eq!(
        daemon.get(&format!("/_pilot/v1/layers/{right}")).status,
        200
    );

    let unknown = json!({"layers": [format!("tools:{wrong}")]});
    let code = archive(&[ArchiveEntry::text("app.py", RUNS)]);
    let (_, refused) = daemon.upload("lab", &unknown, &code);
    assert_eq!(refused["code"], "unknown_layer", "{refused}");
    let (_, refused): (u16, Value) = daemon.upload("lab", &json!({"layers": ["tools"]}), &code);
    assert_eq!(refused["code"], "bad_config", "{refused}");
    assert!(
        refused["message"].as_str().unwrap().contains("has no id"),
        "{refused}"
    );
}

#[test]
fn a_link_out_of_a_layers_folder_is_refused() {
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "one");
    std::os::unix::fs::symlink("/etc/passwd", project.path().join("tools/passwd")).unwrap();
    let daemon = daemon();
    let told = flat(&up_fails(&daemon, &project));
    assert!(
        told.contains("layer 'tools'") && told.contains("/etc/passwd, outside the layer"),
        "{told}"
    );
}

/// The highest resident memory of the daemon so far, bytes.
fn memory_max(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kb: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kb << 10
}

#[test]
fn the_daemons_memory_does_not_grow_with_an_upload() {
    let project = with_tool(project(MANIFEST).file("lab/app.py", RUNS), "large");
    // Random bytes cannot be compressed: the upload is as large as the file.
    for (path, mb) in [("lab/model.bin", 120), ("tools/data.bin", 120)] {
        let mut random = std::fs::File::open("/dev/urandom").unwrap().take(mb << 20);
        let mut file = std::fs::File::create(project.path().join(path)).unwrap();
        std::io::copy(&mut random, &mut file).unwrap();
    }
    let daemon = daemon();
    let small = Project::function("small", RUNS, "");
    daemon.deploy(&small);
    let before = memory_max(&daemon);
    up(&daemon, &project);
    let grown = memory_max(&daemon) - before;
    println!(
        "peak before {} MB, grown by {} KB",
        before >> 20,
        grown >> 10
    );
    assert!(grown < 24 << 20, "grown by {} MB", grown >> 20);
    assert_eq!(answer(&daemon, "lab", json!(["greet"])), "large");
}
