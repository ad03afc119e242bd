use super::*;
use crate::model::{Activation, Architecture, Arithmetic, ModelFile};
use serde_json::json;
use std::fs;
use tidekv_testkit::{Arch, Head, TinySpec, tiny_families, tiny_qwen2};

fn config(json: Value) -> Result<Config, ModelError> {
    Config::of(json.as_object().unwrap().clone(), None)
}

/// A small model whose file also has `fields`.
pub(super) fn small(model_type: &str, fields: Value) -> Config {
    let mut all = json!({
        "model_type": model_type, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "num_hidden_layers": 6, "intermediate_size": 128,
        "max_position_embeddings": 8192,
    });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    config(all).unwrap()
}

/// What the numbers of such a file come to, or the first error.
fn numbers(model_type: &str, fields: Value) -> Result<Arithmetic, String> {
    let config = small(model_type, fields);
    let read = || {
        let shape = config.shape(100)?;
        config.windows(&shape)?;
        config.ropes(&shape)?;
        config.arithmetic(&shape)
    };
    read().map_err(|error| error.to_string())
}

/// The words are in the message.
#[track_caller]
fn says(error: &str, words: &[&str]) {
    assert!(words.iter().all(|word| error.contains(word)), "{words:?} are not in: {error}");
}

/// What a directory with these weights and this `config.json` is opened as.
fn open(spec: &TinySpec, change: impl FnOnce(&mut Value)) -> Result<ModelSpec, String> {
    let dir = tempfile::tempdir().unwrap();
    spec.write_hugging_face(dir.path(), 1).unwrap();
    let path = dir.path().join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
    ModelFile::open(dir.path()).map(|(spec, _)| spec).map_err(|error| error.to_string())
}

/// The same with some fields set.
fn open_with(spec: &TinySpec, fields: Value) -> Result<ModelSpec, String> {
    let fields = fields.as_object().unwrap().clone();
    open(spec, |config| config.as_object_mut().unwrap().extend(fields))
}

fn tiny(arch: Arch) -> TinySpec {
    tiny_families(1).into_iter().find(|spec| spec.arch == arch).unwrap()
}

#[test]
fn families_are_known_by_their_type_and_the_rest_is_refused_by_name() {
    let mistral = config(json!({"model_type": "mistral"})).unwrap();
    assert_eq!(mistral.family.architecture, Architecture::Llama);
    let nested = json!({"model_type": "gemma3", "text_config": {"hidden_size": 7}});
    assert_eq!(config(nested).unwrap().size("hidden_size", None), Ok(7));
    let refused = |json| config(json).err().unwrap().to_string();
    says(&refused(json!({"model_type": "mixtral"})), &["mixture of experts"]);
    says(&refused(json!({"model_type": "qwen3_moe"})), &["mixture of experts"]);
    says(&refused(json!({"model_type": "bert"})), &["`bert`: not supported"]);
    says(&refused(json!({})), &["model_type"]);
}

#[test]
fn a_text_config_is_where_its_family_has_it() {
    let refused = |json| config(json).err().unwrap().to_string();
    let list = refused(json!({"model_type": "gemma3", "text_config": []}));
    says(&list, &["text_config = []: must be an object"]);
    for none in
        [json!({"model_type": "gemma3"}), json!({"model_type": "gemma3", "text_config": null})]
    {
        says(&refused(none), &["model_type = gemma3", "`text_config`, which is missing"]);
    }
    let other = refused(json!({"model_type": "llama", "text_config": {"hidden_size": 7}}));
    says(&other, &["text_config = {\"hidden_size\":7}", "`llama` has none"]);
}

#[test]
fn a_silent_gemma_2_caps_its_logits_and_null_does_not() {
    let caps = |model_type: &str, fields: Value| {
        let read = numbers(model_type, fields).unwrap();
        (read.attention_softcap, read.logit_softcap)
    };
    assert_eq!(caps("gemma2", json!({})), (Some(50.0), Some(30.0)));
    let null = json!({"attn_logit_softcapping": null, "final_logit_softcapping": null});
    assert_eq!(caps("gemma2", null), (None, None));
    let stated = json!({"attn_logit_softcapping": 20, "final_logit_softcapping": 10.5});
    assert_eq!(caps("gemma2", stated), (Some(20.0), Some(10.5)));
    assert_eq!(caps("gemma3_text", json!({})), (None, None));
}

#[test]
fn an_activation_is_the_one_that_the_reference_computes() {
    let read = |model_type: &str, fields: Value| numbers(model_type, fields).map(|n| n.activation);
    for silent in [json!({}), json!({"hidden_activation": null}), json!({"hidden_act": "gelu"})] {
        // Gemma's class reads `hidden_activation` alone.
        assert_eq!(read("gemma2", silent.clone()), Ok(Activation::GeluTanh), "{silent}");
        assert_eq!(read("gemma3_text", silent.clone()), Ok(Activation::GeluTanh), "{silent}");
    }
    assert_eq!(read("llama", json!({"hidden_activation": "gelu"})), Ok(Activation::Silu));
    let tanh = json!({"hidden_act": "gelu_pytorch_tanh"});
    assert_eq!(read("llama", tanh), Ok(Activation::GeluTanh));
    for (model_type, key) in [
        ("gemma2", "hidden_activation"),
        ("gemma3_text", "hidden_activation"),
        ("llama", "hidden_act"),
    ] {
        // With the error function, not with tanh.
        let error = read(model_type, json!({key: "gelu"})).unwrap_err();
        says(&error, &[key, "= gelu", "not supported"]);
        says(&read(model_type, json!({key: 7})).unwrap_err(), &[key, "= 7"]);
    }
}

#[test]
fn attention_that_is_not_causal_is_refused_by_name() {
    let spec = tiny(Arch::Gemma3);
    open_with(&spec, json!({"use_bidirectional_attention": false, "is_causal": true})).unwrap();
    for (key, value) in [
        ("use_bidirectional_attention", json!(true)),
        ("use_bidirectional_attention", json!("all")),
        ("is_causal", json!(false)),
    ] {
        let error = open_with(&spec, json!({key: value})).unwrap_err();
        says(
            &error,
            &["attention that is not causal", &format!("{key} = {value}"), "not supported"],
        );
    }
}

/// A Gemma 3 that has the sizes of attention that its class has.
fn default_gemma3() -> TinySpec {
    TinySpec { n_heads: 8, n_kv_heads: 4, head_dim: 256, ..tiny(Arch::Gemma3) }
}

#[test]
fn a_gemma_3_that_states_its_sizes_alone_is_the_class_s_model() {
    let spec = default_gemma3();
    let model = open(&spec, |config| {
        *config = json!({"model_type": "gemma3", "text_config": {
            "hidden_size": spec.d_model, "intermediate_size": spec.d_ff,
            "num_hidden_layers": spec.n_layers, "eos_token_id": null,
        }});
    })
    .unwrap();
    let shape = &model.shape;
    assert_eq!((shape.n_heads, shape.n_kv_heads, shape.head_dim), (8, 4, 256));
    assert_eq!((shape.vocab, shape.context), (spec.vocab, 131_072));
    let windows: Vec<_> = (0..7).map(|layer| shape.window(layer).map(usize::from)).collect();
    let w = Some(4096);
    assert_eq!(windows, [w, w, w, w, w, None, w]);
    assert_eq!(model.ropes.iter().map(|rope| rope.base).collect::<Vec<_>>(), [1e6, 1e4]);
    assert_eq!(model.layer_ropes, [1, 1, 1, 1, 1, 0, 1].map(Some));
    assert_eq!(model.head, HeadKind::Tied);
    let arithmetic = &model.arithmetic;
    assert_eq!((arithmetic.norm_eps, arithmetic.attention_scale), (1e-6, 1.0 / 16.0));
    assert_eq!((arithmetic.attention_softcap, arithmetic.logit_softcap), (None, None));
    assert_eq!(arithmetic.activation, Activation::GeluTanh);
}

#[test]
fn an_empty_text_config_is_said_to_be_incomplete() {
    let spec = default_gemma3();
    let nested = json!({"model_type": "gemma3", "text_config": {}});
    let error = open(&spec, |config| *config = nested).unwrap_err();
    let cols = format!("rows of tensor `model.embed_tokens.weight` have {} numbers", spec.d_model);
    says(&error, &["hidden_size = 2304", "does not state it", &cols, "incomplete", "fetch"]);
}

#[test]
fn sizes_are_refused_by_the_keys_of_the_file() {
    let huge = format!("1{}", "0".repeat(300)).parse::<serde_json::Number>().unwrap();
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ] {
        let refused = |value: Value| numbers("llama", json!({key: value})).unwrap_err();
        says(&refused(json!(0)), &[&format!("{key} = 0: must be at least 1")]);
        says(&refused(json!(-1)), &[&format!("{key} = -1: must be a whole number")]);
        says(&refused(json!(huge)), &[&format!("{key} = 1e+300: must be a whole number")]);
        says(&refused(json!(1u64 << 60)), &[&format!("{key} = 1152921504606846976")]);
        says(&refused(json!("wide")), &[&format!("{key} = \"wide\": must be a whole number")]);
    }
    let refused = |fields: Value| numbers("llama", fields).unwrap_err();
    says(&refused(json!({"num_key_value_heads": 3})), &["num_key_value_heads = 3: must divide"]);
    let uneven = json!({"head_dim": null, "num_attention_heads": 64, "num_key_value_heads": 2});
    says(&refused(uneven), &["hidden_size = 64", "multiple of num_attention_heads, 64"]);
    let missing = config(json!({"model_type": "llama", "hidden_size": 64})).unwrap().shape(1);
    says(&missing.unwrap_err().to_string(), &["`num_hidden_layers` is missing"]);
}

#[test]
fn factors_out_of_range_are_refused_by_key_and_value() {
    for (model_type, key) in [
        ("llama", "rms_norm_eps"),
        ("llama", "rope_theta"),
        ("gemma3_text", "rope_local_base_freq"),
        ("gemma2", "query_pre_attn_scalar"),
        ("gemma2", "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping"),
        ("granite", "embedding_multiplier"),
        ("granite", "residual_multiplier"),
        ("granite", "attention_multiplier"),
        ("granite", "logits_scaling"),
    ] {
        let digits = "9".repeat(300).parse::<serde_json::Number>().unwrap();
        for value in [json!(-2), json!(0), json!(1e300), json!(1e-300), json!(digits), json!("one")]
        {
            let error = numbers(model_type, json!({key: value})).unwrap_err();
            let shown =
                if value == json!(digits) { "1e+300".to_owned() } else { value.to_string() };
            says(&error, &[&format!("{key} = {shown}")]);
        }
    }
    let long =
        json!({"rope_type": "longrope", "factor": 2, "short_factor": [1e300], "long_factor": [1]});
    let error = numbers("phi3", json!({"rope_scaling": long})).unwrap_err();
    says(&error, &["short_factor[0] = 1e+300"]);
}

#[test]
fn what_json_cannot_say_is_shown_where_it_stands() {
    let dir = tempfile::tempdir().unwrap();
    for value in ["Infinity", "-Infinity", "NaN", "1e999", &"9".repeat(400)] {
        let text =
            format!("{{\n  \"model_type\": \"llama\",\n  \"rope_theta\": {value},\n  \"x\": 1\n}}");
        for text in [text.replace('\n', ""), text] {
            fs::write(dir.path().join("config.json"), text).unwrap();
            let error = Config::read(dir.path()).err().unwrap().to_string();
            says(&error, &["config.json", "\"rope_theta\": ", &value[..3], "line"]);
        }
    }
}

#[test]
fn a_vocabulary_that_is_not_the_embedding_s_is_refused() {
    let spec = tiny(Arch::Llama);
    let error = open_with(&spec, json!({"vocab_size": 7})).unwrap_err();
    says(&error, &["vocab_size = 7", &format!("the embedding has {} rows", spec.vocab)]);
    let error = open_with(&spec, json!({"hidden_size": 7 * spec.n_heads * 2})).unwrap_err();
    let cols = format!("rows of tensor `model.embed_tokens.weight` have {} numbers", spec.d_model);
    says(&error, &["hidden_size = ", &cols, "fetch both"]);
    let mut silent = None;
    open(&spec, |config| silent = config.as_object_mut().unwrap().remove("vocab_size")).unwrap();
    assert_eq!(silent, Some(json!(spec.vocab)));
}

#[test]
fn an_answer_has_to_be_able_to_end() {
    let spec = tiny(Arch::Llama);
    for ids in [json!(0), json!([0, spec.vocab - 1]), json!(null)] {
        open_with(&spec, json!({"eos_token_id": ids})).unwrap();
    }
    for ids in [json!(spec.vocab), json!([0, spec.vocab]), json!(-1), json!("end"), json!([1.5])] {
        let error = open_with(&spec, json!({"eos_token_id": ids})).unwrap_err();
        says(&error, &[&format!("eos_token_id = {ids}"), &format!("below {}", spec.vocab)]);
    }
}

#[test]
fn biases_are_those_that_the_file_states() {
    let (without, with) = (tiny(Arch::Llama), tiny_qwen2(1));
    let as_llama =
        |bias: Value| open_with(&with, json!({"model_type": "llama", "attention_bias": bias}));
    as_llama(json!(true)).unwrap();
    let name = "model.layers.0.self_attn.q_proj.bias";
    for silent in [json!(false), json!(null)] {
        let error = as_llama(silent).unwrap_err();
        says(&error, &["attention_bias = false: must be true", name]);
    }
    says(&as_llama(json!("yes")).unwrap_err(), &["attention_bias = \"yes\""]);
    let error = open_with(&without, json!({"attention_bias": true})).unwrap_err();
    says(&error, &["attention_bias = true", name, "missing"]);
    let error = open_with(&with, json!({"model_type": "mistral"})).unwrap_err();
    says(&error, &[name, "`mistral`", "not supported"]);
    // The class of Qwen 2 has them whatever the file says.
    open_with(&with, json!({"attention_bias": false})).unwrap();

    let error = open_with(&without, json!({"mlp_bias": true})).unwrap_err();
    says(&error, &["mlp_bias = true", "not supported"]);
    open_with(&without, json!({"mlp_bias": false})).unwrap();
}

#[test]
fn a_head_of_its_own_is_there_where_the_family_has_one() {
    let tied = |arch| TinySpec { head: Head::Tied, ..tiny(arch) };
    let spec = tied(Arch::Llama);
    for untied in [json!(false), json!(null)] {
        let error = open_with(&spec, json!({"tie_word_embeddings": untied})).unwrap_err();
        says(&error, &["tie_word_embeddings = false", "lm_head.weight", "missing"]);
    }
    open_with(&tied(Arch::Gemma2), json!({"tie_word_embeddings": null})).unwrap();
}
