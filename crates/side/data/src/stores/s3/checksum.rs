//! The checksum that S3 keeps of an object, and sends if it is asked to. It says that the bytes are those that were once stored. A length
//! and TLS do not say that.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use crc_fast::CrcAlgorithm::{Crc32Iscsi, Crc32IsoHdlc, Crc64Nvme};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::HeaderMap;
use pilot_model::ports::InputFaultKind as Kind;
use sha2::{Digest as _, Sha256};

use super::StoreError;

/// The header of a request that asks for checksums, and its value.
pub(super) const ASK: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");

/// The checksum of a whole object, as the store says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Announced {
    algorithm: Algorithm,
    value: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha256,
}

impl Algorithm {
    /// Cheap ones first.
    const ALL: [Self; 4] = [Self::Crc64Nvme, Self::Crc32, Self::Crc32c, Self::Sha256];

    fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha256 => "SHA256",
        }
    }
}

impl Announced {
    /// `None`: the answer has none that is of the whole object. One of an object that was sent in parts may be of the checksums of its
    /// parts: its value is no Base64 then, because it ends with a hyphen and their number.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get("x-amz-checksum-type");
        if kind.is_some_and(|kind| kind.as_bytes() != b"FULL_OBJECT") {
            return None;
        }
        Algorithm::ALL.into_iter().find_map(|algorithm| {
            let value = STANDARD.decode(headers.get(algorithm.header())?).ok()?;
            Some(Self { algorithm, value })
        })
    }

    /// The same bytes, and an error at their end if they have another checksum.
    pub(super) fn checked(self, body: Body) -> Body {
        let checking = Checking {
            body,
            sum: Sum::new(self.algorithm),
            announced: self,
        };
        stream::try_unfold(checking, Checking::next).boxed()
    }
}

type Body = BoxStream<'static, Result<Bytes, StoreError>>;

/// An object that is read.
struct Checking {
    body: Body,
    sum: Sum,
    announced: Announced,
}

impl Checking {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, StoreError> {
        if let Some(part) = self.body.try_next().await? {
            self.sum.update(&part);
            return Ok(Some((part, self)));
        }
        if self.sum.value() == self.announced.value {
            return Ok(None);
        }
        let problem = format!(
            "its {} is not the one that the store keeps of it: it was changed in the store, or on the way",
            self.announced.algorithm.name()
        );
        Err(StoreError::new(Kind::Broken, &problem))
    }
}

/// A checksum of what has come.
enum Sum {
    /// With the bytes of its value.
    Crc(crc_fast::Digest, usize),
    Sha256(Sha256),
}

impl Sum {
    fn new(algorithm: Algorithm) -> Self {
        let crc = |algorithm, len| Self::Crc(crc_fast::Digest::new(algorithm), len);
        match algorithm {
            Algorithm::Crc32 => crc(Crc32IsoHdlc, size_of::<u32>()),
            Algorithm::Crc32c => crc(Crc32Iscsi, size_of::<u32>()),
            Algorithm::Crc64Nvme => crc(Crc64Nvme, size_of::<u64>()),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    fn update(&mut self, part: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(part),
            Self::Sha256(digest) => digest.update(part),
        }
    }

    fn value(&self) -> Vec<u8> {
        match self {
            Self::Crc(digest, len) => {
                let bytes = digest.finalize().to_be_bytes();
                bytes.iter().skip(bytes.len() - len).copied().collect()
            }
            Self::Sha256(digest) => digest.clone().finalize().to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    async fn read(announced: Announced, parts: &[&'static str]) -> Result<Vec<u8>, StoreError> {
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from(*part))).collect();
        let body = announced.checked(stream::iter(parts).boxed());
        let parts: Vec<Bytes> = body.try_collect().await?;
        Ok(parts.concat())
    }

    /// The values are those of the catalogue of CRC algorithms, and of FIPS 180.
    #[tokio::test]
    async fn an_object_has_its_checksum_or_is_broken() {
        for (name, value) in [
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
            (
                "x-amz-checksum-sha256",
                "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
            ),
        ] {
            let announced = Announced::of(&headers(&[(name, value)])).unwrap();
            let whole = read(announced.clone(), &["1234", "", "56789"]).await;
            assert_eq!(whole.unwrap(), b"123456789", "{name}");
            for other in [&["123456780"][..], &["12345678"], &[]] {
                let error = read(announced.clone(), other).await.unwrap_err();
                assert_eq!(error.kind, Kind::Broken);
                assert!(error.problem.contains("is not the one"), "{error:?}");
            }
        }
    }

    #[test]
    fn what_is_no_checksum_of_the_whole_is_none() {
        let crc32 = ("x-amz-checksum-crc32", "y/Q5Jg==");
        let kind = |kind| ("x-amz-checksum-type", kind);
        assert!(Announced::of(&headers(&[crc32, kind("FULL_OBJECT")])).is_some());
        for none in [
            &[][..],
            &[crc32, kind("COMPOSITE")],
            &[("x-amz-checksum-crc32", "y/Q5Jg==-3")],
            &[("x-amz-checksum-crc32", "?")],
            &[("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE=")],
        ] {
            assert_eq!(Announced::of(&headers(none)), None, "{none:?}");
        }
    }
}
