//! What to change if a version does not start, if the code's files say more than the error: the module of the handler is missing,
//! the program of the command is missing, or this machine cannot run it.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use pilot_model::hint;
use pilot_model::ports::StartError;
use pilot_model::runtime::CodeFiles;
use pilot_model::{Runtime, Version};

/// What is wrong with a command's program in the code that no machine can run, and what to change.
pub(super) fn command_problem(runtime: &Runtime, code: &Path) -> Option<String> {
    let program = runtime.program()?;
    let inside = in_code(program)?;
    let Ok(metadata) = fs::metadata(code.join(&inside)) else {
        let there = there_is(code, |_| true);
        return Some(format!(
            "command: there is no {} in the code ({there}): put it there, or set command",
            inside.display()
        ));
    };
    if metadata.is_dir() {
        return Some(format!(
            "command: {} is a folder in the code: set command to a program",
            inside.display()
        ));
    }
    (metadata.permissions().mode() & 0o111 == 0).then(|| {
        format!(
            "command: {0} is not executable: chmod +x {0} and deploy again, or begin command with its interpreter, for example \
             [\"python3\", \"{0}\"]",
            inside.display()
        )
    })
}

/// What to add to a start's error.
pub(super) fn of(error: &StartError, version: &Version) -> Option<String> {
    let (code, runtime) = (&version.code_dir, &version.config.runtime);
    match (error, runtime.program()) {
        (StartError::Runtime { .. }, Some(program)) => match in_code(program) {
            Some(inside) => not_for_this_machine(&code.join(&inside), &inside),
            None => not_on_path(program, version),
        },
        (StartError::Runtime { .. }, None) if runtime.forks() => None,
        (StartError::Import { .. } | StartError::Runtime { .. }, None) => {
            let node = version.environment.node.as_ref();
            let missing = runtime.missing_module(&version.config.handler, &Code(code), node);
            missing.or_else(|| of_import(error, version))
        }
        _ => None,
    }
}

/// What the exception of an import says.
fn of_import(error: &StartError, version: &Version) -> Option<String> {
    match error {
        StartError::Import { body, .. } => hint::of_error(version, body.as_bytes()),
        _ => None,
    }
}

/// The folder of a version's code.
struct Code<'a>(&'a Path);

impl CodeFiles for Code<'_> {
    fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    fn has_file(&self, path: &str) -> bool {
        self.0.join(path).is_file()
    }

    fn names(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
        names(self.0, wanted)
    }
}

/// Why the kernel cannot run a program of the code, from the program's first bytes.
fn not_for_this_machine(path: &Path, inside: &Path) -> Option<String> {
    let mut first = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(FIRST_BYTES)
        .read_to_end(&mut first)
        .ok()?;
    let name = inside.display();
    if first.starts_with(b"#!") {
        let line = first.split(|byte| *byte == b'\n').next()?;
        return line.ends_with(b"\r").then(|| {
            format!("{name} has lines that end as on Windows, also the one that names its interpreter: save it with Unix line ends")
        });
    }
    if MACHO.iter().any(|magic| first.starts_with(magic)) {
        return Some(format!(
            "{name} is built for macOS: build it for Linux ({})",
            std::env::consts::ARCH
        ));
    }
    if !first.starts_with(b"\x7fELF") {
        return Some(format!(
            "{name} is neither a program nor a script that begins with #! and its interpreter"
        ));
    }
    let machine = u16::from_le_bytes([*first.get(18)?, *first.get(19)?]);
    let (_, built_for) = ELF_MACHINES.iter().find(|(number, _)| *number == machine)?;
    (*built_for != std::env::consts::ARCH).then(|| {
        format!(
            "{name} is built for {built_for}, and this machine is {}",
            std::env::consts::ARCH
        )
    })
}

/// Whether a folder of a function has a program. A link counts as one, wherever it leads in the sandbox: nobody follows it here, where it
/// could lead to a file of the machine.
pub(super) fn has_program(folder: &Path, program: &str) -> bool {
    let is_folder = |folder: &Path| folder.symlink_metadata().is_ok_and(|found| found.is_dir());
    let is_program = |found: &fs::Metadata| found.is_file() || found.is_symlink();
    is_folder(folder)
        && folder
            .join(program)
            .symlink_metadata()
            .is_ok_and(|found| is_program(&found))
}

/// A program that is not in the function's PATH.
fn not_on_path(program: &str, version: &Version) -> Option<String> {
    if program.contains('/') {
        return None;
    }
    let environment = &version.environment;
    let beside = |path: &Path| path.parent().map(Path::to_owned);
    let node = environment.node.as_ref();
    let of_function = [
        environment
            .packages_dir()
            .map(|packages| packages.join("bin")),
        environment
            .modules_dir()
            .map(|modules| modules.join(".bin")),
        Some(version.code_dir.join("node_modules/.bin")),
    ];
    let of_machine = [
        environment
            .python
            .as_ref()
            .and_then(|python| beside(&python.executable)),
        node.and_then(|node| beside(&node.executable)),
    ];
    let machine = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    let mut machine = machine.into_iter().chain(of_machine.into_iter().flatten());
    let mut folders = of_function.into_iter().flatten();
    let is_there = folders.any(|folder| has_program(&folder, program))
        || layer_bin_may_have(version, program)
        || machine.any(|folder| folder.join(program).exists());
    if is_there {
        return None;
    }
    if has_program(&version.code_dir, program) {
        return Some(format!("{program} is in the code: write ./{program}"));
    }
    Some(format!(
        "{program} is neither on the machine nor in the environment or a layer: add it to requirements.txt or package.json, or, where it is \
         in the code, begin it with ./"
    ))
}

/// Whether the layers' `bin` has a program, or leads elsewhere, where it may have it.
fn layer_bin_may_have(version: &Version, program: &str) -> bool {
    version.layers.as_ref().is_some_and(|layers| {
        let bin = layers.dir.join("bin");
        bin.is_symlink() || has_program(&bin, program)
    })
}

/// The path of a program in the code; `None`: it is not in the code.
fn in_code(program: &str) -> Option<PathBuf> {
    let path = Path::new(program);
    let inside = match path.strip_prefix(TASK) {
        Ok(inside) => inside,
        Err(_) if path.is_absolute() || !program.contains('/') => return None,
        Err(_) => path.strip_prefix(".").unwrap_or(path),
    };
    Some(inside.to_owned())
}

fn there_is(code: &Path, wanted: impl Fn(&str) -> bool) -> String {
    let found = names(code, wanted);
    if found.is_empty() {
        return "it is empty".to_owned();
    }
    format!("there is {}", found.join(", "))
}

/// The first few matching names at the top level of the code.
fn names(code: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let entries = fs::read_dir(code).into_iter().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| wanted(name) && !name.starts_with("__"))
        .collect();
    found.sort();
    found.truncate(NAMES_MAX);
    found
}

/// Where the code is in its sandbox.
const TASK: &str = "/var/task";
const NAMES_MAX: usize = 5;
/// Enough for an ELF header up to `e_machine`, and for the first line of most scripts.
const FIRST_BYTES: u64 = 256;
/// Thin 64-bit files of either byte order, and fat ones (`mach-o/loader.h`, `mach-o/fat.h`).
const MACHO: [[u8; 4]; 3] = [
    [0xcf, 0xfa, 0xed, 0xfe],
    [0xfe, 0xed, 0xfa, 0xcf],
    [0xca, 0xfe, 0xba, 0xbe],
];
/// `EM_X86_64`, `EM_AARCH64` and `EM_ARM` (`elf.h`), by the names of `std::env::consts::ARCH`.
const ELF_MACHINES: [(u16, &str); 3] = [(62, "x86_64"), (183, "aarch64"), (40, "arm")];

#[cfg(test)]
mod tests {
    use pilot_model::Node;
    use pilot_model::runtime::provided::ProvidedRuntime;

    use super::*;

    fn code(files: &[(&str, &[u8], u32)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes, mode) in files {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        folder
    }

    fn provided(program: &str) -> Runtime {
        Runtime::Provided(ProvidedRuntime {
            command: vec![program.to_owned()],
        })
    }

    #[test]
    fn a_bootstrap_that_is_missing_or_cannot_be_run_is_named() {
        let folder = code(&[("app.py", b"", 0o644), ("boot", b"#!/bin/sh", 0o644)]);
        let problem = |program| command_problem(&provided(program), folder.path());
        assert_eq!(
            problem("./bootstrap").unwrap(),
            "command: there is no bootstrap in the code (there is app.py, boot): put it there, or set command"
        );
        let not_executable = "command: boot is not executable: chmod +x boot and deploy again, or begin command with its interpreter, \
                              for example [\"python3\", \"boot\"]";
        assert_eq!(problem("./boot").unwrap(), not_executable);
        assert_eq!(problem("/var/task/boot").unwrap(), not_executable);
        fs::create_dir(folder.path().join("bin")).unwrap();
        assert_eq!(
            problem("./bin").unwrap(),
            "command: bin is a folder in the code: set command to a program"
        );
        for elsewhere in ["python3", "/bin/sh"] {
            assert_eq!(problem(elsewhere), None, "{elsewhere}");
        }
        let empty = code(&[]);
        let problem = command_problem(&provided("bin/server"), empty.path()).unwrap();
        assert!(
            problem.contains("no bin/server in the code (it is empty)"),
            "{problem}"
        );
    }

    #[test]
    fn what_the_kernel_refuses_is_told_by_its_first_bytes() {
        let mut foreign = b"\x7fELF\x02\x01\x01".to_vec();
        foreign.resize(64, 0);
        foreign[18] = if cfg!(target_arch = "x86_64") {
            183
        } else {
            62
        };
        let folder = code(&[
            ("dos", b"#!/bin/sh\r\necho\r\n", 0o755),
            ("unix", b"#!/bin/sh\necho\n", 0o755),
            ("mac", b"\xcf\xfa\xed\xfe....", 0o755),
            ("text", b"print(1)\n", 0o755),
            ("foreign", &foreign, 0o755),
        ]);
        let hint = |name: &str| not_for_this_machine(&folder.path().join(name), Path::new(name));
        assert!(hint("dos").unwrap().contains("Unix line ends"));
        assert_eq!(hint("unix"), None);
        assert!(hint("mac").unwrap().starts_with("mac is built for macOS"));
        assert!(hint("text").unwrap().contains("begins with #!"));
        let told = hint("foreign").unwrap();
        assert!(told.starts_with("foreign is built for "), "{told}");
        let own = Path::new("/proc/self/exe");
        assert_eq!(not_for_this_machine(own, own), None);
    }

    #[test]
    fn a_layers_bootstrap_is_there_wherever_its_link_leads() {
        let layer = tempfile::tempdir().unwrap();
        let bootstrap = layer.path().join("bootstrap");
        assert!(!has_program(layer.path(), "bootstrap"));
        for target in ["/etc/passwd", "/nowhere", "/root"] {
            std::os::unix::fs::symlink(target, &bootstrap).unwrap();
            assert!(has_program(layer.path(), "bootstrap"), "{target}");
            fs::remove_file(&bootstrap).unwrap();
        }
        fs::write(&bootstrap, "").unwrap();
        assert!(has_program(layer.path(), "bootstrap"));
        let link = layer.path().join("link");
        std::os::unix::fs::symlink(layer.path(), &link).unwrap();
        assert!(!has_program(&link, "bootstrap"), "a link to a folder");
    }

    fn missing_node(handler: &str, code: &Path, version: &str) -> Option<String> {
        let node = Node {
            executable: PathBuf::new(),
            prefix: PathBuf::new(),
            version: version.to_owned(),
            modules_dir: None,
        };
        let runtime = Runtime::named("node").unwrap();
        runtime.missing_module(handler, &Code(code), Some(&node))
    }

    #[test]
    fn a_node_module_that_is_missing_is_explained_by_what_there_is() {
        let hint = |files: &[&str]| {
            let files: Vec<(&str, &[u8], u32)> =
                files.iter().map(|name| (*name, &b""[..], 0o644)).collect();
            missing_node("index.handler", code(&files).path(), "20.20.2")
        };
        let missing = "there is no index.js, index.mjs or index.cjs in the code";
        for there in ["index.js", "index.mjs", "index.cjs"] {
            assert_eq!(hint(&[there]), None, "{there}");
        }
        assert_eq!(
            hint(&["main.mjs", "app.js", "x.json"]).unwrap(),
            format!("{missing} (there is app.js, main.mjs): set handler")
        );
        assert_eq!(
            hint(&["index.ts"]).unwrap(),
            format!("{missing}, but index.ts: deploy the compiled JavaScript")
        );
        assert_eq!(
            hint(&["package.json"]).unwrap(),
            format!("{missing}, nor any other such file at its top: check path and handler")
        );
        let typed = code(&[("index.ts", b"", 0o644)]);
        let on = |version| missing_node("index.handler", typed.path(), version);
        assert!(on("24.1.0").is_none() && on("18.20.0").is_some());
        let nested = missing_node("a.b/index.nested.handler", typed.path(), "20.20.2").unwrap();
        assert!(nested.starts_with("there is no a.b/index.js, "), "{nested}");
    }

    #[test]
    fn a_program_that_is_nowhere_says_where_to_put_it() {
        let folder = code(&[("server", b"", 0o755)]);
        let mut version = Version::clone(&pilot_testkit::version("f", 1));
        version.code_dir = folder.path().to_owned();
        assert_eq!(not_on_path("sh", &version), None);
        assert_eq!(
            not_on_path("server", &version).unwrap(),
            "server is in the code: write ./server"
        );
        assert!(
            not_on_path("functions-framework", &version)
                .unwrap()
                .contains("add it to requirements.txt or package.json")
        );
        // A layer's links are not followed: they say nothing about the machine's files.
        let layer = folder.path().join("layer");
        fs::create_dir_all(layer.join("bin")).unwrap();
        version.layers = Some(pilot_model::MergedLayers {
            dir: layer.clone(),
            has_lib: false,
        });
        assert!(not_on_path("tool", &version).is_some());
        for target in ["/etc/passwd", "/nowhere"] {
            let tool = layer.join("bin/tool");
            std::os::unix::fs::symlink(target, &tool).unwrap();
            assert_eq!(not_on_path("tool", &version), None, "{target}");
            fs::remove_file(tool).unwrap();
        }
        fs::remove_dir(layer.join("bin")).unwrap();
        for target in ["/etc", "/nowhere"] {
            std::os::unix::fs::symlink(target, layer.join("bin")).unwrap();
            assert_eq!(not_on_path("passwd", &version), None, "{target}");
            fs::remove_file(layer.join("bin")).unwrap();
        }
        assert!(not_on_path("tool", &version).is_some());
        let packages = folder.path().join("packages");
        fs::create_dir_all(packages.join("bin")).unwrap();
        fs::write(packages.join("bin/functions-framework"), "").unwrap();
        let python = version.environment.python.as_mut().unwrap();
        python.packages_dir = Some(packages);
        assert_eq!(not_on_path("functions-framework", &version), None);
    }
}
