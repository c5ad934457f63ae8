//! A report's parts add up, and platforms that cannot bill say why.

use super::*;
use crate::platform::Match;

const MB: u64 = 1 << 20;
const SECOND: u64 = 1_000 * MS_NS;

fn need(cpu_milli: u64, mb: u64) -> Size {
    Size {
        cpu_milli,
        memory_bytes: mb * MB,
    }
}

fn usage() -> Usage {
    Usage {
        execution_ns: 150 * MS_NS,
        init_ns: 250 * MS_NS,
        cpu_ns: Some(30 * MS_NS),
        memory_used: Some(64 * MB),
    }
}

fn of<'a>(report: &'a CostReport, id: &str) -> &'a PlatformCost {
    report
        .platforms
        .iter()
        .find(|platform| platform.id == id)
        .unwrap()
}

fn atoms(amount: &str) -> u128 {
    amount.replace('.', "").parse().unwrap()
}

fn reported(need: Size, usages: &[Usage], span_ms: Option<(u64, u64)>) -> CostReport {
    let table = Table::shipped().unwrap();
    let sizes = Sizes::of(&table, need, Match::Memory);
    let mut tally = Tally::new(&table);
    for usage in usages {
        tally.request(&table, need, &sizes, usage, Counted::default());
    }
    tally.instance(&table, &sizes, 10 * SECOND);
    let span = span_ms.map(|(since, until)| Span::between_dates(since, until));
    tally.report(&table, span)
}

#[test]
fn the_parts_of_every_bill_add_up_to_it() {
    let warm = Usage {
        init_ns: 0,
        ..usage()
    };
    let report = reported(need(1000, 128), &[usage(), warm, warm], Some((0, 60_000)));
    let mut billed = 0;
    for platform in &report.platforms {
        let bill = platform
            .bill
            .as_ref()
            .unwrap_or_else(|| panic!("{platform:?}"));
        let parts = [
            &bill.fee,
            &bill.rounding,
            &bill.cold_start,
            &bill.idle,
            &bill.used,
        ];
        let sum: u128 = parts.iter().map(|part| atoms(part)).sum();
        assert!(
            sum.abs_diff(atoms(&bill.total)) <= 3,
            "{}: {bill:?}",
            platform.id
        );
        let shares: u64 = bill.shares_thousandths.iter().sum();
        assert!((997..=1003).contains(&shares), "{}: {bill:?}", platform.id);
        billed += 1;
    }
    assert_eq!(billed, Table::shipped().unwrap().platforms().len());
    let totals: Vec<u128> = report
        .platforms
        .iter()
        .map(|platform| atoms(&platform.bill.as_ref().unwrap().total))
        .collect();
    assert!(totals.is_sorted(), "the cheapest first: {totals:?}");
}

#[test]
fn each_part_is_what_it_says() {
    let report = reported(need(1000, 128), &[usage()], Some((0, 60_000)));
    let bill = of(&report, "gcp-request").bill.clone().unwrap();
    // 1 vCPU and 128 MB cost 2.43125e-5 a second: nothing is rounded at 400 ms.
    assert_eq!(bill.total, "0.000010125000");
    assert_eq!(bill.fee, "0.000000400000");
    assert_eq!(bill.rounding, "0.000000000000");
    assert_eq!(bill.cold_start, "0.000006078125", "250 ms");
    // 30 ms of a vCPU, and half of the memory for 150 ms.
    assert_eq!(bill.used, "0.000000743438");
    assert_eq!(bill.idle, "0.000002903438");
    let cloudflare = of(&report, "cloudflare");
    assert_eq!(cloudflare.bill.as_ref().unwrap().total, "0.000000900000");
    assert_eq!(cloudflare.cpu_inflation_hundredths, Some(100));
    assert_eq!(
        cloudflare.memory_inflation_hundredths, None,
        "it bills no memory"
    );
    let gcp = of(&report, "gcp-request");
    assert_eq!(
        gcp.memory_inflation_hundredths,
        Some(533),
        "128 MB * 400 ms / 64 MB * 150 ms"
    );
    assert_eq!(gcp.cpu_inflation_hundredths, Some(1333));
    let azure = of(&report, "azure-consumption").bill.clone().unwrap();
    assert_eq!(azure.idle, "0.000000000000", "it bills what was used");
    let instance = of(&report, "gcp-instance").bill.clone().unwrap();
    assert_eq!(
        instance.total, "0.000190000000",
        "10 s of 1 vCPU and 512 MB"
    );
    assert_eq!(instance.fee, "0.000000000000");
}

#[test]
fn what_cannot_be_billed_says_why() {
    let unknown = Usage {
        cpu_ns: None,
        ..usage()
    };
    let report = reported(need(1000, 128), &[usage(), unknown], Some((0, 60_000)));
    let cloudflare = of(&report, "cloudflare");
    assert_eq!(cloudflare.bill, None);
    let told = cloudflare.problem.as_deref();
    assert_eq!(told, Some("the CPU time of 1 of 2 calls is not known"));
    assert_eq!(of(&report, "aws-lambda-x86").cpu_inflation_hundredths, None);
    let report = reported(need(1000, 20_000), &[usage()], Some((0, 60_000)));
    let lambda = of(&report, "aws-lambda-x86");
    let told = lambda.problem.as_deref();
    assert_eq!(told, Some("1 of 1 calls need a larger size than it has"));
    assert!(of(&report, "gcp-request").bill.is_some());
    let timeless = reported(need(1000, 128), &[usage()], None);
    let told = of(&timeless, "aws-ec2").problem.as_deref();
    assert_eq!(
        told,
        Some("the time from the first call to the last is not known")
    );
    let last = report.platforms.last().unwrap();
    assert_eq!(last.bill, None, "those without a bill come last");
}

#[test]
fn reports_of_parts_add_up_to_the_report_of_all() {
    let table = Table::shipped().unwrap();
    let need = need(500, 300);
    let sizes = Sizes::of(&table, need, Match::MemoryAndCpu);
    let add = |tally: &mut Tally, count: u64| {
        for index in 0..count {
            let usage = Usage {
                execution_ns: index * 7_654_321,
                ..usage()
            };
            tally.request(&table, need, &sizes, &usage, Counted::default());
        }
    };
    let mut parts = Tally::new(&table);
    let mut whole = Tally::new(&table);
    for count in [0, 1, 13, 40] {
        let mut part = Tally::new(&table);
        add(&mut part, count);
        parts += &part;
        add(&mut whole, count);
    }
    let span = Some(Span::between_dates(5, 6_000));
    assert_eq!(parts.report(&table, span), whole.report(&table, span));
}

#[test]
fn nothing_costs_nothing_and_divides_by_nothing() {
    let table = Table::shipped().unwrap();
    let report = Tally::new(&table).report(&table, None);
    assert!(
        report
            .platforms
            .iter()
            .all(|platform| platform.bill.is_none())
    );
    assert_eq!(report.used, UsageTotals::default());
    let nothing = reported(need(1000, 128), &[Usage::default()], Some((0, 0)));
    assert_eq!(
        of(&nothing, "aws-lambda-x86").bill.as_ref().unwrap().total,
        "0.000000200000"
    );
}
