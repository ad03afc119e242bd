//! RoPE scaling by the fields of `rope_scaling` or `rope_parameters`
//! (<https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py>).

use super::fields::number;
use super::{bad, float};
use crate::model::{ModelError, RopeFactors, RopeScaling, Yarn};
use serde_json::{Map, Value};

/// Where a file says with how many positions the model was trained.
pub(super) const ORIGINAL: &str = "original_max_position_embeddings";

/// Fields that some kind of scaling computes with. One that stands beside a kind
/// which does not use it means a rotation that nobody here computes.
const FIELDS: [&str; 16] = [
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "low_freq_factor",
    "high_freq_factor",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "mrope_section",
    "alpha",
    "extrapolation_factor",
];

/// Reads the scaling of a model of `context` positions, of which it was trained
/// with `original` where the file says so. [`crate::model::RopeSpec::validate`]
/// has the limits of the numbers.
///
/// # Errors
/// A kind or a field that is not supported, or one that is missing.
pub(super) fn read(
    parameters: &Map<String, Value>,
    context: usize,
    original: Option<usize>,
) -> Result<(RopeScaling, RopeFactors), ModelError> {
    let number = |key: &str| float(parameters, key);
    let or = |key: &str, default: f64| Ok::<_, ModelError>(number(key)?.unwrap_or(default));
    let factor = || number("factor")?.ok_or_else(|| missing("factor"));
    let (scaling, used): (_, &[&str]) = match kind(parameters)? {
        "default" => (RopeScaling::None, &[]),
        "linear" => (RopeScaling::Linear { factor: factor()? }, &["factor"]),
        "dynamic" => (RopeScaling::Dynamic { factor: factor()? }, &["factor"]),
        "llama3" => {
            original.ok_or_else(|| missing(ORIGINAL))?;
            let (low, high) = (or("low_freq_factor", 1.0)?, or("high_freq_factor", 4.0)?);
            let scaling = RopeScaling::Llama3 { factor: factor()?, low, high };
            (scaling, &["factor", "low_freq_factor", "high_freq_factor"])
        }
        "yarn" => (RopeScaling::Yarn(yarn(parameters, factor()?)?), &YARN),
        // Phi 3's first files say "su".
        "longrope" | "su" => {
            let factor = match (original, number("factor")?) {
                (_, Some(factor)) => factor,
                // Shorter than trained: nothing is stretched.
                (Some(original), None) => (context as f64 / original.max(1) as f64).max(1.0),
                (None, None) => return Err(missing(ORIGINAL)),
            };
            let magnitude = number("attention_factor")?;
            (
                RopeScaling::LongRope { factor, magnitude },
                &["factor", "attention_factor", "short_factor", "long_factor"],
            )
        }
        other => {
            return Err(ModelError::Feature { feature: format!("RoPE scaling `{other}`") });
        }
    };
    refuse_unused(parameters, used)?;
    let factors = match scaling {
        RopeScaling::LongRope { .. } => RopeFactors::ByLength {
            short: numbers(parameters, "short_factor")?,
            long: numbers(parameters, "long_factor")?,
        },
        _ => RopeFactors::None,
    };
    Ok((scaling, factors))
}

/// The kind of scaling that an object names.
pub(super) fn kind(parameters: &Map<String, Value>) -> Result<&str, ModelError> {
    let stated = ["rope_type", "type"]
        .into_iter()
        .find_map(|key| Some((key, parameters.get(key).filter(|kind| !kind.is_null())?)));
    match stated {
        None => Ok("default"),
        Some((key, kind)) => kind.as_str().ok_or_else(|| bad(key, kind, "must be a text")),
    }
}

fn refuse_unused(parameters: &Map<String, Value>, used: &[&str]) -> Result<(), ModelError> {
    let unused = FIELDS.iter().filter(|field| !used.contains(field));
    let stated = |field: &&&str| parameters.get(**field).is_some_and(|value| !value.is_null());
    match unused.into_iter().find(stated) {
        None => Ok(()),
        Some(field) => {
            let kind = kind(parameters)?;
            let feature = format!("`{field}` in a RoPE scaling of type `{kind}`");
            Err(ModelError::Feature { feature })
        }
    }
}

/// Fields that [`yarn`] computes with.
const YARN: [&str; 7] = [
    "factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
];

fn yarn(parameters: &Map<String, Value>, factor: f64) -> Result<Yarn, ModelError> {
    match parameters.get("truncate") {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(Value::Bool(false)) => {
            let feature = "YaRN between fractions of pairs (`truncate`)".to_owned();
            return Err(ModelError::Feature { feature });
        }
        Some(other) => return Err(bad("truncate", other, "must be true or false")),
    }
    let number = |key: &str| float(parameters, key);
    let plain = Yarn::new(factor);
    let magnitude = match number("attention_factor")? {
        Some(magnitude) => Some(magnitude),
        None => weighted(factor, number("mscale")?, number("mscale_all_dim")?)?,
    };
    Ok(Yarn {
        magnitude,
        fast: number("beta_fast")?.unwrap_or(plain.fast),
        slow: number("beta_slow")?.unwrap_or(plain.slow),
        ..plain
    })
}

/// YaRN's magnitude where the file weights its logarithm (`mscale`) and divides by
/// another one (`mscale_all_dim`). A weight of 0 is one that is not given.
fn weighted(
    factor: f64,
    above: Option<f64>,
    below: Option<f64>,
) -> Result<Option<f64>, ModelError> {
    let magnitude = |weight: f64| 0.1 * weight * factor.ln() + 1.0;
    let given = |weight: Option<f64>| weight.filter(|&weight| weight != 0.0);
    match (given(above), given(below)) {
        (None, None) => Ok(None),
        (Some(above), Some(below)) => Ok(Some(magnitude(above) / magnitude(below))),
        // The weight that a silent file has.
        (Some(1.0), None) => Ok(None),
        // Implementations differ in what one of them alone means.
        _ => {
            let feature = "YaRN with one of `mscale` and `mscale_all_dim` alone".to_owned();
            Err(ModelError::Feature { feature })
        }
    }
}

fn missing(key: &str) -> ModelError {
    ModelError::MissingKey { key: format!("rope_scaling.{key}") }
}

fn numbers(parameters: &Map<String, Value>, key: &str) -> Result<Vec<f32>, ModelError> {
    let list = match parameters.get(key) {
        None | Some(Value::Null) => return Err(missing(key)),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(bad(key, other, "must be a list of numbers")),
    };
    let number =
        |(index, value): (usize, &Value)| Ok(number(&format!("{key}[{index}]"), value)? as f32);
    list.iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a model of 32,768 positions that was trained with 4,096.
    fn read(json: &str) -> Result<RopeScaling, ModelError> {
        let parameters = serde_json::from_str(json).unwrap();
        super::read(&parameters, 32_768, Some(4096)).map(|(scaling, _)| scaling)
    }

    #[test]
    fn scalings_are_read() {
        assert_eq!(read("{}"), Ok(RopeScaling::None));
        let linear = read(r#"{"type": "linear", "factor": 4}"#);
        assert_eq!(linear, Ok(RopeScaling::Linear { factor: 4.0 }));
        let llama3 = r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}"#;
        assert_eq!(read(llama3), Ok(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0 }));
        let long = r#"{"type": "su", "short_factor": [1.0], "long_factor": [2.0]}"#;
        assert_eq!(read(long), Ok(RopeScaling::LongRope { factor: 8.0, magnitude: None }));
        let yarn = r#"{"type": "yarn", "factor": 2, "mscale": 1, "truncate": true, "alpha": null}"#;
        assert_eq!(read(yarn), Ok(RopeScaling::Yarn(Yarn::new(2.0))));
    }

    #[test]
    fn what_would_change_the_rotation_is_never_ignored() {
        for (json, words) in [
            (r#"{"type": "linear"}"#, &["rope_scaling.factor", "missing"][..]),
            (r#"{"type": "mrope", "factor": 2}"#, &["`mrope`", "not supported"]),
            (r#"{"type": 7, "factor": 2}"#, &["type = 7", "must be a text"]),
            (r#"{"factor": 2}"#, &["`factor`", "type `default`", "not supported"]),
            (r#"{"type": "linear", "factor": 2, "mscale": 1}"#, &["`mscale`", "type `linear`"]),
            (r#"{"type": "dynamic", "factor": 2, "alpha": 1000}"#, &["`alpha`", "`dynamic`"]),
            (r#"{"type": "yarn", "factor": 2, "truncate": false}"#, &["`truncate`"]),
            (r#"{"type": "yarn", "factor": 2, "truncate": "no"}"#, &["truncate", "true or false"]),
            (r#"{"type": "yarn", "factor": 2, "mscale": 0.7}"#, &["`mscale`", "alone"]),
            (r#"{"type": "yarn", "factor": 2, "mscale_all_dim": 1}"#, &["alone"]),
            (r#"{"type": "yarn", "factor": "2"}"#, &["factor = \"2\"", "must be a number"]),
            (
                r#"{"type": "longrope", "short_factor": [1.0], "long_factor": [1, "x"]}"#,
                &["long_factor[1] = \"x\"", "must be a number"],
            ),
            (r#"{"type": "longrope", "long_factor": [1]}"#, &["rope_scaling.short_factor"]),
            (
                r#"{"type": "longrope", "short_factor": [1], "long_factor": [1], "long_mscale": 2}"#,
                &["`long_mscale`"],
            ),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{json}: {error}");
        }
    }

    #[test]
    fn kinds_that_begin_at_the_trained_context_need_it() {
        for kind in ["llama3", "longrope"] {
            let json = format!(r#"{{"type": "{kind}", "short_factor": [1], "long_factor": [1]}}"#);
            let parameters = serde_json::from_str(&json).unwrap();
            let error = super::read(&parameters, 32_768, None).unwrap_err().to_string();
            assert!(error.contains("rope_scaling.original_max_position_embeddings"), "{error}");
        }
        // The library takes a factor instead.
        let json = r#"{"type": "longrope", "short_factor": [1], "long_factor": [1], "factor": 4}"#;
        let read = super::read(&serde_json::from_str(json).unwrap(), 32_768, None);
        assert_eq!(read.unwrap().0, RopeScaling::LongRope { factor: 4.0, magnitude: None });
    }
}
