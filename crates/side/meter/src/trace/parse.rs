//! Rows and decimal numbers, without floating point.

use crate::bill::Usage;
use crate::platform::Size;

/// What a row says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) usage: Usage,
    /// Milliseconds of the trace's clock.
    pub(crate) begin_ms: Option<u64>,
    /// The same on a clock that nobody sets, if the trace has one.
    pub(crate) elapsed_ms: Option<u64>,
    /// What counts as used memory if it was not measured, bytes.
    pub(crate) memory_before: Option<u64>,
    /// Whether it waited for the start of a worker, if the row says it.
    pub(crate) waited: Option<bool>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu_milli: Option<u64>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// A hash of the name of its worker.
    pub(crate) worker: Option<u64>,
    /// The row is of many requests: how many take how long, nanoseconds. Then `usage` has no execution.
    pub(crate) bands: Option<[(u64, u64); 6]>,
    /// It is a record of an invocation whose handler was not called: it costs nothing.
    pub(crate) did_not_run: bool,
}

impl Row {
    /// What is allocated; `default` where the row does not say it.
    pub(super) fn allocated(&self, default: Size) -> Size {
        Size {
            memory_bytes: self.memory_bytes.unwrap_or(default.memory_bytes),
            cpu_milli: self.cpu_milli.unwrap_or(default.cpu_milli),
        }
    }
}

/// The first field of a row, and what comes after its comma. Commas in quotes do not end a field; a quote in quotes is doubled.
pub(super) fn first_field(row: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut from = 0;
    if let [b'"', ..] = row.trim_ascii_start() {
        let spaces = row.len() - row.trim_ascii_start().len();
        from = spaces + 1;
        loop {
            let rest = row.get(from..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'"', rest) else {
                return (row, None);
            };
            from += at + 1;
            match row.get(from) {
                Some(b'"') => from += 1,
                _ => break,
            }
        }
    }
    let rest = row.get(from..).unwrap_or_default();
    match memchr::memchr(b',', rest) {
        Some(at) => (
            row.get(..from + at).unwrap_or_default(),
            row.get(from + at + 1..),
        ),
        None => (row, None),
    }
}

/// Number of fields of a row.
pub(super) fn field_count(row: &[u8]) -> usize {
    fields(row).count()
}

/// The fields of a row.
pub(super) fn fields(row: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(row);
    std::iter::from_fn(move || {
        let (field, after) = first_field(rest?);
        rest = after;
        Some(field)
    })
}

/// A field without space and quotes around it.
pub(super) fn unquoted(field: &[u8]) -> &[u8] {
    match field.trim_ascii() {
        [b'"', inner @ .., b'"'] => inner,
        field => field,
    }
}

/// Reads a decimal number, in units of 1/`unit`; what is smaller than that is cut off. `None`: the field is empty.
///
/// # Errors
/// It is negative, not a number, or too large.
pub(super) fn number(field: &[u8], unit: u64) -> Result<Option<u64>, &'static str> {
    let field = match unquoted(field) {
        [] => return Ok(None),
        // Some tools write a difference of nothing so.
        [b'-', rest @ ..] if is_zero(rest) => rest,
        [b'-', ..] => return Err("is negative"),
        field => field,
    };
    let (first, rest) = match field {
        [] => return Ok(None),
        [first, rest @ ..] => (first, rest),
    };
    if !first.is_ascii_digit() {
        return Err("is not a number");
    }
    let mut whole = u64::from(first - b'0');
    let mut digits = rest.iter();
    let mut fraction: &[u8] = &[];
    let (mut exponent, mut in_whole) = (0_i32, true);
    while let Some(byte) = digits.next() {
        match byte {
            b'0'..=b'9' if in_whole => {
                let digit = u64::from(byte - b'0');
                let more = whole
                    .checked_mul(10)
                    .and_then(|whole| whole.checked_add(digit));
                whole = more.ok_or("is too large")?;
            }
            b'.' if in_whole => {
                in_whole = false;
                let after = digits.as_slice();
                let end = after.iter().position(|byte| !byte.is_ascii_digit());
                let (places, left) = after.split_at(end.unwrap_or(after.len()));
                fraction = places;
                digits = left.iter();
            }
            b'e' | b'E' => {
                exponent = small_exponent(digits.as_slice())?;
                digits = [].iter();
            }
            _ => return Err("is not a number"),
        }
    }
    scaled(whole, fraction, exponent, unit).map(Some)
}

fn is_zero(digits: &[u8]) -> bool {
    digits.first() == Some(&b'0') && digits.iter().all(|byte| matches!(byte, b'0' | b'.'))
}

/// `e-05`, as some tools write small numbers.
fn small_exponent(text: &[u8]) -> Result<i32, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "is not a number")?;
    let exponent: i32 = text.parse().map_err(|_| "is not a number")?;
    if (-30..=15).contains(&exponent) {
        Ok(exponent)
    } else {
        Err("is too large or too small")
    }
}

fn scaled(whole: u64, fraction: &[u8], exponent: i32, unit: u64) -> Result<u64, &'static str> {
    const TOO_LARGE: &str = "is too large";
    // More places than these do not change the result.
    let places = fraction.get(..12).unwrap_or(fraction);
    if exponent == 0 {
        // The usual case, in 64 bits where they are enough.
        let mut scale: u128 = 1;
        let mut part: u128 = 0;
        for digit in places {
            part = part * 10 + u128::from(digit - b'0');
            scale *= 10;
        }
        let whole = whole.checked_mul(unit).ok_or(TOO_LARGE)?;
        if part == 0 {
            return Ok(whole);
        }
        let part = part * u128::from(unit);
        let part = match (u64::try_from(part), u64::try_from(scale)) {
            (Ok(part), Ok(scale)) => part / scale,
            _ => u64::try_from(part / scale).map_err(|_| TOO_LARGE)?,
        };
        return whole.checked_add(part).ok_or(TOO_LARGE);
    }
    let mut value = u128::from(whole);
    for digit in places {
        value = value * 10 + u128::from(digit - b'0');
    }
    let length = i32::try_from(places.len()).map_err(|_| TOO_LARGE)?;
    let shift = exponent - length;
    let power = 10_u128.checked_pow(shift.unsigned_abs()).ok_or(TOO_LARGE)?;
    let value = value.checked_mul(u128::from(unit)).ok_or(TOO_LARGE)?;
    let value = if shift < 0 {
        value / power
    } else {
        value.checked_mul(power).ok_or(TOO_LARGE)?
    };
    u64::try_from(value).map_err(|_| TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimal_numbers_are_read_exactly() {
        let read = |text: &str| number(text.as_bytes(), 1_000_000_000);
        assert_eq!(read("0.078"), Ok(Some(78_000_000)));
        assert_eq!(read("57.15786004066467"), Ok(Some(57_157_860_040)));
        assert_eq!(read("0.07949090003967285"), Ok(Some(79_490_900)));
        assert_eq!(read("2600186.994"), Ok(Some(2_600_186_994_000_000)));
        assert_eq!(read("1.6e-05"), Ok(Some(16_000)));
        assert_eq!(read("2E3"), Ok(Some(2_000_000_000_000)));
        assert_eq!(read("3."), Ok(Some(3_000_000_000)));
        assert_eq!(read("\"0.5\""), Ok(Some(500_000_000)));
        assert_eq!(read(""), Ok(None));
        assert_eq!(read(" 1 \r"), Ok(Some(1_000_000_000)));
        assert_eq!(read("-1"), Err("is negative"));
        assert_eq!((read("-0"), read("-0.00")), (Ok(Some(0)), Ok(Some(0))));
        assert_eq!(read("-0.0000000001"), Err("is negative"));
        assert_eq!(read("-"), Err("is negative"));
        for wrong in [
            "NaN", "inf", ".5", "1,5", "1.5.2", "0x10", "1e", "1 ms", "5ms", "1e5x", "+1",
        ] {
            assert_eq!(read(wrong), Err("is not a number"), "{wrong}");
        }
        for wrong in ["99999999999999999999", "99999999999", "1e15"] {
            assert_eq!(read(wrong), Err("is too large"), "{wrong}");
        }
        assert!(read("1e99").is_err());
    }

    #[test]
    fn a_comma_in_quotes_ends_no_field() {
        let fields_of = |row: &'static str| -> Vec<&str> {
            let fields = fields(row.as_bytes());
            fields
                .map(|field| std::str::from_utf8(field).unwrap())
                .collect()
        };
        assert_eq!(fields_of("a,\"b,c\",d"), ["a", "\"b,c\"", "d"]);
        assert_eq!(
            fields_of("\"a\"\",\"\"\", \"b\" ,"),
            ["\"a\"\",\"\"\"", " \"b\" ", ""]
        );
        assert_eq!(fields_of(""), [""]);
        assert_eq!(fields_of("a\"b,c"), ["a\"b", "c"]);
        assert_eq!(
            fields_of("a,\"b,c"),
            ["a", "\"b,c"],
            "a quote that is not closed"
        );
    }

    proptest! {
        #[test]
        fn no_field_panics(field in proptest::collection::vec(any::<u8>(), 0..40), unit in prop::sample::select(vec![1, 1_000_000, 1 << 20, 1_000_000_000_u64])) {
            let _ = number(&field, unit);
        }

        #[test]
        fn what_is_written_is_read(whole in 0..1_000_000_u64, nanos in 0..1_000_000_000_u64) {
            let text = format!("{whole}.{nanos:09}");
            prop_assert_eq!(number(text.as_bytes(), 1_000_000_000), Ok(Some(whole * 1_000_000_000 + nanos)));
        }
    }
}
