//! The control API's JSON: what `side/admin` serves and the CLI reads. One definition for both ends.
//!
//! | call | body | answer |
//! |---|---|---|
//! | `PUT /_pilot/v1/functions/NAME` | multipart: `spec` ([`FunctionSpec`](crate::spec::FunctionSpec), JSON), `code` (tar.gz) | a line of JSON per [`DeployEvent`], the last is `done` or `failed` |
//! | `GET /_pilot/v1/functions` | | `[FunctionSummary]` |
//! | `GET /_pilot/v1/functions/NAME?values=BOOL` | | [`FunctionDescription`] |
//! | `DELETE /_pilot/v1/functions/NAME` | | 204 |
//! | `POST /_pilot/v1/functions/NAME/scale` | [`ScaleRequest`] | [`PoolStatus`] |
//! | `POST /_pilot/v1/functions/NAME/rollback` | [`RollbackRequest`], or nothing | [`RollbackReport`](crate::deployment::RollbackReport) |
//! | `GET /_pilot/v1/functions/NAME/logs?lines=N&follow=BOOL&since_unix_ms=T&request=ID&format=text\|json` | | text, one line each, or [`LogLine`](crate::log_line::LogLine)s |
//! | `GET /_pilot/v1/layers/ID` | | [`LayerInfo`]; 404: it must be uploaded |
//! | `PUT /_pilot/v1/layers/ID` | tar.gz of the content with this id | [`LayerInfo`] |
//! | `POST /_pilot/v1/prune` | [`PruneRequest`], or nothing | [`PruneReport`] |
//! | `POST /_pilot/v1/tokens` | [`TokenRequest`] | [`CreatedToken`] |
//! | `GET /_pilot/v1/tokens` | | `[TokenInfo]` |
//! | `DELETE /_pilot/v1/tokens/NAME` | | 204 |
//! | `PUT /_pilot/v1/secrets/NAME?owner=OWNER` | the value | [`SecretInfo`] |
//! | `GET /_pilot/v1/secrets` | | `[SecretInfo]` |
//! | `DELETE /_pilot/v1/secrets/NAME?owner=OWNER&force=BOOL` | | 204 |
//! | `GET /_pilot/v1/version`, `/_pilot/v1/openapi.json` | | |
//!
//! Errors are [`ApiError`] with a fitting status.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::access::{Grant, Role};
use crate::deployment::{DeployReport, Progress};
use crate::ids::FunctionName;
use crate::layer::LayerId;
use crate::policy::PolicySpec;
use crate::secret::SecretName;

/// One line of a deployment's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum DeployEvent {
    /// A step of the deployment.
    Progress(Progress),
    /// The new version is live.
    Done(Box<DeployReport>),
    /// Nothing has changed.
    Failed(ApiError),
}

/// An error's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiError {
    /// Stable word.
    pub code: String,
    /// For people; says what to do.
    pub message: String,
    /// Traceback or tool output; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A layer on the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LayerInfo {
    /// Its id.
    pub id: LayerId,
    /// Number of files.
    pub files: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// `POST …/scale`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleRequest {
    /// Idle workers beyond this number are retired at once, or workers are started up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// The policy to use until the next deploy or the daemon's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
}

/// `POST …/rollback`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The number of the version that becomes the live one. Left out: the newest one that is older than the live version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// `POST /_pilot/v1/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Only say what would be removed.
    #[serde(default)]
    pub dry_run: bool,
    /// Also versions that are not live. Then there is nothing to roll back to.
    #[serde(default)]
    pub versions: bool,
    /// Of these, only versions that were deployed this many seconds ago, or earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<u64>,
}

/// The answer to [`PruneRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PruneReport {
    /// Nothing was removed.
    pub dry_run: bool,
    /// What was removed, or would be.
    pub removed: Vec<Pruned>,
    /// Bytes of all of it on the disk.
    pub bytes: u64,
    /// Functions whose versions were left, because they are being deployed or rolled back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<FunctionName>,
    /// Bytes on the disk that code, environments and layers have then.
    pub kept_bytes: u64,
}

/// Something that nothing uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Pruned {
    /// `version`, `code`, `environment` or `layer`.
    pub kind: String,
    /// Its name: FUNCTION:NUMBER, or the id.
    pub name: String,
    /// Bytes on the disk; 0 for a version, whose code and environment are listed themselves.
    pub bytes: u64,
}

/// `POST /_pilot/v1/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Its name, for people.
    pub name: String,
    /// What it permits.
    pub roles: Vec<Role>,
    /// The functions that it is for; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionName>,
    /// The owner of what it deploys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether it gets an access key, with which AWS clients sign.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aws: bool,
}

/// The answer to [`TokenRequest`].
// Its `Debug` form shows neither the token nor the key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedToken {
    /// Its name.
    pub name: String,
    /// The token. The daemon keeps only its hash, so it is not shown again.
    pub token: String,
    /// Its access key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<AccessKey>,
}

/// The credentials of an AWS client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccessKey {
    /// `AWS_ACCESS_KEY_ID`
    pub access_key_id: String,
    /// `AWS_SECRET_ACCESS_KEY`; not shown again.
    pub secret_access_key: String,
}

impl fmt::Debug for CreatedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedToken")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKey")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// A token, without itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenInfo {
    /// What it permits.
    pub grant: Grant,
    /// When it was made.
    pub created_unix_s: u64,
    /// The id of its access key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_key_id: Option<String>,
    /// It was revoked and is refused, but that could not be written yet: after a restart, it is valid again. Revoke it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretInfo {
    /// Its name.
    pub name: SecretName,
    /// The owner of the functions that may use it. Empty: it is shared by all owners.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// When it was first set.
    pub created_unix_s: u64,
    /// When it was last set.
    pub changed_unix_s: u64,
    /// The functions of which a kept version uses it.
    pub used_by: Vec<FunctionName>,
}

/// What a description has instead of the values of variables, unless they are asked for.
pub const HIDDEN: &str = "(hidden)";

/// `GET /_pilot/v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct VersionInfo {
    /// The daemon's version.
    pub version: String,
    /// The control API's version.
    pub api: String,
    /// Where functions are called: a URL without a slash at the end. Older daemons do not say it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub functions: String,
}
