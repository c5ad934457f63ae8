//! The canonical form of a configuration: what was configured, and nothing that has its default. A version's id is a hash over it,
//! so the form must not change for configurations that exist:
//!
//! - A new key is added with the default that existing configurations have. It renames no version.
//! - The keys and defaults here are constants of their own. Renaming a key elsewhere, or changing what a missing key means in
//!   `pilot.toml`, must not change them.
//!
//! The golden table (`golden.json`) fails when the form of an existing configuration changes.

use std::collections::BTreeMap;
use std::time::Duration;

use pilot_model::{
    AsyncConfig, CpuLimit, FunctionConfig, Interface, Invokes, KeepAlive, Network, Reuse, Runtime,
    ScaleConfig, TemplateMode,
};
use serde::Serialize;
use serde_json::Value;

/// The canonical form: JSON with sorted keys. Two configurations are equal exactly when their forms are.
pub(super) fn canonical(config: &FunctionConfig) -> String {
    let FunctionConfig {
        name,
        runtime,
        handler,
        interface,
        memory_bytes,
        timeout,
        cpu_milli,
        network,
        environment,
        template,
        reuse,
        concurrency,
        scale,
        owner: _,
        layers,
        secrets,
        cors,
        inputs,
        inputs_by_request,
        drop_ins,
        by_reference,
        invokes,
        initscript,
        shared_initscript,
        keep_alive,
        cpu_limit,
        asynchronous,
        triggers,
        root_path,
    } = config;
    let ScaleConfig {
        min,
        max,
        spare,
        idle,
        policy,
        max_wait,
        reserved,
    } = scale;
    let mut form = Form::default();
    form.add("name", name.as_str(), "");
    form.add_runtime(runtime, handler, *interface);
    form.add("memory_bytes", *memory_bytes, 256 << 20);
    form.add("timeout_ns", nanoseconds(*timeout), 30_000_000_000);
    form.add("cpu_milli", *cpu_milli, 1000);
    form.add("network", network, &Network::None);
    form.add("environment", environment, &BTreeMap::new());
    form.add("template", template, &TemplateMode::On);
    form.add("reuse", reuse, &Reuse::Always);
    form.add("concurrency", *concurrency, runtime.concurrency());
    form.add("scale.min", *min, 0);
    form.add("scale.max", *max, 64);
    form.add("scale.spare", *spare, 0);
    form.add("scale.idle_ns", nanoseconds(*idle), 60_000_000_000);
    // The policy's own form leaves out constants that have their defaults.
    form.add("scale.policy", policy.to_string().as_str(), "demand");
    form.add("scale.max_wait_ns", max_wait.map(nanoseconds), None);
    form.add("scale.reserved", *reserved, 0);
    form.add("layers", layers.as_slice(), &[]);
    // Which secrets, never their values.
    form.add("secrets", secrets, &BTreeMap::new());
    form.add("cors", cors, &None);
    form.add("inputs", inputs, &BTreeMap::new());
    form.add("inputs_by_request", *inputs_by_request, false);
    form.add("drop_ins", *drop_ins, true);
    form.add("by_reference", *by_reference, true);
    form.add("invokes", invokes, &Invokes::default());
    form.add("initscript", initscript, &None);
    form.add("shared_initscript", shared_initscript, &None);
    form.add("cpu_limit", cpu_limit, &CpuLimit::default());
    form.add("keep_alive", keep_alive, &KeepAlive::default());
    add_async(&mut form, asynchronous);
    form.add("root_path", root_path, &None);
    form.add("triggers", triggers.as_slice(), &[]);
    form.add("owner", config.owner(), name.as_str());
    Value::from_iter(form.0).to_string()
}

fn add_async(form: &mut Form, config: &AsyncConfig) {
    let AsyncConfig {
        retries,
        max_age,
        retry_wait,
        on_success,
        on_failure,
        dead_letter,
        own_only,
    } = config;
    form.add("async.retries", *retries, 2);
    form.add(
        "async.max_age_ns",
        nanoseconds(*max_age),
        21_600_000_000_000,
    );
    form.add(
        "async.retry_wait_ns",
        nanoseconds(*retry_wait),
        60_000_000_000,
    );
    form.add("async.on_success", on_success, &None);
    form.add("async.on_failure", on_failure, &None);
    form.add("async.dead_letter", *dead_letter, on_failure.is_none());
    form.add("async.own_only", *own_only, false);
}

/// Keys and values that are not the default.
#[derive(Default)]
struct Form(BTreeMap<&'static str, Value>);

impl Form {
    fn add<T: Serialize + PartialEq>(&mut self, key: &'static str, value: T, default: T) {
        if value != default {
            let value = serde_json::to_value(value).expect("texts, numbers and lists of them");
            self.0.insert(key, value);
        }
    }

    /// The runtime, its keys and the handler.
    fn add_runtime(&mut self, runtime: &Runtime, handler: &str, interface: Interface) {
        for (key, value) in runtime.chosen() {
            self.add(key, Some(value), None);
        }
        self.add("interface", interface, runtime.interface());
        self.add("runtime", runtime.name(), "python");
        self.add("handler", handler, runtime.default_handler(interface));
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
