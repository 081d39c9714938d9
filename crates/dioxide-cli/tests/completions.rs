//! Completions and the manual, in real shells and readers of manuals. Missing programs are left
//! out.

mod common;

use common::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The output of a shell for this script, in a directory with `script`, the completions. None
/// without the shell.
fn tell(shell: &str, script: &str) -> Option<String> {
    which(shell)?;
    let dir = TempDir::new().unwrap();
    let completions = run(&format!("completions {shell}"));
    expect_code(&completions, 0);
    fs::write(dir.path().join("script"), &completions.stdout).unwrap();
    let output = Command::new(shell).args(["-c", script]).current_dir(dir.path()).output().unwrap();
    expect_quiet(&output);
    Some(stdout(&output).to_owned())
}

fn which(program: &str) -> Option<()> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find(|dir| dir.join(program).is_file()).map(|_| ())
}

fn expect_quiet(output: &Output) {
    expect_code(output, 0);
    assert_eq!(stderr(output), "");
}

/// The proposals of bash at the end of a line, whose last word may be empty.
fn bash_proposes(line: &str) -> Vec<String> {
    let words: Vec<_> = line.split(' ').collect();
    let [.., previous, last] = words[..] else { panic!("{line} has a command only") };
    let script = format!(
        "source ./script; COMP_WORDS=('{}'); COMP_CWORD={}; _dioxide dioxide '{last}' \
         '{previous}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join("' '"),
        words.len() - 1,
    );
    tell("bash", &script).expect("bash is needed").lines().map(str::to_owned).collect()
}

#[test]
fn bash_proposes_commands_and_options() {
    assert_eq!(bash_proposes("dioxide be"), ["bench"]);
    let scenarios = bash_proposes("dioxide bench ");
    for word in
        ["append", "sync", "mixed", "indirect", "files", "checkpoint", "log", "copy", "--json"]
    {
        assert!(scenarios.iter().any(|proposed| proposed == word), "{word} in {scenarios:?}");
    }
    assert_eq!(bash_proposes("dioxide bench append --dur"), ["--durability"]);
    assert_eq!(bash_proposes("dioxide bench append --durability every"), ["every-write"]);
    assert_eq!(bash_proposes("dioxide compare --fail"), ["--fail-on-regression"]);
}

#[test]
fn fish_proposes_commands_and_options() {
    let proposes = |line: &str| tell("fish", &format!("source ./script; complete -C '{line}'"));
    let Some(commands) = proposes("dioxide be") else { return };
    assert!(commands.starts_with("bench\tShow where direct I/O stops scaling"), "{commands}");
    let options = proposes("dioxide bench append --dur").unwrap();
    assert!(options.starts_with("--durability"), "{options}");
}

#[test]
fn zsh_knows_the_command() {
    let script = "autoload -U compinit; compinit -u -d ./dump; source ./script; echo \
        $_comps[dioxide]; whence -w _dioxide";
    let Some(said) = tell("zsh", script) else { return };
    assert_eq!(said, "_dioxide\n_dioxide: function\n");
}

#[test]
fn other_shells_have_scripts_too() {
    for shell in ["elvish", "powershell"] {
        let output = run(&format!("completions {shell}"));
        expect_quiet(&output);
        assert!(
            stdout(&output).contains("bench") && stdout(&output).contains("--durability"),
            "{shell}"
        );
    }
    expect_code(&run("completions cmd.exe"), 2);
}

fn pages(dir: &Path) -> Vec<std::path::PathBuf> {
    expect_quiet(&run(&format!("man --dir {}", dir.display())));
    fs::read_dir(dir).unwrap().map(|page| page.unwrap().path()).collect()
}

#[test]
fn a_page_for_each_command() {
    let dir = TempDir::new().unwrap();
    let mut pages = pages(&dir.path().join("man1"));
    pages.sort();
    let names: Vec<_> =
        pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap()).collect();
    for name in [
        "dioxide.1",
        "dioxide-bench.1",
        "dioxide-bench-append.1",
        "dioxide-compare.1",
        "dioxide-run.1",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let first = run("man");
    expect_quiet(&first);
    assert_eq!(
        first.stdout,
        fs::read(&pages[names.iter().position(|name| *name == "dioxide.1").unwrap()]).unwrap()
    );
    expect_refusal(&run("man --dir /dev/null/x"), "/dev/null/x");
}

#[test]
fn readers_of_manuals_have_no_complaint() {
    let dir = TempDir::new().unwrap();
    for page in pages(dir.path()) {
        if which("man").is_some() {
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-l"])
                .arg(&page)
                .env("MANWIDTH", "100")
                .env("LC_ALL", "C.UTF-8");
            let output = man.output().unwrap();
            expect_quiet(&output);
            assert!(stdout(&output).contains("SEE ALSO"), "{}", stdout(&output));
        }
        if which("mandoc").is_some() {
            let output =
                Command::new("mandoc").args(["-Tlint", "-Werror"]).arg(&page).output().unwrap();
            assert_eq!(stdout(&output), "", "{}", page.display());
        }
    }
}
