//! Logs of known settings: made ones, and the published ones if they are here.

use std::io::Read as _;
use std::path::Path;

use super::*;

/// A task that always wants the CPU, under quota and period, with accounting at the ticks (section 4.2). `phase_ns`: of the tick
/// before the first period.
fn throttled(period_us: u64, quota_us: u64, hz: u64, phase_ns: u64, runs: u64) -> Runs {
    let (period, quota, tick) = (period_us * 1000, quota_us * 1000, 1_000_000_000 / hz);
    let run = |number: u64| {
        let begin = 5_000_000_000 + number * 11_003_000_000 + number * 1_700_000;
        let begin = begin / tick * tick + phase_ns;
        let (mut now, mut left) = (begin, i128::from(quota));
        let mut refill = begin + period;
        let mut throttles = Vec::new();
        while now < begin + 10_000_000_000 {
            let next_tick = (now / tick + 1) * tick;
            // It runs until a tick finds that nothing is left; the pool is refilled meanwhile.
            let ran = next_tick - now;
            while refill <= next_tick {
                left = i128::from(quota).min(left + i128::from(quota));
                refill += period;
            }
            left -= i128::from(ran);
            now = next_tick;
            if left <= 0 {
                let stopped = now;
                while left <= 0 {
                    now = refill;
                    left += i128::from(quota);
                    refill += period;
                }
                throttles.push(Throttle {
                    noticed_ns: now,
                    lasted_ns: now - stopped,
                });
            }
        }
        throttles
    };
    (0..runs).map(run).collect()
}

#[test]
fn made_logs_are_named() {
    for (period_us, quota_us, hz, phase) in [
        (100_000, 25_000, 250, 0),
        (100_000, 50_000, 1000, 300_000),
        (20_000, 1_447, 250, 100_000),
        (20_000, 10_000, 250, 2_000_000),
        (10_000, 2_500, 250, 0),
        (10_000, 5_000, 1000, 700_000),
        (50_000, 20_000, 1000, 0),
        (5_000, 1_000, 1000, 10_000),
    ] {
        let made = throttled(period_us, quota_us, hz, phase, 5);
        let found =
            infer(&made).unwrap_or_else(|problem| panic!("P{period_us}Q{quota_us}: {problem}"));
        assert_eq!(
            (found.period_us, found.tick_hz),
            (period_us, hz),
            "Q{quota_us}: {found:?}"
        );
        let tolerance = quota_us / 50;
        assert!(
            found.quota_us.abs_diff(quota_us) <= tolerance,
            "P{period_us}Q{quota_us}: {found:?}"
        );
    }
}

/// Ticks of 1000 Hz in periods of whole ticks of 100 Hz: the throttles begin at two neighbours, which is one direction on the circle of
/// 100 Hz. With one alone, nobody can tell.
#[test]
fn neighbours_among_fast_ticks_are_no_slow_tick() {
    for (period_us, quota_us, phase) in [
        (30_000, 5_000, 300_000),
        (10_000, 900, 300_000),
        (100_000, 8_000, 450_000),
        (20_000, 1_447, 800_000),
    ] {
        let made = throttled(period_us, quota_us, 1000, phase, 1);
        let found = infer(&made).unwrap();
        assert_eq!(
            (
                found.period_us,
                found.tick_hz,
                found.tick_hz_possible.as_slice()
            ),
            (period_us, 1000, [].as_slice()),
            "Q{quota_us}: {found:?}"
        );
    }
}

#[test]
fn what_says_nothing_is_refused() {
    assert!(infer(&vec![]).unwrap_err().contains("too few"));
    let even = |step: u64| {
        let throttles = (1..100_u64).map(|index| Throttle {
            noticed_ns: index * 7_000_000 + (index * index * step) % 3_000_000,
            lasted_ns: 600_000,
        });
        vec![throttles.collect::<Vec<_>>()]
    };
    let told = infer(&even(777_777)).unwrap_err();
    assert!(told.contains("multiples of no period"), "{told}");
    for wrong in [
        "",
        "1",
        "[[1]]",
        "[[5, 9]]",
        "[[100, 1], [50, 1]]",
        "[[100, 1], [150, 60]]",
        "{\"data\": [[-1, 2]]}",
        "[{\"data\": {\"body\": \"x\"}}]",
    ] {
        assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
    }
    assert_eq!(read(b"[[100, 1], [150, 50]]").unwrap()[0].len(), 2);
}

/// The published logs (`serverless_costs/sched` of the shared data). Their names say what they are; only the test reads the names.
#[test]
fn the_published_logs_are_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../../shared/data/serverless_costs/sched");
    let Ok(files) = folder.read_dir() else {
        eprintln!(
            "SKIPPED: there are no published logs in {}",
            folder.display()
        );
        return;
    };
    let mut named = 0;
    for file in files {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut json = Vec::new();
        let packed = std::fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(packed)
            .read_to_end(&mut json)
            .unwrap();
        let found = infer(&read(&json).unwrap()).unwrap();
        let text = format!(
            "-H{}P{}Q{}.json.gz",
            found.tick_hz, found.period_us, found.quota_us
        );
        assert!(name.ends_with(&text), "{name}: {found:?}");
        named += 1;
    }
    assert!(named >= 16, "{named} logs");
}

/// Nearly all intervals are three periods, because the task overruns by a whole tick and pays for two more periods. Measured on a machine
/// whose ticks lay so.
#[test]
fn a_period_of_which_most_intervals_are_several_is_found() {
    let of = |counts: &[(u64, usize)]| -> Vec<u64> {
        let intervals = counts.iter();
        intervals
            .flat_map(|(us, count)| vec![us * 1000; *count])
            .collect()
    };
    let measured = of(&[
        (60_010, 162),
        (20_020, 10),
        (596, 1),
        (2_177, 1),
        (56_981, 1),
    ]);
    assert_eq!(period(&measured).map(|(ns, _)| ns), Some(20_000_000));
    // What fits no period does not make a shorter one of it.
    let noisy = of(&[
        (60_010, 162),
        (1_003, 4),
        (7_500, 3),
        (20_020, 2),
        (33_333, 5),
    ]);
    assert_eq!(period(&noisy).map(|(ns, _)| ns), Some(60_000_000));
}
