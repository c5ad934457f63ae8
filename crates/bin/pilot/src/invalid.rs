//! Files and folders of the operator that the daemon cannot use. `pilot serve` ends with 2 then, as every command does for what it was
//! given, and with 1 if the machine does not let the daemon start.

/// A file or folder that is invalid or missing, in words.
#[derive(Debug, thiserror::Error)]
#[error("{problem}")]
pub(crate) struct Invalid {
    problem: String,
}

impl Invalid {
    /// Whatever went wrong with it.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let mut problem = String::new();
        for cause in error.chain().map(ToString::to_string) {
            if problem.is_empty() {
                problem = cause;
            } else if !problem.contains(&cause) {
                // Some messages contain their cause.
                problem = format!("{problem}: {cause}");
            }
        }
        Self { problem }
    }
}

/// Says of an error that it is about a file or folder of the operator.
pub(crate) trait OrInvalid<T> {
    /// The error becomes an [`Invalid`].
    ///
    /// # Errors
    /// Those of the result.
    fn or_invalid(self) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrInvalid<T> for Result<T, E> {
    fn or_invalid(self) -> anyhow::Result<T> {
        self.map_err(|error| Invalid::of(&error.into()).into())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_invalid_file_stays_one_below_other_words() {
        let result: anyhow::Result<()> = Err(anyhow::anyhow!("a: b"));
        let error = result
            .context("c")
            .or_invalid()
            .context("when it starts")
            .unwrap_err();
        let found = error.downcast_ref::<Invalid>().unwrap();
        assert_eq!(found.to_string(), "c: a: b");
        assert_eq!(format!("{error:#}"), "when it starts: c: a: b");
    }
}
