//! Which tables of sockets are read at a look, so that reading them takes little of a CPU however many sockets there are, and delays no
//! other namespace.
//!
//! The kernel goes to the place of each page from the beginning of the table (`udp_get_idx` in net/ipv4/udp.c). For some hundred sockets
//! that is a millisecond, for 20,000 of UDP it is some tenths of a second. So a namespace is read again after a pause in proportion to
//! what reading it took, and longer the more others there are. Of the namespaces with many sockets one is read at a look, after all
//! others: the one that has waited longest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Most;

/// What is known of namespaces whose tables are read.
#[derive(Debug, Default)]
pub(super) struct Paces {
    of: HashMap<u64, Pace>,
}

#[derive(Debug, Clone, Copy)]
struct Pace {
    due: Instant,
    /// When it was last read.
    found: Most,
    /// CPU time of that.
    took: Duration,
}

impl Paces {
    /// The namespaces to read now, in this order. `counts` has the inode and the number of sockets of each that there is; others are
    /// forgotten.
    pub(super) fn due(
        &mut self,
        counts: impl Iterator<Item = (u64, u64)>,
        now: Instant,
    ) -> Vec<u64> {
        let before = std::mem::take(&mut self.of);
        let (mut few, mut many) = (Vec::new(), None);
        for (inode, sockets) in counts {
            let new = Pace {
                due: now,
                found: Most::Little,
                took: Duration::ZERO,
            };
            let pace = *before.get(&inode).unwrap_or(&new);
            self.of.insert(inode, pace);
            if pace.due > now {
                continue;
            }
            if sockets <= SOCKETS_FEW_MAX {
                few.push((sockets, inode));
            } else {
                many = many.into_iter().chain([(pace.due, inode)]).min();
            }
        }
        few.sort_unstable();
        let few = few.into_iter().map(|(_, inode)| inode);
        few.chain(many.map(|(_, inode)| inode)).collect()
    }

    /// A namespace was read, which took this much CPU time.
    pub(super) fn was_read(&mut self, inode: u64, found: Most, took: Duration, now: Instant) {
        // What all take together is bounded, and one that is read in no time does not wait long for one that takes a second.
        let others = self.of.iter().filter(|(other, _)| **other != inode);
        let others: Duration = others.map(|(_, pace)| pace.took.min(took)).sum();
        let pause = (took + others).saturating_mul(PAUSE_PER_CPU_TIME);
        let due = now + pause.min(PAUSE_MAX);
        self.of.insert(inode, Pace { due, found, took });
    }

    /// What the namespace with the most has.
    pub(super) fn most(&self) -> Most {
        let found = self.of.values().map(|pace| pace.found);
        found.max().unwrap_or(Most::Little)
    }
}

/// One namespace takes 1 in 30 of a CPU at most.
const PAUSE_PER_CPU_TIME: u32 = 30;

/// A clock that goes wrong does not switch the watch off.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// So many sockets are read in some milliseconds.
const SOCKETS_FEW_MAX: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// `paces.due` for namespaces, and reads them; reading takes so many milliseconds for each thousand sockets.
    fn look(
        paces: &mut Paces,
        counts: &[(u64, u64)],
        now: Instant,
        ms_per_thousand: u32,
    ) -> Vec<u64> {
        let due = paces.due(counts.iter().copied(), now);
        for inode in &due {
            let sockets = counts.iter().find(|(one, _)| one == inode).unwrap().1;
            let thousands = u32::try_from(sockets / 1000).unwrap();
            paces.was_read(*inode, Most::Little, MS * thousands * ms_per_thousand, now);
        }
        due
    }

    #[test]
    fn reading_takes_a_few_percent_of_a_cpu_however_many_sockets_there_are() {
        let (mut paces, begun) = (Paces::default(), Instant::now());
        let counts: Vec<(u64, u64)> = (0..10).map(|inode| (inode, 1000 + inode * 2000)).collect();
        let mut took_ms = 0;
        for second in 0..1000 {
            for inode in look(&mut paces, &counts, begun + MS * second * 1000, 20) {
                took_ms += counts[usize::try_from(inode).unwrap()].1 / 1000 * 20;
            }
        }
        assert!(
            (10_000..=50_000).contains(&took_ms),
            "{took_ms} ms of 1,000 s"
        );
    }

    #[test]
    fn a_namespace_with_many_sockets_does_not_delay_the_others() {
        let (mut paces, begun) = (Paces::default(), Instant::now());
        let counts = [(1, 19_000), (2, 300), (3, 15_000), (4, 100)];
        let mut seen = Vec::new();
        for second in 0..40 {
            seen.push(look(&mut paces, &counts, begun + MS * second * 1000, 20));
        }
        assert_eq!(seen[..3], [vec![4, 2, 1], vec![4, 2, 3], vec![4, 2]]);
        assert!(
            seen.iter()
                .all(|read| read.starts_with(&[4, 2]) && read.len() <= 3)
        );
        // Every one has its turn again.
        assert!(seen[10..].iter().any(|read| read.contains(&1)));
        assert!(seen[10..].iter().any(|read| read.contains(&3)));
    }

    #[test]
    fn what_a_namespace_had_counts_until_it_is_gone() {
        let (mut paces, now) = (Paces::default(), Instant::now());
        paces.due([(1, 100), (2, 100)].into_iter(), now);
        paces.was_read(1, Most::Much, MS * 50, now);
        assert_eq!(paces.most(), Most::Much);
        assert_eq!(paces.due([(1, 100), (2, 100)].into_iter(), now), [2]);
        assert_eq!(paces.most(), Most::Much);
        paces.due([(2, 100)].into_iter(), now);
        assert_eq!(paces.most(), Most::Little);
    }
}
