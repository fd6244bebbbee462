//! What people are shown: which characters may not be as they are, wherever what strangers wrote is shown (in log lines, on
//! a terminal, in JSON; how the log and JSON write them instead is for these to know), and the system's errors in words.

use std::io;

/// `text` on one line, with escapes for what steers: names of files and what name servers say must not play with a
/// terminal.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_steering(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Whether `character` steers a terminal, breaks a line, turns the direction of text, or is there and cannot be seen.
pub(crate) fn is_steering(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The operating system's words for `error`, without the number that Rust adds.
pub(crate) fn cause(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_shown_can_play_with_a_terminal() {
        for (text, want) in [
            ("b\u{fc}cher.eml", "b\u{fc}cher.eml"),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("a\r\nb\tc\u{9b}d", "a\\r\\nb\\tc\\u{9b}d"),
            ("evil\u{202e}lme", "evil\\u{202e}lme"),
            ("a\u{2028}b\u{61c}c", "a\\u{2028}b\\u{61c}c"),
        ] {
            assert_eq!(one_line(text), want);
        }
    }

    #[test]
    fn the_system_s_errors_are_told_without_their_numbers() {
        for (error, words) in [
            (io::Error::from_raw_os_error(2), "No such file or directory"),
            (io::Error::from_raw_os_error(98), "Address already in use"),
            (io::Error::other("no number"), "no number"),
        ] {
            assert_eq!(cause(&error), words);
        }
    }
}
