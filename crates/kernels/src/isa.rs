//! The instruction set a kernel runs with, as a token.
//!
//! Holding an [`Isa`] proves that this CPU executes the instructions of its [`Tier`]: the only
//! constructors ask the CPU. It is resolved once when the engine starts and passed down by value;
//! each kernel call matches on it once (`lanes::dispatch`), never per element.

use std::fmt;
use std::str::FromStr;

/// A set of instructions for which every kernel is compiled, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Plain Rust with separate multiply and add; every machine has it.
    Portable,
    /// x86-64 with AVX2, FMA and F16C: 8 lanes of f32.
    Avx2,
    /// x86-64 with AVX-512F beside everything of [`Tier::Avx2`]: 16 lanes of f32.
    Avx512,
    /// x86-64 with AVX512-VNNI beside everything of [`Tier::Avx512`]: products of 16-bit integers
    /// are added up in one instruction.
    Avx512Vnni,
}

impl Tier {
    /// All tiers, slowest first.
    pub const ALL: [Tier; 4] = [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Avx512Vnni];

    /// The name used on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Portable => "portable",
            Tier::Avx2 => "avx2",
            Tier::Avx512 => "avx512",
            Tier::Avx512Vnni => "avx512vnni",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that belongs to no [`Tier`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{name}`; use portable, avx2, avx512 or avx512vnni")]
pub struct UnknownTier {
    /// The name as given.
    pub name: String,
}

impl FromStr for Tier {
    type Err = UnknownTier;

    fn from_str(name: &str) -> Result<Tier, UnknownTier> {
        Tier::ALL
            .into_iter()
            .find(|tier| tier.name() == name)
            .ok_or_else(|| UnknownTier { name: name.to_owned() })
    }
}

/// Proof that this CPU executes the instructions of one [`Tier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa {
    tier: Tier,
}

impl Isa {
    /// The fastest tier of this CPU.
    pub fn detect() -> Isa {
        Tier::ALL.into_iter().rev().find_map(Isa::with_tier).unwrap_or(Isa { tier: Tier::Portable })
    }

    /// The token of `tier`, or `None` if this CPU lacks an instruction that `tier` uses.
    pub fn with_tier(tier: Tier) -> Option<Isa> {
        cpu_has(tier).then_some(Isa { tier })
    }

    /// Every tier of this CPU, portable first. Tests loop over it.
    pub fn available() -> Vec<Isa> {
        Tier::ALL.into_iter().filter_map(Isa::with_tier).collect()
    }

    /// The tier this token stands for.
    pub fn tier(self) -> Tier {
        self.tier
    }

    /// The tier's name, for reports.
    pub fn name(self) -> &'static str {
        self.tier.name()
    }
}

/// Whether the CPU, and the operating system for the wide registers, supports `tier`.
///
/// The features named here are exactly those that the entry points in `lanes` enable.
#[cfg(target_arch = "x86_64")]
fn cpu_has(tier: Tier) -> bool {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2 && is_x86_feature_detected!("avx512f");
    match tier {
        Tier::Portable => true,
        Tier::Avx2 => avx2,
        Tier::Avx512 => avx512,
        Tier::Avx512Vnni => avx512 && is_x86_feature_detected!("avx512vnni"),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn cpu_has(tier: Tier) -> bool {
    tier == Tier::Portable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portable_is_always_available_and_first() {
        let tiers: Vec<Tier> = Isa::available().into_iter().map(Isa::tier).collect();
        assert_eq!(tiers.first(), Some(&Tier::Portable));
        assert!(tiers.is_sorted());
        assert_eq!(tiers.last(), Some(&Isa::detect().tier()));
    }

    #[test]
    fn names_round_trip_and_unknown_ones_are_named() {
        for tier in Tier::ALL {
            assert_eq!(tier.to_string().parse(), Ok(tier));
        }
        let error = "avx1024".parse::<Tier>().unwrap_err();
        assert!(error.to_string().contains("avx1024"), "{error}");
    }
}
