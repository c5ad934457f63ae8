//! Whether the crate `object_store` can make requests with what it was given. It panics at each request if an address is none, or if a
//! value cannot be in a header. The environment and AWS's files are not read by the daemon's configuration, so this is looked at here.

use http::Uri;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use pilot_dial::{names_server, shown_url};
use reqwest::Url;

/// `endpoint`: what it is called, and the URL.
///
/// # Errors
/// What cannot be used, and what it must be.
pub(super) fn check(
    builder: &AmazonS3Builder,
    (named, endpoint): (&str, Option<&str>),
    bucket: &str,
) -> Result<(), String> {
    if let Some(endpoint) = endpoint
        && !names_server(endpoint, ["http://", "https://"])
    {
        return Err(format!(
            "{named} is \"{}\", must be http://HOST:PORT or https://HOST:PORT",
            shown_url(endpoint)
        ));
    }
    for (key, what) in [
        (AmazonS3ConfigKey::Region, "the region"),
        (AmazonS3ConfigKey::AccessKeyId, "the access key's id"),
        (AmazonS3ConfigKey::Token, "the session token"),
    ] {
        let value = builder.get_config_value(&key);
        if !value.as_deref().is_none_or(is_word) {
            return Err(format!(
                "{what} must be visible ASCII characters without spaces"
            ));
        }
    }
    // Each of them may be right and not what they are together, such as a bucket in a host's name.
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    let region = region.unwrap_or_else(|| "us-east-1".to_owned());
    let addresses = match endpoint {
        Some(endpoint) => [endpoint.to_owned(), format!("{endpoint}/{bucket}")],
        None => [
            format!("https://{bucket}.s3.{region}.amazonaws.com"),
            format!("https://s3.{region}.amazonaws.com/{bucket}"),
        ],
    };
    match addresses.iter().find(|address| !is_address(address)) {
        Some(address) => Err(format!(
            "endpoint, region and bucket make \"{}\", which is no address",
            shown_url(address)
        )),
        None => Ok(()),
    }
}

/// Whether this can be in a header.
pub(super) fn is_word(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_graphic())
}

/// As `object_store` reads it, once for the request and once for its signature.
fn is_address(address: &str) -> bool {
    let uri = address.parse::<Uri>();
    uri.is_ok_and(|uri| is_word(address) && Url::parse(&uri.to_string()).is_ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::{ProfileConfig, S3Config, S3Credentials, S3Store};

    fn opened(config: S3Config) -> Result<(), String> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        S3Store::open(&config).map(drop)
    }

    fn config(endpoint: Option<&str>, bucket: &str, region: &str, id: &str) -> S3Config {
        S3Config {
            bucket: bucket.to_owned(),
            endpoint: endpoint.map(str::to_owned),
            region: Some(region.to_owned()),
            credentials: S3Credentials::Key {
                id: id.to_owned(),
                secret: "s".to_owned(),
            },
            ..S3Config::default()
        }
    }

    #[test]
    fn what_requests_would_panic_at_is_refused_when_a_store_is_opened() {
        let local = Some("http://127.0.0.1:9000");
        for (endpoint, bucket, region, id) in [
            (local, "photos", "us-east-1", "AKIA"),
            (None, "Photos_old", "eu-west-1", "AKIA"),
            (Some("https://[::1]:9000/base/"), "p", "auto", "AKIA"),
        ] {
            assert_eq!(opened(config(endpoint, bucket, region, id)), Ok(()));
        }
        for (endpoint, bucket, region, id) in [
            (Some("http://127.0.0.1:99999"), "p", "r", "A"),
            (Some("http://a b"), "p", "r", "A"),
            (Some("http://[::1"), "p", "r", "A"),
            (Some("http://:9000"), "p", "r", "A"),
            (Some("http://h{}"), "p", "r", "A"),
            (Some("http://h/\u{e9}"), "p", "r", "A"),
            (local, "a b", "r", "A"),
            (None, "xn--a", "r", "A"),
            (local, "p", "a b", "A"),
            (None, "p", "r<", "A"),
            (local, "p", "r", "A\nB"),
        ] {
            let found = opened(config(endpoint, bucket, region, id));
            assert!(found.is_err(), "{endpoint:?} {bucket} {region} {id}");
        }
    }

    #[test]
    fn the_endpoint_of_a_profile_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        let text = "[work]\naws_access_key_id = a\naws_secret_access_key = b\nendpoint_url = http://h:99999\n";
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let profile = ProfileConfig {
            name: "work".to_owned(),
            credentials_file: file,
            config_file: folder.path().join("config"),
        };
        let problem = opened(S3Config {
            bucket: "p".to_owned(),
            credentials: S3Credentials::Profile(profile),
            ..S3Config::default()
        });
        let problem = problem.unwrap_err();
        assert!(
            problem.starts_with("the profile's endpoint_url is \"http://h:99999\""),
            "{problem}"
        );
    }
}
