//! Numbers on the command line: counts and sizes with units.

use std::num::NonZeroUsize;

/// A count such as 4096, 128k or 1M (k and M are powers of 1,024, as in context
/// lengths).
pub fn count(text: &str) -> Result<usize, String> {
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    let number = scaled(&text.to_ascii_lowercase(), &[("k", 1 << 10), ("m", 1 << 20)]);
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

/// A size such as 800MiB, 8G or 8GiB (powers of 1,024) or 8GB (powers of 1,000), in
/// letters of any case.
pub fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 13] = [
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("k", 1 << 10),
        ("m", 1 << 20),
        ("g", 1 << 30),
        ("t", 1 << 40),
        ("b", 1),
    ];
    scaled(&text.to_ascii_lowercase(), &UNITS).ok_or_else(|| {
        format!("`{text}` is not a size such as 8GiB or 8G (of 1,024) or 8GB (of 1,000)")
    })
}

/// A number with an optional unit; fractions are allowed before one of more than 1.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let unit = units.iter().find_map(|(unit, value)| Some((text.strip_suffix(unit)?, *value)));
    let (number, value) = unit.unwrap_or((text, 1));
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(value);
    }
    let fraction: f64 = number.parse().ok()?;
    let scaled = fraction * value as f64;
    let sensible = value > 1 && scaled.is_finite() && (0.0..9e18).contains(&scaled);
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

    #[test]
    fn sizes_are_of_1024_or_where_the_unit_says_so_of_1000() {
        for (unit, size) in [("K", 1u64 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)] {
            for name in [unit.to_owned(), format!("{unit}iB"), unit.to_lowercase()] {
                assert_eq!(bytes(&format!("8{name}")), Ok(8 * size), "{name}");
            }
        }
        for (unit, size) in [("KB", 3), ("MB", 6), ("GB", 9), ("TB", 12), ("kB", 3), ("gb", 9)] {
            assert_eq!(bytes(&format!("8{unit}")), Ok(8 * 10u64.pow(size)), "{unit}");
        }
        assert_eq!((bytes("1.5 GB"), bytes("7B")), (Ok(1_500_000_000), Ok(7)));
        for text in ["GB", "8XB", "8GBB", "8Gi", "1.5B", "-8GB", "99999999999TB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
