//! A model file that gets shorter while it is mapped, with and without the handler. The reading is
//! done by a child process, because it does not survive.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod raw;

use std::fs::{self, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tidekv_format::{FormatError, GgufFile, TRUNCATED_MESSAGE, exit_when_truncated};

/// Name of the variable that makes the next test the reader, and its values.
const CHILD: &str = "TIDEKV_FORMAT_TEST_CHILD";
const WITH_HANDLER: &str = "with handler";
const WITHOUT_HANDLER: &str = "without handler";
const SIGNALLED: &str = "with handler, signalled";
/// The file to read.
const FILE: &str = "TIDEKV_FORMAT_TEST_FILE";

/// SIGBUS on Linux, signal(7).
const SIGBUS: i32 = 7;

/// Reads a tensor of a file that has just been truncated, if `read_in_child` asks for it; else there
/// is nothing to do.
#[test]
fn child_that_reads() {
    let Some(mode) = std::env::var_os(CHILD) else { return };
    if mode != WITHOUT_HANDLER {
        exit_when_truncated().unwrap();
    }
    if mode == SIGNALLED {
        let own = std::process::id().to_string();
        Command::new("kill").args(["-BUS", &own]).status().unwrap();
        // Any thread may get it, in its own time.
        std::thread::sleep(Duration::from_secs(10));
    }
    let path = std::env::var_os(FILE).unwrap();
    let file = GgufFile::open(Path::new(&path)).unwrap();
    let bytes = file.bytes(file.tensor("b").unwrap());
    assert_eq!(bytes.len(), 36);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert!(matches!(file.verify_unchanged(), Err(FormatError::Changed { now: 0, .. })));
    // The page has no byte of the file any more.
    std::hint::black_box(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());
}

fn read_in_child(mode: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shrinking.gguf");
    fs::write(&path, raw::valid()).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_reads", "--nocapture"])
        .env(CHILD, mode)
        .env(FILE, &path)
        .output()
        .unwrap()
}

#[test]
fn a_truncated_map_ends_with_a_sentence_and_exit_code_1() {
    let output = read_in_child(WITH_HANDLER);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{:?}: {said}", output.status);
    assert!(said.contains(TRUNCATED_MESSAGE), "{said}");
}

#[test]
fn without_the_handler_and_for_other_reasons_it_is_the_signal() {
    for mode in [WITHOUT_HANDLER, SIGNALLED] {
        let output = read_in_child(mode);
        assert_eq!(output.status.signal(), Some(SIGBUS), "{mode}: {:?}", output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains(TRUNCATED_MESSAGE), "{mode}: {said}");
    }
}
