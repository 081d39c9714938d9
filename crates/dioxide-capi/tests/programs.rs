//! Builds C and C++ programs against the header and both libraries, and runs them on real file
//! systems, with and without valgrind. Programs without their tool are listed as ignored.

use dioxide_testkit::ext_volume::{ExtKind, ExtVolume, Shape};
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, lab_trials_where, only_in_all};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const SONAME: &str = "libdioxide.so.0.1";
const C99: [&str; 7] = ["-xc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];
const CPP: [&str; 7] = ["-xc++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// Unreachable memory is a leak. "Possibly lost" memory has a pointer into its middle. So have the
/// hash tables that the library keeps until the process ends.
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
    "--show-leak-kinds=definite,indirect",
];

/// The libraries, built as this test was, in a directory with the shared library's soname.
static BUILT: LazyLock<Built> = LazyLock::new(Built::new);

struct Built {
    dir: tempfile::TempDir,
}

impl Built {
    fn new() -> Self {
        // Beside this test's own executable, in `deps`.
        let own = std::env::current_exe().expect("a test knows where it is");
        let profile = own.parent().and_then(Path::parent).expect("it is in target/PROFILE/deps");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "dioxide-capi"]).current_dir(HERE);
        build.arg("--target-dir").arg(profile.parent().expect("as above"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        succeed(&mut build).expect("the libraries can be built");
        let dir = tempfile::tempdir().expect("there is a directory for temporary files");
        for (from, to) in [
            ("libdioxide.so", "libdioxide.so"),
            ("libdioxide.so", SONAME),
            ("libdioxide.a", "libdioxide.a"),
        ] {
            std::os::unix::fs::symlink(profile.join(from), dir.path().join(to))
                .expect("a new name");
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds a program of one source file.
    fn program(&self, compiler: &str, flags: &[&str], source: &Path) -> Result<PathBuf, Failed> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let program = self.path(&format!("program-{}", NUMBER.fetch_add(1, Relaxed)));
        let mut command = Command::new(compiler);
        command.args(flags).arg(format!("-I{HERE}/include")).arg(source);
        command.args(["-xnone", "-o"]).arg(&program).arg("-L").arg(self.dir.path());
        if flags.contains(&"-static") {
            command.arg(self.path("libdioxide.a")).args(["-lgcc_eh", "-pthread"]);
        } else {
            command
                .args(["-ldioxide", "-pthread"])
                .arg(format!("-Wl,-rpath,{}", self.dir.path().display()));
        }
        succeed(&mut command)?;
        Ok(program)
    }
}

/// Runs a tool, which must succeed.
fn succeed(command: &mut Command) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    match status.success() {
        true => Ok(stdout.into_owned()),
        false => Err(format!("{command:?}: {status}\n{stdout}{stderr}").into()),
    }
}

/// Runs a program, which must end with 0 within two minutes. Returns its output.
fn output_of(words: &[&str], program: &Path, args: &[&OsStr]) -> Result<String, Failed> {
    let mut command = Command::new("timeout");
    command.arg("120").args(words).arg(program).args(args);
    succeed(&mut command)
}

/// As [`output_of`], without the output.
fn run(words: &[&str], program: &Path, args: &[&OsStr]) -> TrialResult {
    output_of(words, program, args).map(drop)
}

fn source(name: &str) -> PathBuf {
    Path::new(HERE).join(name)
}

fn is_there(tool: &str) -> Result<(), String> {
    let found = Command::new(tool).arg("--version").output();
    found.map(drop).map_err(|error| format!("skipped: {tool}: {error}"))
}

// --- what is built -------------------------------------------------------------------------------

fn declared() -> Result<BTreeSet<String>, Failed> {
    let header = std::fs::read_to_string(source("include/dioxide.h"))?;
    let functions = header.lines().filter(|line| !line.starts_with([' ', '#', '/', '}', '*']));
    let names = functions.filter(|line| !line.starts_with("typedef")).filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        before.rsplit([' ', '*']).next().map(str::to_owned)
    });
    Ok(names.collect())
}

fn the_symbols_are_those_of_the_header() -> TrialResult {
    let symbols = succeed(
        Command::new("nm").args(["-D", "--defined-only"]).arg(BUILT.path("libdioxide.so")),
    )?;
    let defined = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let exported: BTreeSet<_> =
        defined.filter(|name| *name != "DIOXIDE_0.1").map(str::to_owned).collect();
    let expected: BTreeSet<_> =
        declared()?.iter().map(|name| format!("{name}@@DIOXIDE_0.1")).collect();
    assert!(expected.len() > 30, "the header is not understood: {expected:?}");
    assert_eq!(exported, expected);
    Ok(())
}

fn the_library_has_a_name_and_stays() -> TrialResult {
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(BUILT.path("libdioxide.so")))?;
    assert!(dynamic.contains(&format!("[{SONAME}]")), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    Ok(())
}

fn the_header_is_c_and_cpp() -> TrialResult {
    let twice =
        "#include <dioxide.h>\n#include <dioxide.h>\nint main(void) { return DIOXIDE_ON_SYNC; }\n";
    let path = BUILT.path("header");
    std::fs::write(&path, twice)?;
    for (compiler, language, standards) in
        [("cc", "-xc", &["c99", "c11", "gnu17"]), ("c++", "-xc++", &["c++11", "c++17", "c++20"])]
    {
        for standard in standards {
            let standard = format!("-std={standard}");
            let flags =
                ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-fsyntax-only"];
            let mut command = Command::new(compiler);
            command
                .args([language, &standard])
                .args(flags)
                .arg(format!("-I{HERE}/include"))
                .arg(&path);
            succeed(&mut command)?;
        }
    }
    Ok(())
}

/// In a directory of its own, found by pkg-config alone.
fn what_is_installed_can_be_used() -> TrialResult {
    let root = tempfile::tempdir()?;
    let mut install = Command::new(source("../../scripts/capi"));
    install.args(["install", "--prefix", "/opt/d", "--destdir"]).arg(root.path());
    install.arg("--libraries").arg(BUILT.dir.path());
    succeed(&mut install)?;
    let lib = root.path().join("opt/d/lib");
    let pkg_config = |word: &str| {
        let mut ask = Command::new("pkg-config");
        ask.env("PKG_CONFIG_PATH", lib.join("pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", root.path());
        succeed(ask.args([word, "dioxide"]))
    };
    assert_eq!(pkg_config("--modversion")?.trim(), env!("CARGO_PKG_VERSION"));
    let flags = pkg_config("--cflags")? + &pkg_config("--libs")?;
    let program = root.path().join("log");
    let mut compile = Command::new("cc");
    compile
        .arg("-o")
        .arg(&program)
        .arg(source("examples/log.c"))
        .args(flags.split_whitespace())
        .arg("-pthread");
    succeed(&mut compile)?;
    let mut usage = Command::new(&program);
    let output = usage.env("LD_LIBRARY_PATH", &lib).output()?;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(root.path().join("opt/d/share/man/man3/dioxide_append.3").exists());
    Ok(())
}

/// With any umask of the installing user.
fn what_was_installed_was_for_root_alone() -> TrialResult {
    let root = tempfile::tempdir()?;
    let mut install = Command::new("sh");
    install.args(["-c", r#"umask 077 && exec "$@""#, "sh"]).arg(source("../../scripts/capi"));
    install
        .args(["install", "--destdir"])
        .arg(root.path())
        .arg("--libraries")
        .arg(BUILT.dir.path());
    succeed(&mut install)?;
    let hidden =
        succeed(Command::new("find").arg(root.path().join("usr")).args(["!", "-perm", "-444"]))?;
    assert_eq!(hidden, "");
    Ok(())
}

/// Every page, as a reader sees it.
fn the_manual_is_rendered_without_a_warning() -> TrialResult {
    let pages = std::fs::read_dir(source("man"))?.map(|entry| Ok(entry?.path()));
    let pages: Vec<PathBuf> = pages.collect::<std::io::Result<_>>()?;
    assert!(pages.len() > declared()?.len(), "{pages:?}");
    let mut man = Command::new("man");
    man.args(["--warnings=w", "-l"]).args(&pages).env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8");
    let output = man.output()?;
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("dioxide_append - "));
    Ok(())
}

// --- what runs -----------------------------------------------------------------------------------

/// A program of `tests/c`, on the kernel.
fn plain(name: &str, dir: &TestDir) -> TrialResult {
    let program = BUILT.program("cc", &C99, &source(&format!("tests/c/{name}.c")))?;
    run(&[], &program, &[dir.as_os_str()])
}

/// The same under valgrind, which does not support io_uring: queues make plain calls there.
fn watched(name: &str, dir: &TestDir) -> TrialResult {
    let program = BUILT.program("cc", &C99, &source(&format!("tests/c/{name}.c")))?;
    run(&VALGRIND, &program, &[dir.as_os_str(), OsStr::new("plain")])
}

/// A faulty program under valgrind, which proves that it would find other faults.
fn valgrind_finds_what_is_planted(dir: TestDir) -> TrialResult {
    let program = BUILT.program("cc", &C99, &source("tests/c/planted.c"))?;
    for fault in ["lost", "unwritten"] {
        let found = run(&VALGRIND, &program, &[dir.as_os_str(), OsStr::new(fault)]);
        let message =
            found.expect_err("nothing was found").message().unwrap_or_default().to_owned();
        assert!(message.contains("exit status: 99"), "{fault}: {message}");
    }
    run(&VALGRIND, &program, &[dir.as_os_str(), OsStr::new("nothing")])
}

fn a_file_inside_of_a_volume(words: &[&str], dir: &TestDir) -> TrialResult {
    let tree = tempfile::tempdir()?;
    std::fs::write(tree.path().join("data"), "")?;
    let shape = Shape::new(ExtKind::Ext2, 4096, 256, 8 << 20);
    let image = ExtVolume::make(&dir.join("volume"), &shape, tree.path())?;
    let program = BUILT.program("cc", &C99, &source("tests/c/within.c"))?;
    run(words, &program, &[dir.as_os_str()])?;
    Ok(image.check()?)
}

fn the_examples(words: &[&str], dir: &TestDir, records: usize) -> TrialResult {
    let c = BUILT.program("cc", &C99, &source("examples/log.c"))?;
    let cpp = BUILT.program("c++", &CPP, &source("examples/queue.cpp"))?;
    for _ in 0..2 {
        run(words, &c, &[dir.join("log").as_os_str(), OsStr::new(&records.to_string())])?;
        run(words, &cpp, &[dir.join("queue").as_os_str(), OsStr::new("200")])?;
    }
    let log = std::fs::read(dir.join("log"))?;
    assert_eq!(log.windows(7).filter(|window| window == b"record ").count(), 2 * 64 * records);
    // It truncated a damaged log to nothing.
    let mut damaged = log;
    damaged[10] ^= 1;
    std::fs::write(dir.join("log"), &damaged)?;
    assert!(run(words, &c, &[dir.join("log").as_os_str()]).is_err());
    assert_eq!(std::fs::read(dir.join("log"))?, damaged);
    Ok(())
}

/// It refused its own file.
fn the_example_goes_on_after_a_kill(dir: TestDir) -> TrialResult {
    let program = BUILT.program("cc", &C99, &source("examples/log.c"))?;
    let log = dir.join("log");
    let mut child = Command::new(&program).arg(&log).arg("1000000").spawn()?;
    let records = || {
        let content = std::fs::read(&log).unwrap_or_default();
        content.windows(7).filter(|window| window == b"record ").count()
    };
    while records() < 500 {
        std::thread::yield_now();
    }
    child.kill()?;
    child.wait()?;
    // The first one recovers the file, and leaves it closed.
    for _ in 0..2 {
        run(&[], &program, &[log.as_os_str(), OsStr::new("1")])?;
    }
    Ok(())
}

/// Each run finds the last ten records of the one before.
fn the_write_ahead_example(words: &[&str], dir: &TestDir) -> TrialResult {
    let program = BUILT.program("cc", &C99, &source("examples/write_ahead.c"))?;
    let log = dir.join("write-ahead");
    for lsns in [1..=40, 31..=80] {
        let said = output_of(words, &program, &[log.as_os_str(), OsStr::new("5")])?;
        let found = said.lines().map(|line| line.split(':').next().unwrap_or_default());
        assert!(found.eq(lsns.map(|lsn: u32| lsn.to_string())), "{said}");
        assert!(said.matches("record 4 of a thread").count() >= 8, "{said}");
    }
    Ok(())
}

/// The C++ example has a queue.
fn the_examples_under_valgrind(dir: TestDir) -> TrialResult {
    let words = [&["env", "PLAIN_CALLS=1"], &VALGRIND[..]].concat();
    the_examples(&words, &dir, 1)
}

fn a_static_program(dir: TestDir) -> TrialResult {
    let program =
        BUILT.program("cc", &[&C99[..], &["-static"]].concat(), &source("examples/log.c"))?;
    let needed = succeed(Command::new("readelf").arg("-d").arg(&program))?;
    assert!(!needed.contains("NEEDED"), "{needed}");
    run(&[], &program, &[dir.join("log").as_os_str(), OsStr::new("5")])
}

/// The first program of docs/c.md, verbatim.
fn the_program_in_the_documentation(dir: TestDir) -> TrialResult {
    let text = std::fs::read_to_string(source("../../docs/c.md"))?;
    let (_, after) = text.split_once("```c\n").ok_or("no program in docs/c.md")?;
    let (program, _) = after.split_once("```").ok_or("no end of it")?;
    let path = BUILT.path("documented.c");
    std::fs::write(&path, program)?;
    let built = BUILT.program("cc", &["-xc", "-Wall", "-Wextra", "-Werror", "-pedantic"], &path)?;
    let said = succeed(Command::new(built).current_dir(&*dir))?;
    assert_eq!(said, "a record at 0\n");
    assert_eq!(std::fs::read(dir.join("records.log"))?, b"a record\n");
    Ok(())
}

fn grows_ahead(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs => Ok(()),
        _ => Err("the programs are about files that grow ahead"),
    }
}

fn once(name: &str, tools: &[&str], test: fn() -> TrialResult) -> Trial {
    match tools.iter().try_for_each(|tool| is_there(tool)) {
        Ok(()) => Trial::test(name, test),
        Err(why) => Trial::test(name, test).with_kind(why).with_ignored_flag(true),
    }
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![
        once("the_symbols_are_those_of_the_header", &["nm"], the_symbols_are_those_of_the_header),
        once("the_library_has_a_name_and_stays", &["readelf"], the_library_has_a_name_and_stays),
        once("the_header_is_c_and_cpp", &["cc", "c++"], the_header_is_c_and_cpp),
        once("what_is_installed_can_be_used", &["cc", "pkg-config"], what_is_installed_can_be_used),
        once(
            "what_was_installed_was_for_root_alone",
            &["find"],
            what_was_installed_was_for_root_alone,
        ),
        once(
            "the_manual_is_rendered_without_a_warning",
            &["man"],
            the_manual_is_rendered_without_a_warning,
        ),
    ];
    for name in ["calls", "errors", "queue", "fork", "streams", "write_ahead", "write_ahead_errors"]
    {
        trials.extend(lab_trials_where(name, grows_ahead, move |dir| plain(name, &dir)));
        trials.extend(only_in_all(lab_trials_where(
            &format!("{name}_under_valgrind"),
            Fs::on_ext4,
            move |dir| watched(name, &dir),
        )));
    }
    let mut add = |name: &str, test: fn(TestDir) -> TrialResult| {
        trials.extend(lab_trials_where(name, Fs::on_ext4, test));
    };
    add("a_file_inside_of_a_volume", |dir| a_file_inside_of_a_volume(&[], &dir));
    add("the_examples", |dir| the_examples(&[], &dir, 5));
    add("the_example_goes_on_after_a_kill", the_example_goes_on_after_a_kill);
    add("the_write_ahead_example", |dir| the_write_ahead_example(&[], &dir));
    add("a_static_program", a_static_program);
    add("the_program_in_the_documentation", the_program_in_the_documentation);
    let mut add_in_all = |name: &str, test: fn(TestDir) -> TrialResult| {
        trials.extend(only_in_all(lab_trials_where(name, Fs::on_ext4, test)));
    };
    add_in_all("valgrind_finds_what_is_planted", valgrind_finds_what_is_planted);
    add_in_all("a_file_inside_of_a_volume_under_valgrind", |dir| {
        a_file_inside_of_a_volume(&VALGRIND, &dir)
    });
    add_in_all("the_examples_under_valgrind", the_examples_under_valgrind);
    add_in_all("the_write_ahead_example_under_valgrind", |dir| {
        the_write_ahead_example(&VALGRIND, &dir)
    });
    trials
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[], trials)
}
