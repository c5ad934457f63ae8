//! What a deployment found, as text: the version, the template, the slowest imports.

use std::fmt::Write as _;

use pilot_model::api::DeployReport;
use pilot_model::ports::TemplateReport;

use super::output::{self, DIM, GOOD, STRONG, WARN};
use super::phases;

/// The report of a deployment that went well; `endpoint` is where the daemon is.
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
    let environment = if report.environment_reused {
        "reused: nothing had to be installed"
    } else {
        "new: its requirements were installed"
    };
    let _ = writeln!(text, "  environment  {environment}");
    text.push_str(&template(&report.template));
    let _ = writeln!(text, "  url          {endpoint}{}", report.url_path);
    text
}

/// A template's memory, whether it can be forked, and its slowest imports; indented lines.
pub(super) fn template(report: &TemplateReport) -> String {
    let mut text = format!(
        "  template     {}, Python {}, up in {}\n",
        output::megabytes(report.memory_bytes),
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

/// Imports that are shown, at most.
const SHOWN_MAX: usize = 5;
/// Imports faster than this do not interest.
const SHOWN_MS_MIN: f64 = 0.5;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use pilot_model::VersionId;
    use pilot_model::ports::{FailedImport, ImportTime};

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
            memory_bytes: 50_541_363,
            forkable: true,
            reason: None,
            took: Duration::from_millis(312),
        }
    }

    fn a_report() -> DeployReport {
        DeployReport {
            name: "invert".parse().unwrap(),
            version: VersionId::from_hex("0123456789abcdef"),
            number: 3,
            changed: true,
            environment_reused: true,
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
               environment  reused: nothing had to be installed\n  \
               template     48.2 MB, Python 3.11.7, up in 312 ms\n  \
               forkable     yes: workers are forked with everything imported\n  \
               slowest imports (with what they import)\n    \
                 numpy       61.2 ms  ██████████████████████████\n    \
                 PIL.Image   22.9 ms  ██████████\n  \
               url          http://127.0.0.1:8080/fn/invert/\n"
        );
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
