//! What the control API's tests and its fuzz target put behind it: services that are made up. Not in the daemon.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::access::{Caller, Grant};
use pilot_model::api::{LayerInfo, PruneReport, PruneRequest};
use pilot_model::asynchronous::{
    AsyncCounts, AsyncInfo, AsyncShown, DeadLetters, DeadLettersChanged,
};
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::deployment::{
    DeployError, DeployReport, FunctionDescription, FunctionSummary, Progress, RollbackReport,
    TemplateReport,
};
use pilot_model::ports::{
    Actor, AsyncControl, AsyncFault, AsyncFilter, ControlPlane, CostError, Costs, CostsOf,
    Deployment, MayTouch, Scaling, SecretUser, TemplateMemory, TriggerControl, UsageRecords,
    UsageRows,
};
use pilot_model::status::{PoolStatus, Totals};
use pilot_model::trigger::{TriggerInfo, TriggerState};
use pilot_model::{BoxFuture, FunctionConfig, FunctionName, FunctionSpec, LayerId, VersionId};
use pilot_telemetry::{Bus, BusConfig, Metrics};
use pilot_testkit::ManualClock;
use tokio::sync::{Semaphore, mpsc};

use crate::admin::{Admin, AdminConfig, AdminParts, Readiness};
use crate::logs::LogStore;
use crate::observe::Observations;
use crate::secrets::SecretStore;
use crate::tokens::TokenStore;

/// Has only the function `known`. A deployment reports one line and then waits for a permit.
#[derive(Debug)]
pub(crate) struct FakeControl {
    /// One permit for each deployment that may end.
    pub(crate) go_on: Arc<Semaphore>,
    deployed: mpsc::UnboundedSender<(FunctionName, FunctionSpec, Vec<u8>)>,
    pub(crate) refuse: Mutex<Option<DeployError>>,
    /// The functions that something was to be done with, besides reading.
    touched: Mutex<Vec<FunctionName>>,
    /// Who deployed, removed and rolled back.
    pub(crate) actors: Mutex<Vec<Actor>>,
    /// The threads on which files for uploads were made.
    pub(crate) spooled_on: Mutex<Vec<ThreadId>>,
}

impl FakeControl {
    /// The functions that something was to be done with since the last call, besides reading.
    pub(crate) fn touched(&self) -> Vec<FunctionName> {
        std::mem::take(&mut self.touched.lock())
    }
}

fn whole(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("it can be read");
    bytes
}

/// The id of the only layer.
pub(crate) fn layer_id() -> LayerId {
    "0a".repeat(32).parse().expect("it is an id")
}

/// Tells what it was asked. A table of platforms is wrong, and the record of a function is its name.
#[derive(Debug)]
struct FakeCosts;

impl Costs for FakeCosts {
    fn cost(
        &self,
        function: Option<&CostsOf>,
        request: &CostRequest,
    ) -> Result<CostReport, CostError> {
        match &request.billing {
            Some(_) => Err(CostError::Billing("fee: wrong".to_owned())),
            None => Ok(CostReport {
                since_unix_ms: request.since_unix_ms,
                notes: function.map(|of| of.name.to_string()).into_iter().collect(),
                ..CostReport::default()
            }),
        }
    }

    fn usage(
        &self,
        function: Option<&CostsOf>,
        since_unix_ms: Option<u64>,
        records: UsageRecords,
    ) -> Result<UsageRows, CostError> {
        let name = function.map(|of| &of.name);
        let rows = [
            format!("{name:?}\n"),
            format!("{since_unix_ms:?} {records:?}\n"),
        ];
        Ok(Box::new(rows.map(|row| Ok(row.into_bytes())).into_iter()))
    }
}

impl ControlPlane for FakeControl {
    fn spool(&self) -> std::io::Result<File> {
        self.spooled_on.lock().push(std::thread::current().id());
        tempfile::tempfile()
    }

    fn layer(&self, id: &LayerId) -> BoxFuture<'static, Result<Option<LayerInfo>, DeployError>> {
        let found = (*id == layer_id()).then(|| LayerInfo {
            id: id.clone(),
            files: 1,
            bytes: 2,
        });
        Box::pin(async move { Ok(found) })
    }

    /// Tells the length of the archive.
    fn add_layer(
        &self,
        id: LayerId,
        archive: File,
    ) -> BoxFuture<'static, Result<LayerInfo, DeployError>> {
        let bytes = whole(archive).len() as u64;
        Box::pin(async move {
            Ok(LayerInfo {
                id,
                files: 1,
                bytes,
            })
        })
    }

    fn deploy(
        &self,
        deployment: Deployment,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>> {
        let Deployment {
            name,
            spec,
            archive,
            actor,
            progress,
        } = deployment;
        self.actors.lock().push(actor);
        self.touched.lock().push(name.clone());
        let (go_on, deployed) = (Arc::clone(&self.go_on), self.deployed.clone());
        let refuse = self.refuse.lock().take();
        Box::pin(async move {
            progress(Progress {
                stage: "unpack".to_owned(),
                message: "1 files".to_owned(),
            });
            go_on.acquire().await.expect("it is never closed").forget();
            if let Some(error) = refuse {
                return Err(error);
            }
            let _ = deployed.send((name.clone(), spec, whole(archive)));
            Ok(report(name))
        })
    }

    fn users(&self, _secret: &pilot_model::SecretId) -> Vec<SecretUser> {
        Vec::new()
    }

    fn renew(&self, _name: &FunctionName) {}

    fn prune(&self, request: PruneRequest) -> BoxFuture<'static, Result<PruneReport, DeployError>> {
        let report = PruneReport {
            dry_run: request.dry_run,
            ..PruneReport::default()
        };
        Box::pin(async move { Ok(report) })
    }

    fn list(&self) -> Vec<FunctionSummary> {
        vec![summary()]
    }

    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription> {
        (name.as_str() == "known").then(|| FunctionDescription {
            summary: summary(),
            config: pilot_testkit::config("known"),
            environment: "e0".to_owned(),
            template: template(),
            url_path: "/fn/known/".to_owned(),
            last_cold: None,
            last: None,
            versions: vec![],
            forecast: None,
            runtimes: None,
            triggers: vec![],
            sharing: None,
        })
    }

    fn remove(
        &self,
        name: &FunctionName,
        actor: Actor,
    ) -> BoxFuture<'static, Result<bool, DeployError>> {
        self.actors.lock().push(actor);
        self.touched.lock().push(name.clone());
        let known = name.as_str() == "known";
        Box::pin(async move { Ok(known) })
    }

    fn rollback(
        &self,
        name: &FunctionName,
        number: Option<u32>,
        actor: Actor,
    ) -> BoxFuture<'static, Result<RollbackReport, DeployError>> {
        self.actors.lock().push(actor);
        self.touched.lock().push(name.clone());
        let known = name.as_str() == "known" && number != Some(9);
        let report = RollbackReport {
            name: name.clone(),
            version: VersionId::from_hex("01"),
            number: number.unwrap_or(1),
            replaced: 2,
            changed: true,
        };
        Box::pin(async move {
            if known {
                return Ok(report);
            }
            Err(DeployError::Invalid {
                code: "unknown_version",
                message: "there is 1".to_owned(),
                detail: String::new(),
            })
        })
    }

    fn scale(
        &self,
        name: &FunctionName,
        scaling: Scaling,
    ) -> Result<Option<PoolStatus>, DeployError> {
        self.touched.lock().push(name.clone());
        let status = PoolStatus {
            idle: scaling.workers.unwrap_or(7),
            ..PoolStatus::default()
        };
        Ok((name.as_str() == "known").then_some(status))
    }
}

pub(crate) fn template() -> TemplateReport {
    TemplateReport {
        python: "3.11.7".to_owned(),
        imports: vec![],
        failed_imports: vec![],
        findings: Vec::new(),
        memory_bytes: 1,
        forkable: true,
        reason: None,
        own_imports: None,
        modules: Vec::new(),
        took: Duration::ZERO,
        warnings: Vec::new(),
    }
}

pub(crate) fn summary() -> FunctionSummary {
    FunctionSummary {
        name: "known".parse().expect("it is a name"),
        version: VersionId::from_hex("01"),
        number: 1,
        runtime: "python".to_owned(),
        handler: "app.handler".to_owned(),
        deployed_unix_s: 0,
        workers: PoolStatus {
            idle: 3,
            ..PoolStatus::default()
        },
        totals: Totals::default(),
        problem: None,
    }
}

pub(crate) fn report(name: FunctionName) -> DeployReport {
    DeployReport {
        name,
        version: VersionId::from_hex("02"),
        number: 2,
        changed: true,
        runtime: "python".to_owned(),
        environment_reused: false,
        environment_has: "Python 3.11.7".to_owned(),
        template: template(),
        url_path: "/fn/known/".to_owned(),
    }
}

/// A caller with these rights.
pub(crate) fn known(grant: Grant) -> Caller {
    Caller::Known(Arc::new(grant))
}

/// The control API with everything behind it made up.
pub(crate) struct Bench {
    _folder: tempfile::TempDir,
    pub(crate) admin: Admin,
    pub(crate) control: Arc<FakeControl>,
    pub(crate) observations: Arc<Observations>,
    pub(crate) deployed: mpsc::UnboundedReceiver<(FunctionName, FunctionSpec, Vec<u8>)>,
}

impl Bench {
    pub(crate) fn new(config: AdminConfig) -> Self {
        let folder = folder();
        let metrics = Arc::new(Metrics::default());
        let bus = Bus::start(BusConfig::default(), Arc::clone(&metrics)).expect("a thread");
        let logs = LogStore::open(folder.path().join("logs"), LogStore::FILE_BYTES_MAX);
        let logs = logs.expect("a new folder");
        let clock = Arc::new(ManualClock::default());
        let observations = Observations::subscribe(&bus, logs, &metrics, clock).expect("threads");
        let observations = Arc::new(observations);
        let (sender, deployed) = mpsc::unbounded_channel();
        let control = Arc::new(FakeControl {
            go_on: Arc::new(Semaphore::new(0)),
            deployed: sender,
            refuse: Mutex::default(),
            touched: Mutex::default(),
            actors: Mutex::default(),
            spooled_on: Mutex::default(),
        });
        let key = pilot_seal::SealingKey::random_text().expect("random bytes");
        let key = Arc::new(pilot_seal::SealingKey::parse(&key, "the.key").expect("a key"));
        let parts = AdminParts {
            control: Arc::clone(&control) as Arc<dyn ControlPlane>,
            tokens: {
                let path = folder.path().join("tokens.json");
                Arc::new(TokenStore::open(path, vec![], Arc::clone(&key)).expect("a new file"))
            },
            secrets: {
                let path = folder.path().join("secrets.json");
                Arc::new(SecretStore::open(path, key).expect("a new file"))
            },
            certificates: Arc::new(Vec::new),
            refused_connections: Arc::new(|| vec![("too_slow", 7)]),
            handed: Arc::new(|| (2, 64)),
            busy_polled: Arc::new(|| Duration::from_millis(1500)),
            observations: Arc::clone(&observations),
            costs: Arc::new(FakeCosts),
            queue: Arc::new(FakeQueue),
            triggers: Arc::new(FakeTriggers),
            metrics,
            templates: Arc::new(|| {
                vec![TemplateMemory {
                    level: "function".to_owned(),
                    name: "known".to_owned(),
                    memory_bytes: 42,
                }]
            }),
            readiness: Arc::new(|| Readiness {
                ready: false,
                reasons: vec!["restoring".to_owned()],
            }),
        };
        Self {
            _folder: folder,
            admin: Admin::new(parts, config),
            control,
            observations,
            deployed,
        }
    }
}

/// Has an invocation of `known` and one of `other`, which belong to `us` and `them`.
#[derive(Debug)]
pub(crate) struct FakeQueue;

const ALL: [(&str, &str); 2] = [("known", "us"), ("other", "them")];

fn visible(may: &MayTouch) -> Vec<AsyncInfo> {
    let all = ALL
        .into_iter()
        .map(|(function, owner)| (function.parse().expect("it is a name"), owner));
    all.filter(|(function, owner)| may(function, owner))
        .map(|(function, _)| AsyncInfo {
            id: format!("{function}-1"),
            function,
            qualifier: None,
            destination: None,
            state: "waiting".to_owned(),
            accepted_unix_ms: 1,
            due_unix_ms: 1,
            attempts: 0,
            payload_bytes: 2,
            key: None,
            condition: None,
            error: None,
        })
        .collect()
}

impl AsyncControl for FakeQueue {
    fn list(&self, filter: &AsyncFilter, may: &MayTouch) -> Result<Vec<AsyncInfo>, AsyncFault> {
        let mut infos = visible(may);
        infos.retain(|info| {
            filter
                .function
                .as_ref()
                .is_none_or(|name| *name == info.function)
        });
        infos.truncate(filter.limit);
        Ok(infos)
    }

    fn show(&self, id: &str, may: &MayTouch) -> Result<AsyncShown, AsyncFault> {
        let found = visible(may).into_iter().find(|info| info.id == id);
        let info = found.ok_or_else(|| AsyncFault::Unknown { id: id.to_owned() })?;
        let payload = serde_json::json!({});
        Ok(AsyncShown { info, payload })
    }

    fn cancel(&self, id: &str, may: MayTouch) -> Result<(), AsyncFault> {
        let id = self.show(id, &may)?.info.id;
        Err(AsyncFault::Running { id })
    }

    fn redrive(&self, which: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault> {
        self.purge(which, may)
    }

    fn purge(&self, _: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault> {
        Ok(DeadLettersChanged {
            changed: visible(&may).len() as u64,
            left: 0,
        })
    }

    fn counts(&self) -> AsyncCounts {
        AsyncCounts {
            waiting: 2,
            oldest_age_s: 9,
            accepted: 5,
            ..AsyncCounts::default()
        }
    }
}

/// `known` has a schedule.
#[derive(Debug)]
pub(crate) struct FakeTriggers;

impl TriggerControl for FakeTriggers {
    fn list(&self, function: Option<&FunctionName>) -> Vec<TriggerInfo> {
        let known: FunctionName = "known".parse().expect("it is a name");
        let is_asked = function.is_none_or(|name| *name == known);
        let info = TriggerInfo {
            function: known,
            kind: "schedule".to_owned(),
            source: "* * * * * UTC".to_owned(),
            state: TriggerState::Active,
            lag_s: Some(2.6),
            waiting: None,
            received: 5,
            errors: 1,
            last_run_unix_ms: Some(1),
            next_run_unix_ms: Some(2),
            last_error: None,
            last_error_unix_ms: None,
        };
        is_asked.then_some(info).into_iter().collect()
    }

    fn check(&self, _: &FunctionConfig) -> Result<(), String> {
        Ok(())
    }
}

/// A folder in memory, where there is one: a fuzz target needs one for each input.
fn folder() -> tempfile::TempDir {
    let parent = std::env::var_os("PILOT_FUZZ_DIR").map(PathBuf::from);
    let shared = PathBuf::from("/dev/shm");
    let parent = parent.or_else(|| shared.is_dir().then_some(shared));
    tempfile::Builder::new()
        .prefix("pilot-fuzz-")
        .tempdir_in(parent.unwrap_or_else(std::env::temp_dir))
        .expect("a folder for temporary files")
}
