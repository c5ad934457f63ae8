//! System call filters (seccomp(2)): from a list of rules to a program, and the program into this thread.
//! Which calls are allowed is `path/sandbox`'s to say.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// What a rule asks of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Argument `index` equals `value` (lower 32 bits).
    Is {
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

/// A system call and when it matches: always without conditions, else when all of them hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The call's number.
    pub call: i64,
    /// All must hold.
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

/// Why rules do not make a filter.
#[derive(Debug, thiserror::Error)]
#[error("the system call filter does not compile: {problem}")]
pub struct FilterError {
    problem: String,
}

impl Filter {
    /// A filter that gives `matched` to calls that match one of `rules` and `otherwise` to all others.
    ///
    /// # Errors
    /// An architecture that is not known, or a rule that cannot be expressed.
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

    /// Puts it on this thread and all it forks. `no_new_privs` is set with it.
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
