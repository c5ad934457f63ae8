//! `pilotd.toml` and the arguments of `pilot serve`, put together: what the daemon is to do, with nothing optional left over.
//! An argument wins over the file, the file over the default.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ipnet::Ipv4Net;
use pilot_model::nearest::with_nearest_key;
use pilot_telemetry::LogFormat;
use serde::Deserialize;

use crate::serve_args::{self, ServeArgs};

/// The daemon's configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DaemonConfig {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Where functions, environments and logs are kept.
    pub(crate) data_dir: PathBuf,
    /// Refuse to start where the machine cannot enforce every limit.
    pub(crate) strict: bool,
    /// What callers of the control API must show.
    pub(crate) control_token: Option<String>,
    /// What callers of functions must show.
    pub(crate) invoke_token: Option<String>,
    /// Where functions with `network = "outbound"` get their addresses from.
    pub(crate) outbound_cidr: Ipv4Net,
    /// The Docker Engine that containers are asked of, `unix:///path`. `None`: what `DOCKER_HOST` says, or Docker's own socket.
    pub(crate) container_engine: Option<String>,
    /// How the daemon's own log is written.
    pub(crate) log_format: LogFormat,
    /// What it tells.
    pub(crate) log_level: String,
    /// The named bounds.
    pub(crate) limits: Limits,
}

/// `[limits]` of `pilotd.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Memory of all templates and workers (PSS), MiB, beyond which the coldest are evicted. 0: no bound.
    pub(crate) memory_mb: u64,
    /// Memory of an interpreter's or environment's template, MiB.
    pub(crate) template_memory_mb: u64,
    /// `/tmp` of a worker, MiB. It counts as the worker's memory, too.
    pub(crate) tmp_mb: u64,
    /// Processes and threads of a worker.
    pub(crate) pids: u32,
    /// Requests of one function that may wait.
    pub(crate) queue: usize,
    /// Open connections.
    pub(crate) connections: usize,
    /// What running requests get when the daemon stops, seconds.
    pub(crate) drain_s: f64,
    /// Runtimes that cannot fork (sandboxes, containers), in use and kept, at once. 0: none is kept, every worker gets a new one.
    pub(crate) runtimes: usize,
    /// Share of the machine's memory and swap in use beyond which kept runtimes are ended, the oldest first, per cent.
    pub(crate) runtimes_memory_percent: u8,
    /// A kept runtime that nobody needed and no forecast wants is ended after this, seconds.
    pub(crate) runtimes_keep_s: f64,
    /// First host user and group id given to functions; 65,536 from there on are used.
    pub(crate) id_base: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: 0,
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
    outbound_cidr: Option<Ipv4Net>,
    container_engine: Option<String>,
    log: Log,
    limits: Limits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    format: Option<String>,
    level: Option<String>,
}

impl DaemonConfig {
    /// Reads the file, if one is named, and puts the arguments over it.
    ///
    /// # Errors
    /// The file, with the key and what would do; or no data directory.
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
        let level = args.log_level.clone().or(file.log.level);
        Ok(Self {
            listen: listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080))),
            data_dir: match args.data_dir.clone().or(file.data_dir) {
                Some(dir) => std::path::absolute(&dir)?,
                None => default_data_dir()?,
            },
            strict: args.strict || file.strict,
            control_token: file.control_token,
            invoke_token: file.invoke_token,
            outbound_cidr: file
                .outbound_cidr
                .unwrap_or(pilot_sandbox::OUTBOUND_CIDR_DEFAULT),
            container_engine: file.container_engine,
            log_format,
            log_level: level.unwrap_or_else(|| "info".to_owned()),
            limits: file.limits,
        })
    }
}

fn parse(text: &str, path: &Path) -> anyhow::Result<File> {
    let file: File = toml::from_str(text).map_err(|error| {
        let line = error
            .span()
            .map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        let problem = with_nearest_key(error.message());
        anyhow::anyhow!("{}:{line}: {problem}", path.display())
    })?;
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

/// `/var/lib/pilotlight` for root, else below the user's data folder (XDG Base Directory Specification).
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
