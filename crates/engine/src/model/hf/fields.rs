//! Reading the values of `config.json`: each is of its kind and in its range, or refused
//! with its key.

use super::Config;
use crate::model::ModelError;
use serde_json::{Map, Value};

impl Config {
    /// What the file states under a key; `None` also for `null`.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, ModelError> {
        object(&self.fields, key)
    }

    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        count(&self.fields, key)
    }

    /// What the file states, none for `null`, or what the family takes where it is silent.
    pub(super) fn count_or(
        &self,
        key: &str,
        default: Option<usize>,
    ) -> Result<Option<usize>, ModelError> {
        if self.fields.contains_key(key) { self.count(key) } else { Ok(default) }
    }

    /// A number that has to be there.
    pub(super) fn size(&self, key: &str, default: Option<usize>) -> Result<usize, ModelError> {
        let missing = || ModelError::MissingKey { key: key.to_owned() };
        self.count_or(key, default)?.ok_or_else(missing)
    }

    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>, ModelError> {
        switch(&self.fields, key)
    }

    /// A factor, none for `null`, or what the family takes where the file is silent.
    pub(super) fn factor_or(
        &self,
        key: &str,
        default: Option<f64>,
    ) -> Result<Option<f32>, ModelError> {
        let stated = match self.fields.contains_key(key) {
            true => float(&self.fields, key)?,
            false => default,
        };
        // So wide that squares, roots and inverses stay in the range of f32.
        const RANGE: std::ops::RangeInclusive<f64> = 1e-18..=1e18;
        match (stated, self.get(key)) {
            (Some(number), Some(value)) if !RANGE.contains(&number) => {
                Err(bad(key, value, "must be a number from 1e-18 to 1e18"))
            }
            _ => Ok(stated.map(|number| number as f32)),
        }
    }
}

/// Most characters of a value that a message shows.
const SHOWN: usize = 100;

/// Refuses a value by its key.
pub(super) fn bad(key: &str, value: impl ToString, reason: &str) -> ModelError {
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(SHOWN) {
        value.truncate(end);
        value += "...";
    }
    ModelError::Value { key: key.to_owned(), value, reason: reason.to_owned() }
}

pub(super) fn object<'f>(
    fields: &'f Map<String, Value>,
    key: &str,
) -> Result<Option<&'f Map<String, Value>>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(other) => Err(bad(key, other, "must be an object")),
    }
}

pub(super) fn count(fields: &Map<String, Value>, key: &str) -> Result<Option<usize>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.map(Some).ok_or_else(|| bad(key, value, "must be a whole number"))
        }
    }
}

pub(super) fn float(fields: &Map<String, Value>, key: &str) -> Result<Option<f64>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => number(key, value).map(Some),
    }
}

/// A number that f32, in which the engine computes, can hold.
pub(super) fn number(key: &str, value: &Value) -> Result<f64, ModelError> {
    let number = value.as_f64().ok_or_else(|| bad(key, value, "must be a number"))?;
    match number.abs() <= f64::from(f32::MAX) {
        true => Ok(number),
        false => Err(bad(key, value, "must be a number that 32 bits can hold (below 3.4e38)")),
    }
}

pub(super) fn switch(fields: &Map<String, Value>, key: &str) -> Result<Option<bool>, ModelError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(switch)) => Ok(Some(*switch)),
        Some(other) => Err(bad(key, other, "must be true or false")),
    }
}

/// What is wrong with a file that is no JSON object, and the text where it is, from the key on:
/// Python writes numbers (`Infinity`, `NaN`) that JSON does not have.
pub(super) fn fault(bytes: &[u8], error: &serde_json::Error) -> String {
    let line = bytes.split(|&byte| byte == b'\n').nth(error.line().saturating_sub(1));
    let line = line.unwrap_or_default();
    let quote_before = |end: usize| line[..end].iter().rposition(|&byte| byte == b'"');
    let key = quote_before(error.column().min(line.len())).and_then(quote_before);
    let from_key = &line[key.unwrap_or(0)..];
    let shown = String::from_utf8_lossy(&from_key[..from_key.len().min(SHOWN)]);
    format!("{error}, near `{}`", shown.trim())
}
