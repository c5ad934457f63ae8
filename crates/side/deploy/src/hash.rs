//! Content addresses: SHA-256 over a sequence of fields with unambiguous boundaries.

use sha2::{Digest, Sha256};

/// A hash over a sequence of fields. Each field is preceded by its length.
#[derive(Debug, Default)]
pub(crate) struct Fields(Sha256);

impl Fields {
    pub(crate) fn add(&mut self, field: impl AsRef<[u8]>) -> &mut Self {
        let field = field.as_ref();
        self.0.update((field.len() as u64).to_le_bytes());
        self.0.update(field);
        self
    }

    pub(crate) fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_run_into_one_another() {
        let of = |fields: &[&str]| {
            let mut hash = Fields::default();
            for field in fields {
                hash.add(field);
            }
            hash.hex()
        };
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
        assert_eq!(of(&["ab", "c"]).len(), 64);
    }
}
