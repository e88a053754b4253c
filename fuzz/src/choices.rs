//! An input's bytes as choices: what is built, and which parts of it are damaged.

/// Numbers that lie: lengths, counts, ids and places that no file here has.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    4096,
    65_535,
    65_536,
    1 << 20,
    256 << 20,
    400 << 20,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Reads choices off an input.
///
/// A file is built whole, and each of its parts is a place where damage may strike: the input says how many places lie before the
/// next one that is damaged, and how. So a mutated byte moves or changes one fault, and the rest of the file stays valid. After
/// the input's end nothing is damaged, and every other choice is the first.
pub struct Choices<'a> {
    rest: &'a [u8],
    /// Places before the next fault; None where the input was not asked yet.
    distance: Option<usize>,
}

impl<'a> Choices<'a> {
    /// Reads `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, distance: None }
    }

    /// The next byte; zero after the end.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `end`; zero after the end of the input.
    pub fn below(&mut self, end: usize) -> usize {
        let mut number = usize::from(self.byte());
        if end > 256 {
            number |= usize::from(self.byte()) << 8;
        }
        number % end.max(1)
    }

    /// One of `all`; the first after the end of the input.
    ///
    /// # Panics
    /// If there is none.
    pub fn one_of<'b, T>(&mut self, all: &'b [T]) -> &'b T {
        &all[self.below(all.len())]
    }

    /// Returns true if damage strikes here.
    pub fn strikes(&mut self) -> bool {
        let distance = match self.distance {
            Some(distance) => distance,
            None if self.rest.is_empty() => return false,
            // Near places by ones, far ones in steps.
            None => match self.byte() {
                near @ 0..=199 => usize::from(near),
                far => 200 + usize::from(far - 200) * 16,
            },
        };
        self.distance = distance.checked_sub(1);
        distance == 0
    }

    /// A number that is written: the true one, but where damage strikes.
    pub fn number(&mut self, truth: u64) -> u64 {
        if !self.strikes() {
            return truth;
        }
        match self.below(8) {
            0 => truth.wrapping_add(1),
            1 => truth.wrapping_sub(1),
            2 => truth.wrapping_mul(2),
            3 => truth.wrapping_neg(),
            4 => u64::from(self.byte()),
            5 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            _ => *self.one_of(NUMBERS),
        }
    }

    /// A length or a count that is written.
    pub fn length(&mut self, truth: usize) -> u64 {
        self.number(truth as u64)
    }

    /// A file that is written: whole, but where damage strikes it cut short, or with other bytes.
    pub fn bytes(&mut self, mut whole: Vec<u8>) -> Vec<u8> {
        if !self.strikes() || whole.is_empty() {
            return whole;
        }
        for _ in 0..=self.below(4) {
            let at = self.below(whole.len().min(65_536));
            match self.below(4) {
                0 => whole.truncate(at),
                1 => whole.insert(at, self.byte()),
                _ => whole[at] ^= self.byte(),
            }
            if whole.is_empty() {
                break;
            }
        }
        whole
    }
}
