//! Safetensors models on disk: directories, shards through any of their files, and one test per way a
//! set of files can be wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod raw;

use std::fs;
use std::path::Path;

use raw::safetensors::{entry, file, header, index, valid, valid_index};
use tempfile::TempDir;
use tidekv_format::{
    FormatError, Limit, LooksLike, SafetensorsModel, ShardFault, TensorType, limits,
};

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// `a` and `b` in the first shard, `c` in the second, and an index that says so.
fn sharded() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let first = [entry("a", "F32", "[2,3]", 0, 24), entry("b", "BF16", "[5]", 24, 34)];
    fs::write(dir.path().join(FIRST), file(&header(&first), 34)).unwrap();
    let second = [entry("c", "F16", "[]", 0, 2)];
    fs::write(dir.path().join(SECOND), file(&header(&second), 2)).unwrap();
    fs::write(dir.path().join(INDEX), valid_index()).unwrap();
    dir
}

fn refused(path: &Path) -> FormatError {
    SafetensorsModel::open(path).expect_err("a bad model was accepted")
}

#[test]
fn a_directory_and_a_file_are_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, valid()).unwrap();
    for opened in [dir.path(), &path] {
        let model = SafetensorsModel::open(opened).unwrap();
        assert_eq!(model.metadata()["format"], "pt");
        let store = model.store();
        let files: Vec<_> = store.files().collect();
        assert_eq!(files, [(path.as_path(), valid().len() as u64)]);
        let a = store.tensor("a").unwrap();
        assert_eq!((a.shape.as_slice(), a.ty), ([3, 2].as_slice(), TensorType::F32));
        assert_eq!(store.bytes(a), (0..24).collect::<Vec<u8>>());
        assert_eq!(store.bytes(store.tensor("c").unwrap()), [34, 35]);
        store.verify_unchanged().unwrap();
        assert_eq!(model.into_store().tensors().len(), 3);
    }
}

#[test]
fn a_file_of_the_reference_writer_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/reference.safetensors");
    let model = SafetensorsModel::open(&path).unwrap();
    assert_eq!(model.metadata()["format"], "pt");
    let store = model.store();
    assert_eq!(store.tensors().len(), 6);
    let shape_and_type = |name: &str| {
        let tensor = store.tensor(name).unwrap();
        (tensor.shape.clone(), tensor.ty.to_string())
    };
    assert_eq!(shape_and_type("model.embed_tokens.weight"), (vec![4, 5], "F16".to_owned()));
    assert_eq!(shape_and_type("model.layers.0.mask"), (vec![2, 2], "BOOL".to_owned()));
    let eighths = |n: u8| (0..n).map(|i| f64::from(i) / 8.0);
    let norm = store.bytes(store.tensor("model.norm.weight").unwrap());
    assert_eq!(norm, eighths(4).flat_map(|x| (x as f32).to_le_bytes()).collect::<Vec<u8>>());
    let doubles = store.tensor("model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    assert_eq!(doubles.ty, TensorType::F64);
    assert_eq!(store.bytes(doubles), eighths(2).flat_map(f64::to_le_bytes).collect::<Vec<u8>>());
}

#[test]
fn shards_open_through_directory_index_and_any_shard() {
    let dir = sharded();
    for name in ["", INDEX, FIRST, SECOND] {
        let model = SafetensorsModel::open(&dir.path().join(name)).unwrap();
        let store = model.store();
        let names: Vec<_> = store.tensors().iter().map(|t| (t.name.as_str(), t.file)).collect();
        assert_eq!(names, [("a", 0), ("b", 0), ("c", 1)], "{name}");
        assert_eq!(store.bytes(store.tensor("b").unwrap()), (24..34).collect::<Vec<u8>>());
        assert_eq!(store.bytes(store.tensor("c").unwrap()), [0, 1]);
    }
}

#[test]
fn one_file_goes_before_an_index() {
    let dir = sharded();
    fs::write(dir.path().join("model.safetensors"), valid()).unwrap();
    assert_eq!(SafetensorsModel::open(dir.path()).unwrap().store().files().len(), 1);
}

#[test]
fn a_tensor_that_the_index_does_not_name_is_in_the_table() {
    let dir = sharded();
    fs::write(dir.path().join(INDEX), index(&[("a", FIRST), ("c", SECOND)])).unwrap();
    assert!(SafetensorsModel::open(dir.path()).unwrap().store().tensor("b").is_some());
}

#[test]
fn a_directory_without_weights() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(refused(dir.path()), FormatError::Shards(ShardFault::NoWeights { .. })));
    for name in ["pytorch_model.bin", "config.json", "adapter_model.safetensors"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    let error = refused(dir.path()).to_string();
    assert!(error.contains("it has adapter_model.safetensors, pytorch_model.bin;"), "{error}");
}

#[test]
fn a_path_that_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["absent", "absent.safetensors", FIRST, INDEX] {
        let error = refused(&dir.path().join(name));
        assert!(matches!(error, FormatError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_shard_without_its_index() {
    let dir = sharded();
    fs::remove_file(dir.path().join(INDEX)).unwrap();
    let expected = dir.path().join(INDEX);
    assert!(matches!(
        refused(&dir.path().join(SECOND)),
        FormatError::Shards(ShardFault::NoIndex { shard: 2, count: 2, index }) if index == expected
    ));
}

#[test]
fn a_missing_shard() {
    let dir = sharded();
    fs::remove_file(dir.path().join(SECOND)).unwrap();
    for name in ["", FIRST] {
        let error = refused(&dir.path().join(name));
        let FormatError::Shards(ShardFault::MissingShard { shard, number, count, path }) = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!((shard.as_str(), *number, *count), (SECOND, 2, 2));
        assert_eq!(*path, dir.path().join(SECOND));
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn an_index_that_names_a_tensor_no_shard_has() {
    let dir = sharded();
    for (tensor, shard) in [("d", FIRST), ("c", FIRST)] {
        let entries = [("a", FIRST), ("b", FIRST), (tensor, shard), ("e", SECOND)];
        fs::write(dir.path().join(INDEX), index(&entries)).unwrap();
        let error = refused(dir.path());
        assert!(
            matches!(
                &error,
                FormatError::Shards(ShardFault::MissingTensor { tensor: t, shard: s })
                    if t == tensor && s == shard
            ),
            "{error:?}"
        );
    }
}

#[test]
fn a_tensor_in_two_shards() {
    let dir = sharded();
    let both = [entry("c", "F16", "[]", 0, 2), entry("b", "F16", "[]", 2, 4)];
    fs::write(dir.path().join(SECOND), file(&header(&both), 4)).unwrap();
    let error = refused(dir.path());
    assert!(
        matches!(&error, FormatError::TensorInTwoFiles { tensor, .. } if tensor == "b"),
        "{error:?}"
    );
    assert!(error.to_string().contains(FIRST) && error.to_string().contains(SECOND), "{error}");
}

#[test]
fn a_bad_shard_is_named() {
    let dir = sharded();
    let whole = fs::read(dir.path().join(SECOND)).unwrap();
    fs::write(dir.path().join(SECOND), &whole[..whole.len() - 1]).unwrap();
    let error = refused(dir.path()).to_string();
    assert!(error.contains(&format!("{SECOND}: truncated: expected")), "{error}");
    fs::write(dir.path().join(SECOND), "<!DOCTYPE html><html>").unwrap();
    let FormatError::InFile { source, .. } = refused(dir.path()) else { panic!() };
    assert!(matches!(*source, FormatError::NotSafetensors(LooksLike::HtmlPage)), "{source:?}");
    fs::write(dir.path().join(SECOND), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    let FormatError::InFile { source, .. } = refused(dir.path()) else { panic!() };
    assert!(matches!(*source, FormatError::NotSafetensors(LooksLike::GitLfsPointer)), "{source:?}");
}

#[test]
fn a_bad_file_of_a_directory_is_named_and_one_given_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    fs::write(&path, "GGUF\x03\0\0\0").unwrap();
    assert!(matches!(refused(dir.path()), FormatError::InFile { path: p, .. } if p == path));
    assert!(matches!(refused(&path), FormatError::NotSafetensors(LooksLike::Gguf)));
}

#[test]
fn an_index_that_leads_out_of_the_directory() {
    let outside = tempfile::tempdir().unwrap();
    let dir = outside.path().join("model");
    fs::create_dir(&dir).unwrap();
    fs::write(outside.path().join("x.safetensors"), valid()).unwrap();
    let absolute = outside.path().join("x.safetensors").display().to_string();
    for name in ["../x.safetensors", &absolute] {
        fs::write(dir.join(INDEX), index(&[("a", name)])).unwrap();
        let FormatError::InFile { source, .. } = refused(&dir) else { panic!() };
        assert!(
            matches!(*source, FormatError::Shards(ShardFault::UnsafeName { .. })),
            "{source:?}"
        );
    }
}

#[test]
fn an_index_that_is_not_one_is_named() {
    let dir = sharded();
    fs::write(dir.path().join(INDEX), "version https://git-lfs.github.com/spec/v1").unwrap();
    let error = refused(dir.path()).to_string();
    assert!(error.contains(&format!("{INDEX}: the index of shards is not valid")), "{error}");
}

#[test]
fn an_index_too_large_to_be_one() {
    let dir = sharded();
    // Sparse: nothing of this size is written.
    fs::File::create(dir.path().join(INDEX)).unwrap().set_len(limits::MAX_INDEX_BYTES + 9).unwrap();
    let FormatError::InFile { source, .. } = refused(dir.path()) else { panic!() };
    let over = limits::MAX_INDEX_BYTES + 1;
    assert!(
        matches!(*source, FormatError::TooLarge { limit: Limit::IndexBytes, value, .. } if value == over),
        "{source:?}"
    );
}
