//! The errors of scripts: as codes for their calls, and in words.

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    /// `allow` or `during` does not permit it.
    Refused = -1,
    /// The id was used before.
    Duplicate = -2,
    /// There is no such connection, request, reply or value.
    Unknown = -3,
    /// More than a script may have.
    Limit = -4,
    /// The text cannot be used.
    Invalid = -5,
    /// The request, or the memory for it, failed, or the function cannot send any more.
    Failed = -6,
}

/// An error and its causes in one line. Its text may have parts of the module.
pub(crate) fn in_words(error: &wasmtime::Error) -> String {
    pilot_model::log_line::one_line(&format!("{error:#}"), WORDS_MAX)
}

const WORDS_MAX: usize = 400;
