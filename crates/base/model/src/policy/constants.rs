//! The constants of each policy: name, default, range. One table per policy generates the struct, its defaults, the checks and
//! the list for messages.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// A constant's value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "a constant's value is a number or a word")]
pub enum ConstantSpec {
    /// A number.
    Number(f64),
    /// A word.
    Word(String),
}

impl ConstantSpec {
    pub(super) fn from_word(word: &str) -> Self {
        word.parse()
            .map_or_else(|_| Self::Word(word.to_owned()), Self::Number)
    }
}

impl fmt::Display for ConstantSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => write!(f, "{}", word.escape_default()),
        }
    }
}

impl ConstantSpec {
    /// For messages: a word has quotes, so that "6" is not taken for a number.
    fn in_words(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Word(word) => format!("\"{}\"", word.escape_default()),
        }
    }
}

/// What reading and printing require of a policy's constants.
pub(super) trait Constants {
    /// Their names.
    fn keys(&self) -> &'static [&'static str];

    /// Their values in the order of the names, and whether each is the default.
    fn values(&self) -> Vec<(&'static str, ConstantSpec, bool)>;

    /// Gives one of them a value.
    fn set(&mut self, key: &str, value: &ConstantSpec) -> Result<(), Fault>;

    /// The constant that may be written without its name: `static:15`.
    fn positional(&self) -> Option<&'static str> {
        None
    }

    /// Whether the values are consistent. `Err`: which key is wrong, and why.
    fn agree(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }
}

/// Why a constant cannot be set.
pub(super) enum Fault {
    /// No such constant.
    Unknown,
    /// The value is invalid; `key` is the whole path.
    Value { key: &'static str, problem: String },
}

/// A type that a constant can have.
trait Constant: Copy + PartialEq {
    /// The type of its limits.
    type Bounds;

    fn read(value: &ConstantSpec, bounds: &Self::Bounds) -> Result<Self, String>;
    fn written(self) -> ConstantSpec;
}

macro_rules! constants {
    ($(#[$doc:meta])* $name:ident $(positional $positional:ident)? $(agree $agree:expr)? => {
        $($(#[$field_doc:meta])* $field:ident: $kind:ty = $default:expr, $bounds:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Constants for $name {
            fn keys(&self) -> &'static [&'static str] {
                &[$(stringify!($field)),*]
            }

            fn values(&self) -> Vec<(&'static str, ConstantSpec, bool)> {
                let default = Self::default();
                vec![$((stringify!($field), self.$field.written(), self.$field == default.$field)),*]
            }

            fn set(&mut self, key: &str, value: &ConstantSpec) -> Result<(), Fault> {
                match key {
                    $(stringify!($field) => {
                        self.$field = Constant::read(value, &$bounds).map_err(|problem| Fault::Value {
                            key: concat!("scale.policy.", stringify!($field)),
                            problem,
                        })?;
                    })*
                    _ => return Err(Fault::Unknown),
                }
                Ok(())
            }

            $(fn positional(&self) -> Option<&'static str> {
                Some(stringify!($positional))
            })?

            $(fn agree(&self) -> Result<(), (&'static str, String)> {
                let agree: fn(&Self) -> Result<(), (&'static str, String)> = $agree;
                agree(self)
            })?
        }
    };
}

/// The tick of Edge FaaS, §3.3: "every two seconds".
const TICK_S: f64 = 2.0;
const TICKS_S: RangeInclusive<f64> = 0.05..=3600.0;
/// A smoothing weight: 1 uses the newest value alone.
const WEIGHTS: RangeInclusive<f64> = 1e-6..=1.0;
const MARGINS: RangeInclusive<u32> = 0..=1000;

constants! {
    /// `static`: always the same number. Edge FaaS's Static-15, which never reaps.
    StaticPolicy positional workers => {
        /// Workers.
        workers: u32 = 15, 0..=10_000;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `reactive`: Edge FaaS's baseline, Little's law on the observed rate.
    ReactivePolicy => {
        /// M of Eq. 3: workers beyond Little's law.
        margin: u32 = 1, MARGINS;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `cusum`: Edge FaaS §3.3, Eq. 1 to 3.
    CusumPolicy => {
        /// α of Eq. 1: the baseline's weight for the newest tick.
        alpha: f64 = 0.2, WEIGHTS;
        /// k of Eq. 2: the drift, requests/s, that is subtracted at every tick.
        k: f64 = 5.0, 0.0..=1e6;
        /// h: the sum of deviations, requests/s, above which the alarm is raised.
        h: f64 = 8.0, 0.0..=1e6;
        /// The factor by which the rate is multiplied when the alarm is raised.
        overshoot: f64 = 1.5, 0.1..=100.0;
        /// M of Eq. 3: workers beyond Little's law.
        margin: u32 = 1, MARGINS;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `adaptive-cusum`: Edge FaaS §3.3, Eq. 4 and 5. The paper gives α, β and the overshoot; `k`, `h` and `epsilon` are ours
    /// (`adaptive_cusum.rs` of `side/forecast` says why).
    AdaptiveCusumPolicy => {
        /// α of Eq. 1: the baseline's weight for the newest tick.
        alpha: f64 = 0.2, WEIGHTS;
        /// β of Eq. 4: the scale's weight for the newest tick.
        beta: f64 = 0.3, WEIGHTS;
        /// k of Eq. 2 on z: the drift, in mean deviations, that is subtracted at every tick.
        k: f64 = 1.0, 0.0..=1e6;
        /// h on z: the sum of mean deviations above which the alarm is raised.
        h: f64 = 1.25, 0.0..=1e6;
        /// ε of Eq. 5, requests/s.
        epsilon: f64 = 0.5, 1e-9..=1e6;
        /// The factor by which the rate is multiplied when the alarm is raised.
        overshoot: f64 = 1.5, 0.1..=100.0;
        /// M of Eq. 3: workers beyond Little's law.
        margin: u32 = 1, MARGINS;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `arima`: Edge FaaS §4.2's baseline, ARIMA(2,1,2).
    ArimaPolicy agree |this| if this.samples_min <= this.window {
        Ok(())
    } else {
        Err(("scale.policy.samples_min", format!(
            "is {}, must be at most the window, which is {}", this.samples_min, this.window
        )))
    } => {
        /// The number of ticks that the model is fitted to.
        window: u32 = 30, 8..=120;
        /// With fewer ticks than this: Little's law on the observed rate, as `reactive`.
        samples_min: u32 = 10, 6..=120;
        /// M of Eq. 3: workers beyond Little's law.
        margin: u32 = 1, MARGINS;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `smoothing-markov`: HotC §IV-C. The number of regions and the length of the history are ours.
    SmoothingMarkovPolicy => {
        /// α of Eq. 1: the weight of the newest tick.
        alpha: f64 = 0.8, WEIGHTS;
        /// n: regions into which the range of the history is divided.
        regions: u32 = 4, 2..=16;
        /// Ticks that the history holds.
        history: u32 = 40, 4..=1000;
        /// How `e + (R1+R2)/2` is read.
        reading: Reading = Reading::Correction, ();
        /// Workers beyond the forecast; HotC adds none.
        margin: u32 = 0, MARGINS;
        /// Seconds between ticks; HotC gives none.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `histogram`: the hybrid policy of Shahrad et al., USENIX ATC 2020, §4.2.
    HistogramPolicy agree |this| if this.head_percentile >= this.tail_percentile {
        Err(("scale.policy.head_percentile", format!(
            "is {}, must be below tail_percentile, which is {}", this.head_percentile, this.tail_percentile
        )))
    } else if this.range_s / this.bin_s > 14_400.0 || this.range_s < this.bin_s {
        Err(("scale.policy.bin_s", format!(
            "is {}, must divide range_s ({}) into 1 to 14400 bins", this.bin_s, this.range_s
        )))
    } else {
        Ok(())
    } => {
        /// Width of a bin, seconds.
        bin_s: f64 = 60.0, 0.1..=3600.0;
        /// Idle times beyond this are out of bounds, seconds.
        range_s: f64 = 14_400.0, 1.0..=604_800.0;
        /// Percentile of the idle times that ends the pre-warming window.
        head_percentile: f64 = 5.0, 0.0..=100.0;
        /// Percentile of the idle times that ends the keep-alive window.
        tail_percentile: f64 = 99.0, 0.0..=100.0;
        /// The head is taken earlier and the tail later by this share.
        margin_share: f64 = 0.1, 0.0..=0.99;
        /// Below this coefficient of variation of the bins' counts, the histogram is not used.
        cv_min: f64 = 2.0, 0.0..=1000.0;
        /// Idle times that must have been observed before the histogram is used.
        samples_min: u32 = 5, 1..=1_000_000;
        /// From this share of idle times out of bounds on, each idle time is forecast.
        out_of_bounds_share: f64 = 0.5, 0.0..=1.0;
        /// The window around the forecast idle time: earlier and later by this share.
        arima_margin_share: f64 = 0.15, 0.0..=0.99;
        /// Keep-alive while the histogram is not used, seconds.
        keep_alive_s: f64 = 14_400.0, 0.0..=604_800.0;
        /// Seconds between ticks.
        tick_s: f64 = TICK_S, TICKS_S;
    }
}
constants! {
    /// `auto`: Pilotlight's own.
    AutoPolicy => {
        /// Seconds of cold wait that one GB·s is worth.
        memory_weight: f64 = 1.0, 0.0..=1e6;
        /// Seconds between ticks while requests arrive. It is one second if starts take less than 20 ms, and while nothing
        /// arrives.
        tick_s: f64 = 0.2, TICKS_S;
    }
}

/// How HotC's `e + (R1+R2)/2` is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// The regions divide the observed values; the middle of the next one is added to the smoothed value.
    Literal,
    /// The regions divide the errors of the smoothing; the middle of the next one corrects the smoothed value.
    Correction,
}

impl Constant for f64 {
    type Bounds = RangeInclusive<Self>;

    fn read(value: &ConstantSpec, bounds: &Self::Bounds) -> Result<Self, String> {
        let (least, most) = (bounds.start(), bounds.end());
        match value {
            // No range contains NaN.
            ConstantSpec::Number(number) if bounds.contains(number) => Ok(*number),
            other => Err(format!(
                "is {}, must be a number from {least} to {most}",
                other.in_words()
            )),
        }
    }

    fn written(self) -> ConstantSpec {
        ConstantSpec::Number(self)
    }
}

impl Constant for u32 {
    type Bounds = RangeInclusive<Self>;

    fn read(value: &ConstantSpec, bounds: &Self::Bounds) -> Result<Self, String> {
        let (least, most) = (*bounds.start(), *bounds.end());
        match value {
            ConstantSpec::Number(number)
                if number.fract() == 0.0
                    && *number >= f64::from(least)
                    && *number <= f64::from(most) =>
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "whole and between two u32"
                )]
                let whole = *number as Self;
                Ok(whole)
            }
            other => Err(format!(
                "is {}, must be a whole number from {least} to {most}",
                other.in_words()
            )),
        }
    }

    fn written(self) -> ConstantSpec {
        ConstantSpec::Number(f64::from(self))
    }
}

impl Constant for Reading {
    type Bounds = ();

    fn read(value: &ConstantSpec, _bounds: &()) -> Result<Self, String> {
        match value {
            ConstantSpec::Word(word) if word == "literal" => Ok(Self::Literal),
            ConstantSpec::Word(word) if word == "correction" => Ok(Self::Correction),
            other => Err(format!("is {other}, must be \"literal\" or \"correction\"")),
        }
    }

    fn written(self) -> ConstantSpec {
        ConstantSpec::Word(
            match self {
                Self::Literal => "literal",
                Self::Correction => "correction",
            }
            .to_owned(),
        )
    }
}
