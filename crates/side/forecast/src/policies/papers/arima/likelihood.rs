//! The exact Gaussian likelihood of an ARMA(2,2) with mean zero, by the Kalman filter on Harvey's state-space form (Durbin and
//! Koopman, "Time Series Analysis by State Space Methods", §3.4), started from the stationary distribution.
//!
//! The state is (w, φ2 w₋₁ + θ1 ε + θ2 ε₋₁, θ2 ε). Only two of its expectations and three entries of its covariance change from
//! step to step. They are computed one by one instead of as matrices.

/// w_t = φ1 w_{t−1} + φ2 w_{t−2} + ε_t + θ1 ε_{t−1} + θ2 ε_{t−2}.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Arma {
    /// φ1, φ2; stationary.
    pub(super) ar: [f64; 2],
    /// θ1, θ2; invertible.
    pub(super) ma: [f64; 2],
}

/// The result of the filter for a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Filtered {
    /// −2/n times the log-likelihood, with the noise's variance at its maximum and without the constant. Lower is better.
    pub(super) deviance: f64,
    /// The expectation of the value after the last.
    pub(super) next: f64,
}

/// The stationary covariance of the state, for noise of variance 1: its (1,1), (1,2) and (2,2).
#[inline(always)]
fn stationary(ar1: f64, ar2: f64, ma1: f64, ma2: f64) -> (f64, f64, f64) {
    // The first coefficients of the moving average of infinite order.
    let psi1 = ar1 + ma1;
    let psi2 = ar1 * psi1 + ar2 + ma2;
    // Yule-Walker: γ1 (1 − φ2) = φ1 γ0 + c1, and γ0 (1 − φ2²) = φ1 (1 + φ2) γ1 + φ2 θ2 + c0.
    let c0 = 1.0 + ma1 * psi1 + ma2 * psi2;
    let c1 = ma1 + ma2 * psi1;
    let inverse = 1.0 / (1.0 - ar2);
    let slope = ar1 * (1.0 + ar2) * inverse;
    let gamma0 = (ar2 * ma2 + c0 + slope * c1) / (1.0 - ar2 * ar2 - slope * ar1);
    let gamma1 = (ar1 * gamma0 + c1) * inverse;
    (
        gamma0,
        ar2 * gamma1 + c1,
        ar2 * ar2 * gamma0 + ma1 * ma1 + ma2 * (ma2 + 2.0 * ar2),
    )
}

/// Runs the filter over `values` for several models at once, because that uses vector arithmetic. A single model would wait for
/// its own results at every step.
pub(super) fn filter<const N: usize>(models: &[Arma; N], values: &[f64]) -> [Filtered; N] {
    let ar1 = models.map(|model| model.ar[0]);
    let ar2 = models.map(|model| model.ar[1]);
    let ma1 = models.map(|model| model.ma[0]);
    let ma2 = models.map(|model| model.ma[1]);
    let (mut p11, mut p12, mut p22) = ([0.0; N], [0.0; N], [0.0; N]);
    for lane in 0..N {
        (p11[lane], p12[lane], p22[lane]) = stationary(ar1[lane], ar2[lane], ma1[lane], ma2[lane]);
    }
    let (mut a1, mut a2) = ([0.0; N], [0.0; N]);
    let mut squares = [0.0; N];
    // The product of the innovations' variances, whose logarithm is needed. The variances fall from step to step towards 1, and
    // only the first two can be large, so the product over a window does not overflow.
    let mut scale = [1.0; N];
    for value in values {
        for lane in 0..N {
            let innovation = value - a1[lane];
            let inverse = 1.0 / p11[lane];
            let gain1 = (ar1[lane] * p11[lane] + p12[lane]) * inverse;
            // The covariance's last row is always θ2 (1, θ1, θ2), and the third state's expectation is 0.
            let gain2 = (ar2[lane] * p11[lane] + ma2[lane]) * inverse;
            scale[lane] *= p11[lane];
            squares[lane] += innovation * innovation * inverse;
            let next1 = ar1[lane] * a1[lane] + a2[lane] + gain1 * innovation;
            a2[lane] = ar2[lane] * a1[lane] + gain2 * innovation;
            a1[lane] = next1;
            let q11 = ar1[lane] * (ar1[lane] * p11[lane] + 2.0 * p12[lane]) + p22[lane] + 1.0
                - gain1 * gain1 * p11[lane];
            let q12 = ar2[lane] * (ar1[lane] * p11[lane] + p12[lane])
                + ma2[lane] * (ar1[lane] + ma1[lane])
                + ma1[lane]
                - gain1 * gain2 * p11[lane];
            p22[lane] = ar2[lane] * (ar2[lane] * p11[lane] + 2.0 * ma2[lane])
                + ma2[lane] * ma2[lane]
                + ma1[lane] * ma1[lane]
                - gain2 * gain2 * p11[lane];
            p12[lane] = q12;
            // It can be less than 1 only by rounding.
            p11[lane] = if q11 > 1.0 { q11 } else { 1.0 };
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a window's length")]
    let count = values.len().max(1) as f64;
    std::array::from_fn(|lane| Filtered {
        deviance: (squares[lane] / count).ln() + scale[lane].ln() / count,
        next: a1[lane],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same from the definition: the logarithm of the density of the whole series, from its covariance matrix.
    fn by_covariance(arma: &Arma, values: &[f64]) -> f64 {
        let count = values.len();
        // ψ weights, up to an index at which they are negligible for the tests' coefficients.
        let mut psi = vec![0.0; 4000];
        for j in 0..psi.len() {
            let ma = match j {
                0 => 1.0,
                1 => arma.ma[0],
                2 => arma.ma[1],
                _ => 0.0,
            };
            let ar1 = if j > 0 { arma.ar[0] * psi[j - 1] } else { 0.0 };
            let ar2 = if j > 1 { arma.ar[1] * psi[j - 2] } else { 0.0 };
            psi[j] = ma + ar1 + ar2;
        }
        let gamma = |lag: usize| -> f64 { psi.iter().zip(&psi[lag..]).map(|(a, b)| a * b).sum() };
        let gammas: Vec<f64> = (0..count).map(gamma).collect();
        // Cholesky of the Toeplitz matrix, and the whitened series.
        let mut lower = vec![vec![0.0; count]; count];
        let mut white = vec![0.0; count];
        let mut log_determinant = 0.0;
        for i in 0..count {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
                let rest = gammas[i - j] - dot;
                lower[i][j] = if i == j {
                    rest.sqrt()
                } else {
                    rest / lower[j][j]
                };
            }
            let dot: f64 = (0..i).map(|k| lower[i][k] * white[k]).sum();
            white[i] = (values[i] - dot) / lower[i][i];
            log_determinant += 2.0 * lower[i][i].ln();
        }
        let number = f64::from(u32::try_from(count).unwrap());
        let variance = white.iter().map(|w| w * w).sum::<f64>() / number;
        variance.ln() + log_determinant / number
    }

    #[test]
    fn the_filter_agrees_with_the_covariance_matrix() {
        let values: Vec<f64> = (0..29_u32)
            .map(|t| f64::from((t * 7919) % 13) - 6.0)
            .collect();
        for (ar, ma) in [
            ([0.0, 0.0], [0.0, 0.0]),
            ([0.5, 0.2], [0.3, -0.2]),
            ([0.9, -0.5], [0.4, 0.2]),
            ([-0.7, -0.2], [-0.9, 0.3]),
            ([0.0, 0.6], [0.0, -0.9]),
        ] {
            let arma = Arma { ar, ma };
            let filtered = filter(&[arma], &values)[0].deviance;
            let expected = by_covariance(&arma, &values);
            assert!(
                (filtered - expected).abs() < 1e-9,
                "{arma:?}: {filtered} {expected}"
            );
        }
    }

    #[test]
    fn an_autoregression_expects_what_its_equation_says() {
        let arma = Arma {
            ar: [0.5, 0.2],
            ma: [0.0, 0.0],
        };
        // 0.5 × 3 + 0.2 × 2
        let next = filter(&[arma], &[1.0, -1.0, 4.0, 2.0, 3.0])[0].next;
        assert!((next - 1.9).abs() < 1e-12, "{next}");
    }
}
