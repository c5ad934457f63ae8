//! Sizes of calls whose durations are known.

use super::*;

const MACHINE: Machine = Machine {
    period_us: 100_000,
    tick_hz: 1000,
};

fn records(rows: &[(u64, u64, u64)]) -> String {
    let mut text = "unix_ms,memory_mb,cpu_milli,execution_ns,init_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,bytes_in,bytes_out\n".to_owned();
    for (execution_ms, init_ms, cpu_ms) in rows {
        text.push_str(&format!(
            "1,256,1000,{execution_ms}000000,{init_ms}000000,{cpu_ms}000000,0,{},0,0\n",
            70 << 20
        ));
    }
    text
}

fn calls(rows: &[(u64, u64, u64)]) -> Calls {
    Calls::read(records(rows).as_bytes()).unwrap()
}

fn found(calls: &Calls) -> Vec<Setting> {
    settings(calls, &Table::shipped().unwrap(), MACHINE).unwrap()
}

#[test]
fn a_call_that_only_computes_falls_in_jumps_and_one_that_waits_does_not() {
    let computes = found(&calls(&[(17, 0, 17)]));
    let [own, aws, gcp] = computes.as_slice() else {
        panic!("{computes:?}");
    };
    assert_eq!(
        (own.id.as_str(), aws.id.as_str(), gcp.id.as_str()),
        ("own", "aws-lambda-x86", "gcp-request")
    );
    let at = |mb| {
        let size = aws.sizes.iter().find(|size| size.memory_mb >= mb);
        size.unwrap().duration_us
    };
    // Figure 10: PyAES takes 17 ms. Nothing is gained above 1,415 MB, and the next jump is at 700.
    assert_eq!(at(1769), 17_000);
    assert!(at(1430) < 17_300, "{}", at(1430));
    assert!(at(1100) > at(1430) * 11 / 10, "{} {}", at(1100), at(1430));
    assert!(at(640) > at(800) * 13 / 10, "{} {}", at(640), at(800));
    // A part of the sizes makes calls shorter, and the others do not.
    let steps = aws.sizes.iter().filter(|size| size.step).count();
    assert!((5..60).contains(&steps), "{steps} of {}", aws.sizes.len());
    // Over-allocation: never longer than the reciprocal by more than some periods.
    for size in aws.sizes.iter().chain(&gcp.sizes).chain(&own.sizes) {
        assert!(size.duration_us <= size.ideal_us + 200_000, "{size:?}");
        assert!(size.duration_us >= 17_000, "{size:?}");
    }
    let waits = found(&calls(&[(160, 0, 1)]));
    for setting in &waits {
        let first = setting.sizes.first().unwrap();
        let last = setting.sizes.last().unwrap();
        assert!(first.duration_us <= last.duration_us + 25_000, "{first:?}");
        if setting.id != "own" {
            assert!(
                first.cheapest,
                "{}: waiting costs less in less memory",
                setting.id
            );
        }
    }
}

#[test]
fn bills_are_those_of_the_platform_at_the_expected_duration() {
    let computes = found(&calls(&[(160, 0, 160)]));
    let aws = computes
        .iter()
        .find(|it| it.id == "aws-lambda-x86")
        .unwrap();
    let whole = aws.sizes.last().unwrap();
    assert_eq!((whole.memory_mb, whole.cpu_milli), (1769, 1000));
    // 160 ms of 1,769 MB, and the fee.
    assert_eq!(whole.per_million.as_deref(), Some("4.806780"));
    let gcp = computes.iter().find(|it| it.id == "gcp-request").unwrap();
    // 160 ms are 200 ms of a vCPU and 256 MB, and the fee.
    assert_eq!(
        gcp.sizes.last().unwrap().per_million.as_deref(),
        Some("5.325000")
    );
    for setting in &computes {
        let cheapest = setting.sizes.iter().filter(|size| size.cheapest).count();
        assert_eq!(cheapest, usize::from(setting.id != "own"));
        assert_eq!(setting.sizes.iter().filter(|size| size.enough).count(), 1);
    }
}

#[test]
fn cold_calls_and_calls_without_cpu_time_are_left_out() {
    let mut text = records(&[(500, 300, 400), (20, 0, 10), (30, 0, 20)]);
    text.push_str("1,256,1000,1000000,0,,,,0,0\n");
    let calls = Calls::read(text.as_bytes()).unwrap();
    assert_eq!((calls.counted, calls.left_out), (2, 2));
    assert_eq!(calls.memory_max, Some(70 << 20));
    assert_eq!(calls.own.cpu_milli, 1000);
    let own = &found(&calls)[0];
    assert_eq!(own.sizes.last().unwrap().duration_us, 25_000);
    let none = Calls::read(records(&[(500, 300, 400)]).as_bytes()).unwrap_err();
    assert!(none.to_string().contains("calls in all: 1"), "{none}");
    assert!(Calls::read(&b"a,b\n"[..]).is_err());
}

#[test]
fn what_a_worker_does_around_a_call_is_no_second_cpu() {
    let mut text = records(&[(20, 0, 20), (20, 0, 39)]);
    // A call of 10 us whose worker used 60 us.
    text.push_str("1,256,1000,10000,0,60000,0,,0,0\n");
    let calls = Calls::read(text.as_bytes()).unwrap();
    assert_eq!((calls.counted, calls.parallel), (3, 1));
}

/// Sizes below the memory that calls use are not offered.
#[test]
fn a_size_has_the_memory_that_is_used() {
    let mut text = records(&[(20, 0, 10)]);
    text.push_str(&format!(
        "1,4096,1000,20000000,0,10000000,0,{},0,0\n",
        3000_u64 << 20
    ));
    let calls = Calls::read(text.as_bytes()).unwrap();
    let found = found(&calls);
    let aws = found.iter().find(|it| it.id == "aws-lambda-x86").unwrap();
    assert_eq!(aws.sizes.len(), 1);
    assert_eq!(aws.sizes[0].memory_mb, 3000);
}

/// Lambda ends at 10,240 MB.
#[test]
fn a_platform_without_a_size_that_is_large_enough_has_none() {
    let text = records(&[(20, 0, 10)]);
    let used = |mb: u64| text.replace(&format!(",{},0,0", 70 << 20), &format!(",{},0,0", mb << 20));
    let of = |mb: u64| {
        let found = found(&Calls::read(used(mb).as_bytes()).unwrap());
        let aws = found.into_iter().find(|it| it.id == "aws-lambda-x86");
        let sizes = aws.unwrap().sizes.into_iter();
        sizes.map(|size| size.memory_mb).collect::<Vec<_>>()
    };
    assert_eq!(of(10_240), [10_240]);
    assert_eq!(of(10_241), Vec::<u64>::new());
}

/// The user's rows of the two platforms count. One that bills instances has no bill of calls.
#[test]
fn prices_are_those_of_the_table() {
    let dear = r#"
[platforms.aws-lambda-x86]
name = "Lambda, as in our contract"
time = "execution"
step = "1 ms"
memory = { price = "0.0000333334", per = "s" }
fee = "0"
size = { memory_mb = { min = 128, max = 2048, step = 1 }, mb_per_vcpu = 1769 }
source = "the contract"
as_of = "2026-01-01"

[platforms.gcp-request]
name = "An instance"
time = "instance"
step = "1 s"
memory = { step = 1, price = "0.000002", per = "s" }
size = { list = [[1000, 1024]] }
source = "the contract"
as_of = "2026-01-01"
"#;
    let table = Table::with(Some(dear)).unwrap();
    let calls = calls(&[(160, 0, 160)]);
    let found = settings(&calls, &table, MACHINE).unwrap();
    let [_, aws, gcp] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(aws.name, "Lambda, as in our contract");
    // 160 ms of 1,769 MB at twice the price, without a fee.
    let whole = aws.sizes.last().unwrap();
    assert_eq!(whole.memory_mb, 1769);
    let per_million: f64 = whole.per_million.as_ref().unwrap().parse().unwrap();
    assert!((per_million - 9.213_560).abs() < 1e-5, "{per_million}");
    assert_eq!(gcp.sizes.len(), 1);
    assert_eq!(
        (&gcp.sizes[0].per_million, gcp.sizes[0].cheapest),
        (&None, false)
    );
}

#[test]
fn the_line_of_a_last_row_without_a_line_end_is_known() {
    let text = records(&[(20, 0, 10), (30, 0, 10)]);
    assert_eq!(calls(&[(20, 0, 10)]).unended, None);
    let cut = text.strip_suffix('\n').unwrap();
    assert_eq!(Calls::read(cut.as_bytes()).unwrap().unended, Some(3));
}

/// Cloud Run has no function with 512 MB and less than a third of a vCPU.
#[test]
fn a_size_is_one_that_the_platform_has() {
    let text = records(&[(20, 0, 10)]).replace(",256,1000,", ",512,1000,");
    let found = found(&Calls::read(text.as_bytes()).unwrap());
    let run = found.iter().find(|it| it.id == "gcp-request").unwrap();
    let (first, last) = (run.sizes.first().unwrap(), run.sizes.last().unwrap());
    assert_eq!((first.memory_mb, first.cpu_milli), (512, 340));
    assert_eq!((last.memory_mb, last.cpu_milli), (512, 1000));
    assert_eq!(run.sizes.len(), 67);
}

/// However many calls there are, those that stand for them have their distribution.
#[test]
fn the_chosen_calls_stand_for_all() {
    let rows: Vec<(u64, u64, u64)> = (0..20_000).map(|n| (100 + n % 100, 0, n % 100)).collect();
    let calls = calls(&rows);
    assert_eq!(calls.counted, 20_000);
    assert_eq!(calls.chosen.len(), SHARES_MAX);
    let mean: u64 = calls.chosen.iter().map(|call| call.cpu_ns).sum::<u64>() / 16;
    assert!((46_000_000..54_000_000).contains(&mean), "{mean}");
}

/// 40 ms of CPU time took 260 ms with a tenth of a CPU, and 40 ms with a whole one. None of the calls waited.
#[test]
fn each_call_is_judged_by_the_size_that_it_had() {
    let slow = (260, 0, 40);
    let small = records(&[slow; 12]).replace(",256,1000,", ",256,100,");
    let large = records(&[(40, 0, 40); 3]);
    let (_, large) = large.split_once('\n').unwrap();
    let calls = Calls::read(format!("{small}{large}").as_bytes()).unwrap();
    assert_eq!((calls.own.cpu_milli, calls.several_sizes), (1000, true));
    let found = found(&calls);
    let own = &found[0];
    assert_eq!(own.sizes.last().unwrap().duration_us, 40_000);
    let tenth = own.sizes.iter().find(|size| size.cpu_milli == 100).unwrap();
    assert!(
        (240_000..=420_000).contains(&tenth.duration_us),
        "{tenth:?}"
    );
    assert!(
        !own.sizes[0].enough,
        "a twentieth of a CPU is not as fast as it gets"
    );
    assert!(
        !Calls::read(records(&[slow; 2]).as_bytes())
            .unwrap()
            .several_sizes
    );
}
