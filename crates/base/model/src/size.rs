//! Sizes as people read them: `250 MB`, `48.2 MB`, `3 KB`, `17 bytes`. Units are powers of 1024, as in Lambda.

use std::fmt;

/// A number of bytes, to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        if bytes < KB {
            return write!(f, "{bytes} bytes");
        }
        if bytes < MB {
            return write!(f, "{} KB", bytes.div_ceil(KB));
        }
        let tenths = bytes.saturating_mul(10).saturating_add(MB / 2) / MB;
        match tenths % 10 {
            0 => write!(f, "{} MB", tenths / 10),
            tenth => write!(f, "{}.{tenth} MB", tenths / 10),
        }
    }
}

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1_023, "1023 bytes"),
            (1_500, "2 KB"),
            (262_144_000, "250 MB"),
            (50_541_363, "48.2 MB"),
            (1 << 40, "1048576 MB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
