//! The header as a pure function of bytes: a 64-bit length, a JSON object, then data without gaps.
//!
//! The format: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, HashMap};

use crate::error::{CutOff, FormatError, LayoutFault, Limit, Table};
use crate::layout::{TensorInfo, checked_product, in_file_order, refuse_truncated};
use crate::looks_like::LooksLike;
use crate::tensor_type::TensorType;

use super::json::{self, Entry};

/// Bytes of the length in front of the JSON.
const LENGTH_BYTES: u64 = 8;
/// The header's name in messages.
const HEADER: &str = "the safetensors header";

/// Everything a safetensors file says before its tensor data, checked.
#[derive(Debug, Clone)]
pub struct SafetensorsHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl SafetensorsHeader {
    /// The entries of `__metadata__`: free text.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All tensors, in the order of the header; shapes fastest dimension first.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    pub(super) fn into_parts(self) -> (BTreeMap<String, String>, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }
}

/// Reads and checks a header. `bytes` are the first bytes of a file of `file_len` bytes, at least up
/// to the end of its header; tensor data is not looked at, its place is checked against `file_len`.
/// Never panics, and allocates at most a small multiple of `bytes.len()`.
///
/// Tensors must fill the data section without gaps, as the format asks. Data may begin at any byte:
/// writers pad headers only since 2023, and elements are read one by one.
pub fn parse_safetensors_header(
    bytes: &[u8],
    file_len: u64,
) -> Result<SafetensorsHeader, FormatError> {
    let json = json_of(bytes, file_len)?;
    let header: json::Header = json::parse(json, HEADER, LENGTH_BYTES)?;
    header.tensors.check(Limit::Tensors, HEADER)?;
    header.tensors.refuse_duplicates(Table::Tensors)?;
    header.metadata.check(Limit::MetadataEntries, HEADER)?;
    header.metadata.refuse_duplicates(Table::Metadata)?;

    // At most MAX_SAFETENSORS_HEADER_BYTES of JSON: no overflow.
    let section = Section { start: LENGTH_BYTES + json.len() as u64, file_len };
    let entries = header.tensors.kept.into_iter();
    let tensors =
        entries.map(|(name, entry)| section.place(name, entry)).collect::<Result<Vec<_>, _>>()?;
    section.check(&tensors)?;
    let by_name = tensors.iter().zip(0..).map(|(tensor, i)| (tensor.name.clone(), i)).collect();
    Ok(SafetensorsHeader { metadata: header.metadata.kept.into_iter().collect(), tensors, by_name })
}

/// The JSON part of `bytes`; names what is not a safetensors file before anything is believed.
fn json_of(bytes: &[u8], file_len: u64) -> Result<&[u8], FormatError> {
    let looks = LooksLike::of(bytes);
    if !matches!(looks, LooksLike::Safetensors | LooksLike::Unknown(_)) {
        return Err(FormatError::NotSafetensors(looks));
    }
    let Some((length, rest)) = bytes.split_first_chunk::<{ LENGTH_BYTES as usize }>() else {
        return Err(FormatError::TooShort { actual: file_len, needed: LENGTH_BYTES });
    };
    if rest.first().is_some_and(|&first| first != b'{') {
        return Err(FormatError::NotSafetensors(looks));
    }
    let length = u64::from_le_bytes(*length);
    Limit::SafetensorsHeaderBytes.check(length, || HEADER.to_owned())?;
    let whole = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    whole.ok_or_else(|| FormatError::Truncated {
        expected: LENGTH_BYTES + length,
        actual: file_len.min(bytes.len() as u64),
        missing: CutOff::Header("its JSON text".to_owned()),
    })
}

/// Where the data lies.
#[derive(Clone, Copy)]
struct Section {
    start: u64,
    file_len: u64,
}

impl Section {
    /// Absolute place of one tensor, whose size must be the one that shape and type need.
    fn place(self, name: String, entry: Entry) -> Result<TensorInfo, FormatError> {
        let at = || format!("{HEADER}, tensor `{}`", crate::error::cut(&name));
        Limit::TensorNameBytes.check(name.len() as u64, at)?;
        Limit::SafetensorsDims.check(entry.shape.count, at)?;
        Limit::DtypeBytes.check(entry.dtype.len() as u64, at)?;
        let ty = TensorType::from_dtype(&entry.dtype).expect("no longer than MAX_DTYPE_BYTES");
        let mut shape = entry.shape.kept;
        shape.reverse();
        let (begin, end) = entry.data_offsets;
        let Some(n_bytes) = end.checked_sub(begin) else {
            let fault = LayoutFault::Reversed { begin, end };
            return Err(FormatError::BadLayout { tensor: name, fault });
        };
        let bits = checked_product(&shape)
            .and_then(|n| n.checked_mul(element_bits(&entry.dtype).unwrap_or(0)));
        let (Some(bits), Some(absolute_end)) = (bits, self.start.checked_add(end)) else {
            return Err(FormatError::Overflow { tensor: name, shape, offset: begin });
        };
        let is_known = element_bits(&entry.dtype).is_some();
        // Compared in u128: bytes may be any u64.
        if is_known && u128::from(bits) != u128::from(n_bytes) * 8 {
            let fault = LayoutFault::WrongSize { shape, ty, needed_bits: bits, bytes: n_bytes };
            return Err(FormatError::BadLayout { tensor: name, fault });
        }
        Ok(TensorInfo {
            name,
            shape,
            ty,
            file: 0,
            offset: self.start + begin,
            n_bytes: Some(n_bytes),
            end: absolute_end,
        })
    }

    /// Refuses overlaps, holes, and a file that is shorter or longer than its tensors.
    fn check(self, tensors: &[TensorInfo]) -> Result<(), FormatError> {
        let by_offset = in_file_order(tensors)?;
        let mut expected = self.start;
        for &i in &by_offset {
            let tensor = &tensors[i];
            if tensor.offset != expected {
                let fault = LayoutFault::Hole { bytes: tensor.offset - expected };
                return Err(FormatError::BadLayout { tensor: tensor.name.clone(), fault });
            }
            expected = tensor.end;
        }
        refuse_truncated(tensors, &by_offset, self.file_len)?;
        if self.file_len > expected {
            return Err(FormatError::Trailing { expected, actual: self.file_len });
        }
        Ok(())
    }
}

/// Bits of an element of the published types; `None` for a type that is not known here, whose size is
/// then taken from its place.
fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "I8" | "U8" | "BOOL" => 8,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}
