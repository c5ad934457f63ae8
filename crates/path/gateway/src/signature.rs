//! AWS Signature Version 4, as AWS SDKs sign requests to Lambda ("Create a signed AWS API request" in the IAM user guide): in the
//! header `Authorization`, or in the query of a presigned URL.
//!
//! The signature is over the method, the path and query as sent, the signed headers and the hash of the body. It must cover `Host` and
//! every header of `X-Amz-` and `X-Pilot-`, so that nobody can add one: whoever has a presigned URL could otherwise chain other functions.
//! The path is not normalised: then a signature for one path would be valid for others. Signers do normalise it, and disagree
//! about `+` in queries: the error says so.
//!
//! Not here: reading the body ([`RequestContext`](crate::request_context::RequestContext) does, because it must hash it).

mod canonical;
mod parse;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, Uri};
use sha2::{Digest as _, Sha256};

use crate::headers;

/// The signature of a request, parsed. Nothing is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Names the key.
    pub(crate) access_key_id: String,
    /// `20260131/eu-central-1/lambda/aws4_request`
    scope: String,
    /// Of the scope: date, region, service.
    day: String,
    region: String,
    /// `20260131T120000Z`
    date: String,
    unix_s: u64,
    /// The names of the signed headers, in lower case, sorted.
    signed: Vec<String>,
    given: [u8; 32],
    /// Of a presigned URL: the seconds for which it is valid.
    expires_s: Option<u64>,
}

/// What the signature says about the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SignedPayload {
    /// It is not covered.
    Unsigned,
    /// The header says its hash: SHA-256, hexadecimal.
    Said(String),
    /// The signature is over its hash, which only the body has.
    OfBody,
}

/// Why a signature is refused, in AWS's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    /// It is not complete, or not in AWS's form.
    #[error("{problem}")]
    Incomplete {
        /// What is missing or wrong.
        problem: String,
    },
    /// The access key id is unknown.
    #[error("The security token included in the request is invalid.")]
    UnknownKey,
    /// Made too long ago, or in the future.
    #[error("{problem}")]
    Time {
        /// Which, with both times.
        problem: String,
    },
    /// For another service, or another date than its key.
    #[error("Credential should be scoped to {problem}")]
    Scope {
        /// What it should be.
        problem: String,
    },
    /// It is another signature than ours.
    #[error(
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing \
         method. Consult the service documentation for details."
    )]
    Mismatch,
    /// The same, and a usual signer does not sign such a target as it is sent.
    #[error(
        "The request signature we calculated does not match the signature you provided. {cause}"
    )]
    Target {
        /// What is special about it, and what to do.
        cause: &'static str,
    },
    /// The body is not the one that was signed.
    #[error("The provided 'x-amz-content-sha256' header does not match what was computed.")]
    Body,
}

impl SignatureError {
    /// AWS's name of the error.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "IncompleteSignatureException",
            Self::UnknownKey => "UnrecognizedClientException",
            Self::Time { .. }
            | Self::Scope { .. }
            | Self::Mismatch
            | Self::Target { .. }
            | Self::Body => "InvalidSignatureException",
        }
    }
}

impl Signature {
    /// The signature of a request. `None`: it is not signed. `query`: of the URL, if it may be a presigned one.
    ///
    /// # Errors
    /// [`SignatureError::Incomplete`].
    pub(crate) fn of(
        from: &HeaderMap,
        query: Option<&str>,
    ) -> Result<Option<Self>, SignatureError> {
        if let Some(authorization) = from.get(headers::AUTHORIZATION)
            && authorization
                .as_bytes()
                .starts_with(parse::ALGORITHM.as_bytes())
        {
            return parse::header(&headers::text(authorization), from).map(Some);
        }
        match query {
            Some(query) if query.contains("X-Amz-Signature=") => parse::query(query).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether it is valid at this time, and for this service.
    ///
    /// # Errors
    /// [`SignatureError::Time`], [`SignatureError::Scope`].
    pub(crate) fn check_scope(&self, now_unix_s: u64) -> Result<(), SignatureError> {
        let scope = |problem: String| Err(SignatureError::Scope { problem });
        if self.scope != format!("{}/{}/{SERVICE}/{TERMINATOR}", self.day, self.region) {
            return scope(format!("correct service: '{SERVICE}'."));
        }
        if self.date[..8] != self.day {
            return scope(format!("a valid date: '{}'.", &self.date[..8]));
        }
        let time = |problem: String| Err(SignatureError::Time { problem });
        let now = parse::amz_date(now_unix_s);
        if self.unix_s > now_unix_s + WINDOW_S {
            return time(format!(
                "Signature not yet current: {} is still later than {} ({now} + 15 min.)",
                self.date,
                parse::amz_date(now_unix_s + WINDOW_S)
            ));
        }
        let valid_s = self.expires_s.unwrap_or(WINDOW_S);
        let earliest = now_unix_s.saturating_sub(valid_s);
        if self.unix_s < earliest {
            return time(format!(
                "Signature expired: {} is now earlier than {} ({now} - {valid_s} s.)",
                self.date,
                parse::amz_date(earliest)
            ));
        }
        Ok(())
    }

    /// What it says about the body.
    ///
    /// # Errors
    /// [`SignatureError::Incomplete`]: a form that is not supported.
    pub(crate) fn payload(&self, from: &HeaderMap) -> Result<SignedPayload, SignatureError> {
        let Some(said) = from.get(headers::CONTENT_SHA256) else {
            return Ok(SignedPayload::OfBody);
        };
        match said.as_bytes() {
            b"UNSIGNED-PAYLOAD" => Ok(SignedPayload::Unsigned),
            hash if hash.len() == 64 && hash.iter().all(u8::is_ascii_hexdigit) => Ok(
                SignedPayload::Said(headers::text(said).to_ascii_lowercase()),
            ),
            _ => Err(SignatureError::Incomplete {
                problem: "x-amz-content-sha256 must be UNSIGNED-PAYLOAD or the SHA-256 of the body"
                    .to_owned(),
            }),
        }
    }

    /// Whether it was made with this secret for this request. `payload_hash`: as in the canonical request.
    ///
    /// # Errors
    /// [`SignatureError::Incomplete`], [`SignatureError::Mismatch`], [`SignatureError::Target`].
    pub(crate) fn verify(
        &self,
        secret: &[u8],
        method: &Method,
        uri: &Uri,
        from: &HeaderMap,
        payload_hash: &str,
    ) -> Result<(), SignatureError> {
        let request = canonical::request(self, method, uri, from, payload_hash)?;
        let text = format!(
            "{}\n{}\n{}\n{}",
            parse::ALGORITHM,
            self.date,
            self.scope,
            sha256(request.as_bytes())
        );
        let first = [b"AWS4", secret].concat();
        let parts = [self.day.as_str(), &self.region, SERVICE, TERMINATOR];
        let key = parts.into_iter().fold(first, |key, part| {
            mac(&key, part.as_bytes()).finalize().into_bytes().to_vec()
        });
        // Compares in constant time.
        mac(&key, text.as_bytes())
            .verify_slice(&self.given)
            .map_err(|_| match canonical::signed_otherwise(uri) {
                Some(cause) => SignatureError::Target { cause },
                None => SignatureError::Mismatch,
            })
    }
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text);
    mac
}

/// SHA-256, hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The service for which clients sign.
const SERVICE: &str = "lambda";
const TERMINATOR: &str = "aws4_request";
/// How far a client's clock may be off, and for how long a signature is valid, seconds.
const WINDOW_S: u64 = 15 * 60;
/// What stands for the hash of a body that is not signed.
pub(crate) const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

#[cfg(test)]
mod tests;
