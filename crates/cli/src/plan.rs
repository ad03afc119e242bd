//! `tidekv plan`: a run's memory, before the run.

use crate::bench::Kept;
use crate::exit::Ended;
use crate::flags::{ChosenChunk, CpuFlags, RunFlags, positive};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, counted, print_report, table};
use crate::progress::seconds;
use crate::prompt::read_file;
use crate::summary::crowded;
use anyhow::{Context, bail};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::path::Path;
use tidekv::config::DEFAULT_CHUNK;
use tidekv::memory::{
    Bytes, Component, Plan, PlanInput, Refusal, WeightBytes, choose_chunk, largest_prompt, layout,
};
use tidekv::model::Shape;
use tidekv::report::{PeakAt, PlannedMemory};
use tidekv::schedule::{ScheduleKind, Work};
use tidekv::{RunConfig, memory};
use tidekv_cpu::CpuSizes;

/// Say how much memory a prompt takes, before running it
///
/// Reads the model's header only and computes nothing. Shows what makes up the peak and when it is
/// reached, for the schedule asked for, for the whole prompt at once without eviction (one-shot) and
/// for ordinary layer-end compression (post-prefill); the largest prompt that fits; and, if this one
/// does not, changes that would help (exit code 3). Examples:
///
///   tidekv plan model.gguf --tokens 128k
///   tidekv plan --shape llama-3.1-8b --tokens 128k --memory-limit 8GiB
///   tidekv plan model.gguf --tokens 8k,8k,32k
///
/// Several lengths are prompts read together, as `tidekv run` does with several --prompt-file; if
/// they do not fit, how many do at a time is said.
///
/// The figures are not estimates: a run allocates exactly what its plan says. How long reading takes
/// is one, and is said once `tidekv bench machine` has measured this machine.
#[derive(clap::Args)]
#[command(
    verbatim_doc_comment,
    override_usage = "tidekv plan [OPTIONS] <MODEL | --shape SHAPE> --tokens <S[,S...]>",
    group(clap::ArgGroup::new("dimensions").required(true).multiple(false))
)]
pub struct Args {
    #[arg(help = model::MODEL_HELP, group = "dimensions")]
    model: Option<OsString>,
    /// Dimensions instead of a file: llama-3.1-8b, mistral-7b or a JSON file with n_layers, d_model,
    /// d_ff, n_heads, n_kv_heads, head_dim, vocab, context
    #[arg(long, value_name = "SHAPE", group = "dimensions")]
    shape: Option<OsString>,
    /// S, tokens of the prompt, such as 128k; of several read together, such as 8k,32k
    #[arg(long, value_name = "S", value_parser = positive, value_delimiter = ',', required = true)]
    tokens: Vec<NonZeroUsize>,
    #[command(flatten)]
    run: RunFlags,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the plan as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

#[derive(Serialize)]
struct PlanReport {
    fits: bool,
    limit_bytes: Option<u64>,
    largest_prompt_tokens: usize,
    /// So many of several prompts fit at a time; absent for one prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompts_at_a_time: Option<usize>,
    /// By the rates that `tidekv bench machine` measured; absent before it was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_prefill_s: Option<f64>,
    plans: Vec<SchedulePlan>,
    /// C, where `--chunk auto` chose it, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen_chunk: Option<ChosenChunk>,
    suggestions: Vec<String>,
}

#[derive(Serialize)]
struct SchedulePlan {
    schedule: &'static str,
    memory: PlannedMemory,
}

/// Runs the command.
///
/// # Errors
/// A model or shape that cannot be read, a selector that cannot work, or a plan
/// that does not fit (exit code 3).
pub fn plan(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&args.model.iter().map(Path::new).collect::<Vec<_>>())?;
    }
    let (shape, weights) = args.dimensions()?;
    let sizes = CpuSizes::new(&args.cpu.config(args.run.cache.storage.precision))?;
    let n_tokens: Vec<usize> = args.tokens.iter().map(|tokens| tokens.get()).collect();
    if let Some(too_many) = n_tokens.iter().find(|&&tokens| tokens > shape.context) {
        bail!(
            "--tokens {too_many} is more than the model's context of {}; stretch the context with \
             --rope-scaling",
            counted(shape.context, "token")
        );
    }
    let asked = args.run.config();
    let asked =
        PlanInput { shape: &shape, weights, sizes: &sizes, config: &asked, n_tokens: &n_tokens };
    let kind = args.run.schedule;
    let kept = args.cpu.kept(args.run.cache.storage.precision)?;
    let rates = || Ok(kept.chunk_rates(args.cpu.pack));
    let chosen = args.run.chosen_chunk(rates, |rates| choose_chunk(&asked, kind, rates))?;
    let config = match &chosen {
        Some(ChosenChunk { chunk, .. }) => {
            RunConfig { schedule: kind.with_chunk(*chunk), ..asked.config.clone() }
        }
        None => asked.config.clone(),
    };
    let input = PlanInput { config: &config, ..asked };
    let plans = compared(&input, kind)?;
    let limit = config.memory_limit;
    let fits = limit.is_none_or(|limit| plans[0].1.peak_bytes() <= limit);
    let refusal = match limit {
        Some(limit) if !fits => Some(Refusal::new(&input, plans[0].1, limit)?),
        _ => None,
    };
    let largest = match &refusal {
        Some(refusal) => refusal.largest_prompt,
        None => largest_prompt(&input, limit.unwrap_or(u64::MAX)),
    };
    let several = n_tokens.len() > 1;
    let at_a_time = refusal.as_ref().map_or(n_tokens.len(), |refusal| refusal.prompts_at_a_time);
    let fewer_prompts = refusal.as_ref().and_then(Refusal::fewer_prompts);
    let suggestions = refusal.map_or_else(Vec::new, |refusal| refusal.changes());
    let outcome = Outcome {
        limit,
        largest,
        fewer_prompts,
        context: shape.context,
        suggestions: &suggestions,
    };
    let work = || Work::of_prompts(&shape, &n_tokens);
    let estimate = kept.machine().map(|machine| machine.seconds(&work(), shape.head_dim));
    let text = describe(&plans)
        + &chosen.as_ref().map_or(String::new(), |chosen| format!("  {chosen}\n"))
        + &verdict(&plans[0].1, &outcome)
        + &time(estimate, &kept);
    if let Some(json) = &args.json {
        let plans = plans
            .iter()
            .map(|(kind, plan)| SchedulePlan { schedule: kind.name(), memory: plan.into() });
        json.write(&PlanReport {
            fits,
            limit_bytes: limit,
            largest_prompt_tokens: largest,
            prompts_at_a_time: several.then_some(at_a_time),
            estimated_prefill_s: estimate,
            plans: plans.collect(),
            chosen_chunk: chosen,
            suggestions,
        })?;
    }
    if args.json != Some(JsonTarget::Stdout) {
        print_report(&text)?;
    }
    if !fits {
        let peak = Bytes(plans[0].1.peak_bytes());
        return Err(Ended::Refused(format!("the plan needs {peak} and does not fit")).into());
    }
    Ok(())
}

impl Args {
    fn dimensions(&self) -> anyhow::Result<(Shape, WeightBytes)> {
        if let Some(name) = &self.shape {
            let mut shape = match name.to_str().and_then(Shape::named) {
                Some(shape) => shape,
                None => read_shape(name)?,
            };
            if let Some(scaling) = self.run.cache.storage.rope_scaling {
                shape.context = (shape.context as f64 * scaling.factor()) as usize;
            }
            shape.validate().with_context(|| shape_flag(name))?;
            // Matrices as BF16, mapped; vectors held as f32.
            let held = layout::norm_vectors(&shape);
            let mapped = shape.n_weights().saturating_mul(2);
            return Ok((shape, WeightBytes { held, mapped }));
        }
        let Some(name) = &self.model else { bail!("name a model, or dimensions with --shape") };
        let model = model::open(name, self.run.cache.storage.rope_scaling, &Interrupt::install()?)?;
        Ok((model.spec.shape.clone(), model.weight_bytes()))
    }
}

/// The flag as it was given, in front of what is wrong with it.
fn shape_flag(name: &OsStr) -> String {
    format!("--shape {}", name.display())
}

fn read_shape(name: &OsStr) -> anyhow::Result<Shape> {
    let known = Shape::NAMES.join(", ");
    let flag = shape_flag(name);
    let context = || format!("{flag}: neither a known shape ({known}) nor a readable file");
    let text = read_file(Path::new(name)).with_context(context)?;
    serde_json::from_str(&text).context(flag)
}

/// Plans of the schedule asked for, then of the two it is compared with.
fn compared(
    input: &PlanInput<'_>,
    asked: ScheduleKind,
) -> anyhow::Result<Vec<(ScheduleKind, Plan)>> {
    let mut kinds = vec![asked];
    kinds
        .extend([ScheduleKind::OneShot, ScheduleKind::PostPrefill].iter().filter(|k| **k != asked));
    let plan = |kind: ScheduleKind| {
        let mut config = input.config.clone();
        if kind != asked {
            // Of the whole prompt at once: any chunk will do.
            config.schedule = kind.with_chunk(DEFAULT_CHUNK);
        }
        Ok((kind, memory::plan(&PlanInput { config: &config, ..*input })?))
    };
    kinds.into_iter().map(plan).collect()
}

fn describe(plans: &[(ScheduleKind, Plan)]) -> String {
    let mut rows = vec![heading(plans)];
    for component in Component::ALL {
        let bytes = |plan: &Plan| plan.peak.bytes[component];
        if component != Component::WeightsMapped && plans.iter().any(|(_, plan)| bytes(plan) > 0) {
            rows.push(row(component.name(), plans, |plan| Bytes(bytes(plan)).to_string()));
        }
    }
    rows.push(row("peak", plans, |plan| Bytes(plan.peak_bytes()).to_string()));
    let at = |plan: &Plan| PeakAt::from(plan.peak.at);
    rows.push(row("  reached in", plans, |plan| at(plan).step.to_owned()));
    rows.push(row("  of layer", plans, |plan| {
        at(plan).layer.map_or(String::new(), |l| l.to_string())
    }));
    rows.push(row("  of it transient", plans, |plan| Bytes(plan.transient_bytes()).to_string()));
    rows.push(row("held while answering", plans, |plan| Bytes(plan.held.total()).to_string()));
    let Plan { n_prompts, n_tokens, peak, .. } = plans[0].1;
    let mapped = peak.bytes[Component::WeightsMapped];
    let tokens = counted(n_tokens, "token");
    let prompts = match n_prompts {
        1 => format!("a prompt of {tokens}"),
        n => format!("{n} prompts with {tokens} in all, read together"),
    };
    format!(
        "memory of {prompts}, at each schedule's peak\n\n{}\n  weights mapped from the file, not counted: {}\n",
        table(&rows),
        Bytes(mapped)
    )
}

fn heading(plans: &[(ScheduleKind, Plan)]) -> Vec<String> {
    let names = plans.iter().map(|(kind, _)| kind.name().to_owned());
    std::iter::once(String::new()).chain(names).collect()
}

fn row(name: &str, plans: &[(ScheduleKind, Plan)], cell: impl Fn(&Plan) -> String) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(plans.iter().map(|(_, plan)| cell(plan))).collect()
}

/// How long reading takes, or why that is not known though something was measured.
fn time(estimate: Option<f64>, kept: &Kept) -> String {
    match (estimate, kept.said()) {
        (Some(time), _) => {
            format!("  about {} to read, by this machine's measured rates\n", seconds(time))
        }
        (None, Some(other)) => format!("  no time to read is known: {other}\n"),
        (None, None) => String::new(),
    }
}

/// What the limit means for a plan.
struct Outcome<'a> {
    limit: Option<u64>,
    largest: usize,
    fewer_prompts: Option<String>,
    context: usize,
    suggestions: &'a [String],
}

fn verdict(plan: &Plan, outcome: &Outcome<'_>) -> String {
    let peak = plan.peak_bytes();
    let mut text = match outcome.limit {
        Some(limit) if peak <= limit => format!("  fits the limit of {}", Bytes(limit)),
        Some(limit) => format!("  does not fit the limit of {}", Bytes(limit)),
        None => "  no limit is known on this system (--memory-limit)".to_owned(),
    };
    text += &match outcome.largest {
        // Of several prompts, how long one may be says little.
        _ if plan.n_prompts > 1 => match &outcome.fewer_prompts {
            Some(fewer) => format!("; {fewer}\n"),
            // All of them fit together.
            None => "\n".to_owned(),
        },
        0 => "; no prompt does with these settings\n".to_owned(),
        largest if largest == outcome.context => {
            format!(
                "; so does any prompt up to the model's context of {}\n",
                counted(largest, "token")
            )
        }
        largest => format!("; the largest prompt that fits has {}\n", counted(largest, "token")),
    };
    for suggestion in outcome.suggestions {
        text += &format!("  {suggestion}\n");
    }
    if let Some(warning) = crowded(plan.max[Component::WeightsMapped], peak) {
        text += &format!("  {warning}\n");
    }
    text
}
