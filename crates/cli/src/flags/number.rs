//! Numbers on the command line: counts and sizes with units.

use std::num::NonZeroUsize;

/// A count such as 4096, 128k or 1M (k and M are powers of 1,024, as in context
/// lengths).
pub fn count(text: &str) -> Result<usize, String> {
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    let number = scaled(text, &[("k", 10), ("K", 10), ("m", 20), ("M", 20)]);
    number
        .and_then(|number| usize::try_from(number).ok())
        .ok_or_else(|| format!("`{text}` is not a count such as 4096, 128k or 1M"))
}

/// A count of at least 1.
pub fn positive(text: &str) -> Result<NonZeroUsize, String> {
    at_least(text, 1)
}

/// A count of at least `least`.
pub fn at_least(text: &str, least: usize) -> Result<NonZeroUsize, String> {
    let number = if is_negative(text) { 0 } else { count(text)? };
    NonZeroUsize::new(number)
        .filter(|number| number.get() >= least)
        .ok_or_else(|| format!("must be at least {least}"))
}

/// A number of threads. Many more than there are processors wait for each other at every step, so
/// that a slip of the finger would look like a run that hangs.
pub fn threads(text: &str) -> Result<NonZeroUsize, String> {
    const PER_PROCESSOR: usize = 4;
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let most = processors.saturating_mul(PER_PROCESSOR);
    match positive(text)? {
        threads if threads.get() <= most => Ok(threads),
        _ => Err(format!(
            "must be at most {most}: {PER_PROCESSOR} for each of the {processors} processors that \
             this process may use"
        )),
    }
}

fn is_negative(text: &str) -> bool {
    text.trim().parse::<f64>().is_ok_and(|number| number < 0.0)
}

/// A size such as 800MiB, 8G or 8GiB (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 10),
        ("MiB", 20),
        ("GiB", 30),
        ("TiB", 40),
        ("K", 10),
        ("M", 20),
        ("G", 30),
        ("T", 40),
        ("B", 0),
    ];
    scaled(text, &units).ok_or_else(|| format!("`{text}` is not a size such as 800MiB, 8G or 8GiB"))
}

/// A number with an optional unit of `2^shift`; fractions are allowed before a
/// unit.
fn scaled(text: &str, units: &[(&str, u32)]) -> Option<u64> {
    let text = text.trim();
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let fraction: f64 = number.parse().ok()?;
    let scaled = fraction * (1u64 << shift) as f64;
    let sensible = shift > 0 && scaled.is_finite() && (0.0..9e18).contains(&scaled);
    sensible.then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_accept_units_and_refuse_nonsense() {
        assert_eq!(count("128k"), Ok(131_072));
        assert_eq!(count("4096"), Ok(4096));
        assert_eq!(count("1.5k"), Ok(1536));
        assert_eq!(bytes("8GiB"), Ok(8 << 30));
        assert_eq!(bytes("8G"), Ok(8 << 30));
        assert_eq!(bytes("0.5G"), Ok(1 << 29));
        assert_eq!(bytes("100"), Ok(100));
        for text in ["", "k", "-1", "1.5", "8X", "1e400k", "NaNk", "auto", "99999999999999999999"] {
            assert!(count(text).is_err(), "{text}");
        }
        assert!(positive("0").is_err());
        assert_eq!(positive("-1"), Err("must be at least 1".to_owned()));
        assert_eq!(count("-1"), Err("must not be negative".to_owned()));
        assert!(threads("4").is_ok() && threads("100000").is_err());
        assert!(bytes("99999999999G").is_err());
    }
}
