//! What the commands of a transaction may do.

use crate::command::{Change, Command, How};
use crate::rules::Condition;

use super::Rows;

/// What a command may do.
#[derive(Debug)]
pub(super) enum Planned {
    Accept { id: String },
    Settle { id: String, ends: Option<Ends> },
    Cancel { id: String },
    Letters { how: How },
    Other,
}

/// What follows the last attempt.
#[derive(Debug)]
pub(super) struct Ends {
    /// It becomes a dead letter.
    pub(super) dies: bool,
    /// Its function is gone.
    pub(super) is_gone: bool,
    /// The record for its destination, and whether that is a dead letter.
    pub(super) then: Option<(String, bool)>,
}

impl Planned {
    pub(super) fn of(command: &Command, rows: &Rows) -> Self {
        match command {
            Command::Accept { record, .. } => Self::Accept {
                id: record.request.id.to_string(),
            },
            Command::Settle { seq, change, .. } => Self::Settle {
                id: rows[seq].id.clone(),
                ends: match change {
                    Change::Again { .. } => None,
                    Change::End { dead, then } => Some(Ends {
                        dies: dead.is_some(),
                        is_gone: dead
                            .as_ref()
                            .is_some_and(|dead| dead.condition == Condition::FunctionNotFound),
                        then: then
                            .as_ref()
                            .map(|then| (then.request.id.to_string(), then.dead.is_some())),
                    }),
                },
            },
            Command::Cancel { id, .. } => Self::Cancel { id: id.clone() },
            Command::DeadLetters { how, .. } => Self::Letters { how: *how },
            _ => Self::Other,
        }
    }

    /// The invocation that it adds.
    pub(super) fn added(&self) -> Option<String> {
        match self {
            Self::Accept { id } => Some(id.clone()),
            Self::Settle { ends, .. } => Some(ends.as_ref()?.then.as_ref()?.0.clone()),
            _ => None,
        }
    }

    pub(super) fn is_derived(&self, id: &str) -> bool {
        !matches!(self, Self::Accept { .. }) && self.added().is_some_and(|added| added == id)
    }

    /// Whether it makes a dead letter of an invocation.
    pub(super) fn buries(&self, of: &str) -> bool {
        let Self::Settle {
            id,
            ends: Some(ends),
        } = self
        else {
            return false;
        };
        let then = ends.then.as_ref();
        (id == of && ends.dies) || then.is_some_and(|(then, is_dead)| then == of && *is_dead)
    }

    /// How many dead letters it may make.
    pub(super) fn burials(&self) -> usize {
        let Self::Settle {
            ends: Some(ends), ..
        } = self
        else {
            return 0;
        };
        let then = ends.then.as_ref();
        usize::from(ends.dies) + usize::from(then.is_some_and(|(_, is_dead)| *is_dead))
    }

    /// Whether it ends an invocation, so that nothing of it stays.
    pub(super) fn ends(&self, of: &str) -> bool {
        match self {
            Self::Cancel { id } => id == of,
            Self::Settle {
                id,
                ends: Some(ends),
            } => id == of && !ends.dies,
            _ => false,
        }
    }

    /// Whether it may end an invocation that never runs, so that its key is free.
    pub(super) fn frees(&self, of: &str) -> bool {
        match self {
            Self::Cancel { id } => id == of,
            Self::Settle {
                id,
                ends: Some(ends),
            } => id == of && ends.is_gone,
            _ => false,
        }
    }

    pub(super) fn purges(&self) -> bool {
        matches!(self, Self::Letters { how: How::Purge })
    }
}
