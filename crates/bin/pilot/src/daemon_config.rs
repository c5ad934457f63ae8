//! The daemon's configuration, from `pilotd.toml` and the arguments of `pilot serve`, with defaults filled in. An argument wins
//! over the file, and the file over the default.

pub(crate) mod build;

use std::fs;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ipnet::Ipv4Net;
use pilot_model::nearest::with_nearest_key;
use pilot_telemetry::LogFormat;
use serde::{Deserialize, Deserializer};

use self::build::Build;
use crate::serve_args::{self, ServeArgs};

/// The daemon's configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DaemonConfig {
    /// Address to listen on.
    pub(crate) listen: SocketAddr,
    /// Data directory: functions, environments, logs.
    pub(crate) data_dir: PathBuf,
    /// Refuse to start if the machine cannot enforce every limit.
    pub(crate) strict: bool,
    /// Token that callers of the control API must send.
    pub(crate) control_token: Option<String>,
    /// Token that callers of functions must send.
    pub(crate) invoke_token: Option<String>,
    /// Its names, apart from `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Address range of functions with `network = "outbound"`.
    pub(crate) outbound_cidr: Ipv4Net,
    /// The Docker Engine that runs containers, `unix:///path`. `None`: `DOCKER_HOST`, or Docker's default socket.
    pub(crate) container_engine: Option<String>,
    /// Format of the daemon's own log.
    pub(crate) log_format: LogFormat,
    /// Level of the daemon's own log.
    pub(crate) log_level: String,
    /// The limits.
    pub(crate) limits: Limits,
    /// How packages are installed.
    pub(crate) build: Build,
}

/// `[limits]` of `pilotd.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Limit of the memory of all templates and workers (PSS), MiB. Above it the coldest are evicted. 0: no limit.
    #[serde(deserialize_with = "zero_is_no_limit")]
    pub(crate) memory_mb: Option<NonZeroU64>,
    /// Memory limit of the template of an interpreter or environment, MiB.
    pub(crate) template_memory_mb: u64,
    /// Size of a worker's `/tmp`, MiB. It counts as the worker's memory, too.
    pub(crate) tmp_mb: u64,
    /// Highest number of processes and threads of a worker.
    pub(crate) pids: u32,
    /// Highest number of waiting requests of one function.
    pub(crate) queue: usize,
    /// Highest number of open connections.
    pub(crate) connections: usize,
    /// Time that running requests get when the daemon stops, seconds.
    pub(crate) drain_s: f64,
    /// Highest number of runtimes that cannot fork (sandboxes, containers), used and kept ones together. 0: none is kept, and every
    /// worker gets a new one.
    pub(crate) runtimes: usize,
    /// Used share of the machine's memory and swap above which kept runtimes are ended, oldest first, per cent.
    pub(crate) runtimes_memory_percent: u8,
    /// A kept runtime is ended after this time without use, unless a forecast wants it, seconds.
    pub(crate) runtimes_keep_s: f64,
    /// First host user and group id for functions. They use 65,536 ids from there.
    pub(crate) id_base: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: None,
            template_memory_mb: 2048,
            tmp_mb: 512,
            pids: 256,
            queue: 1000,
            connections: 1024,
            drain_s: 30.0,
            runtimes: 500,
            runtimes_memory_percent: 80,
            runtimes_keep_s: 600.0,
            id_base: 1_900_000_000,
        }
    }
}

fn zero_is_no_limit<'de, D: Deserializer<'de>>(limit: D) -> Result<Option<NonZeroU64>, D::Error> {
    u64::deserialize(limit).map(NonZeroU64::new)
}

impl Limits {
    pub(crate) fn runtimes_keep(&self) -> Duration {
        Duration::from_secs_f64(self.runtimes_keep_s)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs_f64(self.drain_s)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    listen: Option<SocketAddr>,
    data_dir: Option<PathBuf>,
    strict: bool,
    control_token: Option<String>,
    invoke_token: Option<String>,
    public_invocations: bool,
    hosts: Vec<String>,
    outbound_cidr: Option<Ipv4Net>,
    container_engine: Option<String>,
    log: Log,
    limits: Limits,
    build: Build,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    format: Option<String>,
    level: Option<String>,
}

impl DaemonConfig {
    /// Reads the configuration file, if one is given, and applies the arguments.
    ///
    /// # Errors
    /// The file is invalid (the error names the key and valid values), or there is no data directory.
    pub(crate) fn load(args: &ServeArgs) -> anyhow::Result<Self> {
        let file = match &args.config {
            Some(path) => {
                let text = fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                parse(&text, path)?
            }
            None => File::default(),
        };
        let log_format = match (args.log_format, &file.log.format) {
            (Some(serve_args::LogFormat::Text), _) => LogFormat::Text,
            (Some(serve_args::LogFormat::Json), _) => LogFormat::Json,
            (None, Some(word)) => word.parse().context("log.format")?,
            (None, None) => LogFormat::default(),
        };
        let listen = args.listen.or(file.listen);
        let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
        refuse_openness(listen, &file)?;
        let level = args.log_level.clone().or(file.log.level);
        Ok(Self {
            listen,
            data_dir: match args.data_dir.clone().or(file.data_dir) {
                Some(dir) => std::path::absolute(&dir)?,
                None => default_data_dir()?,
            },
            strict: args.strict || file.strict,
            control_token: file.control_token,
            invoke_token: file.invoke_token,
            hosts: file.hosts,
            outbound_cidr: file
                .outbound_cidr
                .unwrap_or(pilot_sandbox::OUTBOUND_CIDR_DEFAULT),
            container_engine: file.container_engine,
            log_format,
            log_level: level.unwrap_or_else(|| "info".to_owned()),
            limits: file.limits,
            build: file.build,
        })
    }
}

/// Who can reach the daemon from another machine could deploy, which means running code here.
fn refuse_openness(listen: SocketAddr, file: &File) -> anyhow::Result<()> {
    if listen.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if file.control_token.is_none() {
        bail!(
            "other machines can reach {listen}, and anyone there could deploy functions: set control_token in pilotd.toml \
             (pilot serve --config pilotd.toml), or listen on 127.0.0.1"
        );
    }
    if file.invoke_token.is_none() && !file.public_invocations {
        bail!(
            "other machines can reach {listen}, and anyone there could call functions: set invoke_token in pilotd.toml, or \
             public_invocations = true if that is wanted"
        );
    }
    Ok(())
}

fn parse(text: &str, path: &Path) -> anyhow::Result<File> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let problem = with_nearest_key(error.message());
        anyhow::anyhow!("{}:{line}: {problem}", path.display())
    })?;
    file.build
        .check()
        .map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
    let limits = &file.limits;
    for (key, fits) in [
        ("limits.template_memory_mb", limits.template_memory_mb >= 32),
        ("limits.tmp_mb", limits.tmp_mb >= 1),
        ("limits.pids", limits.pids >= 4),
        ("limits.connections", limits.connections >= 1),
        ("limits.drain_s", (0.0..=3600.0).contains(&limits.drain_s)),
        (
            "limits.runtimes_memory_percent",
            (1..=100).contains(&limits.runtimes_memory_percent),
        ),
        (
            "limits.runtimes_keep_s",
            (0.0..=86_400.0).contains(&limits.runtimes_keep_s),
        ),
        (
            "limits.id_base",
            (65_536..2_000_000_000).contains(&limits.id_base),
        ),
    ] {
        if !fits {
            bail!("{}: {key} is out of range", path.display());
        }
    }
    for (key, token) in [
        ("control_token", &file.control_token),
        ("invoke_token", &file.invoke_token),
    ] {
        if token.as_ref().is_some_and(String::is_empty) {
            bail!(
                "{}: {key} is empty; give one, or leave the key out",
                path.display()
            );
        }
    }
    if let Some(engine) = &file.container_engine
        && !engine.starts_with("unix:///")
    {
        bail!(
            "{}: container_engine is \"{engine}\", must be a socket on this machine, for example \
             \"unix:///var/run/docker.sock\"",
            path.display()
        );
    }
    Ok(file)
}

/// `/var/lib/pilotlight` for root, otherwise below the user's data directory (XDG Base Directory Specification).
fn default_data_dir() -> anyhow::Result<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/pilotlight"));
    }
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("pilotlight"))
        .context("neither XDG_DATA_HOME nor HOME is set: name a folder with --data-dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_names_file_line_and_the_nearest_known_one() {
        let problem = parse(
            "strict = true\n[limits]\nmemroy_mb = 1\n",
            Path::new("pilotd.toml"),
        )
        .unwrap_err()
        .to_string();
        assert!(problem.starts_with("pilotd.toml:3: "), "{problem}");
        assert!(problem.contains("did you mean 'memory_mb'?"), "{problem}");
    }

    #[test]
    fn an_argument_wins_over_the_default() {
        let args = ServeArgs {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 1))),
            data_dir: Some(PathBuf::from("/d")),
            ..ServeArgs::default()
        };
        let config = DaemonConfig::load(&args).unwrap();
        assert_eq!(config.listen.port(), 1);
        assert_eq!(config.data_dir, PathBuf::from("/d"));
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn what_other_machines_can_reach_needs_tokens() {
        let refused = |address: &str, text: &str| {
            let file = parse(text, Path::new("f")).unwrap();
            refuse_openness(address.parse().unwrap(), &file)
                .err()
                .map(|error| error.to_string())
        };
        for address in [
            "127.0.0.1:80",
            "127.8.0.1:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(refused(address, ""), None, "{address}");
        }
        for address in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            let problem = refused(address, "invoke_token = \"i\"").unwrap();
            assert!(problem.contains("set control_token"), "{problem}");
            let problem = refused(address, "control_token = \"c\"").unwrap();
            assert!(problem.contains("set invoke_token"), "{problem}");
            let both = "control_token = \"c\"\ninvoke_token = \"i\"";
            assert_eq!(refused(address, both), None);
            let public = "control_token = \"c\"\npublic_invocations = true";
            assert_eq!(refused(address, public), None);
        }
    }

    #[test]
    fn the_range_of_outbound_functions_is_read_or_refused() {
        let file = parse("outbound_cidr = \"10.9.0.0/16\"\n", Path::new("f")).unwrap();
        assert_eq!(file.outbound_cidr.unwrap().prefix_len(), 16);
        assert!(parse("outbound_cidr = \"10.9\"\n", Path::new("f")).is_err());
    }

    #[test]
    fn an_empty_token_is_refused() {
        assert!(parse("control_token = \"\"\n", Path::new("f")).is_err());
    }
}
