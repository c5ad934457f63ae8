use super::*;
use crate::policies::tests::{scale, tick_of};

#[derive(serde::Deserialize)]
struct Vectors {
    vectors: Vec<Vector>,
}

#[derive(serde::Deserialize)]
struct Vector {
    name: String,
    series: VecDeque<f64>,
    forecast: f64,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str::<Vectors>(include_str!("../../../../tests/arima/vectors.json"))
        .unwrap()
        .vectors
}

#[test]
fn forecasts_are_those_of_statsmodels() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 10);
    for Vector {
        name,
        series,
        forecast,
    } in vectors
    {
        let ours = forecast_next(&series).unwrap();
        let off = (ours - forecast).abs() / forecast.abs();
        assert!(off < 1e-3, "{name}: {ours}, statsmodels says {forecast}");
    }
}

#[test]
fn the_same_window_gives_the_same_answer_whatever_came_before() {
    let window = [3, 9, 4, 12, 20, 8, 6, 15, 30, 22, 10, 9];
    let policy = ArimaPolicy {
        window: 12,
        ..ArimaPolicy::default()
    };
    let answer = |before: &[u64]| {
        let mut arima = Arima::new(policy, &scale(1000));
        for arrivals in before.iter().chain(&window) {
            arima.tick(&tick_of(*arrivals, 2.0, 0.5));
        }
        arima.newest.forecast
    };
    assert!(answer(&[]).is_some());
    assert_eq!(answer(&[]), answer(&[500, 1, 70, 0, 0, 900]));
}

#[test]
fn below_ten_ticks_it_is_reactive() {
    let mut arima = Arima::new(ArimaPolicy::default(), &scale(64));
    for number in 0..9 {
        // ⌈rate × 0.5⌉ + 1
        assert_eq!(
            arima.tick(&tick_of(4 * number, 2.0, 0.5)).workers,
            u32::try_from(number).unwrap() + 1
        );
        assert_eq!(arima.newest.forecast, None);
    }
    arima.tick(&tick_of(4, 2.0, 0.5));
    assert!(arima.newest.forecast.is_some());
}

#[test]
fn constant_traffic_is_forecast_as_it_is() {
    let mut arima = Arima::new(ArimaPolicy::default(), &scale(64));
    for _ in 0..40 {
        arima.tick(&tick_of(20, 2.0, 0.5));
    }
    assert_eq!(arima.newest.forecast, Some(10.0));
    assert_eq!(
        arima.reason(),
        "6 workers are kept: 10.0 requests/s × 0.500 s each + 1 spare; ARIMA(2,1,2) over 30 ticks expects 10.0 requests/s after 10.0"
    );
}
