//! Resolves the options: policies, start costs, settings, profiles.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use pilot_forecast::simulate::{Costs, CpuCosts, Simulation, Times};
use pilot_model::policy::Policy;
use pilot_model::{Reuse, ScaleConfig};
use pilot_workload::{Overrides, Profile};

use super::args::{CpuOptions, SimulateArgs};
use crate::cli::failure::Failure;

/// The policies; the default ones if none is given.
pub(super) fn policies(words: &[String]) -> anyhow::Result<Vec<Policy>> {
    if words.is_empty() {
        let all = Policy::all().into_iter();
        return Ok(all
            .filter(|policy| !matches!(policy, Policy::Arima(_)))
            .collect());
    }
    let policy = |word: &String| {
        word.parse()
            .map_err(|error: pilot_model::policy::PolicyError| {
                Failure::usage(format!("--policy {word}: {}", error.problem)).into()
            })
    };
    words.iter().map(policy).collect()
}

/// The start costs, each with its name.
pub(super) fn starts(args: &SimulateArgs) -> anyhow::Result<Vec<(String, Times)>> {
    let mut starts = Vec::new();
    for ms in &args.start_ms {
        starts.push((format!("{ms} ms"), constant("--start-ms", *ms)?));
    }
    for file in &args.start_file {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        starts.push((name.into_owned(), measured(file)?));
    }
    if starts.is_empty() {
        starts.push(("2 ms".to_owned(), constant("--start-ms", 2.0)?));
    }
    Ok(starts)
}

/// The settings without policy and start cost.
pub(super) fn simulation(args: &SimulateArgs) -> anyhow::Result<Simulation> {
    let scale = &args.scale;
    let service = match (&args.service_file, args.service_ms) {
        (Some(file), _) => measured(file)?,
        (None, Some(ms)) => constant("--service-ms", ms)?,
        (None, None) => Costs::default().service,
    };
    if scale.max == 0 || scale.concurrency == 0 || scale.min.max(scale.spare) > scale.max {
        let problem =
            "--max and --concurrency must be 1 or more, --min and --spare no more than --max";
        return Err(Failure::usage(problem).into());
    }
    Ok(Simulation {
        scale: ScaleConfig {
            min: scale.min,
            max: scale.max,
            spare: scale.spare,
            idle: seconds("--idle-s", scale.idle_s)?,
            policy: Policy::default(),
            max_wait: None,
            reserved: 0,
        },
        concurrency: scale.concurrency,
        reuse: if scale.once {
            Reuse::Once
        } else {
            Reuse::Always
        },
        queue_max: scale.queue,
        start_rule: scale.start_rule,
        costs: Costs {
            service,
            worker_bytes: bytes("--worker-mb", args.worker_mb)?,
            insist: args.insist,
            template_bytes: bytes("--template-mb", args.template_mb)?,
            cpus: cpus(&args.cpu)?,
            ..Costs::default()
        },
        lead: seconds("--lead-s", args.lead_s)?,
        seed: args.seed,
    })
}

fn cpus(args: &CpuOptions) -> anyhow::Result<Option<CpuCosts>> {
    let Some(cores) = args.cores else {
        return Ok(None);
    };
    if !(0.01..=1e6).contains(&cores) {
        let problem = format!("--cores: is {cores}, must be from 0.01 to 1000000");
        return Err(Failure::usage(problem).into());
    }
    Ok(Some(CpuCosts {
        cores,
        start: seconds("--start-cpu", args.start_cpu / 1e3)?,
        service: seconds("--service-cpu", args.service_cpu / 1e3)?,
    }))
}

/// The profiles, each with its name: that of the file with the replaced values.
pub(super) fn profiles(args: &SimulateArgs) -> anyhow::Result<Vec<(String, Profile)>> {
    let read = |word: &String| {
        let (path, own) = split(word);
        let overrides = Overrides {
            data: args.data.clone(),
            set: args
                .set
                .iter()
                .map(String::as_str)
                .chain(own.clone())
                .map(str::to_owned)
                .collect(),
        };
        let profile = Profile::read_with(Path::new(path), &overrides)?;
        let name = own.fold(profile.name().to_owned(), |name, set| name + "@" + set);
        Ok((name, profile))
    };
    args.profiles.iter().map(read).collect()
}

/// Splits `a.toml@seed=2@repeat=1` into the path and the replacements. A path may contain an @ without a = after it.
fn split(word: &str) -> (&str, impl Iterator<Item = &str> + Clone) {
    let at = word.match_indices('@').map(|(at, _)| at);
    let cut = at.filter(|at| {
        word[*at..]
            .split('@')
            .skip(1)
            .all(|part| part.contains('='))
    });
    let cut = cut.min().unwrap_or(word.len());
    (&word[..cut], word[cut..].split('@').skip(1))
}

fn measured(file: &Path) -> anyhow::Result<Times> {
    let shown = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("{shown}: cannot be read"))?;
    Times::from_json(&text).with_context(|| shown.to_string())
}

fn constant(option: &str, ms: f64) -> anyhow::Result<Times> {
    Times::constant_ms(ms).map_err(|error| Failure::usage(format!("{option}: {error}")).into())
}

fn seconds(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    let day = Some(seconds).filter(|seconds| (0.0..=86_400.0).contains(seconds));
    day.map(Duration::from_secs_f64).ok_or_else(|| {
        Failure::usage(format!("{option}: is {seconds}, must be from 0 to 86400")).into()
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be no less than nothing and no more than 2^20 MB"
)]
fn bytes(option: &str, mb: f64) -> anyhow::Result<u64> {
    if (0.0..=1_048_576.0).contains(&mb) {
        Ok((mb * 1_048_576.0) as u64)
    } else {
        Err(Failure::usage(format!("{option}: is {mb}, must be from 0 to 1048576")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_in_one_profile_stands_behind_its_path() {
        for (word, path, own) in [
            ("a/b.toml", "a/b.toml", &[][..]),
            ("b.toml@seed=2", "b.toml", &["seed=2"]),
            ("b.toml@x.y=1@seed=2", "b.toml", &["x.y=1", "seed=2"]),
            ("me@home/b.toml", "me@home/b.toml", &[]),
            ("me@home/b.toml@seed=2", "me@home/b.toml", &["seed=2"]),
        ] {
            let (found, replaced) = split(word);
            assert_eq!(
                (found, replaced.collect::<Vec<_>>()),
                (path, own.to_vec()),
                "{word}"
            );
        }
    }
}
