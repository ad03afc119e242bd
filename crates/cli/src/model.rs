//! From a model argument to a model on the CPU.

use crate::flags::CpuFlags;
use crate::interrupt::Interrupt;
use crate::output::note;
use anyhow::Context;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tidekv::model::RopeScaling;
use tidekv::{Engine, Model};
use tidekv_cpu::Cpu;
use tidekv_fetch::{ModelRef, Progress, Pulled};

/// Help text of every model argument.
pub const MODEL_HELP: &str = "A GGUF file (any part of a split one), a Hugging Face directory, a known \
                              alias (smollm2-135m, qwen2.5-coder-0.5b, gemma-3-270m) or \
                              hf:org/name:file; fetched if absent";

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

/// Makes a model available on this machine.
///
/// # Errors
/// What was tried, source by source.
pub fn pull(text: &str, interrupt: &Interrupt) -> anyhow::Result<Pulled> {
    let reference = ModelRef::parse(text)?;
    let bar = match std::io::stderr().is_terminal() {
        true => indicatif::ProgressBar::new(0),
        false => indicatif::ProgressBar::hidden(),
    };
    let style = "{bytes} of {total_bytes} {bar:30} {bytes_per_sec} {eta} left";
    bar.set_style(indicatif::ProgressStyle::with_template(style)?);
    let pulled = tidekv_fetch::pull(&reference, &mut Download { bar: bar.clone(), interrupt });
    bar.finish_and_clear();
    Ok(pulled?)
}

/// Path of a model, fetched if absent.
///
/// # Errors
/// What was tried, source by source.
pub fn path(text: &str, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    Ok(pull(text, interrupt)?.path)
}

/// Opens a model; reads its header only.
///
/// # Errors
/// The model cannot be fetched, is damaged, or is not supported.
pub fn open(text: &str, rope: Option<RopeScaling>, interrupt: &Interrupt) -> anyhow::Result<Model> {
    open_path(&path(text, interrupt)?, rope)
}

fn open_path(path: &Path, rope: Option<RopeScaling>) -> anyhow::Result<Model> {
    Model::open(path, rope).with_context(|| path.display().to_string())
}

/// Opens a model and puts it on the CPU.
///
/// # Errors
/// As [`open`], and what the CPU cannot work with.
pub fn load(
    text: &str,
    rope: Option<RopeScaling>,
    cpu: CpuFlags,
    interrupt: &Interrupt,
) -> anyhow::Result<Engine<Cpu>> {
    let backend = Cpu::new(cpu.config())?;
    let path = path(text, interrupt)?;
    let model = open_path(&path, rope)?;
    Engine::new(model, backend).with_context(|| path.display().to_string())
}
