//! Selection: which positions of a finished layer its decode cache keeps.
//!
//! A [`Selector`] is a product of independent values: scorer x layer budget x
//! head budget x granularity, and a mandatory set. Published methods are
//! [presets](PRESETS) and every combination can be written down
//! ([text form](Selector#text-form)).
//!
//! Per prompt, before layer 0: [`Selector::budgets`] gives K_l of every layer
//! or refuses. Per layer, when its K/V is complete: a [`SelectionLayout`] says
//! what the selection costs, a [`Selection`] takes score blocks in ascending key
//! order, and [`Kept`] lists the surviving positions of every KV head. Scores
//! come from the backend, or from a [`KeyScorer`] of one's own that the backend
//! gives keys and values to; nothing here knows one. The scratch is independent of
//! S: no `[heads, S]` row of scores exists anywhere.
//!
//! Next hop of a prompt: the kept rows are gathered into the retained cache.

mod budget;
mod error;
mod keys;
mod pool;
mod selection;
mod selector;
mod text;
mod topk;

pub use budget::BudgetRequest;
pub use error::SelectError;
pub use keys::{CustomScorer, KeyBlock, KeyScorer, LayerContext, LayerScorer};
pub use pool::{Pooling, PoolingLayout, reduce_group};
pub use selection::{Kept, ScoreRows, ScoreSource, Selection, SelectionDims, SelectionLayout};
pub use selector::{
    Granularity, GroupReduce, HeadBudget, LayerBudget, Mandatory, Observation, PRESETS, Pool,
    PoolOrder, Preset, Scorer, Selector,
};
