//! From a model argument to a model on the CPU.

use crate::interrupt::Interrupt;
use crate::output::note;
use anyhow::{Context, bail, ensure};
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tidekv::model::RopeScaling;
use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig};
use tidekv_fetch::{ModelRef, Progress, Pulled, Sources, Store};
use tidekv_format::NumberedName;

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
    Store::new(tidekv_fetch::cache_dir(), sources)
}

/// Says on stderr how far a download is.
struct Download<'a> {
    bar: indicatif::ProgressBar,
    interrupt: &'a Interrupt,
}

impl Progress for Download<'_> {
    fn message(&mut self, text: &str) {
        self.bar.suspend(|| note(&format!("{text}\n")));
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
    /// By length and modification time.
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

/// Path of a model, fetched if absent. A directory that has no safetensors stands for
/// the GGUF model in it.
///
/// # Errors
/// What was tried, source by source; a directory of several GGUF models.
pub fn path(name: &OsStr, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let path = pull(name, Check::Stamp, interrupt)?.path;
    let mut models = gguf_models(&path)?;
    match models.len() {
        0 => Ok(path),
        1 => {
            let only = models.remove(0);
            note(&format!("the model is {}\n", only.display()));
            Ok(only)
        }
        n => {
            let names: Vec<_> =
                models.iter().take(10).map(|model| model.display().to_string()).collect();
            let more = if n > names.len() {
                format!(" and {} more", n - names.len())
            } else {
                String::new()
            };
            let (path, names) = (path.display(), names.join(", "));
            bail!("{path} holds {n} GGUF models; name one of them: {names}{more}")
        }
    }
}

/// The GGUF models of a directory without safetensors, in order, of a split one its
/// first part; none of anything else.
fn gguf_models(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let unreadable = || path.display().to_string();
    let mut models = Vec::new();
    for entry in path.read_dir().with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?.path();
        let ends_in =
            |ending| entry.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
        if ends_in("safetensors") {
            return Ok(Vec::new());
        }
        let later_part = NumberedName::of(&entry, ".gguf").is_some_and(|part| part.number > 1);
        if ends_in("gguf") && !later_part {
            models.push(entry);
        }
    }
    models.sort();
    Ok(models)
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
