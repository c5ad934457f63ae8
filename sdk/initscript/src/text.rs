//! A text on the stack.

use crate::Error;

pub(crate) struct Text<const MAX: usize> {
    bytes: [u8; MAX],
    len: usize,
}

impl<const MAX: usize> Text<MAX> {
    pub(crate) fn new() -> Self {
        Self {
            bytes: [0; MAX],
            len: 0,
        }
    }

    pub(crate) fn push(&mut self, part: &[u8]) -> Result<(), Error> {
        let end = self.len + part.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(Error::Limit)?;
        room.copy_from_slice(part);
        self.len = end;
        Ok(())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
