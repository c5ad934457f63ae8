//! Exact money: US dollars as a fraction. Nothing is rounded before it is printed.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign};

use num_bigint::BigInt;
use num_rational::BigRational;

/// An amount of US dollars, exact.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Money(BigRational);

impl Money {
    /// Nothing.
    #[must_use]
    pub fn zero() -> Self {
        Self(BigRational::from_integer(BigInt::from(0)))
    }

    /// Reads a decimal number: digits, and at most one point. No sign, no exponent.
    ///
    /// # Errors
    /// The text is something else, or longer than 40 characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("'{text}' is not an amount of dollars: write digits, such as \"0.0000166667\"")
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = format!("{whole}{fraction}");
        let plain = !whole.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || text.len() > TEXT_MAX || text.ends_with('.') {
            return Err(wrong());
        }
        let numerator: BigInt = digits.parse().map_err(|_| wrong())?;
        let places = u32::try_from(fraction.len()).map_err(|_| wrong())?;
        Ok(Self(BigRational::new(
            numerator,
            BigInt::from(10).pow(places),
        )))
    }

    /// So many times this.
    #[must_use]
    pub fn times(&self, count: u128) -> Self {
        Self(&self.0 * BigInt::from(count))
    }

    /// This divided by a number; by 0, it stays.
    #[must_use]
    pub fn over(&self, count: u128) -> Self {
        if count == 0 {
            return self.clone();
        }
        Self(&self.0 / BigInt::from(count))
    }

    /// This without another amount; nothing, if that is larger.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        if other >= self {
            return Self::zero();
        }
        Self(&self.0 - &other.0)
    }

    /// How many of `unit` this is, in nano-units, rounded down; `None` if `unit` is zero or the number does not fit.
    #[must_use]
    pub fn ratio_nano(&self, unit: &Self) -> Option<u128> {
        if unit.is_zero() {
            return None;
        }
        let ratio = &self.0 / &unit.0 * BigInt::from(1_000_000_000_u64);
        u128::try_from(ratio.to_integer()).ok()
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.numer() == &BigInt::from(0)
    }

    /// As a decimal number with this many places, rounded half up.
    #[must_use]
    pub fn decimal(&self, places: u32) -> String {
        let scaled = &self.0 * BigInt::from(10).pow(places);
        let digits = (scaled + half()).floor().to_integer().to_string();
        let places = places as usize;
        let digits = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        if fraction.is_empty() {
            whole.to_owned()
        } else {
            format!("{whole}.{fraction}")
        }
    }

    /// As `2.8792e-5`, with this many significant digits, rounded half up.
    #[cfg(test)]
    pub(crate) fn scientific(&self, digits: u32) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        let ten = BigRational::from_integer(BigInt::from(10));
        let one = BigRational::from_integer(BigInt::from(1));
        let (mut mantissa, mut exponent) = (self.0.clone(), 0_i32);
        while mantissa >= ten {
            mantissa /= &ten;
            exponent += 1;
        }
        while mantissa < one {
            mantissa *= &ten;
            exponent -= 1;
        }
        let places = digits.saturating_sub(1);
        let mut text = Self(mantissa.clone()).decimal(places);
        if text.starts_with("10") {
            exponent += 1;
            text = Self(mantissa / &ten).decimal(places);
        }
        format!("{text}e{exponent}")
    }
}

fn half() -> BigRational {
    BigRational::new(BigInt::from(1), BigInt::from(2))
}

impl Default for Money {
    fn default() -> Self {
        Self::zero()
    }
}

impl fmt::Debug for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.decimal(18))
    }
}

impl Add for &Money {
    type Output = Money;

    fn add(self, other: Self) -> Money {
        Money(&self.0 + &other.0)
    }
}

impl AddAssign<&Self> for Money {
    fn add_assign(&mut self, other: &Self) {
        self.0 += &other.0;
    }
}

impl<'a> Sum<&'a Self> for Money {
    fn sum<I: Iterator<Item = &'a Self>>(amounts: I) -> Self {
        amounts.fold(Self::zero(), |sum, amount| &sum + amount)
    }
}

/// Longest amount as text.
const TEXT_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn money(text: &str) -> Money {
        Money::parse(text).unwrap()
    }

    #[test]
    fn amounts_are_read_and_printed_exactly() {
        assert_eq!(money("0.0000166667").decimal(10), "0.0000166667");
        assert_eq!(money("3").decimal(2), "3.00");
        assert_eq!(money("0.125").decimal(2), "0.13");
        assert_eq!(money("0.0000166667").scientific(3), "1.67e-5");
        assert_eq!(money("9.99996").scientific(3), "1.00e1");
        assert_eq!(money("1234").scientific(2), "1.2e3");
        assert_eq!(Money::zero().scientific(3), "0");
        assert_eq!(money("1").over(3).times(3), money("1"));
        assert_eq!(money("1").over(3).decimal(5), "0.33333");
        assert_eq!(money("1").ratio_nano(&money("4")), Some(250_000_000));
        assert_eq!(money("1").ratio_nano(&Money::zero()), None);
    }

    #[test]
    fn anything_but_digits_is_refused() {
        for wrong in [
            "", ".", "1.", ".5", "-1", "1e-5", "1_000", "NaN", "1.2.3", " 1",
        ] {
            assert!(Money::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Money::parse(&"9".repeat(41)).is_err());
    }
}
