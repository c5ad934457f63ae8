//! Maximises the likelihood by BFGS, starting from the valleys of a coarse grid. The coordinates are the partial
//! autocorrelations, for which every point is a stationary and invertible model (Monahan, Biometrika 1984; statsmodels does the
//! same).
//!
//! The likelihood of a few dozen values usually has several maxima, and a single start finds only one of them. A maximum on the
//! border of the invertible models is as common. r = 2x / (1 + x²) reaches ±1 at a finite x and with slope zero, so it is a
//! maximum like any other. The work is bounded: 79 evaluations of eight models for the grid, then two per step of `ROUNDS`.

use super::likelihood::{Arma, Filtered, filter};

/// One round of the search: how many of the lowest descents continue, and for how many steps.
struct Round {
    kept: usize,
    steps: usize,
}

/// A point: for each of the four partial autocorrelations r, the x of r = 2x / (1 + x²).
type Point = [f64; 4];

/// The expected step after `steps`; `None` if there are fewer than five, or if they are not finite.
pub(super) fn next_step(steps: &[f64]) -> Option<f64> {
    if steps.len() < 5 {
        return None;
    }
    let scale = steps
        .iter()
        .fold(0.0, |most: f64, step| most.max(step.abs()));
    if scale == 0.0 {
        return Some(0.0);
    }
    if !scale.is_finite() {
        return None;
    }
    // The unit does not change the place of the maximum; numbers of about one lose no precision.
    let scaled: Vec<f64> = steps.iter().map(|step| step / scale).collect();
    Some(best(&scaled, &ROUNDS).next * scale)
}

/// The filter at the highest maximum. Every valley of the grid is a candidate; the deeper a valley is, the longer it is followed.
fn best(values: &[f64], rounds: &[Round]) -> Filtered {
    let mut found: Vec<Descent> = valleys(values)
        .into_iter()
        .map(|(height, start)| Descent::new(start, height, values))
        .collect();
    for round in rounds {
        found.sort_unstable_by(|a, b| a.value.total_cmp(&b.value));
        found.truncate(round.kept);
        for descent in &mut found {
            descent.go(round.steps, values);
        }
    }
    let lowest = found
        .iter()
        .min_by(|a, b| a.value.total_cmp(&b.value))
        .map_or([0.0; 4], |descent| descent.point);
    filter(&[model(&lowest)], values)[0]
}

/// The points of the grid that are lower than their neighbours along every axis, with their heights.
fn valleys(values: &[f64]) -> Vec<(f64, Point)> {
    let mut heights = [0.0; POINTS];
    for (first, batch) in heights.chunks_mut(LANES).enumerate() {
        // After the last point, repeat the last one.
        let points = std::array::from_fn(|lane| grid_point((first * LANES + lane).min(POINTS - 1)));
        batch.copy_from_slice(&deviances(&points, values)[..batch.len()]);
    }
    (0..POINTS)
        .filter(|index| {
            STRIDES.iter().all(|stride| {
                let place = index / stride % SIDE;
                (place == 0 || heights[index - stride] >= heights[*index])
                    && (place + 1 == SIDE || heights[index + stride] >= heights[*index])
            })
        })
        .map(|index| (heights[index], grid_point(index)))
        .collect()
}

fn grid_point(index: usize) -> Point {
    STRIDES.map(|stride| GRID[index / stride % SIDE])
}

/// The model at a point.
fn model(point: &Point) -> Arma {
    let [ar1, ar2, ma1, ma2] = point.map(|x| 2.0 * x / (1.0 + x * x) * LIMIT);
    Arma {
        ar: [ar1 * (1.0 - ar2), ar2],
        ma: [ma1 * (1.0 + ma2), ma2],
    }
}

/// The values to minimise, for several points; infinite instead of NaN.
fn deviances(points: &[Point; LANES], values: &[f64]) -> [f64; LANES] {
    filter(&points.map(|point| model(&point)), values).map(|filtered| {
        if filtered.deviance.is_nan() {
            f64::INFINITY
        } else {
            filtered.deviance
        }
    })
}

/// By central differences: two lanes for each axis.
fn gradient(point: &Point, values: &[f64]) -> Point {
    let moved = std::array::from_fn(|lane| {
        let mut moved = *point;
        moved[lane / 2] += if lane % 2 == 0 { WIDTH } else { -WIDTH };
        moved
    });
    let heights = deviances(&moved, values);
    std::array::from_fn(|axis| (heights[2 * axis] - heights[2 * axis + 1]) / (2.0 * WIDTH))
}

/// A descent by BFGS (Nocedal and Wright, "Numerical Optimization", algorithm 6.1), with a line search that tries eight lengths
/// at once and takes the lowest.
struct Descent {
    point: Point,
    value: f64,
    slopes: Point,
    /// The approximate inverse of the Hessian.
    inverse: [Point; 4],
    done: bool,
}

impl Descent {
    fn new(start: Point, height: f64, values: &[f64]) -> Self {
        Self {
            point: start,
            value: height,
            slopes: gradient(&start, values),
            inverse: identity(),
            done: false,
        }
    }

    /// Takes up to `steps` steps.
    fn go(&mut self, steps: usize, values: &[f64]) {
        for _ in 0..steps {
            self.done = self.done || self.slopes.iter().all(|slope| slope.abs() < FLAT);
            if self.done {
                return;
            }
            let mut direction = times(&self.inverse, &self.slopes).map(|part| -part);
            if dot(&direction, &self.slopes) >= 0.0 {
                self.inverse = identity();
                direction = self.slopes.map(|slope| -slope);
            }
            let length = dot(&direction, &direction).sqrt();
            if length > STRIDE {
                direction = direction.map(|part| part * STRIDE / length);
            }
            let (point, value) = line(&self.point, &direction, values);
            if value >= self.value {
                self.done = true;
                return;
            }
            let slopes = gradient(&point, values);
            update(
                &mut self.inverse,
                &minus(&point, &self.point),
                &minus(&slopes, &self.slopes),
            );
            (self.point, self.value, self.slopes) = (point, value, slopes);
        }
    }
}

/// The lowest of eight points in a direction.
fn line(point: &Point, direction: &Point, values: &[f64]) -> (Point, f64) {
    let points = SHARES.map(|share| {
        let mut next = *point;
        for (part, by) in next.iter_mut().zip(direction) {
            *part += share * by;
        }
        next
    });
    let heights = deviances(&points, values);
    points
        .into_iter()
        .zip(heights)
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap_or((*point, f64::INFINITY))
}

/// Updates the inverse of the Hessian with the change of the gradient over `moved`.
fn update(inverse: &mut [Point; 4], moved: &Point, turned: &Point) {
    let curvature = dot(moved, turned);
    if curvature <= 1e-14 {
        return;
    }
    let bent = times(inverse, turned);
    let factor = (1.0 + dot(turned, &bent) / curvature) / curvature;
    for (i, row) in inverse.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            *entry += factor * moved[i] * moved[j]
                - (bent[i] * moved[j] + moved[i] * bent[j]) / curvature;
        }
    }
}

fn identity() -> [Point; 4] {
    let mut matrix = [[0.0; 4]; 4];
    for (i, row) in matrix.iter_mut().enumerate() {
        row[i] = 1.0;
    }
    matrix
}

fn times(matrix: &[Point; 4], vector: &Point) -> Point {
    matrix.map(|row| dot(&row, vector))
}

fn dot(a: &Point, b: &Point) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn minus(a: &Point, b: &Point) -> Point {
    let mut difference = *a;
    for (part, by) in difference.iter_mut().zip(b) {
        *part -= by;
    }
    difference
}

/// x of the partial autocorrelations −0.95, −0.5, 0, 0.5 and 0.95.
const GRID: [f64; SIDE] = [-0.724, -0.268, 0.0, 0.268, 0.724];
const SIDE: usize = 5;
const POINTS: usize = SIDE.pow(4);
/// The distance of neighbours along each axis in the numbering of the grid's points.
const STRIDES: [usize; 4] = [1, SIDE, SIDE.pow(2), SIDE.pow(3)];
/// Few of the valleys are deep, and a few steps show which ones.
const ROUNDS: [Round; 4] = [
    Round { kept: 32, steps: 3 },
    Round { kept: 12, steps: 4 },
    Round { kept: 6, steps: 6 },
    Round { kept: 3, steps: 40 },
];
/// Points that are evaluated at once: two for each component of a gradient.
const LANES: usize = 8;
/// The factors of the step length that the line search tries.
const SHARES: [f64; LANES] = [2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001];
/// Half of the interval for the difference quotient.
const WIDTH: f64 = 1e-5;
/// A smaller gradient counts as zero.
const FLAT: f64 = 1e-7;
/// The longest step.
const STRIDE: f64 = 0.5;
/// Partial autocorrelations of ±1 are not models, but the likelihood of some series has its maximum there.
const LIMIT: f64 = 1.0 - 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows every valley to its end.
    const ALL: [Round; 1] = [Round {
        kept: POINTS,
        steps: 100,
    }];

    /// Thirty ticks of a kind of traffic, as steps.
    fn steps(kind: u32, seed: u64) -> Vec<f64> {
        let mut state = seed * 2 + 1;
        // Three bytes of an xorshift, between −1 and 1.
        let mut noise = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let bytes = u32::try_from(state >> 40).unwrap_or(0);
            f64::from(bytes) / f64::from(1 << 23) - 1.0
        };
        let (mut level, mut step) = (30.0, 0.0);
        let rates: Vec<f64> = (0..30_u32)
            .map(|tick| {
                let rate: f64 = match kind {
                    0 => 5.0 + 3.0 * noise(),
                    1 => {
                        level += 4.0 * noise();
                        level
                    }
                    2 => {
                        step = 0.6 * step + 2.0 * noise();
                        level += step;
                        level
                    }
                    3 => 10.0 + 8.0 * (f64::from(tick) * 0.5).sin() + noise(),
                    _ => match (tick + kind) % 28 {
                        0..17 => 2.0,
                        17..19 => 11.0 + noise(),
                        19..22 => 30.0 + noise(),
                        22..24 => 2.0,
                        _ => 0.0,
                    },
                };
                (rate.max(0.0) * 2.0).round() / 2.0
            })
            .collect();
        rates.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn a_search_that_is_bounded_finds_what_a_thorough_one_does_but_for_a_few() {
        let series: Vec<Vec<f64>> = (0..100).map(|n| steps(n % 5, u64::from(n))).collect();
        let worse = series
            .iter()
            .filter(|steps| best(steps, &ROUNDS).deviance > best(steps, &ALL).deviance + 1e-6)
            .count();
        assert!(worse <= 5, "{worse} of 100");
    }

    #[test]
    fn steps_of_nothing_are_followed_by_nothing() {
        assert_eq!(next_step(&[0.0; 29]), Some(0.0));
    }

    #[test]
    fn the_unit_does_not_matter() {
        let steps = steps(2, 7);
        let small: Vec<f64> = steps.iter().map(|step| step * 1e-6).collect();
        let (large, small) = (next_step(&steps).unwrap(), next_step(&small).unwrap());
        assert!((large - small * 1e6).abs() < 1e-6 * large.abs());
    }

    #[test]
    fn too_few_steps_or_wild_ones_give_no_answer() {
        assert_eq!(next_step(&[1.0, 2.0, 3.0, 1.0]), None);
        assert_eq!(next_step(&[1.0, 2.0, f64::INFINITY, 3.0, 1.0]), None);
    }

    #[test]
    fn gradients_are_those_of_a_wider_difference() {
        let values = steps(1, 3);
        let point = [0.3, -0.2, 0.4, 0.1];
        for (axis, slope) in gradient(&point, &values).into_iter().enumerate() {
            let height = |by: f64| {
                let mut moved = point;
                moved[axis] += by;
                filter(&[model(&moved)], &values)[0].deviance
            };
            let wider = (height(1e-3) - height(-1e-3)) / 2e-3;
            assert!((slope - wider).abs() < 1e-4, "axis {axis}: {slope} {wider}");
        }
    }
}
