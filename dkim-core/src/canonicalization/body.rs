//! The body, canonicalized as it passes (RFC 6376 sections 3.4.3 and 3.4.4).
//!
//! What may yet turn out to be the end of a line or of the body (white space, empty lines, half a CRLF) is held back as
//! counts, never as octets: memory does not depend on the input. `simple` passes the input on in whole runs. `relaxed`
//! gathers what it makes of text (`white_space`) in a small buffer that goes on in whole blocks of 64 octets, the size
//! that hashes work on: short enough that the processor still hashes one piece while it makes the next.

use super::Algorithm;
use super::white_space::{AHEAD, PIECE, RUN, SLACK, is_canonical, reduce};

/// One pass over one body.
#[derive(Clone, Debug)]
pub struct BodyCanonicalizer {
    algorithm: Algorithm,
    /// CRLFs that count only if text follows.
    line_ends: u64,
    /// Relaxed: white space that counts only if the line goes on.
    space: bool,
    /// A CR whose LF may follow.
    cr: bool,
    /// Whether anything came out.
    has_text: bool,
    made: Gathered,
}

impl BodyCanonicalizer {
    /// The start of a body.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            line_ends: 0,
            space: false,
            cr: false,
            has_text: false,
            made: Gathered::new(algorithm),
        }
    }

    /// Takes the next octets of the body and gives `sink` what is sure of the canonical form, in any number of pieces.
    ///
    /// The pieces put together do not depend on where chunks end. Cost is linear.
    pub fn update(&mut self, chunk: &[u8], sink: &mut impl FnMut(&[u8])) {
        // Behind the last octet of text in this chunk nothing is sure; before it, line ends are.
        let solid = chunk
            .iter()
            .rposition(|&o| !self.is_special(o))
            .map_or(0, |last| last + 1);
        let mut at = 0;
        while at < solid && (self.holds_back() || self.is_special(chunk[at])) {
            self.step(chunk[at], sink);
            at += 1;
        }
        if at < solid {
            self.has_text = true;
            match self.algorithm {
                Algorithm::Simple => sink(&chunk[at..solid]),
                Algorithm::Relaxed => self.made.reduce(&chunk[at..solid], sink),
            }
        }
        for &octet in &chunk[solid..] {
            self.step(octet, sink);
        }
    }

    /// Ends the body: gives `sink` what belongs at its end.
    pub fn finish(mut self, sink: &mut impl FnMut(&[u8])) {
        if self.cr {
            self.release(sink);
            self.put(b"\r", sink);
            self.has_text = true;
        }
        // Relaxed leaves an empty body empty, simple makes it one CRLF.
        if self.has_text || self.algorithm == Algorithm::Simple {
            self.put(b"\r\n", sink);
        }
        sink(self.made.all());
    }

    /// One octet, the slow way.
    fn step(&mut self, octet: u8, sink: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.cr) {
            if octet == b'\n' {
                self.space = false;
                self.line_ends += 1;
                return;
            }
            self.release(sink);
            self.put(b"\r", sink);
        }
        match octet {
            b'\r' => self.cr = true,
            b' ' | b'\t' if self.algorithm == Algorithm::Relaxed => self.space = true,
            _ => {
                self.release(sink);
                self.put(&[octet], sink);
            }
        }
    }

    /// Text follows: what was held back counts.
    fn release(&mut self, sink: &mut impl FnMut(&[u8])) {
        while self.line_ends > 0 {
            let lines = self.line_ends.min(CRLFS.len() as u64 / 2) as usize;
            self.put(&CRLFS[..2 * lines], sink);
            self.line_ends -= lines as u64;
        }
        if std::mem::take(&mut self.space) {
            self.put(b" ", sink);
        }
        self.has_text = true;
    }

    /// Gives on a few octets, in their place behind what is gathered.
    fn put(&mut self, octets: &[u8], sink: &mut impl FnMut(&[u8])) {
        match self.algorithm {
            Algorithm::Simple => sink(octets),
            Algorithm::Relaxed => self.made.put(octets, sink),
        }
    }

    fn holds_back(&self) -> bool {
        self.cr || self.space || self.line_ends > 0
    }

    fn is_special(&self, octet: u8) -> bool {
        match octet {
            b'\r' | b'\n' => true,
            b' ' | b'\t' => self.algorithm == Algorithm::Relaxed,
            _ => false,
        }
    }
}

/// As many line ends as are written in one go.
const CRLFS: &[u8; 32] = b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n";

/// Canonical octets on their way to the sink, to which they go in whole blocks. Only `relaxed` gathers.
///
/// A hash waits for its own last result most of the time. With pieces this short, the processor has the instructions at
/// hand that make the next piece, and runs them meanwhile. For that, what was just written must not be read at once: a
/// piece goes on when the next one is made.
#[derive(Clone)]
struct Gathered {
    octets: Box<[u8]>,
    /// Where that begins which has not gone on.
    start: usize,
    len: usize,
    /// How many pieces are made before a run is looked for that needs no copy.
    until_look: u8,
}

/// The size of the blocks that SHA-256 works on.
const BLOCK: usize = 64;

/// Has room for so many pieces; what is left at its end is then moved to its start.
const GATHERED: usize = 8 * PIECE;

/// Where there was no run without changes, there is none for some time: it is looked for once in so many pieces.
const LOOK_EVERY: u8 = 32;

impl Gathered {
    fn new(algorithm: Algorithm) -> Self {
        let size = match algorithm {
            Algorithm::Simple => 0,
            Algorithm::Relaxed => GATHERED + SLACK,
        };
        Self {
            octets: vec![0; size].into_boxed_slice(),
            start: 0,
            len: 0,
            until_look: 0,
        }
    }

    /// Takes the canonical form of `text`, as [`reduce`] makes it; its last octet is neither white space nor CR nor LF.
    fn reduce(&mut self, text: &[u8], sink: &mut impl FnMut(&[u8])) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.until_look == 0 {
                rest = self.pass(rest, sink);
                self.until_look = LOOK_EVERY;
            }
            self.until_look -= 1;
            rest = self.reduce_piece(rest, sink);
        }
    }

    /// Takes a piece at the start of `text`; what is behind it comes back.
    fn reduce_piece<'t>(&mut self, text: &'t [u8], sink: &mut impl FnMut(&[u8])) -> &'t [u8] {
        self.make_room();
        let Some(room) = self.octets[self.len..].first_chunk_mut() else {
            unreachable!("room was made for a piece");
        };
        let (taken, written) = match text.first_chunk() {
            Some(piece) => (PIECE, reduce(piece, room)),
            None => {
                let mut filled = [b'z'; PIECE + AHEAD];
                filled[..text.len()].copy_from_slice(text);
                let taken = text.len().min(PIECE);
                (taken, reduce(&filled, room) - (PIECE - taken))
            }
        };
        self.give_blocks(sink);
        self.len += written;
        &text[taken..]
    }

    /// Gives on what is canonical already at the start of `text`, without copying it; what is behind it comes back.
    fn pass<'t>(&mut self, text: &'t [u8], sink: &mut impl FnMut(&[u8])) -> &'t [u8] {
        if !text.first_chunk().is_some_and(is_canonical) {
            return text;
        }
        // The hash works on whole blocks.
        self.make_room();
        let waiting = self.len - self.start;
        let (head, mut rest) = text.split_at(waiting.next_multiple_of(BLOCK) - waiting);
        self.octets[self.len..self.len + head.len()].copy_from_slice(head);
        self.len += head.len();
        self.give_blocks(sink);
        while let Some(run) = rest.first_chunk()
            && is_canonical(run)
        {
            let (run, behind) = rest.split_at(RUN);
            sink(run);
            rest = behind;
        }
        rest
    }

    /// Takes a few octets.
    fn put(&mut self, octets: &[u8], sink: &mut impl FnMut(&[u8])) {
        self.make_room();
        self.octets[self.len..self.len + octets.len()].copy_from_slice(octets);
        self.len += octets.len();
        if self.len - self.start >= PIECE {
            self.give_blocks(sink);
        }
    }

    /// Gives on what is whole blocks.
    fn give_blocks(&mut self, sink: &mut impl FnMut(&[u8])) {
        let whole = (self.len - self.start) / BLOCK * BLOCK;
        if whole > 0 {
            sink(&self.octets[self.start..self.start + whole]);
            self.start += whole;
        }
    }

    /// Sees to it that there is room for a piece. Two at most are waiting.
    fn make_room(&mut self) {
        if self.len + PIECE > GATHERED {
            self.octets.copy_within(self.start..self.len, 0);
            self.len -= self.start;
            self.start = 0;
        }
    }

    fn all(&self) -> &[u8] {
        &self.octets[self.start..self.len]
    }
}

impl std::fmt::Debug for Gathered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathered")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(body: &[u8], algorithm: Algorithm, chunk: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut canonicalizer = BodyCanonicalizer::new(algorithm);
        for part in body.chunks(chunk.max(1)) {
            canonicalizer.update(part, &mut |octets| out.extend_from_slice(octets));
        }
        canonicalizer.finish(&mut |octets| out.extend_from_slice(octets));
        out
    }

    /// RFC 6376 sections 3.4.3 to 3.4.5, and the edges between them.
    #[test]
    fn bodies_and_their_forms() {
        for (body, simple, relaxed) in [
            (
                " C \r\nD \t E\r\n\r\n\r\n",
                " C \r\nD \t E\r\n",
                " C\r\nD E\r\n",
            ),
            ("", "\r\n", ""),
            ("\r\n", "\r\n", ""),
            ("\r\n\r\n\r\n", "\r\n", ""),
            ("a", "a\r\n", "a\r\n"),
            ("a\r\n", "a\r\n", "a\r\n"),
            ("a \t", "a \t\r\n", "a\r\n"),
            ("a\r\n \r\n\t\r\n", "a\r\n \r\n\t\r\n", "a\r\n"),
            (" \r\n \r\n", " \r\n \r\n", ""),
            ("\r\na", "\r\na\r\n", "\r\na\r\n"),
            ("a\r\n\r\nb", "a\r\n\r\nb\r\n", "a\r\n\r\nb\r\n"),
            ("a  b\t\tc", "a  b\t\tc\r\n", "a b c\r\n"),
            ("\ta", "\ta\r\n", " a\r\n"),
            (
                "a\x0c\r\n\x0b \r\n",
                "a\x0c\r\n\x0b \r\n",
                "a\x0c\r\n\x0b\r\n",
            ),
            ("a\nb", "a\nb\r\n", "a\nb\r\n"),
            ("a\rb", "a\rb\r\n", "a\rb\r\n"),
            ("a \rb", "a \rb\r\n", "a \rb\r\n"),
            ("a\r\r\nb", "a\r\r\nb\r\n", "a\r\r\nb\r\n"),
            ("a\r", "a\r\r\n", "a\r\r\n"),
            ("a\n", "a\n\r\n", "a\n\r\n"),
            ("a \n", "a \n\r\n", "a \n\r\n"),
        ] {
            for chunk in [1, 2, 3, 100] {
                assert_eq!(
                    String::from_utf8(canonical(body.as_bytes(), Algorithm::Simple, chunk))
                        .unwrap(),
                    simple,
                    "simple {body:?}"
                );
                assert_eq!(
                    String::from_utf8(canonical(body.as_bytes(), Algorithm::Relaxed, chunk))
                        .unwrap(),
                    relaxed,
                    "relaxed {body:?}"
                );
            }
        }
    }

    /// The rules as RFC 6376 words them, on whole lines and without regard to cost.
    fn by_the_book(body: &[u8], algorithm: Algorithm) -> Vec<u8> {
        let mut lines: Vec<Vec<u8>> = Vec::new();
        let mut rest = body;
        while let Some(at) = rest.windows(2).position(|pair| pair == b"\r\n") {
            lines.push(rest[..at].to_vec());
            rest = &rest[at + 2..];
        }
        if !rest.is_empty() {
            lines.push(rest.to_vec());
        }
        if algorithm == Algorithm::Relaxed {
            for line in &mut lines {
                let mut reduced: Vec<u8> = Vec::new();
                for &octet in line.iter() {
                    match octet {
                        b' ' | b'\t' if reduced.last() == Some(&b' ') => (),
                        b' ' | b'\t' => reduced.push(b' '),
                        other => reduced.push(other),
                    }
                }
                if reduced.last() == Some(&b' ') {
                    reduced.pop();
                }
                *line = reduced;
            }
        }
        while lines.last().is_some_and(Vec::is_empty) {
            lines.pop();
        }
        let mut out: Vec<u8> = lines
            .iter()
            .flat_map(|line| [line, &b"\r\n"[..]].concat())
            .collect();
        if out.is_empty() && algorithm == Algorithm::Simple {
            out.extend_from_slice(b"\r\n");
        }
        out
    }

    fn octet() -> impl Strategy<Value = u8> {
        prop_oneof![
            4 => Just(b' '), 2 => Just(b'\t'), 4 => Just(b'\r'), 4 => Just(b'\n'), 6 => Just(b'a'), 1 => any::<u8>()
        ]
    }

    proptest! {
        #[test]
        fn any_body_in_any_chunks_is_as_the_rules_say(
            body in proptest::collection::vec(octet(), 0..300),
            chunk in 1usize..80,
        ) {
            for algorithm in [Algorithm::Simple, Algorithm::Relaxed] {
                prop_assert_eq!(canonical(&body, algorithm, chunk), by_the_book(&body, algorithm));
            }
        }

        /// Long enough for each way through: pieces, runs that are not copied, the buffer's end.
        #[test]
        fn attachments_between_text_pass_as_they_are(
            parts in proptest::collection::vec((0usize..40, 0usize..60, 0usize..80), 1..8),
            chunk in 1usize..20_000,
        ) {
            let mut body = Vec::new();
            for (text, lines, width) in parts {
                body.extend_from_slice(&b"Some  words\tand \r\n others, line by line\r\n\r\n".repeat(text));
                body.extend_from_slice(&[&vec![b'Q'; width][..], b"\r\n"].concat().repeat(lines));
            }
            prop_assert_eq!(canonical(&body, Algorithm::Relaxed, chunk), by_the_book(&body, Algorithm::Relaxed));
        }

        #[test]
        fn long_runs_of_text_pass_blocks_unharmed(
            pieces in proptest::collection::vec(prop_oneof![
                8 => "[a-z]{1,20}", 4 => Just(" ".to_string()), 1 => Just("  ".to_string()), 1 => Just("\t".to_string()), 2 => Just("\r\n".to_string()),
            ], 0..120),
            chunk in 1usize..400,
        ) {
            let body = pieces.concat().into_bytes();
            prop_assert_eq!(canonical(&body, Algorithm::Relaxed, chunk), by_the_book(&body, Algorithm::Relaxed));
        }
    }
}
