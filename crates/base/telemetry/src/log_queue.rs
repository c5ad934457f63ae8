//! Lines of the log that wait to be written. A thread of its own writes them, so that nobody else waits if standard error is a pipe that
//! nobody reads, or a terminal that is stopped. The queue has a limit; lines beyond it are lost, and the log says later how many.
//!
//! Until the thread is there, and after the end, whoever logs writes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// See the module.
#[derive(Debug)]
pub(crate) struct LogQueue {
    /// Guards the lines. Not held while one is written.
    waiting: Mutex<Waiting>,
    /// Wakes the thread, and whoever waits for the end.
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that were lost since the log said so.
    lost: u64,
    /// The thread is at work.
    is_busy: bool,
    by: Writer,
}

/// Who writes a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Who logs it.
    Caller,
    /// The thread.
    Thread,
    /// Nobody: the thread did not come to its end.
    Nobody,
}

impl LogQueue {
    pub(crate) const fn new() -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                lines: VecDeque::new(),
                bytes: 0,
                lost: 0,
                is_busy: false,
                by: Writer::Caller,
            }),
            changed: Condvar::new(),
        }
    }

    /// From now on, lines wait for [`LogQueue::run`].
    pub(crate) fn begin(&self) {
        self.waiting.lock().by = Writer::Thread;
    }

    /// Takes a line. False: the caller must write it.
    pub(crate) fn push(&self, line: &[u8]) -> bool {
        let mut waiting = self.waiting.lock();
        match waiting.by {
            Writer::Caller => return false,
            Writer::Thread if waiting.bytes + line.len() <= BYTES_MAX => {
                waiting.bytes += line.len();
                waiting.lines.push_back(line.to_vec());
                self.changed.notify_all();
            }
            Writer::Thread | Writer::Nobody => waiting.lost += 1,
        }
        true
    }

    /// Writes what comes, until the end. `tell_lost` logs that so many lines were lost.
    pub(crate) fn run(&self, mut writer: impl Write, tell_lost: impl Fn(u64)) {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= line.len();
                waiting.is_busy = true;
                drop(waiting);
                // A line that cannot be written is lost.
                let _ = writer.write_all(&line);
                waiting = self.waiting.lock();
                continue;
            }
            if waiting.lost > 0 && waiting.by == Writer::Thread {
                let lost = std::mem::take(&mut waiting.lost);
                waiting.is_busy = true;
                drop(waiting);
                tell_lost(lost);
                waiting = self.waiting.lock();
                continue;
            }
            waiting.is_busy = false;
            self.changed.notify_all();
            if waiting.by != Writer::Thread {
                return;
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// Waits until all is written, for this time at most. Then nobody waits for the thread any more.
    pub(crate) fn finish(&self, time_max: Duration) {
        let until = Instant::now() + time_max;
        let mut waiting = self.waiting.lock();
        while waiting.is_busy || !waiting.lines.is_empty() || waiting.lost > 0 {
            if self.changed.wait_until(&mut waiting, until).timed_out() {
                waiting.by = Writer::Nobody;
                return;
            }
        }
        waiting.by = Writer::Caller;
        self.changed.notify_all();
    }
}

/// What lines are written to: the queue, or standard error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queued(pub(crate) &'static LogQueue);

impl Write for Queued {
    /// Takes a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.0.push(line) {
            io::stderr().write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of lines that wait.
const BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, JoinHandle};

    use super::*;

    /// A pipe that nobody reads as long as the sender of `is_read` is there.
    struct Pipe {
        is_read: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Pipe {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            // An error says that the sender is gone.
            let _ = self.is_read.recv();
            self.written.send(line.to_vec()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Bench {
        queue: Arc<LogQueue>,
        reader: Sender<()>,
        written: Receiver<Vec<u8>>,
        thread: JoinHandle<()>,
    }

    fn bench() -> Bench {
        let queue = Arc::new(LogQueue::new());
        assert!(!queue.push(b"before the thread is there"));
        queue.begin();
        let (reader, is_read) = channel();
        let (sender, written) = channel();
        let (writing, telling) = (Arc::clone(&queue), Arc::clone(&queue));
        let thread = thread::spawn(move || {
            let tell_lost = move |lost: u64| {
                telling.push(format!("{lost} lost").as_bytes());
            };
            let pipe = Pipe {
                is_read,
                written: sender,
            };
            writing.run(pipe, tell_lost);
        });
        Bench {
            queue,
            reader,
            written,
            thread,
        }
    }

    const LINE: [u8; 1000] = [b'x'; 1000];

    #[test]
    fn nobody_waits_for_a_pipe_that_is_not_read_and_lost_lines_are_counted() {
        let bench = bench();
        for _ in 0..3000 {
            assert!(bench.queue.push(&LINE));
        }
        bench.queue.finish(Duration::from_millis(50));
        assert!(bench.queue.push(b"too late"), "nobody writes it");
        assert!(bench.queue.waiting.lock().lost > 1900);
        drop(bench.reader);
        bench.thread.join().unwrap();
        let written = bench.written.iter().filter(|line| line == &LINE).count();
        assert!((1000..1100).contains(&written), "{written}");
    }

    #[test]
    fn all_is_written_at_the_end_and_before_it_how_many_lines_were_lost() {
        let bench = bench();
        for _ in 0..3000 {
            bench.queue.push(&LINE);
        }
        drop(bench.reader);
        bench.queue.finish(Duration::from_secs(60));
        assert!(!bench.queue.push(b"the caller writes it"));
        bench.thread.join().unwrap();
        let written: Vec<Vec<u8>> = bench.written.iter().collect();
        let (lines, told): (Vec<_>, Vec<_>) = written.iter().partition(|line| *line == &LINE);
        let lost: usize = told
            .iter()
            .map(|line| String::from_utf8_lossy(line).replace(" lost", ""))
            .map(|count| count.parse::<usize>().unwrap())
            .sum();
        assert!(lost > 0);
        assert_eq!(lines.len() + lost, 3000);
    }
}
