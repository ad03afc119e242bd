//! Numbers on the command line: counts and sizes with units.

use std::num::NonZeroUsize;

/// A count such as 4096, 128k or 1M (k and M are powers of 1,024, as in context
/// lengths).
pub fn count(text: &str) -> Result<usize, String> {
    if is_negative(text) {
        return Err("must not be negative".to_owned());
    }
    let number = scaled(text, &[("k", 1 << 10), ("m", 1 << 20)])
        .and_then(|number| usize::try_from(number).map_err(|_| NoNumber::TooLarge));
    number.map_err(|error| match error {
        NoNumber::Malformed => format!("`{text}` is not a count such as 4096, 128k or 1M"),
        NoNumber::TooLarge => format!("`{text}` is more than the largest count, {}", usize::MAX),
    })
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

/// Why a text is no number with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoNumber {
    /// It is something else.
    Malformed,
    /// It is one that 64 bits do not hold.
    TooLarge,
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
    scaled(text, &UNITS).map_err(|error| match error {
        NoNumber::Malformed => format!(
            "`{text}` is not a size such as 8GiB or 8G (of 1,024), 8GB (of 1,000) or 1000000000 \
             (bytes); exponents are not taken"
        ),
        NoNumber::TooLarge => {
            format!("`{text}` is more than the largest size, {} bytes (16 EiB less one)", u64::MAX)
        }
    })
}

/// Digits with an optional unit; a fraction is allowed before one of more than 1.
fn scaled(text: &str, units: &[(&str, u64)]) -> Result<u64, NoNumber> {
    let text = text.trim().to_ascii_lowercase();
    let unit = units.iter().find_map(|(unit, value)| Some((text.strip_suffix(unit)?, *value)));
    let (number, value) = unit.unwrap_or((&text, 1));
    let (whole, fraction) = match number.trim().split_once('.') {
        Some((whole, fraction)) if value > 1 => (whole, fraction),
        Some(_) => return Err(NoNumber::Malformed),
        None => (number.trim(), ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return Err(NoNumber::Malformed);
    }
    // The part of a unit, which is less than 2^53.
    let part = match fraction {
        "" => 0,
        _ => {
            let part: f64 = format!("0.{fraction}").parse().map_err(|_| NoNumber::Malformed)?;
            (part * value as f64) as u64
        }
    };
    // Digits that do not fit are too many.
    let whole: u64 = match whole {
        "" => 0,
        _ => whole.parse().map_err(|_| NoNumber::TooLarge)?,
    };
    let scaled = whole.checked_mul(value).and_then(|scaled| scaled.checked_add(part));
    scaled.ok_or(NoNumber::TooLarge)
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
        assert_eq!((count(".5k"), count("2.k")), (Ok(512), Ok(2048)));
        for text in
            ["", "k", ".", ".k", "1.5", "8X", "1e3", "1e4k", "infk", "NaNk", "auto", "+1", "0x1"]
        {
            let error = count(text).unwrap_err();
            assert!(error.contains(&format!("`{text}` is not a count such as 4096")), "{error}");
        }
        assert!(count("-1").is_err());
        assert!(positive("0").is_err());
        assert_eq!(positive("-1"), Err("must be at least 1".to_owned()));
        assert_eq!(count("-1"), Err("must not be negative".to_owned()));
        assert!(threads("4").is_ok() && threads("100000").is_err());
    }

    #[test]
    fn numbers_beyond_64_bits_are_too_large_and_the_largest_is_not() {
        let most = u64::MAX.to_string();
        assert_eq!(
            (bytes(&most), bytes("18446744.0TB")),
            (Ok(u64::MAX), Ok(18_446_744 * 10u64.pow(12)))
        );
        for text in [
            "18446744073709551616",
            "99999999999999999999TB",
            "16777216TiB",
            "18446744.1TB",
            "99999999999TB",
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(&format!("`{text}` is more than the largest")), "{error}");
            assert!(error.contains(&most), "{error}");
        }
        for text in ["1e9", "1e9G", "1E3", "0x10", "1_000", "1,000"] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(&format!("`{text}` is not a size such as 8GiB")), "{error}");
        }
        let error = count("99999999999999999999").unwrap_err();
        assert!(error.contains("`99999999999999999999` is more than the largest count"), "{error}");
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
