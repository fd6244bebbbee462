//! Which header fields a signature covers, and their canonical octets (RFC 6376 sections 3.7 and 5.4.2).
//!
//! Names in `h=` take fields from the bottom up; a name for which no field is left stands for nothing.

use crate::canonicalization::{Algorithm, append_field};
use crate::message::{HeaderFields, name_hash};
use std::cmp::Ordering;

/// Finds fields by name; made once per message.
#[derive(Debug)]
pub(crate) struct FieldIndex {
    /// Fields by their places counted from the bottom.
    sorted: Vec<Entry>,
}

impl FieldIndex {
    pub(crate) fn new(header: &HeaderFields) -> Self {
        let hashes = header.name_hashes().rev();
        Self {
            sorted: sorted(hashes, |place| name_from_bottom(header, place)),
        }
    }

    /// How many fields are called `name`, whose [`name_hash`] is `hash`.
    pub(crate) fn count(&self, header: &HeaderFields, hash: u32, name: &[u8]) -> usize {
        let order = |entry: &Entry| {
            let own_name = || name_from_bottom(header, entry.place());
            let by_hash = entry.hash().cmp(&hash);
            by_hash.then_with(|| compare_names(own_name(), name))
        };
        let first = self.sorted.partition_point(|entry| order(entry).is_lt());
        let from_first = self.sorted[first..].iter();
        from_first.take_while(|entry| order(entry).is_eq()).count()
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
        let mut wanted = Vec::with_capacity(32);
        wanted.extend(names);
        for index in self.select(header, own, &wanted) {
            if let Some(field) = header.get(index) {
                append_field(out, field, algorithm);
            }
        }
    }

    /// The index of the field that each name stands for; where there is none, one that no field has.
    ///
    /// Names are brought into the order of the fields and both walked through once, so that no choice of names, by
    /// whomever, makes that dear.
    fn select(&self, header: &HeaderFields, own: Option<usize>, names: &[&[u8]]) -> Vec<usize> {
        let mut selected = vec![usize::MAX; names.len()];
        let mut fields = self.sorted.as_slice();
        let hashes = names.iter().map(|name| name_hash(name));
        for wish in sorted(hashes, |place| names[place]) {
            while let [field, behind @ ..] = fields {
                let index = index_from_top(header, field.place());
                let by_name = || {
                    let name = name_from_bottom(header, field.place());
                    compare_names(name, names[wish.place()])
                };
                let order = match Some(index) == own {
                    true => Ordering::Less,
                    false => field.hash().cmp(&wish.hash()).then_with(by_name),
                };
                if order.is_gt() {
                    break;
                }
                fields = behind;
                if order.is_eq() {
                    selected[wish.place()] = index;
                    break;
                }
            }
        }
        selected
    }
}

/// A name's hash, and below it the place of the name in some list: a single number, which is quick to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry(u64);

impl Entry {
    fn hash(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    fn place(self) -> usize {
        self.0 as u32 as usize
    }

    fn bucket(self) -> usize {
        (self.0 >> (u64::BITS - BUCKETS.ilog2())) as usize
    }
}

/// The places of a list of names in the order of their hashes, within these of their names, and within these as they
/// were.
fn sorted<'n>(hashes: impl Iterator<Item = u32>, name: impl Fn(usize) -> &'n [u8]) -> Vec<Entry> {
    let entries = (0..).zip(hashes);
    let entries =
        entries.map(|(place, hash): (u64, _)| Entry(u64::from(hash) << u32::BITS | place));
    let mut entries = in_order(entries.collect());
    for same_hash in entries.chunk_by_mut(|one, other| one.hash() == other.hash()) {
        let [first, others @ ..] = &*same_hash else {
            continue;
        };
        // That names share a hash hardly happens, unless somebody wants it.
        let is_other =
            |entry: &Entry| compare_names(name(entry.place()), name(first.place())).is_ne();
        if others.iter().any(is_other) {
            same_hash.sort_by(|one, other| compare_names(name(one.place()), name(other.place())));
        }
    }
    entries
}

/// The entries in their order. Many are first put into buckets by the uppermost bits of their hashes, so that a sort sees one
/// or two of them, or all where somebody has seen to that.
fn in_order(mut entries: Vec<Entry>) -> Vec<Entry> {
    if entries.len() < BUCKETS / 4 {
        entries.sort_unstable();
        return entries;
    }
    let mut ends = [0_usize; BUCKETS];
    for entry in &entries {
        ends[entry.bucket()] += 1;
    }
    let mut end = 0;
    for count in &mut ends {
        end += *count;
        *count = end;
    }
    let mut bucketed = vec![Entry(0); entries.len()];
    // From the last to the first, into each bucket from its end.
    for entry in entries.iter().rev() {
        let free = &mut ends[entry.bucket()];
        *free -= 1;
        bucketed[*free] = *entry;
    }
    for bucket in bucketed.chunk_by_mut(|one, other| one.bucket() == other.bucket()) {
        if bucket.len() > 1 {
            bucket.sort_unstable();
        }
    }
    bucketed
}

const BUCKETS: usize = 256;

fn name_from_bottom(header: &HeaderFields, place: usize) -> &[u8] {
    let field = header.get(index_from_top(header, place));
    field.map_or(&[], |field| field.name())
}

/// In another header than the index was made of, there may be no such field: then it is an index that no field has.
fn index_from_top(header: &HeaderFields, place: usize) -> usize {
    header.len().wrapping_sub(place + 1)
}

/// An order of names, letters compared without case; nothing is copied, as names may be long.
fn compare_names(one: &[u8], other: &[u8]) -> Ordering {
    if are_equal(one, other) || one.eq_ignore_ascii_case(other) {
        return Ordering::Equal;
    }
    let lower = u8::to_ascii_lowercase;
    one.iter().map(lower).cmp(other.iter().map(lower))
}

/// For names, which are short: without a call, eight octets at a time, the last eight perhaps twice.
fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (Some(one_end), Some(other_end)) = (one.last_chunk(), other.last_chunk()) else {
        return one.iter().zip(other).all(|(one, other)| one == other);
    };
    let word = |octets: &[u8; 8]| u64::from_ne_bytes(*octets);
    let words = one.as_chunks().0.iter().zip(other.as_chunks().0);
    word(one_end) == word(other_end)
        && words
            .into_iter()
            .all(|(one, other)| word(one) == word(other))
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

    #[test]
    fn names_are_equal_if_every_octet_is() {
        for length in 0..40 {
            let name: Vec<u8> = (0..length).collect();
            assert!(are_equal(&name, &name.clone()));
            assert!(!are_equal(&name, &[&name[..], b"x"].concat()));
            for at in 0..name.len() {
                let mut other = name.clone();
                other[at] ^= 0x80;
                assert!(!are_equal(&name, &other), "{length} {at}");
            }
        }
    }

    #[test]
    fn entries_are_sorted_however_many_and_however_alike() {
        let mut hash = 1_u32;
        for count in [0, 1, 63, 64, 65, 1000] {
            for mask in [u32::MAX, 0xff, 0xff00_0000, 0] {
                let entries: Vec<Entry> = (0..count)
                    .map(|place| {
                        hash = hash.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        Entry(u64::from(hash & mask) << u32::BITS | place)
                    })
                    .collect();
                let mut wanted = entries.clone();
                wanted.sort();
                assert_eq!(in_order(entries), wanted, "{count} {mask:x}");
            }
        }
    }

    /// Anybody can make names that share a hash; their fields must not get mixed up.
    #[test]
    fn names_with_the_same_hash_stay_apart() {
        let mut seen = std::collections::HashMap::new();
        let (one, other) = (0..1_000_000)
            .find_map(|n| {
                let name = format!("n{n}");
                let earlier = seen.insert(name_hash(name.as_bytes()), name.clone())?;
                Some((earlier, name))
            })
            .unwrap();
        let mut header = HeaderFields::new();
        for (name, value) in [(&one, 1), (&other, 2), (&one, 3), (&other, 4), (&other, 5)] {
            header.push_raw(format!("{name}: {value}").as_bytes());
        }
        for (own, want) in [
            (None, ["5", "3", "1", "4", "2"]),
            (Some(4), ["4", "3", "1", "2", ""]),
            (Some(2), ["5", "1", "", "4", "2"]),
        ] {
            let index = FieldIndex::new(&header);
            let names = [&other, &one, &one, &other, &other, &other, &one];
            let names = names.map(|name| name.as_bytes());
            let got = index.select(&header, own, &names).into_iter().map(|index| {
                let field = header.get(index);
                field.map_or("".into(), |field| {
                    String::from_utf8_lossy(field.value()).trim().to_owned()
                })
            });
            assert_eq!(got.collect::<Vec<_>>(), [&want[..], &["", ""]].concat());
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
