//! Encrypts what the daemon keeps on disk and must be able to read again: the values of secrets, and the keys with which AWS clients
//! sign. What is only compared (tokens) is hashed instead.
//!
//! A sealed text is base64 of a random nonce of 24 bytes and the ciphertext of XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha). Its
//! context, for example the secret's name, is authenticated with it: a sealed text that is moved to another place does not open.
//!
//! Not here: files. The caller reads the key and stores what is sealed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

/// A key, and what it seals and opens.
#[derive(Clone)]
pub struct SealingKey {
    cipher: XChaCha20Poly1305,
    origin: String,
    id: String,
}

/// A text that is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin} is not a key: a key is {KEY_LEN} bytes as {} hexadecimal digits", 2 * KEY_LEN)]
pub struct InvalidKey {
    origin: String,
}

/// A sealed text that does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It is not what [`SealingKey::seal`] returns.
    #[error("it is damaged")]
    Damaged,
    /// It was sealed with another key or in another context, or was changed.
    #[error(
        "it cannot be decrypted with the key {origin}: it was changed, or written with another key"
    )]
    Refused {
        /// Where the key comes from.
        origin: String,
    },
}

impl SealingKey {
    /// Reads a key from its text. `origin` is its place, for messages.
    ///
    /// # Errors
    /// It is not a key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, InvalidKey> {
        let key = unhex(text.trim()).ok_or_else(|| InvalidKey {
            origin: origin.to_owned(),
        })?;
        let id = Sha256::new_with_prefix(b"pilotlight key id")
            .chain_update(key)
            .finalize();
        Ok(Self {
            cipher: XChaCha20Poly1305::new(&key.into()),
            origin: origin.to_owned(),
            id: hex::encode(&id[..ID_LEN]),
        })
    }

    /// The text of a new random key.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn random_text() -> io::Result<String> {
        Ok(hex::encode(random::<KEY_LEN>()?))
    }

    /// Identifies the key without saying anything about it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Encrypts. `context` must be given again to open it.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn seal(&self, context: &[&str], plain: &[u8]) -> io::Result<String> {
        let nonce = random::<NONCE_LEN>()?;
        let aad = joined(context);
        let payload = Payload {
            msg: plain,
            aad: &aad,
        };
        let sealed = self
            .cipher
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| io::Error::other("it is too long to be encrypted"))?;
        Ok(STANDARD.encode([&nonce[..], &sealed].concat()))
    }

    /// Decrypts what [`SealingKey::seal`] returned for this context.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, context: &[&str], sealed: &str) -> Result<Vec<u8>, OpenError> {
        let bytes = STANDARD.decode(sealed).map_err(|_| OpenError::Damaged)?;
        let (nonce, msg) = bytes
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(OpenError::Damaged)?;
        let aad = joined(context);
        self.cipher
            .decrypt(&XNonce::from(*nonce), Payload { msg, aad: &aad })
            .map_err(|_| OpenError::Refused {
                origin: self.origin.clone(),
            })
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey")
            .field("origin", &self.origin)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The parts, each after its length, so that different parts are never the same bytes.
fn joined(context: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in context {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    bytes
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn unhex(text: &str) -> Option<[u8; KEY_LEN]> {
    let mut bytes = [0; KEY_LEN];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

const KEY_LEN: usize = 32;
const NONCE_LEN: usize = 24;
const ID_LEN: usize = 8;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot seal fails")]

    use super::*;

    fn key() -> SealingKey {
        SealingKey::parse(&SealingKey::random_text().unwrap(), "the.key").unwrap()
    }

    #[test]
    fn what_is_sealed_opens_with_its_key_and_context_alone() {
        let (key, other) = (key(), key());
        let sealed = key.seal(&["secret", "shop", "db"], b"hunter2").unwrap();
        assert_eq!(
            key.open(&["secret", "shop", "db"], &sealed).unwrap(),
            b"hunter2"
        );
        assert!(!sealed.contains("hunter2"));
        for context in [
            &["secret", "shop", "d"][..],
            &["secret", "shopd", "b"],
            &["secret"],
            &[],
        ] {
            assert!(key.open(context, &sealed).is_err(), "{context:?}");
        }
        let refused = other.open(&["secret", "shop", "db"], &sealed).unwrap_err();
        assert!(refused.to_string().contains("the.key"), "{refused}");
        assert_ne!(key.id(), other.id());
    }

    #[test]
    fn a_changed_text_does_not_open_and_two_of_one_value_differ() {
        let key = key();
        let sealed = key.seal(&[], b"hunter2").unwrap();
        assert_ne!(key.seal(&[], b"hunter2").unwrap(), sealed);
        let bytes = STANDARD.decode(&sealed).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(key.open(&[], &STANDARD.encode(changed)).is_err(), "{at}");
        }
        for text in ["", "!", "AAAA", &sealed[..sealed.len() - 8]] {
            assert!(key.open(&[], text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_is_64_digits_and_is_not_printed() {
        let text = SealingKey::random_text().unwrap();
        let key = SealingKey::parse(&format!("{text}\n"), "the.key").unwrap();
        assert!(!format!("{key:?}").contains(&text[..8]));
        for wrong in ["", "abc", &text[1..], &"g".repeat(64), &"é".repeat(32)] {
            let problem = SealingKey::parse(wrong, "the.key").unwrap_err().to_string();
            assert!(problem.contains("the.key"), "{problem}");
            assert!(wrong.is_empty() || !problem.contains(wrong), "{problem}");
        }
    }
}
