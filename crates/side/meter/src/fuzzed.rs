//! Fuzz targets: traces of requests, and the usage log. Built for tests and with `--cfg fuzzing` only.

use std::fs;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::log::{self, FRAME_HEAD, MAGIC};
use crate::parquet::{Rows, write};
use crate::table::Table;
use crate::trace::{Strictness, TraceOptions, TraceReport, bill};
use crate::{Match, Size};

/// A trace as CSV, perhaps compressed. The bill does not depend on the number of threads.
///
/// # Panics
/// It does.
pub fn traces(data: &[u8]) {
    static SHIPPED: OnceLock<Table> = OnceLock::new();
    let table = SHIPPED.get_or_init(|| Table::shipped().expect("the shipped table is valid"));
    let billed = |threads| {
        let options = TraceOptions {
            strictness: Strictness::Skip,
            matched: Match::MemoryAndCpu,
            default_size: Size {
                cpu_milli: 1000,
                memory_bytes: 128 << 20,
            },
            threads: NonZeroUsize::new(threads),
        };
        bill(data, table, &options)
    };
    let shown = |report: TraceReport| {
        let text = serde_json::to_string(&report.report).expect("a report is JSON");
        (text, report.malformed, report.first_malformed)
    };
    match (billed(1), billed(3)) {
        (Ok(one), Ok(three)) => assert_eq!(shown(one), shown(three)),
        (Err(_), Err(_)) => {}
        (one, three) => panic!("one thread: {:?}, three: {:?}", one.err(), three.err()),
    }
}

/// A trace as Parquet: a file of ours that is damaged in places (16 bits, and a byte), or the bytes themselves if there are more of
/// them. Its rows can be read, or an error says why not.
///
/// # Panics
/// The file cannot be written.
pub fn parquets(data: &[u8]) {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let whole = WHOLE.get_or_init(|| {
        let mut file = Vec::new();
        write(RECORDS.as_bytes(), &mut file).expect("the records are valid");
        file
    });
    let mut file = if data.len() > 200 { data } else { whole }.to_vec();
    if data.len() <= 200 {
        let len = file.len();
        for change in data.chunks_exact(3) {
            file[usize::from(u16::from_le_bytes([change[0], change[1]])) % len] = change[2];
        }
    }
    let folder = Folder::new();
    let path = folder.0.join("trace.parquet");
    fs::write(&path, file).expect("a new file");
    let file = fs::File::open(&path).expect("it is there");
    if let Ok(rows) = Rows::open(file) {
        let _ = std::io::copy(&mut rows.take(8 << 20), &mut std::io::sink());
    }
}

/// Frames of the usage log: as they are, and with fitting checksums. Reading ends, and gives no more entries than there are bytes.
///
/// # Panics
/// There are more.
pub fn usage_logs(data: &[u8]) {
    let folder = Folder::new();
    let mut framed = MAGIC.to_vec();
    for content in data.chunks(200) {
        framed.extend(u32::try_from(content.len()).unwrap_or(0).to_le_bytes());
        framed.extend(crc32fast::hash(content).to_le_bytes());
        framed.extend(content);
    }
    let raw = [&MAGIC[..], data].concat();
    for (number, segment) in (1..).zip([framed, raw]) {
        fs::write(log::path(&folder.0, number), segment).expect("a new file");
    }
    let entries = log::read(&folder.0)
        .expect("the folder can be read")
        .count();
    assert!(entries <= 2 * (data.len() + FRAME_HEAD), "{entries}");
}

/// Records as `pilot cost export` prints them.
const RECORDS: &str = "unix_ms,function,version,start,outcome,memory_mb,cpu_milli,execution_ns,init_ns,cpu_user_ns,cpu_system_ns,\
memory_used_bytes,bytes_in,bytes_out,admitted_ns
1700000000000,resize,1,warm,ok,256,500,1000000,0,300000,40000,20971520,10,20,
1700000000001,resize,1,cold,error,256,500,2000000,5000000,,,20971521,10,20,7
1700000000002,other,2,warm,ok,128,1000,3000000,0,300000,40000,20971522,0,0,
";

/// A folder for one turn, below `PILOT_FUZZ_DIR`, else `/dev/shm`, else the system's for temporary files.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let shared = PathBuf::from("/dev/shm");
        let parent = std::env::var_os("PILOT_FUZZ_DIR")
            .map(PathBuf::from)
            .or_else(|| shared.is_dir().then_some(shared))
            .unwrap_or_else(std::env::temp_dir);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("pilot-fuzz-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a folder for temporary files");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use pilot_testkit::corpus;

    #[test]
    fn a_bill_does_not_depend_on_the_threads() {
        corpus("traces", super::traces);
    }

    #[test]
    fn no_parquet_file_panics() {
        corpus("parquets", super::parquets);
    }

    #[test]
    fn a_damaged_usage_log_is_read_to_its_end() {
        corpus("usage-logs", super::usage_logs);
    }
}
