//! Which columns of a Parquet file are durations. Parquet has no such type: they are plain numbers in it. Tools that know Arrow
//! keep Arrow's schema beside the file's own, under `ARROW:schema`: an encapsulated message in Base64, whose content is a
//! FlatBuffer (Arrow's Message.fbs and Schema.fbs).
//!
//! Nothing else is read of it. What is damaged is left out.

/// The names of the columns that are durations.
pub(super) fn durations(schema: &str) -> Vec<String> {
    durations_of(&bytes_of(schema)).unwrap_or_default()
}

fn durations_of(message: &[u8]) -> Option<Vec<String>> {
    const DURATION: u8 = 18;
    // Older messages begin with the length, without a mark.
    let buffer = match message {
        [0xff, 0xff, 0xff, 0xff, _, _, _, _, rest @ ..] => rest,
        [_, _, _, _, rest @ ..] => rest,
        _ => return None,
    };
    let buffer = Buffer(buffer);
    let message = buffer.reference(0)?;
    let schema = buffer.reference(buffer.field(message, 2)?)?;
    let fields = buffer.reference(buffer.field(schema, 1)?)?;
    let count = usize::try_from(buffer.u32(fields)?).ok()?;
    let mut names = Vec::new();
    for at in (fields + 4..).step_by(4).take(count.min(FIELDS_MAX)) {
        let field = buffer.reference(at)?;
        let kind = buffer.field(field, 2).and_then(|at| buffer.0.get(at));
        if kind == Some(&DURATION) {
            names.extend(buffer.text(buffer.reference(buffer.field(field, 0)?)?));
        }
    }
    Some(names)
}

/// A FlatBuffer. Places are offsets in it.
struct Buffer<'a>(&'a [u8]);

impl Buffer<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn u16(&self, at: usize) -> Option<u16> {
        let bytes = self.0.get(at..at.checked_add(2)?)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    /// What the offset at this place leads to.
    fn reference(&self, at: usize) -> Option<usize> {
        at.checked_add(usize::try_from(self.u32(at)?).ok()?)
    }

    /// The place of a table's field. `None`: it has its default.
    fn field(&self, table: usize, number: usize) -> Option<usize> {
        let back = self.u32(table)?.cast_signed();
        let vtable = isize::try_from(table).ok()? - isize::try_from(back).ok()?;
        let vtable = usize::try_from(vtable).ok()?;
        let slot = 4 + 2 * number;
        if slot + 2 > usize::from(self.u16(vtable)?) {
            return None;
        }
        match self.u16(vtable.checked_add(slot)?)? {
            0 => None,
            offset => table.checked_add(usize::from(offset)),
        }
    }

    fn text(&self, at: usize) -> Option<String> {
        let length = usize::try_from(self.u32(at)?).ok()?;
        let bytes = self.0.get(at + 4..(at + 4).checked_add(length)?)?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Decodes Base64, up to the first byte that is none.
fn bytes_of(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bits, mut held) = (0_u32, 0_u32);
    let mut bytes = Vec::new();
    for value in text.bytes().map_while(digit) {
        held = (held << 6 | u32::from(value)) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.extend(u8::try_from((held >> bits) & 0xff));
        }
    }
    bytes
}

/// Fields of a schema that are looked at.
const FIELDS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parquet::tests::ARROW_SCHEMA;

    #[test]
    fn durations_of_a_schema_are_found() {
        assert_eq!(durations(ARROW_SCHEMA), ["duration"]);
        assert_eq!(durations("no schema"), Vec::<String>::new());
        assert_eq!(bytes_of("TWFu"), b"Man");
        assert_eq!(bytes_of("TWE="), b"Ma");
    }

    proptest! {
        #[test]
        fn no_schema_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
            let mut bytes = bytes_of(ARROW_SCHEMA);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = durations_of(&bytes);
            let _ = durations_of(&bytes[..cut.index(bytes.len())]);
        }
    }
}
