//! What invoked a function, in OpenTelemetry's words: the attribute `faas.trigger` of spans and the label `faas_trigger` of metrics
//! (OpenTelemetry, "Semantic conventions for FaaS spans").

use super::TriggerConfig;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaasTrigger {
    /// A request to the Invoke API or to a function URL, also if its caller does not wait.
    Http,
    /// A message of a queue, a topic or a stream.
    Pubsub,
    /// A schedule.
    Timer,
    /// A file that was written.
    Datasource,
    /// Another function, or the end of an asynchronous invocation.
    Other,
}

impl FaasTrigger {
    /// All of them, in the order of [`FaasTrigger::index`].
    pub const ALL: [Self; 5] = [
        Self::Http,
        Self::Pubsub,
        Self::Timer,
        Self::Datasource,
        Self::Other,
    ];

    /// OpenTelemetry's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Pubsub => "pubsub",
            Self::Timer => "timer",
            Self::Datasource => "datasource",
            Self::Other => "other",
        }
    }

    /// The reverse of [`FaasTrigger::as_str`].
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// Its place in [`FaasTrigger::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

impl TriggerConfig {
    /// What its invocations are invoked by.
    #[must_use]
    pub fn faas_trigger(&self) -> FaasTrigger {
        match self {
            Self::Schedule(_) => FaasTrigger::Timer,
            Self::Folder(_) => FaasTrigger::Datasource,
            Self::Sqs(_) | Self::Redis(_) | Self::Mqtt(_) => FaasTrigger::Pubsub,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_back_and_each_has_its_own_place() {
        for (place, trigger) in FaasTrigger::ALL.into_iter().enumerate() {
            assert_eq!(FaasTrigger::of_word(trigger.as_str()), Some(trigger));
            assert_eq!(trigger.index(), place);
        }
        assert_eq!(FaasTrigger::of_word("HTTP"), None);
    }
}
