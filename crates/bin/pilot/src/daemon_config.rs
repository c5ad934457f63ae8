//! The daemon's configuration, from `pilotd.toml` and the arguments of `pilot serve`, with defaults filled in. An argument wins
//! over the file, and the file over the default.

pub(crate) mod build;
mod configured_tokens;
pub(crate) mod connections;
pub(crate) mod data;
mod kinds;
mod limits;
mod network;
pub(crate) mod nodes;
pub(crate) mod pool;
mod ranges;
mod remote;
pub(crate) mod traces;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ipnet::Ipv4Net;
use pilot_gateway::Access;
use pilot_model::manifest::{in_words, list_for_table, syntax_in_words};
use pilot_telemetry::{LogFormat, logging};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::build::Build;
use self::configured_tokens::ValidToken;
pub(crate) use self::configured_tokens::tokens_of;
use self::connections::ConnectionSettings;
use self::data::{DataLimits, InitscriptLimits, StoreSettings};
use self::limits::Limits;
use self::nodes::NodesSettings;
use self::pool::PoolConstants;
use self::ranges::in_range;
use self::traces::TraceSettings;
use crate::control_socket::ControlSocket;
use crate::listen;
use crate::serve_args::{self, ServeArgs};
use crate::tls::TlsFiles;

/// The daemon's configuration, checked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DaemonConfig {
    /// Address for functions: their URLs and the Invoke API.
    pub(crate) listen: SocketAddr,
    /// Address for the control API, apart from its socket; may be the same.
    pub(crate) control_listen: Option<SocketAddr>,
    /// The certificate of `listen`. `None`: no TLS.
    pub(crate) tls: Option<TlsFiles>,
    /// The certificate of `control_listen`.
    pub(crate) control_tls: Option<TlsFiles>,
    /// HTTP/2 on addresses without TLS.
    pub(crate) h2c: bool,
    /// The control API's socket.
    pub(crate) control_socket: ControlSocket,
    /// Whether a call of a function over TCP needs a token.
    pub(crate) calls: Access,
    /// The configuration file. Its tokens are read later: see [`tokens_of`].
    pub(crate) file: Option<PathBuf>,
    /// Data directory: functions, environments, logs.
    pub(crate) data_dir: PathBuf,
    /// Refuse to start if the machine cannot enforce every limit.
    pub(crate) strict: bool,
    /// Its names, apart from `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Address range of functions with `network = "outbound"`.
    pub(crate) outbound_cidr: Ipv4Net,
    /// The memory of Python's templates becomes huge pages.
    pub(crate) huge_pages: bool,
    /// The longest that a thread polls for events before it sleeps. Zero: it sleeps at once.
    pub(crate) busy_poll: Duration,
    /// The Docker Engine that runs containers, `unix:///path`. `None`: `DOCKER_HOST`, or Docker's default socket.
    pub(crate) container_engine: Option<String>,
    /// The control group around containers, as the engine names it. `None`: the daemon's.
    pub(crate) container_cgroup_parent: Option<String>,
    /// Format of the daemon's own log.
    pub(crate) log_format: LogFormat,
    /// Level of the daemon's own log.
    pub(crate) log_level: String,
    /// The limits.
    pub(crate) limits: Limits,
    /// The constants of the pools.
    pub(crate) pool: PoolConstants,
    /// How packages are installed.
    pub(crate) build: Build,
    /// The memory for inputs.
    pub(crate) data: DataLimits,
    /// Where inputs come from, by name.
    pub(crate) stores: BTreeMap<String, StoreSettings>,
    /// Which sources of triggers and destinations functions may use, by name.
    pub(crate) connections: BTreeMap<String, ConnectionSettings>,
    /// The memory for initscripts.
    pub(crate) initscripts: InitscriptLimits,
    /// The other nodes. `None`: there are none.
    pub(crate) nodes: Option<NodesSettings>,
    /// Where traces are sent. `None`: nothing is recorded.
    pub(crate) traces: Option<TraceSettings>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    #[serde(deserialize_with = "listen::of_key")]
    listen: Option<SocketAddr>,
    #[serde(deserialize_with = "listen::of_key")]
    control_listen: Option<SocketAddr>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    control_tls_certificate: Option<PathBuf>,
    control_tls_key: Option<PathBuf>,
    h2c: bool,
    control_socket: Option<PathBuf>,
    data_dir: Option<PathBuf>,
    strict: bool,
    /// Only whether it is there: see [`tokens_of`].
    control_token: Option<ValidToken>,
    invoke_token: Option<ValidToken>,
    invocations: Option<Invocations>,
    public_invocations: bool,
    hosts: Vec<String>,
    #[serde(deserialize_with = "network::of_key")]
    outbound_cidr: Option<Ipv4Net>,
    huge_pages: Option<bool>,
    busy_poll_us: Option<u32>,
    container_engine: Option<String>,
    container_cgroup_parent: Option<String>,
    log: Log,
    limits: Limits,
    pool: PoolConstants,
    build: Build,
    data: DataLimits,
    stores: BTreeMap<String, StoreSettings>,
    connections: BTreeMap<String, ConnectionSettings>,
    initscripts: InitscriptLimits,
    nodes: Option<NodesSettings>,
    traces: Option<TraceSettings>,
}

/// Who may call functions over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Invocations {
    /// Everyone.
    Open,
    /// Those with a token.
    Token,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Log {
    #[serde(deserialize_with = "format_of_key")]
    format: Option<LogFormat>,
    #[serde(deserialize_with = "level_of_key")]
    level: Option<String>,
}

fn format_of_key<'de, D: Deserializer<'de>>(key: D) -> Result<Option<LogFormat>, D::Error> {
    let word = String::deserialize(key)?;
    word.parse().map(Some).map_err(D::Error::custom)
}

fn level_of_key<'de, D: Deserializer<'de>>(key: D) -> Result<Option<String>, D::Error> {
    let level = String::deserialize(key)?;
    logging::check_level(&level).map_err(D::Error::custom)?;
    Ok(Some(level))
}

/// The longest busy poll by default: what Linux uses as a guest (`guest_halt_poll_ns`, Documentation/virt/guest-halt-polling.rst), for the
/// same reason.
const BUSY_POLL: Duration = Duration::from_micros(200);

/// The longest that may be configured, µs.
const BUSY_POLL_US_MAX: u32 = 1000;

impl DaemonConfig {
    /// Reads the configuration file, if one is given, and applies the arguments.
    ///
    /// # Errors
    /// The file is invalid (the error names the key and valid values), or there is no data directory.
    pub(crate) fn load(args: &ServeArgs) -> anyhow::Result<Self> {
        let file = match &args.config {
            Some(path) => {
                let mut text =
                    fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
                let parsed = std::str::from_utf8(&text)
                    .map_err(|_| {
                        anyhow::anyhow!("{}: is not UTF-8; save it as UTF-8", path.display())
                    })
                    .and_then(|text| parse(text, path));
                // The file may have tokens, and the spawner is a copy of this process.
                text.fill(0);
                std::hint::black_box(&text);
                parsed?
            }
            None => File::default(),
        };
        let log_format = match args.log_format {
            Some(serve_args::LogFormat::Text) => LogFormat::Text,
            Some(serve_args::LogFormat::Json) => LogFormat::Json,
            None => file.log.format.unwrap_or_default(),
        };
        let listen = args.listen.or(file.listen);
        let listen = listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 8080)));
        let control_listen = args.control_listen.or(file.control_listen);
        // What the file says is wrong, or with what the arguments say; without the file's name nobody would know where.
        let of_file = |error| in_file(args, error);
        let (tls, control_tls) = tls(args, &file, listen, control_listen).map_err(of_file)?;
        let calls = calls(listen, &file).map_err(of_file)?;
        let level = args.log_level.clone().or(file.log.level);
        let level = level.unwrap_or_else(|| "info".to_owned());
        let data_dir = match (&args.data_dir, &file.data_dir, &args.config) {
            (Some(dir), _, _) => absolute(dir, "--data-dir")?,
            (None, Some(dir), Some(file)) => {
                absolute(dir, &format!("{}: data_dir", file.display()))?
            }
            _ => default_data_dir()?,
        };
        let runtime_directory = std::env::var("RUNTIME_DIRECTORY").ok();
        let control_socket =
            ControlSocket::resolve(file.control_socket, runtime_directory.as_deref(), &data_dir)
                .map_err(|error| of_file(error.into()))?;
        Ok(Self {
            listen,
            control_listen,
            tls,
            control_tls,
            h2c: args.h2c || file.h2c,
            control_socket,
            calls,
            file: args.config.clone(),
            data_dir,
            strict: args.strict || file.strict,
            hosts: file.hosts,
            outbound_cidr: file
                .outbound_cidr
                .unwrap_or(pilot_sandbox::OUTBOUND_CIDR_DEFAULT),
            huge_pages: file.huge_pages.unwrap_or(true),
            busy_poll: file
                .busy_poll_us
                .map_or(BUSY_POLL, |us| Duration::from_micros(us.into())),
            container_engine: file.container_engine,
            container_cgroup_parent: file.container_cgroup_parent,
            log_format,
            log_level: level,
            limits: file.limits,
            pool: file.pool,
            build: file.build,
            data: file.data,
            stores: file.stores,
            connections: file.connections,
            initscripts: file.initscripts,
            nodes: file.nodes,
            traces: file.traces,
        })
    }
}

/// Names the configuration file, if there is one.
fn in_file(args: &ServeArgs, error: anyhow::Error) -> anyhow::Error {
    match &args.config {
        Some(path) => anyhow::anyhow!("{}: {error}", path.display()),
        None => error,
    }
}

/// The certificates of the address for functions and of the control API's.
///
/// # Errors
/// A key is missing, or would have no effect.
fn tls(
    args: &ServeArgs,
    file: &File,
    listen: SocketAddr,
    control_listen: Option<SocketAddr>,
) -> anyhow::Result<(Option<TlsFiles>, Option<TlsFiles>)> {
    fn either<'a>(given: &'a Option<PathBuf>, configured: &'a Option<PathBuf>) -> Option<&'a Path> {
        given.as_deref().or(configured.as_deref())
    }
    let functions = TlsFiles::of(
        ["tls_certificate", "tls_key"],
        either(&args.tls_certificate, &file.tls_certificate),
        either(&args.tls_key, &file.tls_key),
    )?;
    let control = TlsFiles::of(
        ["control_tls_certificate", "control_tls_key"],
        either(&args.control_tls_certificate, &file.control_tls_certificate),
        either(&args.control_tls_key, &file.control_tls_key),
    )?;
    if control.is_some() {
        match control_listen {
            None => bail!(
                "control_tls_certificate is set, but control_listen is not: the control socket needs no TLS"
            ),
            Some(address) if address == listen => bail!(
                "control_tls_certificate is set, but control_listen is the same address as listen: tls_certificate is for both"
            ),
            Some(_) => {}
        }
    }
    let is_all_tls = functions.is_some()
        && (control.is_some() || control_listen.is_none_or(|address| address == listen));
    if (args.h2c || file.h2c) && is_all_tls {
        bail!(
            "h2c is set, but every address has a certificate, with which HTTP/2 is served already"
        );
    }
    Ok((functions, control))
}

/// Whether calls need a token. By default only if there is one for them.
///
/// # Errors
/// Other machines can reach the address, and nobody has said whether they may call functions.
fn calls(listen: SocketAddr, file: &File) -> anyhow::Result<Access> {
    let wanted = match file.invocations {
        Some(Invocations::Token) => Some(Access::Token),
        Some(Invocations::Open) => Some(Access::Open),
        None if file.invoke_token.is_some() => Some(Access::Token),
        None if file.public_invocations => Some(Access::Open),
        None => None,
    };
    match wanted {
        // `open` was meant for this machine unless `public_invocations` says otherwise.
        Some(Access::Open) if is_local(listen) || file.public_invocations => Ok(Access::Open),
        Some(Access::Token) => Ok(Access::Token),
        None if is_local(listen) => Ok(Access::Open),
        Some(Access::Open) | None => bail!(
            "other machines can reach {listen}, and anyone there could call functions: set invocations = \"token\" in pilotd.toml \
             (pilot serve --config pilotd.toml; `pilot token create` makes tokens), or public_invocations = true if that is \
             wanted, or listen on 127.0.0.1"
        ),
    }
}

fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The absolute path of a data directory. `named`: where it is from.
fn absolute(dir: &Path, named: &str) -> anyhow::Result<PathBuf> {
    if dir.as_os_str().is_empty() {
        bail!("{named} is empty: name a folder, or leave it out");
    }
    std::path::absolute(dir).with_context(|| named.to_owned())
}

fn parse(text: &str, path: &Path) -> anyhow::Result<File> {
    let at = |start: usize, problem: String| {
        let line = text[..start].matches('\n').count() + 1;
        anyhow::anyhow!("{}:{line}: {problem}", path.display())
    };
    let of_error = |error: &toml::de::Error, problem: String| {
        at(error.span().map_or(0, |span| span.start), problem)
    };
    let document =
        DeTable::parse(text).map_err(|error| of_error(&error, syntax_in_words(text, &error)))?;
    if let Some((start, problem)) = lists(document.get_ref()) {
        return Err(at(start, problem));
    }
    let document = toml::Deserializer::from(document);
    let file: File = serde_path_to_error::deserialize(document).map_err(|error| {
        let key = error.path().to_string();
        of_error(error.inner(), in_words(&key, error.inner().message()))
    })?;
    check_tables(&file).map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
    check_numbers(&file).map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
    check_containers(&file, path)?;
    check_hosts(&file.hosts).map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
    file.outbound_cidr
        .map_or(Ok(()), network::check)
        .map_err(|problem| anyhow::anyhow!("{}: {problem}", path.display()))?;
    Ok(file)
}

/// The first list where a table must be, and where it begins in the text.
fn lists(document: &DeTable<'_>) -> Option<(usize, String)> {
    let of = |key: &str, value: &Spanned<DeValue<'_>>| {
        Some((value.span().start, list_for_table(key, value.get_ref())?))
    };
    document.iter().find_map(|(key, value)| {
        let key = key.get_ref().as_ref();
        if TABLES.contains(&key) {
            return of(key, value);
        }
        let inside = TABLES_OF_TABLES
            .contains(&key)
            .then(|| value.get_ref().as_table())??;
        inside
            .iter()
            .find_map(|(name, value)| of(&format!("{key}.{}", name.get_ref()), value))
    })
}

/// The keys whose values are tables.
const TABLES: [&str; 8] = [
    "log",
    "limits",
    "pool",
    "build",
    "data",
    "initscripts",
    "nodes",
    "traces",
];
/// The keys whose values have a table for each name.
const TABLES_OF_TABLES: [&str; 2] = ["stores", "connections"];

/// Checks the numbers that have a range, and names it.
fn check_numbers(file: &File) -> Result<(), String> {
    file.limits.check()?;
    in_range(&[
        (
            "initscripts.memory_mb",
            "from 2 to 65536".to_owned(),
            (2..=65_536).contains(&file.initscripts.memory_mb),
        ),
        (
            "busy_poll_us",
            format!("from 0 to {BUSY_POLL_US_MAX}"),
            file.busy_poll_us.is_none_or(|us| us <= BUSY_POLL_US_MAX),
        ),
    ])
}

/// Checks the tables that check themselves.
fn check_tables(file: &File) -> Result<(), String> {
    file.build.check()?;
    file.pool.check()?;
    data::check(&file.data, &file.stores)?;
    connections::check(&file.connections)?;
    file.nodes.as_ref().map_or(Ok(()), NodesSettings::check)?;
    file.traces.as_ref().map_or(Ok(()), TraceSettings::check)
}

/// A name with a port or a scheme is never the daemon's.
fn check_hosts(hosts: &[String]) -> Result<(), String> {
    let is_name = |host: &&String| {
        let is_of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !host.is_empty() && host.bytes().all(is_of_a_name)
    };
    match hosts.iter().find(|host| !is_name(host)) {
        Some(host) => Err(format!(
            "hosts: \"{}\" is not a name; write it without a scheme, a port and a path, for example \"pilot.example.com\"",
            host.escape_default()
        )),
        None => Ok(()),
    }
}

fn check_containers(file: &File, path: &Path) -> anyhow::Result<()> {
    if let Some(engine) = &file.container_engine
        && !engine.starts_with("unix:///")
    {
        bail!(
            "{}: container_engine is \"{engine}\", must be a socket on this machine, for example \
             \"unix:///var/run/docker.sock\"",
            path.display()
        );
    }
    if file.container_cgroup_parent.as_deref() == Some("") {
        bail!(
            "{}: container_cgroup_parent is empty: leave it out, or name a slice of systemd (pilotlight-containers.slice) or a path",
            path.display()
        );
    }
    Ok(())
}

/// `/var/lib/pilotlight` for root, otherwise below the user's data directory (XDG Base Directory Specification).
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
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
    fn the_time_to_poll_has_a_range() {
        let parse = |us| parse(&format!("busy_poll_us = {us}\n"), Path::new("f"));
        assert!(parse(0).is_ok() && parse(1000).is_ok());
        let problem = parse(1001).unwrap_err().to_string();
        assert_eq!(problem, "f: busy_poll_us must be from 0 to 1000");
    }

    #[test]
    fn a_value_of_the_wrong_type_names_file_line_key_and_what_would_do() {
        for (text, wanted) in [
            (
                "[limits]\nmemory_mb = \"2G\"\n",
                "f:2: limits.memory_mb: is \"2G\", must be a whole number, not below 0; without quotes and without a unit, it is in MB",
            ),
            ("\nstrict = 1\n", "f:2: strict: is 1, must be true or false"),
            (
                "listen = \"localhost\"\n",
                "f:1: listen: is \"localhost\": use ADDRESS:PORT or NAME:PORT, for example 127.0.0.1:8080, [::1]:8080 or \
                 localhost:8080",
            ),
            ("limits = 3\n", "f:1: limits: is 3, must be a table of keys"),
            (
                "control_listen = \"10.0.0.1\"\n",
                "f:1: control_listen: is \"10.0.0.1\": has no port; use ADDRESS:PORT or NAME:PORT, for example 127.0.0.1:8080, \
                 [::1]:8080 or localhost:8080",
            ),
            (
                "invocations = \"tokens\"\n",
                "f:1: invocations: \"tokens\" is not valid, must be \"open\" or \"token\"",
            ),
            (
                "[log]\nformat = \"xml\"\n",
                "f:2: log.format: log format 'xml' is unknown: use text or json",
            ),
            (
                "strict = true\nstrict = false\n",
                "f:2: the key strict is there twice",
            ),
            (
                "outbound_cidr = \"10.9\"\n",
                "f:1: outbound_cidr: is \"10.9\", must be a range of IPv4 addresses, for example \"10.213.0.0/16\"",
            ),
            ("[traces]\n", "f:1: traces: the key 'endpoint' is missing"),
            (
                "[data]\ninitscript_networks = [\"x\"]\n",
                "f:2: data.initscript_networks: has \"x\", must be a list of ranges of addresses, for example [\"10.1.0.0/16\", \
                 \"fd00::/8\"]",
            ),
            (
                "[[limits]]\nworkers = 3\n",
                "f:1: limits: has two brackets, must be one table: [limits]",
            ),
            (
                "strict = true\nlimits = [1]\n",
                "f:2: limits: is a list, must be a table of keys",
            ),
            (
                "[stores]\nmain = [1]\n",
                "f:2: stores.main: is a list, must be a table of keys",
            ),
            (
                "control_token = abc\n",
                "f:1: control_token: a text needs quotes: control_token = \"…\"",
            ),
            (
                "data_dir = 5\n",
                "f:1: data_dir: is 5, must be a text in quotes",
            ),
            (
                "invocations = 3\n",
                "f:1: invocations: must be a text in quotes",
            ),
            (
                "[stores.a]\nfunctions = [\"*\"]\nkind = 3\n",
                "f:1: stores.a: kind: is 3, must be a text in quotes",
            ),
            (
                "[stores.a]\nfunctions = [\"*\"]\nkind = \"s3\"\ncredentials = 3\n",
                "f:1: stores.a: credentials: must be a text in quotes",
            ),
            (
                "[limits]\nworkers = 0\n",
                "f:2: limits.workers: is 0, must be a whole number, at least 1",
            ),
            (
                "hosts = [\"pilot.example.com\", \"https://a:1\"]\n",
                "f: hosts: \"https://a:1\" is not a name; write it without a scheme, a port and a path, for example \"pilot.example.com\"",
            ),
        ] {
            let problem = parse(text, Path::new("f")).unwrap_err().to_string();
            assert_eq!(problem, wanted, "{text}");
        }
    }

    #[test]
    fn a_level_of_the_log_that_does_not_exist_names_file_line_and_key() {
        let problem = parse("[log]\nlevel = \"loud\"\n", Path::new("f")).unwrap_err();
        let said = problem.to_string();
        assert!(said.starts_with("f:2: log.level: "), "{said}");
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("pilotd.toml");
        fs::write(&config, b"\xff\xfel\0").unwrap();
        let args = ServeArgs {
            config: Some(config),
            ..ServeArgs::default()
        };
        let problem = DaemonConfig::load(&args).unwrap_err().to_string();
        assert!(
            problem.ends_with("pilotd.toml: is not UTF-8; save it as UTF-8"),
            "{problem}"
        );
    }

    #[test]
    fn an_empty_data_directory_names_its_file_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("pilotd.toml");
        fs::write(&config, "data_dir = \"\"\n").unwrap();
        let mut args = ServeArgs {
            config: Some(config),
            ..ServeArgs::default()
        };
        let problem = DaemonConfig::load(&args).unwrap_err().to_string();
        assert!(
            problem.contains("pilotd.toml: data_dir is empty"),
            "{problem}"
        );
        args.data_dir = Some(PathBuf::new());
        let problem = DaemonConfig::load(&args).unwrap_err().to_string();
        assert!(problem.starts_with("--data-dir is empty"), "{problem}");
    }

    #[test]
    fn keys_that_do_not_fit_together_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("pilotd.toml");
        for text in [
            "control_socket = \"\"",
            "tls_key = \"x\"",
            "listen = \"0.0.0.0:1\"",
            "control_tls_key = \"a\"\ncontrol_tls_certificate = \"b\"",
            "h2c = true\ntls_key = \"a\"\ntls_certificate = \"b\"",
        ] {
            fs::write(&config, text).unwrap();
            let args = ServeArgs {
                config: Some(config.clone()),
                data_dir: Some(folder.path().join("data")),
                ..ServeArgs::default()
            };
            let problem = DaemonConfig::load(&args).unwrap_err().to_string();
            let file = config.display().to_string();
            assert!(problem.starts_with(&file), "{problem}");
        }
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
    fn a_certificate_that_nothing_would_use_is_refused() {
        let decided = |text: &str| {
            let file = parse(text, Path::new("f")).unwrap();
            let listen = file.listen.unwrap();
            tls(&ServeArgs::default(), &file, listen, file.control_listen)
                .map(|(functions, control)| (functions.is_some(), control.is_some()))
                .map_err(|error| error.to_string())
        };
        let own = "tls_certificate = \"c\"\ntls_key = \"k\"\n";
        let control = "control_tls_certificate = \"c\"\ncontrol_tls_key = \"k\"\n";
        let listen = "listen = \"127.0.0.1:1\"\n";
        let apart = "control_listen = \"127.0.0.1:2\"\n";
        let shared = "control_listen = \"127.0.0.1:1\"\n";
        assert_eq!(decided(listen), Ok((false, false)));
        assert_eq!(decided(&[listen, own].concat()), Ok((true, false)));
        assert_eq!(
            decided(&[listen, apart, own, control].concat()),
            Ok((true, true))
        );
        assert_eq!(decided(&[listen, shared, own].concat()), Ok((true, false)));
        for text in [vec![listen, control], vec![listen, shared, own, control]] {
            let problem = decided(&text.concat()).unwrap_err();
            assert!(problem.contains("control_listen"), "{problem}");
        }
        let problem = decided(&[listen, "tls_key = \"k\""].concat()).unwrap_err();
        assert!(problem.contains("tls_certificate is not"), "{problem}");
    }

    #[test]
    fn what_other_machines_can_reach_needs_tokens() {
        let decided = |address: &str, text: &str| {
            let file = parse(text, Path::new("f")).unwrap();
            calls(address.parse().unwrap(), &file).map_err(|error| error.to_string())
        };
        let (token, open) = ("invocations = \"token\"", "invocations = \"open\"");
        for address in [
            "127.0.0.1:80",
            "127.8.0.1:80",
            "[::1]:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            assert_eq!(decided(address, ""), Ok(Access::Open), "{address}");
            assert_eq!(decided(address, open), Ok(Access::Open), "{address}");
            assert_eq!(decided(address, token), Ok(Access::Token), "{address}");
        }
        for address in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80"] {
            for text in ["", open, "control_token = \"c\""] {
                let problem = decided(address, text).unwrap_err();
                assert!(problem.contains("set invocations"), "{problem}");
            }
            assert_eq!(decided(address, token), Ok(Access::Token));
            assert_eq!(decided(address, "invoke_token = \"i\""), Ok(Access::Token));
            assert_eq!(
                decided(address, "public_invocations = true"),
                Ok(Access::Open)
            );
        }
    }

    #[test]
    fn one_address_may_hold_three_quarters_of_the_connections_unless_told_otherwise() {
        let limit = |text: &str| {
            let file = parse(text, Path::new("f")).unwrap();
            file.limits.connections_per_address(file.limits.connections)
        };
        assert_eq!(limit(""), 768);
        assert_eq!(limit("[limits]\nconnections = 1"), 1);
        assert_eq!(limit("[limits]\nconnections = 100"), 75);
        assert_eq!(limit("[limits]\nconnections_per_address = 1024"), 1024);
        assert!(parse("[limits]\nconnections_per_address = 0", Path::new("f")).is_err());
    }

    #[test]
    fn the_range_of_outbound_functions_is_read_or_refused() {
        let file = parse("outbound_cidr = \"10.9.0.0/16\"\n", Path::new("f")).unwrap();
        assert_eq!(file.outbound_cidr.unwrap().prefix_len(), 16);
        for (range, wanted) in [
            ("10.9", "outbound_cidr: "),
            ("127.0.0.0/16", "f: outbound_cidr"),
        ] {
            let text = format!("outbound_cidr = \"{range}\"\n");
            let problem = parse(&text, Path::new("f")).unwrap_err();
            assert!(problem.to_string().contains(wanted), "{problem}");
        }
    }

    #[test]
    fn the_example_of_the_documentation_is_read() {
        let text = include_str!("../../../../docs/operations.md");
        let (_, rest) = text.split_once("## pilotd.toml\n").unwrap();
        let (_, rest) = rest.split_once("```toml\n").unwrap();
        let (example, _) = rest.split_once("```").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pilotd.toml");
        fs::write(&path, example).unwrap();
        let config = DaemonConfig::load(&ServeArgs {
            config: Some(path),
            ..ServeArgs::default()
        });
        assert_eq!(config.unwrap().limits.connections, 1024);
    }
}
