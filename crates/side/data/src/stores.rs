//! The stores: each kind in a file of its own, behind one trait.

#[cfg(test)]
mod conformance;
pub(crate) mod direct;
pub(crate) mod direct_redis;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod file;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod of_function;
pub(crate) mod queue;
mod redirects;
pub(crate) mod redis;
pub(crate) mod request;
pub(crate) mod s3;
#[cfg(test)]
mod scripted;

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use pilot_model::BoxFuture;
use pilot_model::inputs::{Location, Scheme};
use pilot_model::invokes::is_named;
use pilot_model::log_line::one_line;
use pilot_model::ports::{InputFaultKind, StoreObject};
use pilot_model::size::Size;

use file::{FileConfig, FileStore};
use http::{HttpConfig, HttpStore};
use redis::{RedisConfig, RedisStore};
use s3::described::Described;
use s3::{S3Config, S3Store};

/// A store of `pilotd.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Its name, which locations contain.
    pub name: String,
    /// How it is reached.
    pub kind: StoreKind,
    /// The functions that may use it: names, or `*` at the end of a beginning, or `*` for all.
    pub functions: Vec<String>,
}

/// How a store is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreKind {
    /// Amazon S3, or a server with its API.
    S3(S3Config),
    /// A server that answers GET.
    Http(HttpConfig),
    /// Redis.
    Redis(RedisConfig),
    /// A folder of the daemon's machine.
    File(FileConfig),
}

impl StoreConfig {
    /// Whether a function may use it.
    #[must_use]
    pub fn is_for(&self, function: &str) -> bool {
        is_named(&self.functions, function)
    }

    /// The scheme of its locations.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        match &self.kind {
            StoreKind::S3(_) => Scheme::S3,
            StoreKind::Http(http) if http.url.starts_with("https:") => Scheme::Https,
            StoreKind::Http(_) => Scheme::Http,
            StoreKind::Redis(redis) if redis.url.starts_with("rediss:") => Scheme::Rediss,
            StoreKind::Redis(_) => Scheme::Redis,
            StoreKind::File(_) => Scheme::File,
        }
    }
}

/// Something that has objects.
pub(crate) trait Store: Send + Sync + Debug {
    /// Begins to read an object, if it is another one than `known` says. Dropping the future ends that.
    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>>;

    /// As [`Store::get`], for an object that was read up to `at` and that `known` tells from others. Returns the position of the answer's
    /// first byte, too: `at`, or 0 for the whole object, which may be another one by now.
    fn rest<'a>(
        &'a self,
        key: &'a str,
        _known: &'a Validator,
        _at: u64,
    ) -> BoxFuture<'a, Result<(u64, Got), StoreError>> {
        Box::pin(async move { Ok((0, self.get(key, None).await?)) })
    }

    /// Whether a location can be one of this store, as far as that is known before there are values.
    ///
    /// # Errors
    /// What is wrong with its key, and what to write.
    fn check(&self, _: &Location) -> Result<(), String> {
        Ok(())
    }

    /// Whether a key can be one of the location that it was made of. The location says what is asked for, and no value in it.
    ///
    /// # Errors
    /// What is wrong with the key.
    fn check_key(&self, _: &Location, _key: &str) -> Result<(), String> {
        Ok(())
    }

    /// How many objects are read from it at the same time. `None`: each of them takes a short time only.
    fn places(&self) -> Option<usize> {
        None
    }

    /// How often a fetch that failed for a moment is tried again. 0: the store tries again by itself, or there is no use in it.
    fn retries(&self) -> u32;

    /// What clients of the store call an object, with what the store said about it. `None`: there are no drop-ins for its clients.
    fn named(&self, _key: &str, _headers: &[(String, String)]) -> Option<StoreObject> {
        None
    }
}

/// What a store answers.
#[derive(Debug)]
pub(crate) enum Got {
    /// The object.
    Object(Object),
    /// Its content is the one that is known. What the store said about it holds, too, unless it says something else now.
    Unchanged(Option<Anew>),
}

/// What a store says about an object whose content is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anew {
    /// As of [`Object`].
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) validator: Validator,
}

/// What tells one content of an object from another. Two contents never have the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Validator {
    /// A strong entity tag, with its quotes (RFC 9110, section 8.8.3).
    Tag(String),
    /// The same, and what S3 said about the object besides its bytes, if that tells whether it was described anew.
    Described(String, Option<Described>),
    /// The state of a file.
    File(file::FileState),
}

impl Validator {
    /// `None`: it is weak, which means that contents that differ may share it, or too long to keep.
    pub(crate) fn of_tag(tag: &str) -> Option<Self> {
        let is_strong = tag.starts_with('"') && tag.ends_with('"') && tag.len() >= 2;
        (is_strong && tag.len() <= TAG_LEN_MAX).then(|| Self::Tag(tag.to_owned()))
    }

    pub(crate) fn tag(&self) -> Option<&str> {
        match self {
            Self::Tag(tag) | Self::Described(tag, _) => Some(tag),
            Self::File(_) => None,
        }
    }
}

/// An object that is being read.
pub(crate) struct Object {
    /// Its length, as announced.
    pub(crate) len: Option<u64>,
    /// What tells it from a later one. `None`: the store has nothing of the kind, so that it can be used only once.
    pub(crate) validator: Option<Validator>,
    /// What the store said about it: lower-case names of HTTP headers, and their values. Only for drop-ins.
    pub(crate) headers: Vec<(String, String)>,
    /// Its bytes.
    pub(crate) body: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object")
            .field("len", &self.len)
            .field("validator", &self.validator)
            .finish_non_exhaustive()
    }
}

/// Why an object could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreError {
    pub(crate) kind: InputFaultKind,
    pub(crate) problem: String,
}

impl StoreError {
    /// The text is from outside: it is cut and escaped.
    pub(crate) fn new(kind: InputFaultKind, problem: &str) -> Self {
        let mut shown = one_line(problem, PROBLEM_MAX);
        if problem.chars().count() > PROBLEM_MAX {
            shown.push('…');
        }
        Self {
            kind,
            problem: shown,
        }
    }
}

/// `len`: how long it is, if that is known.
pub(crate) fn too_large(len: Option<u64>, bytes_max: u64) -> StoreError {
    let (len, most) = match len {
        Some(len) => unlike(len, bytes_max),
        None => ("more than that".to_owned(), Size(bytes_max).to_string()),
    };
    let problem = format!(
        "it has {len}, and one input may have {most}: see data.input_mb and data.function_mb"
    );
    StoreError::new(InputFaultKind::TooLarge, &problem)
}

/// Two lengths for one message: in bytes, if they would otherwise read alike.
pub(crate) fn unlike(one: u64, other: u64) -> (String, String) {
    let (short, other_short) = (Size(one).to_string(), Size(other).to_string());
    if one != other && short == other_short {
        return (format!("{one} bytes"), format!("{other} bytes"));
    }
    (short, other_short)
}

/// The store of a configuration. `bytes_max`: the longest input.
///
/// # Errors
/// What is wrong with the configuration.
pub(crate) fn open(config: &StoreConfig, bytes_max: u64) -> Result<Arc<dyn Store>, String> {
    match &config.kind {
        StoreKind::S3(s3) => Ok(Arc::new(S3Store::open(s3)?)),
        StoreKind::Http(http) => Ok(Arc::new(HttpStore::open(http)?)),
        StoreKind::Redis(redis) => Ok(Arc::new(RedisStore::open(redis, bytes_max)?)),
        StoreKind::File(file) => Ok(Arc::new(FileStore::open(file)?)),
    }
}

/// Characters of a store's own error that are passed on.
const PROBLEM_MAX: usize = 400;
const TAG_LEN_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_for_the_functions_that_it_names() {
        let store = |functions: &[&str]| StoreConfig {
            name: "photos".to_owned(),
            kind: StoreKind::S3(S3Config::default()),
            functions: functions.iter().map(|one| (*one).to_owned()).collect(),
        };
        assert!(store(&["resize", "crop"]).is_for("crop"));
        assert!(store(&["team-*"]).is_for("team-a") && !store(&["team-*"]).is_for("tea"));
        assert!(store(&["*"]).is_for("any") && !store(&[]).is_for("any"));
        assert!(!store(&["resize"]).is_for("resize2"));
    }

    #[test]
    fn a_long_or_odd_error_is_cut_and_made_plain() {
        let error = StoreError::new(
            InputFaultKind::Unavailable,
            &format!("a\u{1b}[2J\n{}", "x".repeat(9999)),
        );
        assert!(error.problem.starts_with("a [2J x") && error.problem.chars().count() == 401);
    }
}
