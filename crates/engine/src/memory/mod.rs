//! Memory: names, sizes, the plan made before a run and the ledger kept during
//! it.

mod accountant;
mod chunk;
mod component;
pub mod layout;
mod limit;
mod plan;
mod process;
mod refusal;
mod suggest;

pub use accountant::{Accountant, Charge, Charged, Moment, Peak, StepMemory};
pub use chunk::{ChunkChoice, ChunkRates, ChunkReason, choose_chunk};
pub use component::{Breakdown, Component};
pub use limit::{ADDRESS_RESERVE, SystemMemory, default_limit, system_memory};
pub use plan::{Plan, PlanInput, WeightBytes, plan, plan_steps};
pub(crate) use plan::{longest_window, score_block_bytes, window};
pub use process::{AnonymousPeak, ProcessMemory, process_memory};
pub use refusal::{Bytes, Refusal, largest_prompt, prompts_at_a_time, refuse_unless_fits};
pub use suggest::{Smaller, smallest, suggestions};
