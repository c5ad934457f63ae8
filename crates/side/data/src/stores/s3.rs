//! Amazon S3 and servers with its API, by the crate `object_store`, which signs, retries with jitter and goes on after a connection
//! that broke in the middle of an object.

mod checksum;
mod connector;
pub(crate) mod described;
mod profile;
mod usable;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::limit::LimitStore;
use object_store::path::Path;
use object_store::{
    Attribute, BackoffConfig, ClientConfigKey, ClientOptions, GetOptions, GetResult, ObjectStore,
    RetryConfig,
};
use pilot_model::BoxFuture;
use pilot_model::ports::{InputFaultKind as Kind, StoreObject};
use reqwest::Certificate;

use self::checksum::Announced;
use self::connector::{CONCURRENT_MAX, Connector, OddStatus, WeakTag};
use self::described::{Described, Learns};
use self::profile::{ProfileKeys, Said};
use super::{Anew, Got, Object, Store, StoreError, Validator};

/// A bucket, and how it is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Config {
    /// The bucket's name.
    pub bucket: String,
    /// `http://HOST:PORT` or `https://…` of a server with S3's API. `None`: Amazon.
    pub endpoint: Option<String>,
    /// The region. `None`: `us-east-1`, or that of the environment.
    pub region: Option<String>,
    /// Whether the bucket is in the path and not in the host's name. `None`: where there is an endpoint.
    pub path_style: Option<bool>,
    /// Who the daemon is there.
    pub credentials: S3Credentials,
    /// Certificates of authorities in PEM, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
}

/// Who the daemon is to a store.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum S3Credentials {
    /// What the environment of the daemon says: `AWS_ACCESS_KEY_ID` and its like, a container's or a machine's role.
    #[default]
    Environment,
    /// Nobody: requests are not signed.
    Anonymous,
    /// A key.
    Key {
        /// The access key's id.
        id: String,
        /// The secret.
        secret: String,
    },
    /// The keys of a profile of AWS's tools.
    Profile(ProfileConfig),
}

/// A profile of AWS's tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileConfig {
    /// Its name.
    pub name: String,
    /// The file that is usually `~/.aws/credentials`.
    pub credentials_file: PathBuf,
    /// The file that is usually `~/.aws/config`.
    pub config_file: PathBuf,
}

impl ProfileConfig {
    /// The profile with this name, in the files that AWS's tools would read with these variables.
    ///
    /// # Errors
    /// It is not known where the files are.
    pub fn named(name: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let (credentials_file, config_file) = profile::files(variable)?;
        Ok(Self {
            name: name.to_owned(),
            credentials_file,
            config_file,
        })
    }
}

impl std::fmt::Debug for S3Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Environment => "Environment",
            Self::Anonymous => "Anonymous",
            Self::Key { .. } => "Key",
            Self::Profile(_) => "Profile",
        })
    }
}

/// A bucket.
#[derive(Debug)]
pub(crate) struct S3Store {
    store: LimitStore<AmazonS3>,
    bucket: String,
    /// Where it is, also if the environment says so.
    endpoint: Option<String>,
}

impl S3Store {
    /// # Errors
    /// What is wrong with the configuration.
    pub(crate) fn open(config: &S3Config) -> Result<Self, String> {
        let mut said = Said::default();
        let mut builder = match &config.credentials {
            S3Credentials::Environment => AmazonS3Builder::from_env(),
            S3Credentials::Anonymous => AmazonS3Builder::new().with_skip_signature(true),
            S3Credentials::Key { id, secret } => AmazonS3Builder::new()
                .with_access_key_id(id)
                .with_secret_access_key(secret),
            S3Credentials::Profile(profile) => {
                let opened = ProfileKeys::open(profile);
                let (keys, of_profile) = opened.map_err(|problem| format!("profile: {problem}"))?;
                said = of_profile;
                AmazonS3Builder::new().with_credentials(Arc::new(keys))
            }
        };
        let allows_http = AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp);
        let allows_http = builder.get_config_value(&allows_http);
        builder = builder
            .with_client_options(options(allows_http.as_deref() == Some("true")))
            .with_bucket_name(&config.bucket)
            .with_http_connector(connector(config)?)
            .with_retry(RetryConfig {
                backoff: BackoffConfig {
                    init_backoff: Duration::from_millis(50),
                    max_backoff: Duration::from_secs(2),
                    base: 2.0,
                },
                max_retries: RETRIES_MAX,
                // The function's timeout ends it earlier.
                retry_timeout: Duration::from_secs(180),
            });
        // What is beside the keys in a profile belongs to them, as for AWS's tools.
        if let Some(region) = config.region.as_ref().or(said.region.as_ref()) {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = config.endpoint.as_ref().or(said.endpoint.as_ref()) {
            let path_style = config.path_style.unwrap_or(true);
            builder = builder
                .with_endpoint(endpoint)
                .with_allow_http(endpoint.starts_with("http://"))
                .with_virtual_hosted_style_request(!path_style);
        } else if let Some(path_style) = config.path_style {
            builder = builder.with_virtual_hosted_style_request(!path_style);
        }
        let endpoint = builder
            .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
            .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
        let given_by = match (&config.endpoint, &said.endpoint) {
            (Some(_), _) => "the endpoint",
            (None, Some(_)) => "the profile's endpoint_url",
            (None, None) => "AWS_ENDPOINT_URL in the daemon's environment",
        };
        usable::check(&builder, (given_by, endpoint.as_deref()), &config.bucket)?;
        let store = builder.build().map_err(|error| chain(&error))?;
        Ok(Self {
            store: LimitStore::new(store, CONCURRENT_MAX),
            bucket: config.bucket.clone(),
            endpoint,
        })
    }
}

impl S3Store {
    /// The answer, and what it says about the object besides its bytes.
    async fn ask(
        &self,
        path: &Path,
        mut options: GetOptions,
    ) -> (object_store::Result<GetResult>, Option<Described>) {
        let learns = Learns::default();
        options.extensions.insert(learns.clone());
        let result = self.store.get_opts(path, options).await;
        (result, learns.learnt())
    }

    /// What the store says about an object, without its bytes. `None`: it does not say it, or nothing tells one content from another.
    async fn describe(&self, path: &Path) -> Option<Anew> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let (result, learnt) = self.ask(path, options).await;
        let result = result.ok()?;
        Some(Anew {
            headers: headers(&result),
            validator: validator(&result, learnt)?,
        })
    }
}

/// What requests have in addition, as far as the signature has to cover it.
fn options(allows_http: bool) -> ClientOptions {
    let (name, value) = checksum::ASK;
    let pair = (
        HeaderName::from_static(name),
        HeaderValue::from_static(value),
    );
    ClientOptions::new()
        .with_allow_http(allows_http)
        .with_default_headers(HeaderMap::from_iter([pair]))
}

fn connector(config: &S3Config) -> Result<Connector, String> {
    let pem = config.ca_pem.as_deref();
    let certificates = pem.map(Certificate::from_pem_bundle).transpose();
    let certificates = certificates.map_err(|error| chain(&error))?;
    Ok(Connector {
        certificates: certificates.unwrap_or_default(),
    })
}

impl Store for S3Store {
    fn retries(&self) -> u32 {
        0
    }

    fn places(&self) -> Option<usize> {
        Some(CONCURRENT_MAX)
    }

    fn named(&self, key: &str, headers: &[(String, String)]) -> Option<StoreObject> {
        // A client that names no user must not be told of one.
        let has_user = self.endpoint.as_ref().is_some_and(|url| url.contains('@'));
        (!has_user).then(|| StoreObject::S3 {
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            key: key.to_owned(),
            headers: headers.to_vec(),
        })
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let path =
                Path::parse(key).map_err(|error| StoreError::new(Kind::Key, &error.to_string()))?;
            let (tag, described) = match known {
                Some(Validator::Described(tag, described)) => (Some(tag), described.as_ref()),
                _ => (None, None),
            };
            let options = GetOptions {
                if_none_match: tag.cloned(),
                ..GetOptions::default()
            };
            let (result, learnt) = self.ask(&path, options).await;
            let result = match result {
                Err(object_store::Error::NotModified { .. }) if tag.is_some() => {
                    if described.is_some() && learnt.as_ref() == described {
                        return Ok(Got::Unchanged(None));
                    }
                    return match self.describe(&path).await {
                        Some(anew) if anew.validator.tag() == tag.map(String::as_str) => {
                            Ok(Got::Unchanged(Some(anew)))
                        }
                        _ => self.get(key, None).await,
                    };
                }
                result => result.map_err(|error| fault(&error))?,
            };
            let announced = result.extensions.get::<Announced>().cloned();
            let (len, headers) = (result.meta.size, headers(&result));
            let validator = validator(&result, learnt);
            let body = result.into_stream().map_err(|error| fault(&error)).boxed();
            Ok(Got::Object(Object {
                len: Some(len),
                validator,
                headers,
                body: match announced {
                    Some(announced) => announced.checked(body),
                    None => body,
                },
            }))
        })
    }
}

fn validator(result: &GetResult, described: Option<Described>) -> Option<Validator> {
    match Validator::of_tag(result.meta.e_tag.as_deref()?)? {
        Validator::Tag(tag) => Some(Validator::Described(tag, described)),
        other => Some(other),
    }
}

/// What the response said about the object, as far as `object_store` passes it on.
fn headers(result: &GetResult) -> Vec<(String, String)> {
    let meta = &result.meta;
    // RFC 9110, section 5.6.7.
    let modified = meta
        .last_modified
        .format("%a, %d %b %Y %H:%M:%S GMT")
        .to_string();
    let mut headers = vec![("last-modified".to_owned(), modified)];
    let weak = result.extensions.get::<WeakTag>();
    let tag = meta.e_tag.clone().or(weak.map(|weak| weak.0.clone()));
    headers.extend(tag.map(|tag| ("etag".to_owned(), tag)));
    let version = meta.version.clone();
    headers.extend(version.map(|version| ("x-amz-version-id".to_owned(), version)));
    for (attribute, value) in &result.attributes {
        let name = match attribute {
            Attribute::ContentType => "content-type".to_owned(),
            Attribute::ContentDisposition => "content-disposition".to_owned(),
            Attribute::ContentEncoding => "content-encoding".to_owned(),
            Attribute::ContentLanguage => "content-language".to_owned(),
            Attribute::CacheControl => "cache-control".to_owned(),
            Attribute::StorageClass => "x-amz-storage-class".to_owned(),
            Attribute::Metadata(name) => format!("x-amz-meta-{name}"),
            _ => continue,
        };
        headers.push((name, value.to_string()));
    }
    headers
}

fn fault(error: &object_store::Error) -> StoreError {
    use object_store::Error as E;
    if let Some(odd) = odd_status(error) {
        let kind = match odd {
            OddStatus::NoPart => Kind::Unavailable,
            OddStatus::NoObject(_) => Kind::Broken,
        };
        return StoreError::new(kind, &odd.to_string());
    }
    let text = chain(error);
    let code = code_of(&text);
    let kind = match (error, code) {
        // Some servers answer with 404.
        (_, Some("InvalidAccessKeyId"))
        | (E::PermissionDenied { .. } | E::Unauthenticated { .. }, _) => Kind::Denied,
        (E::NotFound { .. }, _) => Kind::NotFound,
        (E::InvalidPath { .. }, _) => Kind::Key,
        _ => Kind::Unavailable,
    };
    let problem = match (kind, code) {
        (Kind::NotFound, None | Some("NoSuchKey")) => "there is no such object".to_owned(),
        (Kind::NotFound, Some(code)) => format!("there is no such object: {code}"),
        (Kind::Denied, Some(code)) => format!("the store refuses the daemon's credentials: {code}"),
        (Kind::Denied, None) => format!("the store refuses the daemon's credentials: {text}"),
        _ => text.clone(),
    };
    StoreError::new(kind, &problem)
}

/// The cause of an error, if it is one of the connector's.
fn odd_status(error: &object_store::Error) -> Option<OddStatus> {
    let first: &dyn std::error::Error = error;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    causes.find_map(|error| error.downcast_ref::<OddStatus>().copied())
}

/// The error code in a response of S3 (`<Code>NoSuchKey</Code>`), in an error's text.
fn code_of(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("<Code>")?;
    let (code, _) = after.split_once("</Code>")?;
    Some(code)
        .filter(|code| !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// An error and its causes. Many errors contain the text of their cause.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

const RETRIES_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_response_is_found_and_nothing_else_is_taken_for_one() {
        let text = "Client error with status 404: <Error><Code>NoSuchBucket</Code><Message>x</Message></Error>";
        assert_eq!(code_of(text), Some("NoSuchBucket"));
        for text in ["", "<Code>", "<Code></Code>", "<Code>a b</Code>"] {
            assert_eq!(code_of(text), None);
        }
    }
}
