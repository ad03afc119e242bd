//! Merging of neighbouring symbols, best pair first.
//!
//! A heap of pairs over a linked list of symbols: `n log n` for `n` symbols,
//! nothing recurses. Byte-level models do this in the `tokenizers` crate, word
//! by word. SentencePiece models have no words: a whole document may be one
//! run of symbols, which must be interruptible, and pairs of equal score must
//! merge from the left; the crate can do neither.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::ControlFlow;

/// What two symbols become, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Merge {
    /// Lower ranks merge first; of equal ranks the leftmost.
    pub(super) rank: u32,
    /// The symbol that the pair becomes.
    pub(super) symbol: u32,
}

/// The pairs that merge.
#[derive(Debug, Default)]
pub(super) struct Merges {
    by_pair: HashMap<(u32, u32), Merge>,
}

/// A symbol that another one has swallowed.
const GONE: u32 = u32::MAX;

/// Merges between two polls: a few milliseconds.
const POLL_MERGES: usize = 1 << 14;

/// One place of the linked list. Ends of the list point at themselves.
#[derive(Debug, Clone, Copy)]
struct Node {
    symbol: u32,
    previous: usize,
    next: usize,
}

impl Merges {
    /// Adds a pair; a pair that is there already gets the new merge.
    pub(super) fn insert(&mut self, left: u32, right: u32, merge: Merge) {
        self.by_pair.insert((left, right), merge);
    }

    /// Merges `symbols` as far as they go and gives what is left to `sink`: each symbol with the place of its
    /// first one. [`u32::MAX`] is no symbol.
    ///
    /// Holds 24 bytes per symbol and 24 per pair that merges.
    pub(super) fn apply(
        &self,
        symbols: impl Iterator<Item = u32>,
        poll: &mut dyn FnMut() -> ControlFlow<()>,
        mut sink: impl FnMut(usize, u32),
    ) -> ControlFlow<()> {
        let mut nodes: Vec<Node> = symbols
            .enumerate()
            .map(|(at, symbol)| Node { symbol, previous: at.saturating_sub(1), next: at + 1 })
            .collect();
        if let Some(last) = nodes.len().checked_sub(1) {
            nodes[last].next = last;
        }
        let pairs = (0..nodes.len()).filter_map(|at| self.candidate(&nodes, at));
        let mut queue = BinaryHeap::from(pairs.collect::<Vec<_>>());
        let mut done = 0;
        while let Some(Reverse((_, at, symbol))) = queue.pop() {
            // Entries are not taken back when their symbols change: an old one is known by its result.
            let Some(Reverse((_, _, now))) = self.candidate(&nodes, at) else { continue };
            if now != symbol {
                continue;
            }
            self.join(&mut nodes, at, symbol, &mut queue);
            done += 1;
            if done % POLL_MERGES == 0 && poll().is_break() {
                return ControlFlow::Break(());
            }
        }
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.symbol != GONE) {
            sink(at, node.symbol);
        }
        ControlFlow::Continue(())
    }

    /// Makes one symbol of the node at `at` and the next one, and queues the pairs that this makes.
    fn join(
        &self,
        nodes: &mut [Node],
        at: usize,
        symbol: u32,
        queue: &mut BinaryHeap<Reverse<(u32, usize, u32)>>,
    ) {
        let right = nodes[at].next;
        let after = nodes[right].next;
        nodes[at].symbol = symbol;
        nodes[right].symbol = GONE;
        nodes[at].next = if after == right { at } else { after };
        if after != right {
            nodes[after].previous = at;
        }
        let before = nodes[at].previous;
        queue.extend(self.candidate(nodes, at));
        if before != at {
            queue.extend(self.candidate(nodes, before));
        }
    }

    /// The merge of the node at `at` with the next one, as the heap orders it.
    fn candidate(&self, nodes: &[Node], at: usize) -> Option<Reverse<(u32, usize, u32)>> {
        let node = nodes[at];
        if node.next == at || node.symbol == GONE {
            return None;
        }
        let merge = self.by_pair.get(&(node.symbol, nodes[node.next].symbol))?;
        Some(Reverse((merge.rank, at, merge.symbol)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Symbols `a`, `b`, ... are 0, 1, ...
    fn merges(list: &[((u32, u32), u32, u32)]) -> Merges {
        let mut merges = Merges::default();
        for &((left, right), rank, symbol) in list {
            merges.insert(left, right, Merge { rank, symbol });
        }
        merges
    }

    fn apply(merges: &Merges, symbols: &[u32]) -> Vec<(usize, u32)> {
        let mut left = Vec::new();
        let mut never = || ControlFlow::Continue(());
        let ended = merges.apply(symbols.iter().copied(), &mut never, |at, s| left.push((at, s)));
        assert!(ended.is_continue());
        left
    }

    /// The rule as it is written: again and again the best pair of all, from the left.
    fn by_the_rule(merges: &Merges, symbols: &[u32]) -> Vec<u32> {
        let mut symbols = symbols.to_vec();
        loop {
            let pairs = symbols.windows(2).enumerate();
            let found = pairs.filter_map(|(at, pair)| {
                merges.by_pair.get(&(pair[0], pair[1])).map(|merge| (merge.rank, at, merge.symbol))
            });
            let Some((_, at, symbol)) = found.min() else { return symbols };
            symbols.splice(at..at + 2, [symbol]);
        }
    }

    #[test]
    fn ranks_decide_then_the_place() {
        let m = merges(&[((0, 1), 1, 10), ((1, 2), 0, 11), ((0, 0), 2, 12)]);
        assert_eq!(apply(&m, &[0, 1, 2]), [(0, 0), (1, 11)]);
        assert_eq!(apply(&m, &[0, 0, 0]), [(0, 12), (2, 0)]);
        assert_eq!(apply(&m, &[]), []);
        assert_eq!(apply(&m, &[7]), [(0, 7)]);
    }

    #[test]
    fn a_poll_can_end_it() {
        let m = merges(&[((0, 0), 0, 1)]);
        let mut polls = 0;
        let mut poll = || {
            polls += 1;
            if polls < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let symbols = std::iter::repeat_n(0, 8 * POLL_MERGES);
        assert!(m.apply(symbols, &mut poll, |_, _| panic!("nothing is done")).is_break());
        assert_eq!(polls, 3);
    }

    proptest! {
        /// Ranks are one per result, as scores are: with several ranks for one result an old entry may
        /// stand for the pair that took its place, here as in the implementations that models are made with.
        #[test]
        fn the_heap_does_what_the_rule_says(
            pairs in prop::collection::vec(((0u32..6, 0u32..6), 4u32..9), 0..16),
            symbols in prop::collection::vec(0u32..4, 0..24),
        ) {
            let list: Vec<_> = pairs.iter().map(|&(pair, symbol)| (pair, symbol / 2, symbol)).collect();
            let m = merges(&list);
            let ours: Vec<u32> = apply(&m, &symbols).into_iter().map(|(_, symbol)| symbol).collect();
            prop_assert_eq!(ours, by_the_rule(&m, &symbols));
        }
    }
}
