//! The element types of tensors: ggml's numbers, names and block sizes, and the names of the few types
//! that only safetensors has.

use std::fmt;

use crate::limits::MAX_DTYPE_BYTES;

/// The unit in which a type is stored: `len` consecutive elements of a row in `bytes` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Elements.
    pub len: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Declares the enum and its three tables from one list, so that they cannot disagree.
macro_rules! tensor_types {
    ($($name:ident = $id:literal $(($len:literal, $bytes:literal))?;)*) => {
        /// How a tensor's elements are stored, by ggml's names. A number this list does not have is
        /// kept as [`TensorType::Unknown`]: one tensor of a new type must not make a file unreadable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "ggml's names, as users and model cards write them")]
        #[expect(missing_docs, reason = "the names are the documentation")]
        pub enum TensorType {
            $($name,)*
            /// A number of ggml's that this list does not have.
            Unknown(u32),
            /// An element type of safetensors that ggml does not have.
            Other(DtypeName),
        }

        impl TensorType {
            /// The type with ggml's number `id`.
            pub fn from_id(id: u32) -> TensorType {
                match id {
                    $($id => TensorType::$name,)*
                    _ => TensorType::Unknown(id),
                }
            }

            /// ggml's number of the type; `None` for one that ggml does not have.
            pub fn id(self) -> Option<u32> {
                match self {
                    $(TensorType::$name => Some($id),)*
                    TensorType::Unknown(id) => Some(id),
                    TensorType::Other(_) => None,
                }
            }

            /// Elements and bytes of a block; `None` where they are not known for sure.
            pub fn block(self) -> Option<Block> {
                match self {
                    $($(TensorType::$name => Some(Block { len: $len, bytes: $bytes }),)?)*
                    #[allow(unreachable_patterns, reason = "reached by the types listed without a size")]
                    _ => None,
                }
            }
        }

        impl fmt::Display for TensorType {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(TensorType::$name => f.write_str(stringify!($name)),)*
                    TensorType::Unknown(id) => write!(f, "unknown type {id}"),
                    TensorType::Other(name) => f.write_str(name.as_str()),
                }
            }
        }

        #[cfg(test)]
        const ALL: &[TensorType] = &[$(TensorType::$name),*];
    };
}

// Numbers, block lengths and bytes: `enum ggml_type` and the block structs of ggml. Numbers that ggml
// has retired (4, 5, 31-33, 36-38) are unknown here too. Q8_1 is an intermediate of ggml's dot
// products; its scale and sum are f16 since 2023.
tensor_types! {
    F32 = 0 (1, 4);
    F16 = 1 (1, 2);
    Q4_0 = 2 (32, 18);
    Q4_1 = 3 (32, 20);
    Q5_0 = 6 (32, 22);
    Q5_1 = 7 (32, 24);
    Q8_0 = 8 (32, 34);
    Q8_1 = 9 (32, 36);
    Q2_K = 10 (256, 84);
    Q3_K = 11 (256, 110);
    Q4_K = 12 (256, 144);
    Q5_K = 13 (256, 176);
    Q6_K = 14 (256, 210);
    Q8_K = 15 (256, 292);
    IQ2_XXS = 16 (256, 66);
    IQ2_XS = 17 (256, 74);
    IQ3_XXS = 18 (256, 98);
    IQ1_S = 19 (256, 50);
    IQ4_NL = 20 (32, 18);
    IQ3_S = 21 (256, 110);
    IQ2_S = 22 (256, 82);
    IQ4_XS = 23 (256, 136);
    I8 = 24 (1, 1);
    I16 = 25 (1, 2);
    I32 = 26 (1, 4);
    I64 = 27 (1, 8);
    F64 = 28 (1, 8);
    IQ1_M = 29 (256, 56);
    BF16 = 30 (1, 2);
    TQ1_0 = 34 (256, 54);
    TQ2_0 = 35 (256, 66);
    MXFP4 = 39 (32, 17);
    NVFP4 = 40 (64, 36);
    Q1_0 = 41 (128, 18);
}

/// Name of an element type, kept in place so that [`TensorType`] stays a plain value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DtypeName {
    /// UTF-8, zero-filled.
    bytes: [u8; MAX_DTYPE_BYTES as usize],
    len: u8,
}

impl DtypeName {
    /// `None` if the name has more than [`MAX_DTYPE_BYTES`].
    pub fn new(name: &str) -> Option<DtypeName> {
        let mut bytes = [0; MAX_DTYPE_BYTES as usize];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(DtypeName { bytes, len: name.len() as u8 })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("`new` copied a whole str")
    }
}

impl fmt::Debug for DtypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl TensorType {
    /// The type that safetensors calls `name`; `None` if no type has so long a name.
    ///
    /// Types that both formats have are ggml's, so that a model reads the same from either; the rest
    /// keep their name as [`TensorType::Other`].
    pub fn from_dtype(name: &str) -> Option<TensorType> {
        Some(match name {
            "F64" => TensorType::F64,
            "F32" => TensorType::F32,
            "F16" => TensorType::F16,
            "BF16" => TensorType::BF16,
            "I64" => TensorType::I64,
            "I32" => TensorType::I32,
            "I16" => TensorType::I16,
            "I8" => TensorType::I8,
            _ => TensorType::Other(DtypeName::new(name)?),
        })
    }

    /// Elements of a block.
    pub fn block_len(self) -> Option<u64> {
        self.block().map(|block| block.len)
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> Option<u64> {
        self.block().map(|block| block.bytes)
    }

    /// Bytes of a row of `n` elements; `None` if the block size is unknown, `n` is not a whole
    /// number of blocks, or the product overflows.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        let block = self.block()?;
        if !n.is_multiple_of(block.len) {
            return None;
        }
        (n / block.len).checked_mul(block.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_the_round_trip_through_its_number() {
        for &ty in ALL {
            assert_eq!(ty.id().map(TensorType::from_id), Some(ty));
        }
        for retired in [4, 5, 31, 32, 33, 36, 37, 38, 1000] {
            assert_eq!(TensorType::from_id(retired), TensorType::Unknown(retired));
            assert_eq!(TensorType::Unknown(retired).id(), Some(retired));
            assert_eq!(TensorType::Unknown(retired).block(), None);
        }
    }

    #[test]
    fn types_that_both_formats_have_are_the_same() {
        for ty in ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"] {
            let read = TensorType::from_dtype(ty).unwrap();
            assert_eq!(read.to_string(), ty);
            assert!(read.id().is_some(), "{ty}");
        }
        let fp8 = TensorType::from_dtype("F8_E4M3").unwrap();
        assert_eq!((fp8.to_string().as_str(), fp8.id(), fp8.block()), ("F8_E4M3", None, None));
        assert_ne!(TensorType::from_dtype("F8_E5M2").unwrap(), fp8);
        assert!(TensorType::from_dtype(&"N".repeat(16)).is_some());
        assert_eq!(TensorType::from_dtype(&"N".repeat(17)), None);
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(511), None);
        assert_eq!(TensorType::F64.row_bytes(u64::MAX), None);
        assert_eq!(TensorType::Q8_1.row_bytes(32), Some(36));
        assert_eq!(TensorType::BF16.to_string(), "BF16");
    }
}
