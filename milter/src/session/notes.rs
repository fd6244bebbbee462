//! What is worth telling about a body that is signed: octets and lines that mail systems may change on the way, and
//! signatures with them.

/// RFC 5322 section 2.1.1: mail systems break longer lines.
const LONGEST_LINE: u64 = 998;

/// Facts about a body, gathered as it passes.
#[derive(Debug, Default)]
pub(super) struct BodyNotes {
    has_eight_bit: bool,
    longest: u64,
    /// Octets since the last LF.
    line: u64,
}

impl BodyNotes {
    /// Takes the next octets.
    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.has_eight_bit = self.has_eight_bit || !chunk.is_ascii();
        let mut start = 0;
        for at in memchr::memchr_iter(b'\n', chunk) {
            self.line += (at - start) as u64;
            self.longest = self.longest.max(self.line);
            self.line = 0;
            start = at + 1;
        }
        self.line += (chunk.len() - start) as u64;
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

    fn warnings(body: &[u8], chunk: usize) -> Vec<String> {
        let mut notes = BodyNotes::default();
        body.chunks(chunk).for_each(|part| notes.update(part));
        notes.warnings()
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
