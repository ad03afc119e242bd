//! The rotations of a model: bases and scalings, where files of different age state them.
//!
//! Older files have bases in fields of their own and the scaling in `rope_scaling`; newer ones
//! have all of it in `rope_parameters`, for all layers or for each type of layer
//! (<https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py>).

use super::{Config, bad, count, float, scaling};
use crate::model::{Architecture, ModelError, RopeScaling, RopeSpec, RopeStyle, Shape};
use serde_json::{Map, Value};

/// Where files state rotations, the newer place first.
const PLACES: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// A type of layers, as files name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layers {
    Full,
    Sliding,
}

impl Layers {
    fn name(self) -> &'static str {
        match self {
            Layers::Full => "full_attention",
            Layers::Sliding => "sliding_attention",
        }
    }
}

/// A base that a file may state, and what the reference takes where it does not.
#[derive(Debug, Clone, Copy)]
struct Base {
    key: &'static str,
    default: f64,
}

impl Config {
    /// The rotations: that of layers that see everything, then, where it differs,
    /// that of layers with a window.
    ///
    /// # Errors
    /// A rotation that is not supported, or two that contradict each other.
    pub(super) fn ropes(&self, shape: &Shape) -> Result<Vec<RopeSpec>, ModelError> {
        let default = match self.architecture {
            Architecture::Gemma3 => 1_000_000.0,
            Architecture::SmolLm3 => 2_000_000.0,
            _ => 10_000.0,
        };
        let base = Base { key: "rope_theta", default };
        let global = self.rope(shape, Layers::Full, base)?;
        if self.architecture != Architecture::Gemma3 {
            let apart = self.stated(Layers::Sliding)?.iter().any(Option::is_some);
            if apart && self.rope(shape, Layers::Sliding, base)? != global {
                return Err(feature("rotations that differ between types of layers"));
            }
            return Ok(vec![global]);
        }
        // What is stated for all layers concerns those that see everything: a window never
        // reaches beyond the trained context.
        let base = Base { key: "rope_local_base_freq", default: 10_000.0 };
        let local = self.rope(shape, Layers::Sliding, base)?;
        if local.scaling != RopeScaling::None {
            return Err(feature("RoPE scaling in layers with a window"));
        }
        Ok(vec![global, local])
    }

    /// What each of [`PLACES`] says about some layers; what it says about all of them is about
    /// those that see everything. An empty object says nothing.
    fn stated(&self, layers: Layers) -> Result<[Option<&Map<String, Value>>; 2], ModelError> {
        let mut stated = [None; 2];
        for (stated, place) in stated.iter_mut().zip(PLACES) {
            let Some(of_all) = self.object(place)? else { continue };
            let by_type = [Layers::Full, Layers::Sliding].map(|layers| of_all.get(layers.name()));
            let own = match by_type.iter().any(Option::is_some) {
                true => match of_all.get(layers.name()) {
                    None | Some(Value::Null) => None,
                    Some(Value::Object(own)) => Some(own),
                    Some(other) => {
                        let key = format!("{place}.{}", layers.name());
                        return Err(bad(&key, other, "must be an object"));
                    }
                },
                false => Some(of_all).filter(|_| layers == Layers::Full),
            };
            *stated = own.filter(|own| !own.is_empty());
        }
        Ok(stated)
    }

    /// The rotation of some layers.
    fn rope(&self, shape: &Shape, layers: Layers, base: Base) -> Result<RopeSpec, ModelError> {
        let [newer, older] = self.stated(layers)?;
        let (Some(newer), Some(older)) = (newer, older) else {
            return self.rope_by(shape, newer.or(older).unwrap_or(&Map::new()), base);
        };
        let rope = self.rope_by(shape, newer, base)?;
        let mut completed = older.clone();
        // The older place may lack what older files state elsewhere.
        for key in ["rope_theta", "partial_rotary_factor", scaling::ORIGINAL] {
            if let (Some(value), false) = (newer.get(key), completed.contains_key(key)) {
                completed.insert(key.to_owned(), value.clone());
            }
        }
        if self.rope_by(shape, &completed, base)? != rope {
            let [newer_place, older_place] = PLACES;
            let kind = scaling::kind(older)?;
            let reason = format!(
                "`{newer_place}` states another rotation; keep the one that the model was trained \
                 with"
            );
            return Err(bad(older_place, kind, &reason));
        }
        Ok(rope)
    }

    /// The rotation that an object describes, with what the file states beside it.
    fn rope_by(
        &self,
        shape: &Shape,
        parameters: &Map<String, Value>,
        base: Base,
    ) -> Result<RopeSpec, ModelError> {
        let own_base = float(parameters, "rope_theta")?;
        let beside = float(&self.fields, base.key)?;
        if let (Some(own), Some(beside)) = (own_base, beside)
            && own != beside
        {
            let reason =
                format!("the `rope_theta` beside the scaling is {own}; keep the right one");
            return Err(bad(base.key, beside, &reason));
        }
        let partial = match (self.architecture, float(parameters, "partial_rotary_factor")?) {
            (Architecture::Phi3, None) => float(&self.fields, "partial_rotary_factor")?,
            (Architecture::Phi3, factor) => factor,
            // The reference rotates whole heads in the other families, whatever is stated.
            _ => None,
        };
        let dims = (shape.head_dim as f64 * partial.unwrap_or(1.0)) as usize;
        if dims == 0 || dims % 2 == 1 || dims > shape.head_dim {
            let reason = "must leave an even number of rotating dimensions in a head";
            return Err(bad("partial_rotary_factor", partial.unwrap_or(1.0), reason));
        }
        let original = match count(parameters, scaling::ORIGINAL)? {
            Some(original) => Some(original),
            None => self.count(scaling::ORIGINAL)?,
        };
        let (scaling, factors) = scaling::read(parameters, shape.context, original)?;
        let trained_context = match scaling {
            // It begins where the stated context ends.
            RopeScaling::Dynamic { .. } => shape.context,
            _ => original.unwrap_or(shape.context),
        };
        let style = RopeStyle::of(self.architecture);
        let base = own_base.or(beside).unwrap_or(base.default) as f32;
        Ok(RopeSpec { style, base, dims, scaling, trained_context, factors })
    }
}

fn feature(feature: &str) -> ModelError {
    ModelError::Feature { feature: feature.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rotations of a small model whose file also has `fields`.
    fn ropes(model_type: &str, fields: Value) -> Result<Vec<RopeSpec>, String> {
        let mut config = json!({
            "model_type": model_type, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
            "num_hidden_layers": 6, "intermediate_size": 128, "max_position_embeddings": 4096,
        });
        let all = config.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        let config = Config::of(all.clone(), None).unwrap();
        let shape = config.shape(1).unwrap();
        config.ropes(&shape).map_err(|error| error.to_string())
    }

    fn linear(factor: f64) -> RopeScaling {
        RopeScaling::Linear { factor }
    }

    #[test]
    fn a_file_of_either_age_gives_the_same_rotation() {
        let older = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}});
        let newer =
            json!({"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5}});
        let of_older = ropes("llama", older).unwrap();
        assert_eq!((of_older[0].base, of_older[0].scaling), (5e5, linear(4.0)));
        assert_eq!(ropes("llama", newer).unwrap(), of_older);

        let scaled = json!({"rope_type": "linear", "factor": 8.0});
        let older = json!({"rope_theta": 2e6, "rope_local_base_freq": 5e3, "rope_scaling": scaled});
        let newer = json!({"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        }});
        let of_older = ropes("gemma3_text", older).unwrap();
        let read: Vec<_> = of_older.iter().map(|rope| (rope.base, rope.scaling)).collect();
        assert_eq!(read, [(2e6, linear(8.0)), (5e3, RopeScaling::None)]);
        assert_eq!(ropes("gemma3_text", newer).unwrap(), of_older);
        // One object for all layers leaves those with a window as they are.
        let flat = json!({"rope_parameters": {"rope_type": "linear", "factor": 8, "rope_theta": 2e6},
            "rope_local_base_freq": 5e3});
        assert_eq!(ropes("gemma3_text", flat).unwrap(), of_older);
    }

    #[test]
    fn a_silent_file_has_the_bases_of_its_family() {
        let bases = |model_type, fields| -> Vec<f32> {
            ropes(model_type, fields).unwrap().iter().map(|rope| rope.base).collect()
        };
        assert_eq!(bases("llama", json!({})), [1e4]);
        assert_eq!(bases("smollm3", json!({})), [2e6]);
        assert_eq!(bases("gemma3_text", json!({})), [1e6, 1e4]);
        let half = json!({"rope_parameters": {"sliding_attention": {"rope_theta": 5e3}}});
        assert_eq!(bases("gemma3_text", half), [1e6, 5e3]);
        let nothing =
            json!({"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 2}});
        assert_eq!(ropes("llama", nothing).unwrap()[0].scaling, linear(2.0));
    }

    #[test]
    fn what_is_stated_twice_has_to_agree() {
        let parameters = json!({"rope_type": "linear", "factor": 4, "rope_theta": 5e5});
        let with = |older: Value| json!({"rope_parameters": parameters, "rope_scaling": older});
        let alone = ropes("llama", json!({"rope_parameters": parameters})).unwrap();
        for older in [json!({"type": "linear", "factor": 4.0}), parameters.clone(), json!({})] {
            assert_eq!(ropes("llama", with(older.clone())), Ok(alone.clone()), "{older}");
        }
        for older in [
            json!({"type": "linear", "factor": 2}),
            json!({"type": "dynamic", "factor": 4}),
            json!({"type": "default"}),
            json!({"type": "linear", "factor": 4, "rope_theta": 1e4}),
        ] {
            let error = ropes("llama", with(older)).unwrap_err();
            let both = PLACES.iter().all(|place| error.contains(place));
            assert!(both && error.contains("another rotation"), "{error}");
        }
        let by_type = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6}},
            "rope_scaling": {"type": "linear", "factor": 8}});
        assert!(ropes("gemma3_text", by_type).unwrap_err().contains("another rotation"));

        let bases = json!({"rope_parameters": parameters, "rope_theta": 1e4});
        let error = ropes("llama", bases).unwrap_err();
        assert!(error.contains("rope_theta = 10000") && error.contains("500000"), "{error}");
    }

    #[test]
    fn what_layers_of_one_type_have_is_never_taken_for_all() {
        let by_type = |full: Value, sliding: Value| json!({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}});
        let (one, other) = (json!({"rope_theta": 1e6}), json!({"rope_theta": 1e4}));
        assert_eq!(ropes("qwen2", by_type(one.clone(), one.clone())).unwrap()[0].base, 1e6);
        let error = ropes("qwen2", by_type(one.clone(), other)).unwrap_err();
        assert!(error.contains("types of layers"), "{error}");
        let scaled = json!({"rope_type": "linear", "factor": 2});
        let error = ropes("gemma3_text", by_type(one.clone(), scaled)).unwrap_err();
        assert!(error.contains("layers with a window"), "{error}");
        // Older files did not state it there either, and it is not ignored.
        let older = json!({"rope_scaling": {"full_attention": {"type": "linear", "factor": 2}}});
        assert_eq!(ropes("gemma3_text", older).unwrap()[0].scaling, linear(2.0));
        let error = ropes("gemma3_text", by_type(one, json!([]))).unwrap_err();
        assert!(error.contains("rope_parameters.sliding_attention = []"), "{error}");
    }
}
