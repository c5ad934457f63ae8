//! The timestamps of an exchange.

use pilot_model::Instant;

/// Timestamps of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The poll was answered.
    pub(super) started: Instant,
    /// The first byte of the answer arrived.
    pub(super) first_byte: Instant,
}
