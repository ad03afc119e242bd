//! Counting global allocator: live and peak bytes, large blocks returned to the
//! system at once.
//!
//! A binary installs it with
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: tidekv_alloc::Counting = tidekv_alloc::Counting;
//! # fn main() { assert!(tidekv_alloc::stats().live_bytes > 0) }
//! ```
//!
//! and reads [`stats`]. On Linux, blocks of at least [`MAP_FROM`] bytes are
//! mapped and unmapped one by one: the C library keeps freed large blocks on its
//! heap once it has seen a few, and a process that promises to fall back to its
//! idle size after a long prompt must not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks of this many bytes and more get their own mapping (Linux). A cache is
/// two blocks per layer; where they were just too small for a mapping, the C
/// library's heap kept them all, 45 MiB of a small model at a limit of 1 MiB.
pub const MAP_FROM: usize = 1 << 16;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// What the allocator has counted. All zero when it is not installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Bytes allocated and not freed.
    pub live_bytes: u64,
    /// Largest `live_bytes` since the start or the last [`reset_peak`].
    pub peak_bytes: u64,
}

/// Reads the counters.
pub fn stats() -> Stats {
    Stats { live_bytes: LIVE.load(Relaxed), peak_bytes: PEAK.load(Relaxed) }
}

/// Starts a new peak from what is live now.
pub fn reset_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

fn grew(bytes: usize) {
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(live, Relaxed);
}

fn shrank(bytes: usize) {
    LIVE.fetch_sub(bytes as u64, Relaxed);
}

/// The allocator; see the crate documentation.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counting;

// SAFETY: every method forwards to `System` or to `mapped`, both of which meet
// the contract of `GlobalAlloc`; which one serves a block depends only on its
// layout, which the caller repeats on `dealloc`. Counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = match mapped::serves(layout) {
            true => mapped::alloc(layout.size()),
            // SAFETY: the caller's layout, unchanged.
            false => unsafe { System.alloc(layout) },
        };
        if !block.is_null() {
            grew(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = match mapped::serves(layout) {
            // Fresh mappings are zero.
            true => mapped::alloc(layout.size()),
            // SAFETY: the caller's layout, unchanged.
            false => unsafe { System.alloc_zeroed(layout) },
        };
        if !block.is_null() {
            grew(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match mapped::serves(layout) {
            // SAFETY: `serves` is a function of the layout, so this block came
            // from `mapped::alloc` with this size.
            true => unsafe { mapped::free(block, layout.size()) },
            // SAFETY: likewise, it came from `System` with this layout.
            false => unsafe { System.dealloc(block, layout) },
        }
        shrank(layout.size());
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that `new_size` with this alignment is
        // a valid layout.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !mapped::serves(layout) && !mapped::serves(new_layout) {
            // SAFETY: the block came from `System` with this layout.
            let moved = unsafe { System.realloc(block, layout, new_size) };
            if !moved.is_null() {
                grew(new_size);
                shrank(layout.size());
            }
            return moved;
        }
        // SAFETY: `new_layout` is valid and not empty, as the caller guarantees.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both blocks are live, distinct, and hold at least the
            // smaller of the two sizes.
            unsafe {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(target_os = "linux")]
mod mapped {
    //! Blocks with a mapping of their own.

    use super::MAP_FROM;
    use std::alloc::Layout;
    use std::ptr::null_mut;

    /// Mappings start at a page; every page size is a multiple of this.
    const SMALLEST_PAGE: usize = 4096;

    /// Whether blocks of this layout get their own mapping.
    pub(super) fn serves(layout: Layout) -> bool {
        layout.size() >= MAP_FROM && layout.align() <= SMALLEST_PAGE
    }

    /// A zeroed block, or null.
    pub(super) fn alloc(size: usize) -> *mut u8 {
        // SAFETY: an anonymous private mapping at an address of the system's
        // choice touches no existing memory; failure is checked below.
        let block = unsafe {
            libc::mmap(
                null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if block == libc::MAP_FAILED { null_mut() } else { block.cast() }
    }

    /// Returns a block to the system.
    ///
    /// # Safety
    /// `block` came from [`alloc`] with this size and is not used afterwards.
    pub(super) unsafe fn free(block: *mut u8, size: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(block.cast(), size) };
    }
}

#[cfg(not(target_os = "linux"))]
mod mapped {
    //! No block has a mapping of its own here.

    use std::alloc::Layout;

    pub(super) fn serves(_: Layout) -> bool {
        false
    }

    pub(super) fn alloc(_: usize) -> *mut u8 {
        std::ptr::null_mut()
    }

    /// # Safety
    /// Never called: [`serves`] is never true.
    pub(super) unsafe fn free(_: *mut u8, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    // The counters are global; tests that compare them take turns, and allow
    // for what the test harness itself allocates meanwhile.
    static TURN: Mutex<()> = Mutex::new(());
    const HARNESS: u64 = 256 << 10;

    #[test]
    fn counts_live_and_peak_on_both_paths() {
        let _turn = TURN.lock();
        for size in [3 * MAP_FROM, MAP_FROM - 1] {
            reset_peak();
            let before = stats().live_bytes;
            let blocks: Vec<_> = (0..64).map(|_| vec![1u8; size]).collect();
            let all = 64 * size as u64;
            let grown = stats().live_bytes - before;
            assert!(grown.abs_diff(all) < HARNESS, "{size}: {grown}");
            drop(blocks);
            assert!(stats().live_bytes.abs_diff(before) < HARNESS);
            assert!(stats().peak_bytes >= before + all - HARNESS);
        }
    }

    #[test]
    fn growing_across_the_threshold_keeps_the_contents_and_zeroed_is_zero() {
        let _turn = TURN.lock();
        let mut grown: Vec<u8> = Vec::with_capacity(1000);
        for i in 0..4 * MAP_FROM {
            grown.push(i as u8);
        }
        assert!(grown.iter().enumerate().all(|(i, &byte)| byte == i as u8));
        grown.truncate(10);
        grown.shrink_to_fit();
        assert_eq!(grown, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mut zeroed = vec![0u8; 2 * MAP_FROM];
        assert!(zeroed.iter().all(|&byte| byte == 0));
        zeroed.fill(7);
        drop(zeroed);
        assert!(vec![0u8; 2 * MAP_FROM].iter().all(|&byte| byte == 0));
    }
}
