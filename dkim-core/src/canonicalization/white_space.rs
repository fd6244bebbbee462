//! White space, 64 octets at a time: the inner loops of the relaxed canonicalizations (RFC 6376 sections 3.4.2 and 3.4.4).
//!
//! Within text that ends in an octet of text, each octet's fate depends on the few behind it alone, so that 64 are decided
//! at once. Each function has three forms: for processors with AVX-512 VBMI2, which compress 64 octets in one
//! instruction; for those with AVX2; and for all others. The tests hold them to the same results. What may be the end of a
//! line or of the body over a chunk's border is not seen here: that is the body canonicalizer's.
//!
//! This is one of two files of the crate with unsafe code: loads and stores of whole vectors, whose bounds are checked beside
//! them, and calls of functions made for a processor that was found to be there.
#![allow(unsafe_code)]

/// Where white space, line ends and colons stand among up to 64 octets: bit n is for octet n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    /// SP and HTAB.
    pub(crate) spaces: u64,
    /// HTAB.
    pub(crate) tabs: u64,
    /// CR.
    pub(crate) crs: u64,
    /// LF.
    pub(crate) lfs: u64,
    /// What stands between the names in a list.
    pub(crate) colons: u64,
}

impl Masks {
    /// How many octets one looks at.
    pub(crate) const WIDTH: usize = 64;

    /// Of the first [`WIDTH`](Self::WIDTH) of `octets`, or of all if there are less.
    pub(crate) fn of(octets: &[u8]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if x86::has_masks_avx512() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::masks_avx512(octets) };
        }
        match octets.first_chunk() {
            Some(block) => Self::of_block(block),
            None => {
                let mut padded = [0; Self::WIDTH];
                padded[..octets.len()].copy_from_slice(octets);
                Self::of_block(&padded)
            }
        }
    }

    /// Which octets of a field's value go: line ends of folds, and of white space with nothing else in between all but the
    /// last. And which are the CRs of folds. Both are sure of what has three octets behind it in the block.
    #[inline(always)]
    fn unfolding(&self) -> (u64, u64) {
        let folds = self.crs & self.lfs >> 1 & self.spaces >> 2;
        let goes = folds | folds << 1 | self.spaces & (self.spaces >> 1 | folds >> 1);
        (goes, folds)
    }

    fn of_block(block: &[u8; Self::WIDTH]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if x86::has_avx2() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::masks_avx2(block) };
        }
        masks_each(block)
    }
}

/// Appends `block`, at most 64 octets, without those whose bits are set in `goes`.
pub(crate) fn append_without(out: &mut Vec<u8>, block: &[u8], goes: u64) {
    let (mut from, mut left) = (0, goes);
    while left != 0 {
        let to = left.trailing_zeros();
        out.extend_from_slice(&block[from as usize..to as usize]);
        from = to + (left >> to).trailing_ones();
        left &= u64::MAX.checked_shl(from).unwrap_or(0);
    }
    out.extend_from_slice(&block[from as usize..]);
}

/// Appends a field: `name` in lower case, a colon, and `value` as [`append_unfolded`] does.
pub(super) fn append_relaxed(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if x86::has_avx512() {
        out.reserve(name.len() + 1 + value.len() + SLACK);
        // SAFETY: the processor has what the function is compiled for, which has written as many octets as it says.
        unsafe {
            let written = x86::relaxed_avx512(name, value, out.spare_capacity_mut());
            out.set_len(out.len() + written);
        }
        return;
    }
    append_lowercase(out, name);
    out.push(b':');
    append_unfolded(out, value);
}

/// Appends the value of a field, unfolded, each run of white space made one SP (RFC 6376 section 3.4.2).
pub(super) fn append_unfolded(out: &mut Vec<u8>, value: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if x86::has_avx512() {
        out.reserve(value.len() + SLACK);
        // SAFETY: as above.
        unsafe {
            let written = x86::unfolded_avx512(value, out.spare_capacity_mut());
            out.set_len(out.len() + written);
        }
        return;
    }
    append_unfolded_blocks(out, value);
}

/// The form for any processor.
fn append_lowercase(out: &mut Vec<u8>, name: &[u8]) {
    let start = out.len();
    out.extend_from_slice(name);
    out[start..].make_ascii_lowercase();
}

/// The form for any processor.
fn append_unfolded_blocks(out: &mut Vec<u8>, value: &[u8]) {
    let start = out.len();
    out.reserve(value.len());
    let (mut rest, mut has_tabs, mut after_cr) = (value, false, 0);
    while !rest.is_empty() {
        let masks = Masks::of(rest);
        let (goes, folds) = masks.unfolding();
        let goes = goes | after_cr;
        let sure = sure_of(rest);
        append_without(out, &rest[..sure], goes & u64::MAX >> (Masks::WIDTH - sure));
        has_tabs |= masks.tabs & !goes != 0;
        after_cr = folds >> (sure - 1) & 1;
        rest = &rest[sure..];
    }
    if has_tabs {
        let made = out[start..].iter_mut();
        made.filter(|octet| **octet == b'\t')
            .for_each(|octet| *octet = b' ');
    }
}

/// Of how many octets [`Masks::unfolding`] is sure, at the start of what is not empty.
#[inline(always)]
fn sure_of(rest: &[u8]) -> usize {
    match rest.len() {
        all @ ..=Masks::WIDTH => all,
        _ => Masks::WIDTH - 3,
    }
}

fn masks_each(block: &[u8; Masks::WIDTH]) -> Masks {
    let mut masks = Masks::default();
    for (at, &octet) in block.iter().enumerate() {
        let bit = |is: bool| u64::from(is) << at;
        masks.spaces |= bit(is_space(octet));
        masks.tabs |= bit(octet == b'\t');
        masks.crs |= bit(octet == b'\r');
        masks.lfs |= bit(octet == b'\n');
        masks.colons |= bit(octet == b':');
    }
    masks
}

/// As many octets as [`reduce`] takes in one go.
pub(super) const PIECE: usize = 4 * Masks::WIDTH;

/// So many octets behind them are looked at.
pub(super) const AHEAD: usize = Masks::WIDTH;

/// How many octets beyond those written a buffer must have: whole vectors are stored, two of 64 octets at most.
pub(super) const SLACK: usize = 128;

/// Writes the canonical form of the first [`PIECE`] octets of `text`: how many octets that are.
///
/// The others of `text` are what follows. Where text ends before that, the caller fills it up with octets that are neither
/// white space nor CR nor LF; those among the first then are among the written, too.
pub(super) fn reduce(text: &[u8; PIECE + AHEAD], out: &mut [u8; PIECE + SLACK]) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::reduce_avx512(text, out) };
        }
        if x86::has_avx2() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::reduce_avx2(text, out) };
        }
    }
    reduce_each(text, out)
}

/// As many octets as [`is_canonical`] judges in one go.
pub(super) const RUN: usize = 8 * Masks::WIDTH;

/// Whether the first [`RUN`] octets of `text` are their own canonical form; the others are what follows.
pub(super) fn is_canonical(text: &[u8; RUN + AHEAD]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        if x86::has_avx512() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::is_canonical_avx512(text) };
        }
        if x86::has_avx2() {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::is_canonical_avx2(text) };
        }
    }
    is_canonical_each(text)
}

/// The form for any processor, in a shape that compilers turn into vector instructions.
fn is_canonical_each(text: &[u8; RUN + AHEAD]) -> bool {
    let followers = text[1..].iter().zip(&text[2..]);
    let pairs = text[..RUN].iter().zip(followers);
    !pairs.fold(false, |changes, (&octet, (&next, &behind))| {
        let ends_line = (next == b'\r') & (behind == b'\n');
        changes
            | (octet == b'\t')
            | ((octet == b' ') & ((next == b' ') | (next == b'\t') | ends_line))
    })
}

/// The form for any processor: octet by octet.
fn reduce_each(text: &[u8; PIECE + AHEAD], out: &mut [u8; PIECE + SLACK]) -> usize {
    let mut written = 0;
    for (at, &octet) in text[..PIECE].iter().enumerate() {
        let goes =
            is_space(octet) && (is_space(text[at + 1]) || text[at + 1..].starts_with(b"\r\n"));
        if !goes {
            out[written] = if is_space(octet) { b' ' } else { octet };
            written += 1;
        }
    }
    written
}

fn is_space(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{AHEAD, Masks, PIECE, RUN, SLACK, is_space, sure_of};
    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    /// As many octets as are decided at once.
    const BLOCK: usize = 64;

    // Every feature is asked for by its name: a hypervisor may hide one and show another that no processor has without it.

    /// Whether the processor has what [`masks_avx512`] is compiled for.
    #[inline]
    pub(super) fn has_masks_avx512() -> bool {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }

    /// Whether the processor has what the other forms with AVX-512 are compiled for.
    #[inline]
    pub(super) fn has_avx512() -> bool {
        has_masks_avx512()
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("popcnt")
    }

    /// Whether the processor has what the forms with AVX2 are compiled for.
    #[inline]
    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("popcnt")
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) fn masks_avx512(octets: &[u8]) -> Masks {
        masks_512(load_part_512(octets))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn masks_512(octets: __m512i) -> Masks {
        let equal = |octet: u8| _mm512_cmpeq_epi8_mask(octets, _mm512_set1_epi8(octet as i8));
        let tabs = equal(b'\t');
        Masks {
            spaces: tabs | equal(b' '),
            tabs,
            crs: equal(b'\r'),
            lfs: equal(b'\n'),
            colons: equal(b':'),
        }
    }

    /// How many octets were written.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(super) fn relaxed_avx512(name: &[u8], value: &[u8], out: &mut [MaybeUninit<u8>]) -> usize {
        for (at, part) in (0..).step_by(BLOCK).zip(name.chunks(BLOCK)) {
            let octets = load_part_512(part);
            let from_a = _mm512_sub_epi8(octets, _mm512_set1_epi8(b'A' as i8));
            let is_capital = _mm512_cmplt_epu8_mask(from_a, _mm512_set1_epi8(26));
            let case = _mm512_set1_epi8((b'a' - b'A') as i8);
            let lower = _mm512_mask_add_epi8(octets, is_capital, octets, case);
            store_new_512(out, at, lower);
        }
        out[name.len()].write(b':');
        let behind = name.len() + 1;
        behind + unfolded_avx512(value, &mut out[behind..])
    }

    /// How many octets were written.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(super) fn unfolded_avx512(value: &[u8], out: &mut [MaybeUninit<u8>]) -> usize {
        let space = _mm512_set1_epi8(b' ' as i8);
        let (mut rest, mut written, mut after_cr) = (value, 0, 0);
        while !rest.is_empty() {
            let octets = load_part_512(rest);
            let masks = masks_512(octets);
            let (goes, folds) = masks.unfolding();
            let sure = sure_of(rest);
            let stays = !(goes | after_cr) & u64::MAX >> (BLOCK - sure);
            let octets = _mm512_mask_mov_epi8(octets, masks.tabs, space);
            store_new_512(out, written, _mm512_maskz_compress_epi8(stays, octets));
            written += stays.count_ones() as usize;
            after_cr = folds >> (sure - 1) & 1;
            rest = &rest[sure..];
        }
        written
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn masks_avx2(block: &[u8; BLOCK]) -> Masks {
        let halves = [load_256(block, 0), load_256(block, 32)];
        let tabs = equal_256(halves, b'\t');
        Masks {
            spaces: tabs | equal_256(halves, b' '),
            tabs,
            crs: equal_256(halves, b'\r'),
            lfs: equal_256(halves, b'\n'),
            colons: equal_256(halves, b':'),
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
    pub(super) fn reduce_avx512(
        text: &[u8; PIECE + AHEAD],
        out: &mut [u8; PIECE + SLACK],
    ) -> usize {
        let space = _mm512_set1_epi8(b' ' as i8);
        let mut written = 0;
        let mut here = Block512::load(text, 0);
        for at in (0..PIECE).step_by(BLOCK) {
            let next = Block512::load(text, at + BLOCK);
            let goes = here.goes(&next, text, at);
            let octets = _mm512_mask_mov_epi8(here.octets, here.tabs, space);
            store_512(out, written, _mm512_maskz_compress_epi8(!goes, octets));
            written += BLOCK - goes.count_ones() as usize;
            here = next;
        }
        written
    }

    #[target_feature(enable = "avx512f,avx512bw,popcnt")]
    pub(super) fn is_canonical_avx512(text: &[u8; RUN + AHEAD]) -> bool {
        // Attachments have no white space at all, so that one look at four blocks is enough.
        if !(0..RUN)
            .step_by(4 * BLOCK)
            .any(|at| has_space_512(text, at))
        {
            return true;
        }
        let mut here = Block512::load(text, 0);
        for at in (0..RUN).step_by(BLOCK) {
            let next = Block512::load(text, at + BLOCK);
            if here.tabs | here.goes(&next, text, at) != 0 {
                return false;
            }
            here = next;
        }
        true
    }

    /// Whether there is any white space in the four blocks at `at`.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn has_space_512(text: &[u8], at: usize) -> bool {
        let [space, tab] = [b' ', b'\t'].map(|octet| _mm512_set1_epi8(octet as i8));
        let found = |at: usize| {
            let octets = load_512(text, at);
            _mm512_cmpeq_epi8_mask(octets, space) | _mm512_cmpeq_epi8_mask(octets, tab)
        };
        let block = |number: usize| found(at + number * BLOCK);
        block(0) | block(1) | block(2) | block(3) != 0
    }

    /// 64 octets, and where those stand that matter.
    struct Block512 {
        octets: __m512i,
        spaces: u64,
        tabs: u64,
        crs: u64,
    }

    impl Block512 {
        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        fn load(text: &[u8], at: usize) -> Self {
            let octets = load_512(text, at);
            let equal = |octet: u8| _mm512_cmpeq_epi8_mask(octets, _mm512_set1_epi8(octet as i8));
            let tabs = equal(b'\t');
            Self {
                octets,
                spaces: tabs | equal(b' '),
                tabs,
                crs: equal(b'\r'),
            }
        }

        /// Which octets go, `next` being the block behind this one, which is at `at` in `text`.
        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        fn goes(&self, next: &Self, text: &[u8], at: usize) -> u64 {
            let before_space = self.spaces >> 1 | next.spaces << 63;
            let mut before_line_end = self.spaces & (self.crs >> 1 | next.crs << 63);
            if before_line_end != 0 {
                let lf = _mm512_set1_epi8(b'\n' as i8);
                before_line_end &= _mm512_cmpeq_epi8_mask(load_512(text, at + 2), lf);
            }
            self.spaces & before_space | before_line_end
        }
    }

    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn reduce_avx2(text: &[u8; PIECE + AHEAD], out: &mut [u8; PIECE + SLACK]) -> usize {
        let [space, tab] = [b' ', b'\t'].map(|o| _mm256_set1_epi8(o as i8));
        let mut written = 0;
        for at in (0..PIECE).step_by(BLOCK) {
            let (_, mut goes) = changes_256(text, at);
            // Each run that stays is stored with the octets behind it, which the next run overwrites.
            let mut from = 0;
            loop {
                for half in [0, 32] {
                    let octets = load_256(text, at + from + half);
                    let tabs = _mm256_cmpeq_epi8(octets, tab);
                    store_256(out, written + half, _mm256_blendv_epi8(octets, space, tabs));
                }
                let to = goes.trailing_zeros() as usize;
                written += to - from;
                if goes == 0 {
                    break;
                }
                from = to + 1;
                goes &= goes - 1;
            }
        }
        written
    }

    #[target_feature(enable = "avx2,bmi1,popcnt")]
    pub(super) fn is_canonical_avx2(text: &[u8; RUN + AHEAD]) -> bool {
        (0..RUN)
            .step_by(BLOCK)
            .all(|at| changes_256(text, at) == (0, 0))
    }

    /// Where there are tabs among the 64 octets at `at`, and which octets go.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn changes_256(text: &[u8], at: usize) -> (u64, u64) {
        let octets = [load_256(text, at), load_256(text, at + 32)];
        let tabs = equal_256(octets, b'\t');
        let spaces = tabs | equal_256(octets, b' ');
        if spaces == 0 {
            return (0, 0);
        }
        let octet_behind = text[at + BLOCK];
        let behind = |mask: u64, is: bool| mask >> 1 | u64::from(is) << 63;
        let before_space = behind(spaces, is_space(octet_behind));
        let crs = equal_256(octets, b'\r');
        let mut before_line_end = spaces & behind(crs, octet_behind == b'\r');
        if before_line_end != 0 {
            let behind = [load_256(text, at + 2), load_256(text, at + 34)];
            before_line_end &= equal_256(behind, b'\n');
        }
        (tabs, spaces & before_space | before_line_end)
    }

    /// Where `octet` is.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn equal_256([low, high]: [__m256i; 2], octet: u8) -> u64 {
        let wanted = _mm256_set1_epi8(octet as i8);
        let half = |octets| _mm256_movemask_epi8(_mm256_cmpeq_epi8(octets, wanted)) as u32;
        u64::from(half(low)) | u64::from(half(high)) << 32
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load_512(octets: &[u8], at: usize) -> __m512i {
        let octets = &octets[at..at + 64];
        // SAFETY: `octets` has 64 octets, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(octets.as_ptr().cast()) }
    }

    /// The first 64 of `octets`; where there are less, 0 behind them.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn load_part_512(octets: &[u8]) -> __m512i {
        let there = match octets.len() {
            0 => 0,
            length => u64::MAX >> (64 - length.min(64)),
        };
        // SAFETY: only octets that are there are loaded, and the load needs no alignment.
        unsafe { _mm512_maskz_loadu_epi8(there, octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    fn store_new_512(octets: &mut [MaybeUninit<u8>], at: usize, vector: __m512i) {
        let octets = &mut octets[at..at + 64];
        // SAFETY: `octets` has room for 64 octets, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(octets.as_mut_ptr().cast(), vector) }
    }

    #[target_feature(enable = "avx512f")]
    fn store_512(octets: &mut [u8], at: usize, vector: __m512i) {
        let octets = &mut octets[at..at + 64];
        // SAFETY: `octets` has 64 octets, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(octets.as_mut_ptr().cast(), vector) }
    }

    #[target_feature(enable = "avx2")]
    fn load_256(octets: &[u8], at: usize) -> __m256i {
        let octets = &octets[at..at + 32];
        // SAFETY: `octets` has 32 octets, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(octets.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store_256(octets: &mut [u8], at: usize, vector: __m256i) {
        let octets = &mut octets[at..at + 32];
        // SAFETY: `octets` has 32 octets, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(octets.as_mut_ptr().cast(), vector) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Form = fn(&[u8; PIECE + AHEAD], &mut [u8; PIECE + SLACK]) -> usize;

    /// The forms that this processor can run, the plain one first.
    fn forms() -> Vec<(&'static str, Form)> {
        let mut forms: Vec<(&'static str, Form)> = vec![("each", reduce_each), ("chosen", reduce)];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_avx2() {
                // SAFETY: the processor has what the function is compiled for.
                forms.push(("avx2", |text, out| unsafe { x86::reduce_avx2(text, out) }));
            }
            if x86::has_avx512() {
                // SAFETY: the processor has what the function is compiled for.
                forms.push(("avx512", |text, out| unsafe {
                    x86::reduce_avx512(text, out)
                }));
            }
        }
        forms
    }

    type Judge = fn(&[u8; RUN + AHEAD]) -> bool;

    fn judges() -> Vec<(&'static str, Judge)> {
        let mut judges: Vec<(&'static str, Judge)> =
            vec![("each", is_canonical_each), ("chosen", is_canonical)];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_avx2() {
                // SAFETY: the processor has what the function is compiled for.
                judges.push(("avx2", |text| unsafe { x86::is_canonical_avx2(text) }));
            }
            if x86::has_avx512() {
                // SAFETY: the processor has what the function is compiled for.
                judges.push(("avx512", |text| unsafe { x86::is_canonical_avx512(text) }));
            }
        }
        judges
    }

    /// `text`, piece by piece, with so much behind it that the last piece is a whole one.
    fn reduced(form: Form, text: &[u8]) -> Vec<u8> {
        let whole = text.len().next_multiple_of(PIECE);
        let filled = [text, &vec![b'z'; whole - text.len() + AHEAD]].concat();
        let mut all = Vec::new();
        for at in (0..whole).step_by(PIECE) {
            let mut out = [0; PIECE + SLACK];
            let written = form(filled[at..].first_chunk().unwrap(), &mut out);
            all.extend_from_slice(&out[..written]);
        }
        all.truncate(all.len() - (whole - text.len()));
        all
    }

    #[test]
    fn white_space_goes_where_the_rules_say_wherever_blocks_end() {
        for lead in 0..2 * PIECE {
            for (text, wanted) in [
                ("a  b", "a b"),
                ("a\tb", "a b"),
                ("a \t \t b", "a b"),
                ("a \r\nb", "a\r\nb"),
                ("a \t\r\n \t\r\n\tb", "a\r\n\r\n b"),
                ("a \rb", "a \rb"),
                ("a \r\rb", "a \r\rb"),
                ("a \nb", "a \nb"),
                ("\x0c \x0b", "\x0c \x0b"),
            ] {
                let fill = "x".repeat(lead);
                let tail = "y".repeat(300);
                for (name, form) in forms() {
                    let got = reduced(form, format!("{fill}{text}{tail}").as_bytes());
                    let wanted = format!("{fill}{wanted}{tail}");
                    assert_eq!(
                        String::from_utf8_lossy(&got),
                        wanted,
                        "{name} {lead} {text:?}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn masks_are_where_the_octets_are(octets in proptest::collection::vec(proptest::sample::select(b" \t\r\n:a\0\xa0".to_vec()), 0..100)) {
            let mut block = [0; Masks::WIDTH];
            let length = octets.len().min(Masks::WIDTH);
            block[..length].copy_from_slice(&octets[..length]);
            let wanted = masks_each(&block);
            prop_assert_eq!(Masks::of(&octets), wanted);
            for (at, octet) in block.into_iter().enumerate() {
                let of = [wanted.spaces, wanted.tabs, wanted.crs, wanted.lfs].map(|mask| mask >> at & 1 == 1);
                prop_assert_eq!(of, [b" \t".contains(&octet), octet == b'\t', octet == b'\r', octet == b'\n']);
            }
            #[cfg(target_arch = "x86_64")]
            if x86::has_avx2() {
                // SAFETY: the processor has what the function is compiled for.
                prop_assert_eq!(unsafe { x86::masks_avx2(&block) }, wanted);
            }
        }

        /// What is right is known by the tests of `header`.
        #[test]
        fn both_forms_for_header_fields_agree(
            name in proptest::collection::vec(any::<u8>(), 0..150),
            value in proptest::collection::vec(prop_oneof![
                6 => Just(b' '), 2 => Just(b'\t'), 3 => Just(b'\r'), 3 => Just(b'\n'), 12 => Just(b'a'), 1 => any::<u8>()
            ], 0..300),
        ) {
            let (mut chosen, mut plain) = (b"x".to_vec(), b"x".to_vec());
            append_relaxed(&mut chosen, &name, &value);
            append_lowercase(&mut plain, &name);
            plain.push(b':');
            append_unfolded_blocks(&mut plain, &value);
            prop_assert_eq!(chosen, plain);
        }

        #[test]
        fn what_is_left_out_is_and_no_more(octets in proptest::collection::vec(any::<u8>(), 0..=64), goes: u64) {
            let goes = goes & u64::MAX.checked_shl(octets.len() as u32).map_or(u64::MAX, |mask| !mask);
            let mut out = b"x".to_vec();
            append_without(&mut out, &octets, goes);
            let kept = octets.iter().enumerate().filter(|(at, _)| goes >> at & 1 == 0).map(|(_, &o)| o);
            prop_assert_eq!(out, [b'x'].into_iter().chain(kept).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn text_without_changes_is_seen_to_have_none_and_other_text_is_not() {
        let line = "One word and another, line by line.\r\n";
        let base64 = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\r\n";
        for (name, judge) in judges() {
            for text in [line, base64] {
                let text = text.repeat(20);
                let chunk = |text: &str| *text.as_bytes().first_chunk().unwrap();
                assert!(judge(&chunk(&text)), "{name}");
                for change in ["  ", "\t", " \r\n", "\t\r\n"] {
                    for at in 0..RUN {
                        let mut text = text.clone();
                        text.insert_str(at, change);
                        assert!(!judge(&chunk(&text)), "{name} {at} {change:?}");
                    }
                    let mut text = text.clone();
                    text.insert_str(RUN + 2, change);
                    assert!(judge(&chunk(&text)), "{name} {change:?} behind");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn all_forms_agree(
            text in proptest::collection::vec(prop_oneof![
                3 => Just(b' '), 1 => Just(b'\t'), 2 => Just(b'\r'), 2 => Just(b'\n'), 12 => Just(b'a'), 1 => any::<u8>()
            ], 0..1000),
        ) {
            let text = [&text[..], b"z"].concat();
            let wanted = reduced(reduce_each, &text);
            for (name, form) in forms() {
                prop_assert_eq!(&reduced(form, &text), &wanted, "{}", name);
            }
        }

        /// Few octets that may change, so that there are texts of both kinds.
        #[test]
        fn what_counts_as_canonical_stays_as_it_is_and_nothing_else(
            text in proptest::collection::vec(prop_oneof![
                3 => Just(b' '), 1 => Just(b'\t'), 20 => Just(b'\r'), 20 => Just(b'\n'), 3000 => Just(b'a'),
            ], RUN + AHEAD),
        ) {
            let text = text.first_chunk().unwrap();
            let changed = (0..RUN).any(|at| {
                let line_end = text[at + 1..].starts_with(b"\r\n");
                text[at] == b'\t' || text[at] == b' ' && (is_space(text[at + 1]) || line_end)
            });
            for (name, judge) in judges() {
                prop_assert_eq!(judge(text), !changed, "{}", name);
            }
        }
    }
}
