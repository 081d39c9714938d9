//! Output of results: files first, then the report for people. A closed stdout then loses no file.
//! If a file cannot be written, the report is still printed.

use crate::args::{Output, Wanted};
use crate::interrupt;
use crate::sys;
use crate::terminal::Terminal;
use anstyle::{AnsiColor, Style};
use anyhow::{Context, Result, bail, ensure};
use dioxide::text::shown;
use rustix::fs::{Access, FallocateFlags, Gid, OFlags, Uid, fallocate, fchown};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use textwrap::WordSplitter;
use textwrap::core::display_width;

/// The content of a file, or of stdout.
pub struct Text<'a> {
    pub wanted: Wanted<'a>,
    pub text: String,
}

/// Checks that the requested files can be created, as far as possible before the work. None of
/// them may be a file that is read.
pub fn check(wanted: &[Wanted<'_>], read: &[&Path]) -> Result<()> {
    for (nth, one) in wanted.iter().enumerate() {
        let Wanted { option, path } = one;
        let twin = wanted[..nth]
            .iter()
            .find(|other| one.is_stdout() && other.is_stdout() || names_the_same(other.path, path));
        if let Some(twin) = twin {
            bail!("{} and {option} name the same file: {}", twin.option, path.display());
        }
    }
    for Wanted { option, path } in wanted.iter().filter(|wanted| !wanted.is_stdout()) {
        let parent =
            path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        ensure!(parent.is_dir(), "{option} {}: no such directory", path.display());
        ensure!(!path.is_dir(), "{option} {}: is a directory", path.display());
        let name = path.as_os_str().as_encoded_bytes();
        let names_directory = name.ends_with(b"/") || name.ends_with(b"/.");
        ensure!(!names_directory, "{option} {}: no such directory", path.display());
        ensure!(!is_block_device(path), "{option} {}: is a block device", path.display());
        let leads_nowhere = path.is_symlink() && !path.exists();
        ensure!(!leads_nowhere, "{option} {}: is a link to a missing file", path.display());
        let is_read = read.iter().any(|read| names_the_same(opened(read), path));
        ensure!(!is_read, "{option} {}: is one of the files that are read", path.display());
        // Of a new file, the directory.
        let place = if path.exists() { path } else { parent };
        rustix::fs::access(place, Access::WRITE_OK)
            .with_context(|| format!("{option} {}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// The file of stdin has another name.
fn opened(read: &Path) -> &Path {
    if read == Path::new("-") { Path::new("/dev/stdin") } else { read }
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device())
}

/// Whether two paths name one file, which may not be there yet.
fn names_the_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let place = |path: &Path| {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        Some((id(parent.unwrap_or(Path::new(".")))?, path.file_name()?.to_owned()))
    };
    match (id(one), id(other)) {
        _ if one == other => true,
        (Some(one), Some(other)) => one == other,
        (None, None) => place(one).is_some_and(|one| Some(one) == place(other)),
        _ => false,
    }
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

/// The report for people, before it is printed.
pub struct Page {
    terminal: Terminal,
    text: Vec<u8>,
    /// The begins of coloured lines.
    tints: BTreeMap<usize, Tint>,
}

/// The meaning of a line, which a terminal shows as its colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tint {
    /// Something got worse.
    Bad,
    /// A reservation.
    Warning,
    Good,
}

impl Page {
    pub fn new(terminal: Terminal) -> Self {
        Self { terminal, text: Vec::new(), tints: BTreeMap::new() }
    }

    /// For `{grid:width$}`: 0 without a limit.
    pub fn width(&self) -> usize {
        self.terminal.width.unwrap_or(0)
    }

    /// Writes lines with a meaning.
    pub fn tinted(&mut self, tint: Option<Tint>, lines: impl Display) -> io::Result<()> {
        for line in lines.to_string().split('\n') {
            self.tints.extend(tint.filter(|_| !line.is_empty()).map(|it| (self.text.len(), it)));
            writeln!(self, "{line}")?;
        }
        Ok(())
    }

    /// The text as it is printed. No name acts on the terminal: each line is [shown]. Prose is
    /// wrapped at the width.
    pub fn finished(&self) -> String {
        let (mut finished, mut at) = (String::new(), 0);
        for line in self.text.split_inclusive(|byte| *byte == b'\n') {
            let text = String::from_utf8_lossy(line);
            let wrapped = self.wrapped(&shown(text.trim_end_matches('\n')).to_string());
            let tint = self.tints.get(&at).filter(|_| self.terminal.has_colours);
            let colour = tint.map(|tint| Style::new().fg_color(Some(tint.colour().into())));
            let colour = colour.unwrap_or_default();
            finished += &format!("{colour}{wrapped}{colour:#}");
            finished += if text.ends_with('\n') { "\n" } else { "" };
            at += line.len();
        }
        finished
    }

    fn wrapped(&self, line: &str) -> String {
        match self.terminal.width {
            Some(width) if display_width(line) > width => textwrap::fill(line, wrapping(width)),
            _ => line.to_owned(),
        }
    }
}

/// Lines end between words only, so that paths and commands can be copied. A longer word has a line
/// of its own.
pub fn wrapping(width: usize) -> textwrap::Options<'static> {
    textwrap::Options::new(width).word_splitter(WordSplitter::NoHyphenation).break_words(false)
}

impl Tint {
    fn colour(self) -> AnsiColor {
        match self {
            Self::Bad => AnsiColor::Red,
            Self::Warning => AnsiColor::Yellow,
            Self::Good => AnsiColor::Green,
        }
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the texts. Then `print` writes for people, unless one of the texts goes to stdout.
/// Programs get every name unchanged. An error of `print` follows the text before it.
pub fn deliver(
    texts: &[Text<'_>],
    terminal: Terminal,
    print: impl FnOnce(&mut Page) -> Result<()>,
) -> Result<()> {
    let (shown, files): (Vec<_>, Vec<_>) = texts.iter().partition(|text| text.wanted.is_stdout());
    let written: Vec<Result<()>> = files.into_iter().map(write).collect();
    let mut out = io::stdout().lock();
    let (text, printed) = match shown.first() {
        Some(Text { text, .. }) => (text.clone(), Ok(())),
        None => {
            let mut page = Page::new(terminal);
            let printed = print(&mut page);
            (page.finished(), printed)
        }
    };
    let shown = out.write_all(text.as_bytes());
    written.into_iter().collect::<Result<()>>()?;
    printed?;
    shown?;
    Ok(out.flush()?)
}

fn write(text: &Text<'_>) -> Result<()> {
    let path = text.wanted.path;
    replace(path, text.text.as_bytes()).with_context(|| format!("write {}", path.display()))
}

/// Writes a file as a whole: an error leaves the old one. A pipe, device or open file is written as
/// it is, and so is a file that cannot be replaced, though it can be written. `dioxide::replace`
/// would need direct I/O, which not every place of a result has.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let old = fs::metadata(path).ok();
    if is_block_device(path) {
        return Err(io::Error::other("is a block device"));
    }
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return fs::write(path, text);
    }
    if old.is_some()
        && let Some(fd) = own_descriptor(path)
    {
        return sys::duplicate(fd)?.write_all(text);
    }
    // A link stays.
    let path = match fs::canonicalize(path) {
        Ok(real) if old.is_none() || names_the_same(&real, path) => real,
        // An open file without a name, or one in the container of another process, in /proc.
        _ if old.is_some() => return overwrite(path, text),
        _ => path.to_owned(),
    };
    match replace_by_rename(&path, text, old.as_ref()) {
        Err(error) if old.is_some() && forbids_replacement(&error) => overwrite(&path, text),
        result => result,
    }
}

/// The open descriptor that the path names, like /dev/stderr.
pub fn own_descriptor(path: &Path) -> Option<u32> {
    let number = |path: &Path| {
        let is_there =
            ["/dev/fd", "/proc/self/fd"].iter().any(|dir| path.parent() == Some(Path::new(dir)));
        path.file_name()?.to_str()?.parse().ok().filter(|_| is_there)
    };
    number(path).or_else(|| number(&fs::read_link(path).ok()?))
}

fn replace_by_rename(path: &Path, text: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    interrupt::listen().map_err(io::Error::other)?;
    // Without the name of the file, which may be as long as a name can be.
    let temporary = path.with_file_name(format!(".dioxide-{:016x}.tmp", fastrand::u64(..)));
    // Never a file or a link of another user, who may write to the directory.
    let mut file = File::create_new(&temporary)?;
    let written = old
        .map_or(Ok(()), |old| give(&file, old))
        .and_then(|()| file.write_all(text))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error counts.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Gives the file the owner and the rights of the old one. Only root can give it to another user. A
/// group that cannot be kept has no rights.
fn give(file: &File, old: &Metadata) -> io::Result<()> {
    let group = Some(Gid::from_raw(old.gid()));
    let mut mode = old.mode() & 0o777;
    let is_given = fchown(file, Some(Uid::from_raw(old.uid())), group).is_ok();
    if !is_given && fchown(file, None, group).is_err() {
        mode &= !0o070;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// Whether the directory prevents a replacement: it is read-only or sticky, or the file is a mount
/// point, as in a container.
fn forbids_replacement(error: &io::Error) -> bool {
    let forbids = [Errno::ACCESS, Errno::BUSY, Errno::PERM, Errno::ROFS, Errno::XDEV];
    Errno::from_io_error(error).is_some_and(|errno| forbids.contains(&errno))
}

/// Writes an old file in place. Without space, its content stays.
fn overwrite(path: &Path, text: &[u8]) -> io::Result<()> {
    // The path has no links, unless another user has just put one there.
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut file = File::options().write(true).custom_flags(flags).open(path)?;
    let len = text.len() as u64;
    match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    file.write_all(text)?;
    file.set_len(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;
    use std::thread;

    fn refusal(files: &[(&'static str, &str)]) -> String {
        let wanted: Vec<_> =
            files.iter().map(|&(option, path)| Wanted { option, path: Path::new(path) }).collect();
        check(&wanted, &[Path::new("/etc/hosts")])
            .err()
            .map(|why| why.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn nothing_that_is_printed_acts_on_the_terminal() {
        let mut page = Page::new(Terminal { width: None, has_colours: true });
        write!(page, "one \u{1b}]0;x\u{7}\ntwo\n\n\u{202e}three").unwrap();
        assert_eq!(page.finished(), "one \\u{1b}]0;x\\u{7}\ntwo\n\n\\u{202e}three");
    }

    #[test]
    fn prose_is_wrapped_at_the_width() {
        let page = |width| {
            let mut page = Page::new(Terminal { width, has_colours: false });
            write!(page, "some words of prose\n  x\n\nthe end").unwrap();
            page.finished()
        };
        assert_eq!(page(None), "some words of prose\n  x\n\nthe end");
        assert_eq!(page(Some(10)), "some words\nof prose\n  x\n\nthe end");
    }

    #[test]
    fn colours_are_for_terminals_only() {
        let page = |has_colours| {
            let mut page = Page::new(Terminal { width: None, has_colours });
            page.tinted(None, "plain").unwrap();
            page.tinted(Some(Tint::Bad), "slower\n\nby far").unwrap();
            page.finished()
        };
        assert_eq!(page(false), "plain\nslower\n\nby far\n");
        let red = |line| format!("\u{1b}[31m{line}\u{1b}[0m\n");
        assert_eq!(page(true), format!("plain\n{}\n{}", red("slower"), red("by far")));
    }

    /// Links that another user had put where root would write its temporary file.
    #[test]
    fn a_prepared_link_lost_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let (result, victim) = (dir.path().join("out.json"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let prepare = |name: String| {
            symlink(&victim, dir.path().join(name)).unwrap();
        };
        prepare(format!(".out.json.{}.tmp", std::process::id()));
        replace(&result, b"{}").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fastrand::seed(1);
        prepare(format!(".dioxide-{:016x}.tmp", fastrand::u64(..)));
        fastrand::seed(1);
        let error = replace(&result, b"[]").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let [victim, result] = [victim, result].map(|file| fs::read_to_string(file).unwrap());
        assert_eq!((&*victim, &*result), ("precious", "{}"));
    }

    /// The file behind a descriptor was replaced by another one. Its content was lost, and what
    /// was written to the descriptor later.
    #[test]
    fn the_file_of_a_descriptor_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "before ").unwrap();
        let mut file = File::options().write(true).open(&log).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        let fd = dir.path().join("fd");
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), &fd).unwrap();
        replace(&fd, b"result ").unwrap();
        file.write_all(b"after").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "before result after");
        fs::remove_file(&log).unwrap();
        replace(&fd, b" more").unwrap();
        assert_eq!(fs::read_to_string(&fd).unwrap(), "before result after more");
        assert!(fd.is_symlink());
    }

    /// The result went to the name of the link.
    #[test]
    fn a_link_to_a_missing_file_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("latest.json");
        symlink("missing/today.json", &link).unwrap();
        let why = check(&[Wanted { option: "--json", path: &link }], &[]).unwrap_err().to_string();
        assert!(why.contains("is a link to a missing file"), "{why}");
    }

    /// The defect: the error came after the whole run, and the result was lost.
    #[test]
    fn a_missing_directory_was_a_file() {
        for path in ["/missing/", "/missing/.", "missing/"] {
            let expected = format!("--json {path}: no such directory");
            assert_eq!(refusal(&[("--json", path)]), expected);
        }
    }

    /// Root wrote the result of a user again, who could not read it any more.
    #[test]
    fn a_result_changed_its_owner() {
        const OTHER_USER: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let result = dir.path().join("out.json");
        fs::write(&result, "[]").unwrap();
        fs::set_permissions(&result, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&result, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
        replace(&result, b"{}").unwrap();
        let now = fs::metadata(&result).unwrap();
        assert_eq!((now.uid(), now.gid(), now.mode() & 0o777), (OTHER_USER, OTHER_USER, 0o600));
    }

    /// `check` accepts the file, and the error came after the whole run.
    #[test]
    fn a_result_in_a_read_only_directory_was_lost() {
        const OTHER_USER: u32 = 65534;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        fs::write(&file, "the old result").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o555)).unwrap();
        // Root may write to each directory.
        let replace_without_rights = || {
            if rustix::process::geteuid().is_root() {
                let user = Uid::from_raw(OTHER_USER);
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            }
            check(&[Wanted { option: "--json", path: &file }], &[]).unwrap();
            replace(&file, b"{}").unwrap();
            replace(&dir.path().join("new"), b"{}").unwrap_err()
        };
        let replaced = thread::scope(|scope| scope.spawn(replace_without_rights).join());
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(replaced.unwrap().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
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
        assert_eq!(
            refusal(&[("--json", "-"), ("--html", "/dev/stdout")]),
            "--json and --html name the same file: /dev/stdout"
        );
        assert_eq!(
            refusal(&[("--json", "/new"), ("--html", "/../new")]),
            "--json and --html name the same file: /../new"
        );
        assert_eq!(
            refusal(&[("--json", "/etc/../etc/hosts")]),
            "--json /etc/../etc/hosts: is one of the files that are read"
        );
    }
}
