//! The rotations of a model: bases and scalings, where files of different age state them.
//!
//! Older files have bases in fields of their own and the scaling in `rope_scaling`; newer ones
//! have all of it in `rope_parameters`, for all layers or for each type of layer
//! (<https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py>).

use super::{Config, bad, count, float, object, scaling};
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

/// What a file says about each of [`Layers`], in their order.
type ByLayers<'c> = [Option<&'c Map<String, Value>>; 2];

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
        let base = Base { key: "rope_theta", default: self.family.rope_base };
        let global = self.rope(shape, Layers::Full, base)?;
        let Some(window_base) = self.family.window_rope_base else {
            let apart = self.stated(Layers::Sliding)?.iter().any(Option::is_some);
            if apart && self.rope(shape, Layers::Sliding, base)? != global {
                return Err(feature("rotations that differ between types of layers"));
            }
            return Ok(vec![global]);
        };
        // What is stated for all layers concerns those that see everything: a window never
        // reaches beyond the trained context.
        let base = Base { key: "rope_local_base_freq", default: window_base };
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
            let own = match self.by_type(place, of_all)? {
                Some(by_type) => by_type[layers as usize],
                None => Some(of_all).filter(|_| layers == Layers::Full),
            };
            *stated = own.filter(|own| !own.is_empty());
        }
        Ok(stated)
    }

    /// What an object says about each of [`Layers`], where it tells them apart.
    fn by_type<'c>(
        &self,
        place: &str,
        of_all: &'c Map<String, Value>,
    ) -> Result<Option<ByLayers<'c>>, ModelError> {
        let names = [Layers::Full, Layers::Sliding].map(Layers::name);
        let tells_apart = names.iter().any(|&name| of_all.contains_key(name));
        let must_tell = self.family.window_rope_base.is_some() && place == PLACES[0];
        if !(tells_apart || must_tell) {
            return Ok(None);
        }
        let of_type = |name: &str| object(of_all, name).map_err(|error| under(place, error));
        let by_type = [of_type(names[0])?, of_type(names[1])?];
        // The reference reads nothing beside them: what is not said of each type is lost.
        let lost = |(key, value): &(&String, &Value)| {
            let plain = ["rope_type", "type"].contains(&key.as_str()) && *value == "default";
            let said = |own: &Map<String, Value>| own.get(*key) == Some(*value);
            let said_of_each = by_type.iter().flatten().all(|own| said(own)) && tells_apart;
            !(names.contains(&key.as_str()) || value.is_null() || plain || said_of_each)
        };
        match of_all.iter().find(lost) {
            None => Ok(Some(by_type)),
            Some((key, value)) => {
                let reason = "must be stated in `full_attention` and `sliding_attention`, which \
                              have a rotation each";
                Err(bad(&format!("{place}.{key}"), value, reason))
            }
        }
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
        let stated_base = own_base.or(beside).unwrap_or(base.default);
        if stated_base <= 1.0 {
            let (key, value) = match parameters.get("rope_theta").filter(|own| !own.is_null()) {
                Some(own) => ("rope_theta", Some(own)),
                None => (base.key, self.get(base.key)),
            };
            return Err(bad(key, value.unwrap_or(&Value::Null), "must be above 1"));
        }
        let partial = match (self.family.architecture, float(parameters, "partial_rotary_factor")?)
        {
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
        // What the family assumes matters where the rotation changes there.
        let or_assumed = original.or(self.family.trained_context);
        let (scaling, factors) = scaling::read(parameters, shape.context, or_assumed)?;
        let trained_context = match scaling {
            // It begins where the stated context ends.
            RopeScaling::Dynamic { .. } => shape.context,
            RopeScaling::LongRope { .. } => or_assumed.unwrap_or(shape.context),
            _ => original.unwrap_or(shape.context),
        };
        let style = RopeStyle::of(self.family.architecture);
        let base = stated_base as f32;
        Ok(RopeSpec { style, base, dims, scaling, trained_context, factors })
    }
}

/// An error about a value of the object that stands under `place`.
fn under(place: &str, error: ModelError) -> ModelError {
    match error {
        ModelError::Value { key, value, reason } => {
            ModelError::Value { key: format!("{place}.{key}"), value, reason }
        }
        other => other,
    }
}

fn feature(feature: &str) -> ModelError {
    ModelError::Feature { feature: feature.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::hf::tests::small;
    use serde_json::json;

    /// Rotations of a small model whose file also has `fields`.
    fn ropes(model_type: &str, fields: Value) -> Result<Vec<RopeSpec>, String> {
        let config = small(model_type, fields);
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
    #[test]
    fn what_gemma_3_says_of_all_layers_is_not_lost() {
        // The reference reads the rotation of each type of layers and nothing else.
        for (flat, words) in [
            (json!({"rope_theta": 2e6}), "rope_parameters.rope_theta = 2000000.0"),
            (json!({"rope_type": "linear", "factor": 8}), "rope_parameters.factor = 8"),
            (json!({"rope_type": "yarn"}), "rope_parameters.rope_type = \"yarn\""),
        ] {
            let error = ropes("gemma3_text", json!({"rope_parameters": flat})).unwrap_err();
            assert!(error.contains(words) && error.contains("`sliding_attention`"), "{error}");
        }
        let silent = ropes("gemma3_text", json!({})).unwrap();
        for nothing in [json!({}), json!({"rope_type": "default", "rope_theta": null})] {
            let read = ropes("gemma3_text", json!({"rope_parameters": nothing}));
            assert_eq!(read, Ok(silent.clone()), "{nothing}");
        }
        // The older place is about the layers that see everything.
        let older = json!({"rope_scaling": {"rope_type": "linear", "factor": 8}});
        let scalings: Vec<_> =
            ropes("gemma3_text", older).unwrap().iter().map(|rope| rope.scaling).collect();
        assert_eq!(scalings, [linear(8.0), RopeScaling::None]);
    }

    #[test]
    fn what_is_said_of_all_layers_and_of_each_type_has_to_agree() {
        let both = |beside: Value| {
            let own = json!({"rope_type": "default", "rope_theta": 1e6});
            let mut all = json!({"full_attention": own, "sliding_attention": own});
            all.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
            json!({"rope_parameters": all})
        };
        for model_type in ["qwen2", "gemma3_text"] {
            let alone = ropes(model_type, both(json!({}))).unwrap();
            for same in [json!({"rope_theta": 1e6}), json!({"rope_type": "default"})] {
                assert_eq!(ropes(model_type, both(same)), Ok(alone.clone()));
            }
            for (other, words) in [
                (json!({"rope_theta": 1e4}), "rope_parameters.rope_theta = 10000.0"),
                (json!({"rope_type": "linear"}), "rope_parameters.rope_type = \"linear\""),
                (json!({"factor": 2}), "rope_parameters.factor = 2"),
            ] {
                let error = ropes(model_type, both(other)).unwrap_err();
                assert!(error.contains(words) && error.contains("`full_attention`"), "{error}");
            }
        }
    }
}
