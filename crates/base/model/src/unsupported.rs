//! What a configuration asks for and does not get here, in words: variables that mean something to Lambda. A deployment says it,
//! because nothing else would.

use crate::config::FunctionConfig;

/// One line per variable, with what to do instead.
#[must_use]
pub fn warnings(config: &FunctionConfig) -> Vec<String> {
    let is_set =
        config.environment.contains_key(EXEC_WRAPPER) || config.secrets.contains_key(EXEC_WRAPPER);
    let instead = config.runtime.instead_of_wrapper().filter(|_| is_set);
    instead
        .map(|instead| format!("{EXEC_WRAPPER} has no effect: {instead}"))
        .into_iter()
        .collect()
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
