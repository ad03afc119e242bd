//! Weights that another library has quantised: named by what `config.json` says,
//! so that no tensor is missed in their place.

use super::bad;
use crate::model::ModelError;
use serde_json::{Map, Value};

/// Where libraries say how they quantised: `transformers`, compressed-tensors
/// before it, and MLX.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Refuses a configuration of quantised weights.
///
/// # Errors
/// [`ModelError::Quantised`] with method and bits; [`ModelError::Value`] for what says neither.
pub(super) fn refuse(fields: &Map<String, Value>) -> Result<(), ModelError> {
    for key in KEYS {
        match fields.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(stated)) if stated.is_empty() => {}
            Some(Value::Object(stated)) => {
                return Err(ModelError::Quantised { quantisation: method(key, stated) });
            }
            Some(Value::String(method)) if !method.is_empty() => {
                return Err(ModelError::Quantised { quantisation: method.clone() });
            }
            Some(other) => {
                let reason = "must be an object that says how the weights are quantised; of weights \
                              that are not, take it out";
                return Err(bad(key, other, reason));
            }
        }
    }
    Ok(())
}

/// The method and its bits, by the object that stands under a key.
fn method(key: &str, stated: &Map<String, Value>) -> String {
    let named = |name: &str| stated.get(name).and_then(Value::as_str);
    let method = match named("quant_method") {
        Some(method) => method,
        None if stated.keys().any(|key| key.starts_with("bnb_")) => "bitsandbytes",
        None if key == "quantization" => "MLX",
        None => "an unnamed method",
    };
    let bits = bits(stated).map(|bits| format!(" ({bits} bits)")).unwrap_or_default();
    format!("{method}{bits}")
}

/// Bits of a weight, where the configuration says how many.
fn bits(stated: &Map<String, Value>) -> Option<u64> {
    let plain = ["bits", "w_bit"].iter().find_map(|&key| stated.get(key)?.as_u64());
    // bitsandbytes has a switch for each.
    let switch = |key: &str| stated.get(key).and_then(Value::as_bool) == Some(true);
    let switched = match (switch("load_in_4bit"), switch("load_in_8bit")) {
        (true, _) => Some(4),
        (_, true) => Some(8),
        _ => None,
    };
    // compressed-tensors has groups of layers; HQQ nests.
    let grouped = || {
        let groups = stated.get("config_groups")?.as_object()?;
        groups.values().find_map(|group| group.get("weights")?.get("num_bits")?.as_u64())
    };
    let nested = || stated.get("quant_config")?.get("weight_quant_params")?.get("nbits")?.as_u64();
    plain.or(switched).or_else(grouped).or_else(nested)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &str) -> Option<String> {
        let error = refuse(&serde_json::from_str(config).unwrap()).err()?;
        let ModelError::Quantised { quantisation } = &error else { panic!("{error}") };
        assert!(error.to_string().contains("GGUF"), "{error}");
        Some(quantisation.clone())
    }

    #[test]
    fn methods_are_named_with_their_bits() {
        for (config, expected) in [
            (r#"{"quant_method": "gptq", "bits": 4, "group_size": 128}"#, "gptq (4 bits)"),
            (r#"{"quant_method": "awq", "w_bit": 4}"#, "awq (4 bits)"),
            (r#"{"quant_method": "bitsandbytes", "load_in_4bit": true}"#, "bitsandbytes (4 bits)"),
            (r#"{"bnb_4bit_quant_type": "nf4", "load_in_8bit": true}"#, "bitsandbytes (8 bits)"),
            (r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#, "fp8"),
            (
                r#"{"quant_method": "compressed-tensors", "config_groups": {"group_0":
                    {"input_activations": {"num_bits": 8}, "weights": {"num_bits": 4}}}}"#,
                "compressed-tensors (4 bits)",
            ),
            (
                r#"{"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2}}}"#,
                "hqq (2 bits)",
            ),
            (r#"{"group_size": 64}"#, "an unnamed method"),
        ] {
            let whole = format!(r#"{{"quantization_config": {config}}}"#);
            assert_eq!(refused(&whole).as_deref(), Some(expected), "{config}");
        }
        let mlx = r#"{"quantization": {"group_size": 64, "bits": 4}}"#;
        assert_eq!(refused(mlx).as_deref(), Some("MLX (4 bits)"));
        assert_eq!(refused(r#"{"quantization_config": "fp8"}"#).as_deref(), Some("fp8"));
    }

    #[test]
    fn what_says_nothing_is_refused_by_its_key() {
        for value in ["[]", r#"[{"bits": 4}]"#, r#""""#, "4", "false", "true"] {
            for key in KEYS {
                let config = serde_json::from_str(&format!(r#"{{"{key}": {value}}}"#)).unwrap();
                let error = refuse(&config).unwrap_err().to_string();
                assert!(error.contains(key) && error.contains("must be an object"), "{error}");
            }
        }
    }

    #[test]
    fn plain_weights_are_not_quantised() {
        for config in ["{}", r#"{"quantization_config": null}"#, r#"{"quantization_config": {}}"#] {
            assert_eq!(refused(config), None, "{config}");
        }
    }
}
