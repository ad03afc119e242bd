//! The files are read back with the reader they are for.

use std::fs;

use tidekv_format::{FormatError, GgufFile, GgufHeader, parse_header};

use super::*;

fn header(bytes: &[u8]) -> GgufHeader {
    parse_header(bytes, bytes.len() as u64).unwrap()
}

fn floats(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.ty, TensorType::F32);
    file.bytes(tensor).as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn written(spec: &TinySpec) -> (tempfile::TempDir, GgufFile) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    spec.write_to(&path).unwrap();
    let file = GgufFile::open(&path).unwrap();
    (dir, file)
}

fn mean_and_std(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    (mean, variance.sqrt())
}

#[test]
fn llama_files_have_what_real_ones_have() {
    let header = header(&tiny_llama(1).writer().to_bytes());
    let m = header.metadata();
    assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
    let numbers = [
        ("block_count", 3),
        ("context_length", 8192),
        ("embedding_length", 96),
        ("feed_forward_length", 205),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 16),
        ("vocab_size", 288),
    ];
    for (suffix, n) in numbers {
        assert_eq!(m.u64(&format!("llama.{suffix}")).unwrap(), Some(n), "{suffix}");
    }
    assert_eq!(m.f32("llama.rope.freq_base").unwrap(), Some(1e5));
    assert_eq!(m.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-5));
    assert_eq!(m.get("llama.attention.key_length"), None);
    assert_eq!(m.str("tokenizer.ggml.pre").unwrap(), Some("smollm"));
    assert_eq!(m.strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 288);
    assert_eq!(m.i32s("tokenizer.ggml.token_type").unwrap().unwrap().len(), 288);

    assert_eq!(header.tensors().len(), 2 + 3 * 9);
    assert!(header.tensor("output.weight").is_none());
    assert_eq!(header.tensor("token_embd.weight").unwrap().shape, [96, 288]);
    assert_eq!(header.tensor("blk.2.attn_k.weight").unwrap().shape, [96, 32]);
    assert_eq!(header.tensor("blk.0.ffn_down.weight").unwrap().shape, [205, 96]);
}

#[test]
fn qwen2_files_have_what_real_ones_have() {
    let header = header(&tiny_qwen2(1).writer().to_bytes());
    let m = header.metadata();
    assert_eq!(m.str("general.architecture").unwrap(), Some("qwen2"));
    assert_eq!(m.u64("qwen2.attention.head_count").unwrap(), Some(14));
    assert_eq!(m.get("qwen2.vocab_size"), None);
    assert_eq!(m.get("qwen2.rope.dimension_count"), None);
    assert_eq!(m.str("tokenizer.ggml.pre").unwrap(), Some("qwen2"));
    assert_eq!(header.tensors().len(), 3 + 3 * 12);
    assert_eq!(header.tensor("output.weight").unwrap().shape, [224, 288]);
    assert_eq!(header.tensor("blk.1.attn_v.bias").unwrap().shape, [32]);
}

#[test]
fn a_head_dimension_of_its_own_is_written_down() {
    let spec = TinySpec { head_dim: 32, ..tiny_llama(1) };
    let header = header(&spec.writer().to_bytes());
    assert_eq!(header.metadata().u64("llama.attention.key_length").unwrap(), Some(32));
    assert_eq!(header.metadata().u64("llama.attention.value_length").unwrap(), Some(32));
    assert_eq!(header.tensor("blk.0.attn_output.weight").unwrap().shape, [192, 96]);
}

#[test]
fn weights_have_the_spread_they_should() {
    let (_dir, file) = written(&tiny_qwen2(3));
    // Five standard errors of a mean, std / sqrt(n), and of a standard deviation, std / sqrt(2 n).
    let check = |name: &str, mean: f64, std: f64| {
        let values = floats(&file, name);
        let error = 5.0 * std / (values.len() as f64).sqrt();
        let (m, s) = mean_and_std(&values);
        assert!((m - mean).abs() < error, "{name}: mean {m}");
        assert!((s - std).abs() < error / 2f64.sqrt(), "{name}: std {s}");
    };
    check("token_embd.weight", 0.0, 1.0 / 224f64.sqrt());
    check("blk.0.attn_q.weight", 0.0, 1.0 / 224f64.sqrt());
    check("blk.2.ffn_down.weight", 0.0, 1.0 / 320f64.sqrt());
    check("blk.1.attn_q.bias", 0.0, 0.5);
    check("output_norm.weight", 1.0, 0.1);
}

#[test]
fn the_same_spec_gives_the_same_bytes_and_another_seed_others() {
    let bytes = |seed| tiny_llama(seed).writer().to_bytes();
    assert_eq!(bytes(5), bytes(5));
    let (one, other) = (bytes(5), bytes(6));
    assert_eq!(one.len(), other.len());
    assert!(one != other);
}

#[test]
fn a_tensor_depends_on_its_name_and_not_on_the_rest_of_the_model() {
    let (_dir, file) = written(&tiny_llama(5));
    let (_dir, deeper) = written(&TinySpec { n_layers: 4, head: Head::Untied, ..tiny_llama(5) });
    let name = "blk.1.attn_q.weight";
    assert_eq!(floats(&file, name), floats(&deeper, name));
    assert_ne!(floats(&file, name), floats(&file, "blk.2.attn_q.weight"));
    assert_ne!(floats(&deeper, "output.weight"), floats(&deeper, "token_embd.weight"));
}

#[test]
fn the_weights_of_a_seed_never_change() {
    // Golden numbers of other tests hang on these: a change here invalidates them all.
    let bytes = tiny_llama(0).writer().to_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, &byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    assert_eq!((bytes.len(), hash), (1_123_936, 542_346_227_205_200_200));
}

#[test]
fn every_storage_type_can_be_mixed() {
    use TensorType::*;
    let types = MatrixTypes {
        token_embd: Q8_0,
        output: Q5_0,
        attn_q: Q4_K,
        attn_k: Q6_K,
        attn_v: Q5_K,
        attn_output: Q4_1,
        ffn_gate: BF16,
        ffn_up: F16,
        ffn_down: Q3_K,
    };
    let spec = TinySpec { d_model: 256, d_ff: 512, n_heads: 16, types, ..tiny_qwen2(2) };
    let (_dir, file) = written(&spec);
    for (name, ty) in
        [("token_embd", Q8_0), ("output", Q5_0), ("blk.0.attn_k", Q6_K), ("blk.2.ffn_down", Q3_K)]
    {
        assert_eq!(file.tensor(&format!("{name}.weight")).unwrap().ty, ty);
    }
    for ty in [Q4_0, Q5_1, Q2_K] {
        written(&TinySpec { types: MatrixTypes::all(ty), ..spec.clone() });
    }
}

#[test]
#[should_panic(expected = "`blk.0.ffn_down.weight`: rows of 205 cannot be stored as Q8_0")]
fn block_types_need_whole_blocks() {
    TinySpec { types: MatrixTypes::all(TensorType::Q8_0), ..tiny_llama(1) }.writer();
}

#[test]
fn every_truncated_length_is_refused_with_both_sizes() {
    // The last tensor ends on the alignment, so no byte of the file is padding that may be missed.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let spec = TinySpec { n_layers: 1, d_model: 32, d_ff: 33, n_heads: 2, ..tiny_llama(1) };
    let whole = spec.writer().to_bytes();
    let header = header(&whole);
    let data_start = header.tensors().iter().map(|tensor| tensor.offset).min().unwrap();
    fs::write(&path, &whole).unwrap();
    GgufFile::open(&path).unwrap();
    let out = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for len in (0..whole.len()).rev() {
        out.set_len(len as u64).unwrap();
        let error = GgufFile::open(&path).expect_err("a truncated file was accepted");
        let (expected, actual) = match error {
            FormatError::TooShort { actual, needed } => (needed, actual),
            FormatError::Truncated { expected, actual, .. } => (expected, actual),
            _ => panic!("at {len} bytes: {error:?}"),
        };
        assert_eq!(actual, len as u64);
        assert!(expected > actual);
        assert!(
            actual < data_start || expected == whole.len() as u64,
            "at {len} bytes: expected {expected}"
        );
    }
}

#[test]
fn the_8b_shape_has_its_tensors_and_needs_no_key_length() {
    let spec = llama_8b_two_layers();
    let names: Vec<_> = spec.writer().tensor_names().map(str::to_owned).collect();
    assert_eq!(names.len(), 3 + 2 * 9);
    assert_eq!(spec.head_dim * spec.n_heads, spec.d_model);
}
