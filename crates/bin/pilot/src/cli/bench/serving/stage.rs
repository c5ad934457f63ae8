//! What `pilot bench serving` calls: functions that it deploys, and a server of its own. All of it is gone when the stage is.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use pilot_loadgen::request::Site;
use pilot_model::{FunctionName, FunctionSpec};

use crate::cli::Connection;
use crate::cli::client::Client;
use crate::cli::deploy;
use crate::cli::progress::Show;
use crate::cli::project::Target;

/// See the module.
pub(super) struct Stage<'a> {
    client: &'a Client,
    /// What every request to the daemon carries.
    headers: Vec<(String, String)>,
    /// Where the functions' code is put together.
    folder: PathBuf,
    deployed: Vec<FunctionName>,
    direct: Option<Child>,
}

/// A request that can be sent.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) address: SocketAddr,
    pub(super) request: Vec<u8>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(client: &'a Client, connection: &Connection) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
        // Not `create_dir_all`: a folder that is there already is somebody else's.
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let token = connection.token.as_ref();
        Ok(Self {
            client,
            headers: token
                .map(|token| ("authorization".to_owned(), format!("Bearer {token}")))
                .into_iter()
                .collect(),
            folder,
            deployed: Vec::new(),
            direct: None,
        })
    }

    pub(super) fn healthz(&self) -> anyhow::Result<Called> {
        self.called("GET", "/healthz", b"")
    }

    pub(super) fn fork_worker(&mut self) -> anyhow::Result<Called> {
        let spec = FunctionSpec {
            handler: Some("app.handler".to_owned()),
            ..FunctionSpec::default()
        };
        let name = self.deploy("fork", APP, spec)?;
        self.invoked(&name)
    }

    pub(super) fn runtime_api(&mut self) -> anyhow::Result<Called> {
        let spec = FunctionSpec {
            runtime: Some("provided".to_owned()),
            command: Some(python(POLL.name)),
            ..FunctionSpec::default()
        };
        let name = self.deploy("poll", POLL, spec)?;
        self.invoked(&name)
    }

    pub(super) fn http_server(&mut self) -> anyhow::Result<Called> {
        let spec = FunctionSpec {
            runtime: Some("http".to_owned()),
            command: Some(python(SERVER.name)),
            ..FunctionSpec::default()
        };
        let name = self.deploy("http", SERVER, spec)?;
        self.called("GET", &format!("/fn/{name}/"), b"")
    }

    /// The same program as that of [`Stage::http_server`], as a child of this process.
    pub(super) fn http_direct(&mut self) -> anyhow::Result<Called> {
        let program = self.write("direct", SERVER)?.join(SERVER.name);
        let mut command = Command::new("python3");
        command.arg(&program).env("PORT", "0");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("python3, for the server that is called directly")?;
        // Kept before anything can fail, so that it is ended whatever happens.
        let child = self.direct.insert(child);
        let mut line = String::new();
        let output = child.stdout.as_mut().context("its output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let port: u16 = line
            .trim()
            .parse()
            .with_context(|| format!("{} did not say its port", program.display()))?;
        let (site, path) = Site::of(&format!("http://127.0.0.1:{port}/"))?;
        Ok(Called {
            request: site.encode("GET", &path, &[], b""),
            address: site.address,
        })
    }

    fn deploy(
        &mut self,
        word: &str,
        code: Code,
        spec: FunctionSpec,
    ) -> anyhow::Result<FunctionName> {
        let folder = self.write(word, code)?;
        let name: FunctionName = format!("{PREFIX}{word}-{}", std::process::id()).parse()?;
        let target = Target {
            name: name.clone(),
            spec,
            folder,
        };
        deploy::deploy(self.client, &target, Show::Nothing)?;
        self.deployed.push(name.clone());
        Ok(name)
    }

    fn write(&self, word: &str, code: Code) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join(word);
        fs::create_dir(&folder)
            .and_then(|()| fs::write(folder.join(code.name), code.text))
            .with_context(|| folder.display().to_string())?;
        Ok(folder)
    }

    fn invoked(&self, name: &FunctionName) -> anyhow::Result<Called> {
        let path = format!("/2015-03-31/functions/{name}/invocations");
        self.called("POST", &path, b"{}")
    }

    fn called(&self, method: &str, path: &str, body: &[u8]) -> anyhow::Result<Called> {
        let (site, path) = Site::of(&format!("{}{path}", self.client.endpoint()))?;
        Ok(Called {
            request: site.encode(method, &path, &self.headers, body),
            address: site.address,
        })
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.direct {
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in &self.deployed {
            if let Err(error) = self.client.delete_function(name) {
                crate::cli::output::note(&format!(
                    "{name} is still deployed: {error:#}; `pilot remove {name}` takes it away"
                ));
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A function's one file.
#[derive(Debug, Clone, Copy)]
struct Code {
    name: &'static str,
    text: &'static str,
}

const APP: Code = Code {
    name: "app.py",
    text: include_str!("app.py"),
};
const POLL: Code = Code {
    name: "poll.py",
    text: include_str!("poll.py"),
};
const SERVER: Code = Code {
    name: "server.py",
    text: include_str!("server.py"),
};

fn python(file: &str) -> Vec<String> {
    vec!["python3".to_owned(), file.to_owned()]
}

/// Of the functions' names and of the folder.
const PREFIX: &str = "pilot-bench-serving-";
