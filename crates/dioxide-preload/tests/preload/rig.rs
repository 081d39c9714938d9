//! Programs, and how they are run: plainly, or with the preload library before libc.

use dioxide_testkit::trials::Failed;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is said of a program that does not do what it must.
pub fn failed(what: impl Into<String>) -> Failed {
    Failed::from(what.into())
}

/// What was said of it.
pub fn message(failed: &Failed) -> &str {
    failed.message().unwrap_or_default()
}

/// What stands before libc in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Nothing: the control of every test.
    Nothing,
    /// The library, which takes a file when writes meet.
    Preload,
    /// The library, which takes a file when it is opened.
    Eager,
}

impl With {
    /// Both ways of using the library.
    pub const LIBRARY: [With; 2] = [With::Preload, With::Eager];
    /// And without it.
    pub const ALL: [With; 3] = [With::Nothing, With::Preload, With::Eager];

    /// The variables, as a shell takes them before a command.
    pub fn words(self) -> String {
        let library = || format!("LD_PRELOAD={}", library().display());
        match self {
            With::Nothing => String::new(),
            With::Preload => library(),
            With::Eager => format!("DIOXIDE_EAGER=1 {}", library()),
        }
    }

    /// Sets them, and no others of ours.
    pub fn set(self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DIOXIDE_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_PRELOAD");
        if self != With::Nothing {
            command.env("LD_PRELOAD", library());
        }
        if self == With::Eager {
            command.env("DIOXIDE_EAGER", "1");
        }
    }

    /// The same, with the library as programs use it: how much stack a function takes is the
    /// compiler's choice.
    pub fn set_optimised(self, command: &mut Command) {
        self.set(command);
        if self != With::Nothing && std::env::var_os("DIOXIDE_PRELOAD_LIBRARY").is_none() {
            let library = build_library("release").expect("the preload library is built");
            command.env("LD_PRELOAD", library);
        }
    }
}

/// The library, built if that is not done: cargo builds none of this kind for a test.
/// `DIOXIDE_PRELOAD_LIBRARY` names another.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os("DIOXIDE_PRELOAD_LIBRARY") {
        Some(path) => path.into(),
        None => {
            let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
            build_library(profile).expect("the preload library is built")
        }
    })
}

fn build_library(profile: &str) -> io::Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "dioxide-preload", "--profile", profile])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    assert!(built.success(), "{built}");
    // Beside the directory of the tests, or of the other profile.
    let dir = if profile == "dev" { "debug" } else { profile };
    let path =
        std::env::current_exe()?.with_file_name(format!("../../{dir}/libdioxide_preload.so"));
    path.canonicalize()
}

/// How a C program is compiled: by other names of the same calls.
pub const COMPILED: [(&str, &[&str]); 3] = [
    ("plain", &[]),
    ("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]),
    ("64", &["-D_FILE_OFFSET_BITS=64"]),
];

/// A program of `tests/c`, compiled in one of the ways of [`COMPILED`].
pub fn c_program(name: &str, (way, options): (&str, &[&str])) -> PathBuf {
    // Each is compiled once, and none is run while a compiler has it open for writing.
    static DONE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{way}"));
    if !done.contains(&path) {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
        let compiled = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
            .args(options)
            .arg(source)
            .arg("-o")
            .arg(&path)
            .status()
            .expect("there is a C compiler");
        assert!(compiled.success(), "{name}, {way}: {compiled}");
        done.push(path.clone());
    }
    path
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Whether it ended well, or all that it said.
    pub fn well(self) -> Result<Self, Failed> {
        if self.status.success() {
            return Ok(self);
        }
        Err(failed(format!(
            "{}\n{}{}",
            self.status,
            last_lines(&self.stdout),
            last_lines(&self.stderr)
        )))
    }
}

/// The last of what may be much.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let mut last = lines[lines.len().saturating_sub(20)..].join("\n");
    last.push('\n');
    last
}

/// Runs a program until it ends, and ends it and its children when `limit` has passed. Children
/// that it leaves behind are not waited for.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, Failed> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0)
        .spawn()
        .map_err(|error| failed(format!("{command:?}: {error}")))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            // SAFETY: a group of its own, whose leader has not been waited for.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            let _ = child.wait();
            let (stdout, stderr) = (content(&mut stdout)?, content(&mut stderr)?);
            let said = last_lines(&stdout) + &last_lines(&stderr);
            return Err(failed(format!("{command:?}: not done after {limit:?}\n{said}")));
        }
        thread::sleep(Duration::from_millis(3));
    };
    Ok(Finished { status, stdout: content(&mut stdout)?, stderr: content(&mut stderr)? })
}

fn content(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How a program ended, in a line.
pub fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("ended with {}", status.code().unwrap_or(-1)),
    }
}

/// An empty directory in another.
pub fn empty(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let path = dir.join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    fs::create_dir(&path)?;
    Ok(path)
}
