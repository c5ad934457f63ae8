//! When another worker is started for requests that wait: the rules that a daemon, and the simulator, can be told to follow. What each
//! of them decides is in `base/rules`; decision 0033 says why there is more than one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rule of starts. They differ only for functions whose starts take more than 20 ms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartRule {
    /// Only a start that serves a waiting request sooner than waiting would. Starts few workers; a queue that has formed stays.
    Sooner,
    /// One start for each waiting request, unless all of them are served at once anyway. No queue stays; where a start takes much
    /// longer than an invocation, most of its workers come too late.
    Each,
    /// As `each`, but no start for requests that the workers will have served soon after it, counting those that arrive until then.
    #[default]
    Expected,
}

impl StartRule {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sooner, Self::Each, Self::Expected];

    /// The word it is chosen by.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sooner => "sooner",
            Self::Each => "each",
            Self::Expected => "expected",
        }
    }
}

impl fmt::Display for StartRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word names no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no start rule \"{}\" (there are: sooner, each, expected)", word.escape_default())]
pub struct UnknownStartRule {
    /// The word.
    pub word: String,
}

impl FromStr for StartRule {
    type Err = UnknownStartRule;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|rule| rule.as_str() == word);
        named.ok_or_else(|| UnknownStartRule {
            word: word.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_read_as_it_is_written_and_the_error_lists_them_all() {
        for rule in StartRule::ALL {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        let error = "eager".parse::<StartRule>().unwrap_err().to_string();
        for rule in StartRule::ALL {
            assert!(error.contains(rule.as_str()), "{error}");
        }
    }
}
