//! The hidden-state bridge: what one layer hands to the next.
//!
//! `[rows, d_model]` in the bridge's storage type. In layer-major order it holds
//! the whole prompt and a chunk's output overwrites its input in place; in
//! chunk-major order it is one chunk. The embedding and every layer's output are
//! rounded to its type in every order, so that orders agree bit for bit.

use crate::backend::Backend;
use crate::element::Element;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout};
use crate::model::Shape;
use crate::schedule::{Schedule, Span};

/// Hidden states of the prompt rows in flight.
pub struct Bridge<B: Backend + ?Sized> {
    /// The rows, `[rows, d_model]` of `element`.
    pub buffer: Charged<B::Buffer>,
    /// Storage type.
    pub element: Element,
    /// Columns.
    pub d_model: usize,
    whole_prompt: WholePrompt,
}

/// Whether rows are addressed by position or inside the current chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WholePrompt {
    Yes,
    No,
}

impl<B: Backend> Bridge<B> {
    /// Allocates the bridge a schedule needs for a prompt.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        schedule: &Schedule,
        n_tokens: usize,
    ) -> Result<Self, Error> {
        let bytes = layout::bridge(shape, element, schedule.bridge_rows(n_tokens));
        let buffer =
            Charged::new(accountant, Component::Bridge, bytes, || Ok(backend.alloc(bytes)?))?;
        let whole_prompt = match schedule {
            Schedule::LayerMajor { .. } => WholePrompt::Yes,
            Schedule::ChunkMajor { .. } => WholePrompt::No,
        };
        Ok(Bridge { buffer, element, d_model: shape.d_model, whole_prompt })
    }

    /// Bridge row of a chunk's first row.
    pub fn row_of(&self, chunk: Span) -> usize {
        match self.whole_prompt {
            WholePrompt::Yes => chunk.start,
            WholePrompt::No => 0,
        }
    }
}
