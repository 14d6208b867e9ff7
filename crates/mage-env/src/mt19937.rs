//! The Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998), as used by CPython and NumPy.
//!
//! The reference implementation draws from CPython's `random` and from NumPy's legacy `RandomState`. Both use MT19937;
//! they differ in seeding and in how they map words to ranges.

const N: usize = 624;
const M: usize = 397;

/// MT19937: 32-bit words.
#[derive(Clone)]
struct MersenneTwister {
    words: [u32; N],
    next: usize,
}

/// The state after seeding with one integer.
const fn seeded(seed: u32) -> [u32; N] {
    let mut words = [0; N];
    words[0] = seed;
    let mut i = 1;
    while i < N {
        let last = words[i - 1];
        words[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        i += 1;
    }
    words
}

/// Base state of seeding with a list.
static LIST_BASE: [u32; N] = seeded(19_650_218);

impl MersenneTwister {
    fn from_seed(seed: u32) -> Self {
        MersenneTwister { words: seeded(seed), next: N }
    }

    fn from_list(key: &[u32]) -> Self {
        let mut words = LIST_BASE;
        let (mut i, mut j) = (1, 0);
        for _ in 0..N.max(key.len()) {
            let last = words[i - 1];
            words[i] =
                (words[i] ^ (last ^ (last >> 30)).wrapping_mul(1_664_525)).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            j = if j + 1 == key.len() { 0 } else { j + 1 };
            if i == N {
                words[0] = words[N - 1];
                i = 1;
            }
        }
        for _ in 1..N {
            let last = words[i - 1];
            words[i] = (words[i] ^ (last ^ (last >> 30)).wrapping_mul(1_566_083_941)).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                words[0] = words[N - 1];
                i = 1;
            }
        }
        words[0] = 0x8000_0000;
        MersenneTwister { words, next: N }
    }

    fn twist(&mut self) {
        let mix = |upper: u32, lower: u32, far: u32| {
            let y = (upper & 0x8000_0000) | (lower & 0x7fff_ffff);
            far ^ (y >> 1) ^ ((y & 1) * 0x9908_b0df)
        };
        let w = &mut self.words;
        for i in 0..N - M {
            w[i] = mix(w[i], w[i + 1], w[i + M]);
        }
        for i in N - M..N - 1 {
            w[i] = mix(w[i], w[i + 1], w[i + M - N]);
        }
        w[N - 1] = mix(w[N - 1], w[0], w[M - 1]);
        self.next = 0;
    }

    fn word(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.words[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }
}

/// CPython's `random.Random`.
#[derive(Clone)]
pub struct PythonRandom(MersenneTwister);

impl PythonRandom {
    /// `random.seed(seed)`.
    pub fn new(seed: u32) -> Self {
        PythonRandom(MersenneTwister::from_list(&[seed]))
    }

    /// `random.random()`: 53 bits in [0, 1).
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.0.word() >> 5, self.0.word() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// `random._randbelow(n)`, on which `choice`, `randint` and `sample(…, 1)` are based: rejection sampling of words
    /// with just enough bits. `n` is at least 1.
    pub fn below(&mut self, n: u32) -> u32 {
        let unused = n.leading_zeros();
        loop {
            let r = self.0.word() >> unused;
            if r < n {
                return r;
            }
        }
    }

    /// `random.uniform(a, b)`.
    pub fn uniform(&mut self, a: f64, b: f64) -> f64 {
        a + (b - a) * self.unit()
    }

    /// `random.shuffle(items)`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u32 + 1) as usize;
            items.swap(i, j);
        }
    }

    /// `random.sample(pool, k)` for pools of at most 21, where CPython samples from a shrinking copy. A `k` beyond the
    /// pool size takes the whole pool.
    pub fn sample<T: Copy>(&mut self, pool: &[T], k: usize) -> Vec<T> {
        let mut pool = pool.to_vec();
        (0..k.min(pool.len()))
            .map(|_| {
                let j = self.below(pool.len() as u32) as usize;
                pool.swap_remove(j)
            })
            .collect()
    }
}

/// NumPy's `RandomState`.
#[derive(Clone)]
pub struct NumpyRandom(MersenneTwister);

impl NumpyRandom {
    /// `numpy.random.seed(seed)`.
    pub fn new(seed: u32) -> Self {
        NumpyRandom(MersenneTwister::from_seed(seed))
    }

    /// `numpy.random.randint(n)`: rejection sampling of masked words; `n` = 1 consumes no word. `n` is at least 1.
    pub fn below(&mut self, n: u32) -> u32 {
        let max = n - 1;
        if max == 0 {
            return 0;
        }
        let mask = u32::MAX >> max.leading_zeros();
        loop {
            let r = self.0.word() & mask;
            if r <= max {
                return r;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_the_reference_implementation() {
        // First words of the reference implementation's output file for the key {0x123, 0x234, 0x345, 0x456}.
        let mut t = MersenneTwister::from_list(&[0x123, 0x234, 0x345, 0x456]);
        assert_eq!([t.word(), t.word(), t.word()], [1067595299, 955945823, 477289528]);
        // The C++ standard fixes the 10,000th word of the default seed.
        let mut t = MersenneTwister::from_seed(5489);
        assert_eq!((0..10_000).map(|_| t.word()).last(), Some(4123659995));
    }

    #[test]
    fn draws_match_cpython_and_numpy() {
        // CPython 3.11: random.seed(42); random.random(); [random.randint(1, 5) for _ in range(8)]
        let mut r = PythonRandom::new(42);
        assert_eq!(r.unit(), 0.639_426_798_457_883_7);
        PYTHON_42.iter().for_each(|n| assert_eq!(r.below(5) + 1, *n));
        // NumPy: numpy.random.seed(42); [numpy.random.randint(14) for _ in range(8)]
        let mut r = NumpyRandom::new(42);
        NUMPY_42.iter().for_each(|n| assert_eq!(r.below(14), *n));
        assert_eq!(r.below(1), 0);
    }

    #[test]
    fn list_operations_match_cpython() {
        // CPython 3.11: random.seed(7); x = list(range(8)); random.shuffle(x); random.sample([10, 20, 30, 40], 2);
        // random.uniform(2.5, 9)
        let mut r = PythonRandom::new(7);
        let mut items = [0, 1, 2, 3, 4, 5, 6, 7];
        r.shuffle(&mut items);
        assert_eq!(items, SHUFFLED_7);
        assert_eq!(r.sample(&[10, 20, 30, 40], 2), SAMPLED_7);
        assert_eq!(r.uniform(2.5, 9.0), UNIFORM_7);
    }

    const PYTHON_42: [u32; 8] = [1, 3, 2, 2, 2, 1, 5, 1];
    const NUMPY_42: [u32; 8] = [6, 3, 12, 10, 7, 12, 4, 6];
    const SHUFFLED_7: [u32; 8] = [6, 7, 2, 4, 0, 3, 1, 5];
    const SAMPLED_7: [u32; 2] = [30, 40];
    const UNIFORM_7: f64 = 2.8769930110355943;
}
