//! What decoding starts from: kept rows with their positions, and room for new
//! ones.

use crate::backend::Backend;
use crate::element::Element;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout};
use crate::model::Shape;
use crate::position::{Pos, Row};
use std::ops::Range;

/// Compressed K/V of one layer, flattened over heads: the rows of KV head h are
/// `offsets[h]..offsets[h + 1]`, ascending by position. A rectangular cache has
/// equal offsets.
pub struct RetainedKv<B: Backend + ?Sized> {
    /// Keys, `[rows, D]` of `element`.
    pub k: Charged<B::Buffer>,
    /// Values, `[rows, D]` of `element`.
    pub v: Charged<B::Buffer>,
    /// Storage type.
    pub element: Element,
    /// Absolute position of every row.
    pub positions: Charged<Vec<Pos>>,
    offsets: Vec<usize>,
}

impl<B: Backend> RetainedKv<B> {
    /// Allocates room for the rows at `positions` (per KV head, ascending);
    /// [`Backend::gather`] fills it.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        positions: &[Vec<Pos>],
    ) -> Result<Self, Error> {
        let mut offsets = vec![0; positions.len() + 1];
        for (head, kept) in positions.iter().enumerate() {
            offsets[head + 1] = offsets[head] + kept.len();
        }
        let rows = offsets[positions.len()];
        let bytes = layout::retained_half(shape, element, rows);
        let half = || {
            Charged::new(accountant, Component::RetainedKv, bytes, || Ok(backend.alloc(bytes)?))
        };
        let (k, v) = (half()?, half()?);
        let flat =
            Charged::new(accountant, Component::Positions, layout::positions(rows), || {
                Ok(positions.concat())
            })?;
        Ok(RetainedKv { k, v, element, positions: flat, offsets })
    }
}

impl<B: Backend + ?Sized> RetainedKv<B> {
    /// Number of KV heads.
    pub fn n_heads(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Storage rows of KV head `head`.
    pub fn rows(&self, head: usize) -> Range<Row> {
        Row(self.offsets[head] as u32)..Row(self.offsets[head + 1] as u32)
    }

    /// Absolute positions that KV head `head` kept, ascending.
    pub fn kept(&self, head: usize) -> &[Pos] {
        &self.positions[self.offsets[head]..self.offsets[head + 1]]
    }
}

/// Room for the K/V of generated tokens of one layer, `[Hkv, T, D]` each.
pub struct DecodeTail<B: Backend + ?Sized> {
    /// Keys.
    pub k: Charged<B::Buffer>,
    /// Values.
    pub v: Charged<B::Buffer>,
    /// Storage type.
    pub element: Element,
    /// T, tokens there is room for.
    pub capacity: usize,
}

impl<B: Backend> DecodeTail<B> {
    /// Allocates room for `new_tokens` tokens.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        new_tokens: usize,
    ) -> Result<Self, Error> {
        let bytes = layout::tail_half(shape, element, new_tokens);
        let half = || {
            Charged::new(accountant, Component::DecodeTail, bytes, || Ok(backend.alloc(bytes)?))
        };
        Ok(DecodeTail { k: half()?, v: half()?, element, capacity: new_tokens })
    }
}
