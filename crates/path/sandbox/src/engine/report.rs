//! What a function's deployment is told about its template. Texts of templates may come from user code: they have a limited length.

use std::time::Duration;

use pilot_model::deployment::{FailedImport, Finding, ImportTime, TemplateReport};
use pilot_model::log_line::one_line;
use pilot_model::{TemplateMode, Version};
use pilot_wire::control::TemplateReady;

/// Who imports the packages of a function.
#[derive(Debug)]
pub(super) enum Imports {
    /// The template of its environment, for all functions of the environment.
    Shared,
    /// The same, and the modules that only some functions import, for these ([`super::modules`]).
    SharedModules,
    /// The function's template, which is forked from that of the interpreter. `why` comes from user code.
    Own { why: String },
    /// The function's template, which is a new interpreter because of these variables.
    OwnInterpreter(Vec<String>),
}

impl Imports {
    /// For the report of the deployment.
    fn why(&self) -> Option<String> {
        let why = match self {
            Self::Shared | Self::SharedModules => return None,
            Self::Own { why } => printable(why),
            Self::OwnInterpreter(names) => {
                let names = printable(&names.join(", "));
                format!("an interpreter reads {names} only when it starts")
            }
        };
        Some(format!("its template does its own imports, because {why}"))
    }
}

/// The report of a function's node. `above` is what the templates above said, the nearest one first, `ready` what its own one did,
/// if it has one. The memory is not in it.
pub(super) fn report(
    version: &Version,
    above: &[&TemplateReady],
    ready: &TemplateReady,
    has_template: bool,
    imports: &Imports,
    took: Duration,
) -> TemplateReport {
    let reason = match version.config.template {
        TemplateMode::Off => {
            Some("template = \"off\": every worker is a fresh interpreter".to_owned())
        }
        TemplateMode::On if has_template => imports.why(),
        TemplateMode::On => {
            let why = why_not_forkable(&version.config.handler, ready, imports);
            Some(
                [Some(why), imports.why()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join("; "),
            )
        }
    };
    let own_imports = match imports {
        Imports::Own { why } => Some(printable(why)),
        Imports::Shared | Imports::SharedModules | Imports::OwnInterpreter(_) => None,
    };
    let modules = if version.modules.is_empty() {
        shareable(ready, has_template && matches!(imports, Imports::Shared))
    } else {
        version.modules.clone()
    };
    let templates = || above.iter().copied();
    let mut imports: Vec<ImportTime> = templates()
        .chain([ready])
        .flat_map(|ready| &ready.imports)
        .map(|import| ImportTime {
            module: printable(&import.module),
            ms: import.ms,
        })
        .collect();
    imports.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    imports.dedup_by(|a, b| a.module == b.module);
    TemplateReport {
        python: interpreter_version(&ready.python),
        imports,
        failed_imports: templates()
            .flat_map(|ready| &ready.failed)
            .map(|import| FailedImport {
                module: printable(&import.module),
                error: one_line(&import.error, ERROR_CHARS_MAX),
            })
            .collect(),
        findings: ready
            .findings
            .iter()
            .take(FINDINGS_MAX)
            .map(|found| Finding {
                r#where: printable(&found.r#where),
                what: printable(&found.what),
                instead: printable(&found.instead),
            })
            .collect(),
        memory_bytes: 0,
        forkable: has_template,
        reason,
        own_imports,
        modules,
        took,
        warnings: Vec::new(),
    }
}

/// The modules that a function may share with others, by its template's report. None if it is not `forkable` from that of its
/// environment, or if its imports did something that a fork cannot carry: others would get it, too.
fn shareable(ready: &TemplateReady, forkable: bool) -> Vec<String> {
    let modules = &ready.modules;
    let is_clean = ready.findings.is_empty() && !ready.wrote_files;
    let are_names = || modules.iter().all(|module| is_module(module));
    if forkable && is_clean && modules.len() <= MODULES_MAX && are_names() {
        modules.clone()
    } else {
        Vec::new()
    }
}

/// Whether it can be a module's name: user code may have written it.
fn is_module(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part.chars().all(is_word)
    };
    name.len() <= MODULE_LEN_MAX && name.split('.').all(is_part)
}

fn why_not_forkable(handler: &str, ready: &TemplateReady, imports: &Imports) -> String {
    let instead = match imports {
        Imports::OwnInterpreter(_) => "each worker is a new interpreter and imports the handler",
        Imports::Shared | Imports::SharedModules | Imports::Own { .. } => {
            "workers are forked from the level above and import the handler each time"
        }
    };
    match &ready.must_not_fork {
        Some(why) => format!("importing {handler} {}; {instead}", printable(why)),
        None => format!(
            "importing {handler} started {} more thread(s), and a process with threads must not be forked; {instead}. \
             Start threads in the handler or in an after_restore hook",
            ready.threads.saturating_sub(1),
        ),
    }
}

/// A text of a template, which user code may have written: one line, and not too long.
pub(super) fn printable(text: &str) -> String {
    one_line(text, FINDING_CHARS_MAX)
}

/// The version of an interpreter, as `3.11.7`, `3.14.0rc1+`; what a version cannot have is left out.
fn interpreter_version(text: &str) -> String {
    let is_part = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '.' | '+');
    text.chars()
        .filter(is_part)
        .take(VERSION_CHARS_MAX)
        .collect()
}

/// The longest version of an interpreter.
const VERSION_CHARS_MAX: usize = 40;
/// Most modules that functions share, and the longest name.
const MODULES_MAX: usize = 64;
const MODULE_LEN_MAX: usize = 100;
/// Most findings of a report, and their length (PROTOCOL.md, section 2).
const FINDINGS_MAX: usize = 50;
const FINDING_CHARS_MAX: usize = 200;
/// The longest error of an import.
const ERROR_CHARS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(ready: &serde_json::Value) -> Vec<String> {
        let ready = serde_json::from_value(ready.clone()).unwrap();
        shareable(&ready, true)
    }

    #[test]
    fn modules_are_shared_only_if_a_fork_can_carry_what_their_imports_did() {
        let clean = serde_json::json!({"threads": 1, "modules": ["PIL.Image", "_a.b1"]});
        assert_eq!(shared(&clean), ["PIL.Image", "_a.b1"]);
        let ready = serde_json::from_value(clean.clone()).unwrap();
        assert!(shareable(&ready, false).is_empty());
        for (key, value) in [
            ("wrote_files", serde_json::json!(true)),
            (
                "findings",
                serde_json::json!([{"where": "", "what": "opened a file", "instead": ""}]),
            ),
        ] {
            let mut other = clean.clone();
            other[key] = value;
            assert!(shared(&other).is_empty(), "{key}");
        }
    }

    #[test]
    fn the_version_of_an_interpreter_has_no_controls_and_is_short() {
        for version in ["3.11.7", "3.14.0rc1+", ""] {
            assert_eq!(interpreter_version(version), version);
        }
        assert_eq!(
            interpreter_version("3.11\u{1b}[2J\r\n\u{9b}1m ä"),
            "3.112J1m"
        );
        assert_eq!(interpreter_version(&"9".repeat(1 << 20)).len(), 40);
    }

    #[test]
    fn what_is_no_list_of_modules_is_not_taken_from_a_template() {
        let long = "m".repeat(MODULE_LEN_MAX + 1);
        for name in [
            "", ".", "a.", "a..b", "1a", "a b", "a\n", "ä", "../a", &long,
        ] {
            let ready = serde_json::json!({"threads": 1, "modules": ["good", name]});
            assert!(shared(&ready).is_empty(), "{name:?}");
        }
        let many = vec!["m"; MODULES_MAX + 1];
        assert!(shared(&serde_json::json!({"threads": 1, "modules": many})).is_empty());
    }
}
