//! What a configuration asks for and does not get here, in words: variables that mean something to Lambda. A deployment says it, because nothing
//! else would.

use crate::config::FunctionConfig;
use crate::runtime::Runtime;

/// One line per variable, with what to do instead.
#[must_use]
pub fn warnings(config: &FunctionConfig) -> Vec<String> {
    let is_set =
        config.environment.contains_key(EXEC_WRAPPER) || config.secrets.contains_key(EXEC_WRAPPER);
    // The entry point of an image runs in its container as on Lambda, and may use it.
    if !is_set || matches!(config.runtime, Runtime::Container(_)) {
        return Vec::new();
    }
    let instead = match &config.runtime {
        Runtime::Python(_) | Runtime::Node(_) => {
            "workers are not started by a script. Import the instrumentation in the code, or set what the script sets (PYTHONPATH, \
             NODE_OPTIONS) in environment. For Lambda Web Adapter: runtime = \"http\""
        }
        _ => "the command is started without it. Name the script first in command",
    };
    vec![format!("{EXEC_WRAPPER} has no effect: {instead}")]
}

/// The script that Lambda starts in place of the interpreter.
const EXEC_WRAPPER: &str = "AWS_LAMBDA_EXEC_WRAPPER";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FunctionSpec;

    #[test]
    fn a_wrapper_script_is_named_with_what_to_do_in_each_runtime() {
        let warned = |runtime: &str, variable: &str| {
            let command = (runtime == "http").then(|| vec!["serve".to_owned()]);
            let spec = FunctionSpec {
                runtime: Some(runtime.to_owned()),
                image: (runtime == "container").then(|| "a:1".to_owned()),
                command,
                environment: [(variable.to_owned(), "/opt/wrapper".to_owned())].into(),
                ..FunctionSpec::default()
            };
            warnings(&spec.check(&"a".parse().unwrap()).unwrap()).join("\n")
        };
        for (runtime, instead) in [
            ("python", "PYTHONPATH"),
            ("node", "NODE_OPTIONS"),
            ("provided", "first in command"),
            ("http", "first in command"),
        ] {
            let said = warned(runtime, EXEC_WRAPPER);
            assert!(
                said.starts_with(EXEC_WRAPPER) && said.contains(instead),
                "{said}"
            );
            assert_eq!(warned(runtime, "OTHER"), "");
        }
        assert_eq!(warned("container", EXEC_WRAPPER), "");
    }
}
