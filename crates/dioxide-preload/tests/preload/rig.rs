//! Builds and runs programs, without and with the preload library.

use dioxide_testkit::trials::Failed;
use dioxide_testkit::with_default_signals;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Makes the failure of a trial.
pub fn failed(what: impl Into<String>) -> Failed {
    Failed::from(what.into())
}

/// Returns the text of a failure.
pub fn message(failed: &Failed) -> &str {
    failed.message().unwrap_or_default()
}

/// Whether and how a program uses the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Without it: the control of every test.
    Nothing,
    /// With a take-over when writes meet.
    Preload,
    /// With a take-over at open.
    Eager,
}

impl With {
    /// With the library.
    pub const LIBRARY: [With; 2] = [With::Preload, With::Eager];
    /// With and without it.
    pub const ALL: [With; 3] = [With::Nothing, With::Preload, With::Eager];

    /// Returns the variables as the prefix of a shell command.
    pub fn words(self) -> String {
        let library = || format!("LD_PRELOAD={}", library().display());
        match self {
            With::Nothing => String::new(),
            With::Preload => library(),
            With::Eager => format!("DIOXIDE_EAGER=1 {}", library()),
        }
    }

    /// Sets the variables, and removes all others of dioxide.
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

    /// The same, with the release build. The stack of a function depends on the optimization.
    pub fn set_optimised(self, command: &mut Command) {
        self.set(command);
        if self != With::Nothing && std::env::var_os("DIOXIDE_PRELOAD_LIBRARY").is_none() {
            let library = build_library("release").expect("the preload library is built");
            command.env("LD_PRELOAD", library);
        }
    }
}

/// Returns the library, and builds it if needed, because cargo builds no cdylib for a test.
/// `DIOXIDE_PRELOAD_LIBRARY` selects another one.
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
    // From target/PROFILE/deps, where the tests are.
    let dir = if profile == "dev" { "debug" } else { profile };
    let path =
        std::env::current_exe()?.with_file_name(format!("../../{dir}/libdioxide_preload.so"));
    path.canonicalize()
}

/// Compiler options, which select different names of the same calls.
pub const COMPILED: [(&str, &[&str]); 3] = [
    ("plain", &[]),
    ("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]),
    ("64", &["-D_FILE_OFFSET_BITS=64"]),
];

/// Compiles a program of `tests/c` in one of the ways of [`COMPILED`].
pub fn c_program(name: &str, (way, options): (&str, &[&str])) -> PathBuf {
    // Compiles each once. No program runs while a compiler has it open for writing.
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

/// The end of a program, and its output.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Fails with its output, unless it succeeded.
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

/// Returns the end of a long text.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let mut last = lines[lines.len().saturating_sub(20)..].join("\n");
    last.push('\n');
    last
}

/// No program takes so long, also beside many busy processes.
pub const LIMIT: Duration = Duration::from_secs(600);

/// Runs a program, and kills it and its children after [`LIMIT`]. Does not wait for children that
/// it leaves behind.
pub fn run(command: &mut Command) -> Result<Finished, Failed> {
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let dies_with_the_trial = || {
        // SAFETY: the call takes a signal, and no pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        Ok(())
    };
    // SAFETY: `prctl` is async-signal-safe.
    unsafe { command.pre_exec(dies_with_the_trial) };
    let mut child = with_default_signals(command)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0)
        .spawn()
        .map_err(|error| failed(format!("{command:?}: {error}")))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            // SAFETY: before `wait`, the number is still that of the program and its group.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            let _ = child.wait();
            let (stdout, stderr) = (content(&mut stdout)?, content(&mut stderr)?);
            let said = last_lines(&stdout) + &last_lines(&stderr);
            return Err(failed(format!("{command:?}: not done after {LIMIT:?}\n{said}")));
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

/// Describes the end of a program in a line.
pub fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("ended with {}", status.code().unwrap_or(-1)),
    }
}

/// Makes an empty directory in another.
pub fn empty(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let path = dir.join(name);
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    fs::create_dir(&path)?;
    Ok(path)
}
