//! The kernel's counters of a group's CPU time: what all its processes have used, also those that have ended, and for how long they
//! were throttled. The files are open, because they are read on the path: 1.3 µs each. So no more of them are read than tell something new.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::CpuTime;

use super::{Cgroup, counter};

/// Where the counters are.
#[derive(Debug)]
pub(super) enum Counters {
    /// `cpuacct` and `cpu` of version 1, nanoseconds. One of them may be missing.
    V1 {
        /// `cpuacct.usage`: the sum, exact.
        usage: Option<File>,
        /// `cpuacct.usage_user`: as counted at the kernel's ticks.
        user: Option<File>,
        /// `cpu.stat`, with `throttled_time N`.
        stat: Option<File>,
        /// What `usage` and `user` said when `user` was last read.
        split: Mutex<CpuTime>,
    },
    /// `cpu.stat` of version 2, microseconds.
    V2(Option<File>),
}

impl Counters {
    /// The groups of the two controllers.
    pub(super) fn v1(cpuacct: Option<&Path>, cpu: &Path) -> Self {
        let open = |file: &str| cpuacct.and_then(|group| File::open(group.join(file)).ok());
        Self::V1 {
            usage: open("cpuacct.usage"),
            user: open("cpuacct.usage_user"),
            stat: File::open(cpu.join("cpu.stat")).ok(),
            split: Mutex::default(),
        }
    }

    pub(super) fn v2(group: &Path) -> Self {
        Self::V2(File::open(group.join("cpu.stat")).ok())
    }

    /// CPU time since the group was made. The sum is exact.
    pub(super) fn cpu(&self) -> Option<CpuTime> {
        let (user, total) = match self {
            Self::V1 {
                usage, user, split, ..
            } => {
                let total = Duration::from_nanos(number(usage.as_ref()?)?);
                let mut split = split.lock();
                let since = total.saturating_sub(split.total());
                let user = if since < TICK && !split.total().is_zero() {
                    let share = split.user.as_secs_f64() / split.total().as_secs_f64();
                    split.user + since.mul_f64(share)
                } else {
                    let user = user.as_ref().and_then(number);
                    let user = user.map_or(total, Duration::from_nanos).min(total);
                    *split = CpuTime {
                        user,
                        system: total.saturating_sub(user),
                    };
                    user
                };
                (user, total)
            }
            Self::V2(stat) => {
                let mut bytes = [0; TEXT_LEN];
                let text = text(stat.as_ref()?, &mut bytes)?;
                let micros = |name| Duration::from_micros(counter(text, name));
                (micros("user_usec"), micros("usage_usec"))
            }
        };
        let user = user.min(total);
        Some(CpuTime {
            user,
            system: total.saturating_sub(user),
        })
    }

    /// How long the group was throttled since it was made, added up over the CPUs.
    pub(super) fn throttled(&self) -> Option<Duration> {
        let mut bytes = [0; TEXT_LEN];
        let mut read = |stat: &Option<File>, name| {
            text(stat.as_ref()?, &mut bytes).map(|text| counter(text, name))
        };
        Some(match self {
            Self::V1 { stat, .. } => Duration::from_nanos(read(stat, "throttled_time")?),
            Self::V2(stat) => Duration::from_micros(read(stat, "throttled_usec")?),
        })
    }
}

impl Cgroup {
    /// CPU time of all its processes in this use. `None`: the kernel does not count it.
    #[must_use]
    pub fn cpu(&self) -> Option<CpuTime> {
        let before = self.before.lock().0;
        Some(self.counters().cpu()?.since(before))
    }

    /// How long its processes waited for the next period of the CPU limit in this use, added up over the CPUs. `None`: the kernel
    /// does not count it.
    #[must_use]
    pub fn throttled(&self) -> Option<Duration> {
        let before = self.before.lock().1;
        Some(self.counters().throttled()?.saturating_sub(before))
    }

    fn counters(&self) -> &Counters {
        &self.files.share.counters
    }

    /// A new use begins.
    pub(super) fn reset_cpu(&self) {
        let counters = self.counters();
        *self.before.lock() = (
            counters.cpu().unwrap_or_default(),
            counters.throttled().unwrap_or_default(),
        );
    }
}

fn number(file: &File) -> Option<u64> {
    text(file, &mut [0; 32])?.trim().parse().ok()
}

fn text<'a>(file: &File, bytes: &'a mut [u8]) -> Option<&'a str> {
    let len = file.read_at(bytes, 0).ok()?;
    str::from_utf8(bytes.get(..len)?).ok()
}

/// The shortest tick of Linux (`CONFIG_HZ=1000`). The kernel counts the user's part of CPU time at its ticks, so what is less says nothing
/// about it: the part is then taken to be that of the time before.
const TICK: Duration = Duration::from_millis(1);

/// Enough for `cpu.stat`, whose lines with times are first.
const TEXT_LEN: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("cpuacct.usage", "5000001\n");
        write("cpuacct.usage_user", "4000000\n");
        write(
            "cpu.stat",
            "usage_usec 5000\nuser_usec 6000\nsystem_usec 1000\nnr_periods 5\nnr_throttled 2\nthrottled_usec 70\nthrottled_time 80\n",
        );
        let v1 = Counters::v1(Some(folder.path()), folder.path());
        let cpu = v1.cpu().unwrap();
        assert_eq!(cpu.total(), Duration::from_nanos(5_000_001));
        assert_eq!(cpu.user, Duration::from_millis(4));
        assert_eq!(v1.throttled(), Some(Duration::from_nanos(80)));
        write("cpuacct.usage_user", "9\n");
        write("cpuacct.usage", "5900001\n");
        let short = v1.cpu().unwrap();
        assert_eq!(short.total(), Duration::from_nanos(5_900_001));
        assert_eq!(
            short.user,
            Duration::from_nanos(4_720_000),
            "the same share, although the file says something else"
        );
        write("cpuacct.usage", "6000001\n");
        assert_eq!(v1.cpu().unwrap().user, Duration::from_nanos(9));
        let v2 = Counters::v2(folder.path());
        let cpu = v2.cpu().unwrap();
        assert_eq!(
            cpu.total(),
            Duration::from_millis(5),
            "the sum is exact, its parts are not"
        );
        assert_eq!(v2.throttled(), Some(Duration::from_micros(70)));
        assert_eq!(Counters::v1(None, Path::new("/nonexistent")).cpu(), None);
    }
}
