//! What differs from layer to layer: windows, and which rotation a layer has.

use super::family::Windows;
use super::{Config, bad};
use crate::model::spec::{patterned_ropes, patterned_windows};
use crate::model::{Architecture, ModelError, Shape};
use serde_json::Value;
use std::num::NonZeroUsize;

impl Config {
    /// The windows of all layers, `[N]`, or none where no query can reach beyond one.
    ///
    /// # Errors
    /// Windows that are not supported, or a type of layers that lacks its window.
    pub(super) fn windows(&self, shape: &Shape) -> Result<Vec<Option<NonZeroUsize>>, ModelError> {
        let windowed = self.windowed(shape)?;
        if !windowed.contains(&true) {
            return Ok(Vec::new());
        }
        let stated = self.count_or("sliding_window", self.family.window)?;
        let Some(window) = stated.and_then(NonZeroUsize::new) else {
            let reason = "must be at least 1: the model has layers of type `sliding_attention`";
            let value = stated.map_or("null".to_owned(), |window| window.to_string());
            return Err(bad("sliding_window", value, reason));
        };
        // Gemma's GGUF files keep them too; in Gemma 3 these layers rotate in their own way.
        let bites = window.get() < shape.context || self.family.architecture.is_gemma();
        let of_layer = |windowed: bool| windowed.then_some(window);
        Ok(if bites { windowed.into_iter().map(of_layer).collect() } else { Vec::new() })
    }

    /// Which layers have a window, `[N]`.
    fn windowed(&self, shape: &Shape) -> Result<Vec<bool>, ModelError> {
        let rule = self.family.windows;
        let none = || vec![false; shape.n_layers];
        let on = !rule.has_switch() || self.switch("use_sliding_window")? == Some(true);
        if let (true, Some(types)) = (rule.reads_types(), self.layer_types(shape)?) {
            if !on && types.contains(&true) {
                let reason = "must be true: `layer_types` has layers of type `sliding_attention`";
                return Err(bad("use_sliding_window", "false", reason));
            }
            return Ok(types);
        }
        // These have no layer with a window where none is stated.
        let may_lack = !matches!(rule, Windows::AllButEvery { .. });
        if !on || may_lack && self.count_or("sliding_window", self.family.window)?.is_none() {
            return Ok(none());
        }
        Ok(match rule {
            Windows::Never => none(),
            Windows::EveryLayer => vec![true; shape.n_layers],
            Windows::FromLayer { default } => {
                let first = self.count("max_window_layers")?.unwrap_or(default);
                (0..shape.n_layers).map(|layer| layer >= first).collect()
            }
            Windows::WithoutPositions => {
                self.rotates(shape)?.iter().map(|rotates| !rotates).collect()
            }
            Windows::AllButEvery { default, key } => {
                let period = key.map_or(Ok(default), |key| self.period(key, default))?;
                let windows = patterned_windows(shape.n_layers, NonZeroUsize::MIN, period);
                windows.iter().map(Option::is_some).collect()
            }
        })
    }

    /// The number n of a rule about every n-th layer.
    fn period(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        match self.count(key)? {
            Some(0) => Err(bad(key, 0, "must be at least 1")),
            period => Ok(period.unwrap_or(default)),
        }
    }

    /// Which layers are of the type with a window, where the file lists types.
    fn layer_types(&self, shape: &Shape) -> Result<Option<Vec<bool>>, ModelError> {
        const KEY: &str = "layer_types";
        let types = match self.get(KEY) {
            None => return Ok(None),
            Some(Value::Array(types)) => types,
            Some(other) => return Err(bad(KEY, other, "must be a list")),
        };
        if types.len() != shape.n_layers {
            let value = format!("{} types", types.len());
            let reason = format!("must be one for each of the {} layers", shape.n_layers);
            return Err(bad(KEY, value, &reason));
        }
        let windowed = |value: &Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(ModelError::Feature { feature: format!("layers of type {value}") }),
        };
        types.iter().map(windowed).collect::<Result<_, _>>().map(Some)
    }

    /// Which of the model's `n` rotations each layer has, `[N]`.
    pub(super) fn layer_ropes(
        &self,
        shape: &Shape,
        n: usize,
    ) -> Result<Vec<Option<usize>>, ModelError> {
        if self.family.architecture == Architecture::SmolLm3 {
            return Ok(self.rotates(shape)?.iter().map(|rotates| rotates.then_some(0)).collect());
        }
        let local = |layer| usize::from(n > 1 && shape.window(layer).is_some());
        Ok((0..shape.n_layers).map(|layer| Some(local(layer))).collect())
    }

    /// Which layers of a SmolLM 3 have positions, `[N]`.
    fn rotates(&self, shape: &Shape) -> Result<Vec<bool>, ModelError> {
        const KEY: &str = "no_rope_layers";
        let stated = match self.get(KEY) {
            None => {
                let period = self.period("no_rope_layer_interval", 4)?;
                let ropes = patterned_ropes(shape.n_layers, period);
                return Ok(ropes.iter().map(Option::is_some).collect());
            }
            Some(Value::Array(stated)) => stated,
            Some(other) => return Err(bad(KEY, other, "must be a list")),
        };
        // The reference lets it be longer.
        if stated.len() < shape.n_layers {
            let value = format!("{} numbers", stated.len());
            let reason = format!("must be one for each of the {} layers", shape.n_layers);
            return Err(bad(KEY, value, &reason));
        }
        let layer = |value: &Value| match value.as_u64() {
            Some(stated) => Ok(stated != 0),
            None => Err(bad(KEY, value, "must hold 0 or 1 for each layer")),
        };
        stated.iter().take(shape.n_layers).map(layer).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::hf::tests::small;
    use serde_json::{Value, json};

    /// Windows by layer.
    fn windows(model_type: &str, fields: Value) -> Result<Vec<usize>, String> {
        let config = small(model_type, fields);
        let windows = config.shape(1).and_then(|shape| config.windows(&shape));
        let of_layer = |window: Option<std::num::NonZeroUsize>| window.map_or(0, usize::from);
        match windows {
            Ok(windows) => Ok(windows.into_iter().map(of_layer).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_smollm3_without_types_has_windows_where_it_has_no_positions() {
        let of = |fields: Value| {
            let mut all = json!({"use_sliding_window": true, "sliding_window": 16});
            all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            windows("smollm3", all)
        };
        assert_eq!(of(json!({})), Ok(vec![0, 0, 0, 16, 0, 0]));
        assert_eq!(of(json!({"no_rope_layer_interval": 3})), Ok(vec![0, 0, 16, 0, 0, 16]));
        let stated = json!({"no_rope_layers": [0, 1, 1, 1, 0, 1]});
        assert_eq!(of(stated), Ok(vec![16, 0, 0, 0, 16, 0]));
        // Types go before the rule.
        let types = ["sliding_attention", "full_attention"].repeat(3);
        assert_eq!(of(json!({"layer_types": types})), Ok(vec![16, 0, 16, 0, 16, 0]));
        for none in [
            json!({"use_sliding_window": false}),
            json!({"use_sliding_window": null}),
            json!({"sliding_window": null}),
            json!({"no_rope_layers": [1, 1, 1, 1, 1, 1]}),
        ] {
            assert_eq!(of(none.clone()), Ok(vec![]), "{none}");
        }
        for (fields, words) in [
            (
                json!({"use_sliding_window": false, "layer_types": types}),
                "use_sliding_window = false",
            ),
            (json!({"use_sliding_window": 1}), "use_sliding_window = 1: must be true or false"),
            (json!({"sliding_window": 0}), "sliding_window = 0: must be at least 1"),
            (
                json!({"no_rope_layer_interval": 0}),
                "no_rope_layer_interval = 0: must be at least 1",
            ),
            (json!({"no_rope_layers": [1, 0]}), "no_rope_layers = 2 numbers"),
            (json!({"no_rope_layers": 1}), "no_rope_layers = 1: must be a list"),
            (json!({"layer_types": ["full_attention"]}), "layer_types = 1 types"),
            (json!({"layer_types": vec!["recurrent"; 6]}), "layers of type \"recurrent\""),
        ] {
            let error = of(fields.clone()).unwrap_err();
            assert!(error.contains(words), "{fields}: {error}");
        }
    }

    #[test]
    fn a_silent_file_has_the_window_of_its_class() {
        assert_eq!(windows("gemma3_text", json!({})), Ok(vec![4096, 4096, 4096, 4096, 4096, 0]));
        assert_eq!(windows("gemma2", json!({})), Ok(vec![4096, 0, 4096, 0, 4096, 0]));
        assert_eq!(windows("mistral", json!({})), Ok(vec![4096; 6]));
        let switched = json!({"use_sliding_window": true, "max_window_layers": 4});
        assert_eq!(windows("qwen3", switched), Ok(vec![0, 0, 0, 0, 4096, 4096]));
        for (model_type, fields) in [
            ("mistral", json!({"sliding_window": null})),
            ("qwen2", json!({})),
            // The class begins at layer 28.
            ("qwen2", json!({"use_sliding_window": true})),
            ("phi3", json!({})),
            ("smollm3", json!({"use_sliding_window": true})),
            ("llama", json!({"sliding_window": 16})),
        ] {
            assert_eq!(windows(model_type, fields.clone()), Ok(vec![]), "{model_type} {fields}");
        }
        for model_type in ["gemma2", "gemma3_text"] {
            let error = windows(model_type, json!({"sliding_window": null})).unwrap_err();
            assert!(error.contains("sliding_window = null: must be at least 1"), "{error}");
        }
        let pattern = json!({"sliding_window_pattern": 2, "sliding_window": 16});
        assert_eq!(windows("gemma3_text", pattern), Ok(vec![16, 0, 16, 0, 16, 0]));
    }

    #[test]
    fn a_window_as_long_as_the_context_is_none_but_in_gemma() {
        assert_eq!(windows("mistral", json!({"sliding_window": 8192})), Ok(vec![]));
        let window = json!({"sliding_window": 8192});
        // Its layers with a window have a rotation of their own.
        assert_eq!(windows("gemma3_text", window), Ok(vec![8192, 8192, 8192, 8192, 8192, 0]));
    }
}
