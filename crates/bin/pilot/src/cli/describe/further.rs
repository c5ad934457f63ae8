//! The part of `pilot describe` about keys that most functions leave out. A line is there only if the key has another value than
//! its default.

use std::time::Duration;

use pilot_model::FunctionConfig;
use pilot_model::cors::{Allowed, Cors};
use pilot_model::initscript::{During, InitscriptConfig};
use pilot_model::inputs::InputConfig;

use super::super::output;

/// Gives each line its key and its value.
pub(super) fn lines(config: &FunctionConfig, line: &mut impl FnMut(&str, String)) {
    if config.owner() != config.name.as_str() {
        line("owner", config.owner().to_owned());
    }
    if let Some(path) = &config.root_path {
        let shown = if path.is_empty() { "/" } else { path };
        line("root path", shown.to_owned());
    }
    if let Some(wait) = config.scale.max_wait {
        let wait = humantime::format_duration(wait);
        line("max wait", format!("{wait} for a busy worker"));
    }
    if config.scale.reserved > 0 {
        let reserved = output::count(u64::from(config.scale.reserved), "worker");
        line("reserved", format!("places for {reserved}"));
    }
    for (name, one) in &config.inputs {
        line("input", input(name, one));
    }
    if config.inputs_by_request {
        line("input", "others that a request names".to_owned());
    }
    if !config.invokes.is_empty() {
        let own = match config.invokes.own_only {
            true => " (only those of its owner)",
            false => "",
        };
        line("invokes", config.invokes.names.join(", ") + own);
    }
    if !config.drop_ins {
        let off = "off: clients of stores ask the stores";
        line("drop-ins", off.to_owned());
    }
    if !config.by_reference {
        let off = "off: data for other functions is copied";
        line("by reference", off.to_owned());
    }
    for (kind, script) in config.initscripts() {
        let key = match kind.key() {
            "shared_initscript" => "shared init",
            key => key,
        };
        line(key, initscript(script));
    }
    if let Some(cors) = &config.cors {
        line("cors", pages(cors));
    }
}

fn input(name: &str, input: &InputConfig) -> String {
    let mut text = format!("{name} from {}", input.from);
    if let Some(decoder) = input.decode {
        text.push_str(&format!(", decoded as {}", decoder.as_str()));
    }
    if input.stream {
        text.push_str(", read while it arrives");
    }
    if input.optional {
        text.push_str(" (optional)");
    }
    text
}

fn initscript(script: &InitscriptConfig) -> String {
    let mut text = format!(
        "{}, {} MB, waited for {} ms",
        script.module, script.memory_mb, script.timeout_ms
    );
    if script.during == During::Invocation {
        text.push_str(", runs beside the handler");
    }
    if let Some(age) = script.max_age_s {
        let age = humantime::format_duration(Duration::from_secs(age.into()));
        text.push_str(&format!(", again after {age}"));
    }
    let allowed: Vec<String> = script.allow.iter().cloned().map(String::from).collect();
    if !allowed.is_empty() {
        text.push_str(&format!("; may use {}", allowed.join(", ")));
    }
    if !script.input.is_empty() {
        text.push_str(&format!("; input {}", script.input));
    }
    text
}

fn pages(cors: &Cors) -> String {
    let words = |allowed: &Allowed| match allowed {
        Allowed::All => "*".to_owned(),
        Allowed::Only(words) => words.join(", "),
    };
    let mut text = format!(
        "pages of {}; methods {}",
        words(&cors.allow_origins),
        words(&cors.allow_methods)
    );
    for (what, allowed) in [
        ("headers", &cors.allow_headers),
        ("shown headers", &cors.expose_headers),
    ] {
        let allowed = words(allowed);
        if !allowed.is_empty() {
            text.push_str(&format!("; {what} {allowed}"));
        }
    }
    if cors.allow_credentials {
        text.push_str("; with credentials");
    }
    if cors.max_age > 0 {
        text.push_str(&format!("; kept for {} s", cors.max_age));
    }
    text
}
