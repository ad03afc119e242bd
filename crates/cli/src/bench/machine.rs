//! `tidekv bench machine`: the ceilings, kept for `tidekv plan`.

use super::{giga, percent, row, unless_interrupted};
use crate::exit;
use crate::files::{check_writable, write_file};
use crate::flags::{CpuFlags, Precision};
use crate::interrupt::Interrupt;
use crate::output::{JsonTarget, Printer, counted, excerpt, note, table};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use tidekv::Element;
use tidekv::memory::ChunkRates;
use tidekv::schedule::Work;
use tidekv_cpu::bench::{self, Heads, WeightType};
use tidekv_cpu::{Cpu, CpuConfig, Isa, Pack};

/// Measure what this machine reaches at most, and keep it for `tidekv plan`
///
/// Multiply-adds and 16-bit products in registers for every instruction set there is, memory read
/// beyond the caches, and the two kernels that prefill spends its time in. Takes about half a minute.
/// The result is kept in the cache directory; `tidekv plan` then says how long a prompt takes to read,
/// and `--chunk auto` chooses for this machine. They are of one number of threads and one instruction
/// set: measure with the --threads and --isa that you run with.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the figures as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

/// What a machine reaches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub cpu: String,
    /// The instruction set that the rates below are of.
    pub isa: String,
    /// Threads of every figure that does not say one.
    pub threads: usize,
    /// Ceilings of every instruction set.
    pub tiers: Vec<Ceilings>,
    /// Bytes read from memory per second by one thread, and by all.
    pub read_bytes_per_s: [f64; 2],
    /// Floating-point operations per second of prefill's matrix products, packing included.
    pub product_flops: f64,
    /// Weights that are brought into the form which those products take, per second.
    pub packed_weights_per_s: f64,
    /// Floating-point operations per second of causal attention, for heads of 64 and of 128.
    pub attention_flops: [f64; 2],
}

/// Ceilings of one instruction set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Its name.
    pub isa: String,
    /// f32 multiply-adds, in floating-point operations per second: one thread, and all.
    pub f32_flops: [f64; 2],
    /// Sums of products of 16-bit integers, in operations per second: one thread, and all.
    pub i16_ops: [f64; 2],
}

/// What was measured earlier.
pub enum Kept {
    /// Nothing that can be used.
    Nothing,
    /// Something else, and what.
    Other(String),
    /// This processor with these settings.
    This(Machine),
}

impl Kept {
    /// The figures, if they are of this processor with these settings.
    pub fn machine(&self) -> Option<&Machine> {
        match self {
            Kept::This(machine) => Some(machine),
            Kept::Nothing | Kept::Other(_) => None,
        }
    }

    /// That something else was measured, and how to measure this.
    pub fn said(&self) -> Option<String> {
        match self {
            Kept::Other(whose) => Some(format!(
                "the rates that were measured are of {whose}; `tidekv bench machine`, with the same \
                 --threads and --isa as here, measures again"
            )),
            Kept::Nothing | Kept::This(_) => None,
        }
    }

    /// What decides how large chunks should be.
    pub fn chunk_rates(&self, pack: Pack) -> Option<ChunkRates> {
        let Machine { product_flops, packed_weights_per_s, .. } = *self.machine()?;
        let packed_weights = match pack {
            Pack::Slab => packed_weights_per_s,
            Pack::Layer => f64::INFINITY,
        };
        Some(ChunkRates { product_flops, packed_weights })
    }
}

/// Rows of activations and queries of the measured kernels.
const ROWS: usize = 2048;

impl Machine {
    /// Measures.
    fn measure(config: CpuConfig, interrupt: &Interrupt) -> anyhow::Result<Machine> {
        let all = Cpu::new(config)?;
        let one = Cpu::new(CpuConfig { threads: Some(NonZeroUsize::MIN), ..config })?;
        let mut tiers = Vec::new();
        for isa in Isa::available() {
            unless_interrupted(interrupt)?;
            let [one, all] = [&one, &all].map(|cpu| bench::peaks(cpu, isa));
            tiers.push(Ceilings {
                isa: isa.name().to_owned(),
                f32_flops: [one.f32_flops, all.f32_flops],
                i16_ops: [one.i16_ops, all.i16_ops],
            });
        }
        unless_interrupted(interrupt)?;
        let read_bytes_per_s = [&one, &all].map(bench::read_bandwidth);
        let product = bench::product(&all, WeightType::Q8_0, [ROWS, 4096, 4096]);
        let product = product.context("4,096 columns are whole blocks of Q8_0")?;
        // What most models of the intended size are stored in.
        let packing = bench::packing(&all, WeightType::Q4K, [4096, 4096]);
        let packing = packing.context("4,096 columns are whole blocks of Q4_K")?;
        unless_interrupted(interrupt)?;
        let attention = |head_dim, group| {
            let heads = Heads { head_dim, n_kv_heads: 2, group, element: Element::Bf16 };
            bench::attention(&all, &heads, ROWS, 4 * ROWS).rate()
        };
        use tidekv::Backend;
        Ok(Machine {
            cpu: processor(),
            isa: all.name(),
            threads: all.threads(),
            tiers,
            read_bytes_per_s,
            product_flops: product.rate(),
            packed_weights_per_s: packing.rate(),
            attention_flops: [attention(64, 7), attention(128, 4)],
        })
    }

    /// What was measured earlier. A file that is there and cannot be used is said on stderr.
    pub fn kept(isa: &str, threads: usize) -> Kept {
        // Without a place nothing can have been kept.
        let Ok(path) = path() else { return Kept::Nothing };
        match Machine::read(&path) {
            Ok(None) => Kept::Nothing,
            Ok(Some(machine)) => machine.compared(isa, threads),
            Err(error) => {
                let advice = match check_place(&path) {
                    Ok(()) => "`tidekv bench machine` makes a new one".to_owned(),
                    Err(error) => format!("{error:#}"),
                };
                note(&format!(
                    "{} is not used, neither to say how long reading takes nor to choose a chunk: \
                     {error:#}; {advice}",
                    path.display()
                ));
                Kept::Nothing
            }
        }
    }

    /// Whether the figures are of this processor with these settings.
    fn compared(self, isa: &str, threads: usize) -> Kept {
        if self.cpu != processor() {
            return Kept::Other(format!("another CPU, {}", excerpt(&self.cpu)));
        }
        if self.isa != isa {
            return Kept::Other(format!("{}, not {isa}", excerpt(&self.isa)));
        }
        match self.threads == threads {
            true => Kept::This(self),
            false => Kept::Other(format!("{}, not {threads}", counted(self.threads, "thread"))),
        }
    }

    /// The figures in a file, if there is one.
    fn read(path: &Path) -> anyhow::Result<Option<Machine>> {
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        // Anything but a file, such as a named pipe, could keep us waiting.
        ensure!(found.is_file(), "it is not a regular file");
        let machine: Machine = serde_json::from_slice(&fs::read(path)?)?;
        let [narrow, wide] = machine.attention_flops;
        for rate in [machine.product_flops, machine.packed_weights_per_s, narrow, wide] {
            ensure!(
                (1e6..1e18).contains(&rate),
                "it states a rate that no machine has, {rate:e} per second"
            );
        }
        Ok(Some(machine))
    }

    /// Ceilings of the instruction set in use.
    pub fn ceilings(&self) -> Option<&Ceilings> {
        self.tiers.iter().find(|tier| tier.isa == self.isa)
    }

    /// Seconds that prefill takes, by the kernels' rates.
    pub fn seconds(&self, work: &Work, head_dim: usize) -> f64 {
        let [narrow, wide] = self.attention_flops;
        work.seconds(self.product_flops, if head_dim > 96 { wide } else { narrow })
    }

    fn text(&self) -> String {
        let Machine { cpu, isa, threads, .. } = self;
        let mut rows = vec![row(["10^9/s", "1 thread", &counted(*threads, "thread")])];
        for tier in &self.tiers {
            let name = &tier.isa;
            let cells = |what: &str, [one, all]: [f64; 2]| {
                row([&format!("{name}: {what}"), &giga(one), &giga(all)])
            };
            rows.push(cells("f32 multiply-adds, FLOP", tier.f32_flops));
            rows.push(cells("16-bit products, operations", tier.i16_ops));
        }
        let [one, all] = self.read_bytes_per_s.map(giga);
        rows.push(row(["memory read, bytes", &one, &all]));
        rows.push(row(["weights packed", "", &giga(self.packed_weights_per_s)]));
        let peak = self.ceilings().map_or(f64::NAN, |tier| tier.f32_flops[1]);
        let kernels = [
            (format!("{isa}: matrix products of prefill, FLOP"), self.product_flops),
            (format!("{isa}: attention, heads of 64, FLOP"), self.attention_flops[0]),
            (format!("{isa}: attention, heads of 128, FLOP"), self.attention_flops[1]),
        ];
        for (name, rate) in kernels {
            rows.push(row([&name, &percent(rate / peak), &giga(rate)]));
        }
        format!("{cpu}\n\n{}\nPercent are of the f32 multiply-adds of all threads.\n", table(&rows))
    }
}

/// Where the figures are kept.
fn path() -> tidekv_fetch::Result<PathBuf> {
    Ok(tidekv_fetch::cache_dir()?.join("machine.json"))
}

/// Checks that the figures can be kept, before they cost time.
///
/// # Errors
/// They cannot, why, and what to do.
fn check_place(path: &Path) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let check = || {
        let other = directory.exists() && !directory.is_dir();
        ensure!(!other, "{} is not a directory", directory.display());
        fs::create_dir_all(directory)?;
        check_writable(path)
    };
    let advice = || {
        format!(
            "the figures are kept in the cache directory, {}, as {}, which cannot be written; set \
             TIDEKV_HOME to a directory that you can write to, or mend this one",
            directory.display(),
            path.file_name().unwrap_or_default().display()
        )
    };
    check().with_context(advice)
}

/// The processor's name for itself.
fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// Runs the command.
///
/// # Errors
/// Whatever stops a measurement.
pub fn machine(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[])?;
    }
    let path = path()?;
    check_place(&path)?;
    let mut printer = Printer::beside(args.json.as_ref(), &[]);
    note("measuring; this takes about half a minute");
    let machine = Machine::measure(args.cpu.config(Precision::Auto), interrupt)?;
    let kept = write_file(&path, &serde_json::to_vec_pretty(&machine)?);
    printer.print(&machine.text())?;
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&machine));
    exit::all([kept, written, printer.finish()])
}
