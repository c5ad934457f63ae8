//! Equation (1) against the figures of the paper, and its properties.

use proptest::prelude::*;

use crate::bill::{MEMORY_BYTES_MAX, TIME_NS_MAX};
use crate::platform::{BillableTime, Sizing};
use crate::{Amounts, Bill, Match, Money, Platform, Size, Table, Usage};

const MB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn platform(id: &str) -> Platform {
    Table::shipped().unwrap().platform(id).unwrap().clone()
}

fn size(cpu_milli: u64, memory_mb: u64) -> Size {
    Size {
        cpu_milli,
        memory_bytes: memory_mb * MB,
    }
}

fn rate(id: &str, cpu_milli: u64, memory_mb: u64) -> Money {
    platform(id).rate(size(cpu_milli, memory_mb))
}

#[test]
fn the_prices_per_second_of_the_paper_come_out_to_the_printed_digits() {
    assert_eq!(
        rate("aws-lambda-x86", 1000, 1769).scientific(5),
        "2.8792e-5"
    );
    assert_eq!(
        rate("aws-lambda-arm", 1000, 1769).scientific(5),
        "2.3034e-5"
    );
    assert_eq!(rate("gcp-request", 1000, 1769).scientific(5), "2.8319e-5");
    let (ec2, fargate) = (rate("aws-ec2", 1000, 2048), rate("aws-fargate", 1000, 2048));
    assert_eq!(ec2.scientific(5), "9.4753e-6");
    assert_eq!(fargate.scientific(5), "1.1003e-5");
    let lambda = rate("aws-lambda-arm", 1000, 1769);
    let thousandths = |part: &Money| (part.ratio_nano(&lambda).unwrap() + 500_000) / 1_000_000;
    assert_eq!(thousandths(&ec2), 411);
    assert_eq!(thousandths(&fargate), 478);
}

#[test]
fn the_fees_of_the_paper_are_worth_the_printed_times() {
    let lambda = platform("aws-lambda-x86")
        .fee_equivalent_ns(size(73, 128))
        .unwrap();
    assert_eq!((lambda + 500_000) / 1_000_000, 96);
    let run = platform("gcp-request")
        .fee_equivalent_ns(size(500, 512))
        .unwrap();
    assert_eq!((run + 5_000) / 10_000, 3019, "30.19 ms");
}

#[test]
fn every_row_says_where_and_when_its_figures_were_read() {
    let is_date = |text: &str| {
        let digits = |byte: u8| byte.is_ascii_digit() || byte == b'-';
        text.len() == 10 && text.bytes().all(digits)
    };
    let table = Table::shipped().unwrap();
    let mut unchecked = Vec::new();
    for platform in table.platforms() {
        match platform.as_of.as_str() {
            "not checked" => unchecked.push(platform.id.as_str()),
            date => assert!(is_date(date), "{}: {date}", platform.id),
        }
        let source = &platform.source;
        assert!(
            source.starts_with("https://") || platform.id == "own",
            "{source}"
        );
    }
    // docs/costs.md names them.
    assert_eq!(unchecked, ["azure-premium", "huawei"]);
}

#[test]
fn the_ratio_of_cpu_to_memory_is_in_the_range_of_the_paper() {
    for (id, ratio) in [
        ("gcp-request", 9600),
        ("aws-fargate", 9095),
        ("ibm-code-engine", 9637),
    ] {
        let platform = platform(id);
        let cpu = platform.cpu.unwrap().price.times(1000);
        let memory = platform.memory.unwrap().price.times(1 << 30);
        assert_eq!(cpu.ratio_nano(&memory).unwrap() / 1_000_000, ratio, "{id}");
    }
}

/// What one request costs: 1 vCPU and 512 MB wanted, 123.4 ms of execution, 200 ms of initialisation, 60.5 ms of CPU time, 70 MB used.
#[test]
fn one_request_costs_on_every_platform_what_its_row_says() {
    let usage = Usage {
        execution_ns: 123_400_000,
        init_ns: 200 * MS,
        cpu_ns: Some(60_500_000),
        memory_used: Some(70 * MB),
    };
    let golden = [
        ("aws-lambda-x86", Some("0.000002900005400")), // 324 ms * 0.5 GB
        ("aws-lambda-x86-until-2025-07", Some("0.000001233335400")), // 124 ms
        ("aws-lambda-arm", Some("0.000002360010800")),
        ("aws-lambda-arm-until-2025-07", Some("0.000001026670800")),
        ("gcp-request", Some("0.000010500000000")), // 400 ms: 9.6e-6 + 5e-7 + 4e-7
        ("gcp-instance", None),
        ("azure-consumption", Some("0.000000448000000")), // 124 ms * 128 MB
        ("azure-premium", None),
        ("azure-flex", Some("0.000052400000000")), // 1 s * 2 GB
        ("ibm-code-engine", Some("0.000017110000000")), // 400 ms * (1 vCPU, 2 GB)
        ("huawei", Some("0.000001233540000")),
        ("alibaba", Some("0.000003002000000")), // 124 ms * (1 vCPU, 1 GB)
        ("oracle", Some("0.000001074289000")),  // 123.4 ms
        ("vercel", Some("0.000003685000000")),
        ("cloudflare", None),
        ("aws-ec2", None),
        ("aws-fargate", None),
        ("own", None),
    ];
    let table = Table::shipped().unwrap();
    let ids: Vec<&str> = table
        .platforms()
        .iter()
        .map(|platform| platform.id.as_str())
        .collect();
    let mut covered: Vec<&str> = golden.iter().map(|(id, _)| *id).collect();
    covered.sort_unstable();
    assert_eq!(ids, covered, "every platform has its golden value");
    for (id, cost) in golden {
        let platform = platform(id);
        let fits = platform.size(size(1000, 512), Match::Memory);
        let bill = fits.and_then(|size| platform.bill(size, &usage));
        let found = bill.map(|bill| bill.billed.cost(&platform).decimal(15));
        assert_eq!(found.as_deref(), cost, "{id}");
    }
    let worker = platform("cloudflare");
    let bill = worker
        .bill(worker.size(size(1000, 128), Match::Memory).unwrap(), &usage)
        .unwrap();
    assert_eq!(
        bill.billed.cost(&worker).decimal(15),
        "0.000001520000000",
        "61 ms of CPU"
    );
}

#[test]
fn instances_and_machines_are_billed_for_their_time() {
    let run = platform("gcp-instance");
    let bill = run.bill_instance(run.size(size(1000, 128), Match::Memory).unwrap(), 1234 * MS);
    // 1.3 s of 1 vCPU and 512 MB.
    assert_eq!(bill.billed.cost(&run).decimal(9), "0.000024700");
    let ec2 = platform("aws-ec2");
    let bill = ec2.bill_instance(size(1000, 2048), 3600 * SECOND);
    assert_eq!(bill.billed.cost(&ec2).decimal(6), "0.034111");
    let bill = ec2.bill_instance(size(1000, 2048), SECOND);
    assert_eq!(
        bill.billed.fixed,
        u128::from(60 * SECOND),
        "a minute at least"
    );
    let premium = platform("azure-premium");
    let bill = premium.bill_instance(size(1000, 3584), SECOND);
    assert_eq!(
        bill.billed.cost(&premium).decimal(2),
        "157.72",
        "a month at least"
    );
    let own = platform("own");
    let bill = own.bill_instance(size(1000, 128), 730 * 3600 * SECOND);
    assert_eq!(
        bill.billed.cost(&own).decimal(3),
        "6.314",
        "5 + 730 h * 6 W * 0.30"
    );
}

#[test]
fn sizes_follow_the_control_knobs() {
    let fits = |id: &str, cpu, mb, matched| platform(id).size(size(cpu, mb), matched);
    let (memory, both) = (Match::Memory, Match::MemoryAndCpu);
    assert_eq!(
        fits("aws-lambda-x86", 1000, 1769, memory),
        Some(size(1000, 1769))
    );
    assert_eq!(
        fits("aws-lambda-x86", 1000, 64, memory)
            .unwrap()
            .memory_bytes,
        128 * MB
    );
    assert_eq!(
        fits("aws-lambda-x86", 1000, 128, both),
        Some(size(1000, 1769))
    );
    assert_eq!(
        fits("aws-lambda-x86", 1000, 20_000, memory),
        None,
        "too large"
    );
    assert_eq!(fits("gcp-request", 333, 512, memory), Some(size(340, 512)));
    assert_eq!(
        fits("azure-flex", 1000, 3000, memory),
        Some(size(2000, 4096))
    );
    assert_eq!(fits("huawei", 1000, 128, memory), Some(size(300, 128)));
    assert_eq!(fits("huawei", 1000, 128, both), Some(size(1000, 1024)));
    assert_eq!(
        fits("ibm-code-engine", 250, 100, memory),
        Some(size(250, 512))
    );
    assert_eq!(
        fits("alibaba", 100, 1000, memory),
        Some(size(250, 1024)),
        "1 to 4 GB per vCPU"
    );
    assert_eq!(fits("alibaba", 1000, 128, memory), Some(size(1000, 1024)));
    assert_eq!(
        fits("alibaba", 50, 200, memory),
        Some(size(100, 256)),
        "200 MB are 256, for which 0.05 vCPU are too few"
    );
    // Cloud Run has a least CPU for a memory size, and whole vCPUs above one.
    let on_run = |cpu, mb| fits("gcp-request", cpu, mb, memory);
    assert_eq!(on_run(80, 512), Some(size(340, 512)));
    assert_eq!(on_run(80, 128), Some(size(90, 128)));
    assert_eq!(on_run(500, 4096), Some(size(1000, 4096)));
    assert_eq!(on_run(500, 5000), Some(size(2000, 5000)));
    assert_eq!(on_run(1100, 512), Some(size(2000, 512)));
    assert_eq!(on_run(3500, 512), Some(size(4000, 2048)));
    assert_eq!(
        fits("gcp-instance", 1000, 9000, memory),
        Some(size(4000, 9000))
    );
    assert_eq!(fits("cloudflare", 1000, 129, memory), None);
}

#[test]
fn a_users_table_replaces_and_adds_and_says_what_is_wrong() {
    let own = r#"
        [platforms.own]
        name = "shop server"
        time = "machine"
        fixed = [{ what = "power", price = "0.25", per = "h", watts = 10 }]
        size = { list = [[4000, 8192]] }
        source = "the invoice"
        as_of = "2026-01-01"
        [platforms.other]
        name = "other"
        time = "execution"
        memory = { price = "0.00001", per = "s" }
        size = { memory_mb = { min = 128, max = 1024, step = 128 }, mb_per_vcpu = 1024 }
        source = "-"
        as_of = "2026-01-01"
    "#;
    let table = Table::with(Some(own)).unwrap();
    assert_eq!(table.platform("own").unwrap().name, "shop server");
    assert_eq!(
        table.platforms().len(),
        Table::shipped().unwrap().platforms().len() + 1
    );
    let unknown = table.platform("azure-flexx").unwrap_err();
    assert!(unknown.contains("did you mean azure-flex?"), "{unknown}");
    for (change, told) in [
        (("\"0.25\"", "\"-1\""), "'-1' is not an amount"),
        (("\"0.25\"", "\"1e-5\""), "'1e-5' is not an amount"),
        (("\"h\"", "\"hour\""), "'hour' is not a time"),
        (("watts", "wats"), "wats"),
        (
            ("[[4000, 8192]]", "[[0, 8192]]"),
            "[platforms.own]: size: 0 is not between",
        ),
        (("machine", "always"), "always"),
        (("\"h\"", "\"99999999999999999999 h\""), "is not a time"),
        (("\"h\"", "\"0 h\""), "is not a time"),
        (
            (
                "mb_per_vcpu = 1024",
                "mb_per_vcpu = 1024, cpu_from_memory = [[1, 1]]",
            ),
            "are for memory_mb with cpu_milli",
        ),
        (
            (
                "mb_per_vcpu = 1024",
                "cpu_milli = { min = 1, max = 9, step = 1 }, cpu_from_memory = [[9, 1], [8, 2]]",
            ),
            "cpu_from_memory: its pairs do not rise",
        ),
        (
            (
                "mb_per_vcpu = 1024",
                "cpu_milli = { min = 1, max = 9, step = 1 }, mb_per_vcpu_range = [2, 1]",
            ),
            "mb_per_vcpu_range: 2 is above 1",
        ),
    ] {
        let error = Table::with(Some(&own.replacen(change.0, change.1, 1))).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}

/// 50 ms of CPU time in a second of execution, on a platform that bills consumed CPU time.
#[test]
fn used_cpu_time_is_billed_as_it_was_consumed() {
    let text = r#"
        [platforms.active]
        name = "active CPU"
        time = "execution"
        step = "100 ms"
        memory = { price = "0.01", per = "s" }
        cpu = { basis = "used", price = "1", per = "s" }
        size = { list = [[1000, 512]] }
        source = "-"
        as_of = "2026-01-01"
    "#;
    let table = Table::with(Some(text)).unwrap();
    let active = table.platform("active").unwrap();
    let usage = Usage {
        execution_ns: 950 * MS,
        cpu_ns: Some(50 * MS),
        ..Usage::default()
    };
    let bill = active.bill(size(1000, 512), &usage).unwrap();
    // 1 s of half a GB, and 50 ms.
    assert_eq!(bill.billed.cost(active).decimal(4), "0.0550");
    assert_eq!(bill.billed.cpu, bill.used.cpu);
    let unknown = Usage {
        cpu_ns: None,
        ..usage
    };
    assert_eq!(active.bill(size(1000, 512), &unknown), None);
    let stepped = text.replace("\"used\", ", "\"used\", step = 50, ");
    let told = Table::with(Some(&stepped)).unwrap_err();
    assert!(
        told.contains("cpu: basis = \"used\" bills the consumed CPU time"),
        "{told}"
    );
    let instances = text.replace("\"execution\"", "\"instance\"");
    let told = Table::with(Some(&instances)).unwrap_err();
    assert!(told.contains("[platforms.active]: cpu: basis"), "{told}");
}

fn usages() -> impl Strategy<Value = Usage> {
    let time = 0..=3 * 3600 * SECOND;
    let cpu = proptest::option::of(0..=3600 * SECOND);
    let memory = proptest::option::of(0..=20_000 * MB);
    (time, 0..=60 * SECOND, cpu, memory).prop_map(|(execution_ns, init_ns, cpu_ns, memory_used)| {
        Usage {
            execution_ns,
            init_ns,
            cpu_ns,
            memory_used,
        }
    })
}

fn platforms() -> impl Strategy<Value = Platform> {
    proptest::sample::select(Table::shipped().unwrap().platforms().to_vec())
}

fn sizes() -> impl Strategy<Value = Size> {
    (1..=16_000_u64, 1..=40_000_u64).prop_map(|(cpu, mb)| size(cpu, mb))
}

fn cost(platform: &Platform, size: Size, usage: &Usage) -> Option<Money> {
    Some(platform.bill(size, usage)?.billed.cost(platform))
}

proptest! {
    /// A size that is offered for a need is offered for itself.
    #[test]
    fn a_size_is_one_that_the_platform_has(platform in platforms(), need in sizes()) {
        let Some(fits) = platform.size(need, Match::MemoryAndCpu) else { return Ok(()) };
        prop_assert!(fits.memory_bytes >= need.memory_bytes && fits.cpu_milli >= need.cpu_milli);
        if let Sizing::Separate { memory, cpu, ties } = &platform.sizing {
            prop_assert_eq!(platform.size(fits, Match::MemoryAndCpu), Some(fits));
            prop_assert!(fits.memory_bytes.is_multiple_of(memory.step) && fits.cpu_milli.is_multiple_of(cpu.step));
            if let Some((least, most)) = ties.bytes_per_vcpu {
                let per_vcpu = u128::from(fits.memory_bytes) * 1000;
                let cpu = u128::from(fits.cpu_milli);
                prop_assert!((cpu * u128::from(least)..=cpu * u128::from(most)).contains(&per_vcpu), "{fits:?}");
            }
        }
    }

    #[test]
    fn a_larger_argument_never_makes_a_bill_smaller(platform in platforms(), size in sizes(), usage in usages(), more in 1..=10 * SECOND) {
        let larger = [
            Usage { execution_ns: usage.execution_ns + more, ..usage },
            Usage { init_ns: usage.init_ns + more, ..usage },
            Usage { cpu_ns: usage.cpu_ns.map(|cpu| cpu + more), ..usage },
            Usage { memory_used: usage.memory_used.map(|used| used + more), ..usage },
        ];
        let before = cost(&platform, size, &usage);
        for usage in &larger {
            prop_assert!(before <= cost(&platform, size, usage));
        }
        let bytes = Size { memory_bytes: size.memory_bytes + more, ..size };
        prop_assert!(before <= cost(&platform, bytes, &usage));
        let cpu = Size { cpu_milli: size.cpu_milli + more % 1000, ..size };
        prop_assert!(before <= cost(&platform, cpu, &usage));
        prop_assert!(platform.bill_instance(size, usage.execution_ns).billed.cost(&platform)
            <= platform.bill_instance(size, usage.execution_ns + more).billed.cost(&platform));
    }

    #[test]
    fn a_larger_need_never_gets_a_smaller_size(platform in platforms(), need in sizes(), more in 0..=2000_u64, both in any::<bool>()) {
        let matched = if both { Match::MemoryAndCpu } else { Match::Memory };
        let larger = Size { memory_bytes: need.memory_bytes + more * MB, ..need };
        if let (Some(fits), Some(larger)) = (platform.size(need, matched), platform.size(larger, matched)) {
            prop_assert!(fits.memory_bytes <= larger.memory_bytes);
            prop_assert!(fits.memory_bytes >= need.memory_bytes);
        }
    }

    /// At a multiple of the granularity nothing is rounded up; one nanosecond more costs one step more.
    #[test]
    fn bills_are_exact_at_the_boundaries(platform in platforms(), size in sizes(), steps in 1..=500_u64) {
        prop_assume!(!matches!(platform.time, BillableTime::Instance | BillableTime::Machine));
        let time = (steps * platform.step_ns).max(platform.min_ns);
        let at = |time| Usage { execution_ns: time, cpu_ns: Some(time), ..Usage::default() };
        let time_billed = |time| platform.bill(size, &at(time)).unwrap().billed.fixed;
        prop_assert_eq!(time_billed(time), u128::from(time));
        prop_assert_eq!(time_billed(time + 1), u128::from(time + platform.step_ns));
        let before = if platform.step_ns == 1 { time - 1 } else { time };
        prop_assert_eq!(time_billed(time - 1), u128::from(before.max(platform.min_ns)));
    }

    #[test]
    fn the_bill_of_a_trace_is_the_sum_of_its_parts(platform in platforms(), size in sizes(), usages in proptest::collection::vec(usages(), 1..40), cut in any::<proptest::sample::Index>()) {
        let cut = cut.index(usages.len());
        let total = |usages: &[Usage]| {
            let mut sum = Bill::default();
            for usage in usages {
                sum += platform.bill(size, usage).unwrap_or_default();
            }
            sum
        };
        let (all, mut first, second) = (total(&usages), total(&usages[..cut]), total(&usages[cut..]));
        first += second;
        prop_assert_eq!(first, all);
        let singly: Vec<Money> = usages.iter().filter_map(|usage| cost(&platform, size, usage)).collect();
        prop_assert_eq!(singly.iter().sum::<Money>(), all.billed.cost(&platform));
    }

    #[test]
    fn the_parts_of_a_bill_are_ordered(platform in platforms(), size in sizes(), usage in usages()) {
        let Some(bill) = platform.bill(size, &usage) else { return Ok(()) };
        let chain = [bill.billed, bill.unrounded, bill.execution, bill.used];
        for pair in chain.windows(2) {
            let [larger, smaller]: [Amounts; 2] = pair.try_into().unwrap();
            prop_assert!(larger.memory >= smaller.memory && larger.cpu >= smaller.cpu);
            prop_assert!(larger.cost(&platform) >= smaller.cost(&platform));
        }
    }
}

#[test]
fn the_largest_records_do_not_overflow() {
    let usage = Usage {
        execution_ns: TIME_NS_MAX,
        init_ns: TIME_NS_MAX,
        cpu_ns: Some(TIME_NS_MAX),
        memory_used: Some(MEMORY_BYTES_MAX),
    };
    for platform in Table::shipped().unwrap().platforms() {
        let size = Size {
            cpu_milli: 1 << 24,
            memory_bytes: MEMORY_BYTES_MAX,
        };
        if let Some(bill) = platform.bill(size, &usage) {
            // 2^27 of them are still exact.
            assert!(bill.billed.memory.checked_mul(1 << 27).is_some());
            assert!(bill.billed.cpu.checked_mul(1 << 27).is_some());
        }
        assert!(
            matches!(platform.sizing, Sizing::Listed(_))
                || platform.size(size, Match::Memory).is_none()
        );
    }
}
