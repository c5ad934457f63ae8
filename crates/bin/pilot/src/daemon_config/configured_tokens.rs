//! The tokens of `pilotd.toml`. They are read after the spawner was forked, which must not have them in its memory: before that they are
//! only checked.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use pilot_model::manifest::syntax_in_words;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// The tokens of the configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConfiguredTokens {
    /// Gives every right. Older than `pilot token`.
    pub(crate) control_token: Option<String>,
    /// Permits calls of functions. Older than `pilot token`.
    pub(crate) invoke_token: Option<String>,
}

/// There is a token that can be used. It is not kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValidToken;

/// Messages have no value: it is a token.
impl<'de> Deserialize<'de> for ValidToken {
    fn deserialize<D: Deserializer<'de>>(key: D) -> Result<Self, D::Error> {
        match key.deserialize_str(Fits) {
            Ok(true) => Ok(Self),
            Ok(false) => Err(D::Error::custom(format!("must be {A_TOKEN}"))),
            Err(_) => Err(D::Error::custom("must be a text in quotes")),
        }
    }
}

struct Fits;

impl Visitor<'_> for Fits {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a token")
    }

    fn visit_str<E: Error>(self, token: &str) -> Result<bool, E> {
        Ok(fits(token))
    }
}

fn fits(token: &str) -> bool {
    (1..=TOKEN_BYTES_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The tokens of the configuration file. Must be called after the spawner was forked, which must not have them in its memory.
///
/// # Errors
/// The file cannot be read any more, or a token cannot be used.
pub(crate) fn tokens_of(path: &Path) -> anyhow::Result<ConfiguredTokens> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let document = toml::Deserializer::parse(&text)
        .map_err(|error| anyhow::anyhow!("{shown}: {}", syntax_in_words(&text, &error)))?;
    // The words of serde have the value, which is a token.
    let tokens: ConfiguredTokens = serde_path_to_error::deserialize(document)
        .map_err(|error| anyhow::anyhow!("{shown}: {} must be a text in quotes", error.path()))?;
    for (key, token) in [
        ("control_token", &tokens.control_token),
        ("invoke_token", &tokens.invoke_token),
    ] {
        if token.as_deref().is_some_and(|token| !fits(token)) {
            bail!("{shown}: {key} must be {A_TOKEN}");
        }
    }
    Ok(tokens)
}

/// The longest token.
const TOKEN_BYTES_MAX: usize = 256;
const A_TOKEN: &str = "1 to 256 visible ASCII characters; give such a token, or leave the key out and use `pilot token create`";

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn a_token_that_cannot_be_sent_is_refused_also_where_it_is_only_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pilotd.toml");
        for text in [
            "control_token = \"\"",
            "invoke_token = \"hidden 1\"",
            "invoke_token = 7",
            "invoke_token = true",
            "control_token = [\"hidden\"]",
            "control_token = { hidden = 1 }",
        ] {
            fs::write(&path, text).unwrap();
            let problem = tokens_of(&path).unwrap_err().to_string();
            assert!(problem.contains("pilotd.toml"), "{problem}");
            assert!(problem.contains("_token must be"), "{problem}");
            let problem = parse(text, &path).unwrap_err().to_string();
            assert!(problem.contains("pilotd.toml:1: "), "{problem}");
            assert!(problem.contains("_token: must be"), "{problem}");
            assert!(!problem.contains("hidden"), "{problem}");
        }
        let text = "strict = true\ncontrol_token = \"c\"";
        fs::write(&path, text).unwrap();
        assert_eq!(tokens_of(&path).unwrap().control_token.unwrap(), "c");
        assert!(parse(text, &path).is_ok());
    }
}
