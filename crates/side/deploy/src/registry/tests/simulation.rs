//! The registry against a model, through random changes, kills and power failures. The disk is simulated by copies of the files: after a
//! kill they are as they are; after a power failure, what was written since the last acknowledged change may be there in part.
//! `PILOT_SIMULATED_STEPS` and `PILOT_SIMULATED_SEED` choose another run.

use std::collections::BTreeMap;

use pilot_testkit::{Random, simulated_seed, simulated_steps};

use super::*;

/// Of each function: the live version, all that are kept, and the highest number that was used.
type Model = BTreeMap<String, (u32, Vec<u32>, u32)>;

/// A version whose files nobody looks at.
fn bare(name: &str, number: u32) -> StoredVersion {
    StoredVersion {
        version: Version::clone(&pilot_testkit::version(name, number)),
        template: no_report(),
        deployed_unix_s: u64::from(number),
        problem: None,
    }
}

fn shown(registry: &Registry) -> Model {
    let functions = registry.functions().unwrap().into_iter().map(|function| {
        let mut kept = numbers(&function);
        kept.sort_unstable();
        let live = &function.live.version;
        let newest = registry.next_number(&live.config.name).unwrap() - 1;
        (live.config.name.to_string(), (live.number, kept, newest))
    });
    functions.collect()
}

/// One random change, of the registry and of the model.
fn change(random: &mut Random, registry: &Registry, model: &mut Model) {
    let text = format!("f{}", random.below(4));
    let name: FunctionName = text.parse().unwrap();
    let known = model.get(&text).map_or_else(Vec::new, |of| of.1.clone());
    let kept: Vec<u32> = known
        .iter()
        .copied()
        .filter(|_| random.below(3) > 0)
        .collect();
    match random.below(10) {
        0..5 => {
            let number = registry.next_number(&name).unwrap();
            assert_eq!(number, model.get(&text).map_or(1, |of| of.2 + 1));
            registry.commit(&bare(&text, number), &kept).unwrap();
            let all = kept.into_iter().chain([number]).collect();
            model.insert(text, (number, all, number));
        }
        5..7 => {
            let number = u32::try_from(random.below(8)).unwrap();
            let is_there = known.contains(&number);
            assert_eq!(registry.make_live(&name, number).unwrap(), is_there);
            if is_there {
                model.get_mut(&text).unwrap().0 = number;
            }
        }
        7..9 => {
            registry.keep_versions(&name, &kept).unwrap();
            if let Some((live, numbers, _)) = model.get_mut(&text) {
                numbers.retain(|number| number == live || kept.contains(number));
            }
        }
        _ => {
            let was_there = model.remove(&text).is_some();
            assert_eq!(registry.remove(&name).unwrap(), was_there);
        }
    }
}

/// The bytes of the database and of its log.
fn files(folder: &Path) -> [Vec<u8>; 2] {
    ["registry.sqlite", "registry.sqlite-wal"]
        .map(|name| fs::read(folder.join(name)).unwrap_or_default())
}

/// What a daemon finds that starts on such files.
fn restarted(database: &[u8], log: &[u8]) -> Model {
    let folder = memory_folder();
    fs::write(folder.path().join("registry.sqlite"), database).unwrap();
    fs::write(folder.path().join("registry.sqlite-wal"), log).unwrap();
    shown(&Registry::open(folder.path()).unwrap())
}

/// Synchronised writes are slow on a disk, and are no part of this test.
fn memory_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

#[test]
fn a_kill_keeps_every_change_and_a_power_failure_keeps_the_last_one_or_none_of_it() {
    let seed = simulated_seed();
    let mut random = Random::new(seed);
    let mut folder = memory_folder();
    let mut registry = Registry::open(folder.path()).unwrap();
    let mut model = Model::new();
    for step in 0..simulated_steps(400) {
        let what = format!("seed {seed}, step {step}");
        let (before, old) = (files(folder.path()), model.clone());
        change(&mut random, &registry, &mut model);
        assert_eq!(shown(&registry), model, "{what}");
        let after = files(folder.path());
        match random.below(8) {
            // A kill: the next daemon finds the files as they are, and this one writes no more.
            0 => {
                let next = memory_folder();
                fs::write(next.path().join("registry.sqlite"), &after[0]).unwrap();
                fs::write(next.path().join("registry.sqlite-wal"), &after[1]).unwrap();
                (registry, folder) = (Registry::open(next.path()).unwrap(), next);
                assert_eq!(shown(&registry), model, "{what}: after a kill");
            }
            // The power fails while the log is written. The database is written only after that.
            1 if before[0] == after[0] => {
                let [old_log, new_log] = [&before[1], &after[1]];
                let end = random.below(new_log.len() + 1);
                let rest = old_log.get(end..).unwrap_or_default();
                let torn = [&new_log[..end], rest].concat();
                let found = restarted(&after[0], &torn);
                assert!(found == old || found == model, "{what}: cut at {end}");
            }
            // An orderly stop: the log goes into the database.
            2 => {
                drop(registry);
                registry = Registry::open(folder.path()).unwrap();
                assert_eq!(shown(&registry), model, "{what}: after a stop");
            }
            _ => {}
        }
    }
}
