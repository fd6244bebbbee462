//! A log line: an event's fields as text in which nothing is left that could end the line or steer a terminal.

use std::fmt::{self, Write};

use tracing::Level;
use tracing::field::{Field, Visit};

use crate::shown::is_steering;

/// Longest text of a line in octets; syslog daemons cut at 8192 or sooner.
const LONGEST: usize = 4096;

/// The text of an event while its fields are recorded.
#[derive(Debug, Default)]
pub(super) struct Line {
    text: String,
    is_full: bool,
}

impl Line {
    /// The text, cut where it is too long.
    pub(super) fn finish(mut self) -> String {
        if self.is_full {
            self.text.push_str("...");
        }
        self.text
    }

    fn name(&mut self, field: &Field) {
        if field.name() != "message" {
            let gap = if self.text.is_empty() { "" } else { " " };
            // Writing to a line never fails: see `write_str`.
            let _ = write!(self, "{gap}{}=", field.name());
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        let _ = self.write_str(value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.name(field);
        let _ = write!(self, "{value:?}");
    }
}

impl Write for Line {
    /// Takes what fits, escaped; the rest is dropped without an error, for half a line is better than none.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.is_full || self.text.len() >= LONGEST {
                self.is_full = true;
                break;
            }
            push_escaped(&mut self.text, character);
        }
        Ok(())
    }
}

/// What steers becomes an escape.
fn push_escaped(text: &mut String, character: char) {
    match character {
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\0' => text.push_str("\\0"),
        // Writing to a String cannot fail.
        '\x01'..='\x1f' | '\x7f' => drop(write!(text, "\\x{:02x}", u32::from(character))),
        _ if is_steering(character) => text.extend(character.escape_unicode()),
        _ => text.push(character),
    }
}

/// With the priority before it, as sd-daemon(3) has it; the journal knows the time.
pub(super) fn for_journal(level: Level, text: &str) -> String {
    format!("<{}>{text}\n", severity(level))
}

/// With the time, in UTC, before it, and the level where it matters.
pub(super) fn for_reader(unix: u64, level: Level, text: &str) -> String {
    let level = match level {
        Level::ERROR => "error: ",
        Level::WARN => "warning: ",
        Level::INFO => "",
        _ => "debug: ",
    };
    format!("{} {level}{text}\n", timestamp(unix))
}

/// The severity of RFC 3164 section 4.1.1.
pub(super) fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// `2026-01-31T23:59:59Z` (RFC 3339). Years of 400 have as many days each, so days are counted within those, from a 1st
/// of March, which puts the leap day last.
fn timestamp(unix: u64) -> String {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = unix / 86_400 + DAYS_TO_1970;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, is_next_year) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + is_next_year;
    let (hour, minute, second) = (unix / 3600 % 24, unix / 60 % 60, unix % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values by `date -u -d @N`.
    #[test]
    fn times_are_utc() {
        for (unix, wanted) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(unix), wanted);
        }
    }

    #[test]
    fn a_terminal_is_told_the_level_where_it_matters() {
        assert_eq!(for_reader(0, Level::INFO, "x"), "1970-01-01T00:00:00Z x\n");
        assert_eq!(
            for_reader(0, Level::WARN, "x"),
            "1970-01-01T00:00:00Z warning: x\n"
        );
        assert_eq!(for_journal(Level::ERROR, "x"), "<3>x\n");
    }
}
