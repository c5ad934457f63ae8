//! Spare sandboxes of a function.

/// See the module. The one that was added last is taken first.
#[derive(Debug)]
pub(super) struct Spares<S> {
    ready: Vec<S>,
    /// The lowest count since they were last trimmed.
    fewest: usize,
}

impl<S> Default for Spares<S> {
    fn default() -> Self {
        Self {
            ready: Vec::new(),
            fewest: 0,
        }
    }
}

impl<S> Spares<S> {
    pub(super) fn add(&mut self, spare: S) {
        self.ready.push(spare);
    }

    /// One that is `usable`. Drops those that are not.
    pub(super) fn take(&mut self, usable: impl Fn(&S) -> bool) -> Option<S> {
        let mut spare = self.ready.pop();
        while spare.as_ref().is_some_and(|spare| !usable(spare)) {
            spare = self.ready.pop();
        }
        self.fewest = self.fewest.min(self.ready.len());
        spare
    }

    pub(super) fn count(&self) -> usize {
        self.ready.len()
    }

    /// All of them.
    pub(super) fn give_up(&mut self) -> Vec<S> {
        self.fewest = 0;
        std::mem::take(&mut self.ready)
    }

    /// Those beyond `kept` that were not needed since the last call.
    pub(super) fn trim(&mut self, kept: usize) -> Vec<S> {
        let needless = self.fewest.saturating_sub(kept);
        let gone = self.ready.drain(..needless).collect();
        self.fewest = self.ready.len();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> Spares<usize> {
        let mut spares = Spares::default();
        (0..count).for_each(|number| spares.add(number));
        spares
    }

    #[test]
    fn those_that_were_not_needed_between_two_trims_go() {
        let mut spares = of(5);
        assert!(spares.trim(2).is_empty(), "nobody knows yet");
        let taken = [spares.take(|_| true), spares.take(|_| true)];
        assert_eq!(taken, [Some(4), Some(3)]);
        taken
            .into_iter()
            .flatten()
            .for_each(|spare| spares.add(spare));
        assert_eq!(spares.trim(2), [0]);
        assert_eq!(spares.trim(2), [1, 2]);
        assert_eq!(spares.count(), 2);
    }

    #[test]
    fn after_all_were_given_up_nothing_is_left_to_trim() {
        let mut spares = of(5);
        spares.trim(2);
        assert_eq!(spares.give_up().len(), 5);
        assert!(spares.trim(2).is_empty());
        spares.add(7);
        assert_eq!(spares.take(|_| true), Some(7));
    }

    #[test]
    fn one_that_is_not_usable_is_not_taken() {
        let mut spares = of(3);
        assert_eq!(spares.take(|spare| *spare == 0), Some(0));
        assert_eq!(spares.count(), 0);
        assert_eq!(spares.take(|_| true), None);
    }
}
