//! Which header fields a signature covers, and their canonical octets (RFC 6376 sections 3.7 and 5.4.2).
//!
//! Names in `h=` take fields from the bottom up; a name for which no field is left stands for nothing.

use crate::canonicalization::{Algorithm, append_field};
use crate::message::{HeaderFields, name_hash};
use std::cmp::{Ordering, Reverse};

/// Finds fields by name; made once per message.
#[derive(Debug)]
pub(crate) struct FieldIndex {
    /// For headers with many fields: all of them in the order of names, and from the bottom up within a name.
    sorted: Option<Vec<Entry>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    index: usize,
}

/// Headers of up to so many fields are searched one by one, with a bit for each field that is taken.
const SMALL: usize = u64::BITS as usize;

impl FieldIndex {
    pub(crate) fn new(header: &HeaderFields) -> Self {
        let sorted = (header.len() > SMALL).then(|| {
            let hashes = header.name_hashes().enumerate();
            let mut entries: Vec<Entry> =
                hashes.map(|(index, hash)| Entry { hash, index }).collect();
            entries.sort_unstable_by(|one, other| {
                let names =
                    || compare_names(name_at(header, one.index), name_at(header, other.index));
                let places = || Reverse(one.index).cmp(&Reverse(other.index));
                one.hash.cmp(&other.hash).then_with(names).then_with(places)
            });
            entries
        });
        Self { sorted }
    }

    /// Appends the fields that `names` stand for, each with its CRLF. No name stands for the field at `own`: that of the
    /// signature itself.
    pub(crate) fn append_selected<'n>(
        &self,
        out: &mut Vec<u8>,
        header: &HeaderFields,
        own: Option<usize>,
        names: impl Iterator<Item = &'n [u8]>,
        algorithm: Algorithm,
    ) {
        let mut append = |index: Option<usize>| {
            if let Some(field) = index.and_then(|index| header.get(index)) {
                append_field(out, field, algorithm);
            }
        };
        match &self.sorted {
            None => {
                let mut taken = own.map_or(0, |own| 1 << own);
                names.for_each(|name| append(take_small(header, name, &mut taken)));
            }
            Some(sorted) => {
                // For the place where each name's fields begin in `sorted`: how many are taken or passed over.
                let mut taken = vec![0; sorted.len()];
                names.for_each(|name| append(take_sorted(header, sorted, own, name, &mut taken)));
            }
        }
    }
}

fn take_small(header: &HeaderFields, name: &[u8], taken: &mut u64) -> Option<usize> {
    let index = header
        .places_of(name_hash(name), name)
        .rev()
        .find(|index| *taken & (1 << index) == 0)?;
    *taken |= 1 << index;
    Some(index)
}

fn take_sorted(
    header: &HeaderFields,
    sorted: &[Entry],
    own: Option<usize>,
    name: &[u8],
    taken: &mut [usize],
) -> Option<usize> {
    let hash = name_hash(name);
    let mut group = sorted.partition_point(|entry| entry.hash < hash);
    let is_it = |entry: &Entry| name_at(header, entry.index).eq_ignore_ascii_case(name);
    if !sorted.get(group).is_some_and(is_it) {
        // Another name with this hash comes first, or there is none.
        let same = sorted[group..].partition_point(|entry| entry.hash == hash);
        group += sorted[group..group + same].partition_point(|entry| {
            compare_names(name_at(header, entry.index), name) == Ordering::Less
        });
    }
    let at = |used: usize| sorted.get(group + used).map(|entry| entry.index);
    let used = taken.get_mut(group)?;
    if own.is_some() && at(*used) == own {
        *used += 1;
    }
    let index = at(*used)?;
    name_at(header, index).eq_ignore_ascii_case(name).then(|| {
        *used += 1;
        index
    })
}

fn name_at(header: &HeaderFields, index: usize) -> &[u8] {
    header.get(index).map_or(&[], |field| field.name())
}

/// An order of names, letters compared without case; nothing is copied, as names may be long.
fn compare_names(one: &[u8], other: &[u8]) -> Ordering {
    let lower = u8::to_ascii_lowercase;
    one.iter().map(lower).cmp(other.iter().map(lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(header: &HeaderFields, own: Option<usize>, names: &[&str]) -> String {
        let mut out = Vec::new();
        FieldIndex::new(header).append_selected(
            &mut out,
            header,
            own,
            names.iter().map(|name| name.as_bytes()),
            Algorithm::Relaxed,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_take_fields_from_the_bottom_up_in_any_header() {
        for filling in [0, 200] {
            let mut header = HeaderFields::new();
            for field in ["X: 1", "From: a", "x: 2", "To: b", "X : 3"] {
                header.push_raw(field.as_bytes());
                for n in 0..filling {
                    header.push_raw(format!("Fill{n}: y").as_bytes());
                }
            }
            assert_eq!(
                selected(
                    &header,
                    None,
                    &["x", "Absent", "FROM", "X", "from", "x", "x", "to"]
                ),
                "x:3\r\nfrom:a\r\nx:2\r\nx:1\r\nto:b\r\n"
            );
        }
    }

    /// RFC 6376 section 3.5 on `h=`: it must not include the signature's own field, but may include others.
    #[test]
    fn no_name_stands_for_the_signature_itself() {
        for filling in [0, 200] {
            let mut header = HeaderFields::new();
            for n in 0..filling {
                header.push_raw(format!("Fill{n}: y").as_bytes());
            }
            for field in ["S: 1", "From: a", "S: 2", "S: 3"] {
                header.push_raw(field.as_bytes());
            }
            for (own, want) in [
                (0, "s:3\r\nfrom:a\r\ns:2\r\n"),
                (2, "s:3\r\nfrom:a\r\ns:1\r\n"),
                (3, "s:2\r\nfrom:a\r\ns:1\r\n"),
            ] {
                assert_eq!(
                    selected(&header, Some(filling + own), &["s", "from", "s", "s", "s"]),
                    want
                );
            }
        }
    }

    /// What costs a look at the whole header for each name in `h=` makes minutes of a large header.
    #[test]
    fn names_do_not_cost_what_stands_before_the_colon() {
        let names: Vec<String> = (0..1000).map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for fields in [4, 100] {
            let mut header = HeaderFields::new();
            for n in 0..fields {
                let white = " ".repeat(100_000 / fields);
                header.push_raw(format!("X{n}{white}: x").as_bytes());
                let long = "m".repeat(100_000 / fields);
                header.push_raw(format!("{long}{n}: x").as_bytes());
            }
            let started = std::time::Instant::now();
            for _ in 0..10 {
                assert_eq!(selected(&header, None, &names), "");
            }
            assert!(started.elapsed().as_secs() < 5);
        }
    }
}
