//! What to change after an error of a function, if the error's text and the function's configuration say it: there is no network, or a
//! package is not installed. Hints go to the log, to the header `X-Pilot-Hint` and to the report of a deployment. The error body stays
//! the function's own, as in Lambda.

use std::path::Path;

use crate::config::FunctionConfig;
use crate::{Exception, Network, TemplateMode, Version};

/// The hint for Lambda's error body (JSON), in one line of ASCII. `None`: there is nothing to add.
#[must_use]
pub fn of_error(version: &Version, body: &[u8]) -> Option<String> {
    of_body(&version.config, &version.code_dir, body)
}

fn of_body(config: &FunctionConfig, code: &Path, body: &[u8]) -> Option<String> {
    if body.len() > BODY_BYTES_MAX {
        return None;
    }
    let error = Exception::read(body)?;
    if let Some(module) = missing_python_module(&error.error_message) {
        return Some(python_module(config, module));
    }
    if let Some(module) = missing_node_package(&error.error_message) {
        return Some(node_package(code, module));
    }
    if error.error_type == "KeyError"
        && let Some(hint) = secret_at_import(config, &error.error_message)
    {
        return Some(hint);
    }
    let needs_network = NO_NETWORK
        .iter()
        .any(|text| error.error_message.contains(text));
    (needs_network && config.network == Network::None).then(|| {
        "the function has no network (network = \"none\"); set network = \"outbound\" in pilot.toml, and deploy again"
            .to_owned()
    })
}

/// The module reads a secret's variable when it is imported, in the template.
fn secret_at_import(config: &FunctionConfig, message: &str) -> Option<String> {
    let variable = message.strip_prefix('\'')?.strip_suffix('\'')?;
    if !config.secrets.contains_key(variable) || config.template == TemplateMode::Off {
        return None;
    }
    Some(format!(
        "{variable} is a secret, and workers get secrets after the fork: read it in the handler or in an after_restore hook, or set \
         template = \"off\" in pilot.toml, and deploy again"
    ))
}

fn python_module(config: &FunctionConfig, module: &str) -> String {
    let top = module.split('.').next().unwrap_or(module);
    let own = config.handler.split('.').next().unwrap_or_default();
    if top == own {
        return format!(
            "there is no module {module} in the function's folder; check path and handler in pilot.toml"
        );
    }
    standard_module(top).unwrap_or_else(|| {
        format!(
            "add the package with the module '{top}' to requirements.txt in the function's folder, and deploy again; a module of \
             your own must be in that folder"
        )
    })
}

/// A module of Python itself, which no package of that name brings.
fn standard_module(name: &str) -> Option<String> {
    if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
        return Some(format!("Python 3.12 removed {name}: {instead}"));
    }
    OPTIONAL.contains(&name).then(|| {
        format!(
            "this Python was built without {name}; install the library that it needs and build Python again, or choose another \
             `runtime` in pilot.toml"
        )
    })
}

fn node_package(code: &Path, module: &str) -> String {
    // Then nothing of package.json is installed.
    if code.join("node_modules").is_dir() {
        return format!(
            "'{module}' is not in the node_modules that were deployed with the code: install it there, or do not upload node_modules, and \
             deploy again"
        );
    }
    format!(
        "add '{module}' to the dependencies in package.json in the function's folder, and deploy again"
    )
}

/// The module of `No module named 'requests.adapters'`.
fn missing_python_module(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("No module named '")?;
    named(rest)
}

/// The package of `Cannot find package 'left-pad' imported from …` or `Cannot find module 'left-pad'`. Not a path.
fn missing_node_package(message: &str) -> Option<&str> {
    let found = ["Cannot find package '", "Cannot find module '"]
        .iter()
        .find_map(|start| message.split_once(start));
    let (_, rest) = found?;
    named(rest).filter(|module| !module.starts_with(['.', '/']))
}

/// The text up to the closing quotation mark, if it can be a module's name. It may go into a header and to a terminal.
fn named(rest: &str) -> Option<&str> {
    let (module, _) = rest.split_once('\'')?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/@".contains(&byte);
    (!module.is_empty() && module.len() <= NAME_LEN_MAX && module.bytes().all(fits))
        .then_some(module)
}

/// Modules that the build of Python leaves out if the library that they need is not there.
const OPTIONAL: [&str; 15] = [
    "_bz2",
    "_ctypes",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "_hashlib",
    "_lzma",
    "_sqlite3",
    "_ssl",
    "_tkinter",
    "_uuid",
    "_zstd",
    "readline",
    "zlib",
];

/// What to use in the place of modules that Python 3.12 does not have any more (https://docs.python.org/3/whatsnew/3.12.html).
const REMOVED: [(&str, &str); 4] = [
    (
        "asynchat",
        "use asyncio, or choose an older `runtime` in pilot.toml",
    ),
    (
        "asyncore",
        "use asyncio, or choose an older `runtime` in pilot.toml",
    ),
    (
        "distutils",
        "add setuptools, which has it, to requirements.txt in the function's folder, and deploy again",
    ),
    (
        "imp",
        "use importlib, or choose an older `runtime` in pilot.toml",
    ),
];

/// What the C library, Node.js and botocore say when there is no resolver and no route.
const NO_NETWORK: [&str; 7] = [
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "EAI_AGAIN",
    "ENETUNREACH",
    "Could not connect to the endpoint URL",
    "Failed to resolve '",
];
/// Longer bodies are results by mistake.
const BODY_BYTES_MAX: usize = 256 * 1024;
const NAME_LEN_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FunctionSpec;

    fn hint(message: &str, network: &str) -> Option<String> {
        let spec = FunctionSpec {
            network: Some(network.to_owned()),
            ..FunctionSpec::default()
        };
        let config = spec.check(&"lab".parse().unwrap()).unwrap();
        let body = serde_json::json!({"errorType": "X", "errorMessage": message});
        of_body(
            &config,
            Path::new("/nonexistent"),
            body.to_string().as_bytes(),
        )
    }

    #[test]
    fn a_function_without_network_that_looks_for_a_host_is_told_the_key() {
        for message in [
            "<urlopen error [Errno -3] Temporary failure in name resolution>",
            "[Errno 101] Network is unreachable",
            "getaddrinfo EAI_AGAIN example.com",
            "Could not connect to the endpoint URL: \"https://s3.amazonaws.com/\"",
        ] {
            let said = hint(message, "none").unwrap();
            assert!(said.contains("set network = \"outbound\""), "{said}");
            assert_eq!(hint(message, "outbound"), None);
        }
        assert_eq!(hint("division by zero", "none"), None);
    }

    #[test]
    fn a_missing_package_is_told_where_to_add_it() {
        let python = "Unable to import module 'app': No module named 'requests.adapters'";
        let said = hint(python, "none").unwrap();
        assert!(
            said.starts_with("add the package with the module 'requests' to requirements.txt"),
            "{said}"
        );
        let own = hint("No module named 'app'", "none").unwrap();
        assert!(own.starts_with("there is no module app in"), "{own}");
        for node in [
            "Cannot find package '@aws-sdk/client-s3' imported from /var/task/index.mjs",
            "Cannot find module '@aws-sdk/client-s3'\nRequire stack:",
        ] {
            let said = hint(node, "none").unwrap();
            assert!(
                said.starts_with("add '@aws-sdk/client-s3' to the dependencies in package.json"),
                "{said}"
            );
        }
        assert_eq!(hint("Cannot find module './util'", "none"), None);
    }

    #[test]
    fn a_missing_module_of_python_itself_is_not_looked_for_in_a_package() {
        for module in ["_sqlite3", "_tkinter", "readline"] {
            let said = hint(&format!("No module named '{module}'"), "none").unwrap();
            let start = format!("this Python was built without {module}; install the library");
            assert!(said.starts_with(&start), "{said}");
        }
        let said = hint("No module named 'distutils.core'", "none").unwrap();
        assert!(
            said.starts_with("Python 3.12 removed distutils: add setuptools"),
            "{said}"
        );
        let said = hint("No module named 'imp'", "none").unwrap();
        assert!(
            said.starts_with("Python 3.12 removed imp: use importlib"),
            "{said}"
        );
    }

    #[test]
    fn a_package_that_is_missing_in_the_codes_own_node_modules_is_not_told_to_go_to_package_json() {
        let config = FunctionSpec::default()
            .check(&"lab".parse().unwrap())
            .unwrap();
        let code = std::env::temp_dir().join(format!("pilot-hint-{}", std::process::id()));
        let body = br#"{"errorType": "Error", "errorMessage": "Cannot find module 'debug'"}"#;
        let said = || of_body(&config, &code, body).unwrap();
        assert!(said().contains("package.json"), "{}", said());
        std::fs::create_dir_all(code.join("node_modules")).unwrap();
        let own = said();
        std::fs::remove_dir_all(&code).unwrap();
        assert!(
            own.starts_with("'debug' is not in the node_modules"),
            "{own}"
        );
        assert!(!own.contains("package.json"), "{own}");
    }

    #[test]
    fn what_a_function_writes_into_its_error_stays_out_of_the_hint() {
        for module in ["a\u{1b}[31m", "a\r\nset-cookie: x", "", &"x".repeat(101)] {
            let message = format!("No module named '{module}'");
            assert_eq!(hint(&message, "none"), None, "{module:?}");
        }
        let config = FunctionSpec::default()
            .check(&"lab".parse().unwrap())
            .unwrap();
        let of = |body: &[u8]| of_body(&config, Path::new("/nonexistent"), body);
        assert_eq!(of(b"not json"), None);
        assert_eq!(of(&vec![b' '; BODY_BYTES_MAX + 1]), None);
    }
}
