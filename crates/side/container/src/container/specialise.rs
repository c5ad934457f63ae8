//! A container as a pre-warmed runtime: it becomes a worker of a version, as the version's contract says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::{BoxFuture, PrewarmedRuntime, StartError, Worker};
use pilot_model::runtime::container::ContainerRuntime;
use pilot_model::runtime_key::RuntimeKey;
use pilot_model::{Contract, Instant, Runtime, Version, WorkerId};
use pilot_protocols::{HttpWorker, Instance, ProvidedWorker, Start};

use super::{Container, cannot};
use crate::environment;
use crate::folder::SECRETS_INSIDE;
use crate::instance::{ContainerInstance, Inside};
use crate::output::Output;
use crate::parts::{not_a_container, now};
use crate::program_worker::ProgramWorker;
use crate::shim::Program;
use crate::usage::Use;

impl PrewarmedRuntime for Container {
    fn key(&self) -> Arc<RuntimeKey> {
        Arc::clone(&self.key.lock())
    }

    fn specialise(
        self: Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let version = Arc::clone(version);
        Box::pin(Self::specialise(self, version, id, asked))
    }

    fn clean(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(Self::clean(self))
    }

    fn adapt(&self, to: &Arc<RuntimeKey>) -> BoxFuture<'_, Result<(), StartError>> {
        let to = Arc::clone(to);
        Box::pin(async move { Self::adapt(self, &to).await })
    }

    fn is_alive(&self) -> bool {
        self.shim.is_alive() && !self.image.is_replaced()
    }

    fn memory_bytes(&self) -> u64 {
        self.counters.memory_bytes()
    }
}

impl Container {
    async fn specialise(
        self: Arc<Self>,
        version: Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> Result<Arc<dyn Worker>, StartError> {
        let Runtime::Container(ContainerRuntime {
            image,
            contract,
            command,
            ready,
            ..
        }) = &version.config.runtime
        else {
            return Err(not_a_container(&version));
        };
        let command = command.as_ref().unwrap_or(&self.image.command);
        if command.is_empty() {
            return Err(StartError::Runtime {
                problem: format!(
                    "image {image} has neither ENTRYPOINT nor CMD; set command in the manifest"
                ),
                output: String::new(),
            });
        }
        let wanted = &version.config.secrets;
        let secrets = self.parts.config.secrets.values(wanted);
        // The engine does not see these variables: the program gets them from the shim.
        let mut secrets = secrets.map_err(|error| StartError::Runtime {
            problem: error.to_string(),
            output: String::new(),
        })?;
        for (variable, used) in wanted {
            if let Some(file) = &used.file {
                let path = format!("{SECRETS_INSIDE}/{file}");
                secrets.environment.insert(variable.clone(), path);
            }
        }
        let shown = self.show_secrets(std::mem::take(&mut secrets.files)).await;
        shown.map_err(|error| StartError::Sandbox {
            problem: format!("give a container its secrets as files: {error}"),
        })?;
        let secrets = secrets.environment;
        let code = (*contract == Contract::Shim).then_some(&*version);
        self.show(code).await?;
        match contract {
            Contract::Http => {
                let port = self.free_port(HTTP_PORT).await?;
                let mut variables = environment::of_server(&version, &self.image, &self.user, port);
                variables.extend(secrets);
                let instance = self.run(&version, command, &variables).await?;
                let inside = Arc::new(Inside::new(
                    Arc::clone(&self.shim),
                    self.own_processes.clone(),
                ));
                let start = self.start_of(&version, id, asked);
                let worker =
                    HttpWorker::when_ready(start, port, ready.clone(), inside, instance).await?;
                Ok(Arc::new(worker))
            }
            Contract::Provided => {
                let listener = self
                    .listen()
                    .await
                    .map_err(cannot("listen in the container"))?;
                let port = listener.local_addr().map_or(0, |address| address.port());
                let mut variables = environment::of_lambda(&version, &self.image, &self.user, port);
                variables.extend(secrets);
                let instance = self.run(&version, command, &variables).await?;
                let start = self.start_of(&version, id, asked);
                Ok(Arc::new(
                    ProvidedWorker::when_ready(start, listener, instance).await?,
                ))
            }
            Contract::Shim => {
                *self.usage.lock() = None;
                let mut variables = environment::of_program(&version, &self.image, &self.user);
                variables.extend(secrets);
                let command = command.clone();
                Ok(Arc::new(ProgramWorker::new(
                    id, asked, self, version, command, variables,
                )))
            }
        }
    }

    /// Starts and watches the program that serves a function.
    async fn run(
        self: &Arc<Self>,
        version: &Version,
        command: &[String],
        variables: &BTreeMap<String, String>,
    ) -> Result<Arc<dyn Instance>, StartError> {
        let pipes = || Ok::<_, io::Error>((Output::pipe()?, File::open("/dev/null")?));
        let ((output, writer), nothing) = pipes().map_err(|error| StartError::Sandbox {
            problem: format!("make pipes for a container: {error}"),
        })?;
        let program = Program {
            user: &self.user,
            dir: &self.image.working_dir,
            argv: command,
            environment: variables,
        };
        let shortages = self.counters.shortages();
        let process = self
            .shim
            .exec(&program, [nothing.as_fd(), writer.as_fd(), writer.as_fd()])
            .await
            .map_err(|error| self.cannot_run(command, &error))?;
        let usage = Arc::new(Use::new(process, output, shortages));
        *self.usage.lock() = Some(Arc::clone(&usage));
        Ok(Arc::new(ContainerInstance::new(
            Arc::clone(self),
            usage,
            &version.config,
        )))
    }

    /// A start whose process starts now. The container was isolated before.
    fn start_of(&self, version: &Arc<Version>, id: WorkerId, asked: Instant) -> Start {
        let now = now();
        Start {
            id,
            version: Arc::clone(version),
            asked,
            forked: now,
            sandboxed: now,
            ready_max: READY_TIME_MAX,
            answers: self.parts.config.answers.of(&version.config.name),
        }
    }
}

/// Port of servers, unless the network is the host's: the default of Knative and Cloud Run.
const HTTP_PORT: u16 = 8080;

/// Longest time until a server or a client of the Runtime API is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(30);
