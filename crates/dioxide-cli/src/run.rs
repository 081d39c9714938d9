//! `dioxide run`: starts a program with the preload library, if the program can load it.

use crate::args;
use crate::exit::{NotStarted, say};
use crate::sys;
use anyhow::{Context, Result, bail};
use elf::ElfStream;
use elf::abi::PT_INTERP;
use elf::endian::AnyEndian;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libdioxide_preload.so";
const PRELOAD: &str = "LD_PRELOAD";

/// The kernel's limit for the interpreter line of a script.
const LINE_MAX_BYTES: u64 = 256;

/// Returns only on errors: the program replaces this process.
pub fn run(args: args::Run) -> Result<()> {
    let (name, rest) = args.command.split_first().expect("clap asks for one");
    let program = found(name)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(rest);
    match why_not(&program)? {
        Some(why) => say(&format!("{} {why}; it runs without dioxide", program.display())),
        None => prepare(&mut command, &args)?,
    }
    sys::pass_on_pipe(&mut command);
    let error = command.exec();
    let why = format!("{}: {error}", program.display());
    Err(match error.kind() {
        // The interpreter of a script, or the loader of a program, is missing.
        ErrorKind::NotFound => NotStarted::Missing(why),
        _ => NotStarted::NotExecutable(why),
    }
    .into())
}

/// The program of this name, or at this path, as a shell finds it.
fn found(name: &OsStr) -> Result<PathBuf, NotStarted> {
    which::which(name).map_err(|_| {
        let is_path = name.as_bytes().contains(&b'/');
        let search = env::var_os("PATH").filter(|_| !is_path).unwrap_or_default();
        let mut places = env::split_paths(&search).map(|dir| dir.join(name));
        if Path::new(name).exists() && is_path || places.any(|place| place.is_file()) {
            NotStarted::NotExecutable(format!("{}: is not executable", name.display()))
        } else {
            NotStarted::Missing(format!("{}: no such program", name.display()))
        }
    })
}

fn prepare(command: &mut Command, args: &args::Run) -> Result<()> {
    let mut preload = library(args.library.as_deref())?.into_os_string();
    if preload.as_bytes().iter().any(|byte| b" :".contains(byte)) {
        bail!("{}: the loader takes no path with a colon or a space in it", preload.display());
    }
    if let Some(others) = env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env(PRELOAD, preload);
    let on = |is_on: bool| is_on.then(|| OsString::from("1"));
    let settings = [
        ("DIOXIDE_MATCH", (!args.globs.is_empty()).then(|| args.globs.join(":").into())),
        ("DIOXIDE_DEVICES", on(args.devices)),
        ("DIOXIDE_EAGER", on(args.eager)),
        ("DIOXIDE_STATS", on(args.stats)),
        ("DIOXIDE_GROWTH_CAP", args.growth_cap.map(|bytes| bytes.to_string().into())),
    ];
    command.envs(settings.into_iter().filter_map(|(name, value)| Some((name, value?))));
    Ok(())
}

/// The preload library: the given one, or where it is built or installed.
fn library(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return fs::canonicalize(path).with_context(|| path.display().to_string());
    }
    let own = env::current_exe()?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let arch = format!("../lib/{}-linux-gnu", env::consts::ARCH);
    let places = [
        Path::new(""),
        Path::new("../lib/dioxide"),
        Path::new("../lib"),
        Path::new(&arch),
        Path::new("../lib64"),
    ];
    let mut found = places.iter().map(|place| fs::canonicalize(dir.join(place).join(LIBRARY)));
    found.find_map(Result::ok).with_context(|| {
        format!(
            "{LIBRARY} is not beside {}: build it with `cargo build --release -p dioxide-preload`, \
             or name it with --library",
            own.display()
        )
    })
}

/// Why a program cannot load the library, if so. For a script, its interpreter.
fn why_not(program: &Path) -> Result<Option<String>> {
    if let Some(why) = why_not_safe(program)? {
        return Ok(Some(why));
    }
    // Leaves a program that is executable but not readable to the kernel.
    let (Ok(first), Ok(file)) = (File::open(program), File::open(program)) else { return Ok(None) };
    let mut line = Vec::new();
    first.take(LINE_MAX_BYTES).read_to_end(&mut line)?;
    Ok(match interpreter(&line) {
        Some(interpreter) => {
            let why = File::open(interpreter).ok().and_then(why_not_image);
            why.map(|why| format!("is a script for {}, which {why}", interpreter.display()))
        }
        None => why_not_image(file),
    })
}

/// The interpreter in the first line of a script.
fn interpreter(head: &[u8]) -> Option<&Path> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// The loader ignores LD_PRELOAD in programs with other rights than those of their caller.
fn why_not_safe(program: &Path) -> Result<Option<String>> {
    let stat = fs::metadata(program).with_context(|| program.display().to_string())?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let why = match () {
        () if stat.mode() & libc::S_ISUID != 0 && stat.uid() != user => "is setuid",
        () if stat.mode() & libc::S_ISGID != 0 && stat.gid() != group => "is setgid",
        () if user != 0 && has_capabilities(program) => "has capabilities of its own",
        () => return Ok(None),
    };
    Ok(Some(format!("{why}, so the loader ignores {PRELOAD}")))
}

fn has_capabilities(program: &Path) -> bool {
    rustix::fs::getxattr(program, "security.capability", &mut [0_u8; 0]).is_ok()
}

/// Leaves a file that is not an executable image to the kernel.
fn why_not_image(image: impl Read + Seek) -> Option<String> {
    let mut image = ElfStream::<AnyEndian, _>::open_stream(image).ok()?;
    let own = ElfStream::<AnyEndian, _>::open_stream(File::open("/proc/self/exe").ok()?).ok()?;
    if (image.ehdr.e_machine, image.ehdr.class) != (own.ehdr.e_machine, own.ehdr.class) {
        return Some("is for another kind of machine than this library".into());
    }
    let loader = image.segments().iter().find(|segment| segment.p_type == PT_INTERP).copied();
    let Some(loader) = loader else {
        return Some("is statically linked, so nothing can be loaded into it".into());
    };
    let is_musl =
        image.segment_data(&loader).is_ok_and(|path| path.windows(4).any(|part| part == b"musl"));
    is_musl.then(|| "is made for another libc (musl) than this library".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_program_that_is_dynamically_linked_takes_it() {
        assert_eq!(why_not(&env::current_exe().unwrap()).unwrap(), None);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(
            interpreter(b"#! /usr/bin/env python3\nimport os"),
            Some(Path::new("/usr/bin/env"))
        );
        assert_eq!(interpreter(b"#!/bin/sh"), Some(Path::new("/bin/sh")));
        assert_eq!(interpreter(b"\x7fELF"), None);
    }

    #[test]
    fn another_machine_is_told() {
        let mut image = fs::read(env::current_exe().unwrap()).unwrap();
        image[18..20].copy_from_slice(&40_u16.to_le_bytes()); // ARM
        let why = why_not_image(Cursor::new(image)).unwrap();
        assert!(why.contains("another kind of machine"), "{why}");
    }
}
