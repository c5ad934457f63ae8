//! `pilot deploy` and `pilot up`: pack, upload, follow the deployment, print the result.

mod interrupted;

use std::io::{BufRead, Read};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use pilot_model::FunctionName;
use pilot_model::api::{ApiError, DeployEvent};
use pilot_model::deployment::{DeployReport, FunctionSummary};
use pilot_model::size::Size;
use serde_json::json;

pub(super) use self::interrupted::Course;
use self::interrupted::Step;
use super::client::Client;
use super::failure::Failure;
use super::initscript;
use super::layers::{self, LayerSource, ReadLayer};
use super::multipart::Multipart;
use super::output;
use super::pack::{self, Archive, Kind};
use super::progress::{Progress, Show};
use super::project::{Project, Target};
use super::report;

/// The arguments of `pilot deploy`.
#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// A folder with a pilot.toml, an app.py or an index.mjs
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// The function's name [default: as in the pilot.toml, or the folder's name]
    #[arg(long)]
    name: Option<FunctionName>,
    /// Which function of the pilot.toml, if it has several
    #[arg(long, value_name = "NAME")]
    function: Option<FunctionName>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of `pilot up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// A pilot.toml, or a folder with one
    #[arg(default_value = "pilot.toml")]
    file: PathBuf,
    /// Print the reports as JSON
    #[arg(long)]
    json: bool,
}

/// Deploys one function.
pub(super) fn run(client: &Client, args: &DeployArgs) -> anyhow::Result<()> {
    let project = Project::read(&args.dir, args.name.as_ref())?;
    let mut target = project.one(args.function.as_ref())?;
    if let Some(name) = &args.name {
        target.name = name.clone();
    }
    if let Some(remark) = project.remark() {
        output::note(&remark);
    }
    let course = Course::watched([&target.name].into_iter())?;
    let result = deploy(client, &target, show(args.json), &course);
    let mut printed = match args.json {
        true => output::print_json(&outcome_json(&target, &result)?),
        false => Ok(()),
    };
    match result {
        Ok(report) => {
            if !args.json {
                printed = output::print(&report::deployed(&report, &client.functions_url()));
            }
            printed
        }
        // Whether or not anybody reads the output.
        Err(error) => Err(tell_failure(client, &target.name, error)),
    }
}

/// Deploys all functions of a manifest, one after another. Neither a failure nor a closed output stops the others.
pub(super) fn up(client: &Client, args: &UpArgs) -> anyhow::Result<()> {
    let project = Project::read(&args.file, None)?;
    let mut outcomes = Vec::new();
    let (mut failed, mut refused) = (0, 0);
    let mut printed = Ok(());
    let course = Course::watched(project.targets.iter().map(|target| &target.name))?;
    for target in &project.targets {
        let result = deploy(client, target, show(args.json), &course);
        if args.json {
            outcomes.push(outcome_json(target, &result)?);
        }
        match result {
            Ok(report) if !args.json => {
                let text = report::deployed(&report, &client.functions_url()) + "\n";
                printed = printed.and(output::print(&text));
            }
            Ok(_) => {}
            Err(error) => {
                failed += 1;
                let error = tell_failure(client, &target.name, error);
                match error.downcast_ref() {
                    Some(Failure::InputReported) => {}
                    Some(Failure::Reported) => refused += 1,
                    _ => return Err(error),
                }
            }
        }
    }
    if args.json {
        printed = output::print_json(&outcomes);
    }
    if failed == 0 {
        return printed;
    }
    output::error(&format!(
        "{failed} of {} not deployed",
        output::count(project.targets.len() as u64, "function")
    ));
    match refused {
        0 => Err(Failure::InputReported.into()),
        _ => Err(Failure::Reported.into()),
    }
}

/// Packs and uploads a function and follows its deployment to the end. `course` learns how far it is.
///
/// # Errors
/// [`Failure::Refused`] if the daemon refuses, [`Failure::Usage`] if the folder cannot be packed; otherwise the error of the
/// connection.
pub(super) fn deploy(
    client: &Client,
    target: &Target,
    show: Show,
    course: &Course,
) -> anyhow::Result<DeployReport> {
    let deployed = send(client, target, show, course);
    course.at(&target.name, Step::Over);
    deployed
}

fn send(
    client: &Client,
    target: &Target,
    show: Show,
    course: &Course,
) -> anyhow::Result<DeployReport> {
    let progress = Progress::new(target.name.as_str(), show);
    initscript::build(target, |message| progress.tell(message))?;
    progress.tell("packing");
    let (archive, layers) = packed(target).map_err(|error| Failure::input(&error))?;
    let files = archive.content.files();
    let mut spec = target.spec.clone();
    initscript::without_sources(&mut spec);
    for layer in &layers {
        layer.upload(client, |message| progress.tell(message))?;
        spec.layers.push(layer.reference());
    }
    drop(layers);
    progress.tell(&format!(
        "uploading {} ({})",
        output::count(files as u64, "file"),
        Size(archive.bytes)
    ));
    let form = Multipart::new(&spec, archive)?;
    course.at(&target.name, Step::Uploading);
    let answer = client.upload(&target.name, form)?;
    course.at(&target.name, Step::Uploaded);
    follow(answer, &target.name, |message| progress.tell(message))
}

/// The function's code and layers.
fn packed(target: &Target) -> anyhow::Result<(Archive, Vec<ReadLayer>)> {
    let folder = &target.folder;
    if let Some(component) = &target.spec.component
        && !folder.join(component).is_file()
    {
        let build = folder.join("build");
        let remedy = match build.is_file() {
            true => format!("make it with `sh {}`", build.display()),
            false => "put the file into the function's folder".to_owned(),
        };
        anyhow::bail!(
            "functions.{}.component \"{component}\": there is no such file in {}: {remedy}",
            target.name,
            folder.display()
        );
    }
    let archive = pack::pack(folder, Kind::Code)?;
    if archive.content.files() == 0 && target.spec.image.is_none() {
        anyhow::bail!(
            "{} has no file to deploy: pilot.toml and what .pilotignore lists do not count",
            folder.display()
        );
    }
    let layers = target.layers.iter().map(LayerSource::read);
    let layers: Vec<ReadLayer> = layers.collect::<anyhow::Result<_>>()?;
    layers::check_size(target.name.as_str(), &archive.content, &layers)?;
    Ok((archive, layers))
}

/// Reads a deployment's lines up to the last.
fn follow(
    mut answer: impl BufRead,
    name: &FunctionName,
    mut tell: impl FnMut(&str),
) -> anyhow::Result<DeployReport> {
    loop {
        let mut line = String::new();
        let read = answer
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_line(&mut line)
            .map_err(|error| hung_up(name, &error.to_string()))?;
        if read == 0 {
            return Err(hung_up(name, "the response ended").into());
        }
        if line.trim().is_empty() {
            continue;
        }
        let event = serde_json::from_str(&line).with_context(|| {
            format!("this version of pilot does not understand the daemon's messages about the deployment of '{name}'")
        })?;
        match event {
            DeployEvent::Progress(progress) => tell(&progress.message),
            DeployEvent::Done(report) => return Ok(*report),
            DeployEvent::Failed(error) => {
                return Err(Failure::Refused { status: 200, error }.into());
            }
        }
    }
}

fn hung_up(name: &FunctionName, problem: &str) -> Failure {
    Failure::HungUp {
        name: name.clone(),
        problem: problem.to_owned(),
    }
}

/// Prints why a deployment failed and which version keeps serving. Returns the error that is still to be reported:
/// [`Failure::Reported`] or [`Failure::InputReported`], or an error that does not concern only this function.
fn tell_failure(client: &Client, name: &FunctionName, error: anyhow::Error) -> anyhow::Error {
    if let Some(Failure::Unreachable { .. } | Failure::HungUp { .. }) = error.downcast_ref() {
        return error;
    }
    output::not_deployed(name, &error);
    if let Some(Failure::Refused { error, .. }) = error.downcast_ref() {
        output::detail(&error.detail);
    }
    if let Ok(live) = client.fetch_function::<FunctionSummary>(name, "") {
        output::note(&format!(
            "  version {} ({}) keeps serving",
            live.number, live.version
        ));
    }
    match error.downcast_ref() {
        Some(Failure::Usage { .. }) => Failure::InputReported.into(),
        _ => Failure::Reported.into(),
    }
}

fn outcome_json(
    target: &Target,
    result: &anyhow::Result<DeployReport>,
) -> anyhow::Result<serde_json::Value> {
    match result {
        Ok(report) => Ok(serde_json::to_value(report)?),
        Err(error) => {
            let told = match error.downcast_ref() {
                Some(Failure::Refused { error, .. }) => error.clone(),
                _ => ApiError {
                    code: "client".to_owned(),
                    message: format!("{error:#}"),
                    detail: String::new(),
                },
            };
            Ok(json!({ "name": target.name, "error": told }))
        }
    }
}

fn show(json: bool) -> Show {
    if json { Show::Nothing } else { Show::Progress }
}

/// The longest line of a deployment's response: long enough for a traceback.
const LINE_BYTES_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: &str =
        r#"{"event":"progress","stage":"environment","message":"installing numpy"}"#;
    const DONE: &str = r#"{"event":"done","name":"a","version":"0123456789abcdef","number":1,"changed":true,
        "environment_reused":false,"url_path":"/fn/a/","template":{"python":"3.11.7","imports":[],"memory_bytes":1,
        "forkable":true,"reason":null,"took_s":0.1}}"#;
    const FAILED: &str = r#"{"event":"failed","code":"import_failed","message":"app.py cannot be imported","detail":"Traceback"}"#;

    fn followed(text: &str) -> (anyhow::Result<DeployReport>, Vec<String>) {
        let mut told = Vec::new();
        let result = follow(text.as_bytes(), &"a".parse().unwrap(), |message| {
            told.push(message.to_owned());
        });
        (result, told)
    }

    #[test]
    fn progress_is_told_as_it_comes_and_done_ends_it() {
        let done = DONE.replace('\n', " ");
        let (result, told) = followed(&format!("{PROGRESS}\n\n{PROGRESS}\n{done}\nnever read"));
        assert_eq!(result.unwrap().number, 1);
        assert_eq!(told, ["installing numpy", "installing numpy"]);
    }

    #[test]
    fn a_failure_carries_the_daemons_words() {
        let error = followed(&format!("{PROGRESS}\n{FAILED}\n")).0.unwrap_err();
        match error.downcast_ref() {
            Some(Failure::Refused { error, .. }) => assert_eq!(error.detail, "Traceback"),
            _ => panic!("{error:#}"),
        }
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error_that_says_what_to_look_at() {
        let error = followed(&format!("{PROGRESS}\n")).0.unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Failure::HungUp { .. })));
        assert_eq!(
            format!("{error:#}"),
            "the daemon hung up before the deployment of 'a' was over (the response ended): it is not known whether it is deployed. \
             When the daemon runs again, `pilot list` and `pilot describe a` show which version is live"
        );
        assert!(followed("{\"event\":\"pro").0.is_err());
    }
}
