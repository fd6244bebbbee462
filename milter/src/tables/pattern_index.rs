//! Address patterns, found without trying them one by one.
//!
//! Nearly every pattern in use names its domain: `ann@example.com`, `*@example.com`, `*@*.example.com`. Those are kept
//! by that domain, so that an address meets only the patterns of its own domain and of the domains above it. The few
//! others are tried in order. The first match in the order of the file wins, whichever kind it is of.

use std::collections::HashMap;

use super::domain::climb;
use super::wildcard;

/// Numbered address patterns.
#[derive(Debug, Default)]
pub(super) struct PatternIndex {
    /// `local@domain`, by domain.
    by_domain: HashMap<Box<str>, Vec<Numbered>>,
    /// `local@*.domain`, by domain.
    below_domain: HashMap<Box<str>, Vec<Numbered>>,
    /// All others, in order.
    others: Vec<(u32, Other)>,
}

/// A pattern's number, and the pattern of its local part unless that is `*`.
type Numbered = (u32, Option<Box<[u8]>>);

/// A pattern that has no plain domain.
#[derive(Debug)]
enum Other {
    /// Without `@`: for the whole address.
    Whole(Box<[u8]>),
    /// For local part and domain.
    Parts(Box<[u8]>, Box<[u8]>),
}

/// An address to look up, in lower case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address<'a> {
    /// What stands before the last `@`.
    pub(super) local_part: &'a [u8],
    /// What stands behind it: a host name.
    pub(super) domain: &'a str,
}

impl PatternIndex {
    /// Adds `pattern`, which is in lower case and has its domain in A-labels; numbers must rise.
    ///
    /// What stands behind its last `@` is for the domain, what stands before it for the local part.
    pub(super) fn insert(&mut self, number: u32, pattern: &str) {
        let Some((local, domain)) = pattern.rsplit_once('@') else {
            self.others
                .push((number, Other::Whole(pattern.as_bytes().into())));
            return;
        };
        let (index, plain) = match domain.strip_prefix("*.") {
            Some(above) => (&mut self.below_domain, above),
            None => (&mut self.by_domain, domain),
        };
        if plain.contains('*') {
            let parts = Other::Parts(local.as_bytes().into(), domain.as_bytes().into());
            self.others.push((number, parts));
        } else {
            let local = (local != "*").then(|| local.as_bytes().into());
            index.entry(plain.into()).or_default().push((number, local));
        }
    }

    /// The lowest number of a pattern that matches.
    pub(super) fn first(&self, address: Address<'_>) -> Option<u32> {
        let indexed = self
            .buckets(address.domain)
            .filter_map(|bucket| {
                bucket
                    .iter()
                    .find(|(_, local)| matches_local(local, address))
            })
            .map(|&(number, _)| number)
            .min();
        let other = self
            .others
            .iter()
            .take_while(|(number, _)| indexed.is_none_or(|indexed| *number < indexed))
            .find(|(_, other)| other.matches(address))
            .map(|&(number, _)| number);
        other.or(indexed)
    }

    /// The numbers of all patterns that match, rising.
    pub(super) fn all(&self, address: Address<'_>) -> Vec<u32> {
        let indexed = self
            .buckets(address.domain)
            .flatten()
            .filter(|(_, local)| matches_local(local, address))
            .map(|&(number, _)| number);
        let others = self
            .others
            .iter()
            .filter(|(_, other)| other.matches(address))
            .map(|&(number, _)| number);
        let mut numbers: Vec<u32> = indexed.chain(others).collect();
        numbers.sort_unstable();
        numbers
    }

    /// How many patterns are tried one by one for every address.
    #[cfg(test)]
    pub(super) fn tried_one_by_one(&self) -> usize {
        self.others.len()
    }

    /// The patterns that could match an address at `domain`.
    fn buckets<'i>(&'i self, domain: &'i str) -> impl Iterator<Item = &'i Vec<Numbered>> {
        let below = climb(domain)
            .skip(1)
            .filter_map(|above| self.below_domain.get(above));
        self.by_domain.get(domain).into_iter().chain(below)
    }
}

impl Other {
    fn matches(&self, address: Address<'_>) -> bool {
        match self {
            Self::Whole(pattern) => {
                let whole = [address.local_part, b"@", address.domain.as_bytes()].concat();
                wildcard::matches(pattern, &whole)
            }
            Self::Parts(local, domain) => {
                wildcard::matches(domain, address.domain.as_bytes())
                    && wildcard::matches(local, address.local_part)
            }
        }
    }
}

fn matches_local(pattern: &Option<Box<[u8]>>, address: Address<'_>) -> bool {
    pattern
        .as_ref()
        .is_none_or(|pattern| wildcard::matches(pattern, address.local_part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every pattern tried, in order, as its definition says.
    fn model(patterns: &[String], address: Address<'_>) -> Vec<u32> {
        let whole = [address.local_part, b"@", address.domain.as_bytes()].concat();
        let matches = |pattern: &String| match pattern.rsplit_once('@') {
            None => wildcard::matches(pattern.as_bytes(), &whole),
            Some((local, domain)) => {
                wildcard::matches(local.as_bytes(), address.local_part)
                    && wildcard::matches(domain.as_bytes(), address.domain.as_bytes())
            }
        };
        (0..)
            .zip(patterns)
            .filter(|(_, pattern)| matches(pattern))
            .map(|(number, _)| number)
            .collect()
    }

    proptest! {
        #[test]
        fn finds_what_trying_all_in_order_finds(
            patterns in proptest::collection::vec("([ab*]{0,2}@)?(\\*\\.)?[ab*]{1,2}(\\.[ab*]{1,2}){0,2}", 0..12),
            local_part in "[ab@]{0,3}",
            domain in "[ab]{1,2}(\\.[ab]{1,2}){0,3}",
        ) {
            let mut index = PatternIndex::default();
            for (number, pattern) in (0..).zip(&patterns) {
                index.insert(number, pattern);
            }
            let address = Address { local_part: local_part.as_bytes(), domain: &domain };
            let wanted = model(&patterns, address);
            prop_assert_eq!(index.first(address), wanted.first().copied());
            prop_assert_eq!(index.all(address), wanted);
        }
    }
}
