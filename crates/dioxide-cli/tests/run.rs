//! `dioxide run`: the started program, its environment, and the messages for programs that cannot
//! load a library.

mod common;

use common::*;
use dioxide_testkit::files::{install_program, install_script};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The user ID of `nobody`, for a process without root's rights.
const NOBODY: u32 = 65534;

/// A directory that all users may read, with a fake library, which is never loaded.
fn fresh_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("library.so"), "").unwrap();
    dir
}

/// `dioxide run` with the directory's library, and the arguments after `--`.
fn run_in(dir: &Path, options: &str, program: &[&str]) -> Command {
    let mut command = dioxide("run --library");
    command.arg(dir.join("library.so")).args(options.split_whitespace()).arg("--").args(program);
    command.env_remove("LD_PRELOAD").current_dir(dir);
    command
}

/// The file compiled from C, with options of the compiler.
fn compiled(dir: &Path, options: &[&str]) -> PathBuf {
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"it runs\"); return 7; }\n")
        .unwrap();
    let compiler =
        Command::new("cc").args(options).arg(&source).arg("-o").arg(&program).status().unwrap();
    assert!(compiler.success());
    program
}

/// It ran without dioxide, after one line.
fn expect_run_without(output: &Output, words: &str) {
    expect_code(output, 7);
    assert_eq!(stdout(output), "it runs\n");
    let said = stderr(output);
    assert!(said.contains(words) && said.contains("it runs without dioxide"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn options_become_variables() {
    let dir = fresh_dir();
    let shell = "echo $LD_PRELOAD $DIOXIDE_MATCH $DIOXIDE_DEVICES $DIOXIDE_STATS $DIOXIDE_EAGER \
        $DIOXIDE_GROWTH_CAP";
    let options = "--match *.log --match /data/* --devices --stats --eager --growth-cap 64m";
    let output = run_in(dir.path(), options, &["sh", "-f", "-c", shell]).output().unwrap();
    expect_code(&output, 0);
    let library = fs::canonicalize(dir.path().join("library.so")).unwrap();
    assert_eq!(stdout(&output), format!("{} *.log:/data/* 1 1 1 67108864\n", library.display()));
}

#[test]
fn what_was_preloaded_before_stays() {
    let dir = fresh_dir();
    let mut command = run_in(dir.path(), "", &["sh", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert!(stdout(&output).ends_with("library.so:libm.so.6\n"), "{}", stdout(&output));
}

#[test]
fn a_library_that_is_missing_is_one_sentence() {
    expect_refusal(&run("run --library /no/such/library.so -- true"), "/no/such/library.so");
}

/// The defect D14: it ended with 1, as the program itself may. As in shells and env(1).
#[test]
fn a_program_that_cannot_start_ends_with_126_or_127() {
    let dir = fresh_dir();
    let file = dir.path().join("file");
    install_script("#!/no/such/interpreter\n", &file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let start = |program: &str| {
        let output = run_in(dir.path(), "", &[program]).env("PATH", dir.path()).output().unwrap();
        assert_eq!((stdout(&output), stderr(&output).lines().count()), ("", 1), "{output:?}");
        assert!(stderr(&output).contains(program.trim_start_matches("./")), "{output:?}");
        output.status.code()
    };
    assert_eq!((start("nosuch"), start("/no/such/program")), (Some(127), Some(127)));
    assert_eq!((start("file"), start("./file")), (Some(126), Some(126)), "not executable");
    assert_eq!(start("/"), Some(126), "a directory");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(start("./file"), Some(127), "no interpreter");
}

#[test]
fn a_static_program_runs_without() {
    let dir = fresh_dir();
    let program = compiled(dir.path(), &["-static"]);
    let output = run_in(dir.path(), "", &[program.to_str().unwrap()]).output().unwrap();
    expect_run_without(&output, "statically linked");
}

#[test]
fn a_script_of_a_static_interpreter_runs_without() {
    let dir = fresh_dir();
    let program = compiled(dir.path(), &["-static"]);
    let script = dir.path().join("script");
    install_script(&format!("#!{}\n", program.display()), &script).unwrap();
    let output = run_in(dir.path(), "", &[script.to_str().unwrap()]).output().unwrap();
    expect_run_without(&output, "is a script for");
}

/// Tests that give up rights need them.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_setuid_program_of_another_user_runs_without() {
    if !is_root() {
        return;
    }
    let dir = fresh_dir();
    let program = compiled(dir.path(), &[]);
    chown(&program, Some(NOBODY), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = run_in(dir.path(), "", &[program.to_str().unwrap()]).output().unwrap();
    expect_run_without(&output, "is setuid");
}

#[test]
fn a_program_that_may_not_be_read_runs() {
    if !is_root() {
        return;
    }
    let dir = fresh_dir();
    let program = compiled(dir.path(), &[]);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711)).unwrap();
    // Executable by all users.
    let own = dir.path().join("dioxide");
    install_program(env!("CARGO_BIN_EXE_dioxide"), &own).unwrap();
    let mut command = Command::new(&own);
    command.args(["run", "--library"]).arg(dir.path().join("library.so")).arg("--").arg(&program);
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
    let output = command.output().unwrap();
    expect_code(&output, 7);
    assert_eq!(stdout(&output), "it runs\n");
}

#[test]
fn the_program_takes_the_place_of_the_command() {
    let dir = fresh_dir();
    let output = run_in(dir.path(), "", &["sh", "-c", "kill -TERM $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(15));
}
