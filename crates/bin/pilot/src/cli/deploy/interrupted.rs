//! Ctrl-C during `pilot deploy` and `pilot up`: says how far the deployment is, because the daemon finishes one that has been uploaded.

use std::io::{IsTerminal, stderr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pilot_model::FunctionName;

use super::super::interrupt;
use super::super::output;

/// How far the deployments of a command are. Held for a look-up.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Course(Arc<Mutex<Vec<(FunctionName, Step)>>>);

/// How far the deployment of a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Step {
    /// The daemon knows nothing of it.
    Unsent,
    /// The daemon receives the code.
    Uploading,
    /// The daemon has the code, and deploys it whether this command runs or not.
    Uploaded,
    /// It is deployed, or was refused.
    Over,
}

impl Course {
    /// Of these functions, in this order. From now on Ctrl-C says how far they are and ends the process.
    ///
    /// # Errors
    /// The signal cannot be received.
    pub(super) fn watched<'a>(
        names: impl Iterator<Item = &'a FunctionName>,
    ) -> anyhow::Result<Self> {
        let course = Self::of(names);
        let told = course.clone();
        interrupt::on_interrupt(move || {
            let text = told.in_words();
            // The line has the progress and ^C.
            let beginning = if stderr().is_terminal() { "\n" } else { "" };
            output::note(&format!("{beginning}interrupted{text}"));
            std::process::exit(interrupt::EXIT_CODE.into());
        })?;
        Ok(course)
    }

    fn of<'a>(names: impl Iterator<Item = &'a FunctionName>) -> Self {
        let unsent = names.map(|name| (name.clone(), Step::Unsent));
        Self(Arc::new(Mutex::new(unsent.collect())))
    }

    /// A function's deployment has come to this step.
    pub(super) fn at(&self, name: &FunctionName, step: Step) {
        for one in self.steps().iter_mut().filter(|(known, _)| known == name) {
            one.1 = step;
        }
    }

    fn steps(&self) -> MutexGuard<'_, Vec<(FunctionName, Step)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What follows "interrupted".
    fn in_words(&self) -> String {
        let steps = self.steps().clone();
        let all = |wanted: Step| -> Vec<&str> {
            let those = steps.iter().filter(|(_, step)| *step == wanted);
            those.map(|(name, _)| name.as_str()).collect()
        };
        let mut text = String::new();
        for name in all(Step::Uploading) {
            text.push_str(&format!(
                ": the code of '{name}' was being uploaded. The daemon deploys it only if it has received all of it: \
                 `pilot describe {name}` shows which version is live"
            ));
        }
        for name in all(Step::Uploaded) {
            text.push_str(&format!(
                ": the daemon has the code of '{name}' and goes on with its deployment: `pilot describe {name}` shows which version is live"
            ));
        }
        let unsent = all(Step::Unsent);
        if !unsent.is_empty() {
            let beginning = if text.is_empty() { ": " } else { "\n" };
            text.push_str(&format!(
                "{beginning}nothing was sent of {}: not deployed",
                unsent.join(", ")
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_words() {
        let names: Vec<FunctionName> = ["a", "b", "c"].map(|name| name.parse().unwrap()).to_vec();
        let course = Course::of(names.iter());
        assert_eq!(
            course.in_words(),
            ": nothing was sent of a, b, c: not deployed"
        );
        course.at(&names[0], Step::Over);
        course.at(&names[1], Step::Uploading);
        let text = course.in_words();
        assert!(
            text.starts_with(": the code of 'b' was being uploaded"),
            "{text}"
        );
        assert!(
            text.ends_with("\nnothing was sent of c: not deployed"),
            "{text}"
        );
        course.at(&names[1], Step::Over);
        course.at(&names[2], Step::Uploaded);
        let text = course.in_words();
        assert!(
            text.starts_with(": the daemon has the code of 'c' and goes on"),
            "{text}"
        );
        course.at(&names[2], Step::Over);
        assert_eq!(course.in_words(), "");
    }
}
