//! Which header fields a signature covers, and their canonical octets (RFC 6376 sections 3.7 and 5.4.2).
//!
//! Names in `h=` take fields from the bottom up; a name for which no field is left stands for nothing.

use crate::canonicalization::{Algorithm, append_field};
use crate::message::HeaderFields;
use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

/// Finds fields by name; made once per message.
#[derive(Debug)]
pub(crate) struct FieldIndex {
    /// For headers with many fields: their indexes by name, and from the bottom up within a name.
    sorted: Option<Vec<usize>>,
}

/// Headers of up to so many fields are searched one by one, with a bit for each field that is taken.
const SMALL: usize = u64::BITS as usize;

impl FieldIndex {
    pub(crate) fn new(header: &HeaderFields) -> Self {
        let sorted = (header.len() > SMALL).then(|| {
            let mut indexes: Vec<usize> = (0..header.len()).collect();
            indexes.sort_unstable_by(|&one, &other| {
                compare_names(name_at(header, one), name_at(header, other))
                    .then(Reverse(one).cmp(&Reverse(other)))
            });
            indexes
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
                let mut taken = HashMap::new();
                names.for_each(|name| append(take_sorted(header, sorted, own, name, &mut taken)));
            }
        }
    }
}

fn take_small(header: &HeaderFields, name: &[u8], taken: &mut u64) -> Option<usize> {
    let (index, _) = header
        .iter()
        .enumerate()
        .rev()
        .find(|(index, field)| *taken & (1 << index) == 0 && field.is_named(name))?;
    *taken |= 1 << index;
    Some(index)
}

/// `taken` counts, for the place where each name's fields begin in `sorted`, those that are taken or passed over.
fn take_sorted(
    header: &HeaderFields,
    sorted: &[usize],
    own: Option<usize>,
    name: &[u8],
    taken: &mut HashMap<usize, usize>,
) -> Option<usize> {
    let group = sorted
        .partition_point(|&index| compare_names(name_at(header, index), name) == Ordering::Less);
    let used = taken.entry(group).or_insert(0);
    if own.is_some() && sorted.get(group + *used).copied() == own {
        *used += 1;
    }
    let index = *sorted.get(group + *used)?;
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
