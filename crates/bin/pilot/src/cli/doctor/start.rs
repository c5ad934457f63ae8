//! What the daemon reads when it starts: the files that its configuration names, and the content of its data directory. The checks use the
//! code of the start, so they find what `pilot serve` would refuse. Nothing is created or changed: databases are read as copies.

use std::path::Path;

use anyhow::Context;
use pilot_deploy::registry::Registry;
use pilot_queue::Examined;

use super::{Check, CheckState};
use crate::daemon_config::DaemonConfig;
use crate::daemon_config::connections::connection;
use crate::daemon_config::data::store;
use crate::daemon_config::nodes::NodesSettings;
use crate::daemon_config::traces::TraceSettings;
use crate::tls::Certificate;
use crate::tls::nodes::NodeTls;
use crate::{listening, sealing, tokens};

/// The stores, connections, nodes and the collector of traces of the configuration.
pub(super) fn configured(config: &DaemonConfig) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, settings) in &config.stores {
        let opened = store(name, settings).and_then(|store| {
            pilot_data::check_store(&store).map_err(anyhow::Error::msg)?;
            Ok(format!("{name}: its files can be used"))
        });
        checks.push(of("store", opened, FILES));
    }
    for (name, settings) in &config.connections {
        let read = connection(name, settings);
        let read = read.map(|_| format!("{name}: its files can be used"));
        checks.push(of("connection", read, FILES));
    }
    checks.extend(config.nodes.as_ref().map(|nodes| {
        let found = of_nodes(nodes);
        of("nodes", found, FILES)
    }));
    checks.extend(config.traces.as_ref().map(|traces| {
        let found = of_traces(traces);
        of("traces", found, FILES)
    }));
    checks
}

fn of_nodes(settings: &NodesSettings) -> anyhow::Result<String> {
    let (files, ca) = settings.files()?;
    NodeTls::new(&Certificate::load(&files)?, ca)?;
    let others = settings.others().map_err(anyhow::Error::msg)?;
    Ok(format!(
        "the certificate and the authority can be used; other nodes: {}",
        others.len()
    ))
}

fn of_traces(settings: &TraceSettings) -> anyhow::Result<String> {
    pilot_traces::check(settings.exporter()?).context("traces")?;
    Ok("its files can be used".to_owned())
}

/// The content of a data directory that exists and that no daemon uses.
pub(super) fn content(config: &DaemonConfig) -> Vec<Check> {
    let dir = &config.data_dir;
    let key = sealing::check(dir);
    let mut checks = Vec::new();
    // Without the key, nothing can be said about access keys.
    if let Ok(key) = &key {
        let read = tokens::check(config, key.clone());
        let read = read.map(|()| "they can be read".to_owned());
        checks.push(of("tokens", read, CONTENT));
    }
    let read = key.map(|_| "they can be read".to_owned());
    checks.push(of("secrets", read, CONTENT));
    checks.extend(foreign(dir));
    match tempfile::tempdir() {
        Ok(scratch) => {
            checks.extend(registry(dir, scratch.path()));
            checks.extend(queue(dir, scratch.path()));
        }
        Err(error) => {
            let problem = format!(
                "it cannot be copied to {}: {error}",
                std::env::temp_dir().display()
            );
            let change = "make room there, or name another folder with TMPDIR";
            let check = ("daemon", "registry");
            checks.push(Check::of(check, Err(problem), CheckState::Absent, change));
        }
    }
    checks
}

/// The control socket of a data directory that no daemon uses.
pub(super) fn control_socket(config: &DaemonConfig) -> Option<Check> {
    let socket = &config.control_socket.path;
    let folder = socket.parent().unwrap_or(Path::new("/"));
    // The daemon makes its data directory, and the supervisor the service's folder.
    let is_made = folder == config.data_dir || !config.control_socket.is_chosen;
    if is_made && !folder.exists() {
        return None;
    }
    let found = listening::check_socket(socket).map(|()| socket.display().to_string());
    let change = "do what it says, or name another path with control_socket";
    Some(of("control socket", found, change))
}

/// Files that the daemon did not make. It leaves them alone.
fn foreign(dir: &Path) -> Option<Check> {
    let foreign = pilot_deploy::foreign_files(dir);
    let first = foreign.first()?;
    let found = format!(
        "{} not made by the daemon, which leaves them alone: {}",
        super::output::count(foreign.len() as u64, "file"),
        first.display()
    );
    Some(Check::of(
        ("daemon", "other files"),
        Err(found),
        CheckState::Absent,
        "move them to a folder of their own",
    ))
}

fn registry(dir: &Path, scratch: &Path) -> Option<Check> {
    let what = ("daemon", "registry");
    let functions = match Registry::examine(dir, scratch) {
        Ok(functions) => functions?,
        Err(error) => return Some(of("registry", Err(error.into()), CONTENT)),
    };
    let broken = functions.iter().filter_map(|function| {
        let problem = function.live.problem.as_ref()?;
        Some(format!("{}: {problem}", function.live.version.config.name))
    });
    let broken: Vec<String> = broken.collect();
    let found = match broken.is_empty() {
        true => Ok(super::output::count(functions.len() as u64, "function")),
        false => Err(format!(
            "{} of {} broken: {}",
            broken.len(),
            super::output::count(functions.len() as u64, "function"),
            broken.join("; ")
        )),
    };
    let change = "deploy them again; the daemon serves the others";
    Some(Check::of(what, found, CheckState::Absent, change))
}

fn queue(dir: &Path, scratch: &Path) -> Option<Check> {
    let what = "asynchronous invocations";
    match pilot_queue::examine(&dir.join("async.sqlite"), scratch) {
        Ok(Examined::Absent) => None,
        Ok(Examined::Usable) => Some(of(what, Ok("their store can be used".to_owned()), CONTENT)),
        Ok(Examined::Damaged(problem)) => Some(Check::of(
            ("daemon", what),
            Err(format!("their store is damaged: {problem}")),
            CheckState::Absent,
            "copy a backup of async.sqlite back; otherwise the daemon sets the file aside and begins with an empty one",
        )),
        Err(error) => Some(of(what, Err(error.into()), CONTENT)),
    }
}

/// A check of something without which the daemon does not start.
fn of(what: &'static str, found: anyhow::Result<String>, change: &'static str) -> Check {
    let found = found.map_err(|error| format!("{error:#}"));
    Check::of(("daemon", what), found, CheckState::Missing, change)
}

const FILES: &str = "correct the file, or the key in pilotd.toml that names it";
const CONTENT: &str = "do what it says, or name another folder with --data-dir";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve_args::ServeArgs;

    fn config(text: &str) -> (tempfile::TempDir, DaemonConfig) {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("pilotd.toml");
        std::fs::write(
            &file,
            text.replace("HOME", &home.path().display().to_string()),
        )
        .unwrap();
        let config = DaemonConfig::load(&ServeArgs {
            config: Some(file),
            data_dir: Some(home.path().join("data")),
            ..ServeArgs::default()
        });
        (home, config.unwrap())
    }

    #[test]
    fn files_of_the_configuration_that_cannot_be_used_are_found() {
        let (_home, config) = config(
            "[stores.a]\nkind = \"redis\"\nfunctions = []\nurl = \"redis://h\"\npassword_file = \"HOME/gone\"\n\
             [stores.b]\nkind = \"http\"\nfunctions = []\n\
             [stores.c]\nkind = \"http\"\nfunctions = []\nca_file = \"HOME/gone\"\n\
             [connections.d]\nkind = \"http\"\nfunctions = []\nurl = \"https://h\"\nauthorization_file = \"HOME/gone\"\n\
             [nodes]\ncertificate = \"HOME/gone\"\nkey = \"HOME/gone\"\nca = \"HOME/gone\"\n\
             [traces]\nendpoint = \"http://h\"\nheaders_file = \"HOME/gone\"\n",
        );
        let checks = configured(&config);
        let found: Vec<(&str, CheckState)> = checks
            .iter()
            .map(|check| (check.what, check.state))
            .collect();
        assert_eq!(
            found,
            [
                ("store", CheckState::Missing),
                ("store", CheckState::Ok),
                ("store", CheckState::Missing),
                ("connection", CheckState::Missing),
                ("nodes", CheckState::Missing),
                ("traces", CheckState::Missing),
            ]
        );
        for (check, key) in checks.iter().zip([
            "stores.a.password_file",
            "b: ",
            "stores.c",
            "connections.d.authorization_file",
            "nodes.certificate",
            "traces.headers_file",
        ]) {
            assert!(check.found.contains(key), "{check:?}");
        }
    }

    #[test]
    fn a_control_socket_is_looked_at_before_there_is_a_data_directory() {
        for (text, state) in [
            ("", None),
            ("control_socket = \"HOME/data/c.sock\"", None),
            ("control_socket = \"HOME/c.sock\"", Some(CheckState::Ok)),
            (
                "control_socket = \"HOME/no/c.sock\"",
                Some(CheckState::Missing),
            ),
        ] {
            let (_home, config) = config(text);
            let check = control_socket(&config);
            assert_eq!(check.map(|check| check.state), state, "{text}");
        }
    }

    #[test]
    fn an_empty_data_directory_has_nothing_wrong_and_stays_empty() {
        let (_home, config) = config("");
        std::fs::create_dir(&config.data_dir).unwrap();
        let checks = content(&config);
        assert!(
            checks.iter().all(|check| check.state == CheckState::Ok),
            "{checks:?}"
        );
        assert_eq!(std::fs::read_dir(&config.data_dir).unwrap().count(), 0);
    }

    #[test]
    fn files_that_the_daemon_did_not_make_are_named() {
        let (_home, config) = config("");
        let photos = config.data_dir.join("staging/photos");
        std::fs::create_dir_all(&photos).unwrap();
        std::fs::create_dir_all(config.data_dir.join("code/f99b1bbba009551d")).unwrap();
        let check = foreign(&config.data_dir).unwrap();
        assert_eq!(check.state, CheckState::Absent);
        let shown = photos.display().to_string();
        assert!(check.found.starts_with("1 file ") && check.found.ends_with(&shown));
    }
}
