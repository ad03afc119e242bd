//! Split GGUF models: through any part, and one test per way a set of parts can be wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod raw;

use std::fs;
use std::path::{Path, PathBuf};

use raw::{Raw, RawTensor, string};
use tempfile::TempDir;
use tidekv_format::{FormatError, GgufFile, GgufModel, Limit, SplitFault};

/// Part `number` of `count` as its writer makes it: tensor `tN` of 8 numbers, the rest of the
/// metadata only in the first.
fn part(number: u16, count: u16) -> Raw {
    let mut file = if number == 1 { Raw::valid() } else { Raw { entries: vec![], ..Raw::valid() } };
    let name = format!("t{number}").into_bytes();
    file.tensors = vec![RawTensor { name, shape: vec![8], ty: 0, offset: 0 }];
    file.data_len = Some(32);
    file.push_u16("split.no", number - 1);
    file.push_u16("split.count", count);
    let tensors = [5u32.to_le_bytes(), i32::from(count).to_le_bytes()].concat();
    file.push_entry("split.tensors.count", tensors);
    file
}

fn path_of(dir: &Path, number: u16) -> PathBuf {
    dir.join(format!("m-{number:05}-of-00003.gguf"))
}

/// A directory with the three parts of a model; `change` sees each before it is written.
fn three_parts(change: impl Fn(u16, &mut Raw)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for number in 1..=3 {
        let mut file = part(number, 3);
        change(number, &mut file);
        fs::write(path_of(dir.path(), number), file.bytes()).unwrap();
    }
    dir
}

/// The fault that opening through part `through` must find, also if it is said of one file.
fn fault(dir: &TempDir, through: u16) -> SplitFault {
    match GgufModel::open(&path_of(dir.path(), through)).expect_err("a bad set was accepted") {
        FormatError::Split(fault) => fault,
        FormatError::InFile { source, .. } => match *source {
            FormatError::Split(fault) => fault,
            error => panic!("{error:?}"),
        },
        error => panic!("{error:?}"),
    }
}

#[test]
fn any_part_opens_the_model() {
    let dir = three_parts(|_, _| {});
    for through in 1..=3 {
        let model = GgufModel::open(&path_of(dir.path(), through)).unwrap();
        assert_eq!(model.version(), 3);
        assert_eq!(model.metadata().str("general.architecture").unwrap(), Some("llama"));
        let store = model.store();
        let names: Vec<_> = store.tensors().iter().map(|t| (t.name.as_str(), t.file)).collect();
        assert_eq!(names, [("t1", 0), ("t2", 1), ("t3", 2)]);
        let paths: Vec<_> = store.files().map(|(path, _)| path.to_owned()).collect();
        assert_eq!(paths, [1, 2, 3].map(|n| path_of(dir.path(), n)));
        assert_eq!(store.file_len(), store.files().map(|(_, len)| len).sum::<u64>());
        for tensor in store.tensors() {
            assert_eq!(store.bytes(tensor), (0..32).collect::<Vec<u8>>());
        }
        store.verify_unchanged().unwrap();
    }
}

#[test]
fn parts_of_the_reference_writer_are_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    for through in 1..=3 {
        let path = dir.join(format!("reference-{through:05}-of-00003.gguf"));
        let model = GgufModel::open(&path).unwrap();
        assert_eq!(model.metadata().str("general.name").unwrap(), Some("reference"));
        let store = model.store();
        assert_eq!(store.tensors().len(), 5);
        for (name, place) in ["a", "b", "c", "d", "e"].into_iter().zip(0u8..) {
            let tensor = store.tensor(name).unwrap();
            assert_eq!(tensor.shape, [3, 2]);
            let numbers = (0..6).map(|i| f32::from(10 * place + i));
            let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
            assert_eq!(store.bytes(tensor), bytes);
        }
    }
}

#[test]
fn a_whole_file_opens_whatever_its_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["m.gguf", "m-00001-of-00001.gguf", "blob"] {
        let path = dir.path().join(name);
        let mut file = Raw::valid();
        file.push_u16("split.count", 1);
        fs::write(&path, file.bytes()).unwrap();
        let model = GgufModel::open(&path).unwrap();
        assert_eq!((model.store().files().len(), model.store().tensors().len()), (1, 2));
        let (metadata, store) = model.into_parts();
        assert!(metadata.str("general.architecture").unwrap().is_some());
        assert_eq!(store.bytes(store.tensor("b").unwrap()).len(), 36);
        assert!(store.tensor("c").is_none());
        GgufFile::open(&path).unwrap();
    }
}

#[test]
fn a_first_part_without_tensors_is_accepted() {
    let dir = three_parts(|number, file| {
        if number == 1 {
            file.tensors.clear();
            file.data_len = Some(0);
        }
        let total = [5u32.to_le_bytes(), 2i32.to_le_bytes()].concat();
        file.entries.pop();
        file.push_entry("split.tensors.count", total);
    });
    assert_eq!(GgufModel::open(&path_of(dir.path(), 2)).unwrap().store().tensors().len(), 2);
}

#[test]
fn missing_part() {
    let dir = three_parts(|_, _| {});
    fs::remove_file(path_of(dir.path(), 2)).unwrap();
    for through in [1, 3] {
        let fault = fault(&dir, through);
        let path = path_of(dir.path(), 2);
        assert!(fault.to_string().contains(&path.display().to_string()), "{fault}");
        assert_eq!(fault, SplitFault::Missing { count: 3, paths: vec![path] });
    }
}

#[test]
fn all_missing_parts_are_named() {
    let dir = three_parts(|_, _| {});
    for number in [1, 3] {
        fs::remove_file(path_of(dir.path(), number)).unwrap();
    }
    let fault = fault(&dir, 2);
    let paths = [1, 3].map(|number| path_of(dir.path(), number));
    let text = fault.to_string();
    assert!(text.starts_with("2 of the 3 parts are missing"), "{text}");
    for path in &paths {
        assert!(text.contains(&path.display().to_string()), "{text}");
    }
    assert_eq!(fault, SplitFault::Missing { count: 3, paths: paths.to_vec() });
}

#[test]
fn names_in_capitals_are_names() {
    let dir = three_parts(|_, _| {});
    let capital = |number: u16| dir.path().join(format!("M-{number:05}-OF-00003.GGUF"));
    for number in 1..=3 {
        fs::rename(path_of(dir.path(), number), capital(number)).unwrap();
    }
    for through in 1..=3 {
        assert_eq!(GgufModel::open(&capital(through)).unwrap().store().tensors().len(), 3);
    }
}

#[test]
fn truncated_part_names_its_file() {
    let dir = three_parts(|number, file| file.data_len = Some(if number == 3 { 31 } else { 32 }));
    let error = GgufModel::open(&path_of(dir.path(), 1)).unwrap_err();
    let FormatError::InFile { path, source } = &error else { panic!("{error:?}") };
    assert_eq!(*path, path_of(dir.path(), 3));
    assert!(matches!(**source, FormatError::Truncated { .. }), "{source:?}");
    assert!(error.to_string().contains("m-00003-of-00003.gguf: truncated"), "{error}");
}

#[test]
fn unreadable_part_names_its_file() {
    let dir = three_parts(|_, _| {});
    fs::remove_file(path_of(dir.path(), 2)).unwrap();
    fs::create_dir(path_of(dir.path(), 2)).unwrap();
    let error = GgufModel::open(&path_of(dir.path(), 1)).unwrap_err();
    assert!(error.to_string().contains("m-00002-of-00003.gguf: not a regular file"), "{error}");
}

#[test]
fn parts_in_the_wrong_order() {
    let dir = three_parts(|_, _| {});
    let (two, three) = (path_of(dir.path(), 2), path_of(dir.path(), 3));
    fs::rename(&two, dir.path().join("aside")).unwrap();
    fs::rename(&three, &two).unwrap();
    fs::rename(dir.path().join("aside"), &three).unwrap();
    let found = SplitFault::Misnamed { named: 2, named_count: 3, part: 3, count: 3 };
    assert_eq!(fault(&dir, 1), found);
    assert_eq!(fault(&dir, 2), found);
}

#[test]
fn part_under_a_name_of_another_count() {
    let dir = three_parts(|number, file| {
        if number == 2 {
            *file = part(2, 4);
        }
    });
    let found = SplitFault::Misnamed { named: 2, named_count: 3, part: 2, count: 4 };
    assert_eq!(fault(&dir, 1), found);
    assert_eq!(fault(&dir, 2), found);
}

#[test]
fn part_under_a_name_without_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, part(2, 3).bytes()).unwrap();
    let error = GgufModel::open(&path).unwrap_err();
    assert!(matches!(error, FormatError::Split(SplitFault::Unnamed { part: 2, count: 3 })));
    assert!(error.to_string().contains("`-00002-of-00003.gguf`"), "{error}");
}

#[test]
fn a_whole_file_among_the_parts() {
    let dir = three_parts(|number, file| {
        if number == 2 {
            *file = Raw::valid();
        }
    });
    assert_eq!(fault(&dir, 1), SplitFault::NotAPart { named: 2, named_count: 3 });
}

#[test]
fn number_beyond_the_count() {
    let dir = three_parts(|number, file| {
        if number == 3 {
            file.entries.clear();
            file.push_u16("split.no", 3);
            file.push_u16("split.count", 3);
        }
    });
    for through in [1, 3] {
        assert_eq!(fault(&dir, through), SplitFault::Numbering { part: 4, count: 3 });
    }
}

#[test]
fn part_without_a_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = path_of(dir.path(), 1);
    let mut file = Raw::valid();
    file.push_u16("split.count", 3);
    fs::write(&path, file.bytes()).unwrap();
    let error = GgufModel::open(&path).unwrap_err();
    assert!(
        matches!(&error, FormatError::BadMetadata { key, .. } if key == "split.no"),
        "{error:?}"
    );
}

#[test]
fn too_many_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-05000.gguf");
    fs::write(&path, part(1, 5000).bytes()).unwrap();
    let error = GgufModel::open(&path).unwrap_err();
    assert!(
        matches!(error, FormatError::TooLarge { limit: Limit::Files, value: 5000, .. }),
        "{error:?}"
    );
}

#[test]
fn count_of_the_wrong_type() {
    let dir = tempfile::tempdir().unwrap();
    let path = path_of(dir.path(), 1);
    let text = [8u32.to_le_bytes().to_vec(), string(b"3")].concat();
    fs::write(&path, Raw::with_value("split.count", text).bytes()).unwrap();
    assert!(matches!(GgufModel::open(&path).unwrap_err(), FormatError::BadMetadata { .. }));
}

#[test]
fn parts_of_models_with_other_totals() {
    let dir = three_parts(|number, file| {
        if number == 3 {
            file.entries.pop();
            let total = [5u32.to_le_bytes(), 9i32.to_le_bytes()].concat();
            file.push_entry("split.tensors.count", total);
        }
    });
    let (first, second) = ("3".to_owned(), "9".to_owned());
    let key = "split.tensors.count";
    assert_eq!(fault(&dir, 1), SplitFault::DifferentModels { key, first, second, part: 3 });
}

#[test]
fn parts_of_models_with_other_names() {
    let dir = three_parts(|number, file| {
        if number == 2 {
            let qwen = [8u32.to_le_bytes().to_vec(), string(b"qwen2")].concat();
            file.push_entry("general.architecture", qwen);
        }
    });
    for through in [1, 2, 3] {
        let fault = fault(&dir, through);
        assert!(fault.to_string().contains("`llama` in one part and `qwen2` in part 2"), "{fault}");
    }
}

#[test]
fn fewer_tensors_than_the_model_has() {
    let dir = three_parts(|number, file| {
        if number == 2 {
            file.tensors.clear();
        }
    });
    assert_eq!(fault(&dir, 1), SplitFault::TensorCount { count: 3, expected: 3, found: 2 });
}

#[test]
fn tensor_in_two_parts() {
    let dir = three_parts(|number, file| {
        if number == 3 {
            file.tensors[0].name = b"t1".to_vec();
        }
    });
    let error = GgufModel::open(&path_of(dir.path(), 2)).unwrap_err();
    match &error {
        FormatError::TensorInTwoFiles { tensor, first, second } => {
            assert_eq!(tensor, "t1");
            assert_eq!(*first, path_of(dir.path(), 1));
            assert_eq!(*second, path_of(dir.path(), 3));
        }
        error => panic!("{error:?}"),
    }
}

#[test]
fn parts_joined_with_cat() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("joined.gguf");
    let first = part(1, 2).bytes();
    fs::write(&path, [first.clone(), part(2, 2).bytes()].concat()).unwrap();
    let error = GgufModel::open(&path).unwrap_err();
    let at = first.len() as u64;
    assert!(
        matches!(&error, FormatError::Split(SplitFault::Concatenated { at: a, .. }) if *a == at),
        "{error:?}"
    );
    assert!(error.to_string().contains("joined with `cat`"), "{error}");
    assert!(matches!(GgufFile::open(&path).unwrap_err(), FormatError::Split(_)));
}

#[test]
fn parts_joined_with_cat_behind_padding_or_a_part_without_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("joined.gguf");
    let second = part(2, 2).bytes();
    let mut unaligned = part(1, 2);
    unaligned.tensors[0].shape = vec![7];
    // 28 bytes of data, 4 of padding.
    fs::write(&path, [unaligned.bytes(), second.clone()].concat()).unwrap();
    assert!(matches!(GgufModel::open(&path).unwrap_err(), FormatError::Split(_)));
    // The same without padding.
    unaligned.data_len = Some(28);
    fs::write(&path, [unaligned.bytes(), second.clone()].concat()).unwrap();
    assert!(matches!(GgufModel::open(&path).unwrap_err(), FormatError::Split(_)));
    let mut bare = part(1, 2);
    bare.tensors.clear();
    for first in [Raw { data_len: None, ..bare.clone() }.bytes(), bare.bytes_without_padding()] {
        fs::write(&path, [first, second.clone()].concat()).unwrap();
        assert!(matches!(
            GgufModel::open(&path).unwrap_err(),
            FormatError::Split(SplitFault::Concatenated { .. })
        ));
    }
}

#[test]
fn a_part_is_no_whole_file() {
    let dir = three_parts(|_, _| {});
    let error = GgufFile::open(&path_of(dir.path(), 3)).unwrap_err();
    assert!(matches!(error, FormatError::Split(SplitFault::IsPart { part: 3, count: 3 })));
    assert!(error.to_string().starts_with("part 3 of 3 of a split model"), "{error}");
}

#[test]
fn a_part_that_changes_is_noticed() {
    let dir = three_parts(|_, _| {});
    let model = GgufModel::open(&path_of(dir.path(), 1)).unwrap();
    let third = fs::OpenOptions::new().append(true).open(path_of(dir.path(), 3)).unwrap();
    std::io::Write::write_all(&mut &third, b"more").unwrap();
    match model.store().verify_unchanged().unwrap_err() {
        FormatError::Changed { path, .. } => assert_eq!(path, path_of(dir.path(), 3)),
        error => panic!("{error:?}"),
    }
}

#[test]
#[should_panic(expected = "tensor `t3` is not of this model")]
fn a_tensor_of_another_model_is_a_contract_violation() {
    let dir = three_parts(|_, _| {});
    let split = GgufModel::open(&path_of(dir.path(), 1)).unwrap();
    let path = dir.path().join("whole.gguf");
    fs::write(&path, raw::valid()).unwrap();
    let whole = GgufModel::open(&path).unwrap();
    whole.store().bytes(split.store().tensor("t3").unwrap());
}
