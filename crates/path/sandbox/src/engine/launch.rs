//! How the process of a template begins: what it sees as its root, its interpreter, its fork from the template above.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::ports::StartError;
use pilot_model::{Environment, Python};
use pilot_wire::control::{Role, TemplateSpec};

use super::TemplateTree;
use crate::channel::Channel;
use crate::isolation::{TEMPLATE_USER, UserNamespace};
use crate::machine::dev_null;
use crate::message::{ExecSpec, OwnUsers};
use crate::places::PACKAGES_INSIDE;
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::runtime_files::PYTHON_WORKER_INSIDE;
use crate::sandbox::{Sandbox, SharedSandbox};
use crate::template::Template;
use crate::variables;
use crate::worker::Output;

impl TemplateTree {
    /// Only templates without a parent are started with exec.
    pub(super) async fn exec(
        &self,
        sandbox: SharedSandbox,
        mut program: ExecSpec,
        spec: Option<OwnedFd>,
    ) -> Result<Template, StartError> {
        let (control, theirs) = Channel::pair_with_untrusted().map_err(refused("a socket pair"))?;
        let (mut output, log) = Output::pipe().map_err(refused("a pipe"))?;
        let null = dev_null()?;
        if !self.machine.config.huge_pages {
            let off = ("PILOT_HUGE_PAGES".to_owned(), "off".to_owned());
            program.environment.push(off);
        }
        let fds: Vec<BorrowedFd<'_>> = [null.as_fd(), log.as_fd(), log.as_fd(), theirs.as_fd()]
            .into_iter()
            .chain(spec.as_ref().map(AsFd::as_fd))
            .collect();
        let program = sandbox.exec(program, &fds).await?;
        drop((theirs, log, spec));
        let ended = program.end();
        Template::when_ready(control, Arc::clone(&sandbox), &mut output, ended).await
    }

    pub(super) fn root(
        &self,
        environment: &Environment,
        packages: Option<&Path>,
        user: Option<u32>,
    ) -> RootSpec {
        let mut shown = vec![(
            self.machine.files.python().to_owned(),
            PathBuf::from(PYTHON_WORKER_INSIDE),
        )];
        for folder in environment.python.iter().flat_map(Python::folders) {
            let there = folder.starts_with("/usr")
                || shown.iter().any(|(_, inside)| folder.starts_with(inside));
            if !there {
                shown.push((folder.to_owned(), folder.to_owned()));
            }
        }
        if let Some(packages) = packages {
            shown.push((packages.to_owned(), PathBuf::from(PACKAGES_INSIDE)));
        }
        RootSpec {
            writable: None,
            mount_point: self.machine.config.dir.join("root"),
            shown,
            user: user.unwrap_or(0),
            resolver: None,
            libraries: false,
        }
    }

    /// Templates that import user code get a user namespace of their own, if the machine has them, and an unused user.
    pub(super) fn own_users(&self, of: fn(Option<u32>) -> OwnUsers) -> Option<OwnUsers> {
        let has_namespaces = self.machine.isolation.user_namespace() != UserNamespace::None;
        has_namespaces.then(|| of(self.machine.user()))
    }

    /// The user of templates and their workers, in the user namespace that they are in.
    pub(super) fn user(&self) -> Option<u32> {
        let has_users = self.machine.isolation.has_users();
        has_users.then_some(TEMPLATE_USER)
    }
}

pub(super) fn memory_of(sandbox: &Sandbox) -> u64 {
    sandbox.members().pss_bytes()
}

/// The interpreter of a Python function; its absence is an error.
pub(super) fn python(environment: &Environment) -> Result<&Python, StartError> {
    environment
        .python
        .as_ref()
        .ok_or_else(|| StartError::Runtime {
            problem: format!(
                "environment {} has no Python; deploy the function again",
                environment.id
            ),
            output: String::new(),
        })
}

/// How to start a fresh interpreter. `at_start` are the variables that it reads then.
pub(super) fn python_program(
    python: &Python,
    role: &str,
    at_start: BTreeMap<String, String>,
    user: Option<u32>,
) -> ExecSpec {
    let worker = format!("{PYTHON_WORKER_INSIDE}/pilot_worker");
    // -I includes -E, with which no variable of Python's counts. There are only those of `at_start`.
    let own = at_start.keys().any(|name| name.starts_with("PYTHON"));
    let isolated = if own { "-s" } else { "-I" };
    let mut environment = variables::base();
    environment.extend(at_start);
    ExecSpec {
        path: python.executable.display().to_string(),
        arguments: [isolated, "-S", &worker, role].map(str::to_owned).into(),
        environment: environment.into_iter().collect(),
        cwd: PathBuf::from("/"),
        user,
        cgroup_files: 0,
        template: role != "worker",
        own_filter: false,
    }
}

pub(super) async fn fork_template(
    parent: &Template,
    sandbox: &SharedSandbox,
    spec: &TemplateSpec,
) -> Result<Template, StartError> {
    let (control, theirs) = Channel::pair_with_untrusted().map_err(refused("a socket pair"))?;
    let (mut output, log) = Output::pipe().map_err(refused("a pipe"))?;
    let child = parent
        .fork(Role::Template, sandbox, &theirs, &log, Some(spec), None)
        .await?;
    drop((theirs, log));
    let ended = child.end();
    Template::when_ready(control, Arc::clone(sandbox), &mut output, ended).await
}
