//! The random numbers of seeded tests: integer arithmetic only, so that every machine draws the
//! same ones. A library would be free to change its stream between versions.

/// SplitMix64 (Steele, Lea and Flood 2014): one 64-bit word of state, any seed is good.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The stream of `name` under `seed`: a tensor's values do not depend on which other tensors a
    /// model has or in which order they are written.
    pub fn named(seed: u64, name: &str) -> Random {
        // FNV-1a over the name, then one step of the generator to mix it with the seed.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, byte| {
            (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = Random::new(seed).next_u64() ^ hash;
        Random::new(Random::new(mixed).next_u64())
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Uniform in `0..n`.
    ///
    /// # Panics
    ///
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing is below 0");
        // The high half of the product; the bias of at most n / 2^64 is none for test data.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Mean 0, variance 1, nearly normal: the centred sum of eight uniform 16-bit integers, scaled
    /// (Irwin-Hall; excess kurtosis -0.15, range +-4.9). Exact until one final multiplication, so it
    /// does not depend on a platform's logarithm, and fast enough for gigabytes of weights.
    pub fn normal(&mut self) -> f32 {
        let lanes = |word: u64| (0..4).map(|i| ((word >> (16 * i)) & 0xffff) as i32).sum::<i32>();
        let sum = lanes(self.next_u64()) + lanes(self.next_u64());
        // A uniform integer below 2^16 has mean (2^16 - 1) / 2 and variance (2^32 - 1) / 12.
        const MEAN: i32 = 4 * 0xffff;
        const SCALE: f32 = 1.868_528_4e-5; // 1 / sqrt(8 (2^32 - 1) / 12)
        (sum - MEAN) as f32 * SCALE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // First outputs for seed 1234567 of the reference implementation (Vigna, splitmix64.c).
        let mut random = Random::new(1_234_567);
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(expected, [(); 3].map(|()| random.next_u64()));
    }

    #[test]
    fn normals_have_the_moments_they_claim() {
        let mut random = Random::new(7);
        let n = 1_000_000;
        let (mut sum, mut square, mut fourth) = (0f64, 0f64, 0f64);
        for _ in 0..n {
            let x = f64::from(random.normal());
            sum += x;
            square += x * x;
            fourth += x.powi(4);
        }
        let n = f64::from(n);
        // Five standard errors: 1/sqrt(n) for the mean, sqrt(2/n) for the variance, sqrt(96/n) for
        // the fourth moment, which is 3 - 1.2/8 for eight summands.
        assert!((sum / n).abs() < 5.0 / n.sqrt(), "{}", sum / n);
        assert!((square / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt(), "{}", square / n);
        assert!((fourth / n - 2.85).abs() < 5.0 * (96.0 / n).sqrt(), "{}", fourth / n);
    }

    #[test]
    fn named_streams_differ_by_name_and_by_seed() {
        let first = |seed, name| Random::named(seed, name).next_u64();
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
        assert_ne!(first(1, "a"), first(2, "a"));
    }

    #[test]
    fn below_and_uniform_keep_their_ranges() {
        let mut random = Random::new(3);
        let mut seen = [0; 5];
        for _ in 0..5000 {
            seen[random.below(5) as usize] += 1;
            let u = random.uniform();
            assert!((0.0..1.0).contains(&u));
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
