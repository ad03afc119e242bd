//! `tidekv bench kernels`: each kernel beside its ceiling.

use super::{giga, percent, row, unless_interrupted};
use crate::exit;
use crate::flags::{CpuFlags, Precision};
use crate::interrupt::Interrupt;
use crate::output::{JsonTarget, Printer, note, table};
use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use tidekv::model::Shape;
use tidekv::{Backend, Element};
use tidekv_cpu::bench::{self, Heads, Sample, WeightType};
use tidekv_cpu::{Cpu, Isa};

/// Measure the kernels beside their ceilings
///
/// Matrix products of one layer of Qwen2.5-0.5B and of Llama-3.1-8B (2,048 rows, packing included,
/// from the types of their Q4_K_M files and from BF16), attention and scoring of their heads, and the
/// matrix-vector products of decoding, for one sequence and for four at once. Takes a few minutes;
/// --kernels measures some of them only.
#[derive(clap::Args)]
pub struct Args {
    /// Which kernels to measure [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    kernels: Vec<Kernel>,
    /// auto, or f32 for products in single precision
    #[arg(long, default_value = "auto")]
    precision: Precision,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the figures as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

#[derive(Serialize)]
struct Report {
    isa: String,
    threads: usize,
    /// f32 multiply-adds of all threads, floating-point operations per second.
    f32_peak_flops: f64,
    /// 16-bit products of all threads, operations per second.
    i16_peak_ops: f64,
    /// Memory read by all threads, bytes per second.
    read_bytes_per_s: f64,
    kernels: Vec<Figure>,
}

#[derive(Serialize)]
struct Figure {
    kernel: Kernel,
    what: String,
    /// Floating-point operations or bytes per second.
    rate: f64,
    /// Share of the f32 multiply-adds, or of the memory's rate.
    of_ceiling: f64,
}

/// A group of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Kernel {
    /// Matrix products of a layer.
    Product,
    /// Causal attention of prefill.
    Attention,
    /// Scoring at a layer's end.
    Score,
    /// Matrix-vector products of decoding.
    Vector,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Kernel::Product => "product",
            Kernel::Attention => "attention",
            Kernel::Score => "score",
            Kernel::Vector => "vector",
        }
    }
}

/// Rows of activations, and queries of attention.
const ROWS: usize = 2048;

/// A model's layer: dimensions and the types that its matrices have in a Q4_K_M file.
struct Layer {
    name: &'static str,
    shape: Shape,
    types: [WeightType; 7],
}

fn layers() -> anyhow::Result<[Layer; 2]> {
    use WeightType::{Q4K, Q5_0, Q6K, Q8_0};
    let qwen = Shape {
        n_layers: 24,
        d_model: 896,
        d_ff: 4864,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        vocab: 151_936,
        context: 32_768,
        windows: Vec::new(),
    };
    let llama = Shape::named("llama-3.1-8b").context("a named shape")?;
    Ok([
        Layer {
            name: "Qwen2.5-0.5B",
            shape: qwen,
            // 896 columns are no whole K-quant blocks.
            types: [Q5_0, Q5_0, Q8_0, Q5_0, Q5_0, Q5_0, Q6K],
        },
        Layer { name: "Llama-3.1-8B", shape: llama, types: [Q4K, Q4K, Q6K, Q4K, Q4K, Q4K, Q6K] },
    ])
}

impl Report {
    fn new(cpu: &Cpu, isa: Isa) -> Report {
        let peaks = bench::peaks(cpu, isa);
        Report {
            isa: cpu.name(),
            threads: cpu.threads(),
            f32_peak_flops: peaks.f32_flops,
            i16_peak_ops: peaks.i16_ops,
            read_bytes_per_s: bench::read_bandwidth(cpu),
            kernels: Vec::new(),
        }
    }

    fn computes(&mut self, kernel: Kernel, what: String, sample: Sample) {
        let rate = sample.rate();
        self.kernels.push(Figure { kernel, what, rate, of_ceiling: rate / self.f32_peak_flops });
    }

    fn reads(&mut self, kernel: Kernel, what: String, sample: Sample) {
        let rate = sample.rate();
        self.kernels.push(Figure { kernel, what, rate, of_ceiling: rate / self.read_bytes_per_s });
    }

    fn text(&self) -> String {
        let mut rows = vec![row(["kernel", "of", "10^9/s", "of the ceiling"])];
        for Figure { kernel, what, rate, of_ceiling } in &self.kernels {
            rows.push(row([kernel.name(), what, &giga(*rate), &percent(*of_ceiling)]));
        }
        format!(
            "{}, {} threads: f32 multiply-adds {} GFLOP/s, 16-bit products {} Gop/s, memory read {} \
             GB/s\n\n{}\nThe ceiling of product, attention and score is the f32 multiply-adds, which \
             fixed-point products pass; that of vector is the memory, which several vectors that \
             share what is read can pass.\n",
            self.isa,
            self.threads,
            giga(self.f32_peak_flops),
            giga(self.i16_peak_ops),
            giga(self.read_bytes_per_s),
            table(&rows)
        )
    }
}

/// The matrices of a layer, summed.
fn layer_products(cpu: &Cpu, shape: &Shape, types: [WeightType; 7]) -> anyhow::Result<Sample> {
    let product = |([n, k], weights): ([usize; 2], WeightType)| {
        let sample = bench::product(cpu, weights, [ROWS, n, k]);
        sample.with_context(|| format!("{k} columns of {weights}"))
    };
    bench::matrices(shape).into_iter().zip(types).map(product).sum()
}

/// Runs the command.
///
/// # Errors
/// Whatever stops a measurement.
pub fn kernels(args: &Args, interrupt: &Interrupt) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[])?;
    }
    let mut printer = Printer::beside(args.json.as_ref(), &[]);
    let config = args.cpu.config(args.precision);
    let cpu = Cpu::new(config)?;
    let asked = |kernel: Kernel| args.kernels.is_empty() || args.kernels.contains(&kernel);
    note(match args.kernels.is_empty() {
        true => "measuring; this takes a few minutes",
        false => "measuring; this takes up to a few minutes",
    });
    let mut report = Report::new(&cpu, config.isa()?);
    for layer in layers()? {
        let Layer { name, shape, types } = &layer;
        let products = [("Q4_K_M", *types), ("BF16", [WeightType::BF16; 7])];
        for (what, types) in products.into_iter().filter(|_| asked(Kernel::Product)) {
            unless_interrupted(interrupt)?;
            let sample = layer_products(&cpu, shape, types)?;
            report.computes(Kernel::Product, format!("{name} layer, {what}"), sample);
        }
        let heads = Heads::of(shape, Element::Bf16);
        for n_keys in [8192, 32_768].into_iter().filter(|_| asked(Kernel::Attention)) {
            unless_interrupted(interrupt)?;
            let sample = bench::attention(&cpu, &heads, ROWS, n_keys);
            let what = format!("{name}, D {}, {n_keys} keys", heads.head_dim);
            report.computes(Kernel::Attention, what, sample);
        }
        if asked(Kernel::Score) {
            unless_interrupted(interrupt)?;
            let sample = bench::scoring(&cpu, &heads, 32, 8192);
            report.computes(Kernel::Score, format!("{name}, 32 queries, 8192 keys"), sample);
        }
    }
    let types = [
        WeightType::BF16,
        WeightType::Q8_0,
        WeightType::Q6K,
        WeightType::Q5_0,
        WeightType::Q4K,
        WeightType::Q4_0,
    ];
    for weights in types.into_iter().filter(|_| asked(Kernel::Vector)) {
        unless_interrupted(interrupt)?;
        for (n_vectors, what) in [(1, weights.to_string()), (4, format!("{weights}, 4 at once"))] {
            // Far beyond the caches.
            let sample = bench::vectors(&cpu, weights, [65_536, 4096], n_vectors);
            let sample = sample.with_context(|| format!("4096 columns of {weights}"))?;
            report.reads(Kernel::Vector, what, sample);
        }
    }
    printer.print(&report.text())?;
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&report));
    exit::all([written, printer.finish()])
}
