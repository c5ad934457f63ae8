//! The distances themselves, and the model beside the published logs.

use std::io::Read as _;
use std::path::Path;

use super::*;
use crate::infer::{infer, read};

#[test]
fn distances_are_those_of_the_definition() {
    let distance = |one: &[i64], other: &[i64], tolerance| {
        super::distance(&mut one.to_vec(), &mut other.to_vec(), tolerance)
    };
    assert_eq!(distance(&[1, 2, 3, 4], &[1, 2, 3, 4], 0), 0.0);
    assert_eq!(distance(&[1, 2, 3, 4], &[5, 6], 0), 1.0);
    assert_eq!(distance(&[1, 2, 3, 4], &[1, 2, 5, 6], 0), 0.5);
    assert_eq!(distance(&[1, 1, 1, 2], &[1, 2, 2, 2], 0), 0.5);
    // A value may be moved by the tolerance, to both sides.
    assert_eq!(distance(&[10, 20], &[11, 19], 0), 0.5);
    assert_eq!(distance(&[10, 20], &[11, 19], 1), 0.0);
    assert_eq!(distance(&[10, 20], &[13, 17], 1), 0.5);
    assert_eq!(distance(&[], &[1], 0), 1.0);
}

/// The model must not fit what it does not describe: its own log with another quota, and one with another tick.
#[test]
fn a_model_of_something_else_does_not_fit() {
    let limit = Limit::new(20_000, 5_000).unwrap();
    let log = |hz| vec![modelled(limit, Ticks::of_rate(hz, 300_000).unwrap(), 10)];
    let found = infer(&log(250)).unwrap();
    let own = fit(&log(250), &found).unwrap();
    assert!(own.plain.worst() <= 0.02, "{own:?}");
    assert!(own.with_latencies.worst() <= 0.1, "{own:?}");
    let other = Inferred {
        quota_us: 8_000,
        ..found.clone()
    };
    assert!(fit(&log(250), &other).unwrap().plain.obtained > 0.3);
    let coarse = Inferred {
        tick_hz: 100,
        ..found
    };
    assert!(fit(&log(250), &coarse).unwrap().plain.obtained > 0.3);
}

/// Every published log (`serverless_costs/sched` of the shared data), without its name: what `infer` finds in it goes into the model.
#[test]
fn the_model_fits_every_published_log() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../shared/data/serverless_costs/sched");
    let Ok(files) = folder.read_dir() else {
        eprintln!(
            "SKIPPED: there are no published logs in {}",
            folder.display()
        );
        return;
    };
    let (mut logs, mut failed) = (0, Vec::new());
    for file in files {
        let path = file.unwrap().path();
        let mut json = Vec::new();
        let packed = std::fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(packed)
            .read_to_end(&mut json)
            .unwrap();
        let runs = read(&json).unwrap();
        let found = infer(&runs).unwrap();
        let fit = fit(&runs, &found).unwrap();
        let shown = |of: &Distances| {
            format!(
                "intervals {:.3} lengths {:.3} obtained {:.3}",
                of.intervals, of.lengths, of.obtained
            )
        };
        let line = format!(
            "P{} Q{} {} Hz: {}; plain, to 100 us: {}",
            found.period_us,
            found.quota_us,
            found.tick_hz,
            shown(&fit.with_latencies),
            shown(&fit.plain)
        );
        println!("{line}");
        if fit.with_latencies.worst() > 0.1 || fit.plain.worst() > 0.1 {
            failed.push(line);
        }
        logs += 1;
    }
    assert!(logs >= 16, "{logs} logs");
    assert!(failed.is_empty(), "above 0.1:\n{}", failed.join("\n"));
}
