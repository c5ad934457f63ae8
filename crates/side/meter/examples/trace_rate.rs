//! How fast traces are billed: makes rows of Huawei's request tables in memory and bills them under all platforms.
//! `cargo run --release -p pilot-meter --example trace_rate -- ROWS`.

use std::io::{self, Read};
use std::time::Instant;

use pilot_meter::trace::{self, Strictness, TraceOptions};
use pilot_meter::{Match, Size, Table};

/// A header, and then one block of rows again and again.
struct Rows {
    header: Vec<u8>,
    block: Vec<u8>,
    rows_per_block: u64,
    left: u64,
    at: usize,
}

impl Rows {
    fn new(rows: u64) -> Self {
        let header = "time_worker,time_frontend,requestID,clusterName,funcName,podID,userID,totalCost_worker,workerCost,runtimeCost,\
                      totalCost_frontend,frontendCost,busCost,readBodyCost,writeRspCost,cpu_usage,memory_usage,requestBodySize\n";
        let rows_per_block = 10_000;
        let pools = ["300-128", "400-256", "600-512", "1000-1024"];
        let rows_of_a_block = (0..rows_per_block).map(|row: u64| {
            let pool = pools.get(usize::try_from(row % 4).unwrap_or(0)).copied().unwrap_or_default();
            let micros = 137 * (row % 977) + 41;
            format!(
                "{}.{:03},{}.{:03},{row:032x},{},{},pool22-{pool}-{:010},{},0.{:06},0.000112,0.{micros:06},0.{micros:06},0.000364,0.001994,\
                 0.000016,0.000006,0.{:06},{}.{:06},{}\n",
                2_600_186 + row, row % 1000, 2_600_186 + row, row % 1000, row % 4, row % 300, row, row % 500, micros + 112,
                row * 37 % 1_000_000, 20 + row % 90, row * 91 % 1_000_000, row % 4096,
            )
        });
        Self {
            header: header.into(),
            block: rows_of_a_block.collect::<String>().into_bytes(),
            rows_per_block,
            left: rows / rows_per_block,
            at: 0,
        }
    }
}

impl Read for Rows {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if !self.header.is_empty() {
            let length = self.header.as_slice().read(room)?;
            self.header.drain(..length);
            return Ok(length);
        }
        if self.at == self.block.len() {
            self.at = 0;
            self.left = self.left.saturating_sub(1);
        }
        if self.left == 0 {
            return Ok(0);
        }
        let length = self.block.get(self.at..).unwrap_or_default().read(room)?;
        self.at += length;
        Ok(length)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows: u64 = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "10000000".to_owned())
        .parse()?;
    let table = Table::shipped()?;
    let options = TraceOptions {
        strictness: Strictness::Refuse,
        matched: Match::MemoryAndCpu,
        default_size: Size::default(),
        threads: None,
    };
    let source = Rows::new(rows);
    let megabytes = (source.block.len() as u64 * source.left) >> 20;
    assert_eq!(
        rows % source.rows_per_block,
        0,
        "ROWS is a multiple of {}",
        source.rows_per_block
    );
    let begin = Instant::now();
    let billed = trace::bill(source, &table, &options)?;
    let seconds = begin.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or_default();
    println!(
        "{} rows, {megabytes} MB, {} platforms: {seconds:.1} s; {peak}",
        billed.report.used.calls,
        table.platforms().len()
    );
    Ok(())
}
