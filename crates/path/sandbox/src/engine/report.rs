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
    /// The function's template, which is forked from that of the interpreter. `why` comes from user code.
    Own { why: String },
    /// The function's template, which is a new interpreter because of these variables.
    OwnInterpreter(Vec<String>),
}

impl Imports {
    /// For the report of the deployment.
    fn why(&self) -> Option<String> {
        let why = match self {
            Self::Shared => return None,
            Self::Own { why } => printable(why),
            Self::OwnInterpreter(names) => {
                let names = printable(&names.join(", "));
                format!("an interpreter reads {names} only when it starts")
            }
        };
        Some(format!("its template does its own imports, because {why}"))
    }
}

/// The report of a function's node. `above` is what the template above said, `ready` what its own one did, if it has one. The
/// memory is not in it.
pub(super) fn report(
    version: &Version,
    above: &TemplateReady,
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
        Imports::Shared | Imports::OwnInterpreter(_) => None,
    };
    let mut imports: Vec<ImportTime> = [above, ready]
        .into_iter()
        .flat_map(|ready| &ready.imports)
        .map(|import| ImportTime {
            module: printable(&import.module),
            ms: import.ms,
        })
        .collect();
    imports.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    imports.dedup_by(|a, b| a.module == b.module);
    let failed = &above.failed;
    TemplateReport {
        python: above.python.clone(),
        imports,
        failed_imports: failed
            .iter()
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
        took,
        warnings: Vec::new(),
    }
}

fn why_not_forkable(handler: &str, ready: &TemplateReady, imports: &Imports) -> String {
    let instead = match imports {
        Imports::OwnInterpreter(_) => "each worker is a new interpreter and imports the handler",
        Imports::Shared | Imports::Own { .. } => {
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

/// Most findings of a report, and their length (PROTOCOL.md, section 2).
const FINDINGS_MAX: usize = 50;
const FINDING_CHARS_MAX: usize = 200;
/// The longest error of an import.
const ERROR_CHARS_MAX: usize = 1000;
