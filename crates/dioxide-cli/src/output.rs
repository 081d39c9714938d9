//! Output of results: files first, then the report for people. A closed stdout then loses no file.
//! If a file cannot be written, the report is still printed.

use crate::args::{Output, Wanted};
use anyhow::{Context, Result, bail, ensure};
use dioxide::text::shown;
use serde::Serialize;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The content of a file, or of stdout.
pub struct Text<'a> {
    pub wanted: Wanted<'a>,
    pub text: String,
}

/// Checks that the requested files can be created, as far as possible before the work.
pub fn check(wanted: &[Wanted<'_>]) -> Result<()> {
    for (nth, Wanted { option, path }) in wanted.iter().enumerate() {
        let twin = wanted[..nth].iter().find(|other| other.path == *path);
        if let Some(twin) = twin {
            bail!("{} and {option} name the same file: {}", twin.option, path.display());
        }
    }
    for Wanted { option, path } in wanted.iter().filter(|wanted| !wanted.is_stdout()) {
        let parent =
            path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        ensure!(parent.is_dir(), "{option} {}: no such directory", path.display());
        ensure!(!path.is_dir(), "{option} {}: is a directory", path.display());
    }
    Ok(())
}

/// The requested texts in the formats that several commands share.
pub fn texts<'a>(
    output: &'a Output,
    document: &impl Serialize,
    page: impl Fn() -> String,
) -> Result<Vec<Text<'a>>> {
    let text = |wanted: Wanted<'a>| {
        let text = if wanted.option == "--html" { page() } else { json(document)? };
        Ok(Text { wanted, text })
    };
    output.wanted().into_iter().map(text).collect()
}

/// JSON in our format.
pub fn json(document: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// Writes the texts. Then `print` writes for people, unless one of the texts goes to stdout.
///
/// Programs get every name unchanged. For people no name acts on the terminal: each line is
/// [shown]. `print` itself escapes characters that would break a line.
pub fn deliver(texts: &[Text<'_>], print: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let (shown, files): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.wanted.is_stdout());
    let written: Vec<Result<()>> = files.into_iter().map(write).collect();
    let mut out = io::stdout().lock();
    let printed = match shown.first() {
        Some(Text { text, .. }) => out.write_all(text.as_bytes()).map_err(Into::into),
        None => print_shown(print, &mut out),
    };
    written.into_iter().collect::<Result<()>>()?;
    printed?;
    Ok(out.flush()?)
}

/// Prints line by line, also the beginning of a text that fails.
fn print_shown(
    print: impl FnOnce(&mut dyn Write) -> Result<()>,
    out: &mut dyn Write,
) -> Result<()> {
    let mut text = Vec::new();
    let printed = print(&mut text);
    for line in String::from_utf8_lossy(&text).split_inclusive('\n') {
        match line.strip_suffix('\n') {
            Some(line) => writeln!(out, "{}", shown(line))?,
            None => write!(out, "{}", shown(line))?,
        }
    }
    printed
}

fn write(text: &Text<'_>) -> Result<()> {
    let path = text.wanted.path;
    fs::write(path, &text.text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(files: &[(&'static str, &str)]) -> String {
        let wanted: Vec<_> =
            files.iter().map(|&(option, path)| Wanted { option, path: Path::new(path) }).collect();
        check(&wanted).err().map(|why| why.to_string()).unwrap_or_default()
    }

    #[test]
    fn nothing_that_is_printed_acts_on_the_terminal() {
        let mut out = Vec::new();
        let print =
            |out: &mut dyn Write| Ok(write!(out, "one \u{1b}]0;x\u{7}\ntwo\n\n\u{202e}three")?);
        print_shown(print, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "one \\u{1b}]0;x\\u{7}\ntwo\n\n\\u{202e}three");
    }

    #[test]
    fn what_cannot_be_written_is_refused_beforehand() {
        assert_eq!(refusal(&[("--json", "-"), ("--html", "page.html")]), "");
        assert_eq!(
            refusal(&[("--html", "/no/such/page")]),
            "--html /no/such/page: no such directory"
        );
        assert_eq!(refusal(&[("--json", "/")]), "--json /: is a directory");
        assert_eq!(
            refusal(&[("--json", "-"), ("--html", "-")]),
            "--json and --html name the same file: -"
        );
    }
}
