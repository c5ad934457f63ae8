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

    pub(crate) fn push_number(&mut self, number: u16) -> Result<(), Error> {
        let digit = |unit: u16| b'0' + (number / unit % 10) as u8;
        let digits = [10_000, 1000, 100, 10, 1].map(digit);
        let zeros = digits
            .iter()
            .take(4)
            .take_while(|digit| **digit == b'0')
            .count();
        self.push(digits.get(zeros..).unwrap_or_default())
    }

    /// A string of JSON (RFC 8259, section 7), with its quotes.
    pub(crate) fn push_json(&mut self, text: &str) -> Result<(), Error> {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        self.push(b"\"")?;
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.push(&[b'\\', byte])?,
                0..0x20 => {
                    self.push(b"\\u00")?;
                    self.push(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]])?;
                }
                _ => self.push(&[byte])?,
            }
        }
        self.push(b"\"")
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}
