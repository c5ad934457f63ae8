//! Secrets that do not change.

use std::collections::BTreeMap;

use pilot_model::ports::Secrets;
use pilot_model::secret::SecretError;
use pilot_model::{SecretUse, SecretValues};

/// Has the value of each of these names, whoever owns it.
#[derive(Debug, Clone, Default)]
pub struct FixedSecrets(pub BTreeMap<String, String>);

impl Secrets for FixedSecrets {
    fn values(&self, wanted: &BTreeMap<String, SecretUse>) -> Result<SecretValues, SecretError> {
        let mut values = SecretValues::default();
        for (variable, used) in wanted {
            let value = self.0.get(used.secret.as_str()).cloned();
            let value = value.ok_or_else(|| SecretError::Missing {
                id: used.id(),
                variable: variable.clone(),
            })?;
            match (&used.file, used.path()) {
                (Some(file), Some(path)) => {
                    values.files.push((file.clone(), value.into_bytes()));
                    values.environment.insert(variable.clone(), path);
                }
                _ => {
                    values.environment.insert(variable.clone(), value);
                }
            }
        }
        Ok(values)
    }
}
