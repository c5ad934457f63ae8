use super::*;
use crate::choices::{Contract, Interface, Network, Reuse};
use crate::runtime::Runtime;
use crate::runtime::container::ContainerRuntime;
use crate::runtime::http::HttpRuntime;
use crate::runtime::node::NodeRuntime;
use crate::runtime::provided::ProvidedRuntime;
use crate::runtime_key::ContainerDisk;
use proptest::prelude::*;

const FULL: &str = r#"
[functions.invert]
path = "."
runtime = "python3.11"
handler = "app.handler"
memory_mb = 256
timeout_s = 10
cpu = 1.0
network = "none"
environment = { LEVEL = "info" }
[functions.invert.scale]
min = 0
max = 64
spare = 0
idle_s = 60
"#;

fn problem_of(text: &str) -> String {
    Manifest::parse(text, "pilot.toml").unwrap_err().to_string()
}

#[test]
fn the_manifest_of_the_documentation_is_read() {
    let manifest = Manifest::parse(FULL, "pilot.toml").unwrap();
    let (name, spec) = manifest.functions.iter().next().unwrap();
    let config = spec.check(name).unwrap();
    assert_eq!(config.memory_bytes, 256 << 20);
    assert_eq!(config.network, Network::None);
    assert_eq!(config.interface, Interface::Event);
    assert_eq!(config.reuse, Reuse::Always);
    assert_eq!(config.cpu_milli, 1000);
    assert_eq!(config.scale.max, 64);
}

#[test]
fn an_unknown_key_names_the_nearest_known_one_and_its_line() {
    let text = "[functions.a]\nmemroy_mb = 1\n";
    let problem = problem_of(text);
    assert!(problem.starts_with("pilot.toml:2:"), "{problem}");
    assert!(problem.contains("did you mean 'memory_mb'?"), "{problem}");
}

#[test]
fn a_key_in_the_wrong_table_says_which_one_is_right() {
    for (text, hint) in [
        ("handler = \"app.run\"\n", "it is a key of [functions.NAME]"),
        (
            "[functions.a.scale]\nconcurrency = 2\n",
            "it is a key of [functions.a]",
        ),
        (
            "[functions.a]\nmax = 2\n",
            "it is a key of [functions.a.scale]",
        ),
        (
            "[functions.a]\nidle_s = 2\n",
            "it is a key of [functions.a.scale]",
        ),
        ("idle_s = 2\n", "it is a key of [functions.NAME.scale]"),
    ] {
        let problem = problem_of(text);
        assert!(problem.contains(hint), "{problem}");
    }
    for text in [
        "[functions.a]\nmemroy_mb = 1\n",
        "[functions.a.scale]\nmost = 1\n",
        "x = 1\n",
    ] {
        let problem = problem_of(text);
        assert!(!problem.contains("it is a key of"), "{problem}");
    }
}

#[test]
fn an_unknown_word_names_the_nearest_known_one() {
    let problem = problem_of("[functions.a]\nnetwork = \"outbond\"\n");
    assert!(problem.contains("functions.a.network"), "{problem}");
    assert!(problem.contains("did you mean \"outbound\"?"), "{problem}");
}

#[test]
fn a_root_path_is_one_of_an_application() {
    let checked = |keys: &str| {
        let text = format!("[functions.a]\n{keys}\n");
        let problem = Manifest::parse(&text, "pilot.toml").map(|manifest| {
            let (_, spec) = manifest.functions.into_iter().next().unwrap();
            spec.check(&"a".parse().unwrap())
        });
        problem
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    };
    let asgi = "interface = \"asgi\"\n";
    for path in ["", "/shop", "/a/b-c.d~"] {
        let config = checked(&format!("{asgi}root_path = \"{path}\"")).unwrap();
        assert_eq!(config.root_path.as_deref(), Some(path));
    }
    for path in ["/", "shop", "/shop/", "/a//b", "/a b", "/a?b", "/ä"] {
        let problem = checked(&format!("{asgi}root_path = \"{path}\"")).unwrap_err();
        assert!(
            problem.contains("root_path") && problem.contains("\"/shop\""),
            "{problem}"
        );
    }
    for keys in [
        "",
        "runtime = \"node\"\n",
        "runtime = \"http\"\ncommand = [\"a\"]\n",
    ] {
        let problem = checked(&format!("{keys}root_path = \"\"")).unwrap_err();
        assert!(
            problem.contains("interface = \"asgi\" and \"wsgi\""),
            "{problem}"
        );
    }
}

#[test]
fn values_out_of_range_name_key_and_range() {
    for (line, key) in [
        ("memory_mb = 1", "memory_mb"),
        ("timeout_s = 0", "timeout_s"),
        ("timeout_s = nan", "timeout_s"),
        ("cpu = -1.0", "cpu"),
        ("concurrency = 0", "concurrency"),
        ("scale = { min = 3, max = 2 }", "scale.min"),
        ("handler = \"app\"", "handler"),
        ("handler = \"../app.f\"", "handler"),
        ("runtime = \"pyhton\"", "runtime"),
        ("environment = { \"1A\" = \"\" }", "environment"),
        (
            "keep_alive = { behaviour = \"freese\" }",
            "keep_alive.behaviour",
        ),
        ("keep_alive = { after_s = 1 }", "keep_alive.after_s"),
        (
            "keep_alive = { behaviour = \"freeze\", after_s = 0 }",
            "keep_alive.after_s",
        ),
        (
            "keep_alive = { behaviour = \"throttle\", reclaim_after_s = 9 }",
            "keep_alive.reclaim_after_s",
        ),
        (
            "keep_alive = { behaviour = \"freeze\", after_s = 2, reclaim_after_s = 1 }",
            "keep_alive.reclaim_after_s",
        ),
        (
            "keep_alive = { behaviour = \"template\" }\nscale = { min = 1 }",
            "keep_alive.behaviour",
        ),
        (
            "keep_alive = { behaviour = \"template\" }\nscale = { idle_s = 5 }",
            "keep_alive.behaviour",
        ),
        (
            "keep_alive = { behaviour = \"template\" }\ntemplate = \"off\"",
            "keep_alive.behaviour",
        ),
        (
            "keep_alive = { behaviour = \"freeze\" }\nreuse = \"once\"",
            "keep_alive.behaviour",
        ),
        (
            "keep_alive = { behaviour = \"freeze\" }\nruntime = \"container\"\nimage = \"a\"\ncontract = \"http\"",
            "keep_alive.behaviour",
        ),
        ("keep_alive = { stop = \"sigkill\" }", "keep_alive.stop"),
        ("keep_alive = { grace_s = 11 }", "keep_alive.grace_s"),
        ("keep_alive = { grace_s = -1 }", "keep_alive.grace_s"),
        (
            "keep_alive = { stop = \"kill\", grace_s = 1 }",
            "keep_alive.grace_s",
        ),
        (
            "keep_alive = { stop = \"kill\" }\nruntime = \"wasm\"\ncomponent = \"a.wasm\"",
            "keep_alive.stop",
        ),
        (
            "keep_alive = { grace_s = 1 }\nruntime = \"container\"\nimage = \"a\"\ncontract = \"shim\"\ncommand = [\"a\"]",
            "keep_alive.grace_s",
        ),
        (
            "cpu_limit = { enforcement = \"exact\" }",
            "cpu_limit.enforcement",
        ),
        ("cpu_limit = { period_ms = 1001 }", "cpu_limit.period_ms"),
        (
            "cpu_limit = { period_ms = 10 }\ncpu = 0.05",
            "cpu_limit.period_ms",
        ),
        (
            "cpu_limit = { enforcement = \"precise\", period_ms = 10 }",
            "cpu_limit.period_ms",
        ),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{line}\n"));
        assert!(
            problem.contains(&format!("functions.a.{key}: ")),
            "{problem}"
        );
    }
}

#[test]
fn a_value_of_the_wrong_type_names_line_function_key_and_what_would_do() {
    for (line, wanted) in [
        (
            "memory_mb = \"much\"",
            "functions.a.memory_mb: is \"much\", must be a whole number",
        ),
        (
            "memory_mb = -1",
            "functions.a.memory_mb: is -1, must be a whole number, not below 0",
        ),
        ("memory_mb = 1.5", "functions.a.memory_mb: is 1.5, must be"),
        (
            "concurrency = 99999999999",
            "functions.a.concurrency: is 99999999999, must be a whole number, at most 4294967295",
        ),
        (
            "timeout_s = true",
            "functions.a.timeout_s: is true, must be a number",
        ),
        (
            "runtime = 3.11",
            "functions.a.runtime: is 3.11, must be a text in quotes",
        ),
        (
            "handler = [\"app\"]",
            "functions.a.handler: is an array, must be a text in quotes",
        ),
        (
            "environment = { LEVEL = 5 }",
            "functions.a.environment.LEVEL: is 5, must be a text in quotes",
        ),
        (
            "environment = \"x\"",
            "functions.a.environment: is \"x\", must be a table",
        ),
        (
            "memory_mb = 99999999999999999999",
            "functions.a.memory_mb: is 99999999999999999999, must be a whole number",
        ),
        (
            "command = \"python3 app.py\"",
            "functions.a.command: is \"python3 app.py\", must be a list, for example [\"a\", \"b\"]",
        ),
        (
            "scale = 3",
            "functions.a.scale: is 3, must be a table of keys",
        ),
        (
            "scale.max = \"all\"",
            "functions.a.scale.max: is \"all\", must be a whole number",
        ),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{line}\n"));
        assert!(
            problem.starts_with(&format!("pilot.toml:2: {wanted}")),
            "{line}: {problem}"
        );
    }
    let twice = problem_of("[functions.a]\ncpu = 1\ncpu = 2\n");
    assert_eq!(twice, "pilot.toml:3: the key cpu is there twice");
    let problem = problem_of("functions.a = 1\n");
    assert!(
        problem.starts_with("pilot.toml:1: functions.a: is 1, must be a table of keys"),
        "{problem}"
    );
}

#[test]
fn a_value_out_of_range_names_its_line() {
    for (text, line) in [
        ("[functions.a]\n\nmemory_mb = 1\n", 3),
        ("[functions.a.scale]\nidle_s = 1\nmax = 0\n", 3),
        ("[functions.a]\nscale = { min = 3, max = 2 }\n", 2),
        ("[functions.\"a b\"]\n", 1),
        ("\n[functions.a]\nenvironment = { \"1A\" = \"\" }\n", 3),
    ] {
        let problem = problem_of(text);
        assert!(
            problem.starts_with(&format!("pilot.toml:{line}: ")),
            "{text:?}: {problem}"
        );
    }
}

#[test]
fn once_and_concurrency_exclude_each_other() {
    let problem = problem_of("[functions.a]\nreuse = \"once\"\nconcurrency = 2\n");
    assert!(problem.contains("functions.a.concurrency"), "{problem}");
}

/// The documentation's examples, one per runtime, verbatim.
const RUNTIMES: &str = r#"
[functions.ric]
runtime = "provided"
command = ["python3", "-m", "awslambdaric", "app.handler"]
[functions.web]
runtime = "http"
command = ["functions-framework", "--target", "hello"]
ready = "/healthz"
concurrency = 8
[functions.js]
runtime = "node"
handler = "index.handler"
[functions.qr]
runtime = "container"
image = "qr:1"
contract = "http"
owner = "shop"
"#;

fn config_of(text: &str, name: &str) -> FunctionConfig {
    let manifest = Manifest::parse(text, "pilot.toml").unwrap();
    let name: FunctionName = name.parse().unwrap();
    manifest.functions[&name].check(&name).unwrap()
}

/// The error for a function with these lines, without its name.
fn refusal(lines: &str) -> String {
    let problem = problem_of(&format!("[functions.a]\n{lines}\n"));
    let (_, rest) = problem.split_once("functions.a.").unwrap();
    rest.to_owned()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn every_runtime_of_the_documentation_is_read() {
    assert_eq!(
        config_of(RUNTIMES, "ric").runtime,
        Runtime::Provided(ProvidedRuntime {
            command: words(&["python3", "-m", "awslambdaric", "app.handler"])
        })
    );
    let web = config_of(RUNTIMES, "web");
    assert_eq!(
        web.runtime,
        Runtime::Http(HttpRuntime {
            command: words(&["functions-framework", "--target", "hello"]),
            ready: Some("/healthz".to_owned())
        })
    );
    assert_eq!((web.interface, web.concurrency), (Interface::Http, 8));
    assert_eq!(web.handler, "");
    let js = config_of(RUNTIMES, "js");
    assert_eq!(js.runtime, Runtime::Node(NodeRuntime::default()));
    assert_eq!((js.interface, js.owner()), (Interface::Event, "js"));
    let qr = config_of(RUNTIMES, "qr");
    assert_eq!(
        qr.runtime,
        Runtime::Container(ContainerRuntime {
            image: "qr:1".to_owned(),
            contract: Contract::Http,
            command: None,
            ready: None,
            disk: ContainerDisk::default(),
        })
    );
    assert_eq!((qr.interface, qr.owner()), (Interface::Http, "shop"));
}

#[test]
fn every_example_of_the_documentation_is_read() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for file in ["README.md", "docs/runtimes.md"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let blocks = text.split("```toml\n").skip(1);
        let examples: Vec<&str> = blocks
            .filter_map(|block| block.split("```").next())
            .filter(|block| block.contains("[functions."))
            .collect();
        assert!(examples.len() >= 2, "{file}");
        for example in examples {
            let read = Manifest::parse(example, file);
            assert!(read.is_ok(), "{file}: {read:?}\n{example}");
        }
    }
}

#[test]
fn what_is_left_out_has_a_default_that_fits_the_runtime() {
    let config = |lines: &str| config_of(&format!("[functions.a]\n{lines}\n"), "a");
    let provided = config("runtime = \"provided\"");
    assert_eq!(
        provided.runtime,
        Runtime::Provided(ProvidedRuntime {
            command: words(&["./bootstrap"])
        })
    );
    assert_eq!(provided.handler, "");
    assert_eq!(config("runtime = \"node\"").handler, "index.handler");
    assert_eq!(config("interface = \"wsgi\"").handler, "app.app");
    // Only the program knows its meaning.
    let own = config("runtime = \"provided\"\nhandler = \"com.example.Handler::handle\"");
    assert_eq!(own.handler, "com.example.Handler::handle");
    let polled = config("runtime = \"container\"\nimage = \"x\"\ncontract = \"provided\"");
    assert_eq!(polled.interface, Interface::Event);
}

#[test]
fn lambdas_names_of_runtimes_are_taken() {
    for (word, wanted) in [
        ("python", "python"),
        ("python3.12", "python3.12"),
        ("node", "node"),
        ("nodejs22.x", "nodejs22.x"),
        ("nodejs20", "nodejs20.x"),
        ("provided.al2023", "provided"),
        ("http", "http"),
        ("container", "container "),
        ("wasm", "wasm"),
    ] {
        assert_eq!(
            Runtime::named(word).map(|runtime| runtime.to_string()),
            Ok(wanted.to_owned()),
            "{word}"
        );
    }
    for (word, hint) in [
        ("pyhton", "; did you mean \"python\"?"),
        ("contaner", "; did you mean \"container\"?"),
        (
            "go1.x",
            "; other languages run as \"provided\" (with the language's Lambda runtime client), as \"http\", or compiled to \"wasm\"",
        ),
        ("cobol", ""),
    ] {
        assert_eq!(
            refusal(&format!("runtime = \"{word}\"")),
            format!(
                "runtime: is \"{word}\", must be \"python\" or \"python3.X\" (for example \"python3.11\"), \"node\" or \
                 \"nodejsXX.x\", \"provided\", \"http\", \"container\", or \"wasm\"{hint}"
            )
        );
    }
}

#[test]
fn a_key_of_another_runtime_says_whose_it_is() {
    for (lines, wanted) in [
        (
            "runtime = \"python3.11\"\ncommand = [\"x\"]",
            "command: is not for runtime = \"python\", only for \"provided\", \"http\" or \"container\"; leave it out, or set runtime",
        ),
        (
            "command = [\"x\"]",
            "command: is not for runtime = \"python\" (the default), only for \"provided\", \"http\" or \"container\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"node\"\ncommand = [\"x\"]",
            "command: is not for runtime = \"node\", only for \"provided\", \"http\" or \"container\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"provided\"\nready = \"/\"",
            "ready: is not for runtime = \"provided\", only for \"http\" or \"container\"; leave it out, or set runtime",
        ),
        (
            "image = \"x\"",
            "image: is not for runtime = \"python\" (the default), only for \"container\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"http\"\ncommand = [\"x\"]\ncontract = \"http\"",
            "contract: is not for runtime = \"http\", only for \"container\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"node\"\ntemplate = \"on\"",
            "template: is not for runtime = \"node\", only for \"python\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"http\"\ncommand = [\"x\"]\nhandler = \"app.f\"",
            "handler: is not for runtime = \"http\", only for \"python\", \"node\", \"provided\" or \"container\"; leave it out, or set runtime",
        ),
        (
            "runtime = \"container\"\nimage = \"x\"\nhandler = \"app.f\"",
            "handler: is not for contract = \"http\" (the default), only for \"provided\" or \"shim\"; leave it out, or set contract",
        ),
        (
            "runtime = \"container\"\nimage = \"x\"\ncontract = \"provided\"\nready = \"/\"",
            "ready: is not for contract = \"provided\", only for \"http\"; leave it out, or set contract",
        ),
        (
            "interface = \"http\"",
            "interface: is \"http\", which is a runtime: a server of its own is runtime = \"http\" with a command; a Python application is \"asgi\" or \"wsgi\"",
        ),
        (
            "runtime = \"nodejs20.x\"\ninterface = \"asgi\"",
            "interface: is \"asgi\", must be \"event\" with runtime = \"nodejs20.x\"; leave it out",
        ),
        (
            "runtime = \"http\"\ncommand = [\"x\"]\ninterface = \"event\"",
            "interface: is \"event\", must be \"http\" with runtime = \"http\"; leave it out",
        ),
        (
            "runtime = \"container\"\nimage = \"x\"\ncontract = \"provided\"\ninterface = \"http\"",
            "interface: is \"http\", must be \"event\" with contract = \"provided\"; leave it out",
        ),
    ] {
        assert_eq!(refusal(lines), wanted, "{lines}");
    }
}

#[test]
fn what_a_runtime_needs_and_has_not_is_said_with_an_example() {
    for (lines, wanted) in [
        (
            "runtime = \"http\"",
            "command: is missing: runtime = \"http\" needs the command of the function's server, for example [\"node\", \"server.js\"]",
        ),
        (
            "runtime = \"container\"",
            "image: is missing: runtime = \"container\" needs an image, for example \"qr:1\"",
        ),
        (
            "runtime = \"container\"\nimage = \"x\"\ncontract = \"shim\"",
            "command: is missing: contract = \"shim\" needs the command that is given each event, for example [\"/bin/sh\", \"handler.sh\"]",
        ),
        (
            "runtime = \"provided\"\ncommand = []",
            "command: is empty, must be a program and its arguments, for example [\"./bootstrap\"]",
        ),
        (
            "runtime = \"provided\"\ncommand = [\"a\", \"b\\u0000\"]",
            "command: has a NUL byte in \"b\\u{0}\"",
        ),
        (
            "runtime = \"http\"\ncommand = [\"x\"]\nready = \"healthz\"",
            "ready: is \"healthz\", must be a path of the function's server, for example \"/healthz\"",
        ),
        (
            "runtime = \"http\"\ncommand = [\"x\"]\nenvironment = { PORT = \"80\" }",
            "environment: has the variable PORT, which every worker's server is given; leave it out",
        ),
        (
            "runtime = \"container\"\nimage = \"-v /:/host\"",
            "image: is \"-v /:/host\", must be an image's reference, for example \"qr:1\"",
        ),
        (
            "runtime = \"container\"\nimage = \"x\"\ncontract = \"htp\"",
            "contract: is \"htp\", must be one of http, provided, shim; did you mean \"http\"?",
        ),
        (
            "owner = \"a b\"",
            "owner: is \"a b\", must be 1 to 64 letters, digits, - or _",
        ),
        (
            "runtime = \"provided\"\nhandler = \"a\\nb\"",
            "handler: is \"a\\nb\", must be one line of at most 128 bytes",
        ),
        (
            "runtime = \"node\"\nhandler = \"index\"",
            "handler: is \"index\", must be MODULE.FUNCTION (or MODULE:APP), for example \"index.handler\"",
        ),
    ] {
        assert_eq!(refusal(lines), wanted, "{lines}");
    }
    let long = format!(
        "runtime = \"provided\"\ncommand = [\"{}\"]",
        "x".repeat(70_000)
    );
    assert!(
        refusal(&long).contains("must have at most 65536"),
        "{}",
        refusal(&long)
    );
}

#[test]
fn slips_in_the_keys_of_the_runtimes_are_known_too() {
    for (slip, key) in [
        ("comand", "command"),
        ("contarct", "contract"),
        ("imgae", "image"),
        ("redy", "ready"),
        ("onwer", "owner"),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{slip} = \"x\"\n"));
        assert!(
            problem.contains(&format!("did you mean '{key}'?")),
            "{problem}"
        );
    }
}

#[test]
fn the_former_key_parked_means_spare_and_is_not_suggested() {
    let text = "[functions.a.scale]\nparked = 2\n";
    let manifest = Manifest::parse(text, "pilot.toml").unwrap();
    let (name, spec) = manifest.functions.iter().next().unwrap();
    assert_eq!(spec.check(name).unwrap().scale.spare, 2);
    let problem = problem_of("[functions.a.scale]\nparkd = 2\n");
    assert!(problem.contains("spare"), "{problem}");
    assert!(!problem.contains("parked"), "{problem}");
}

#[test]
fn a_manifest_without_functions_says_what_to_add() {
    assert!(problem_of("").contains("[functions.NAME]"));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,200}") {
        let _ = Manifest::parse(&text, "pilot.toml");
    }

    #[test]
    fn a_checked_config_is_within_its_bounds(
        memory_mb in any::<u64>(), timeout_s in any::<f64>(), cpu in any::<f64>(),
        min in any::<u32>(), max in any::<u32>(), spare in any::<u32>(), idle_s in any::<f64>(),
    ) {
        let spec = FunctionSpec {
            memory_mb: Some(memory_mb), timeout_s: Some(timeout_s), cpu: Some(cpu),
            scale: Some(crate::scale::ScaleSpec { min: Some(min), max: Some(max), spare: Some(spare), idle_s: Some(idle_s), ..Default::default() }),
            ..FunctionSpec::default()
        };
        if let Ok(config) = spec.check(&"f".parse().unwrap()) {
            prop_assert!(config.scale.min <= config.scale.max);
            prop_assert!(config.scale.spare <= config.scale.max);
            prop_assert!(config.cpu_milli >= 10);
            prop_assert!(config.timeout.as_secs_f64() > 0.0);
        }
    }
}

#[test]
fn layers_are_named_in_one_table_and_listed_by_functions() {
    let manifest = Manifest::parse(
        "[layers.tools]\npath = \"tools.zip\"\n[functions.a]\nlayers = [\"tools\"]\n",
        "pilot.toml",
    )
    .unwrap();
    assert_eq!(manifest.layers["tools"].path, "tools.zip");
    assert_eq!(
        manifest.functions.values().next().unwrap().layers,
        ["tools"]
    );
}

#[test]
fn a_wrong_list_of_layers_names_function_line_and_nearest_layer() {
    let of =
        |layers: &str, list: &str| problem_of(&format!("{layers}[functions.a]\nlayers = {list}\n"));
    let two = "[layers.ffmpeg]\npath = \"x\"\n[layers.fonts]\npath = \"y\"\n";
    for (layers, list, wanted) in [
        (
            two,
            "[\"ffmpge\"]",
            "pilot.toml:6: functions.a.layers: has \"ffmpge\", which is not a layer; did you mean \"ffmpeg\"?",
        ),
        (two, "[\"0\"]", "the manifest has: ffmpeg, fonts"),
        (
            "",
            "[\"ffmpeg\"]",
            "pilot.toml:2: functions.a.layers: has \"ffmpeg\", which is not a layer; the manifest has no layers",
        ),
        (two, "[\"fonts\", \"fonts\"]", "lists 'fonts' twice"),
        (two, "\"fonts\"", "functions.a.layers"),
        ("[layers.fonts]\n", "[\"fonts\"]", "path"),
        (
            "[layers.fonts]\npaht = \"x\"\n",
            "[\"fonts\"]",
            "did you mean 'path'?",
        ),
        (
            "[layers.\"a/b\"]\npath = \"x\"\n",
            "[]",
            "pilot.toml:1: 'a/b' is not a layer name",
        ),
    ] {
        let problem = of(layers, list);
        assert!(problem.contains(wanted), "{problem}");
    }
    let container = problem_of(
        "[layers.f]\npath = \"x\"\n[functions.a]\nruntime = \"container\"\nimage = \"i\"\nlayers = [\"f\"]\n",
    );
    assert!(container.contains("COPY"), "{container}");
}

#[test]
fn a_word_that_is_not_valid_a_missing_key_and_a_table_for_a_list_are_said_plainly() {
    for (text, wanted) in [
        (
            "[[functions.a.triggers]]\ntype = \"cron\"\n",
            "pilot.toml:2: functions.a.triggers[0].type: \"cron\" is not valid, must be \"schedule\", \"folder\", \"sqs\", \"redis\" or \
             \"mqtt\"",
        ),
        (
            "[[functions.a.triggers]]\ncron = \"* * * * *\"\n",
            "functions.a.triggers[0]: the key 'type' is missing",
        ),
        (
            "[functions.a.triggers]\ntype = \"schedule\"\n",
            "functions.a.triggers: is a table, must be a list: [\"a\", \"b\"], or of tables, each with two brackets: [[functions.a.triggers]]",
        ),
    ] {
        let problem = problem_of(text);
        assert!(problem.contains(wanted), "{problem}");
    }
}

#[test]
fn numbers_that_do_not_fit_say_what_bounds_them() {
    for (line, wanted) in [
        (
            "scale = { min = 3, max = 2 }",
            "functions.a.scale.min: is 3, must be from 0 to 2, which is scale.max",
        ),
        (
            "scale.policy = { name = \"cusum\", h = \"6\" }",
            "functions.a.scale.policy.h: is \"6\", must be a number from 0 to 1000000",
        ),
    ] {
        let problem = problem_of(&format!("[functions.a]\n{line}\n"));
        assert_eq!(problem, format!("pilot.toml:2: {wanted}"));
    }
}
