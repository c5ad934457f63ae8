//! The report of a deployment as text: the version, its environment, and its template with the slowest imports, or its runtime if
//! that does not fork.

use std::fmt::Write as _;
use std::time::Duration;

use pilot_model::Runtime;
use pilot_model::deployment::DeployReport;
use pilot_model::deployment::{Finding, TemplateReport};

use super::output::{self, DIM, GOOD, STRONG, WARN};
use super::phases;

/// The report of a successful deployment; `endpoint` is the daemon's address.
pub(super) fn deployed(report: &DeployReport, endpoint: &str) -> String {
    let mut text = format!(
        "{GOOD}✓{GOOD:#} {STRONG}{}{STRONG:#}  version {} {DIM}({}){DIM:#}{}\n",
        report.name,
        report.number,
        report.version,
        if report.changed {
            ""
        } else {
            ", unchanged: it was live already"
        }
    );
    let _ = writeln!(text, "  environment  {}", environment(report));
    text.push_str(&found(&report.template, &report.runtime));
    let _ = writeln!(text, "  url          {endpoint}{}", report.url_path);
    text
}

/// The content of the environment, and whether it was built or reused.
fn environment(report: &DeployReport) -> String {
    let what = match (report.environment_reused, report.environment_has.as_str()) {
        (_, "") if !forks(&report.runtime) => "nothing to install",
        (true, _) => "reused: nothing had to be installed",
        (false, _) => "new: its requirements were installed",
    };
    match report.environment_has.as_str() {
        "" => what.to_owned(),
        has => format!("{has}; {what}"),
    }
}

/// Whether workers of this runtime are forked. Old daemons know only the Python runtime and send an empty name.
fn forks(runtime: &str) -> bool {
    runtime.is_empty() || Runtime::named(runtime).is_ok_and(|runtime| runtime.forks())
}

/// The result of the trial start; `runtime` is the function's runtime in the daemon's words.
pub(super) fn found(report: &TemplateReport, runtime: &str) -> String {
    let mut text = if forks(runtime) {
        template(report)
    } else {
        kept(report, runtime)
    };
    for warning in &report.warnings {
        let _ = writeln!(text, "  {WARN}warning{WARN:#}      {warning}");
    }
    text
}

/// A runtime that does not fork: its start time and its remark.
fn kept(report: &TemplateReport, runtime: &str) -> String {
    let mut facts = vec![runtime.to_owned()];
    if report.memory_bytes > 0 {
        facts.push(output::megabytes(report.memory_bytes));
    }
    if report.took > Duration::ZERO {
        facts.push(format!("up in {}", output::duration(report.took)));
    }
    let mut text = format!("  runtime      {}\n", facts.join(", "));
    for remark in report.reason.iter().flat_map(|reason| reason.lines()) {
        let _ = writeln!(text, "  remark       {remark}");
    }
    text
}

/// A template's memory, whether it can be forked, and its slowest imports, as indented lines.
fn template(report: &TemplateReport) -> String {
    // Without root, the daemon cannot see the memory of a template.
    let memory = (report.memory_bytes > 0).then(|| output::megabytes(report.memory_bytes) + ", ");
    let mut text = format!(
        "  template     {}Python {}, up in {}\n",
        memory.unwrap_or_default(),
        report.python,
        output::duration(report.took)
    );
    let reason = report
        .reason
        .as_deref()
        .unwrap_or("the daemon gives no reason");
    let _ = match (report.forkable, &report.reason) {
        (true, None) => writeln!(
            text,
            "  forkable     yes: workers are forked with everything imported"
        ),
        (true, Some(reason)) => writeln!(text, "  forkable     yes; {reason}"),
        (false, _) => writeln!(text, "  forkable     {WARN}no{WARN:#}: {reason}"),
    };
    for failed in &report.failed_imports {
        let _ = writeln!(
            text,
            "  {WARN}not imported{WARN:#} {}: {}",
            failed.module, failed.error
        );
    }
    for found in &report.findings {
        let place = if found.r#where.is_empty() { "" } else { " " };
        let Finding {
            r#where,
            what,
            instead,
        } = found;
        let _ = writeln!(text, "  at import    {where}{place}{what}: {instead}");
    }
    let slowest: Vec<(&str, f64)> = report
        .imports
        .iter()
        .filter(|import| import.ms >= SHOWN_MS_MIN)
        .take(SHOWN_MAX)
        .map(|import| (import.module.as_str(), import.ms))
        .collect();
    if !slowest.is_empty() {
        text.push_str("  slowest imports (with what they import)\n");
        for line in phases::bars(&slowest).lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

/// The highest number of imports that are shown.
const SHOWN_MAX: usize = 5;
/// Imports faster than this are not shown.
const SHOWN_MS_MIN: f64 = 0.5;

#[cfg(test)]
pub(super) mod tests {
    use pilot_model::VersionId;
    use pilot_model::deployment::{FailedImport, ImportTime};

    use super::*;

    pub(in super::super) fn a_template() -> TemplateReport {
        let import = |module: &str, ms| ImportTime {
            module: module.to_owned(),
            ms,
        };
        TemplateReport {
            python: "3.11.7".to_owned(),
            imports: vec![
                import("numpy", 61.23),
                import("PIL.Image", 22.9),
                import("app", 0.2),
            ],
            failed_imports: Vec::new(),
            findings: Vec::new(),
            memory_bytes: 50_541_363,
            forkable: true,
            reason: None,
            own_imports: None,
            modules: Vec::new(),
            took: Duration::from_millis(312),
            warnings: Vec::new(),
        }
    }

    fn a_report() -> DeployReport {
        DeployReport {
            name: "invert".parse().unwrap(),
            version: VersionId::from_hex("0123456789abcdef"),
            number: 3,
            changed: true,
            runtime: "python".to_owned(),
            environment_reused: true,
            environment_has: "Python 3.11.7, 2 packages".to_owned(),
            template: a_template(),
            url_path: "/fn/invert/".to_owned(),
        }
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_deployment_is_reported_whole() {
        assert_eq!(
            plain(&deployed(&a_report(), "http://127.0.0.1:8080")),
            "✓ invert  version 3 (0123456789abcdef)\n  \
               environment  Python 3.11.7, 2 packages; reused: nothing had to be installed\n  \
               template     48.2 MB, Python 3.11.7, up in 312 ms\n  \
               forkable     yes: workers are forked with everything imported\n  \
               slowest imports (with what they import)\n    \
                 numpy       61.2 ms  ██████████████████████████\n    \
                 PIL.Image   22.9 ms  ██████████\n  \
               url          http://127.0.0.1:8080/fn/invert/\n"
        );
    }

    #[test]
    fn memory_that_is_not_known_is_not_reported_as_none() {
        let mut report = a_report();
        report.template.memory_bytes = 0;
        let text = plain(&deployed(&report, "http://h"));
        assert!(
            text.contains("  template     Python 3.11.7, up in 312 ms\n"),
            "{text}"
        );
    }

    #[test]
    fn a_runtime_that_does_not_fork_is_reported_without_a_word_of_templates() {
        let mut report = a_report();
        report.runtime = "node".to_owned();
        report.environment_has = "Node 20.20.2, 3 packages".to_owned();
        report.environment_reused = false;
        report.template = TemplateReport {
            python: String::new(),
            imports: Vec::new(),
            forkable: false,
            reason: None,
            own_imports: None,
            modules: Vec::new(),
            took: Duration::from_millis(45),
            ..a_template()
        };
        assert_eq!(
            plain(&deployed(&report, "http://h")),
            "✓ invert  version 3 (0123456789abcdef)\n  \
               environment  Node 20.20.2, 3 packages; new: its requirements were installed\n  \
               runtime      node, 48.2 MB, up in 45.0 ms\n  \
               url          http://h/fn/invert/\n"
        );
        report.runtime = "container qr:1".to_owned();
        report.environment_has = String::new();
        report.environment_reused = true;
        report.template.memory_bytes = 0;
        report.template.took = Duration::ZERO;
        report.template.reason = Some("the image has no HEALTHCHECK".to_owned());
        let text = plain(&deployed(&report, "http://h"));
        assert!(
            text.contains(
                "  environment  nothing to install\n  runtime      container qr:1\n  remark       the image has no HEALTHCHECK\n"
            ),
            "{text}"
        );
        for word in ["emplate", "ython", "fork"] {
            assert!(!text.contains(word), "{text}");
        }
    }

    #[test]
    fn what_is_unusual_is_said() {
        let mut report = a_report();
        report.changed = false;
        report.template.forkable = false;
        report.template.reason =
            Some("2 threads after the imports (grpc): forked from the environment".to_owned());
        report.template.failed_imports.push(FailedImport {
            module: "cv2".to_owned(),
            error: "ImportError: libGL.so.1".to_owned(),
        });
        let text = plain(&deployed(&report, "http://h"));
        assert!(text.contains("unchanged"), "{text}");
        assert!(
            text.contains("forkable     no: 2 threads after the imports"),
            "{text}"
        );
        assert!(
            text.contains("not imported cv2: ImportError: libGL.so.1"),
            "{text}"
        );
    }
}
