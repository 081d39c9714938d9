//! `dioxide man`: the manual, a page for each command, generated from the command line definitions.

use crate::args::{Cli, Man};
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Exit codes: the command (`dioxide` for all), the code, and its meaning.
const EXIT_STATUS: [(&str, &str, &str); 15] = [
    ("dioxide", "0", "The work is done."),
    ("dioxide", "1", "It failed: one line on stderr gives the reason."),
    (
        "dioxide-compare",
        "1",
        "The runs cannot be compared, or, with --fail-on-regression, a row cannot be judged and \
         none regresses.",
    ),
    (
        "dioxide-history",
        "1",
        "It failed, or, with --fail-on-regression, a row cannot be judged and none regresses.",
    ),
    ("dioxide-log-verify", "1", "The log is damaged, or cannot be read."),
    ("dioxide-probe", "1", "With --for: FAIL."),
    ("dioxide", "2", "The command line is wrong."),
    ("dioxide-probe", "2", "With --for: it could not be measured."),
    ("dioxide-compare", "3", "With --fail-on-regression: something is slower by more than that."),
    ("dioxide-history", "3", "With --fail-on-regression: a row lost more than that."),
    ("dioxide-diagnose", "4", "The observed process was stopped (SIGSTOP): there is no verdict."),
    ("dioxide-run", "126", "The program cannot be executed."),
    ("dioxide-run", "127", "There is no such program."),
    (
        "dioxide",
        "128+n",
        "As shells show it: signal n ended it, SIGHUP, SIGINT or SIGTERM. The first one leaves \
         nothing behind. After a second one, temporary files may stay.",
    ),
    ("dioxide-run", "other", "Once the program runs, what it ends with."),
];

/// No date. An empty argument would be left out.
const DATE: &str = "\"\"";

/// Related pages of other projects.
const SEE_ALSO: [(&str, &str, &str); 3] = [
    ("dioxide-bench", "fio", "1"),
    ("dioxide-diagnose", "perf-lock", "1"),
    ("dioxide-run", "ld.so", "8"),
];

pub fn run(args: &Man) -> Result<()> {
    let pages = pages(&Cli::command())?;
    let Some(dir) = &args.dir else { return Ok(io::stdout().write_all(&pages[0].text)?) };
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    pages.iter().try_for_each(|page| page.save(dir))
}

struct ManPage {
    /// `dioxide-bench`
    name: String,
    text: Vec<u8>,
}

impl ManPage {
    fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(format!("{}.1", self.name));
        fs::write(&path, &self.text).with_context(|| format!("write {}", path.display()))
    }
}

/// The page of the whole command line comes first.
fn pages(root: &Command) -> Result<Vec<ManPage>> {
    let mut root = root.clone().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_pages(&root, None, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, parent: Option<&Command>, pages: &mut Vec<ManPage>) -> Result<()> {
    pages.push(page(command, parent)?);
    shown(command).try_for_each(|child| add_pages(child, Some(command), pages))
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|child| !child.is_hide_set())
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &Command, parent: Option<&Command>) -> Result<ManPage> {
    let version = concat!("dioxide ", env!("CARGO_PKG_VERSION"));
    let man =
        clap_mangen::Man::new(command.clone()).title(name(command).to_uppercase()).source(version);
    let man = man.date(DATE).manual("User Commands");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut rest = Roff::new();
    exit_status(command, &mut rest);
    examples(command, &mut rest);
    see_also(command, parent, &mut rest);
    rest.to_writer(&mut text)?;
    Ok(ManPage { name: name(command).to_owned(), text })
}

/// A specific meaning replaces the general one. The page of `dioxide` has all of them.
fn exit_status(command: &Command, roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    let own = |code: &str| EXIT_STATUS.iter().any(|row| row.0 == name(command) && row.1 == code);
    let applies = |of: &str, code: &str| match of {
        "dioxide" => name(command) == "dioxide" || !own(code),
        of => of == name(command) || name(command) == "dioxide",
    };
    for (of, code, meaning) in EXIT_STATUS.iter().filter(|(of, code, _)| applies(of, code)) {
        let whose = if *of == name(command) || *of == "dioxide" {
            ""
        } else {
            &format!("{}: ", of.replace('-', " "))
        };
        roff.control("TP", []).text([bold(*code)]).text([roman(format!("{whose}{meaning}"))]);
    }
}

/// The text below the options in `--help`, verbatim.
fn examples(command: &Command, roff: &mut Roff) {
    let Some(help) = command.get_after_long_help().map(ToString::to_string) else { return };
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in help.lines().skip(1) {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
}

/// Parent and child pages, and those of other projects.
fn see_also(command: &Command, parent: Option<&Command>, roff: &mut Roff) {
    let own = parent.into_iter().chain(shown(command)).map(|command| (name(command), "1"));
    let others = SEE_ALSO.iter().filter(|row| row.0 == name(command)).map(|row| (row.1, row.2));
    let pages: Vec<_> = own.chain(others).collect();
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (nth, (name, section)) in pages.iter().enumerate() {
        let end = if nth + 1 < pages.len() { ", " } else { "" };
        line.extend([bold(*name), roman(format!("({section}){end}"))]);
    }
    roff.text(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> String {
        let page = pages(&Cli::command()).unwrap().into_iter().find(|page| page.name == name);
        String::from_utf8(page.expect(name).text).unwrap()
    }

    /// From its heading to the next one.
    fn section<'a>(page: &'a str, heading: &str) -> &'a str {
        let (_, rest) = page.split_once(&format!(".SH {heading}\n")).expect(heading);
        rest.split(".SH ").next().unwrap()
    }

    #[test]
    fn a_page_for_each_command() {
        let names: Vec<_> =
            pages(&Cli::command()).unwrap().into_iter().map(|page| page.name).collect();
        assert_eq!(names[..3], ["dioxide", "dioxide-bench", "dioxide-bench-append"]);
        assert!(names.iter().any(|name| name == "dioxide-compare"), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("help")), "{names:?}");
    }

    #[test]
    fn sections_of_a_page() {
        let page = text("dioxide-bench-append");
        assert!(section(&page, "OPTIONS").contains("\\-\\-growth\\-cap"), "{page}");
        assert!(
            section(&page, "EXAMPLES").contains("dioxide bench append \\-\\-dir /data"),
            "{page}"
        );
        assert!(section(&page, "\"SEE ALSO\"").contains("\\fBdioxide\\-bench\\fR(1)"), "{page}");
    }

    #[test]
    fn codes_of_a_page() {
        let compare = text("dioxide-compare");
        let codes = section(&compare, "\"EXIT STATUS\"");
        assert!(codes.contains("\\fB3\\fR") && !codes.contains("one line on stderr"), "{codes}");
        let bench = text("dioxide-bench");
        assert!(!section(&bench, "\"EXIT STATUS\"").contains("\\fB3\\fR"), "{bench}");
        let all = text("dioxide");
        assert!(section(&all, "\"EXIT STATUS\"").contains("dioxide compare: With"), "{all}");
    }
}
