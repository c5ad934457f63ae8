//! The policies of the papers and their baselines, one file each. The experiments compare them; users should choose `auto`
//! (docs/forecasting.md). docs/papers.md says how each equation is interpreted.

pub(crate) mod adaptive_cusum;
pub(crate) mod arima;
pub(crate) mod cusum;
pub(crate) mod histogram;
pub(crate) mod reactive;
pub(crate) mod smoothing_markov;
