//! Where tensors lie: sizes from shapes, and the checks that make every view safe to hand out.

use crate::error::{CutOff, FormatError, LayoutFault};
use crate::tensor_type::TensorType;

/// One tensor of a file: name, shape, type and place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name, unique in its file.
    pub name: String,
    /// Elements per dimension in ggml's order, the fastest (contiguous) first, whatever the format of
    /// the file: a matrix that maps K inputs to M outputs has shape `[K, M]` and is stored as M rows
    /// of K. Empty for a scalar.
    pub shape: Vec<u64>,
    /// How elements are stored.
    pub ty: TensorType,
    /// Which of the files of its [`TensorStore`](crate::TensorStore); 0 where there is one.
    pub file: usize,
    /// Absolute position in the file, bytes.
    pub offset: u64,
    /// Bytes of the data; `None` if the block size of the type is not known.
    pub n_bytes: Option<u64>,
    /// Absolute end of what [`GgufFile::bytes`](crate::GgufFile::bytes) returns.
    pub(crate) end: u64,
}

impl TensorInfo {
    /// Elements per row, the fastest dimension; 1 for a scalar.
    pub fn row_len(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of elements.
    pub fn n_elements(&self) -> u64 {
        // Checked when the table was read: products above 64 bits are refused.
        self.shape.iter().product()
    }
}

/// A row of the tensor table as it stands in the file.
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) ty: TensorType,
    /// Relative to the data section.
    pub(crate) offset: u64,
}

/// The data section: where it begins and what its offsets are multiples of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataSection {
    pub(crate) start: u64,
    pub(crate) alignment: u64,
    pub(crate) file_len: u64,
}

/// Computes the extent of every tensor and refuses the file unless all of them are aligned, disjoint
/// and inside it. The order of `raw` is kept.
pub(crate) fn place(
    raw: Vec<RawTensor>,
    section: DataSection,
) -> Result<Vec<TensorInfo>, FormatError> {
    let mut tensors =
        raw.into_iter().map(|tensor| place_one(tensor, section)).collect::<Result<Vec<_>, _>>()?;
    let by_offset = in_file_order(&tensors)?;
    refuse_truncated(&tensors, &by_offset, section.file_len)?;
    extend_unknown(&mut tensors, &by_offset, section.file_len);
    Ok(tensors)
}

/// The indices of `tensors` in the order in which they lie in the file; refuses two that overlap.
pub(crate) fn in_file_order(tensors: &[TensorInfo]) -> Result<Vec<usize>, FormatError> {
    let mut by_offset: Vec<usize> = (0..tensors.len()).collect();
    // Empty tensors sort before the tensor that begins at the same place, so they overlap nothing.
    by_offset.sort_by_key(|&i| (tensors[i].offset, tensors[i].end));
    for pair in by_offset.windows(2) {
        let (first, second) = (&tensors[pair[0]], &tensors[pair[1]]);
        if first.end > second.offset {
            return Err(FormatError::BadLayout {
                tensor: second.name.clone(),
                fault: LayoutFault::Overlaps {
                    other: first.name.clone(),
                    bytes: first.end.min(second.end) - second.offset,
                },
            });
        }
    }
    Ok(by_offset)
}

/// Size and absolute place of one tensor. Until its neighbours are known, one of unknown size ends
/// where its smallest possible form would: after one byte, or at once if it has no elements.
fn place_one(raw: RawTensor, section: DataSection) -> Result<TensorInfo, FormatError> {
    let RawTensor { name, shape, ty, offset: relative } = raw;
    if !relative.is_multiple_of(section.alignment) {
        let fault = LayoutFault::Misaligned { offset: relative, alignment: section.alignment };
        return Err(FormatError::BadLayout { tensor: name, fault });
    }
    let row = shape.first().copied().unwrap_or(1);
    if let Some(block) = ty.block_len().filter(|&block| !row.is_multiple_of(block)) {
        return Err(FormatError::BadLayout {
            tensor: name,
            fault: LayoutFault::RaggedRow { row, block },
        });
    }
    let extent = || {
        let n_elements = checked_product(&shape)?;
        let n_bytes = match ty.block() {
            Some(block) => Some((n_elements / block.len).checked_mul(block.bytes)?),
            None => None,
        };
        let offset = section.start.checked_add(relative)?;
        let end = offset.checked_add(n_bytes.unwrap_or(n_elements.min(1)))?;
        Some((offset, n_bytes, end))
    };
    match extent() {
        Some((offset, n_bytes, end)) => {
            Ok(TensorInfo { name, shape, ty, file: 0, offset, n_bytes, end })
        }
        None => Err(FormatError::Overflow { tensor: name, shape, offset: relative }),
    }
}

/// The product, checked without regard to a zero that would hide an overflow in front of it.
pub(crate) fn checked_product(shape: &[u64]) -> Option<u64> {
    let nonzero =
        shape.iter().filter(|&&n| n != 0).try_fold(1u64, |product, &n| product.checked_mul(n))?;
    Some(if shape.contains(&0) { 0 } else { nonzero })
}

/// Names the first tensor in file order that is not whole and the length the file should have.
/// Padding after the last tensor is not missed: some writers leave it out.
pub(crate) fn refuse_truncated(
    tensors: &[TensorInfo],
    by_offset: &[usize],
    file_len: u64,
) -> Result<(), FormatError> {
    let Some(&cut) = by_offset.iter().find(|&&i| tensors[i].end > file_len) else {
        return Ok(());
    };
    let expected = tensors.iter().map(|tensor| tensor.end).max().unwrap_or(file_len);
    Err(FormatError::Truncated {
        expected,
        actual: file_len,
        missing: CutOff::Tensor(tensors[cut].name.clone()),
    })
}

/// A tensor of unknown size reaches to the next one, or to the end of the file.
fn extend_unknown(tensors: &mut [TensorInfo], by_offset: &[usize], file_len: u64) {
    let mut next = file_len;
    for &i in by_offset.iter().rev() {
        let tensor = &mut tensors[i];
        if tensor.n_bytes.is_none() && tensor.end > tensor.offset {
            tensor.end = next;
        }
        next = tensor.offset;
    }
}
