//! Layers: content that several functions share, shown at `/opt` of their sandboxes, as on AWS Lambda. A layer is identified by
//! its content: its id is the hash over its files. Its name is only for people.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Most layers of one function: Lambda's limit.
pub const LAYERS_MAX: usize = 5;

/// Where a sandbox shows the layers.
pub const LAYERS_INSIDE: &str = "/opt";

/// The names at the top of `/opt` that Pilotlight uses itself. A layer must not have them.
pub const RESERVED: [&str; 2] = ["environment", "pilot"];

/// A layer's id: the 64 hexadecimal digits of the SHA-256 over its content. It is not shortened, because functions of different
/// people may share a layer: nobody must be able to make another content with the same id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", schema(value_type = String))]
pub struct LayerId(Arc<str>);

impl LayerId {
    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..SHORT_LEN]
    }
}

impl FromStr for LayerId {
    type Err = InvalidLayer;

    fn from_str(text: &str) -> Result<Self, InvalidLayer> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == ID_LEN && text.bytes().all(is_digit) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidLayer(format!(
                "'{}' is not the id of a layer: an id has {ID_LEN} digits of 0-9 a-f",
                shown(text)
            )))
        }
    }
}

impl TryFrom<String> for LayerId {
    type Error = InvalidLayer;

    fn try_from(text: String) -> Result<Self, InvalidLayer> {
        text.parse()
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> Self {
        id.0.as_ref().to_owned()
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A layer of a function, written as `NAME:ID`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Layer {
    /// Its name in the manifest.
    pub name: String,
    /// Its content.
    pub id: LayerId,
}

impl FromStr for Layer {
    type Err = InvalidLayer;

    fn from_str(text: &str) -> Result<Self, InvalidLayer> {
        let Some((name, id)) = text.split_once(':') else {
            return Err(InvalidLayer(format!(
                "'{}' has no id; send NAME:ID of a layer that was uploaded, as `pilot deploy` does",
                shown(text)
            )));
        };
        check_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            id: id.parse()?,
        })
    }
}

impl TryFrom<String> for Layer {
    type Error = InvalidLayer;

    fn try_from(text: String) -> Result<Self, InvalidLayer> {
        text.parse()
    }
}

impl From<Layer> for String {
    fn from(layer: Layer) -> Self {
        layer.to_string()
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.id)
    }
}

/// The layers of a version, merged in their order into one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedLayers {
    /// The folder, which is mounted read-only at `/opt`. It also has the empty folders where Pilotlight mounts its own files.
    pub dir: PathBuf,
    /// Whether it has a folder `lib`. The dynamic linker must then be told when a process starts.
    pub has_lib: bool,
}

/// A layer's name or id that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLayer(String);

/// Checks a layer's name: as a function's.
///
/// # Errors
/// What is allowed, in words.
pub fn check_name(name: &str) -> Result<(), InvalidLayer> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if fits {
        Ok(())
    } else {
        Err(InvalidLayer(format!(
            "'{}' is not a layer name: use 1 to {NAME_BYTES_MAX} of a-z A-Z 0-9 - _",
            shown(name)
        )))
    }
}

/// Checks the number of a function's layers, and that none is listed twice.
///
/// # Errors
/// What is wrong, in words.
pub fn check_list<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
    let count = names.clone().count();
    if count > LAYERS_MAX {
        return Err(format!(
            "has {count} layers, must have at most {LAYERS_MAX}, as on Lambda; put several into one folder"
        ));
    }
    let twice = names
        .clone()
        .enumerate()
        .find(|(at, name)| names.clone().take(*at).any(|before| before == *name));
    match twice {
        Some((_, name)) => Err(format!("lists '{}' twice; list it once", shown(name))),
        None => Ok(()),
    }
}

fn shown(text: &str) -> String {
    text.chars()
        .take(100)
        .flat_map(char::escape_debug)
        .collect()
}

const ID_LEN: usize = 64;
const SHORT_LEN: usize = 16;
const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_written_as_name_and_id() {
        let text = format!("ffmpeg:{}", "0a".repeat(32));
        let layer: Layer = text.parse().unwrap();
        assert_eq!(
            (layer.name.as_str(), layer.id.short()),
            ("ffmpeg", "0a0a0a0a0a0a0a0a")
        );
        assert_eq!(String::from(layer.clone()), text);
        assert_eq!(Layer::try_from(text), Ok(layer));
    }

    #[test]
    fn what_is_no_layer_is_refused_before_it_is_a_path() {
        let id = "0a".repeat(32);
        for text in [
            "ffmpeg",
            "ffmpeg:",
            "ffmpeg:../../etc",
            ":0a",
            "a b:0a",
            &format!("../x:{id}"),
            &format!("x:{}", id.to_uppercase()),
            &format!("x:{id}0"),
            &format!("x:{}/", &id[1..]),
        ] {
            assert!(text.parse::<Layer>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_list_has_at_most_five_layers_each_once() {
        assert_eq!(check_list(["a", "b", "c", "d", "e"].into_iter()), Ok(()));
        let many = check_list(["a"; 6].into_iter()).unwrap_err();
        assert!(many.contains("at most 5"), "{many}");
        let twice = check_list(["a", "b", "a"].into_iter()).unwrap_err();
        assert!(twice.contains("lists 'a' twice"), "{twice}");
    }
}
