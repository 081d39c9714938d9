//! System programs that the bench uses.

use anyhow::{Context, Result, bail};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The directories of administrators' tools, which may be missing in PATH.
const MORE_PATH: &str = "/usr/sbin:/sbin";
/// Instead of an empty PATH, which means the current directory.
const PATH_DEFAULT: &str = "/usr/bin:/bin";

/// A program, and its Debian package.
#[derive(Clone, Copy)]
pub struct Tool {
    pub name: &'static str,
    pub package: &'static str,
}

impl Tool {
    /// Runs it, and returns its output. Ctrl-C does not reach it: it ends quickly, and must leave
    /// nothing half done.
    pub fn run(self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<String> {
        let Self { name, package } = self;
        let path = search_path(std::env::var_os("PATH"));
        let mut command = Command::new(name);
        command.args(arguments).env("PATH", path).stdin(Stdio::null()).process_group(0);
        let output = match command.output() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{name} is not installed (Debian package {package})")
            }
            output => output.with_context(|| format!("run {name}"))?,
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{name}: {}", said.trim().lines().last().unwrap_or("failed"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn search_path(own: Option<OsString>) -> OsString {
    let mut path = own.filter(|own| !own.is_empty()).unwrap_or(PATH_DEFAULT.into());
    path.push(":");
    path.push(MORE_PATH);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_came_from_the_current_directory() {
        for path in [None, Some("".into()), Some("/opt/bin".into())] {
            let path = search_path(path).into_string().unwrap();
            assert!(path.split(':').all(|directory| directory.starts_with('/')), "{path}");
        }
    }

    fn run(name: &'static str, arguments: &[&str]) -> Result<String> {
        Tool { name, package: "its-package" }.run(arguments)
    }

    #[test]
    fn what_it_printed() {
        assert_eq!(run("printf", &["%s", "words"]).unwrap(), "words");
    }

    #[test]
    fn a_failure_is_told_in_its_last_words() {
        let refusal = run("sh", &["-c", "echo one >&2; echo two >&2; exit 3"]).unwrap_err();
        assert_eq!(refusal.to_string(), "sh: two");
    }

    #[test]
    fn what_is_missing_can_be_installed() {
        let refusal = run("no-such-program", &[]).unwrap_err().to_string();
        assert_eq!(refusal, "no-such-program is not installed (Debian package its-package)");
    }
}
