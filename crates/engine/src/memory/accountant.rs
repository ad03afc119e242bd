//! The accountant: every engine buffer is charged here before it exists.
//!
//! It records the bytes live per component, the peak with what made it up, and
//! the high-water mark inside every step, which tests compare with the plan
//! ([`super::plan`]) byte for byte.

use super::{Breakdown, Component};
use crate::error::Error;
use crate::schedule::Step;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where in the run something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// While the run's buffers came up, before the first step.
    Setup,
    /// Inside a prefill step.
    Step(Step),
    /// While tokens are generated.
    Decode,
}

/// Memory of one step: the largest total inside it, and what is live after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepMemory {
    /// The step.
    pub moment: Moment,
    /// Live bytes at the step's high-water mark.
    pub high_water: Breakdown,
    /// Live bytes when the step has ended.
    pub after: Breakdown,
}

/// The largest total of a run and when it occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// Live bytes at the peak.
    pub bytes: Breakdown,
    /// When the peak was first reached.
    pub at: Moment,
}

#[derive(Debug)]
struct State {
    live: Breakdown,
    max: Breakdown,
    peak: Peak,
    moment: Moment,
    high_water: Breakdown,
    limit: Option<u64>,
}

impl State {
    fn note_high_water(&mut self) {
        if self.live.total() > self.high_water.total() {
            self.high_water = self.live;
        }
        if self.live.total() > self.peak.bytes.total() {
            self.peak = Peak { bytes: self.live, at: self.moment };
        }
        self.max.raise_to(&self.live);
    }
}

/// Shared ledger of a run's memory. Clones refer to the same ledger.
#[derive(Debug, Clone)]
pub struct Accountant(Arc<Mutex<State>>);

impl Accountant {
    /// An empty ledger. `limit` is the largest total in bytes; `None` means no
    /// limit.
    pub fn new(limit: Option<u64>) -> Self {
        let nothing = Breakdown::default();
        Accountant(Arc::new(Mutex::new(State {
            live: nothing,
            max: nothing,
            peak: Peak { bytes: nothing, at: Moment::Setup },
            moment: Moment::Setup,
            high_water: nothing,
            limit,
        })))
    }

    /// Charges `bytes` to `component` until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when the total would pass the limit. A run whose
    /// plan fits never sees it.
    pub fn charge(&self, component: Component, bytes: u64) -> Result<Charge, Error> {
        let mut state = self.state();
        let counts = component != Component::WeightsMapped;
        let total = state.live.total().saturating_add(if counts { bytes } else { 0 });
        if let Some(limit) = state.limit.filter(|&limit| total > limit) {
            return Err(Error::LimitReached { component, bytes, total, limit });
        }
        state.live[component] = state.live[component].saturating_add(bytes);
        state.note_high_water();
        drop(state);
        Ok(Charge { ledger: self.clone(), component, bytes })
    }

    /// Starts a step: the high-water mark is taken anew from what is live.
    pub fn begin(&self, moment: Moment) {
        let mut state = self.state();
        state.moment = moment;
        state.high_water = state.live;
    }

    /// The step since the last [`Accountant::begin`].
    pub fn step(&self) -> StepMemory {
        let state = self.state();
        StepMemory { moment: state.moment, high_water: state.high_water, after: state.live }
    }

    /// Bytes live now.
    pub fn live(&self) -> Breakdown {
        self.state().live
    }

    /// The peak so far.
    pub fn peak(&self) -> Peak {
        self.state().peak
    }

    /// The largest bytes of each component so far, not necessarily at the same
    /// time.
    pub fn max(&self) -> Breakdown {
        self.state().max
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The ledger is plain numbers, whole after every statement, so a panic
        // elsewhere does not make it wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes charged to a component; released on drop.
#[derive(Debug)]
#[must_use = "the charge ends when this is dropped"]
pub struct Charge {
    ledger: Accountant,
    component: Component,
    bytes: u64,
}

impl Charge {
    /// Charged bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.ledger.state();
        let live = &mut state.live[self.component];
        *live = live.saturating_sub(self.bytes);
    }
}

/// A buffer together with its charge: the bytes are counted exactly as long as
/// the buffer lives.
#[derive(Debug)]
pub struct Charged<T> {
    // Fields drop in order: the memory goes first, then its charge.
    buffer: T,
    charge: Charge,
}

impl<T> Charged<T> {
    /// Charges `bytes`, then makes the buffer.
    ///
    /// # Errors
    /// The limit, or what `make` returns.
    pub fn new(
        accountant: &Accountant,
        component: Component,
        bytes: u64,
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Self, Error> {
        let charge = accountant.charge(component, bytes)?;
        Ok(Charged { buffer: make()?, charge })
    }

    /// A value whose memory has been charged already.
    pub fn with(charge: Charge, buffer: T) -> Self {
        Charged { buffer, charge }
    }

    /// Charged bytes.
    pub fn bytes(&self) -> u64 {
        self.charge.bytes()
    }
}

impl<T> std::ops::Deref for Charged<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.buffer
    }
}

impl<T> std::ops::DerefMut for Charged<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_keeps_what_was_live_at_the_highest_total() {
        let ledger = Accountant::new(None);
        let bridge = ledger.charge(Component::Bridge, 10).unwrap();
        drop(ledger.charge(Component::Scratch, 5).unwrap());
        drop(bridge);
        let _kept = ledger.charge(Component::RetainedKv, 12).unwrap();
        let peak = ledger.peak();
        assert_eq!(peak.bytes.total(), 15);
        assert_eq!(peak.bytes[Component::Scratch], 5);
        assert_eq!(ledger.live().total(), 12);
        assert_eq!(ledger.max()[Component::Scratch], 5);
    }

    #[test]
    fn high_water_is_per_step() {
        let ledger = Accountant::new(None);
        drop(ledger.charge(Component::Scratch, 50).unwrap());
        ledger.begin(Moment::Decode);
        let _tail = ledger.charge(Component::DecodeTail, 3).unwrap();
        assert_eq!(ledger.step().high_water.total(), 3);
        assert_eq!(ledger.peak().bytes.total(), 50);
    }

    #[test]
    fn limit_refuses_with_the_numbers_and_charges_nothing() {
        let ledger = Accountant::new(Some(10));
        let _held = ledger.charge(Component::Bridge, 8).unwrap();
        let error = ledger.charge(Component::Scratch, 3).unwrap_err();
        assert!(
            matches!(error, Error::LimitReached { bytes: 3, total: 11, limit: 10, .. }),
            "{error}"
        );
        assert_eq!(ledger.live().total(), 8);
        let _mapped = ledger.charge(Component::WeightsMapped, 1 << 40).unwrap();
    }
}
