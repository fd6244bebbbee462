//! What is worth telling about a body that is signed: octets and lines that mail systems may change on the way, and
//! signatures with them.

/// RFC 5322 section 2.1.1: mail systems break longer lines.
const LONGEST_LINE: u64 = 998;

/// A line that ends among so many octets, its CR and LF among them, is not too long.
const FINE: u64 = LONGEST_LINE + 2;

/// Facts about a body, gathered as it passes.
#[derive(Debug, Default)]
pub(super) struct BodyNotes {
    has_eight_bit: bool,
    /// Of the longest line that is too long, its CR counted.
    longest: u64,
    /// Octets since the last LF.
    line: u64,
}

impl BodyNotes {
    /// Takes the next octets.
    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.has_eight_bit = self.has_eight_bit || !chunk.is_ascii();
        let mut rest = chunk;
        // Lines are short, so that it is not each LF that is looked for, but the last one of as many octets as a line may
        // have: all lines up to there are fine.
        while !rest.is_empty() {
            let fine = usize::try_from(FINE.saturating_sub(self.line)).unwrap_or(0);
            let ahead = &rest[..fine.min(rest.len())];
            if let Some(at) = memchr::memrchr(b'\n', ahead) {
                self.line = 0;
                rest = &rest[at + 1..];
            } else if ahead.len() == rest.len() {
                self.line += rest.len() as u64;
                return;
            } else {
                let end = memchr::memchr(b'\n', rest);
                self.line += end.unwrap_or(rest.len()) as u64;
                if let Some(at) = end {
                    self.longest = self.longest.max(self.line);
                    self.line = 0;
                    rest = &rest[at + 1..];
                } else {
                    return;
                }
            }
        }
    }

    /// What there is to say, in words for the log.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        // A line's CR was counted.
        let longest = self.longest.saturating_sub(1).max(self.line);
        if longest > LONGEST_LINE {
            warnings.push(format!(
                "body line of {longest} octets: mail systems break lines over {LONGEST_LINE}, and the signature with them"
            ));
        }
        if self.has_eight_bit {
            warnings.push(
                "8-bit body: a next hop without 8BITMIME will re-encode it and break the signature"
                    .into(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn warnings(body: &[u8], chunk: usize) -> Vec<String> {
        let mut notes = BodyNotes::default();
        body.chunks(chunk).for_each(|part| notes.update(part));
        notes.warnings()
    }

    proptest! {
        #[test]
        fn the_longest_line_is_what_looking_at_each_octet_finds(
            lines in prop::collection::vec(prop_oneof![0..80_usize, 990..1010_usize, 2000..3000_usize], 0..20),
            ends in any::<bool>(),
            chunk in prop_oneof![1..100_usize, 900..1100_usize, Just(65_536)],
        ) {
            let mut body = Vec::new();
            for length in &lines {
                body.extend(vec![b'x'; *length]);
                body.extend_from_slice(b"\r\n");
            }
            if !ends && !lines.is_empty() {
                body.truncate(body.len() - 2);
            }
            let longest = lines.iter().copied().max().unwrap_or(0);
            let wanted = (longest > 998).then(|| format!("body line of {longest} octets"));
            let found = warnings(&body, chunk).pop();
            prop_assert_eq!(
                found.map(|found| found.split(':').next().unwrap().to_owned()),
                wanted
            );
        }
    }

    #[test]
    fn long_lines_and_eight_bit_octets_are_told_however_the_body_is_cut() {
        let fits = [&[b'x'; 998][..], b"\r\n"].concat().repeat(3);
        let long = [&fits[..], &[b'x'; 999], b"\r\n"].concat();
        let unfinished = [&fits[..], &[b'x'; 1005]].concat();
        for chunk in [1, 7, 999, 1000, 10_000] {
            assert!(warnings(&fits, chunk).is_empty());
            assert!(warnings(&long, chunk)[0].starts_with("body line of 999 octets"));
            assert!(warnings(&unfinished, chunk)[0].starts_with("body line of 1005 octets"));
            assert!(warnings(b"gr\xc3\xbc\xc3\x9fe\r\n", chunk)[0].starts_with("8-bit body"));
        }
    }
}
