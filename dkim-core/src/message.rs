//! Header fields as octets, in order, and the splitting of a raw message into them and a body (RFC 5322 section 2).
//!
//! Nothing is decoded or changed: a field is its octets without the final line end, folds as CRLF. All fields of a
//! message lie in one buffer. What a field means is for its reader.

/// The header fields of one message, top to bottom, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    octets: Vec<u8>,
    fields: Vec<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: usize,
    /// Where the name ends, which may have white space between it and the colon.
    name_end: usize,
    colon: usize,
    end: usize,
    /// [`name_hash`] of the name: names are looked for often.
    hash: u32,
}

impl HeaderFields {
    /// No fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the field `name`, `:`, `space`, `value` below the others; what a milter is told of a field comes in such
    /// pieces. A fold in `value` may be CRLF or LF before white space; either is kept as CRLF, and every other CR or LF
    /// stays the octet it is.
    pub fn push(&mut self, name: &[u8], space: &[u8], value: &[u8]) {
        let start = self.octets.len();
        self.octets.extend_from_slice(name);
        let colon = self.octets.len();
        self.octets.push(b':');
        self.octets.extend_from_slice(space);
        self.push_with_crlf_folds(value);
        self.fields.push(Place {
            start,
            name_end: start + name_length(name),
            colon,
            end: self.octets.len(),
            hash: name_hash(&name[..name_length(name)]),
        });
    }

    /// Adds one field as it stands in a message, without its final line end; octets without a colon become a field
    /// with an empty value.
    pub fn push_raw(&mut self, field: &[u8]) {
        let start = self.octets.len();
        let parts = HeaderField::from_octets(field);
        self.octets.extend_from_slice(field);
        self.fields.push(Place {
            start,
            name_end: start + parts.name_end,
            colon: start + parts.colon,
            end: self.octets.len(),
            hash: name_hash(parts.name()),
        });
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// How many octets they have, line ends included.
    pub fn octets(&self) -> usize {
        self.octets.len() + 2 * self.fields.len()
    }

    /// The field at `index`, counted from 0 at the top.
    pub fn get(&self, index: usize) -> Option<HeaderField<'_>> {
        self.fields.get(index).map(|place| self.at(*place))
    }

    /// All fields from the top.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = HeaderField<'_>> + ExactSizeIterator {
        self.fields.iter().map(|place| self.at(*place))
    }

    /// The fields called `name`, from the top.
    pub fn named<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = HeaderField<'a>> {
        self.places_of(name_hash(name.as_bytes()), name.as_bytes())
            .map(|index| self.at(self.fields[index]))
    }

    /// The places of the fields called `name`, whose [`name_hash`] is `hash`, from the top.
    pub(crate) fn places_of<'a>(
        &'a self,
        hash: u32,
        name: &'a [u8],
    ) -> impl DoubleEndedIterator<Item = usize> + 'a {
        let places = self.fields.iter().enumerate();
        places
            .filter(move |(_, place)| place.hash == hash && self.at(**place).is_named(name))
            .map(|(index, _)| index)
    }

    /// [`name_hash`] of each field's name, from the top.
    pub(crate) fn name_hashes(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.fields.iter().map(|place| place.hash)
    }

    /// Forgets all fields and keeps the buffer, unless it has grown beyond `keep` octets.
    pub fn clear(&mut self, keep: usize) {
        self.fields.clear();
        self.octets.clear();
        self.octets.shrink_to(keep);
        self.fields.shrink_to(keep / 32);
    }

    fn at(&self, place: Place) -> HeaderField<'_> {
        HeaderField {
            octets: &self.octets[place.start..place.end],
            name_end: place.name_end - place.start,
            colon: place.colon - place.start,
        }
    }

    fn push_with_crlf_folds(&mut self, value: &[u8]) {
        let mut rest = value;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (head, tail) = rest.split_at(at);
            self.octets.extend_from_slice(head);
            let is_fold = matches!(tail.get(1), Some(b' ' | b'\t'));
            if is_fold && head.last() != Some(&b'\r') {
                self.octets.push(b'\r');
            }
            self.octets.push(b'\n');
            rest = &tail[1..];
        }
        self.octets.extend_from_slice(rest);
    }
}

/// One header field: its octets from the name to the last octet before the final line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderField<'a> {
    octets: &'a [u8],
    /// Found once: there may be any amount of white space before the colon, and names are asked for often.
    name_end: usize,
    colon: usize,
}

impl<'a> HeaderField<'a> {
    /// A field by itself, without its final line end; octets without a colon are a name with an empty value.
    pub fn from_octets(octets: &'a [u8]) -> Self {
        let colon = memchr::memchr(b':', octets).unwrap_or(octets.len());
        Self {
            octets,
            name_end: name_length(&octets[..colon]),
            colon,
        }
    }

    /// The name without the white space that obsolete syntax allows before the colon (RFC 5322 section 4.5.8).
    pub fn name(&self) -> &'a [u8] {
        &self.octets[..self.name_end]
    }

    /// All after the colon, the white space there included.
    pub fn value(&self) -> &'a [u8] {
        self.octets.get(self.colon + 1..).unwrap_or_default()
    }

    /// Where the value begins in [`octets`](Self::octets).
    pub fn value_offset(&self) -> usize {
        (self.colon + 1).min(self.octets.len())
    }

    /// The whole field.
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// Whether its name is `name`, letters compared without case.
    pub fn is_named(&self, name: &[u8]) -> bool {
        self.name().eq_ignore_ascii_case(name)
    }
}

/// A number for a field's name, letters taken without case: equal names have equal numbers. Others mostly have others,
/// but a sender can make names that do not, so nothing may depend on that but the usual speed.
pub(crate) fn name_hash(name: &[u8]) -> u32 {
    const CASE: u64 = 0x2020_2020_2020_2020;
    // The odd number nearest to 2^64 divided by the golden ratio, as multiplicative hashes have it.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ (word | CASE)).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = name.as_chunks::<8>();
    let hash = words.iter().fold(name.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    let last = rest
        .iter()
        .fold(0, |word, &octet| word << 8 | u64::from(octet));
    (mix(hash, last) >> 32) as u32
}

/// The length of what stands before a colon, without the white space at its end.
fn name_length(before_colon: &[u8]) -> usize {
    before_colon
        .iter()
        .rposition(|&o| !matches!(o, b' ' | b'\t'))
        .map_or(0, |last| last + 1)
}

/// Splits a raw message that comes in chunks of any size.
///
/// A message whose first line ends in a bare LF is taken for a file with LF line ends, and each such end as the CRLF
/// it was on the wire. In a message whose first line ends in CRLF, a bare LF is an octet like others. A leading mbox
/// `From ` line is dropped; white space and a colon after `From` make a header field of it (RFC 5322 section 4.5.8).
#[derive(Debug)]
pub struct MessageReader {
    max_header: usize,
    header: HeaderFields,
    /// The field being read: its lines so far, each but the last with its CRLF.
    field: Vec<u8>,
    /// The line being read, without its end.
    line: Vec<u8>,
    lf_is_crlf: Option<bool>,
    in_body: bool,
    /// LF files: the last body octet so far was CR.
    after_cr: bool,
    lines_seen: bool,
    has_mbox_line: bool,
}

impl MessageReader {
    /// A reader that takes headers of at most `max_header` octets.
    pub fn new(max_header: usize) -> Self {
        Self {
            max_header,
            // Most headers fit.
            header: HeaderFields {
                octets: Vec::with_capacity(2048),
                fields: Vec::with_capacity(24),
            },
            field: Vec::new(),
            line: Vec::new(),
            lf_is_crlf: None,
            in_body: false,
            after_cr: false,
            lines_seen: false,
            has_mbox_line: false,
        }
    }

    /// Takes the next octets; those of the body come out through `body`, in CRLF form, any number of times.
    ///
    /// # Errors
    /// A header over the limit.
    pub fn read(
        &mut self,
        mut chunk: &[u8],
        mut body: impl FnMut(&[u8]),
    ) -> Result<(), HeaderTooLarge> {
        while !self.in_body && !chunk.is_empty() {
            chunk = self.read_header(chunk)?;
        }
        if self.lf_is_crlf == Some(true) {
            self.body_with_crlf(chunk, &mut body);
        } else if !chunk.is_empty() {
            body(chunk);
        }
        Ok(())
    }

    /// Whether the header is complete, so that [`header`](Self::header) has all fields.
    pub fn in_body(&self) -> bool {
        self.in_body
    }

    /// Ends the message: a last header line without a line end becomes a field too.
    pub fn finish(&mut self) {
        if !self.in_body {
            self.lf_is_crlf.get_or_insert(true);
            if !self.line.is_empty() {
                if self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
                self.take_line();
            }
            self.field_ended();
            self.in_body = true;
        }
    }

    /// The fields read so far.
    pub fn header(&self) -> &HeaderFields {
        &self.header
    }

    /// Whether the message came with LF line ends, as far as is known.
    pub fn has_lf_lines(&self) -> bool {
        self.lf_is_crlf == Some(true)
    }

    /// Whether an mbox `From ` line was dropped.
    pub fn has_mbox_line(&self) -> bool {
        self.has_mbox_line
    }

    /// Takes as many fields as are whole in what is not empty, or else a line or a part of one; what follows comes back.
    fn read_header<'c>(&mut self, chunk: &'c [u8]) -> Result<&'c [u8], HeaderTooLarge> {
        if self.line.is_empty() {
            if !is_white(chunk[0]) {
                self.field_ended();
                self.check_size()?;
            }
            if !self.lines_seen && begins_with_crlf_line(chunk) {
                self.lines_seen = true;
                self.lf_is_crlf = Some(false);
            }
            if self.field.is_empty() && self.lf_is_crlf == Some(false) {
                let behind = self.take_fields(chunk)?;
                if behind.len() < chunk.len() {
                    return Ok(behind);
                }
            }
        }
        let Some(at) = memchr::memchr(b'\n', chunk) else {
            self.line.extend_from_slice(chunk);
            self.check_size()?;
            return Ok(&[]);
        };
        self.line.extend_from_slice(&chunk[..at]);
        self.check_size()?;
        self.line_ended();
        Ok(&chunk[at + 1..])
    }

    /// Takes the fields that are whole in a chunk of a CRLF message, straight from there, and the empty line behind them.
    /// A field is whole if what follows it is there and does not continue it.
    fn take_fields<'c>(&mut self, chunk: &'c [u8]) -> Result<&'c [u8], HeaderTooLarge> {
        let mut start = 0;
        for lf in memchr::memchr_iter(b'\n', chunk) {
            if lf == 0 || chunk[lf - 1] != b'\r' {
                continue;
            }
            if lf - 1 == start {
                self.in_body = true;
                return Ok(&chunk[lf + 1..]);
            }
            let Some(&next) = chunk.get(lf + 1) else {
                break;
            };
            if !is_white(next) {
                self.header.push_raw(&chunk[start..lf - 1]);
                self.check_size()?;
                start = lf + 1;
            }
        }
        Ok(&chunk[start..])
    }

    /// One line of the header stands in `line`, its LF taken.
    fn line_ended(&mut self) {
        let has_cr = self.line.last() == Some(&b'\r');
        let lf_is_crlf = *self.lf_is_crlf.get_or_insert(!has_cr);
        if has_cr {
            self.line.pop();
        } else if !lf_is_crlf {
            // A bare LF in a CRLF message ends no line.
            self.line.push(b'\n');
            return;
        }
        self.take_line();
    }

    /// What stands in `line` is a whole line; what was read before it is a field only if this continues it.
    fn take_line(&mut self) {
        let is_first = !std::mem::replace(&mut self.lines_seen, true);
        if is_first && is_mbox_line(&self.line) {
            self.has_mbox_line = true;
            self.line.clear();
        } else if self.line.is_empty() {
            self.in_body = true;
        } else if self.field.is_empty() {
            std::mem::swap(&mut self.field, &mut self.line);
        } else {
            self.field.extend_from_slice(b"\r\n");
            self.field.append(&mut self.line);
        }
    }

    fn field_ended(&mut self) {
        if !self.field.is_empty() {
            self.header.push_raw(&self.field);
            self.field.clear();
        }
    }

    fn body_with_crlf(&mut self, chunk: &[u8], body: &mut impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let has_cr = match at {
                0 => self.after_cr,
                _ => rest[at - 1] == b'\r',
            };
            if at > 0 {
                body(&rest[..at]);
            }
            body(if has_cr { b"\n" } else { b"\r\n" });
            self.after_cr = false;
            rest = &rest[at + 1..];
        }
        if let Some(&last) = rest.last() {
            body(rest);
            self.after_cr = last == b'\r';
        }
    }

    fn check_size(&self) -> Result<(), HeaderTooLarge> {
        // A CR may be of the line's end.
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if self.header.octets() + self.field.len() + line.len() > self.max_header {
            Err(HeaderTooLarge {
                limit: self.max_header,
            })
        } else {
            Ok(())
        }
    }
}

/// Whether the first line is there, ends in CRLF and is no mbox separator.
fn begins_with_crlf_line(chunk: &[u8]) -> bool {
    memchr::memchr(b'\n', chunk)
        .and_then(|lf| chunk[..lf].strip_suffix(b"\r"))
        .is_some_and(|line| !is_mbox_line(line))
}

/// Whether a line that begins with `octet` continues the one before.
fn is_white(octet: u8) -> bool {
    matches!(octet, b' ' | b'\t')
}

/// Whether the first line of a file is the separator of an mbox, and no From field with white space before its colon.
fn is_mbox_line(line: &[u8]) -> bool {
    line.starts_with(b"From ") && !HeaderField::from_octets(line).is_named(b"From")
}

/// The header is larger than its reader allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header is larger than {limit} octets")]
pub struct HeaderTooLarge {
    /// The limit in octets.
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(raw: &[u8], chunk: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut reader = MessageReader::new(100_000);
        let mut body = Vec::new();
        for part in raw.chunks(chunk.max(1)) {
            reader
                .read(part, |octets| body.extend_from_slice(octets))
                .unwrap();
        }
        reader.finish();
        let fields = reader
            .header()
            .iter()
            .map(|f| f.octets().to_vec())
            .collect();
        (fields, body)
    }

    #[test]
    fn a_message_is_fields_and_a_body() {
        for (raw, fields, body) in [
            (
                &b"A: 1\r\nB: 2\r\n\t3\r\n\r\nbody\r\n"[..],
                vec![&b"A: 1"[..], b"B: 2\r\n\t3"],
                &b"body\r\n"[..],
            ),
            (
                b"A: 1\nB: 2\n\t3\n\nbody\n.\r\n",
                vec![b"A: 1", b"B: 2\r\n\t3"],
                b"body\r\n.\r\n",
            ),
            (b"From me Mon\nA: 1\n\n", vec![b"A: 1"], b""),
            (b"From me Mon 1:00\nA: 1\n\n", vec![b"A: 1"], b""),
            (
                b"From me Mon\r\nA: 1\r\n b\r\nB: 2\r\n\r\n\r\nx\n",
                vec![b"A: 1\r\n b", b"B: 2"],
                b"\r\nx\n",
            ),
            (
                b"From : a@b\nFrom: c@d\n\n",
                vec![b"From : a@b", b"From: c@d"],
                b"",
            ),
            (b"From \t : a@b\r\n\r\n", vec![b"From \t : a@b"], b""),
            (b"A: 1\r\n", vec![b"A: 1"], b""),
            (b"A: 1", vec![b"A: 1"], b""),
            (b"A: 1\nB: 2", vec![b"A: 1", b"B: 2"], b""),
            (b"A: 1\r\nB: 2", vec![b"A: 1", b"B: 2"], b""),
            (b"A: 1\r\n 2", vec![b"A: 1\r\n 2"], b""),
            (b"A: 1\r\nB: 2\r", vec![b"A: 1", b"B: 2"], b""),
            (b"A: 1\r\n\r", vec![b"A: 1"], b""),
            (b"A: 1\r\nb\nc\r\n\r\nx\ny", vec![b"A: 1", b"b\nc"], b"x\ny"),
            (b"\r\nbody", vec![], b"body"),
            (b"", vec![], b""),
        ] {
            for chunk in [1, 2, 3, 1000] {
                let got = read(raw, chunk);
                assert_eq!(got.0, fields, "{}", String::from_utf8_lossy(raw));
                assert_eq!(got.1, body, "{}", String::from_utf8_lossy(raw));
            }
        }
    }

    #[test]
    fn folds_from_a_milter_become_crlf_and_other_octets_stay() {
        let mut header = HeaderFields::new();
        header.push(b"Subject", b" ", b"a\n\tb\r\n c\rd\ne");
        assert_eq!(
            header.get(0).unwrap().octets(),
            b"Subject: a\r\n\tb\r\n c\rd\ne"
        );
    }

    #[test]
    fn a_name_ends_before_white_space_and_is_compared_without_case() {
        let mut header = HeaderFields::new();
        header.push_raw(b"Subject \t: x");
        header.push_raw(b"no colon");
        let field = header.get(0).unwrap();
        assert_eq!(field.name(), b"Subject");
        assert!(field.is_named(b"sUBJECT"));
        assert_eq!(field.value(), b" x");
        assert_eq!(header.get(1).unwrap().value(), b"");
    }

    #[test]
    fn names_that_are_equal_without_case_have_one_hash_and_others_do_not() {
        let names = [
            "From",
            "Form",
            "X-1",
            "X-2",
            "DKIM-Signature",
            "DKIM-Signaturf",
            "DKIM-Signature-X",
            "a",
            "",
        ];
        for (at, name) in names.iter().enumerate() {
            let upper = name.to_ascii_uppercase();
            assert_eq!(name_hash(name.as_bytes()), name_hash(upper.as_bytes()));
            for other in &names[at + 1..] {
                assert_ne!(
                    name_hash(name.as_bytes()),
                    name_hash(other.as_bytes()),
                    "{name} {other}"
                );
            }
        }
    }

    #[test]
    fn a_header_over_the_limit_is_refused_however_it_comes() {
        for chunk in [1, 7, 5000] {
            let mut reader = MessageReader::new(1000);
            let raw = b"A: 1\r\n".repeat(500);
            let refused = raw
                .chunks(chunk)
                .any(|part| reader.read(part, |_| ()).is_err());
            assert!(refused);
        }
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(raw in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b' '), Just(b':'), Just(b'a')], 0..60), chunk in 1usize..8) {
            prop_assert_eq!(read(&raw, chunk), read(&raw, 1000));
        }

        #[test]
        fn chunks_do_not_matter_for_the_limit(
            raw in proptest::collection::vec(prop_oneof![3 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 2 => Just(" "), 4 => Just("A:"), 4 => Just("b")], 0..40),
            limit in 0usize..60,
            chunk in 1usize..8,
        ) {
            let raw = raw.concat().into_bytes();
            let is_refused = |chunk: usize| {
                let mut reader = MessageReader::new(limit);
                raw.chunks(chunk).any(|part| reader.read(part, |_| ()).is_err())
            };
            prop_assert_eq!(is_refused(chunk), is_refused(1000));
        }
    }
}
