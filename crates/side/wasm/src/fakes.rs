//! What the tests and the fuzz target share: remotes that are made up, versions with a module, and the functions of the host as a text.
//! Not in the daemon.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::initscript::{During, Endpoint, InitscriptConfig, ScriptEnd};
use pilot_model::ports::{
    Fetched, HandedConnection, HandedSocket, InitRunner, Initialised, Input, InputFaultKind,
    InputKind, InputMemory, MemoryFault, RawConnection, RemoteFault, RemoteReply, RemoteRequest,
    Remotes, StoreObject, StoreRead, Takes,
};
use pilot_model::{BoxFuture, FunctionConfig, FunctionName, TransferWay, Version, VersionId};
use pilot_testkit::TokioClock;

use crate::runner::{Initscripts, InitscriptsConfig};
use crate::trial::Trials;

/// Remotes with objects, and scripts that use them.
pub(crate) struct World {
    store: Arc<Store>,
    initscripts: Initscripts,
    folder: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_memory(512)
    }

    pub(crate) fn with_memory(memory_mb: u32) -> Self {
        let store = Arc::new(Store::default());
        let clock = Arc::new(TokioClock::new());
        let config = InitscriptsConfig { memory_mb };
        Self {
            initscripts: Initscripts::start(config, Arc::clone(&store) as _, clock, Trials::Off)
                .expect("compiled code runs here"),
            store,
            folder: tempfile::tempdir().expect("a folder for temporary files"),
        }
    }

    pub(crate) fn initscripts(&self) -> &Initscripts {
        &self.initscripts
    }

    pub(crate) fn code(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    pub(crate) fn put(&self, endpoint: &str, body: &[u8]) {
        let mut objects = self.store.objects.lock();
        objects.insert(endpoint.to_owned(), body.to_vec());
    }

    pub(crate) fn remove(&self, endpoint: &str) {
        self.store.objects.lock().remove(endpoint);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.store.asked.lock().clone()
    }

    /// What was asked since the last call.
    pub(crate) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.store.asked.lock())
    }

    /// Waits until nobody has the memory of a reply or a message any more.
    pub(crate) async fn is_empty(&self) {
        let began = Instant::now();
        while Arc::strong_count(&self.store.used) > 1 {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "memory is leaked"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// A version of the function `f` with this module.
    pub(crate) fn version(
        &self,
        module: &[u8],
        change: impl FnOnce(&mut InitscriptConfig),
    ) -> Arc<Version> {
        std::fs::write(self.folder.path().join("init.wasm"), module).expect("a new file");
        let mut config = InitscriptConfig {
            module: "init.wasm".to_owned(),
            input: String::new(),
            allow: [
                "s3://photos",
                "https://example.com",
                "redis://cache/public/",
                "tcp://db:5432",
                "sqs://jobs",
            ]
            .map(|allowed| allowed.parse().expect("it is an endpoint"))
            .to_vec(),
            memory_mb: 2,
            timeout_ms: 60_000,
            during: During::Start,
            max_age_s: None,
        };
        change(&mut config);
        let version = pilot_testkit::version_with("f", 1, |function| {
            match config.max_age_s {
                None => function.initscript = Some(config),
                Some(_) => function.shared_initscript = Some(config),
            }
            function.timeout = Duration::from_secs(60);
        });
        let mut version = Version::clone(&version);
        version.code_dir = self.code();
        // As after a deployment: another module is another version.
        version.id = id_of(module);
        Arc::new(version)
    }

    pub(crate) async fn deploy(
        &self,
        text: &str,
        change: impl FnOnce(&mut InitscriptConfig),
    ) -> Arc<Version> {
        let module = wat::parse_str(text).expect("it is a module");
        let version = self.version(&module, change);
        let prepared = self.initscripts.prepare(&version).await;
        prepared.expect("the module is allowed");
        version
    }

    pub(crate) async fn run(&self, text: &str) -> Done {
        self.run_with(text, b"{}", |_| {}).await
    }

    pub(crate) async fn run_with(
        &self,
        text: &str,
        event: &'static [u8],
        change: impl FnOnce(&mut InitscriptConfig),
    ) -> Done {
        let version = self.deploy(text, change).await;
        let run = self
            .initscripts
            .run(&version, Bytes::from_static(event), None);
        Done::of(run.await)
    }

    /// Waits until a script runs again.
    pub(crate) async fn has_room(&self) {
        let version = self.deploy(NOTHING, |script| script.memory_mb = 2).await;
        self.runs(&version).await;
    }

    /// Waits until the script of a version, which says nothing, runs.
    pub(crate) async fn runs(&self, version: &Arc<Version>) {
        loop {
            let done = self.initscripts.run(version, Bytes::new(), None).await;
            if done.said.is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// A module that does nothing.
pub(crate) const NOTHING: &str = r#"(module (memory (export "memory") 1) (func (export "run")))"#;

fn id_of(module: &[u8]) -> VersionId {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    module.hash(&mut hasher);
    VersionId::from_hex(&format!("{:016x}", hasher.finish()))
}

/// What came of a run.
pub(crate) struct Done {
    pub(crate) fetched: Fetched,
    pub(crate) connections: Vec<HandedConnection>,
    pub(crate) said: Option<String>,
    pub(crate) end: Option<ScriptEnd>,
}

impl Done {
    pub(crate) fn of(run: Initialised) -> Self {
        let Initialised {
            fetched,
            connections,
            said,
            run,
        } = run;
        Self {
            fetched,
            connections,
            said,
            end: run.map(|run| run.end),
        }
    }

    /// Names and contents of what the function gets.
    pub(crate) fn messages(&self) -> Vec<(String, Vec<u8>)> {
        let messages = self.fetched.inputs.iter().map(|input| {
            let InputKind::Memory { len } = input.kind else {
                panic!("{input:?}");
            };
            let file = File::from(input.descriptor.try_clone().expect("a free descriptor"));
            let mut bytes = vec![0; usize::try_from(len).expect("it is in memory")];
            file.read_exact_at(&mut bytes, 0).expect("it is as long");
            (input.name.clone(), bytes)
        });
        messages.collect()
    }
}

/// Objects by their endpoints. `…/slow` never comes.
#[derive(Debug, Default)]
struct Store {
    objects: Mutex<HashMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Asked>>,
    /// Each memory has a clone.
    used: Arc<()>,
}

/// A request, when it came, and to which endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) at: Instant,
    pub(crate) endpoint: String,
    pub(crate) request: RemoteRequest,
}

impl Remotes for Store {
    fn check(&self, _: &FunctionConfig) -> Result<(), String> {
        Ok(())
    }

    fn request(
        &self,
        _: &FunctionConfig,
        endpoint: &Endpoint,
        request: RemoteRequest,
    ) -> BoxFuture<'static, Result<RemoteReply, RemoteFault>> {
        let path = request.key.split('?').next().unwrap_or_default();
        let object = format!("{endpoint}/{}", path.trim_start_matches('/'));
        self.asked.lock().push(Asked {
            at: Instant::now(),
            endpoint: endpoint.to_string(),
            request,
        });
        let used = Arc::clone(&self.used);
        let body = self.objects.lock().get(&object).cloned();
        Box::pin(async move {
            if object.ends_with("/slow") {
                std::future::pending::<()>().await;
            }
            let body = body.ok_or_else(|| RemoteFault {
                kind: InputFaultKind::NotFound,
                problem: "there is no such object".to_owned(),
            })?;
            Ok(RemoteReply {
                memory: Arc::new(Memory(body, used)),
                object: Some(Arc::new(StoreRead {
                    object: match object.strip_prefix("sqs://") {
                        Some(queue) => StoreObject::Sqs {
                            url: format!("https://{queue}"),
                            action: "ReceiveMessage".to_owned(),
                            arguments_sha256: String::new(),
                        },
                        None => StoreObject::S3 {
                            endpoint: None,
                            bucket: "photos".to_owned(),
                            key: object,
                            headers: Vec::new(),
                        },
                    },
                    asked: pilot_model::Instant(0),
                })),
                status: 200,
                way: TransferWay::Fetched,
            })
        })
    }

    fn open(&self, _: &FunctionConfig, endpoint: &Endpoint) -> Arc<dyn RawConnection> {
        Arc::new(Raw(endpoint.host() == "db"))
    }

    fn keep(
        &self,
        _: &FunctionName,
        bytes: Vec<u8>,
    ) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
        let memory = Memory(bytes, Arc::clone(&self.used));
        Box::pin(async move { Ok(Arc::new(memory) as Arc<dyn InputMemory>) })
    }
}

/// Answers with what it is asked. Nobody is there if it is false.
#[derive(Debug)]
struct Raw(bool);

impl Raw {
    fn check(&self) -> Result<(), RemoteFault> {
        self.0.then_some(()).ok_or_else(|| RemoteFault {
            kind: InputFaultKind::Unavailable,
            problem: "nobody is there".to_owned(),
        })
    }
}

impl RawConnection for Raw {
    fn exchange(&self, request: RemoteRequest) -> BoxFuture<'static, Result<Vec<u8>, RemoteFault>> {
        let answer = self.check().map(|()| request.body.to_vec());
        Box::pin(async move { answer })
    }

    fn hand_over(&self, takes: Takes) -> BoxFuture<'static, Result<HandedSocket, RemoteFault>> {
        assert_eq!(takes, Takes::Descriptor);
        let handed = self.check().map(|()| HandedSocket {
            descriptor: File::open("/dev/null").expect("it is there").into(),
            kept: None,
        });
        Box::pin(async move { handed })
    }
}

#[derive(Debug)]
struct Memory(
    Vec<u8>,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

impl InputMemory for Memory {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        let file = tempfile::tempfile()?;
        file.write_all_at(&self.0, 0)?;
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len: self.bytes() },
            descriptor: Arc::new(file.into()),
            object: None,
            decoded: None,
        })
    }
}

/// A module with this body: it imports all functions of the host and has a memory of one page.
pub(crate) fn script(body: &str) -> String {
    format!(
        r#"(module
        (import "pilotlight_v1" "connect" (func $connect (param i32 i32) (result i32)))
        (import "pilotlight_v1" "send_rpc" (func $send_rpc (param i32 i64 i32 i32) (result i32)))
        (import "pilotlight_v1" "recv_rpc_reply" (func $recv (param i32 i64) (result i32)))
        (import "pilotlight_v1" "reply_len" (func $reply_len (param i32) (result i64)))
        (import "pilotlight_v1" "reply_status" (func $reply_status (param i32) (result i32)))
        (import "pilotlight_v1" "reply_read" (func $reply_read (param i32 i64 i32 i32) (result i32)))
        (import "pilotlight_v1" "send_msg" (func $send_msg (param i64 i32 i32) (result i32)))
        (import "pilotlight_v1" "send_reply" (func $send_reply (param i64 i32 i64) (result i32)))
        (import "pilotlight_v1" "transfer_conn" (func $transfer_conn (param i64 i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "recv_msg" (func $recv_msg (param i64 i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "exit" (func $exit (param i32)))
        (import "pilotlight_v1" "event_read" (func $event_read (param i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "event_value" (func $event_value (param i32 i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "reply_value" (func $reply_value (param i32 i32 i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "json_value" (func $json_value (param i32 i32 i32 i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "input_read" (func $input_read (param i32 i32 i32) (result i32)))
        (import "pilotlight_v1" "error_read" (func $error_read (param i32 i32) (result i32)))
        (import "pilotlight_v1" "log" (func $log (param i32 i32)))
        (memory (export "memory") 1)
        (func $expect (param i32 i32) (if (i32.ne (local.get 0) (local.get 1)) (then unreachable)))
        {body})"#
    )
}

/// The folder of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}
