//! `[build]` of `pilotd.toml`: how packages are installed and code is compiled.

use std::time::Duration;

use pilot_deploy::SourceBuilds;
use pilot_model::ports::BuildAddress;
use serde::Deserialize;

use super::ranges::in_range;

/// See the module.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Build {
    /// Whether packages may be built from their sources, and run install scripts.
    pub(crate) sources: Sources,
    /// Hosts that builds may connect to, in addition to the registries: `host` or `host:port`.
    pub(crate) hosts: Vec<String>,
    /// Memory limit of one build, MiB.
    pub(crate) memory_mb: u64,
    /// Memory limit of all builds together, MiB. By default half of `limits.total_memory_mb`.
    pub(crate) total_memory_mb: Option<u64>,
    /// What one build may write to the disk, MiB.
    pub(crate) disk_mb: u64,
    /// Highest number of processes and threads of one build.
    pub(crate) pids: u32,
    /// Longest time of one build, seconds.
    pub(crate) time_s: f64,
}

/// Whether packages may be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sources {
    /// Builds run in a sandbox.
    Allow,
    /// Only wheels of Python packages, and no install scripts of Node.js packages.
    WheelsOnly,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            sources: Sources::Allow,
            hosts: Vec::new(),
            memory_mb: 2048,
            total_memory_mb: None,
            disk_mb: 8192,
            pids: 512,
            time_s: 600.0,
        }
    }
}

impl From<Sources> for SourceBuilds {
    fn from(sources: Sources) -> Self {
        match sources {
            Sources::Allow => Self::Allowed,
            Sources::WheelsOnly => Self::Refused,
        }
    }
}

impl Build {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.time_s)
    }

    /// The hosts, of which `check` has refused those that are not addresses.
    pub(crate) fn addresses(&self) -> Vec<BuildAddress> {
        let parsed = self.hosts.iter().map(|host| BuildAddress::parse(host));
        parsed.flatten().collect()
    }

    /// Refuses values out of range, with the key.
    pub(crate) fn check(&self) -> Result<(), String> {
        in_range(&[
            (
                "build.memory_mb",
                "from 64 to 1073741824",
                (64..=1 << 30).contains(&self.memory_mb),
            ),
            (
                "build.total_memory_mb",
                "from 64 to 1073741824",
                self.total_memory_mb
                    .is_none_or(|limit| (64..=1 << 30).contains(&limit)),
            ),
            (
                "build.disk_mb",
                "from 16 to 1073741824",
                (16..=1 << 30).contains(&self.disk_mb),
            ),
            (
                "build.pids",
                "from 16 to 4194304",
                (16..=1 << 22).contains(&self.pids),
            ),
            (
                "build.time_s",
                "from 1 to 86400",
                (1.0..=86_400.0).contains(&self.time_s),
            ),
        ])?;
        let unfit = self
            .hosts
            .iter()
            .find(|host| BuildAddress::parse(host).is_none());
        unfit.map_or(Ok(()), |host| {
            Err(format!(
                "build.hosts: \"{host}\" is not a host; write it without a scheme and path, for example \"index.example.com\" or \
                 \"10.0.0.5:3141\""
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Build, String> {
        let build: Build = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        build.check().map(|()| build)
    }

    #[test]
    fn values_out_of_range_name_their_key() {
        assert_eq!(parse("").unwrap(), Build::default());
        let build =
            parse("sources = \"wheels-only\"\nhosts = [\"a.example\", \"10.0.0.5:3141\"]").unwrap();
        assert_eq!(SourceBuilds::from(build.sources), SourceBuilds::Refused);
        assert_eq!(build.addresses().len(), 2);
        for (text, problem) in [
            (
                "memory_mb = 1",
                "build.memory_mb must be from 64 to 1073741824",
            ),
            (
                "total_memory_mb = 1",
                "build.total_memory_mb must be from 64 to 1073741824",
            ),
            ("disk_mb = 1", "build.disk_mb must be from 16 to 1073741824"),
            ("pids = 1", "build.pids must be from 16 to 4194304"),
            ("pids = 4194305", "build.pids must be from 16 to 4194304"),
            ("time_s = 0", "build.time_s must be from 1 to 86400"),
            ("hosts = [\"https://a.example/x\"]", "is not a host"),
            ("sources = \"none\"", "wheels-only"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
