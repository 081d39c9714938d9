//! The terminal behind stdout: its width, and whether it shows colours.

use rustix::termios::tcgetwinsize;
use std::env;
use std::ffi::OsString;
use std::io::{IsTerminal, stdout};

/// A terminal that reports no width.
const WIDTH_DEFAULT: usize = 80;
/// Narrower tables are unreadable.
const WIDTH_MIN: usize = 20;
/// The formatter takes no more.
const WIDTH_MAX: usize = u16::MAX as usize;

/// What stdout shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terminal {
    /// The columns of a line. None without a limit.
    pub width: Option<usize>,
    pub has_colours: bool,
}

impl Terminal {
    /// Of stdout. `--wide` removes the limit.
    pub fn of_stdout(is_wide: bool) -> Self {
        let window =
            stdout().is_terminal().then(|| tcgetwinsize(stdout()).map_or(0, |it| it.ws_col));
        let width = width(env::var("COLUMNS").ok().as_deref(), window);
        Self {
            width: width.filter(|_| !is_wide),
            has_colours: has_colours(
                window.is_some(),
                env::var_os("NO_COLOR"),
                env::var_os("TERM"),
            ),
        }
    }
}

/// `COLUMNS` comes first, as in `ls` and under `watch`. A pipe or file has no limit.
fn width(columns: Option<&str>, window: Option<u16>) -> Option<usize> {
    let given = columns.and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    let own = window.map(|columns| if columns == 0 { WIDTH_DEFAULT } else { columns.into() });
    given.or(own).map(|columns| columns.clamp(WIDTH_MIN, WIDTH_MAX))
}

/// Only a terminal shows colours, unless `NO_COLOR` is set, or it is a simple one.
fn has_colours(is_terminal: bool, no_color: Option<OsString>, term: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|it| it.is_empty()) && term.is_some_and(|it| it != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_has_the_full_table_unless_columns_is_set() {
        assert_eq!(width(None, None), None);
        assert_eq!(width(Some("120"), None), Some(120));
        assert_eq!(width(None, Some(132)), Some(132));
        assert_eq!(width(Some("120"), Some(132)), Some(120));
        assert_eq!(width(None, Some(0)), Some(80), "a terminal without a size");
        for wrong in ["", "0", "-1", "wide"] {
            assert_eq!(width(Some(wrong), Some(132)), Some(132), "{wrong}");
        }
        assert_eq!(width(Some("1"), None), Some(WIDTH_MIN));
    }

    /// `{:width$}` panics above 65535.
    #[test]
    fn many_columns_ended_the_program() {
        let wide = width(Some("100000"), None).unwrap();
        assert_eq!(format!("{:wide$}", "").len(), wide);
    }

    #[test]
    fn only_a_terminal_has_colours() {
        let xterm = || Some("xterm".into());
        assert!(has_colours(true, None, xterm()));
        assert!(has_colours(true, Some("".into()), xterm()));
        assert!(!has_colours(true, Some("1".into()), xterm()));
        assert!(!has_colours(true, None, Some("dumb".into())) && !has_colours(true, None, None));
        assert!(!has_colours(false, None, xterm()));
    }
}
