use super::*;
use crate::progress::Silent;

/// SHA-256 of "abc": FIPS 180-4, appendix example.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

#[test]
fn the_digest_is_sha256() {
    let mut digest = Digesting::new(io::sink());
    digest.write_all(b"abc").unwrap();
    assert_eq!(digest.finish().1, ABC);
}

#[test]
fn tidekv_home_comes_first_then_the_platform() {
    let with = |pairs: &'static [(&'static str, &'static str)]| {
        cache_dir_from(move |name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    };
    let is = |pairs, place: &str| assert_eq!(with(pairs).unwrap(), Path::new(place), "{pairs:?}");
    is(&[("TIDEKV_HOME", "/t"), ("HOME", "/h")], "/t");
    is(&[("TIDEKV_HOME", "t")], "t");
    if cfg!(target_os = "linux") {
        is(&[("HOME", "/h"), ("TIDEKV_HOME", "")], "/h/.cache/tidekv");
        is(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/tidekv");
        is(&[("HOME", ""), ("XDG_CACHE_HOME", "/x")], "/x/tidekv");
        is(&[("HOME", "/h"), ("XDG_CACHE_HOME", "x")], "/h/.cache/tidekv");
    }
    // Neither the working directory nor one that others write to.
    const EMPTY: &[(&str, &str)] =
        &[("TIDEKV_HOME", ""), ("XDG_CACHE_HOME", ""), ("HOME", ""), ("LOCALAPPDATA", "")];
    for pairs in [&[], EMPTY, &[("HOME", "h")], &[("HOME", ".")]] {
        let error = with(pairs).unwrap_err().to_string();
        assert!(error.contains("set TIDEKV_HOME to a directory of your own"), "{error}");
    }
}

#[test]
fn trust_needs_the_length_and_a_stamp_or_the_digest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let trusted = |n_bytes, look| {
        let published = Published { n_bytes: Some(n_bytes), sha256: ABC };
        trust(&path, published, look, &mut Silent).unwrap()
    };
    let look = |n_bytes| trusted(n_bytes, Look::Stamp);
    assert_eq!(look(3), Trust::Absent);
    fs::write(&path, "abc").unwrap();
    assert_eq!(look(4), Trust::Differs("it has 3 bytes, expected 4".to_owned()));
    date_back(&path).unwrap();
    assert_eq!(look(3), Trust::Digest);
    assert_eq!(look(3), Trust::Stamp, "the first look leaves a stamp");
    assert_eq!(trusted(3, Look::Bytes), Trust::Digest, "a closer look reads the file");
    fs::write(beside(&path, "sha256"), "nonsense").unwrap();
    assert_eq!(look(3), Trust::Digest, "a malformed stamp counts as none");
    fs::remove_file(beside(&path, "sha256")).unwrap();
    fs::write(&path, "abd").unwrap();
    assert!(matches!(look(3), Trust::Differs(how) if how.contains(ABC)));
}

#[test]
fn a_change_behind_the_stamp_shows_by_its_time_or_under_a_closer_look() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, "abc").unwrap();
    let look =
        |look| trust(&path, Published { n_bytes: None, sha256: ABC }, look, &mut Silent).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let set_time = |time| File::options().append(true).open(&path).unwrap().set_modified(time);
    set_time(then).unwrap();
    assert_eq!((look(Look::Stamp), look(Look::Stamp)), (Trust::Digest, Trust::Stamp));
    // Another time and the same bytes: read once, then stamped anew. An older
    // time is as suspect as a newer one.
    for seconds in [1, -2i64] {
        let time = match seconds {
            0.. => then + Duration::from_secs(seconds.unsigned_abs()),
            _ => then - Duration::from_secs(seconds.unsigned_abs()),
        };
        set_time(time).unwrap();
        assert_eq!((look(Look::Stamp), look(Look::Stamp)), (Trust::Digest, Trust::Stamp));
    }
    let stamped = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "abd").unwrap();
    assert!(matches!(look(Look::Stamp), Trust::Differs(_)));
    // The same length and times, as a failing disk leaves them.
    set_time(stamped).unwrap();
    write_stamp(&path, ABC, Some(&fs::metadata(&path).unwrap())).unwrap();
    assert_eq!(look(Look::Stamp), Trust::Stamp);
    assert!(matches!(look(Look::Bytes), Trust::Differs(_)));
}

/// What a file published as `ABC` is by its stamp.
fn by_stamp(path: &Path) -> Trust {
    let published = Published { n_bytes: Some(3), sha256: ABC };
    trust(path, published, Look::Stamp, &mut Silent).unwrap()
}

#[cfg(unix)]
#[test]
fn a_change_shows_though_its_time_was_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let look = || by_stamp(&path);
    let write = |text| {
        // So that the clock of the file system, which ticks every few milliseconds, moves on.
        std::thread::sleep(Duration::from_millis(50));
        fs::write(&path, text).unwrap();
        let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000_000);
        File::options().append(true).open(&path).unwrap().set_modified(before_1970).unwrap();
    };
    write("abc");
    assert_eq!((look(), look()), (Trust::Digest, Trust::Stamp));
    write("abd");
    assert!(matches!(look(), Trust::Differs(_)));
    write("abc");
    assert_eq!((look(), look()), (Trust::Digest, Trust::Stamp));

    // A stamp that does not tell of the last change costs one reading.
    let found = fs::metadata(&path).unwrap();
    let stamp = format!("{ABC}  m.gguf\n");
    replace(&stamp_of(&path), &stamp, found.modified().ok()).unwrap();
    assert_eq!((look(), look()), (Trust::Digest, Trust::Stamp));
    assert!(fs::read_to_string(stamp_of(&path)).unwrap().starts_with(&stamp));
}

#[test]
fn a_change_within_one_tick_of_the_clock_shows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let look = || by_stamp(&path);
    fs::write(&path, "abc").unwrap();
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!((look(), look()), (Trust::Digest, Trust::Digest));
    // As a clock that has not moved on leaves it.
    fs::write(&path, "abd").unwrap();
    File::options().append(true).open(&path).unwrap().set_modified(written).unwrap();
    assert!(matches!(look(), Trust::Differs(_)));
    // A time to come will be that of a change.
    fs::write(&path, "abc").unwrap();
    let later = SystemTime::now() + Duration::from_secs(60);
    File::options().append(true).open(&path).unwrap().set_modified(later).unwrap();
    assert_eq!((look(), look()), (Trust::Digest, Trust::Digest));

    // What is published needs no second reading, and yet shows a change at once.
    let scratch = dir.path().join("scratch");
    fs::write(&scratch, "abc").unwrap();
    publish(&Finished { path: scratch, n_bytes: 3, sha256: ABC.to_owned() }, &path).unwrap();
    assert_eq!(look(), Trust::Stamp);
    let published = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, "abd").unwrap();
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(changed > published);
    assert!(matches!(look(), Trust::Differs(_)));
}

#[test]
fn publishing_replaces_the_file_and_its_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("deep").join("m.gguf");
    for text in ["old", "abc"] {
        let path = dir.path().join("scratch");
        fs::write(&path, text).unwrap();
        let sha256 = ABC.to_owned();
        let n_bytes = 3;
        publish(&Finished { path, n_bytes, sha256 }, &place).unwrap();
    }
    assert_eq!(fs::read_to_string(&place).unwrap(), "abc");
    assert_eq!(read_stamp(&place).as_deref(), Some(ABC));
    let stamp = fs::read_to_string(beside(&place, "sha256")).unwrap();
    let (line, rest) = stamp.split_once('\n').unwrap();
    assert_eq!(line, format!("{ABC}  m.gguf"));
    // All else is a comment to `sha256sum`.
    assert!(rest.lines().all(|line| line.starts_with('#')), "{rest}");
    assert!(!dir.path().join("scratch").exists());
}

#[test]
fn cancelling_ends_a_copy() {
    struct Stop;
    impl Progress for Stop {
        fn message(&mut self, _: &str) {}
        fn bytes(&mut self, _: u64, _: u64) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let copied = copy(&mut io::repeat(1), &mut io::sink(), &mut Stop, &mut |_, _| {});
    assert!(matches!(copied, Err(CopyError::Cancelled)));
}
