//! One deployment, step by step. If it fails, dropping the values here releases everything that it has staged or reserved, and the sweep
//! removes unused folders.

use std::fs::File;
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use pilot_model::asynchronous::Destination;
use pilot_model::deployment::TemplateReport;
use pilot_model::deployment::{DeployError, DeployReport, Progress};
use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::ports::Deployment;
use pilot_model::size::Size;
use pilot_model::unsupported;
use pilot_model::{
    AsyncConfig, Environment, EnvironmentId, FunctionConfig, FunctionName, MergedLayers, Version,
    VersionId,
};

use pilot_sys::tree;
use tokio::sync::OwnedMutexGuard;

use super::tried::Tried;
use super::turns::Turn;
use super::{Inner, VERSIONS_KEPT, hints, url_path};
use crate::archive::{self, ArchiveError, Links};
use crate::blocking::blocking;
use crate::content::{self, Content};
use crate::data_dir::{Stage, make_dir};
use crate::durable;
use crate::environment::{self, Compiler, Plan};
use crate::errors;
use crate::layers::merged;
use crate::registry::StoredVersion;
use crate::state::{Admission, Deployed, Function, Reservation};
use crate::version_id::MadeOf;

/// The code, unpacked in a staging folder.
struct Staged {
    stage: Stage,
    code: PathBuf,
    unpacked: Content,
}

/// The parts of a new version.
struct Parts {
    config: FunctionConfig,
    staged: Staged,
    plan: Plan,
    id: VersionId,
    /// The function before the deployment.
    before: Option<Function>,
}

/// Everything that must be held until the deployment is committed or has failed.
struct Claims {
    _admission: Admission,
    _turn: Turn,
    _function_lock: OwnedMutexGuard<()>,
    folders: Vec<Reservation>,
}

/// The version with what its template has found out, so that a later template need not find it out again.
fn known(version: Arc<Version>, template: &TemplateReport) -> Arc<Version> {
    if template.own_imports.is_none() && template.modules == version.modules {
        return version;
    }
    let mut known = Arc::unwrap_or_clone(version);
    known.own_imports.clone_from(&template.own_imports);
    known.modules.clone_from(&template.modules);
    Arc::new(known)
}

/// Reports the progress to the client.
struct Say(Arc<dyn Fn(Progress) + Send + Sync>);

impl Say {
    fn stage(&self, stage: &str, message: String) {
        (self.0)(Progress {
            stage: stage.to_owned(),
            message,
        });
    }
}

impl Inner {
    pub(super) async fn deploy(
        self: Arc<Self>,
        deployment: Deployment,
    ) -> Result<DeployReport, DeployError> {
        let Deployment {
            name,
            spec,
            archive,
            actor,
            progress,
        } = deployment;
        let say = Say(progress);
        let mut config = spec
            .check(&name)
            .map_err(|error| errors::from_spec(&error))?;
        let function_lock = self.function_locks.lock(name.as_str()).await;
        let waits = || {
            let message = format!(
                "waits until another deployment ends, of {} or of all",
                actor.share
            );
            say.stage("wait", message);
        };
        let turn = self.turns.take(&actor.share, waits).await;
        self.check_actor(&name, &actor)?;
        let admission = self.admit(&name)?;
        let staged = Arc::clone(&self).unpack(&name, archive).await?;
        let (inner, function, more) = (Arc::clone(&self), name.clone(), staged.unpacked.bytes());
        blocking(move || inner.check_disk(&function, more)).await?;
        let files = staged.unpacked.files();
        let plural = if files == 1 { "" } else { "s" };
        let size = Size(staged.unpacked.bytes());
        say.stage("unpack", format!("{files} file{plural}, {size}"));
        let layer_folders = self.layers.folders(&config.layers);
        let layer_claims: Vec<Reservation> = layer_folders
            .iter()
            .map(|folder| self.state.reserve(folder.clone()))
            .collect();
        self.check_layers(&config, &staged).await?;
        use_bootstrap_of(&layer_folders, &mut config, &staged.code);
        check_code(&config, &staged)?;

        let code_hash = staged.unpacked.hash();
        let plan = self
            .environments
            .plan(&config.runtime, &staged.code, &code_hash)
            .await
            .map_err(|error| errors::from_environment(&error))?;
        let made_of = MadeOf {
            config: &config,
            code_hash: &code_hash,
            environment: &plan.id,
        };
        let id = made_of.id();
        let before = self.state.function(&name);
        if let Some(live) = self.unchanged(before.as_ref(), &id, made_of).await? {
            let has = plan.in_words(&live.version.environment);
            return Ok(self.report(live, Change::Unchanged, EnvironmentWas::There, has));
        }
        let environments = self.data_dir.environments();
        let parts = plan.folders().map(|part| environments.join(part));
        let code = self.data_dir.code().join(id.as_str());
        let claims = Claims {
            _admission: admission,
            _turn: turn,
            _function_lock: function_lock,
            folders: parts
                .chain([code])
                .map(|folder| self.state.reserve(folder))
                .chain(layer_claims)
                .collect(),
        };
        let parts = Parts {
            config,
            staged,
            plan,
            id,
            before,
        };
        let done = Arc::clone(&self).make_live(parts, claims, &say).await;
        // Removes files of a failed deployment, and of versions that are no longer kept.
        self.sweep_aside().await;
        done
    }

    /// The live version, if it has the same parts.
    async fn unchanged<'a>(
        self: &Arc<Self>,
        before: Option<&'a Function>,
        id: &VersionId,
        made_of: MadeOf<'_>,
    ) -> Result<Option<&'a Deployed>, DeployError> {
        let Some(function) = before.filter(|function| function.live.problem.is_none()) else {
            return Ok(None);
        };
        let live = &function.live;
        if live.version.id == *id {
            return Ok(Some(live));
        }
        let (inner, version) = (Arc::clone(self), Arc::clone(&live.version));
        let stored = blocking(move || inner.registry.stored_config(&version))
            .await
            .map_err(|error| errors::from_registry(&error))?;
        Ok(made_of.is_older(&live.version, &stored).then_some(live))
    }

    async fn unpack(
        self: Arc<Self>,
        name: &FunctionName,
        mut archive: File,
    ) -> Result<Staged, DeployError> {
        let name = name.clone();
        let permit = self.turn_to_unpack().await;
        blocking(move || {
            let _permit = permit;
            let disk = |source: std::io::Error| DeployError::Internal {
                message: format!(
                    "cannot unpack in {}: {source}",
                    self.data_dir.root().display()
                ),
            };
            let stage = self.data_dir.stage().map_err(disk)?;
            let code = stage.path().join("code");
            make_dir(&code).map_err(disk)?;
            archive.rewind().map_err(disk)?;
            let unpacked =
                archive::unpack(archive, &code, Links::Refused, &self.limits).map_err(|error| {
                    match error {
                        ArchiveError::TooLarge { problem } => {
                            let problem = format!("function '{name}': {problem}");
                            errors::from_archive(&ArchiveError::TooLarge { problem })
                        }
                        error => errors::from_archive(&error),
                    }
                })?;
            environment::link_commands(&code).map_err(disk)?;
            Ok(Staged {
                stage,
                code,
                unpacked,
            })
        })
        .await
    }

    /// Checks that the layers are there, and the size of code and layers together.
    async fn check_layers(
        self: &Arc<Self>,
        config: &FunctionConfig,
        staged: &Staged,
    ) -> Result<(), DeployError> {
        let (inner, layers) = (Arc::clone(self), config.layers.clone());
        let of_layers = blocking(move || inner.layers.parts(&layers)).await?;
        let mut parts = vec![staged.unpacked.part("code".to_owned())];
        parts.extend(of_layers);
        content::check_size(config.name.as_str(), &parts, self.limits.unpacked_bytes_max)
            .map_err(|problem| errors::from_archive(&ArchiveError::TooLarge { problem }))
    }

    /// Merges the layers of a version, unless they are merged already.
    async fn merge_layers(
        self: &Arc<Self>,
        config: &FunctionConfig,
        environment: &Environment,
        compiler: Option<&Compiler>,
        broken: bool,
        say: &Say,
    ) -> Result<(Option<MergedLayers>, Option<Reservation>), DeployError> {
        let folder = self.data_dir.layers();
        let Some(merged) = merged::merged(&folder, config, environment) else {
            return Ok((None, None));
        };
        if let Some(hidden) = environment
            .folders()
            .iter()
            .find(|folder| folder.starts_with(LAYERS_INSIDE))
        {
            return Err(errors::from_command(format!(
                "functions.{}.layers: layers are shown at {LAYERS_INSIDE}, and the function's interpreter needs {} below it; use an \
                 interpreter elsewhere, or put the layers' files into the code",
                config.name,
                hidden.display()
            )));
        }
        // Held until the version is committed.
        let claim = self.state.reserve(merged.dir.clone());
        if broken || !merged.dir.is_dir() {
            let (inner, layers) = (Arc::clone(self), config.layers.clone());
            let staged = blocking(move || inner.layers.merge(&layers)).await?;
            if let (Some(compiler), Some(modules)) = (compiler, staged.python()) {
                for left_out in compiler.compile(&modules).await {
                    say.stage("layers", left_out);
                }
            }
            let place = merged.dir.clone();
            blocking(move || staged.settle(&place, broken)).await?;
        }
        Ok((merged::merged(&folder, config, environment), Some(claim)))
    }

    async fn make_live(
        self: Arc<Self>,
        parts: Parts,
        mut claims: Claims,
        say: &Say,
    ) -> Result<DeployReport, DeployError> {
        let Parts {
            config,
            staged,
            plan,
            id,
            before,
        } = parts;
        let obtained = self
            .environments
            .obtain(&plan, &staged.code, &|line| say.stage("environment", line))
            .await
            .map_err(|error| errors::from_environment(&error))?;
        let was = if obtained.reused {
            EnvironmentWas::There
        } else {
            EnvironmentWas::Built
        };
        let has = plan.in_words(&obtained.environment);
        say.stage("environment", was.describe(&plan.id, &has));

        let compiler = self.environments.compiler(&plan);
        if let Some(compiler) = &compiler {
            for left_out in compiler.compile(&staged.code).await {
                say.stage("compile", left_out);
            }
        }
        if let Some(component) = config.runtime.component() {
            say.stage("compile", format!("component {component}"));
            let compiled = self.environments.components();
            let compiled = compiled.compile(component, &staged.code).await;
            let size = compiled
                .map_err(|error| errors::from_component(&config.name, component, &error))?;
            say.stage("compile", format!("{size} of machine code"));
        }
        let code_dir = self.data_dir.code().join(id.as_str());
        let broken = before
            .as_ref()
            .is_some_and(|function| function.live.problem.is_some());
        staged.settle(code_dir.clone(), broken).await?;
        let environment = &obtained.environment;
        let merged = self.merge_layers(&config, environment, compiler.as_ref(), broken, say);
        let (layers, layers_claim) = merged.await?;
        claims.folders.extend(layers_claim);

        let (inner, name) = (Arc::clone(&self), config.name.clone());
        let number = blocking(move || inner.registry.next_number(&name))
            .await
            .map_err(|error| errors::from_registry(&error))?;
        let version = Arc::new(Version {
            id,
            number,
            config,
            code_dir,
            layers,
            environment: obtained.environment,
            own_imports: None,
            modules: Vec::new(),
        });
        let tried = Tried::new(&self.platform, &version);
        let template = self.try_version(&version, say).await?;
        let version = known(version, &template);
        say.stage("activate", format!("version {}", version.number));
        let deployed = Deployed {
            version,
            template,
            deployed_unix_s: now_unix_s(),
            problem: None,
        };
        let inner = Arc::clone(&self);
        let committed = blocking(move || inner.commit(deployed, before, claims, tried)).await?;
        Ok(self.report(&committed, Change::New, was, has))
    }

    fn report(
        &self,
        deployed: &Deployed,
        change: Change,
        environment: EnvironmentWas,
        has: String,
    ) -> DeployReport {
        let version = &deployed.version;
        let name = version.config.name.clone();
        let mut template = deployed.template.clone();
        // Not stored with the version: they may be deployed later.
        template
            .warnings
            .extend(self.missing_destinations(&version.config));
        DeployReport {
            version: version.id.clone(),
            number: version.number,
            changed: change == Change::New,
            runtime: version.config.runtime.to_string(),
            environment_reused: environment == EnvironmentWas::There,
            environment_has: has,
            template,
            url_path: url_path(&name),
            name,
        }
    }

    /// A line for each function that records of asynchronous invocations go to and that is not deployed.
    fn missing_destinations(&self, config: &FunctionConfig) -> Vec<String> {
        let AsyncConfig {
            on_success,
            on_failure,
            ..
        } = &config.asynchronous;
        let destinations = [("on_success", on_success), ("on_failure", on_failure)];
        let lines = destinations.into_iter().filter_map(|(key, destination)| {
            let Some(Destination::Function(function)) = destination else {
                return None;
            };
            self.state.function(function).is_none().then(|| {
                format!(
                    "async.{key}: there is no function '{function}' yet. Until it is deployed, records for it become dead letters (pilot dlq)"
                )
            })
        });
        lines.collect()
    }

    async fn try_version(
        &self,
        version: &Arc<Version>,
        say: &Say,
    ) -> Result<TemplateReport, DeployError> {
        let FunctionConfig {
            runtime, handler, ..
        } = &version.config;
        let trial = runtime.trial(handler);
        say.stage("template", trial.progress.clone());
        let tried = self.platform.try_version(version).await;
        let mut template = tried
            .map_err(|error| errors::from_start(&error, &trial, || hints::of(&error, version)))?;
        template.warnings = unsupported::warnings(&version.config);
        if version.environment.modules_dir().is_some() {
            let unread = environment::unread_lock(&version.code_dir);
            template.warnings.extend(unread);
        }
        Ok(template)
    }

    /// Commits and activates the version. It runs to its end on its own thread, even if nobody waits for it.
    fn commit(
        &self,
        deployed: Deployed,
        before: Option<Function>,
        claims: Claims,
        tried: Tried,
    ) -> Result<Deployed, DeployError> {
        let stored = StoredVersion {
            version: Version::clone(&deployed.version),
            template: deployed.template.clone(),
            deployed_unix_s: deployed.deployed_unix_s,
            problem: None,
        };
        let function = Function {
            older: before.map_or_else(Vec::new, |before| before.into_older(&deployed)),
            live: deployed.clone(),
        };
        let older = function.older.iter();
        let kept: Vec<u32> = older.map(|one| one.version.number).collect();
        self.registry
            .commit(&stored, &kept)
            .map_err(|error| errors::from_registry(&error))?;
        self.state
            .put(deployed.version.config.name.clone(), function);
        tried.activate(&deployed.version);
        drop(claims);
        Ok(deployed)
    }
}

impl Function {
    /// The versions that are kept beside a new live one, the last live one first. Those that cannot run take no place of the
    /// others: they are kept, too, as long as they are among these, and are not what is deployed again.
    fn into_older(self, new: &Deployed) -> Vec<Deployed> {
        let (mut whole, mut broken) = (0, 0);
        let mut kept = Vec::new();
        for one in [self.live].into_iter().chain(self.older) {
            if whole == VERSIONS_KEPT - 1 {
                break;
            }
            if one.problem.is_none() {
                whole += 1;
            } else if broken == VERSIONS_KEPT - 1 || one.version.id == new.version.id {
                continue;
            } else {
                broken += 1;
            }
            kept.push(one);
        }
        kept
    }
}

impl Staged {
    /// Makes the code durable and moves it to its place. `replace`: an existing folder there may be damaged.
    async fn settle(self, place: PathBuf, replace: bool) -> Result<(), DeployError> {
        blocking(move || {
            let settle = || {
                if replace && place.exists() {
                    tree::remove(&place)?;
                }
                durable::finish_tree(&self.code)?;
                durable::settle(&self.code, &place)
            };
            let settled = settle().map_err(|source| DeployError::Internal {
                message: format!(
                    "the code could not be written to {}: {source}",
                    place.display()
                ),
            });
            drop(self.stage);
            settled
        })
        .await
    }
}

/// Whether a deployment changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    New,
    Unchanged,
}

/// Where a deployment's environment came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EnvironmentWas {
    Built,
    There,
}

impl EnvironmentWas {
    /// `has`: the content of the environment; may be empty.
    fn describe(self, id: &EnvironmentId, has: &str) -> String {
        if has.is_empty() {
            return "no packages to install".to_owned();
        }
        let did = match self {
            Self::Built => "built",
            Self::There => "there already",
        };
        format!("environment {id} {did} ({has})")
    }
}

/// As Lambda, looks for the `bootstrap` of `provided` in the code and then in the layers.
fn use_bootstrap_of(layers: &[PathBuf], config: &mut FunctionConfig, code: &Path) {
    let in_layer = layers
        .iter()
        .any(|layer| hints::has_program(layer, "bootstrap"));
    if in_layer
        && !code.join("bootstrap").exists()
        && let Some(command) = config.runtime.default_command()
    {
        *command = vec![format!("{LAYERS_INSIDE}/bootstrap")];
    }
}

/// Checks the code before anything is built for it.
fn check_code(config: &FunctionConfig, staged: &Staged) -> Result<(), DeployError> {
    if staged.unpacked.files() == 0 && config.runtime.needs_code() {
        return Err(errors::from_archive(&ArchiveError::Empty));
    }
    match hints::command_problem(&config.runtime, &staged.code) {
        Some(problem) => Err(errors::from_command(problem)),
        None => Ok(()),
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
