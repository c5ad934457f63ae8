//! A report for people.

use std::time::Duration;

use pilot_model::calendar::Utc;
use pilot_model::cost::{CostParts, CostReport, PlatformCost};
use pilot_model::log_line::visible;

use super::super::output::{self, Align, BAR, DIM, STRONG, Table, WARN};

/// The report as text.
pub(super) fn render(report: &CostReport) -> String {
    let mut text = head(report);
    let mut table = Table::new(&[
        ("PLATFORM", Align::Left),
        ("COST", Align::Right),
        ("PER MILLION", Align::Right),
        ("", Align::Left),
        ("FEE", Align::Right),
        ("ROUNDING", Align::Right),
        ("COLD", Align::Right),
        ("IDLE", Align::Right),
        ("USED", Align::Right),
        ("MEMORY", Align::Right),
        ("CPU", Align::Right),
    ]);
    let bills = report
        .platforms
        .iter()
        .filter_map(|platform| platform.bill.as_ref())
        .filter(|bill| bill.per_month.is_none());
    let most = bills.map(|bill| atoms(&bill.total)).max().unwrap_or(0);
    for platform in &report.platforms {
        if let Some(bill) = &platform.bill {
            table.row(row(platform, bill, most));
        }
    }
    text.push_str(&table.render());
    for platform in &report.platforms {
        if let Some(problem) = &platform.problem {
            text.push_str(&format!(
                "{DIM}{}: {}{DIM:#}\n",
                visible(&platform.name),
                visible(problem)
            ));
        }
    }
    text.push_str(&format!(
        "{DIM}US dollars without free quotas. The parts of a bill: fee per call, rounding, cold starts, what was allocated\n\
         but idle, what was used. MEMORY and CPU: billable divided by used. Machines run from the first call to now.{DIM:#}\n"
    ));
    let unchecked = report
        .platforms
        .iter()
        .filter(|platform| platform.bill.is_some() && platform.as_of == NOT_CHECKED)
        .count();
    if unchecked > 0 {
        text.push_str(&format!(
            "{WARN}The prices of {unchecked} platforms were not compared with their source: `pilot cost platforms` shows which.{WARN:#}\n"
        ));
    }
    for note in &report.notes {
        text.push_str(&format!("{WARN}{}{WARN:#}\n", visible(note)));
    }
    text
}

/// `as_of` of such a row (docs/costs.md).
const NOT_CHECKED: &str = "not checked";

fn head(report: &CostReport) -> String {
    let used = &report.used;
    // The clock of a trace may begin with it.
    let since = report.since_unix_ms.filter(|since| *since >= YEAR_2000_MS);
    let since = since.map_or_else(String::new, |since| {
        let at = Utc::of_unix_ms(since);
        format!(
            " since {:04}-{:02}-{:02} {:02}:{:02} UTC",
            at.year, at.month, at.day, at.hour, at.minute
        )
    });
    let sum = u128::from(used.memory_kb_ms) * (1000 << 10);
    let mean = sum.checked_div(u128::from(used.execution_us));
    let mean = mean.and_then(|bytes| u64::try_from(bytes).ok());
    let memory = mean.map_or_else(String::new, |bytes| {
        format!(", {} of memory on average", output::megabytes(bytes))
    });
    let cpu = if used.cpu_unknown == used.calls {
        "unknown CPU time".to_owned()
    } else {
        format!("{} of CPU time", time(used.cpu_us))
    };
    format!(
        "{STRONG}{}{STRONG:#}{since}, {} cold: {} of execution, {} of initialisation, {cpu}{memory}\n\n",
        output::count(used.calls, "call"),
        used.cold,
        time(used.execution_us),
        time(used.init_us),
    )
}

fn row(platform: &PlatformCost, bill: &CostParts, most: u128) -> Vec<String> {
    let [fee, rounding, cold, idle, used] = bill.shares_thousandths.map(|share| match share {
        0 => "-".to_owned(),
        1..10 => "<1%".to_owned(),
        share => format!("{}%", (share + 5) / 10),
    });
    // A machine costs the same however many calls there were, so it has no bar beside them.
    let bar = match bill.per_month {
        Some(_) => String::new(),
        None => bar(atoms(&bill.total), most),
    };
    let inflation = |hundredths: Option<u64>| match hundredths {
        Some(hundredths) if hundredths >= 100_000 => ">999x".to_owned(),
        Some(hundredths) => format!("{}.{:02}x", hundredths / 100, hundredths % 100),
        None => String::new(),
    };
    vec![
        visible(&platform.name).to_string(),
        format!("${}", significant(&bill.total)),
        match &bill.per_month {
            Some(month) => format!("${month}/month"),
            None => format!("${}", bill.per_million),
        },
        bar,
        fee,
        rounding,
        cold,
        idle,
        used,
        inflation(platform.memory_inflation_hundredths),
        inflation(platform.cpu_inflation_hundredths),
    ]
}

/// A bar whose length is this share of the most expensive bill, in eighths of a column.
fn bar(part: u128, most: u128) -> String {
    let eighths = (part * BAR_COLUMNS * 8).div_ceil(most.max(1));
    let whole: String = (0..eighths / 8).map(|_| '█').collect();
    let rest = match eighths % 8 {
        0 => "",
        1 => "▏",
        2 => "▎",
        3 => "▍",
        4 => "▌",
        5 => "▋",
        6 => "▊",
        _ => "▉",
    };
    format!("{BAR}{whole}{rest}{BAR:#}")
}

/// The digits of an amount as one number, to compare amounts of the same number of places.
fn atoms(amount: &str) -> u128 {
    let digits: String = amount.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(0)
}

/// An amount with four significant digits, and at least cents.
fn significant(amount: &str) -> String {
    let Some((whole, fraction)) = amount.split_once('.') else {
        return amount.to_owned();
    };
    let places = if whole == "0" {
        let zeros = fraction.len() - fraction.trim_start_matches('0').len();
        (zeros + 4).max(2)
    } else {
        4_usize.saturating_sub(whole.len()).max(2)
    };
    let kept: String = fraction.chars().take(places).collect();
    format!("{whole}.{kept}")
}

fn time(us: u64) -> String {
    output::duration(Duration::from_micros(us))
}

const BAR_COLUMNS: u128 = 8;
const YEAR_2000_MS: u64 = 946_684_800_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_four_significant_digits() {
        assert_eq!(significant("0.000001233335"), "0.000001233");
        assert_eq!(significant("157.720000000000"), "157.72");
        assert_eq!(significant("2.345678900000"), "2.345");
        assert_eq!(significant("0.000000000000"), "0.000000000000");
        assert_eq!(significant("12"), "12");
    }

    #[test]
    fn the_longest_bar_is_that_of_the_most_expensive() {
        let plain = |part| anstream::adapter::strip_str(&bar(part, 80)).to_string();
        assert_eq!(plain(80), "████████");
        assert_eq!(plain(40), "████");
        assert_eq!(plain(1), "▏");
        assert_eq!(plain(0), "");
    }
}
