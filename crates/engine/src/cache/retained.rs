//! What decoding starts from: kept rows with their positions, and room for new
//! ones.

use crate::backend::Backend;
use crate::element::Element;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout};
use crate::model::Shape;
use crate::position::Row;
use crate::select::Kept;
use std::ops::Range;

/// Compressed K/V of one layer, flattened over heads: heads back to back, rows
/// of a head ascending by position. A rectangular cache has equally long heads.
pub struct RetainedKv<B: Backend + ?Sized> {
    /// Keys, `[rows, D]` of `element`.
    pub k: Charged<B::Buffer>,
    /// Values, `[rows, D]` of `element`.
    pub v: Charged<B::Buffer>,
    /// Storage type.
    pub element: Element,
    /// Absolute position of every row, per KV head.
    pub kept: Charged<Kept>,
}

impl<B: Backend> RetainedKv<B> {
    /// Allocates room for the rows of `kept`; [`Backend::gather`] fills it.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        kept: Charged<Kept>,
    ) -> Result<Self, Error> {
        let bytes = layout::retained_half(shape, element, kept.positions().len());
        let half =
            || Charged::new(accountant, Component::RetainedKv, bytes, || Ok(backend.alloc(bytes)?));
        Ok(RetainedKv { k: half()?, v: half()?, element, kept })
    }
}

impl<B: Backend + ?Sized> RetainedKv<B> {
    /// Storage rows of KV head `head`.
    pub fn rows(&self, head: usize) -> Range<Row> {
        let offsets = self.kept.offsets();
        // Rows are counted in 32 bits: Hkv * S of a plan that fits any memory.
        Row(offsets[head] as u32)..Row(offsets[head + 1] as u32)
    }

    /// Bytes of keys, values and positions.
    pub fn bytes(&self) -> u64 {
        self.k.bytes() + self.v.bytes() + self.kept.bytes()
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
        let half =
            || Charged::new(accountant, Component::DecodeTail, bytes, || Ok(backend.alloc(bytes)?));
        Ok(DecodeTail { k: half()?, v: half()?, element, capacity: new_tokens })
    }
}
