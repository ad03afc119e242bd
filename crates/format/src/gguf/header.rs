//! The header as a pure function of bytes: fixed part, metadata, tensor table.

use std::collections::HashMap;

use crate::error::{FormatError, Limit, Table};
use crate::layout::{DataSection, RawTensor, TensorInfo, place};
use crate::looks_like::LooksLike;
use crate::tensor_type::TensorType;

use super::cursor::Cursor;
use super::metadata::{Array, Metadata, Value};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// Magic, version, tensor count, metadata count.
const FIXED_BYTES: u64 = 4 + 4 + 8 + 8;
/// Offsets are multiples of this unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The specification asks for a multiple of 8; with it, elements of every type are aligned in a map.
const MIN_ALIGNMENT: u64 = 8;
/// Least bytes of a metadata entry: key length, value type, one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// Least bytes of a tensor table row: name length, dimension count, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
/// Rows reserved before the first of a list with elements of variable size has been read.
const FIRST_RESERVE: u64 = 4096;

/// Everything a file says before its tensor data, checked.
#[derive(Debug, Clone)]
pub struct GgufHeader {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// End of the last tensor, or of the header where there is none, before padding.
    end: u64,
    alignment: u64,
}

impl GgufHeader {
    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The key-value part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Where a second file would begin if one were appended: with and without padding, bytes. A file
    /// whose last tensor has a type of unknown size has no such place inside.
    pub(super) fn ends(&self) -> [u64; 2] {
        [self.end, self.end.checked_next_multiple_of(self.alignment).unwrap_or(self.end)]
    }

    /// The two parts of a header that outlive its checks.
    pub(super) fn into_parts(self) -> (Metadata, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }
}

/// Reads and checks a header. `bytes` are the first bytes of a file of `file_len` bytes, at least up
/// to the end of its tensor table; tensor data is not looked at, its place is checked against
/// `file_len`. A part of a split model is accepted: by itself it is a whole file. Never panics, and
/// allocates at most a small multiple of `bytes.len()`.
pub fn parse_header(bytes: &[u8], file_len: u64) -> Result<GgufHeader, FormatError> {
    refuse_foreign(bytes, file_len)?;
    let mut cursor = Cursor::new(bytes, file_len);
    let fixed = || "its fixed part".to_owned();
    cursor.take(4, fixed)?;
    let version = cursor.u32(fixed)?;
    let n_tensors = cursor.u64(fixed)?;
    let n_entries = cursor.u64(fixed)?;
    Limit::Tensors.check(n_tensors, fixed)?;
    Limit::MetadataEntries.check(n_entries, fixed)?;

    let metadata = read_metadata(&mut cursor, n_entries)?;
    let alignment = read_alignment(&metadata)?;
    let raw = read_tensor_table(&mut cursor, n_tensors)?;
    let mut by_name = HashMap::with_capacity(raw.len());
    for (i, tensor) in raw.iter().enumerate() {
        if by_name.insert(tensor.name.clone(), i).is_some() {
            return Err(FormatError::Duplicate {
                table: Table::Tensors,
                name: tensor.name.clone(),
            });
        }
    }
    // The header is at most MAX_HEADER_BYTES long and the alignment a u32: no overflow.
    let start = cursor.position().next_multiple_of(alignment);
    let tensors = place(raw, DataSection { start, alignment, file_len })?;
    let end = tensors.iter().map(|tensor| tensor.end).max().unwrap_or(cursor.position());
    Ok(GgufHeader { version, metadata, tensors, by_name, end, alignment })
}

/// Names what is not a GGUF file of a version we read, before anything else is believed.
fn refuse_foreign(bytes: &[u8], file_len: u64) -> Result<(), FormatError> {
    if bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes) {
        return Err(FormatError::TooShort { actual: file_len, needed: FIXED_BYTES });
    }
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return Err(FormatError::NotGguf(LooksLike::of(bytes)));
    };
    if (bytes.len() as u64) < FIXED_BYTES {
        return Err(FormatError::TooShort { actual: file_len, needed: FIXED_BYTES });
    }
    let version = u32::from_le_bytes(*rest.first_chunk().expect("longer than FIXED_BYTES"));
    match version {
        2 | 3 => Ok(()),
        // 2 and 3 with their bytes the other way round.
        0x0200_0000 | 0x0300_0000 => Err(FormatError::NotGguf(LooksLike::BigEndianGguf)),
        _ => Err(FormatError::UnsupportedVersion { version }),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u64, FormatError> {
    let key = "general.alignment";
    let Some(alignment) = metadata.u32(key)?.map(u64::from) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    if alignment >= MIN_ALIGNMENT && alignment.is_power_of_two() {
        return Ok(alignment);
    }
    let expected = "a power of two of at least 8";
    Err(FormatError::BadMetadata { key: key.to_owned(), expected, found: alignment.to_string() })
}

fn read_metadata(cursor: &mut Cursor, n_entries: u64) -> Result<Metadata, FormatError> {
    cursor.require(n_entries * MIN_ENTRY_BYTES, || format!("its {n_entries} metadata entries"))?;
    let mut metadata = Metadata::default();
    for i in 0..n_entries {
        let key = cursor.string(Limit::KeyBytes, || format!("metadata entry {i}"))?;
        let value = read_value(cursor, key)?;
        metadata.insert(key.to_owned(), value)?;
    }
    Ok(metadata)
}

fn read_tensor_table(cursor: &mut Cursor, n_tensors: u64) -> Result<Vec<RawTensor>, FormatError> {
    cursor.require(n_tensors * MIN_TENSOR_BYTES, || format!("its table of {n_tensors} tensors"))?;
    let mut tensors = Vec::with_capacity(n_tensors.min(FIRST_RESERVE) as usize);
    for i in 0..n_tensors {
        let name =
            cursor.string(Limit::TensorNameBytes, || format!("row {i} of the tensor table"))?;
        let at = || format!("the entry of tensor `{name}`");
        let n_dims = cursor.u32(at)?;
        Limit::Dims.check(n_dims.into(), at)?;
        let mut shape = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            shape.push(cursor.u64(at)?);
        }
        let ty = TensorType::from_id(cursor.u32(at)?);
        let offset = cursor.u64(at)?;
        tensors.push(RawTensor { name: name.to_owned(), shape, ty, offset });
    }
    Ok(tensors)
}

/// The value types of the file format.
mod value_type {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

fn read_value(cursor: &mut Cursor, key: &str) -> Result<Value, FormatError> {
    let at = || format!("the value of `{key}`");
    Ok(match cursor.u32(at)? {
        value_type::U8 => Value::U8(u8::from_le_bytes(cursor.scalar(at)?)),
        value_type::I8 => Value::I8(i8::from_le_bytes(cursor.scalar(at)?)),
        value_type::U16 => Value::U16(u16::from_le_bytes(cursor.scalar(at)?)),
        value_type::I16 => Value::I16(i16::from_le_bytes(cursor.scalar(at)?)),
        value_type::U32 => Value::U32(cursor.u32(at)?),
        value_type::I32 => Value::I32(i32::from_le_bytes(cursor.scalar(at)?)),
        value_type::F32 => Value::F32(f32::from_le_bytes(cursor.scalar(at)?)),
        value_type::BOOL => {
            let [byte] = cursor.scalar(at)?;
            Value::Bool(checked_bool(byte, key)?)
        }
        value_type::STRING => Value::String(cursor.string(Limit::StringBytes, at)?.to_owned()),
        value_type::ARRAY => Value::Array(read_array(cursor, key, 1)?),
        value_type::U64 => Value::U64(cursor.u64(at)?),
        value_type::I64 => Value::I64(i64::from_le_bytes(cursor.scalar(at)?)),
        value_type::F64 => Value::F64(f64::from_le_bytes(cursor.scalar(at)?)),
        id => {
            return Err(FormatError::BadValueType { key: key.to_owned(), id });
        }
    })
}

/// An array whose own depth is `depth`: its element type, length and elements.
fn read_array(cursor: &mut Cursor, key: &str, depth: u64) -> Result<Array, FormatError> {
    let at = || format!("the array of `{key}`");
    Limit::ArrayDepth.check(depth, at)?;
    let element = cursor.u32(at)?;
    let len = cursor.u64(at)?;
    Limit::ArrayLen.check(len, at)?;
    Ok(match element {
        value_type::U8 => Array::U8(scalars(cursor, key, len, u8::from_le_bytes)?),
        value_type::I8 => Array::I8(scalars(cursor, key, len, i8::from_le_bytes)?),
        value_type::U16 => Array::U16(scalars(cursor, key, len, u16::from_le_bytes)?),
        value_type::I16 => Array::I16(scalars(cursor, key, len, i16::from_le_bytes)?),
        value_type::U32 => Array::U32(scalars(cursor, key, len, u32::from_le_bytes)?),
        value_type::I32 => Array::I32(scalars(cursor, key, len, i32::from_le_bytes)?),
        value_type::F32 => Array::F32(scalars(cursor, key, len, f32::from_le_bytes)?),
        value_type::BOOL => {
            let bytes = cursor.take(len, at)?;
            Array::Bool(
                bytes.iter().map(|&byte| checked_bool(byte, key)).collect::<Result<_, _>>()?,
            )
        }
        value_type::STRING => Array::String(read_strings(cursor, key, len)?),
        value_type::ARRAY => {
            // An element is at least its type and length.
            cursor.require(len * (4 + 8), at)?;
            let mut arrays = Vec::with_capacity(len.min(FIRST_RESERVE) as usize);
            for _ in 0..len {
                arrays.push(read_array(cursor, key, depth + 1)?);
            }
            Array::Array(arrays)
        }
        value_type::U64 => Array::U64(scalars(cursor, key, len, u64::from_le_bytes)?),
        value_type::I64 => Array::I64(scalars(cursor, key, len, i64::from_le_bytes)?),
        value_type::F64 => Array::F64(scalars(cursor, key, len, f64::from_le_bytes)?),
        id => {
            return Err(FormatError::BadValueType { key: key.to_owned(), id });
        }
    })
}

/// `len` elements of N bytes; the vector is as large as the bytes it is made from.
fn scalars<T, const N: usize>(
    cursor: &mut Cursor,
    key: &str,
    len: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, FormatError> {
    let bytes = cursor.take(len * N as u64, || format!("the array of `{key}`"))?;
    Ok(bytes.as_chunks().0.iter().map(|chunk| decode(*chunk)).collect())
}

fn read_strings(cursor: &mut Cursor, key: &str, len: u64) -> Result<Vec<String>, FormatError> {
    cursor.require(len * 8, || format!("the {len} strings of `{key}`"))?;
    let mut strings = Vec::with_capacity(len.min(FIRST_RESERVE) as usize);
    for i in 0..len {
        strings.push(
            cursor.string(Limit::StringBytes, || format!("string {i} of `{key}`"))?.to_owned(),
        );
    }
    Ok(strings)
}

fn checked_bool(byte: u8, key: &str) -> Result<bool, FormatError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(FormatError::BadBool { key: key.to_owned(), value }),
    }
}
