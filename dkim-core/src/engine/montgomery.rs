//! What checking an RSA signature takes: the signature to the power of 65537, modulo the key's modulus (RFC 8017
//! section 5.2.2), on processors with AVX-512 IFMA.
//!
//! Numbers are digits of 52 bits, eight to a vector, as the instruction has it that multiplies eight pairs of such digits
//! and adds one half of each product. Multiplication is Montgomery's, in the form that leaves results below twice the
//! modulus (S. Gueron, V. Krasnov, "Software Implementation of Modular Exponentiation, Using Advanced Vector Instructions
//! Architectures", WAIFI 2012): the modulus n is below a quarter of R = 2^(52 * digits), so no result need be reduced
//! before it is multiplied again.
//!
//! Everything here is public, so nothing is in constant time, and no private key may be used with it. What the result has
//! to be, and who is asked where this says no, is the engine's.
//!
//! The unsafe code is loads and stores of whole vectors, whose bounds are checked by their types, and the calls of functions
//! made for a processor that was found to be there.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::fmt;

/// Whether this processor has the instructions.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma")
}

/// The public operation of a key, ready.
pub(super) trait PublicOperation: Send + Sync + fmt::Debug {
    /// Whether `signature`, to the power of 65537, is `encoded` modulo the key's modulus. Both are big-endian and as long as
    /// the modulus, or the answer is no, as it is for a signature that is not below the modulus.
    fn yields(&self, signature: &[u8], encoded: &[u8]) -> bool;
}

/// That of the key with this modulus, which is odd, and big-endian without leading zeros; `None` if it is of a length that
/// is not seen to here, or the processor has not what it takes.
pub(super) fn public_operation(modulus: &[u8]) -> Option<Box<dyn PublicOperation>> {
    if !is_there() {
        return None;
    }
    match modulus.len() * 8 {
        // Each is a multiple of 8 digits and has the two bits to spare that the method needs.
        1024..=1240 => Some(Box::new(Modulus::<3>::new(modulus))),
        1241..=2072 => Some(Box::new(Modulus::<5>::new(modulus))),
        2073..=3320 => Some(Box::new(Modulus::<8>::new(modulus))),
        3321..=4152 => Some(Box::new(Modulus::<10>::new(modulus))),
        _ => None,
    }
}

/// A modulus of up to `8 * V` digits, and what follows from it.
struct Modulus<const V: usize> {
    n: Number<V>,
    /// How long n is.
    octets: usize,
    /// How many digits R has.
    digits: usize,
    /// -1/n modulo 2^52.
    negative_inverse: u64,
    /// R^2 modulo n: what a number is multiplied by to be in Montgomery's form.
    r_squared: Number<V>,
}

/// The least digit first; `V` vectors of eight.
type Number<const V: usize> = [[u64; LANES]; V];

impl<const V: usize> PublicOperation for Modulus<V> {
    fn yields(&self, signature: &[u8], encoded: &[u8]) -> bool {
        if signature.len() != self.octets || encoded.len() != self.octets {
            return false;
        }
        let signature = from_octets(signature);
        if !is_less(&signature, &self.n) {
            return false;
        }
        // SAFETY: a `Modulus` is made only where the processor has what the function is compiled for.
        let mut power = unsafe { to_the_65537th(self, &signature) };
        reduce(&mut power, &self.n);
        power == from_octets(encoded)
    }
}

impl<const V: usize> Modulus<V> {
    fn new(octets: &[u8]) -> Self {
        let n: Number<V> = from_octets(octets);
        let bits = octets.len() * 8 - octets[0].leading_zeros() as usize;
        let digits = (bits + 2).div_ceil(DIGIT_BITS);
        let mut modulus = Self {
            n,
            octets: octets.len(),
            digits,
            negative_inverse: inverse(n[0][0]).wrapping_neg() & DIGIT,
            r_squared: [[0; LANES]; V],
        };
        // 2R: the highest power of 2 below n, doubled until it is that.
        let highest = bits - 1;
        let mut power: Number<V> = [[0; LANES]; V];
        power.as_flattened_mut()[highest / DIGIT_BITS] = 1 << (highest % DIGIT_BITS);
        for _ in highest..digits * DIGIT_BITS + 1 {
            double(&mut power, &n);
        }
        // From 2R, which is 2 in Montgomery's form, to R * R by the bits of R's exponent, the topmost of which is done.
        let exponent = digits * DIGIT_BITS;
        for bit in (0..exponent.ilog2()).rev() {
            // SAFETY: `public_operation` has seen to it that the processor has what the function is compiled for.
            power = unsafe { product(&modulus, &power, &power) };
            reduce(&mut power, &n);
            if exponent >> bit & 1 == 1 {
                double(&mut power, &n);
            }
        }
        modulus.r_squared = power;
        modulus
    }
}

impl<const V: usize> fmt::Debug for Modulus<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Modulus")
            .field("digits", &self.digits)
            .finish_non_exhaustive()
    }
}

/// Of a number below n; the result is below 2n.
#[target_feature(enable = "avx512f,avx512ifma")]
fn to_the_65537th<const V: usize>(modulus: &Modulus<V>, base: &Number<V>) -> Number<V> {
    let mut power = product(modulus, base, &modulus.r_squared);
    for _ in 0..16 {
        power = product(modulus, &power, &power);
    }
    // By the number as it is, which leads out of Montgomery's form.
    product(modulus, &power, base)
}

/// a * b / R modulo n, below 2n, where a and b are.
#[target_feature(enable = "avx512f,avx512ifma")]
#[inline]
fn product<const V: usize>(modulus: &Modulus<V>, a: &Number<V>, b: &Number<V>) -> Number<V> {
    let zero = _mm512_setzero_si512();
    let a_digits: [__m512i; V] = std::array::from_fn(|v| load(&a[v]));
    let n_digits: [__m512i; V] = std::array::from_fn(|v| load(&modulus.n[v]));
    let (a0, a1) = (a[0][0], a[0][1]);
    let (n0, n1) = (modulus.n[0][0], modulus.n[0][1]);
    // The sum, not carried: each digit gets four halves of products in each round, and there are 80 rounds at most, so that
    // none comes near 64 bits.
    let mut sum = [zero; V];
    // Its last digit, with what was carried into it. In a register of its own, and made from the digit behind it, it is
    // known for a round before the vectors are through with the one before: the next multiple of n waits for nothing else.
    let mut last: u64 = 0;
    for &b_digit in &b.as_flattened()[..modulus.digits] {
        let second = _mm_extract_epi64::<1>(_mm512_castsi512_si128(sum[0])) as u64;
        let with_b = u128::from(a0) * u128::from(b_digit) + u128::from(last);
        // How many times n makes the last digit 0, so that all can move down by one.
        let times = (with_b as u64).wrapping_mul(modulus.negative_inverse) & DIGIT;
        let carry = (with_b + u128::from(n0) * u128::from(times)) >> DIGIT_BITS;
        last = carry as u64
            + second
            + (a1.wrapping_mul(b_digit) & DIGIT)
            + (n1.wrapping_mul(times) & DIGIT);

        let b_digit = _mm512_set1_epi64(b_digit as i64);
        let times = _mm512_set1_epi64(times as i64);
        let mut high = [zero; V];
        for v in 0..V {
            sum[v] = _mm512_madd52lo_epu64(sum[v], a_digits[v], b_digit);
            high[v] = _mm512_madd52hi_epu64(zero, a_digits[v], b_digit);
        }
        for v in 0..V {
            sum[v] = _mm512_madd52lo_epu64(sum[v], n_digits[v], times);
            high[v] = _mm512_madd52hi_epu64(high[v], n_digits[v], times);
        }
        // Down by a digit, to where the high halves belong.
        for v in 0..V {
            let above = if v + 1 < V { sum[v + 1] } else { zero };
            sum[v] = _mm512_add_epi64(_mm512_alignr_epi64::<1>(above, sum[v]), high[v]);
        }
    }
    sum[0] = _mm512_mask_set1_epi64(sum[0], 1, last as i64);
    carried(sum)
}

/// Carries what is above 52 bits into the digits above. Once is nearly always enough, and one more time tells.
#[target_feature(enable = "avx512f")]
#[inline]
fn carried<const V: usize>(mut sum: [__m512i; V]) -> Number<V> {
    let digit = _mm512_set1_epi64(DIGIT as i64);
    loop {
        let mut too_large = 0;
        let mut below = _mm512_setzero_si512();
        for vector in &mut sum {
            let carries = _mm512_srli_epi64::<{ DIGIT_BITS as u32 }>(*vector);
            let moved = _mm512_alignr_epi64::<7>(carries, below);
            *vector = _mm512_add_epi64(_mm512_and_si512(*vector, digit), moved);
            too_large |= _mm512_cmpgt_epu64_mask(*vector, digit);
            below = carries;
        }
        if too_large == 0 {
            break;
        }
    }
    let mut number = [[0; LANES]; V];
    for (digits, vector) in number.iter_mut().zip(sum) {
        store(digits, vector);
    }
    number
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(digits: &[u64; LANES]) -> __m512i {
    // SAFETY: eight digits are a vector, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(digits.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(digits: &mut [u64; LANES], vector: __m512i) {
    // SAFETY: as above.
    unsafe { _mm512_storeu_si512(digits.as_mut_ptr().cast(), vector) }
}

/// A big-endian number no longer than the modulus, which has room in `V` vectors.
fn from_octets<const V: usize>(octets: &[u8]) -> Number<V> {
    // With zeros behind, as digits are cut out of eight octets each.
    let mut reversed = [0; LONGEST + 8];
    for (to, from) in reversed.iter_mut().zip(octets.iter().rev()) {
        *to = *from;
    }
    let mut number = [[0; LANES]; V];
    for (place, digit) in number.as_flattened_mut().iter_mut().enumerate() {
        let bit = place * DIGIT_BITS;
        if let Some(eight) = reversed[bit / 8..].first_chunk() {
            *digit = u64::from_le_bytes(*eight) >> (bit % 8) & DIGIT;
        }
    }
    number
}

/// 1/n modulo 2^52 and more, by Newton's iteration: each step doubles the bits that are right, of which there are 3.
fn inverse(n: u64) -> u64 {
    let mut inverse = n;
    for _ in 0..5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(n.wrapping_mul(inverse)));
    }
    inverse
}

fn is_less<const V: usize>(a: &Number<V>, b: &Number<V>) -> bool {
    a.as_flattened()
        .iter()
        .rev()
        .lt(b.as_flattened().iter().rev())
}

/// Twice a number below n, modulo n.
fn double<const V: usize>(number: &mut Number<V>, n: &Number<V>) {
    let mut carry = 0;
    for digit in number.as_flattened_mut() {
        let doubled = *digit << 1 | carry;
        *digit = doubled & DIGIT;
        carry = doubled >> DIGIT_BITS;
    }
    reduce(number, n);
}

/// Of a number below 2n, what is below n.
fn reduce<const V: usize>(number: &mut Number<V>, n: &Number<V>) {
    if is_less(number, n) {
        return;
    }
    let mut borrow = 0;
    for (digit, less) in number.as_flattened_mut().iter_mut().zip(n.as_flattened()) {
        let difference = digit.wrapping_sub(*less).wrapping_sub(borrow);
        *digit = difference & DIGIT;
        borrow = difference >> 63;
    }
}

const DIGIT_BITS: usize = 52;

const DIGIT: u64 = (1 << DIGIT_BITS) - 1;

/// Digits in a vector.
const LANES: usize = 8;

/// The octets of the longest modulus that is seen to.
pub(super) const LONGEST: usize = 4152 / 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
    use crypto_bigint::{BoxedUint, Odd, Resize};
    use proptest::prelude::*;

    /// s^65537 modulo n by another's arithmetic.
    fn power(signature: &[u8], modulus: &[u8]) -> Vec<u8> {
        let number = |octets| BoxedUint::from_be_slice_vartime(octets);
        let n = Odd::new(number(modulus)).unwrap();
        let precision = n.bits_precision();
        let s = number(signature).resize(precision);
        let form = BoxedMontyForm::new(s, &BoxedMontyParams::new_vartime(n));
        let power = form.pow(&BoxedUint::from(65_537_u64)).retrieve();
        let octets = power.to_be_bytes();
        octets[octets.len() - modulus.len()..].to_vec()
    }

    /// Octets in runs of one value, among them many of all ones and all zeros, where carries go far.
    fn octets(length: usize) -> impl Strategy<Value = Vec<u8>> {
        let value = prop_oneof![Just(0), Just(0xff), any::<u8>()];
        let run = prop_oneof![
            (value, 1..40_usize).prop_map(|(octet, length)| vec![octet; length]),
            prop::collection::vec(any::<u8>(), 1..40),
        ];
        prop::collection::vec(run, length).prop_map(move |runs| {
            let mut octets = runs.concat();
            octets.truncate(length);
            octets
        })
    }

    /// The length of a modulus, and its first octet. Of the last ones all two bits less than R has are used, so that results
    /// above the modulus are frequent, which else they hardly ever are.
    fn shape() -> impl Strategy<Value = (usize, u8)> {
        prop_oneof![
            (prop::sample::select(LENGTHS.to_vec()), 1..=0xff_u8),
            (128..=519_usize, 1..=0xff_u8),
            prop::sample::select(vec![
                (130, 0x3f),
                (156, 0x3f),
                (260, 0x3f),
                (416, 0x3f),
                (514, 3)
            ]),
        ]
    }

    fn modulus((length, first): (usize, u8)) -> impl Strategy<Value = Vec<u8>> {
        octets(length).prop_map(move |mut octets| {
            octets[0] = first;
            *octets.last_mut().unwrap() |= 1;
            octets
        })
    }

    /// At the ends of what a number of vectors has room for, and the usual ones.
    const LENGTHS: [usize; 11] = [128, 155, 156, 256, 259, 260, 384, 415, 416, 512, 519];

    /// On processors without the instructions there is nothing to test, and nothing is used.
    fn operation(modulus: &[u8]) -> Option<Box<dyn PublicOperation>> {
        let made = public_operation(modulus);
        assert_eq!(made.is_some(), is_there(), "{} octets", modulus.len());
        made
    }

    proptest! {
        #[test]
        fn powers_are_those_of_another_arithmetic(
            (n, s) in shape().prop_flat_map(|(length, first)| (modulus((length, first)), octets(length)))
        ) {
            let Some(operation) = operation(&n) else { return Ok(()) };
            let s = if s < n { s } else { power(&s, &n) };
            let mut right = power(&s, &n);
            prop_assert!(operation.yields(&s, &right));
            let last = right.len() - 1;
            right[last] ^= 1;
            prop_assert!(!operation.yields(&s, &right));
        }
    }

    #[test]
    fn the_ends_of_the_range_are_right() {
        for length in LENGTHS {
            let all_ones = vec![0xff; length];
            let mut low = vec![0; length];
            (low[0], low[length - 1]) = (1, 1);
            for n in [all_ones, low] {
                let Some(operation) = operation(&n) else {
                    return;
                };
                let number = |octet| {
                    let mut number = vec![0; length];
                    number[length - 1] = octet;
                    number
                };
                let mut minus_one = n.clone();
                minus_one[length - 1] -= 1;
                assert!(operation.yields(&number(0), &number(0)));
                assert!(operation.yields(&number(1), &number(1)));
                // The exponent is odd.
                assert!(operation.yields(&minus_one, &minus_one));
                assert!(operation.yields(&number(2), &power(&number(2), &n)));
                assert!(!operation.yields(&n, &number(0)), "n is not below n");
                assert!(!operation.yields(&[0xff].repeat(length + 1), &number(0)));
                assert!(!operation.yields(&number(1), &[vec![1], number(1)].concat()));
            }
        }
    }

    #[test]
    fn lengths_without_a_form_have_none() {
        for length in [0, 1, 96, 127, 520, 1024] {
            assert!(public_operation(&vec![0xff; length]).is_none(), "{length}");
        }
        let Some(operation) = operation(&[0xff; 128]) else {
            return;
        };
        assert!(!operation.yields(&[0; 2000], &[0; 128]));
        assert!(!operation.yields(&[0; 128], &[0; 2000]));
    }
}
