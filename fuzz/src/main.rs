//! One program for all fuzz targets: `PILOT_FUZZ_TARGET` names the one to run. The targets are functions of the crates that own the
//! readers (`src/fuzzed.rs`); their ordinary tests call the same ones. `scripts/fuzz` builds and runs it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// All targets. Each has a folder with this name in `fuzz/corpus/`. `parquets` is a target of the ordinary tests alone: libFuzzer stops at
/// every panic, also at those of the Parquet library that are caught.
const TARGETS: &[(&str, Target)] = &[
    ("answers", pilot_gateway::fuzzed::answers),
    ("archives", pilot_deploy::fuzzed::archives),
    ("control-requests", pilot_admin::fuzzed::requests),
    ("errors", pilot_protocols::fuzzed::errors),
    ("event-streams", pilot_gateway::fuzzed::event_streams),
    ("events", pilot_gateway::fuzzed::events),
    ("heads", pilot_gateway::fuzzed::heads),
    ("hosts", pilot_gateway::fuzzed::hosts),
    ("manifests", pilot_deploy::fuzzed::manifests),
    ("packages", pilot_deploy::fuzzed::packages),
    ("preludes", pilot_protocols::fuzzed::preludes),
    ("registries", pilot_deploy::fuzzed::registries),
    ("requirements", pilot_deploy::fuzzed::requirements),
    ("script-calls", pilot_wasm::fuzzed::calls),
    ("traces", pilot_meter::fuzzed::traces),
    ("usage-logs", pilot_meter::fuzzed::usage_logs),
    ("wire-frames", pilot_wire::fuzzed::frames),
    ("wire-messages", pilot_wire::fuzzed::messages),
];

fn target() -> Target {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("PILOT_FUZZ_TARGET").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let Some((_, target)) = found else {
            let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            panic!("PILOT_FUZZ_TARGET must be one of {}", names.join(", "));
        };
        *target
    })
}

fuzz_target!(|data: &[u8]| target()(data));
