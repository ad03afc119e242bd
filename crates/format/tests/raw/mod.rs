//! Bytes of both formats with every field open to be wrong. Shared by the test files of this crate.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod safetensors;

/// A tensor table row.
#[derive(Clone)]
pub struct RawTensor {
    pub name: Vec<u8>,
    pub shape: Vec<u64>,
    pub ty: u32,
    pub offset: u64,
}

/// A file; `None` counts and lengths are those that fit the rest.
#[derive(Clone)]
pub struct Raw {
    pub version: u32,
    pub n_tensors: Option<u64>,
    pub n_entries: Option<u64>,
    /// Each is a whole entry: key, value type, value.
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<RawTensor>,
    /// Bytes of the data section.
    pub data_len: Option<usize>,
}

/// A GGUF string.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [(bytes.len() as u64).to_le_bytes().as_slice(), bytes].concat()
}

/// Type and value of an array of `len` elements of type `element`, whatever `data` is.
pub fn array_of(element: u32, len: u64, data: &[u8]) -> Vec<u8> {
    [9u32.to_le_bytes().as_slice(), &element.to_le_bytes(), &len.to_le_bytes(), data].concat()
}

/// The bytes of [`Raw::valid`].
pub fn valid() -> Vec<u8> {
    Raw::valid().bytes()
}

impl Raw {
    /// The shape of a real header in small: strings, numbers, arrays of both, two tensors,
    /// `a` [8] and `b` [9], both F32; `b` ends the file, without padding.
    pub fn valid() -> Raw {
        let tensor = |name: &[u8], n, offset| RawTensor {
            name: name.to_vec(),
            shape: vec![n],
            ty: 0,
            offset,
        };
        let mut file = Raw {
            version: 3,
            n_tensors: None,
            n_entries: None,
            entries: Vec::new(),
            tensors: vec![tensor(b"a", 8, 0), tensor(b"b", 9, 32)],
            data_len: Some(68),
        };
        file.push_entry(
            "general.architecture",
            [8u32.to_le_bytes().to_vec(), string(b"llama")].concat(),
        );
        file.push_entry("llama.block_count", [4u32.to_le_bytes(), 2u32.to_le_bytes()].concat());
        file.push_entry(
            "llama.rope.freq_base",
            [6u32.to_le_bytes(), 1e4f32.to_le_bytes()].concat(),
        );
        file.push_entry(
            "tokenizer.ggml.add_bos_token",
            [7u32.to_le_bytes().as_slice(), &[0]].concat(),
        );
        let tokens = [string("Ġ".as_bytes()), string(b"a"), string(b"b")].concat();
        file.push_entry("tokenizer.ggml.tokens", array_of(8, 3, &tokens));
        file.push_entry(
            "tokenizer.ggml.token_type",
            array_of(5, 3, &[3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]),
        );
        file
    }

    pub fn push_entry(&mut self, key: &str, typed_value: Vec<u8>) {
        self.entries.push([string(key.as_bytes()), typed_value].concat());
    }

    /// An entry of the type that writers use for the keys of split models.
    pub fn push_u16(&mut self, key: &str, value: u16) {
        self.push_entry(key, [2u32.to_le_bytes().as_slice(), &value.to_le_bytes()].concat());
    }

    pub fn with_value(key: &str, typed_value: Vec<u8>) -> Raw {
        let mut file = Raw::valid();
        file.push_entry(key, typed_value);
        file
    }

    pub fn with_entry(entry: Vec<u8>) -> Raw {
        let mut file = Raw::valid();
        file.entries.push(entry);
        file
    }

    /// Fixed part, metadata and tensor table.
    pub fn bytes_without_padding(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_entries.unwrap_or(self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    /// The whole file; data bytes count up.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.bytes_without_padding();
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend((0..self.data_len.unwrap_or(0)).map(|i| i as u8));
        out
    }
}
