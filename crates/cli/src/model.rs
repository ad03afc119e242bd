//! From a model argument to a model on the CPU.

use crate::interrupt::Interrupt;
use crate::output::{counted, note};
use anyhow::{Context, bail, ensure};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tidekv::model::RopeScaling;
use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig};
use tidekv_fetch::{ModelRef, Progress, Pulled, Sources, Store};
use tidekv_format::{NumberedName, is_gguf_model_name, listed};

/// Help text of every model argument.
pub const MODEL_HELP: &str = "A GGUF file (any part of a split one) or a directory of one, a Hugging Face directory, a known \
                              alias (smollm2-135m, qwen2.5-coder-0.5b, gemma-3-270m) or \
                              hf:org/name[@revision][:file]; fetched if absent";

/// Whether `--offline` was given. A setting of the process, as the environment variables are
/// that say the same.
static OFFLINE: AtomicBool = AtomicBool::new(false);

/// From now on models are looked for on this machine only.
pub fn go_offline() {
    OFFLINE.store(true, Ordering::Relaxed);
}

/// The cache and what fills it.
fn store() -> Store {
    let sources = match OFFLINE.load(Ordering::Relaxed) {
        true => Sources::offline(),
        false => Sources::of_this_process(),
    };
    Store::in_cache_dir(sources)
}

/// Says on stderr how far a download is.
struct Download<'a> {
    bar: indicatif::ProgressBar,
    interrupt: &'a Interrupt,
}

impl Progress for Download<'_> {
    fn message(&mut self, text: &str) {
        self.bar.suspend(|| note(text));
    }

    fn bytes(&mut self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    fn cancelled(&self) -> bool {
        self.interrupt.is_set()
    }
}

/// How a model in the cache is checked before it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// By its length and times.
    Stamp,
    /// By its SHA-256.
    Digest,
}

/// Makes a model available on this machine.
///
/// # Errors
/// What was tried, source by source.
pub fn pull(name: &OsStr, check: Check, interrupt: &Interrupt) -> anyhow::Result<Pulled> {
    // Aliases and names on the hub are text; anything else can only be a path.
    let reference = match name.to_str() {
        Some(text) => ModelRef::parse(text)?,
        None => ModelRef::Local(PathBuf::from(name)),
    };
    if let ModelRef::Local(path) = &reference {
        refuse_streams(path)?;
    }
    let bar = match std::io::stderr().is_terminal() {
        true => indicatif::ProgressBar::new(0),
        false => indicatif::ProgressBar::hidden(),
    };
    let style = "{bytes} of {total_bytes} {bar:30} {bytes_per_sec} {eta} left";
    bar.set_style(indicatif::ProgressStyle::with_template(style)?);
    let mut download = Download { bar: bar.clone(), interrupt };
    let pulled = match check {
        Check::Stamp => store().pull(&reference, &mut download),
        Check::Digest => store().pull_verified(&reference, &mut download),
    };
    bar.finish_and_clear();
    Ok(pulled?)
}

/// Opening a named pipe waits for somebody who writes, and no model can be mapped from one.
fn refuse_streams(path: &Path) -> anyhow::Result<()> {
    let usable = path.metadata().map_or(true, |found| found.is_file() || found.is_dir());
    ensure!(usable, "{}: not a regular file", path.display());
    Ok(())
}

/// Path of a model, fetched if absent. A directory with one GGUF model and no other stands for
/// that model.
///
/// # Errors
/// What was tried, source by source; a directory of several models, or of GGUF files that
/// are none.
pub fn path(name: &OsStr, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let path = pull(name, Check::Stamp, interrupt)?.path;
    if !path.is_dir() {
        return Ok(path);
    }
    let Models { gguf, passed_over, unfinished, weights, empty } = Models::of(&path)?;
    let directory = path.display();
    match (gguf.as_slice(), &weights) {
        ([], None) if empty => bail!(
            "{directory} is empty; name a GGUF file, or a directory with one or with a Hugging Face \
             model (config.json and model.safetensors)"
        ),
        ([], None) if !(passed_over.is_empty() && unfinished.is_empty()) => {
            let reasons = [(UNFINISHED, unfinished), (PASSED_OVER, passed_over)];
            let reasons = reasons.iter().filter(|(_, paths)| !paths.is_empty());
            let reasons = reasons.map(|(reason, paths)| format!("; {reason}: {}", listed(paths)));
            bail!("{directory} holds no model{}", reasons.collect::<String>())
        }
        ([], _) => Ok(path),
        ([only], None) => {
            note(&format!("the model is {}", only.display()));
            Ok(only.clone())
        }
        (several, None) => {
            let n = several.len();
            bail!("{directory} holds {n} GGUF models; name one of them: {}", listed(several))
        }
        (some, Some(weights)) => bail!(
            "{directory} holds a Hugging Face model and {}; name one of them: {}, {}",
            counted(some.len(), "GGUF model"),
            weights.display(),
            listed(some)
        ),
    }
}

const UNFINISHED: &str = "these are of downloads that have not ended, to be resumed or repeated";
const PASSED_OVER: &str = "not taken for one, as hidden, empty, no regular file, later part of a \
                           split model, or by its name a projector (mmproj) or an importance matrix \
                           (imatrix)";

/// What programs put behind the name of a file that they have not downloaded whole.
const UNFINISHED_ENDINGS: [&str; 6] =
    [".part", ".partial", ".incomplete", ".download", ".crdownload", ".aria2"];

/// What a directory holds.
struct Models {
    /// GGUF models, in order; of a split one its first part.
    gguf: Vec<PathBuf>,
    /// Other things whose names end as those of GGUF files, in order.
    passed_over: Vec<PathBuf>,
    /// By their names, parts of downloads, in order.
    unfinished: Vec<PathBuf>,
    /// The weights of a Hugging Face model, or their index.
    weights: Option<PathBuf>,
    /// Whether it holds nothing at all.
    empty: bool,
}

impl Models {
    fn of(directory: &Path) -> anyhow::Result<Models> {
        let unreadable = || directory.display().to_string();
        let (mut gguf, mut passed_over, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
        let mut empty = true;
        for entry in directory.read_dir().with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?.path();
            empty = false;
            let name = entry.file_name().unwrap_or_default().to_string_lossy();
            let lower = name.to_ascii_lowercase();
            let later_part = NumberedName::of(&entry, ".gguf").is_some_and(|part| part.number > 1);
            if is_gguf_model_name(&name) && !later_part && has_bytes(&entry) {
                gguf.push(entry);
            } else if lower.ends_with(".gguf") {
                passed_over.push(entry);
            } else if UNFINISHED_ENDINGS.iter().any(|ending| lower.ends_with(ending)) {
                unfinished.push(entry);
            }
        }
        for paths in [&mut gguf, &mut passed_over, &mut unfinished] {
            paths.sort();
        }
        let weights = ["model.safetensors", "model.safetensors.index.json"];
        let weights =
            weights.map(|name| directory.join(name)).into_iter().find(|path| has_bytes(path));
        Ok(Models { gguf, passed_over, unfinished, weights, empty })
    }
}

/// Whether a path leads to a regular file that is not empty.
fn has_bytes(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// Opens a model; reads its header only.
///
/// # Errors
/// The model cannot be fetched, is damaged, or is not supported.
pub fn open(
    name: &OsStr,
    rope: Option<RopeScaling>,
    interrupt: &Interrupt,
) -> anyhow::Result<Model> {
    open_path(&path(name, interrupt)?, rope)
}

fn open_path(path: &Path, rope: Option<RopeScaling>) -> anyhow::Result<Model> {
    Model::open(path, rope).with_context(|| path.display().to_string())
}

/// Opens a model and puts it on the CPU.
///
/// # Errors
/// As [`open`], and what the CPU cannot work with.
pub fn load(
    name: &OsStr,
    rope: Option<RopeScaling>,
    cpu: CpuConfig,
    interrupt: &Interrupt,
) -> anyhow::Result<Engine<Cpu>> {
    let backend = Cpu::new(cpu)?;
    let path = path(name, interrupt)?;
    let model = open_path(&path, rope)?;
    Engine::new(model, backend).with_context(|| path.display().to_string())
}
