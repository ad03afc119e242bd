//! The hidden-state bridge: what one layer hands to the next.
//!
//! `[rows, d_model]` in the bridge's storage type. In layer-major order it holds
//! the whole prompts of a batch, one after the other, and a chunk's output
//! overwrites its input in place; in chunk-major order it is one chunk. The
//! embedding and every layer's output are rounded to its type in every order, so
//! that orders agree bit for bit.

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
    rows: Rows,
}

/// How rows are addressed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rows {
    /// By position, from the first row of each sequence on.
    WholePrompts(Vec<usize>),
    /// Inside the current chunk.
    OneChunk,
}

impl<B: Backend> Bridge<B> {
    /// Allocates the bridge a schedule needs for prompts of `n_tokens` tokens
    /// each.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        schedule: &Schedule,
        n_tokens: &[usize],
    ) -> Result<Self, Error> {
        let bytes = layout::bridge(shape, element, schedule.bridge_rows(n_tokens));
        let buffer =
            Charged::new(accountant, Component::Bridge, bytes, || Ok(backend.alloc(bytes)?))?;
        // The plan has bounded the sum: it fits memory.
        let first_row = |seq: usize| n_tokens[..seq].iter().sum();
        let rows = match schedule {
            Schedule::LayerMajor { .. } => {
                Rows::WholePrompts((0..n_tokens.len()).map(first_row).collect())
            }
            Schedule::ChunkMajor { .. } => Rows::OneChunk,
        };
        Ok(Bridge { buffer, element, d_model: shape.d_model, rows })
    }

    /// Bridge row of the first row of a chunk of sequence `seq`.
    pub fn row_of(&self, seq: usize, chunk: Span) -> usize {
        match &self.rows {
            Rows::WholePrompts(first) => first[seq] + chunk.start,
            Rows::OneChunk => 0,
        }
    }
}
