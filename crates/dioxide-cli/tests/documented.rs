//! Runs every command that the documents and the help show, in a short form: in a directory of its
//! own, for milliseconds, with few threads. `README.md` and `docs/*.md` show commands in `sh`
//! blocks, the help below "Examples:".

mod common;

use common::{run, stdout};
use dioxide_testkit::loop_device::AttachedFile;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

/// The commands in the `sh` blocks of a document that begin with `dioxide`, without comments.
fn in_document(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut is_shell = false;
    let mut open: Option<String> = None;
    for line in text.lines() {
        if line.starts_with("```") {
            is_shell = line == "```sh";
            continue;
        }
        let line = line.split(" #").next().unwrap_or_default().trim();
        let line = line.strip_prefix("sudo ").unwrap_or(line);
        let text = match open.take() {
            Some(begun) => format!("{begun} {line}"),
            None if is_shell && line.starts_with("dioxide ") => line.to_string(),
            None => continue,
        };
        if ["\\", "|", "&&"].iter().any(|end| text.ends_with(end)) {
            open = Some(text.trim_end_matches('\\').trim_end().to_string());
        } else {
            commands.push(text);
        }
    }
    commands
}

/// The commands in the help of a subcommand and of all below it.
fn in_help(subcommand: &str) -> Vec<String> {
    let output = run(&format!("{subcommand} --help"));
    let help = stdout(&output);
    let examples = help.lines().filter(|line| line.starts_with("  dioxide "));
    let mut commands: Vec<_> = examples.map(|line| line.trim().to_string()).collect();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().filter(|_| line.starts_with("  "));
        if let Some(name) = name.filter(|name| *name != "help" && !line.starts_with("   ")) {
            commands.extend(in_help(&format!("{subcommand} {name}")));
        }
    }
    commands
}

fn documented() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md")];
    let more = fs::read_dir(root.join("docs")).expect("the documents").map(|entry| entry.unwrap());
    documents.extend(
        more.map(|entry| entry.path()).filter(|path| path.extension() == Some("md".as_ref())),
    );
    let texts = documents.iter().map(|path| fs::read_to_string(path).expect("a document"));
    texts.flat_map(|text| in_document(&text)).chain(in_help("")).collect()
}

/// What the placeholders of the documents stand for.
struct Stage {
    // Before the directory with their files.
    devices: Option<[AttachedFile; 2]>,
    dir: tempfile::TempDir,
    watched: Child,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for name in ["data", "bin", "man", "results"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let members = ["one", "two", "three"].map(|name| dir.path().join(name));
        let mut options = dioxide::OpenOptions::new();
        options.write(true).create(true).open_striped(&members, 64 << 10).unwrap().close().unwrap();
        for name in ["data/file", "records.log"] {
            fs::write(dir.path().join(name), vec![1; 8192]).unwrap();
        }
        for name in ["fio", "program"] {
            let path = dir.path().join("bin").join(name);
            dioxide_testkit::files::install_script("#!/bin/sh\n", &path).unwrap();
        }
        fs::write(dir.path().join("job.fio"), "").unwrap();
        let log = dioxide_log::Log::open(dir.path().join("data/log")).unwrap();
        log.append(b"a record").unwrap();
        log.close().unwrap();
        let log = dioxide_log::StreamLog::open(dir.path().join("data/streams")).unwrap();
        log.stream(7).append(b"a record").unwrap();
        log.close().unwrap();
        // Only a lab has loop devices.
        let device = |name: &str| {
            let image = dir.path().join(name);
            fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
            AttachedFile::new(&image).unwrap()
        };
        let devices = dioxide_testkit::lab::dir().is_ok().then(|| ["X", "Y"].map(device));
        let watched = Command::new("sh")
            .args(["-c", "while :; do dd if=/dev/zero of=watched bs=4k count=64 conv=fsync; done"])
            .current_dir(&dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { dir, devices, watched }
    }

    /// The command in its short form. None if it needs a device and there is none.
    fn short(&self, command: &str) -> Option<String> {
        let dir = self.dir.path().display().to_string();
        let mut command = command.to_string();
        if command.contains("/dev/X")
            || command.contains("/dev/loopN")
            || command.contains("/dev/zramN")
        {
            let devices = self.devices.as_ref()?;
            for (name, device) in ["/dev/X", "/dev/Y"].iter().zip(devices) {
                command = command.replace(name, &device.path().display().to_string());
            }
            let first = devices[0].path().display().to_string();
            command = command.replace("/dev/loopN", &first).replace("/dev/zramN", &first);
        }
        for name in ["$DIOXIDE_LAB/ext4", "$DIOXIDE_LAB/xfs"] {
            command = command.replace(name, "/data");
        }
        // A relative path, because the directory of the trial may also contain the name.
        command = command.replace(" /data", " data");
        let watched = self.watched.id();
        for number in ["4711", "1234"] {
            command = command.replace(&format!("--pid {number}"), &format!("--pid {watched}"));
        }
        // A unit needs systemd.
        command = command.replace("--unit postgresql", &format!("--pid {watched}"));
        command = command.replace("/usr/local/share/man/man1", &format!("{dir}/man"));
        command = command.replace("> ~/", "> ./").replace("| man -l -", "> /dev/null");
        let words: Vec<_> = command.split_whitespace().collect();
        let mut short = Vec::new();
        let mut rest = words.iter().copied();
        while let Some(word) = rest.next() {
            match word {
                "--runtime" | "--rounds" | "--seconds" | "--size" | "--count" | "--numjobs" => {
                    rest.next();
                }
                "--iodepth" => {
                    rest.next();
                    short.extend(["--iodepth", "4"]);
                }
                "--files" => {
                    rest.next();
                    short.extend(["--files", "2,50"]);
                }
                word => short.push(word),
            }
        }
        let rounds = match command.contains(".json") {
            // `compare` reads these, and judges no fewer rounds.
            true => "8",
            false => "1",
        };
        let brief = ["--runtime", "20ms", "--rounds", "1", "--size", "8m"];
        let work = ["--runtime", "20ms", "--numjobs", "1,2", "--rounds", rounds, "--size", "8m"];
        let more: &[&str] = match (words.get(1), words.get(2)) {
            (Some(&"bench"), Some(&"indirect")) => &["--count", "1", "--rounds", "1"],
            (Some(&"bench"), Some(&"sync")) => &work[..6],
            (Some(&"bench"), Some(&"log")) if words.contains(&"--files") => &brief,
            (Some(&"bench"), Some(&"checkpoint")) => &brief[..4],
            (Some(&"bench"), Some(&"copy")) => &brief,
            (Some(&"bench"), Some(_)) if command.contains("--backend sim") => &work[..6],
            (Some(&"bench"), Some(_)) => &work,
            (Some(&"bench"), None) => return Some("dioxide bench --help".into()),
            (Some(&"diagnose"), _) if words.contains(&"--pid") => &["--seconds", "1"],
            (Some(&"diagnose"), _) => &brief,
            (Some(&"probe"), _) if words.contains(&"--for") => &["--runtime", "1s"],
            (Some(&"probe"), _) => &["--quick"],
            // It waits for the next record otherwise.
            (Some(&"log"), Some(&"tail")) => &["--count", "1"],
            _ => &[],
        };
        let more = more.iter().filter(|word| !short.contains(word) || !word.starts_with("--"));
        // Before a redirection, and before the program of `run`.
        let end = short.iter().position(|word| [">", "--"].contains(word)).unwrap_or(short.len());
        let mut all = short[..end].to_vec();
        all.extend(more);
        all.extend(&short[end..]);
        Some(all.join(" "))
    }

    /// As many results as a history needs, of other dates.
    fn fill_history(&self) {
        let text = fs::read_to_string(self.dir.path().join("append.json")).unwrap();
        let (before, dated) = text.split_once("\"date\": \"20").expect("a date");
        for day in 10..25 {
            let text = format!("{before}\"date\": \"2020-01-{day}T{}", &dated[9..]);
            fs::write(self.dir.path().join(format!("results/{day}.json")), text).unwrap();
        }
    }

    fn run(&self, command: &str) -> Output {
        let command_dir = Path::new(env!("CARGO_BIN_EXE_dioxide")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let own: PathBuf = self.dir.path().join("bin");
        for dir in
            [".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"]
        {
            fs::create_dir_all(self.dir.path().join(dir)).unwrap();
        }
        Command::new("sh")
            .args(["-c", command])
            .current_dir(&self.dir)
            .env("PATH", format!("{}:{}:{path}", own.display(), command_dir.display()))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.watched.kill();
        let _ = self.watched.wait();
    }
}

/// Whether the command can run: `cargo test --workspace` also builds the preload library.
fn has_its_library(command: &str) -> bool {
    let command_dir = Path::new(env!("CARGO_BIN_EXE_dioxide")).parent().expect("a directory");
    !command.starts_with("dioxide run ") || command_dir.join("libdioxide_preload.so").exists()
}

/// Whether the command did its work. `compare` and `probe --for` report findings by their exit
/// codes.
fn is_expected(command: &str, output: &Output) -> bool {
    let code = output.status.code();
    // Other errors share the exit codes.
    let said = |words| String::from_utf8_lossy(&output.stderr).contains(words);
    match (command.split_whitespace().nth(1), code) {
        // Short runs may do nothing on a busy machine.
        (Some("compare" | "history"), Some(1)) if said("rows cannot be judged") => true,
        (Some("compare"), Some(1 | 3)) => said("rows are slower by more than"),
        (Some("probe"), Some(1)) => said("FAIL for etcd"),
        (Some("probe"), Some(2)) => said("are too few for p99.9"),
        _ => code == Some(0),
    }
}

#[test]
fn every_documented_command_works() {
    let stage = Stage::new();
    let commands = documented();
    assert!(commands.len() > 40, "{commands:#?}");
    // The results that some commands read.
    let mut first: Vec<_> = ["old", "new", "append"]
        .map(|name| format!("dioxide bench append --json {name}.json --rounds 1"))
        .into();
    first.push("dioxide diagnose --pid 4711 --json before.json".into());
    let mut failed = Vec::new();
    for (nth, command) in first.iter().chain(&commands).enumerate() {
        if nth == first.len() {
            stage.fill_history();
        }
        let Some(short) = stage.short(command).filter(|_| has_its_library(command)) else {
            eprintln!("skipped, it needs a device or the preload library: {command}");
            continue;
        };
        let begun = Instant::now();
        let output = stage.run(&short);
        eprintln!("{:.1?}: {short}", begun.elapsed());
        if !is_expected(&short, &output) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            failed.push(format!("{command}\n  as {short}\n  {:?}: {said}", output.status));
        }
    }
    assert!(failed.is_empty(), "\n{}", failed.join("\n"));
}

#[test]
fn a_document_shows_its_commands() {
    let text = "dioxide is a word\n```sh\n# a comment\ndioxide probe /data   # a directory\n\
                sudo dioxide bench \\\n    append\nls\n```\n```\ndioxide 1 2\n```\n";
    assert_eq!(in_document(text), ["dioxide probe /data", "dioxide bench append"]);
}

/// The defect: the first line alone was an error of the shell.
#[test]
fn a_command_that_continued_after_an_operator_was_truncated() {
    for operator in ["||", "&&", "|"] {
        let text = format!("```sh\ndioxide compare 1 2 {operator}\n    echo repeat\n```\n");
        assert_eq!(in_document(&text), [format!("dioxide compare 1 2 {operator} echo repeat")]);
    }
}

/// The defect: a usage error of `compare` passed.
#[test]
fn a_wrong_command_line_was_expected() {
    let command = "compare old.json";
    let output = run(command);
    assert_eq!(output.status.code(), Some(2));
    assert!(!is_expected(&format!("dioxide {command}"), &output));
}
