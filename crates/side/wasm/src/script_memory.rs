//! The memory for the scripts that run now. A script takes what it may use, not what it uses.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::FunctionName;

/// Who has how much.
#[derive(Debug)]
pub(crate) struct ScriptMemory {
    memory_mb: u32,
    /// Guards the sums; held for one addition or subtraction.
    taken: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    all: u32,
    functions: HashMap<FunctionName, u32>,
}

impl ScriptMemory {
    pub(crate) fn new(memory_mb: u32) -> Self {
        Self {
            memory_mb,
            taken: Mutex::default(),
        }
    }

    /// Memory for one script. Nobody waits: one function has at most half of it, so that it does not keep others from running theirs.
    ///
    /// # Errors
    /// What is used up.
    pub(crate) fn take(
        self: &Arc<Self>,
        function: &FunctionName,
        mb: u32,
    ) -> Result<Taken, String> {
        let mut taken = self.taken.lock();
        let of_function = taken.functions.get(function).copied().unwrap_or(0);
        let share = self.memory_mb / 2;
        if of_function + mb > share {
            return Err(format!(
                "the scripts of this function that run now have {of_function} MiB, of {share} that one function can have \
                 (initscripts.memory_mb in pilotd.toml)"
            ));
        }
        if taken.all + mb > self.memory_mb {
            return Err(format!(
                "all scripts that run now have {} MiB, of {} (initscripts.memory_mb in pilotd.toml)",
                taken.all, self.memory_mb
            ));
        }
        taken.all += mb;
        taken.functions.insert(function.clone(), of_function + mb);
        Ok(Taken {
            memory: Arc::clone(self),
            function: function.clone(),
            mb,
        })
    }
}

/// The memory of one script. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Taken {
    memory: Arc<ScriptMemory>,
    function: FunctionName,
    mb: u32,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut taken = self.memory.taken.lock();
        taken.all -= self.mb;
        let left = taken.functions.get_mut(&self.function).map(|of_function| {
            *of_function -= self.mb;
            *of_function
        });
        if left == Some(0) {
            taken.functions.remove(&self.function);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_function_has_half_and_gives_it_back() {
        let memory = Arc::new(ScriptMemory::new(8));
        let (one, other): (FunctionName, FunctionName) =
            ("one".parse().unwrap(), "other".parse().unwrap());
        let first = memory.take(&one, 3).unwrap();
        assert!(memory.take(&one, 2).unwrap_err().contains("3 MiB, of 4"));
        let second = memory.take(&one, 1).unwrap();
        let third = memory.take(&other, 4).unwrap();
        let more: FunctionName = "more".parse().unwrap();
        assert!(memory.take(&more, 1).unwrap_err().contains("all scripts"));
        drop((first, second, third));
        assert!(memory.take(&more, 4).is_ok());
        assert!(memory.taken.lock().functions.is_empty());
    }
}
