//! `pilot describe`: one function on a page: its configuration, its workers, its template or runtimes, its last cold start.

mod further;
#[cfg(test)]
mod keys;
mod runtimes;
mod triggers;

use std::fmt::Write as _;

use clap::Args;
use pilot_model::api::HIDDEN;
use pilot_model::cpu_limit::CpuLimit;
use pilot_model::deployment::FunctionDescription;
use pilot_model::invocation::InvocationSummary;
use pilot_model::status::ForecastStatus;
use pilot_model::{
    AsyncConfig, Behaviour, Enforcement, Farewell, FunctionConfig, FunctionName, Instant,
    KeepAlive, Reuse, StartKind, TemplateMode,
};

use super::client::Client;
use super::output::{self, BAD, DIM, STRONG};
use super::phases;
use super::report;

/// The arguments of `pilot describe`.
#[derive(Debug, Args)]
pub(super) struct DescribeArgs {
    /// Which function
    name: FunctionName,
    /// Also print the values of environment variables. The values of secrets are never printed
    #[arg(long)]
    values: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the description.
pub(super) fn run(client: &Client, args: &DescribeArgs) -> anyhow::Result<()> {
    let below = if args.values { "?values=true" } else { "" };
    let description: serde_json::Value = client.fetch_function(&args.name, below)?;
    if args.json {
        return output::print_json(&description);
    }
    let description: FunctionDescription = output::readable(description)?;
    output::print(&render(
        &description,
        &client.functions_url(),
        output::unix_s(),
    ))
}

fn render(description: &FunctionDescription, endpoint: &str, now_unix_s: u64) -> String {
    let mut text = heading(description, now_unix_s);
    text.push_str(&configuration(description, endpoint));
    text.push_str(&workers(description));
    text.push_str(&runtimes::section(description.runtimes.as_ref()));
    text.push_str(&triggers::section(&description.triggers, now_unix_s));
    text.push('\n');
    text.push_str(&report::found(
        &description.template,
        &description.summary.runtime,
    ));
    match &description.last_cold {
        Some(cold) => invocation(&mut text, "last cold start", cold, now_unix_s),
        None => {
            let _ = writeln!(
                text,
                "\n{STRONG}last cold start{STRONG:#}  none since the daemon started"
            );
        }
    }
    if let Some(last) = &description.last
        && last.start == StartKind::Warm
    {
        invocation(&mut text, "last invocation", last, now_unix_s);
    }
    text
}

fn heading(description: &FunctionDescription, now_unix_s: u64) -> String {
    let summary = &description.summary;
    let mut text = format!(
        "{STRONG}{}{STRONG:#}  version {} {DIM}({}){DIM:#}, deployed {}\n",
        summary.name,
        summary.number,
        summary.version,
        output::ago(summary.deployed_unix_s, now_unix_s),
    );
    if let Some(problem) = &summary.problem {
        let _ = writeln!(text, "  {BAD}cannot be invoked{BAD:#}: {problem}");
    }
    if !description.versions.is_empty() {
        let older: Vec<String> = description.versions.iter().map(u32::to_string).collect();
        let _ = writeln!(text, "  also kept    {}", older.join(", "));
    }
    text
}

fn configuration(description: &FunctionDescription, endpoint: &str) -> String {
    let config = &description.config;
    let mut text = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "  {key:<13}{value}");
    };
    line("url", format!("{endpoint}{}", description.url_path));
    what_runs(config, &mut line);
    line(
        "limits",
        format!(
            "{} MB, {} CPU, {}, network {}",
            config.memory_bytes >> 20,
            f64::from(config.cpu_milli) / 1e3,
            seconds(config.timeout.as_secs_f64()),
            config.network.as_str(),
        ),
    );
    let mut start = match (config.runtime.forks(), config.template) {
        (false, _) => "from a running runtime",
        (true, TemplateMode::On) => "forked from the template",
        (true, TemplateMode::Off) => "a fresh interpreter each (template = \"off\")",
    }
    .to_owned();
    match config.reuse {
        Reuse::Once => start.push_str(", one invocation per worker"),
        Reuse::Always if config.concurrency == 1 => start.push_str(", one invocation at a time"),
        Reuse::Always => {
            let _ = write!(start, ", {} invocations at a time", config.concurrency);
        }
    }
    line("start", start);
    let scale = &config.scale;
    line(
        "scale",
        format!(
            "{} to {}, {} spare, idle workers end after {}",
            scale.min,
            scale.max,
            scale.spare,
            seconds(scale.idle.as_secs_f64()),
        ),
    );
    if config.cpu_limit.enforcement == Enforcement::Precise {
        line(
            "cpu limit",
            "precise: stopped when ahead of its share".to_owned(),
        );
    } else if config.cpu_limit.period_ms != CpuLimit::default().period_ms {
        line(
            "cpu limit",
            format!("per period of {} ms", config.cpu_limit.period_ms),
        );
    }
    if config.cpu_limit.weight != CpuLimit::default().weight {
        line("cpu weight", config.cpu_limit.weight.to_string());
    }
    if !config.keep_alive.is_default() {
        line("keep-alive", keep_alive(&config.keep_alive));
    }
    policy(description, &mut line);
    for layer in &config.layers {
        line(
            "layer",
            format!("{} {DIM}({}){DIM:#}", layer.name, layer.id.short()),
        );
    }
    further::lines(config, &mut line);
    if config.asynchronous != AsyncConfig::default() {
        line("async", of_events(&config.asynchronous));
    }
    for (key, value) in &config.environment {
        match value.as_str() {
            HIDDEN => line("variable", key.clone()),
            value => line("variable", format!("{key}={value}")),
        }
    }
    for (variable, used) in &config.secrets {
        let file = used
            .path()
            .map_or_else(String::new, |path| format!(" in {path}"));
        line("secret", format!("{variable}: {}{file}", used.id()));
    }
    line("environment", description.environment.clone());
    text
}

fn keep_alive(keep_alive: &KeepAlive) -> String {
    let after = seconds(keep_alive.after.as_secs_f64());
    let mut text = match keep_alive.behaviour {
        Behaviour::Run => "workers run on when idle".to_owned(),
        Behaviour::Freeze => format!(
            "frozen when idle for {after}, memory reclaimed after {}",
            seconds(keep_alive.reclaim_after.as_secs_f64())
        ),
        Behaviour::Throttle => format!("0.01 CPU when idle for {after}"),
        Behaviour::Template => "idle workers end, the template stays".to_owned(),
    };
    match keep_alive.farewell() {
        None => {}
        Some(Farewell::Kill) => text.push_str("; killed at the end"),
        Some(Farewell::Sigterm(grace)) => {
            let grace = seconds(grace.as_secs_f64());
            let _ = write!(text, "; SIGTERM at the end, killed after {grace}");
        }
    }
    text
}

/// The policy in force; and if `pilot scale` has replaced the configured one, that one as well.
fn policy(description: &FunctionDescription, line: &mut impl FnMut(&str, String)) {
    let configured = description.config.scale.policy.to_string();
    let in_force = match &description.forecast {
        Some(forecast) => forecast.policy.as_str(),
        None if description.summary.problem.is_some() => &configured,
        // The only policy that forecasts nothing.
        None => "demand",
    };
    if in_force == configured {
        return line("policy", configured);
    }
    line(
        "policy",
        format!("{in_force} (by `pilot scale`, until the next deploy)"),
    );
    line("configured", configured);
}

/// The handler, or the command and its protocol.
fn what_runs(config: &FunctionConfig, line: &mut impl FnMut(&str, String)) {
    let (interface, runtime) = (config.interface.as_str(), &config.runtime);
    if !config.handler.is_empty() {
        line(
            "handler",
            format!("{} ({interface}), {runtime}", config.handler),
        );
    }
    for (key, value) in runtime.details() {
        line(key, value);
    }
    if config.handler.is_empty() {
        line("runtime", runtime.to_string());
    }
    if let Some(ready) = runtime.ready() {
        line("ready", format!("once {ready} answers 2xx"));
    }
}

fn workers(description: &FunctionDescription) -> String {
    let (workers, totals) = (&description.summary.workers, &description.summary.totals);
    format!(
        "\n{STRONG}now{STRONG:#}\n  \
           workers      {} idle{}, {} busy, {} starting; {}\n  \
           waiting      {}\n  \
           calls        {}, {} cold, {}\n",
        workers.idle,
        match workers.frozen {
            0 => String::new(),
            frozen => format!(" ({frozen} frozen)"),
        },
        workers.busy,
        workers.starting,
        output::megabytes(workers.memory_bytes),
        output::count(u64::from(workers.waiting), "request"),
        totals.invocations,
        totals.cold,
        output::count(totals.errors, "error"),
    ) + &figures(description)
        + &sharing(description)
        + &description
            .forecast
            .as_ref()
            .map_or_else(String::new, forecast)
}

/// The newest service time, the newest start time and the memory of a worker: what `pilot simulate` takes.
fn figures(description: &FunctionDescription) -> String {
    let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.since(from?));
    let newest = description.last.as_ref().or(description.last_cold.as_ref());
    let service = newest.and_then(|one| between(one.timeline.started, one.timeline.returned));
    let start = description
        .last_cold
        .as_ref()
        .and_then(|one| between(one.timeline.leased, one.timeline.initialised));
    let workers = &description.summary.workers;
    let alive = u64::from(workers.idle + workers.busy);
    let memory = (alive > 0 && workers.memory_bytes > 0).then(|| workers.memory_bytes / alive);
    let figures: Vec<String> = [
        service.map(|time| format!("service {}", output::duration(time))),
        start.map(|time| format!("start {}", output::duration(time))),
        memory.map(|bytes| format!("{} a worker", output::megabytes(bytes))),
    ]
    .into_iter()
    .flatten()
    .collect();
    if figures.is_empty() {
        return String::new();
    }
    format!("  newest       {}\n", figures.join(", "))
}

/// A warning if sharing a worker makes invocations more expensive.
fn sharing(description: &FunctionDescription) -> String {
    let config = &description.config;
    let Some(penalty) = description.sharing.and_then(|seen| seen.penalty(config)) else {
        return String::new();
    };
    format!(
        "  {BAD}dear{BAD:#}         with {:.1} at once, a call takes {:.1} ms; alone it takes\n               {:.1} ms, {:.1} ms of it \
         CPU. Billed by its time it costs\n               {:.1} times as much as with more workers: set concurrency = {}\n",
        penalty.at_once,
        penalty.shared_ms,
        penalty.alone_ms,
        penalty.cpu_ms,
        penalty.times(),
        penalty.concurrency,
    )
}

/// The forecaster's target, and its reason. The policy has a line of its own.
fn forecast(forecast: &ForecastStatus) -> String {
    let idle = forecast.idle_s.map_or_else(String::new, |idle| {
        format!("; idle workers beyond that end after {idle:.1} s")
    });
    let wanted = output::count(u64::from(forecast.target), "worker");
    let mut text = format!("  forecast     {wanted} wanted{idle}\n");
    for line in runtimes::folded(&forecast.reason) {
        let _ = writeln!(text, "               {line}");
    }
    text
}

/// How and when an invocation ended, and the time of each phase.
fn invocation(text: &mut String, title: &str, invocation: &InvocationSummary, now_unix_s: u64) {
    let _ = writeln!(
        text,
        "\n{STRONG}{title}{STRONG:#}  {}, {} {DIM}({}){DIM:#}",
        invocation.outcome.as_str(),
        output::ago(invocation.received_unix_ms / 1_000, now_unix_s),
        invocation.id,
    );
    if invocation.start == StartKind::ColdShared {
        text.push_str("  waited for a start that another request had caused\n");
    }
    let phases = phases::of_timeline(&invocation.timeline);
    text.push_str(&phases::chart(&phases));
    text.push_str(&phases::fetches(&phases::fetches_of(invocation), &phases));
}

fn seconds(seconds: f64) -> String {
    format!("{seconds} s")
}

/// How asynchronous invocations are repeated, and where their records go.
fn of_events(config: &AsyncConfig) -> String {
    let mut text = format!(
        "{} {}, at most {} old",
        config.retries,
        if config.retries == 1 {
            "retry"
        } else {
            "retries"
        },
        humantime::format_duration(config.max_age)
    );
    for (what, destination) in [
        ("success", &config.on_success),
        ("failure", &config.on_failure),
    ] {
        if let Some(destination) = destination {
            text.push_str(&format!(", {what} to {destination}"));
        }
    }
    if config.dead_letter {
        text.push_str(", dead letters are kept");
    }
    text
}

#[cfg(test)]
mod tests {
    use pilot_model::deployment::FunctionDescription;
    use pilot_model::{FunctionSpec, Instant, Outcome, Timeline, WorkerOrigin};

    use super::super::{list, report};
    use super::*;

    pub(super) fn a_description() -> FunctionDescription {
        let name: FunctionName = "invert".parse().unwrap();
        let spec = FunctionSpec {
            runtime: Some("python3.11".to_owned()),
            environment: [("LEVEL".to_owned(), "info".to_owned())].into(),
            ..FunctionSpec::default()
        };
        let at = |us: u64| Some(Instant(us * 1_000));
        FunctionDescription {
            summary: list::tests::a_summary(),
            config: spec.check(&name).unwrap(),
            environment: "fedcba9876543210".to_owned(),
            template: report::tests::a_template(),
            url_path: "/fn/invert/".to_owned(),
            last_cold: Some(InvocationSummary {
                id: "8a5a7b44-9f3c-4f0e-9a52-0b1f3f6f2c11".to_owned(),
                start: StartKind::Cold,
                outcome: Outcome::Ok,
                timeline: Timeline {
                    admitted: at(50),
                    leased: at(60),
                    forked: at(680),
                    sandboxed: at(1_390),
                    initialised: at(1_510),
                    started: at(1_560),
                    returned: at(2_250),
                    finished: at(2_310),
                    ..Timeline::new(Instant(0))
                },
                transfers: Vec::new(),
                received_unix_ms: 1_290_000,
            }),
            last: None,
            versions: vec![2, 1],
            forecast: Some(ForecastStatus {
                policy: "auto".to_owned(),
                target: 3,
                idle_s: Some(0.8),
                reason: "3 workers are kept: 1 for requests that run or wait, 2 that will probably be needed again soon enough"
                    .to_owned(),
            }),
            runtimes: None,
            triggers: Vec::new(),
            sharing: None,
        }
    }

    #[test]
    fn a_function_is_described_on_a_page() {
        let text = render(&a_description(), "http://127.0.0.1:8080", 1_300);
        let text = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(text, include_str!("describe/snapshot.txt"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_function_with_a_server_of_its_own_shows_its_command() {
        let mut description = a_description();
        let name: FunctionName = "web".parse().unwrap();
        let spec = FunctionSpec {
            runtime: Some("http".to_owned()),
            command: Some(vec!["gunicorn".to_owned(), "app:app".to_owned()]),
            ready: Some("/healthz".to_owned()),
            ..FunctionSpec::default()
        };
        description.config = spec.check(&name).unwrap();
        description.summary.runtime = "http".to_owned();
        if let Some(cold) = &mut description.last_cold {
            cold.timeline.origin = WorkerOrigin::Runtime;
        }
        let text = render(&description, "http://h", 1_300);
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(
            text.contains(
                "  command      gunicorn app:app\n  runtime      http\n  ready        once /healthz answers 2xx\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("  start        from a running runtime, one invocation at a time\n"),
            "{text}"
        );
        assert!(
            text.contains("  runtime      http, 48.2 MB, up in 312 ms\n"),
            "{text}"
        );
        for word in ["template", "Python", "python"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn a_function_that_never_started_cold_says_so() {
        let mut description = a_description();
        description.last_cold = None;
        let text = render(&description, "http://h", 1_300);
        assert!(text.contains("none since the daemon started"), "{text}");
    }
}
