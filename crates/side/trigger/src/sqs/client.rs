//! Calls of the SQS API: its JSON protocol over `reqwest`, signed with AWS Signature Version 4 by the crate `object_store`, which also
//! knows where an AWS machine has its credentials.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{
    AmazonS3Builder, AmazonS3ConfigKey, AwsAuthorizer, AwsCredential, AwsCredentialProvider,
};
use object_store::client::HttpRequest;
use pilot_model::BoxFuture;
use reqwest::{Client, Response, Url};
use serde_json::{Map, Value, json};

use crate::http::{self, Trust};

/// Who the daemon is to a queue's server, and how it is reached.
#[derive(Clone)]
pub struct SqsAccess {
    /// The beginning of the URLs of the queues that may be used.
    pub url: String,
    /// The region. `None`: that of the URL if it is AWS's, then that of the environment if the credentials are, then `us-east-1`.
    pub region: Option<String>,
    /// Who the daemon is.
    pub credentials: SqsCredentials,
    /// Certificates of authorities in PEM, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
}

impl Debug for SqsAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsAccess")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// Who the daemon is to a queue's server.
#[derive(Clone)]
pub enum SqsCredentials {
    /// What the environment of the daemon says: `AWS_ACCESS_KEY_ID` and its like, a container's or a machine's role.
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
}

impl Debug for SqsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Environment => "Environment",
            Self::Anonymous => "Anonymous",
            Self::Key { .. } => "Key",
        })
    }
}

/// A queue.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    client: Client,
    url: String,
    /// The server.
    root: Url,
    region: String,
    signer: Signer,
}

/// What can be called at a queue.
pub(super) trait Calls: Debug + Send + Sync {
    /// [`Queue::call`].
    fn call(&self, action: &'static str, body: Value) -> BoxFuture<'_, Result<Value, String>>;

    /// [`Queue::arn`].
    fn arn(&self) -> String;

    /// [`Queue::region`].
    fn region(&self) -> &str;
}

impl Calls for Queue {
    fn call(&self, action: &'static str, body: Value) -> BoxFuture<'_, Result<Value, String>> {
        Box::pin(self.call(action, body))
    }

    fn arn(&self) -> String {
        self.arn()
    }

    fn region(&self) -> &str {
        self.region()
    }
}

#[derive(Debug, Clone)]
enum Signer {
    Nobody,
    Key(Arc<AwsCredential>),
    Environment(AwsCredentialProvider),
}

impl Queue {
    /// # Errors
    /// What is wrong with the configuration.
    pub(crate) fn open(access: &SqsAccess, url: &str) -> Result<Self, String> {
        let mut root = Url::parse(url).map_err(|error| format!("{url}: {error}"))?;
        root.set_path("/");
        let mut region = access.region.clone().or_else(|| region_of(&root));
        let signer = match &access.credentials {
            SqsCredentials::Anonymous => Signer::Nobody,
            SqsCredentials::Key { id, secret } => Signer::Key(Arc::new(AwsCredential {
                key_id: id.clone(),
                secret_key: secret.clone(),
                token: None,
            })),
            SqsCredentials::Environment => {
                // Only what it knows about credentials and the region is used.
                let builder = AmazonS3Builder::from_env().with_bucket_name("none");
                region = region.or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Region));
                let built = builder.build();
                let built = built.map_err(|error| format!("credentials: {error}"))?;
                Signer::Environment(Arc::clone(built.credentials()))
            }
        };
        Ok(Self {
            client: http::client(&Trust::of(access.ca_pem.as_deref())?, CALL_TIME_MAX)?,
            url: url.to_owned(),
            root,
            region: region.unwrap_or_else(|| "us-east-1".to_owned()),
            signer,
        })
    }

    /// Another queue of the same server.
    pub(crate) fn at(&self, url: String) -> Self {
        Self {
            url,
            ..self.clone()
        }
    }

    /// The ARN, as far as the URL says it.
    pub(crate) fn arn(&self) -> String {
        let mut parts = self.url.rsplit('/');
        let (name, account) = (parts.next(), parts.next());
        format!(
            "arn:aws:sqs:{}:{}:{}",
            self.region,
            account.unwrap_or_default(),
            name.unwrap_or_default()
        )
    }

    pub(crate) fn region(&self) -> &str {
        &self.region
    }

    /// One call. The queue's URL is added to the request. The error is for people.
    pub(crate) async fn call(&self, action: &str, body: Value) -> Result<Value, String> {
        let Value::Object(body) = body else {
            return Err(format!("{action}: its arguments are not an object"));
        };
        let response = self.send(action, body).await?;
        let answer = http::read(response, ANSWER_BYTES_MAX).await;
        let answer = answer.map_err(|problem| self.shown(action, &problem))?;
        // Some calls have no answer.
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        // Each value takes much more memory than it has bytes.
        if values(&answer) > ANSWER_VALUES_MAX {
            let problem = format!("the answer has more than {ANSWER_VALUES_MAX} values");
            return Err(self.shown(action, &problem));
        }
        let read = serde_json::from_slice(&answer);
        read.map_err(|error| self.shown(action, &error.to_string()))
    }

    /// The same, up to the head of an answer that is a success.
    pub(crate) async fn send(
        &self,
        action: &str,
        mut body: Map<String, Value>,
    ) -> Result<Response, String> {
        body.insert("QueueUrl".to_owned(), json!(self.url));
        let body = Value::Object(body).to_string();
        let mut request = self
            .client
            .post(self.root.clone())
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"));
        let headers = self.signature(action, &body).await?;
        for (name, value) in headers.iter().flatten() {
            request = request.header(name, value);
        }
        let sent = request.body(body).send().await;
        let response =
            sent.map_err(|error| self.shown(action, &http::chain(&error.without_url())))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let answer = http::read(response, REFUSAL_BYTES_MAX).await;
        let answer = answer.unwrap_or_default();
        let said: String = String::from_utf8_lossy(&answer).chars().take(200).collect();
        Err(self.shown(action, &format!("the server answers {status}: {said}")))
    }

    fn shown(&self, action: &str, problem: &str) -> String {
        format!("{action} at {}: {problem}", self.url)
    }

    /// The headers that say who asks.
    async fn signature(
        &self,
        action: &str,
        body: &str,
    ) -> Result<Option<reqwest::header::HeaderMap>, String> {
        let credential = match &self.signer {
            Signer::Nobody => return Ok(None),
            Signer::Key(key) => Arc::clone(key),
            Signer::Environment(provider) => {
                let found = provider.get_credential().await;
                found.map_err(|error| format!("the daemon has no credentials of AWS: {error}"))?
            }
        };
        let mut request = to_sign(&self.root, action, body)?;
        let authorizer = AwsAuthorizer::new(&credential, "sqs", &self.region);
        let signed = authorizer.try_authorize(&mut request, None);
        signed.map_err(|error| format!("{action} cannot be signed: {error}"))?;
        let mut headers = request.into_parts().0.headers;
        headers.remove("content-type");
        headers.remove("x-amz-target");
        Ok(Some(headers))
    }
}

/// The region that an endpoint of AWS is in ("Amazon SQS endpoints and quotas", AWS General Reference).
fn region_of(root: &Url) -> Option<String> {
    let host = root.host_str()?;
    let domains = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];
    let name = domains
        .iter()
        .find_map(|domain| host.strip_suffix(domain))?;
    let labels: Vec<&str> = name.split('.').collect();
    let region = match labels[..] {
        // The old names.
        ["queue"] => "us-east-1",
        [region, "queue"] | ["sqs" | "sqs-fips", region] => region,
        // The endpoint of a VPC.
        [_, "sqs", region, "vpce"] => region,
        _ => return None,
    };
    Some(region.to_owned())
}

/// About how many values a text in JSON has: commas and brackets outside of strings.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// The request as it is signed.
fn to_sign(root: &Url, action: &str, body: &str) -> Result<HttpRequest, String> {
    let mut request = HttpRequest::new(body.to_owned().into());
    *request.method_mut() = reqwest::Method::POST;
    let uri = root.as_str().parse();
    *request.uri_mut() = uri.map_err(|_| format!("{root} cannot be requested"))?;
    let headers = request.headers_mut();
    let kind = reqwest::header::HeaderValue::from_static("application/x-amz-json-1.0");
    headers.insert("content-type", kind);
    let target = format!("AmazonSQS.{action}").parse();
    headers.insert(
        "x-amz-target",
        target.map_err(|_| format!("no such action {action}"))?,
    );
    Ok(request)
}

/// Messages of one call, at most.
pub(super) const PER_CALL: usize = 10;
/// SQS hides a message for at most 12 hours, since it was received.
pub(super) const VISIBILITY_MAX_S: u64 = 43_200;
/// Longer than the longest poll of SQS, 20 s.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Ten messages of 1 MiB, escaped.
const ANSWER_BYTES_MAX: usize = 24 << 20;
/// Ten messages with ten attributes each have fewer than a thousand.
const ANSWER_VALUES_MAX: usize = 20_000;
/// The answer of a server that refuses.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_that_of_the_url_if_it_is_one_of_aws() {
        for (host, expected) in [
            ("sqs.eu-west-1.amazonaws.com", Some("eu-west-1")),
            (
                "sqs-fips.us-gov-west-1.amazonaws.com",
                Some("us-gov-west-1"),
            ),
            ("sqs.cn-north-1.amazonaws.com.cn", Some("cn-north-1")),
            ("sqs.eu-central-1.api.aws", Some("eu-central-1")),
            ("eu-west-2.queue.amazonaws.com", Some("eu-west-2")),
            ("queue.amazonaws.com", Some("us-east-1")),
            (
                "vpce-0a-1b.sqs.eu-west-3.vpce.amazonaws.com",
                Some("eu-west-3"),
            ),
            ("sqs.eu-west-1.amazonaws.com.example.org", None),
            ("127.0.0.1:9324", None),
        ] {
            let root = Url::parse(&format!("https://{host}/")).unwrap();
            assert_eq!(region_of(&root).as_deref(), expected, "{host}");
        }
    }

    #[test]
    fn values_are_counted_outside_of_strings_alone() {
        assert_eq!(
            values(br#"{"Messages": [{"Body": "[1,2,{\"a\\\\\":[]}]"}, {}]}"#),
            5
        );
        assert_eq!(values(br#""\\", ["#), 2);
        assert_eq!(values("[],".repeat(1000).as_bytes()), 2000);
        assert_eq!(values(b""), 0);
    }
}
