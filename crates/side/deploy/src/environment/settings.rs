//! The operator's configuration of pip, uv and npm, as far as builds get it. A build sees neither the daemon's home folder nor its
//! environment; both contain secrets that are not its own. It gets copies of the installers' configuration files, the variables of
//! installers, and the hosts that the two name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use pilot_model::ports::BuildAddress;

use super::config::EnvironmentConfig;

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) variables: BTreeMap<String, String>,
    /// Files for the build's home folder: the path in it, and the content.
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// Files and folders of the host that it sees at the same path.
    pub(super) shown: BTreeSet<PathBuf>,
    /// Registries, and what else it may connect to.
    pub(super) hosts: Vec<BuildAddress>,
}

impl Settings {
    /// Reads them anew, because files may have changed.
    pub(super) fn read(config: &EnvironmentConfig) -> Self {
        let mut settings = Self::default();
        let mut hosts: BTreeSet<BuildAddress> = config.hosts.iter().cloned().collect();
        hosts.extend(REGISTRIES.into_iter().filter_map(BuildAddress::parse));
        for (name, value) in &config.variables {
            let key = name.to_ascii_uppercase();
            let passed = PASSED.contains(&key.as_str())
                || PREFIXES.iter().any(|start| key.starts_with(start));
            if !passed || NOT_PASSED.contains(&key.as_str()) {
                continue;
            }
            hosts.extend(addresses(value));
            if PATHS.iter().any(|end| key.ends_with(end)) {
                settings.show(value);
            }
            settings.variables.insert(name.clone(), value.clone());
        }
        for file in SYSTEM_FILES.map(Path::new) {
            if let Some(text) = read(file) {
                settings.shown.insert(file.to_owned());
                settings.take_text(&text, &mut hosts);
            }
        }
        let home = config.variables.get("HOME").map(PathBuf::from);
        let home = home.filter(|home| home.is_absolute());
        for name in HOME_FILES {
            if let Some(text) = home.as_ref().and_then(|home| read(&home.join(name))) {
                settings.take_text(&text, &mut hosts);
                settings.files.push((name, text));
            }
        }
        settings.hosts = hosts.into_iter().collect();
        settings
    }

    /// Takes addresses and paths from a configuration file.
    fn take_text(&mut self, text: &[u8], hosts: &mut BTreeSet<BuildAddress>) {
        let text = String::from_utf8_lossy(text);
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            hosts.extend(addresses(line));
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let key = key.trim().to_ascii_uppercase().replace('-', "_");
            if PATHS.iter().any(|end| key.ends_with(end)) {
                self.show(value);
            }
        }
    }

    fn show(&mut self, value: &str) {
        let paths = value
            .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '[' | ']'))
            .map(|word| Path::new(word.strip_prefix("file://").unwrap_or(word)))
            .filter(|path| path.is_absolute() && path.exists());
        self.shown.extend(paths.map(Path::to_owned));
    }
}

/// The hosts of all HTTP addresses in a text.
fn addresses(text: &str) -> impl Iterator<Item = BuildAddress> {
    ["http://", "https://"].into_iter().flat_map(move |scheme| {
        text.match_indices(scheme).filter_map(move |(at, _)| {
            let rest = &text[at + scheme.len()..];
            let end = rest
                .find(|c: char| {
                    c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | ',')
                })
                .unwrap_or(rest.len());
            let authority = rest[..end].rsplit('@').next()?;
            BuildAddress::parse(authority)
        })
    })
}

/// `None`: there is none, or it is too large.
fn read(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(file).ok()?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= FILE_BYTES_MAX).then_some(bytes)
}

/// The public registries, the hosts of their files, and the headers of Node.js for addons in C++.
const REGISTRIES: [&str; 4] = [
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "nodejs.org",
];
const PREFIXES: [&str; 4] = ["PIP_", "UV_", "NPM_CONFIG_", "LC_"];
const PASSED: [&str; 15] = [
    "LANG",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "CC",
    "CXX",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "SOURCE_DATE_EPOCH",
    "MAKEFLAGS",
];
/// They name folders, programs or proxies of the daemon, or change where an installer installs.
const NOT_PASSED: [&str; 33] = [
    "PIP_CACHE_DIR",
    "PIP_EDITABLE",
    "PIP_LOG",
    "PIP_PREFIX",
    "PIP_PROXY",
    "PIP_PYTHON",
    "PIP_REQUIREMENT",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_ROOT",
    "PIP_SRC",
    "PIP_TARGET",
    "PIP_USER",
    "UV_CACHE_DIR",
    "UV_OFFLINE",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_WORKING_DIRECTORY",
    "UV_TOOL_DIR",
    "NPM_CONFIG_CACHE",
    "NPM_CONFIG_GLOBAL",
    "NPM_CONFIG_GLOBALCONFIG",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_LOCAL_PREFIX",
    "NPM_CONFIG_LOGS_DIR",
    "NPM_CONFIG_NODE_OPTIONS",
    "NPM_CONFIG_NOPROXY",
    "NPM_CONFIG_PREFIX",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_SCRIPT_SHELL",
    "NPM_CONFIG_TMP",
    "NPM_CONFIG_USERCONFIG",
];
/// Ends of keys whose values are files or folders that an installer reads.
const PATHS: [&str; 11] = [
    "FIND_LINKS",
    "CERT",
    "CERT_FILE",
    "CERT_DIR",
    "CA_BUNDLE",
    "CA_CERTS",
    "CAINFO",
    "CAFILE",
    "NODEDIR",
    "CONSTRAINT",
    "CONFIG_FILE",
];
const SYSTEM_FILES: [&str; 5] = [
    "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf",
    "/etc/uv/uv.toml",
    "/etc/xdg/uv/uv.toml",
    "/etc/npmrc",
];
const HOME_FILES: [&str; 5] = [
    ".config/pip/pip.conf",
    ".pip/pip.conf",
    ".config/uv/uv.toml",
    ".npmrc",
    ".netrc",
];
const FILE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_the_installers_configuration_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let wheels = home.path().join("wheels");
        fs::create_dir(&wheels).unwrap();
        fs::write(home.path().join("id_rsa"), "secret").unwrap();
        let npmrc = "; http://comment.example\n@own:registry=https://npm.example:8443/x\n";
        fs::write(home.path().join(".npmrc"), npmrc).unwrap();
        let variables = [
            ("HOME", home.path().to_str().unwrap()),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("PILOT_TOKEN", "secret"),
            ("PIP_INDEX_URL", "https://u:p@index.example/simple"),
            ("PIP_CACHE_DIR", "/root/.cache"),
            ("PIP_FIND_LINKS", wheels.to_str().unwrap()),
            ("npm_config_prefix", "/usr"),
            ("npm_config_registry", "http://127.0.0.1:4873"),
            ("LANG", "C.UTF-8"),
        ];
        let settings = Settings::read(&EnvironmentConfig {
            variables: variables
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            hosts: vec![BuildAddress::parse("extra.example").unwrap()],
            ..EnvironmentConfig::default()
        });
        let names: Vec<&str> = settings.variables.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "LANG",
                "PIP_FIND_LINKS",
                "PIP_INDEX_URL",
                "npm_config_registry"
            ]
        );
        assert_eq!(settings.files, [(".npmrc", npmrc.as_bytes().to_vec())]);
        assert!(settings.shown.contains(&wheels));
        assert!(
            !settings
                .shown
                .iter()
                .any(|path| home.path().join("id_rsa").starts_with(path))
        );
        let reached = |host: &str, port| settings.hosts.iter().any(|one| one.covers(host, port));
        for (host, port) in [
            ("index.example", 443),
            ("npm.example", 8443),
            ("127.0.0.1", 4873),
            ("extra.example", 443),
            ("pypi.org", 443),
        ] {
            assert!(reached(host, port), "{host}:{port}");
        }
        assert!(!reached("comment.example", 80));
        assert!(!reached("127.0.0.1", 80));
    }
}
