//! The policy of a function: the arrival model that sizes its pool, with the model's constants. The user writes a [`PolicySpec`]
//! (one line such as `cusum:h=6,k=4`, or a table); [`PolicySpec::check`] makes a [`Policy`] of it.
//!
//! Not here: the models themselves (`side/forecast`).

mod constants;
mod spec;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use constants::{
    AdaptiveCusumPolicy, ArimaPolicy, AutoPolicy, ConstantSpec, CusumPolicy, HistogramPolicy,
    ReactivePolicy, Reading, SmoothingMarkovPolicy, StaticPolicy,
};
pub use spec::{PolicyError, PolicySpec};

use constants::{Constants, Fault};

macro_rules! policies {
    ($($(#[$doc:meta])* $variant:ident($constants:ty) $name:literal,)*) => {
        /// How the number of workers follows the traffic. In JSON: `{"name": "cusum", "alpha": 0.2, …}`; constants that are left
        /// out have their defaults.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(tag = "name", rename_all = "kebab-case")]
        pub enum Policy {
            /// No forecast: a worker starts when somebody waits, and is kept for `idle_s`.
            #[default]
            Demand,
            $($(#[$doc])* $variant($constants),)*
        }

        impl Policy {
            /// The word it is chosen by.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    Self::Demand => "demand",
                    $(Self::$variant(_) => $name,)*
                }
            }

            /// Every policy with its default constants.
            #[must_use]
            pub fn all() -> Vec<Self> {
                vec![Self::Demand, $(Self::$variant(<$constants>::default()),)*]
            }

            fn constants(&self) -> Option<&dyn Constants> {
                match self {
                    Self::Demand => None,
                    $(Self::$variant(constants) => Some(constants),)*
                }
            }

            fn constants_mut(&mut self) -> Option<&mut dyn Constants> {
                match self {
                    Self::Demand => None,
                    $(Self::$variant(constants) => Some(constants),)*
                }
            }
        }
    };
}

policies! {
    /// As many workers, always.
    Static(StaticPolicy) "static",
    /// Little's law on the rate of the last tick.
    Reactive(ReactivePolicy) "reactive",
    /// EWMA baseline and a CUSUM alarm on the deviation from it.
    Cusum(CusumPolicy) "cusum",
    /// The same on the deviation in units of its own running mean.
    AdaptiveCusum(AdaptiveCusumPolicy) "adaptive-cusum",
    /// ARIMA(2,1,2), fitted at every tick.
    Arima(ArimaPolicy) "arima",
    /// Exponential smoothing with a Markov chain's correction.
    SmoothingMarkov(SmoothingMarkovPolicy) "smoothing-markov",
    /// Pre-warming and keep-alive windows from the idle times seen.
    Histogram(HistogramPolicy) "histogram",
    /// Weighs what a wait costs against what a worker costs.
    Auto(AutoPolicy) "auto",
}

impl Policy {
    /// Gives the constant `key` the value `value`.
    /// How many workers it asks for at any time. `None`: it forecasts.
    #[must_use]
    pub fn fixed_workers(&self) -> Option<u32> {
        match self {
            Self::Static(fixed) => Some(fixed.workers),
            _ => None,
        }
    }

    fn set(&mut self, key: &str, value: &ConstantSpec) -> Result<(), PolicyError> {
        let name = self.name();
        let Some(constants) = self.constants_mut() else {
            return Err(PolicyError::new(format!("{name} has no constants")));
        };
        match constants.set(key, value) {
            Ok(()) => Ok(()),
            Err(Fault::Value { key, problem }) => Err(PolicyError { key, problem }),
            Err(Fault::Unknown) => {
                let known = constants.keys();
                let hint = crate::nearest::nearest(key, known.iter().copied())
                    .map_or_else(String::new, |near| format!(", did you mean \"{near}\"?"));
                Err(PolicyError::new(format!(
                    "{name} has no constant \"{}\"{hint} (its constants: {})",
                    key.escape_default(),
                    known.join(", ")
                )))
            }
        }
    }
}

/// The form that [`Policy::from_str`] reads: the name, and the constants that differ from the default.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let Some(constants) = self.constants() else {
            return Ok(());
        };
        let mut before = ':';
        for (key, value, is_default) in constants.values() {
            if constants.positional() == Some(key) {
                write!(f, "{before}{value}")?;
            } else if is_default {
                continue;
            } else {
                write!(f, "{before}{key}={value}")?;
            }
            before = ',';
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    /// Reads `cusum`, `static:15` or `cusum:h=6,k=4`.
    fn from_str(line: &str) -> Result<Self, PolicyError> {
        PolicySpec::Line(line.to_owned()).check()
    }
}

#[cfg(test)]
mod tests;
