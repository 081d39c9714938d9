//! Safe display of foreign text. Names of files, threads and programs may hold any characters. A
//! terminal acts on control characters, and a line break forges a line. Bidirectional control
//! characters disguise a name.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Write};

/// A text for terminals and logs: active characters are escaped as in Rust.
#[derive(Clone, Debug)]
pub struct Shown<'a>(Cow<'a, str>);

/// Escapes a text or a path. U+FFFD replaces invalid UTF-8.
pub fn shown<'a>(text: &'a (impl AsRef<OsStr> + ?Sized)) -> Shown<'a> {
    Shown(text.as_ref().to_string_lossy())
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match acts(c) {
            true => write!(f, "{}", c.escape_default()),
            false => f.write_char(c),
        })
    }
}

/// Returns whether a character is a control character, a bidirectional control or a line separator.
fn acts(c: char) -> bool {
    let turns = [
        '\u{61C}'..='\u{61C}',
        '\u{200E}'..='\u{200F}',
        '\u{2028}'..='\u{202E}',
        '\u{2066}'..='\u{2069}',
    ];
    c.is_control() || turns.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn names_that_act_on_a_terminal_are_escaped() {
        for (name, expected) in [
            ("/data/log 1\\2 \u{e9}e\u{301}\u{1f600}", "/data/log 1\\2 \u{e9}e\u{301}\u{1f600}"),
            ("\u{1b}]0;x\u{7}", r"\u{1b}]0;x\u{7}"),
            ("a\r\nb\tc\u{7f}", r"a\r\nb\tc\u{7f}"),
            ("\u{9b}31m", r"\u{9b}31m"),
            ("exe\u{202e}gnp", r"exe\u{202e}gnp"),
            ("\u{2066}\u{2069}\u{200f}\u{61c}\u{2028}", r"\u{2066}\u{2069}\u{200f}\u{61c}\u{2028}"),
        ] {
            assert_eq!(shown(name).to_string(), expected);
        }
        assert_eq!(shown(OsStr::from_bytes(b"a\x9b31m")).to_string(), "a\u{fffd}31m");
    }

    proptest! {
        #[test]
        fn whatever_is_shown_does_nothing_and_is_shown_the_same_again(text in "(?s).{0,40}") {
            let once = shown(&text).to_string();
            prop_assert!(!once.chars().any(acts));
            prop_assert_eq!(shown(&once).to_string(), once);
        }
    }
}
