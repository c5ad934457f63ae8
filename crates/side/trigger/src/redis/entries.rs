//! What this process knows of entries that are not acknowledged yet. The server may not know it: an acknowledgement is lost with
//! its connection, and a server that ended counts deliveries as its last save had them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::client::StreamEntry;

/// Entries by their ids. Those that run and those that are done are as many as batches have: nothing is read before what is done
/// is acknowledged.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Those that run, with the number of this delivery.
    running: BTreeMap<String, u32>,
    /// Those that are processed and not acknowledged.
    done: BTreeSet<String>,
    /// Those that failed: [`FAILED_MAX`] at most.
    failed: HashMap<String, Failure>,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    at: Instant,
    deliveries: u32,
}

/// Why the server has sent entries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// This consumer has asked for what it had.
    Own,
    /// They were idle for long.
    Claimed,
}

impl Entries {
    /// Whether an entry that was sent again is to run now.
    pub(super) fn runs_again(&self, id: &str, again: Again, claim_idle: Duration) -> bool {
        let failed = self.failed.get(id);
        let waits = failed.is_some_and(|failed| failed.at.elapsed() < claim_idle);
        let waits = waits && again == Again::Own;
        !(waits || self.running.contains_key(id) || self.done.contains(id))
    }

    /// How often each entry was delivered, as far as the server or this process knows.
    pub(super) fn deliveries(
        &self,
        entries: &[StreamEntry],
        servers: &[(String, u32)],
    ) -> Vec<(String, u32)> {
        let count = |id: &String| {
            let theirs = servers.iter().find(|(known, _)| known == id);
            let theirs = theirs.map_or(1, |(_, count)| *count);
            let failed = self.failed.get(id);
            let ours = failed.map_or(1, |failed| failed.deliveries.saturating_add(1));
            (id.clone(), theirs.max(ours))
        };
        entries.iter().map(|entry| count(&entry.id)).collect()
    }

    pub(super) fn begin(&mut self, running: impl IntoIterator<Item = (String, u32)>) {
        self.running.extend(running);
    }

    /// A part of a batch has ended.
    pub(super) fn end(&mut self, done: &[String], failed: &[String]) {
        for id in done {
            self.failed.remove(id);
            self.done.insert(id.clone());
        }
        let at = Instant::now();
        for id in failed {
            let deliveries = self.running.get(id).copied().unwrap_or(1);
            self.failed.insert(id.clone(), Failure { at, deliveries });
        }
        if self.failed.len() > FAILED_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the older half of what failed. The server's counts are used for it then.
    fn forget_oldest(&mut self) {
        let mut times: Vec<Instant> = self.failed.values().map(|failed| failed.at).collect();
        let middle = times.len() / 2;
        let (_, middle, _) = times.select_nth_unstable(middle);
        let middle = *middle;
        self.failed.retain(|_, failed| failed.at > middle);
    }

    /// A batch is over, however it ended.
    pub(super) fn free(&mut self, ids: &[String]) {
        for id in ids {
            self.running.remove(id);
        }
    }

    /// Those that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &str> {
        self.running.keys().map(String::as_str)
    }

    /// Those to acknowledge.
    pub(super) fn done(&self) -> Vec<String> {
        self.done.iter().cloned().collect()
    }

    pub(super) fn acknowledged(&mut self, ids: &[String]) {
        for id in ids {
            self.done.remove(id);
        }
    }
}

const FAILED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn ids(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_that_failed_is_not_run_again_before_it_was_idle() {
        let mut entries = Entries::default();
        let of = ids(&["1-0", "2-0", "3-0"]);
        entries.begin(of.iter().map(|id| (id.clone(), 1)));
        let again = |entries: &Entries, how| {
            let runs = ["1-0", "2-0", "3-0", "4-0"].map(|id| entries.runs_again(id, how, IDLE));
            runs.map(u8::from)
        };
        assert_eq!(again(&entries, Again::Own), [0, 0, 0, 1]);
        entries.end(&of[..1], &of[1..2]);
        entries.free(&of);
        // The third one could not run.
        assert_eq!(again(&entries, Again::Own), [0, 0, 1, 1]);
        assert_eq!(again(&entries, Again::Claimed), [0, 1, 1, 1]);
        tokio::time::advance(IDLE).await;
        assert_eq!(again(&entries, Again::Own), [0, 1, 1, 1]);
        entries.acknowledged(&of);
        assert!(entries.done().is_empty());
    }

    #[tokio::test]
    async fn deliveries_are_counted_although_the_server_has_forgotten_them() {
        let mut entries = Entries::default();
        let of = ids(&["1-0"]);
        let sent = [StreamEntry {
            id: "1-0".to_owned(),
            fields: None,
        }];
        for delivery in 1..=3 {
            assert_eq!(entries.deliveries(&sent, &[])[0].1, delivery);
            entries.begin([("1-0".to_owned(), delivery)]);
            entries.end(&[], &of);
            entries.free(&of);
        }
        assert_eq!(entries.deliveries(&sent, &[("1-0".to_owned(), 9)])[0].1, 9);
        entries.end(&of, &[]);
        assert_eq!(entries.deliveries(&sent, &[])[0].1, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_have_a_bound() {
        let mut entries = Entries::default();
        for at in 0..3 * FAILED_MAX {
            if at % 1000 == 0 {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            entries.end(&[], &[at.to_string()]);
            assert!(entries.failed.len() <= FAILED_MAX);
        }
        let newest = (3 * FAILED_MAX - 1).to_string();
        assert!(!entries.runs_again(&newest, Again::Own, IDLE));
    }
}
