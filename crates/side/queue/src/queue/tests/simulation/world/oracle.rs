//! What each invocation may be after a transaction, and why.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use pilot_model::ports::{Accepted, AsyncRequest, AttemptEnd, NotAccepted};

use crate::command::How;
use crate::rules::Progress;

use super::outside::config_of;
use super::planned::{Ends, Planned};
use super::{DAY_MS, DEAD_MAX, Known, RECORDS_MAX, Row, Rows, World};

impl World {
    pub(super) fn accepted(&mut self, asked: &AsyncRequest, result: Result<Accepted, NotAccepted>) {
        let id = asked.id.to_string();
        let key = asked
            .key
            .clone()
            .map(|key| (asked.function.to_string(), key));
        let holder = key.as_ref().and_then(|key| self.keys.get(key)).cloned();
        match result {
            Ok(accepted) if accepted.repeated => {
                // One that was freed may have held it, too: before that, or as a dead letter that waits again.
                let is_holder = self.freed.contains(accepted.id.as_str())
                    || holder.is_some_and(|(holder, _)| holder == accepted.id.as_str());
                self.holds(is_holder, || format!("{id} repeats {}", accepted.id));
            }
            Ok(_) => {
                let is_there =
                    self.rows.values().any(|row| row.id == id) || self.over.contains(&id);
                self.holds(is_there, || {
                    format!("{id} was acknowledged, and is not there")
                });
            }
            Err(error) => {
                let is_there = self.rows.values().any(|row| row.id == id);
                self.holds(!is_there, || {
                    format!("{id} was refused, and is there: {error}")
                });
                let has_reason = self.is_full.load(Ordering::Relaxed)
                    || !matches!(&error, NotAccepted::Disk { problem } if problem.contains("free some space"));
                self.holds(has_reason, || {
                    format!("{id} was refused without a reason: {error}")
                });
            }
        }
    }

    /// Everything that changed in the store has a command as its reason, and what a command does is there.
    pub(super) fn is_explained(&mut self, plan: &[Planned], rows: &Rows) {
        if self.rows == *rows {
            // It was refused, all of it.
            return;
        }
        let before = std::mem::replace(&mut self.rows, rows.clone());
        let waits = |id: &str| rows.values().any(|row| row.id == id && !row.is_dead);
        let freed = self
            .known
            .keys()
            .filter(|id| plan.iter().any(|planned| planned.frees(id)) && !waits(id));
        self.freed.extend(freed.cloned());
        for (seq, row) in rows {
            if before.contains_key(seq) {
                continue;
            }
            let is_asked = plan
                .iter()
                .any(|planned| planned.added().as_ref() == Some(&row.id));
            self.holds(is_asked, || format!("nobody asked for {row:?}"));
            if let Some(key) = &row.key {
                let key = (row.function.clone(), key.clone());
                let is_free = self.keys.get(&key).is_none_or(|(holder, at)| {
                    at + DAY_MS < self.latest_ms || self.freed.contains(holder)
                });
                self.holds(is_free, || {
                    format!("a second invocation with its key: {row:?}")
                });
                self.keys.insert(key, (row.id.clone(), row.accepted_ms));
            }
            self.know(row);
        }
        let dead = rows.values().filter(|row| row.is_dead).count();
        self.holds(dead <= DEAD_MAX, || format!("{dead} dead letters"));
        let waiting = rows.len() - dead;
        self.holds(waiting <= RECORDS_MAX, || format!("{waiting} wait"));
        for planned in plan {
            self.settled(planned, plan, &before);
        }
        // The most at any moment: it may have begun with these, and others may be dead letters no more.
        let buried: usize = plan.iter().map(Planned::burials).sum();
        let were_dead = before.values().filter(|row| row.is_dead).count() + buried;
        // What was there, or came and went in this transaction.
        let came = plan.iter().filter_map(Planned::added);
        let was_there = before.values().map(|row| row.id.clone()).chain(came);
        let is_here: BTreeSet<&String> = rows.values().map(|row| &row.id).collect();
        let gone: Vec<String> = was_there.filter(|id| !is_here.contains(id)).collect();
        for id in gone {
            let row = before.values().find(|row| row.id == id);
            let was_accepted = row.is_some() || plan.iter().any(|planned| planned.ends(&id));
            if !was_accepted && !plan.iter().any(|planned| planned.is_derived(&id)) {
                // It was refused.
                continue;
            }
            let dies = |planned: &Planned| planned.buries(&id);
            let is_dead = row.is_some_and(|row| row.is_dead) || plan.iter().any(dies);
            let is_purged = is_dead && plan.iter().any(Planned::purges);
            let is_trimmed = is_dead && were_dead > DEAD_MAX;
            let is_ended = plan.iter().any(|planned| planned.ends(&id));
            self.holds(is_purged || is_trimmed || is_ended, || {
                format!("{id} is lost")
            });
            self.over.insert(id);
        }
    }

    fn know(&mut self, row: &Row) {
        let known = Known {
            function: row.function.clone(),
            keyed: row.key.is_some(),
            ..Known::default()
        };
        self.known.entry(row.id.clone()).or_insert(known);
    }

    /// An attempt whose end is stored ended so, and what follows is what is promised.
    fn settled(&mut self, planned: &Planned, plan: &[Planned], before: &Rows) {
        if let Planned::Letters {
            how: How::Redrive, ..
        } = planned
        {
            let revived: Vec<String> = self
                .rows
                .iter()
                .filter_map(|(seq, row)| {
                    // Before the transaction, or within it.
                    let was_dead = before.get(seq).is_some_and(|row| row.is_dead)
                        || plan.iter().any(|planned| planned.buries(&row.id));
                    (was_dead && !row.is_dead).then(|| row.id.clone())
                })
                .collect();
            for id in revived {
                let known = self.known.get_mut(&id).unwrap();
                (known.cut, known.runs) = (false, false);
            }
        }
        let Planned::Settle { id, ends, .. } = planned else {
            return;
        };
        let known = self.known.get_mut(id).unwrap();
        known.runs = false;
        let (last, function) = (known.last.take(), known.function.clone());
        let Some(ends) = ends else { return };
        let config = config_of(&function);
        let row = before.values().find(|row| row.id == *id);
        let delivers = row.is_some_and(|row| row.delivers);
        let Ends { dies, then, .. } = ends;
        if !matches!(last, Some(AttemptEnd::Done { .. })) {
            let is_kept = *dies || (then.is_some() && !config.dead_letter && !delivers);
            self.holds(is_kept, || {
                format!("{id} failed ({last:?}), and nobody hears of it")
            });
        } else if config.on_success.is_some() && !delivers {
            self.holds(then.is_some(), || {
                format!("{id} succeeded, and its destination hears nothing")
            });
        }
    }

    /// What is due is what the store has.
    pub(super) fn schedule_fits(&self) {
        let schedule = self.shared.schedule.lock();
        let waiting = self.rows.iter().filter(|(_, row)| !row.is_dead);
        let mut count = 0;
        for (seq, row) in waiting {
            count += 1;
            let Some(entry) = schedule.entry(*seq) else {
                self.fail(&format!("{row:?} is never run"));
            };
            let progress = Progress {
                accepted_ms: row.accepted_ms,
                attempts: row.attempts,
                waits: row.waits,
            };
            let fits = entry.progress == progress;
            self.holds(fits && entry.keyed == row.key.is_some(), || {
                format!("{entry:?} is {row:?}")
            });
            // One that did not begin waits a moment longer than is stored.
            self.holds(entry.running || entry.due_ms >= row.due_ms, || {
                format!("{entry:?} is {row:?}")
            });
        }
        self.holds(schedule.len() == count, || {
            format!("{} wait or run, and {count} are stored", schedule.len())
        });
        self.holds(schedule.running() <= self.attempts.len(), || {
            format!(
                "{} run, with {} attempts",
                schedule.running(),
                self.attempts.len()
            )
        });
    }
}
