//! `[data]` and `[stores.NAME]` of `pilotd.toml`: where inputs of functions come from, and the memory for them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ipnet::IpNet;
use pilot_data::{
    DataConfig, FileConfig, HttpConfig, ProfileConfig, RedisConfig, S3Config, S3Credentials,
    SpillConfig, StoreConfig, StoreKind,
};
use pilot_wasm::InitscriptsConfig;
use serde::{Deserialize, Deserializer};

use super::kinds::{Keys, unknown};
use super::network;
use super::ranges::in_range;
use super::remote::{
    Credentials, RedisSettings, ca_pem, check_functions, check_name, check_url, check_word, secret,
};
use crate::room;

/// `[data]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DataLimits {
    /// Memory for the inputs of all functions, MiB. Default: what the machine has room for.
    pub(crate) memory_mb: Option<u64>,
    /// The share of it that one function can have, MiB. Default: half.
    pub(crate) function_mb: Option<u64>,
    /// The longest input, MiB. Default: the share.
    pub(crate) input_mb: Option<u64>,
    /// The part of `memory_mb` for inputs that are kept for the next fetch, MiB. Default: half; 0: none.
    pub(crate) cache_mb: Option<u64>,
    /// Room on the disk, below the data directory, for inputs that exceed the memory, MiB. Default: 0, they wait.
    pub(crate) spill_mb: u64,
    /// Whether invocations that want the same object share a fetch. False only to measure what that gains.
    pub(crate) single_flight: Switch,
    /// Whether inputs are fetched while the worker starts. False only to measure what that gains.
    pub(crate) overlap: Switch,
    /// Whether data goes from one function to another by reference. False only to measure what that gains.
    pub(crate) by_reference: Switch,
    /// Whether inputs with `stream` are read while they arrive. False only to measure what that gains.
    pub(crate) stream: Switch,
    /// Whether clients of stores in functions answer from the inputs.
    pub(crate) drop_ins: Switch,
    /// Memory that the process which decodes an input may have, MiB. Default: 512.
    pub(crate) decoder_memory_mb: Option<u64>,
    /// Networks beyond the public internet that initscripts may connect to without a store.
    #[serde(deserialize_with = "network::list_of_key")]
    pub(crate) initscript_networks: Vec<IpNet>,
}

/// A mechanism that is on unless the configuration says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Switch(bool);

impl Default for Switch {
    fn default() -> Self {
        Self(true)
    }
}

impl DataLimits {
    fn memory_mb(&self) -> u64 {
        self.memory_mb.unwrap_or_else(room::for_inputs_mb)
    }

    /// What a process that decodes an input may have, bytes.
    pub(crate) fn decoder_memory_bytes(&self) -> u64 {
        self.decoder_memory_mb.unwrap_or(DECODER_MEMORY_MB) << 20
    }

    fn cache_mb(&self) -> u64 {
        self.cache_mb.unwrap_or(self.memory_mb() / 2)
    }

    /// What the inputs and buffers of one function may have together, bytes.
    pub(crate) fn share_bytes(&self) -> u64 {
        self.function_mb() << 20
    }

    fn function_mb(&self) -> u64 {
        self.function_mb.unwrap_or(self.memory_mb() / 2)
    }
}

/// `[initscripts]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct InitscriptLimits {
    /// Memory for the scripts that run at the same time, MiB. One function has at most half of it.
    pub(crate) memory_mb: u32,
}

impl Default for InitscriptLimits {
    fn default() -> Self {
        let InitscriptsConfig { memory_mb } = InitscriptsConfig::default();
        Self { memory_mb }
    }
}

/// `[stores.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    /// The functions that may use it, for example `["resize", "team-*"]`; `["*"]` for all.
    functions: Vec<String>,
    kind: Kind,
}

/// What belongs to each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    S3(S3Settings),
    Http(HttpSettings),
    Redis(RedisSettings),
    File(FileSettings),
}

/// A bucket of S3.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct S3Settings {
    /// Default: the store's name.
    bucket: Option<String>,
    /// Default: Amazon's.
    endpoint: Option<String>,
    /// Default: that of the environment, or `us-east-1`.
    region: Option<String>,
    /// Whether the bucket is in the path and not in the host's name. Default: with an endpoint.
    path_style: Option<bool>,
    /// Default: `environment`, or `key` with `access_key_id`.
    credentials: Option<Credentials>,
    access_key_id: Option<String>,
    /// A file with the secret and nothing else, which nobody else may read.
    secret_access_key_file: Option<PathBuf>,
    /// A profile of AWS's tools, whose keys are used.
    profile: Option<String>,
    /// A file with certificates of authorities, PEM.
    ca_file: Option<PathBuf>,
}

/// A server that answers GET.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSettings {
    /// What comes before the key. Default: `https://NAME/`.
    url: Option<String>,
    /// A file with certificates of authorities, PEM.
    ca_file: Option<PathBuf>,
}

/// A folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    path: PathBuf,
}

/// Refuses what cannot be used, with the key.
pub(super) fn check(
    limits: &DataLimits,
    stores: &BTreeMap<String, StoreSettings>,
) -> Result<(), String> {
    let (memory, share) = (limits.memory_mb(), limits.function_mb());
    in_range(&[
        (
            "data.memory_mb",
            "from 2 to 1048576".to_owned(),
            (2..=1 << 20).contains(&memory),
        ),
        (
            "data.function_mb",
            format!("from 1 to {memory}, which is data.memory_mb"),
            (1..=memory).contains(&share),
        ),
        (
            "data.input_mb",
            format!("from 1 to {share}, which is data.function_mb"),
            limits
                .input_mb
                .is_none_or(|most| (1..=share).contains(&most)),
        ),
        (
            "data.cache_mb",
            format!("at most {memory}, which is data.memory_mb"),
            limits.cache_mb() <= memory,
        ),
        (
            "data.spill_mb",
            format!("at most {SPILL_MB_MAX}"),
            limits.spill_mb <= SPILL_MB_MAX,
        ),
        (
            "data.decoder_memory_mb",
            "from 32 to 1048576".to_owned(),
            (limits.decoder_memory_mb).is_none_or(|most| (32..=1 << 20).contains(&most)),
        ),
    ])?;
    for (name, store) in stores {
        store
            .check(name)
            .map_err(|problem| format!("stores.{name}{problem}"))?;
    }
    Ok(())
}

impl<'de> Deserialize<'de> for StoreSettings {
    fn deserialize<D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        let mut keys = Keys::deserialize(table)?;
        let functions = keys.take("functions")?;
        let kind: String = keys.take("kind")?;
        let kind = match kind.as_str() {
            "s3" => Kind::S3(keys.rest()?),
            "http" => Kind::Http(keys.rest()?),
            "redis" => Kind::Redis(keys.rest()?),
            "file" => Kind::File(keys.rest()?),
            other => return Err(unknown(other, &["s3", "http", "redis", "file"])),
        };
        Ok(Self { functions, kind })
    }
}

impl StoreSettings {
    fn check(&self, name: &str) -> Result<(), String> {
        check_name(name)?;
        check_functions(&self.functions)?;
        match &self.kind {
            Kind::S3(s3) => s3.check(),
            Kind::Http(HttpSettings { url: Some(url), .. }) => {
                check_url(".url", url, ["http://", "https://"])
            }
            Kind::Redis(redis) => redis.check(),
            Kind::Http(_) => Ok(()),
            Kind::File(file) if file.path.is_absolute() => Ok(()),
            Kind::File(file) => Err(format!(
                ".path is \"{}\", must begin with /",
                file.path.display()
            )),
        }
    }

    /// With the contents of the files that it names.
    fn read(&self, name: &str) -> anyhow::Result<StoreConfig> {
        let kind = match &self.kind {
            Kind::S3(s3) => StoreKind::S3(s3.read(name)?),
            Kind::Http(http) => StoreKind::Http(HttpConfig {
                url: match &http.url {
                    None => format!("https://{name}/"),
                    Some(url) if url.ends_with('/') => url.clone(),
                    Some(url) => format!("{url}/"),
                },
                ca_pem: ca_pem(http.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
            Kind::Redis(redis) => StoreKind::Redis(RedisConfig {
                url: redis.url.clone(),
                user: redis.user.clone(),
                password: secret(redis.password_file.as_deref(), || {
                    key(name, "password_file")
                })?,
                ca_pem: ca_pem(redis.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
            Kind::File(file) => StoreKind::File(FileConfig {
                path: file.path.clone(),
            }),
        };
        Ok(StoreConfig {
            name: name.to_owned(),
            kind,
            functions: self.functions.clone(),
        })
    }
}

impl S3Settings {
    fn check(&self) -> Result<(), String> {
        if let Some(endpoint) = &self.endpoint {
            check_url(".endpoint", endpoint, ["http://", "https://"])?;
        }
        if let Some(bucket) = &self.bucket {
            check_bucket(bucket)?;
        }
        check_word(".region", self.region.as_ref())?;
        check_word(".access_key_id", self.access_key_id.as_ref())?;
        let given = (
            self.access_key_id.is_some(),
            self.secret_access_key_file.is_some(),
        );
        if let Some(profile) = &self.profile {
            return match (profile.trim().is_empty(), self.credentials, given) {
                (false, None, (false, false)) => Ok(()),
                (true, ..) => Err(".profile is empty: write the name of a profile".to_owned()),
                _ => Err(
                    ".profile: leave out credentials, access_key_id and secret_access_key_file, or the profile"
                        .to_owned(),
                ),
            };
        }
        match (self.credentials(), given) {
            (Credentials::Key, (true, true))
            | (Credentials::Environment | Credentials::Anonymous, (false, false)) => Ok(()),
            (Credentials::Key, _) => Err(
                ".credentials: a key needs access_key_id and secret_access_key_file".to_owned(),
            ),
            _ => Err(
                ".credentials: leave out access_key_id and secret_access_key_file, or set credentials = \"key\""
                    .to_owned(),
            ),
        }
    }

    fn credentials(&self) -> Credentials {
        let has_key = self.access_key_id.is_some() || self.secret_access_key_file.is_some();
        let default = if has_key {
            Credentials::Key
        } else {
            Credentials::Environment
        };
        self.credentials.unwrap_or(default)
    }

    fn read(&self, name: &str) -> anyhow::Result<S3Config> {
        let credentials = match (&self.profile, self.credentials()) {
            (Some(profile), _) => profile_of(name, profile)?,
            (None, Credentials::Environment) => S3Credentials::Environment,
            (None, Credentials::Anonymous) => S3Credentials::Anonymous,
            (None, Credentials::Key) => {
                let path = self.secret_access_key_file.as_deref();
                let secret = secret(path, || key(name, "secret_access_key_file"))?;
                S3Credentials::Key {
                    id: self.access_key_id.clone().unwrap_or_default(),
                    secret: secret.unwrap_or_default(),
                }
            }
        };
        Ok(S3Config {
            bucket: self.bucket.clone().unwrap_or_else(|| name.to_owned()),
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            path_style: self.path_style,
            credentials,
            ca_pem: ca_pem(self.ca_file.as_deref(), || key(name, "ca_file"))?,
        })
    }
}

/// S3's rules for names are stricter, and those of other servers are not.
fn check_bucket(bucket: &str) -> Result<(), String> {
    let is_name = (1..=BUCKET_BYTES_MAX).contains(&bucket.len())
        && bucket.starts_with(|first: char| first.is_ascii_alphanumeric())
        && bucket
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if is_name {
        return Ok(());
    }
    Err(format!(
        ".bucket is \"{}\", must be 1 to {BUCKET_BYTES_MAX} letters, digits, '.', '_' or '-', and begin with a letter or a digit",
        bucket.escape_debug().take(100).collect::<String>()
    ))
}

fn profile_of(store: &str, profile: &str) -> anyhow::Result<S3Credentials> {
    let variable = |name: &str| std::env::var(name).ok();
    let profile = ProfileConfig::named(profile, variable)
        .map_err(|problem| anyhow::anyhow!("{}: {problem}", key(store, "profile")))?;
    Ok(S3Credentials::Profile(profile))
}

fn key(store: &str, key: &str) -> String {
    format!("stores.{store}.{key}")
}

/// A store. Reads files with secrets, so it must be called after the spawner was forked.
///
/// # Errors
/// A file cannot be read, or others may read a secret.
pub(crate) fn store(name: &str, settings: &StoreSettings) -> anyhow::Result<StoreConfig> {
    settings.read(name)
}

/// The configuration of the data part. `has_users`: workers run as users of their own. Reads files with secrets, so it must be called after
/// the spawner was forked.
///
/// # Errors
/// A file cannot be read, or others may read a secret.
pub(crate) fn data_config(
    limits: &DataLimits,
    stores: &BTreeMap<String, StoreSettings>,
    data_dir: &Path,
    has_users: bool,
) -> anyhow::Result<DataConfig> {
    let stores = stores.iter().map(|(name, settings)| store(name, settings));
    let share = limits.function_mb();
    let spill = match limits.spill_mb {
        0 => None,
        mb => Some(SpillConfig {
            folder: spill_folder(data_dir)?,
            bytes_max: mb << 20,
        }),
    };
    Ok(DataConfig {
        stores: stores.collect::<anyhow::Result<_>>()?,
        bytes_max: limits.memory_mb() << 20,
        function_bytes_max: share << 20,
        input_bytes_max: limits.input_mb.unwrap_or(share) << 20,
        cache_bytes_max: limits.cache_mb() << 20,
        spill,
        shares: limits.single_flight.0,
        overlaps: limits.overlap.0,
        by_reference: limits.by_reference.0,
        // Otherwise workers run as the daemon's user, which owns the files of buffers.
        streams: limits.stream.0 && has_users,
        drop_ins: limits.drop_ins.0,
        initscript_networks: limits.initscript_networks.clone(),
    })
}

fn spill_folder(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let folder = data_dir.join("spill");
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.with_context(|| format!("data.spill_mb: cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Amazon's old buckets have up to 255, newer ones 63.
const BUCKET_BYTES_MAX: usize = 255;
const DECODER_MEMORY_MB: u64 = 512;
const SPILL_MB_MAX: u64 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn store(text: &str) -> Result<StoreSettings, String> {
        let store: StoreSettings =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        store.check("photos").map(|()| store)
    }

    #[test]
    fn a_store_that_cannot_be_used_names_its_key() {
        for (text, problem) in [
            ("kind = \"s3\"", "missing field `functions`"),
            ("kind = \"ftp\"\nfunctions = []", "s3"),
            (
                "kind = \"http\"\nfunctions = []\nurl = \"http://u:p@host/\"",
                ".url is",
            ),
            (
                "kind = \"file\"\nfunctions = []\npath = \"here\"",
                "must begin with /",
            ),
            (
                "kind = \"file\"\nfunctions = []\npath = \"/x\"\nbucket = \"b\"",
                "bucket",
            ),
            (
                "kind = \"s3\"\nfunctions = []\nendpoint = \"localhost:9000\"",
                ".endpoint is",
            ),
            (
                "kind = \"s3\"\nfunctions = []\naccess_key_id = \"a\"",
                "needs access_key_id and",
            ),
            (
                "kind = \"s3\"\nfunctions = []\ncredentials = \"anonymous\"\naccess_key_id = \"a\"",
                "leave out",
            ),
            (
                "kind = \"s3\"\nfunctions = []\nprofile = \"work\"\naccess_key_id = \"a\"",
                ".profile: leave out credentials, access_key_id",
            ),
            (
                "kind = \"s3\"\nfunctions = []\nprofile = \"work\"\ncredentials = \"environment\"",
                ".profile: leave out",
            ),
            (
                "kind = \"s3\"\nfunctions = [\"*\", \"a*b\"]",
                ".functions has 'a*b'",
            ),
            ("kind = \"s3\"\nfunctions = [\"\"]", ".functions has ''"),
            (
                "kind = \"s3\"\nfunctions = []\nprofile = \"\"",
                ".profile is empty",
            ),
        ] {
            let found = store(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
        assert!(store("kind = \"s3\"\nfunctions = [\"*\"]").is_ok());
    }

    #[test]
    fn what_a_client_of_s3_would_panic_at_is_refused_with_its_key() {
        for (key, value) in [
            ("endpoint", "http://127.0.0.1:99999"),
            ("endpoint", "http://a b"),
            ("endpoint", "http://[::1"),
            ("endpoint", "http://:9000"),
            ("bucket", "a b"),
            ("bucket", ""),
            ("bucket", ".."),
            ("region", "a b"),
            ("region", ""),
            ("access_key_id", "a\\nb"),
            ("access_key_id", ""),
        ] {
            let text = format!(
                "kind = \"s3\"\nfunctions = [\"*\"]\nsecret_access_key_file = \"/s\"\naccess_key_id = \"a\"\n{key} = \"{value}\""
            );
            let text = match key {
                "access_key_id" => text.replacen("access_key_id = \"a\"\n", "", 1),
                _ => text,
            };
            let problem = store(&text).unwrap_err();
            assert!(problem.starts_with(&format!(".{key} is \"")), "{problem}");
        }
    }

    #[test]
    fn limits_are_in_their_order() {
        let checked = |text: &str| check(&toml::from_str(text).unwrap(), &BTreeMap::new());
        assert_eq!(checked(""), Ok(()));
        assert_eq!(
            checked("memory_mb = 100\nfunction_mb = 101").unwrap_err(),
            "data.function_mb must be from 1 to 100, which is data.memory_mb"
        );
        assert_eq!(
            checked("memory_mb = 100\ninput_mb = 51").unwrap_err(),
            "data.input_mb must be from 1 to 50, which is data.function_mb"
        );
        assert_eq!(
            checked("memory_mb = 100\ncache_mb = 101").unwrap_err(),
            "data.cache_mb must be at most 100, which is data.memory_mb"
        );
        for (text, problem) in [
            ("memory_mb = 1", "data.memory_mb must be from 2 to 1048576"),
            (
                "spill_mb = 99999999",
                "data.spill_mb must be at most 16777216",
            ),
            (
                "decoder_memory_mb = 1",
                "data.decoder_memory_mb must be from 32 to 1048576",
            ),
        ] {
            assert_eq!(checked(text).unwrap_err(), problem);
        }
        assert_eq!(
            checked(
                "memory_mb = 100\ncache_mb = 0\nspill_mb = 9\noverlap = false\nby_reference = false\nstream = false"
            ),
            Ok(())
        );
    }
}
