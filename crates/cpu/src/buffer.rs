//! Memory of the CPU backend: zeroed, 64-byte aligned.

use bytemuck::{Pod, Zeroable};
use tidekv::backend::BackendError;

/// One cache line; its alignment is the buffer's.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A block of memory, viewed as bytes or as f32.
pub struct CpuBuffer(Box<[Line]>);

impl CpuBuffer {
    /// Zeroed memory of `bytes` bytes, a multiple of the alignment. Pages are
    /// not touched, so they cost nothing before they are written.
    pub(crate) fn zeroed(bytes: u64) -> Result<Self, BackendError> {
        let refused = BackendError::OutOfMemory { bytes };
        let lines =
            usize::try_from(bytes / size_of::<Line>() as u64).map_err(|_| refused.clone())?;
        if lines > isize::MAX as usize / size_of::<Line>() {
            return Err(refused);
        }
        bytemuck::allocation::try_zeroed_slice_box(lines).map(CpuBuffer).map_err(|()| refused)
    }

    pub(crate) fn bytes_view(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    pub(crate) fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_zeroed_and_refused_when_absurd() {
        let buffer = CpuBuffer::zeroed(256).unwrap();
        assert_eq!(buffer.bytes_view().as_ptr() as usize % 64, 0);
        assert!(buffer.bytes_view().iter().all(|&byte| byte == 0));
        assert_eq!((buffer.bytes_view().len(), buffer.floats().len()), (256, 64));
        for bytes in [u64::MAX, 1 << 62] {
            // Opaque, or the optimiser leaves the allocation out and it "succeeds".
            let refused = std::hint::black_box(CpuBuffer::zeroed(bytes)).err();
            assert_eq!(refused, Some(BackendError::OutOfMemory { bytes }));
        }
    }
}
