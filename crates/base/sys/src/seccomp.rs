//! System call filters (seccomp(2)): compiles a list of rules into a program and installs it on this thread. `path/sandbox`
//! decides which calls are allowed.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// A condition on one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Argument `index` equals `value` (lower 32 bits).
    Is {
        /// 0-5.
        index: u8,
        /// The value.
        value: u32,
    },
    /// Argument `index` does not equal `value` (lower 32 bits).
    Not {
        /// 0-5.
        index: u8,
        /// The value.
        value: u32,
    },
    /// None of the bits of `mask` is set in argument `index`.
    Without {
        /// 0-5.
        index: u8,
        /// The bits.
        mask: u64,
    },
}

/// A system call and its conditions. The rule matches if all of them hold; without conditions it always matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The call's number.
    pub call: i64,
    /// Conditions that must all hold.
    pub when: Vec<Argument>,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    Allow,
    /// It fails with this error number.
    Errno(u32),
}

/// A compiled filter.
#[derive(Debug, Clone)]
pub struct Filter {
    program: BpfProgram,
}

/// Why a filter cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[error("the system call filter does not compile: {problem}")]
pub struct FilterError {
    problem: String,
}

impl Filter {
    /// Compiles a filter: calls that match one of `rules` get `matched`, all others `otherwise`.
    ///
    /// # Errors
    /// An unknown architecture, or a rule that cannot be expressed.
    pub fn compile(
        rules: &[Rule],
        matched: Verdict,
        otherwise: Verdict,
    ) -> Result<Self, FilterError> {
        let fail = |problem: String| FilterError { problem };
        let mut by_call: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for rule in rules {
            let entry = by_call.entry(rule.call).or_default();
            if rule.when.is_empty() {
                continue;
            }
            let conditions = rule
                .when
                .iter()
                .map(condition)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| fail(error.to_string()))?;
            entry.push(SeccompRule::new(conditions).map_err(|error| fail(error.to_string()))?);
        }
        let arch = TargetArch::try_from(std::env::consts::ARCH)
            .map_err(|error| fail(error.to_string()))?;
        let filter = SeccompFilter::new(by_call, action(otherwise), action(matched), arch)
            .map_err(|error| fail(error.to_string()))?;
        let program = BpfProgram::try_from(filter).map_err(|error| fail(error.to_string()))?;
        Ok(Self { program })
    }

    /// Installs the filter on this thread and everything that it forks. Also sets `no_new_privs`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn install(&self) -> io::Result<()> {
        seccompiler::apply_filter(&self.program)
            .map_err(|error| io::Error::other(error.to_string()))
    }

    /// The program as an array of `struct sock_filter` in memory order, for a process that installs it itself.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.program
            .iter()
            .flat_map(|instruction| {
                let mut bytes = [0; 8];
                bytes[..2].copy_from_slice(&instruction.code.to_ne_bytes());
                bytes[2] = instruction.jt;
                bytes[3] = instruction.jf;
                bytes[4..].copy_from_slice(&instruction.k.to_ne_bytes());
                bytes
            })
            .collect()
    }
}

fn condition(argument: &Argument) -> Result<SeccompCondition, seccompiler::BackendError> {
    match *argument {
        Argument::Is { index, value } => SeccompCondition::new(
            index,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(value),
        ),
        Argument::Not { index, value } => SeccompCondition::new(
            index,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Ne,
            u64::from(value),
        ),
        Argument::Without { index, mask } => SeccompCondition::new(
            index,
            SeccompCmpArgLen::Qword,
            SeccompCmpOp::MaskedEq(mask),
            0,
        ),
    }
}

fn action(verdict: Verdict) -> SeccompAction {
    match verdict {
        Verdict::Allow => SeccompAction::Allow,
        Verdict::Errno(number) => SeccompAction::Errno(number),
    }
}
