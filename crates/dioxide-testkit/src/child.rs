//! Kill tests: the test's executable started again as a child that acknowledges over a pipe.
//!
//! A child plays one scenario. It calls [`Acks::send`] after each operation that the test checks. A
//! record is one write(2) below PIPE_BUF, so it arrives whole or not at all. The child acknowledged
//! every record that the parent reads before it was killed.

use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::wait::PATIENCE;

const SCENARIO: &str = "DIOXIDE_CHILD";

/// One acknowledgement: three numbers with the meaning that the scenario gives them.
pub type Ack = [u64; 3];

/// A scenario's name, and its function, which gets the arguments of [`spawn`].
pub type Scenario = (&'static str, fn(&Acks, &[String]));

/// The child's end of the pipe, shared by its threads.
pub struct Acks {
    pipe: File,
}

impl Acks {
    /// Takes standard output as the pipe. Output of the scenario goes to standard error.
    fn take_stdout() -> io::Result<Acks> {
        let pipe = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        Ok(Acks { pipe: pipe.into() })
    }

    /// Acknowledges. Returns when the record is in the pipe; panics if the parent is gone.
    pub fn send(&self, ack: Ack) {
        let mut record = [0; 24];
        for (bytes, number) in record.chunks_exact_mut(8).zip(ack) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        let written = (&self.pipe).write(&record).expect("the parent has closed the pipe");
        assert_eq!(written, record.len(), "a write below PIPE_BUF is whole");
    }
}

/// Plays the scenario that the environment names, if any.
pub(crate) fn play_if_asked(scenarios: &[Scenario]) -> Option<ExitCode> {
    let name = env::var(SCENARIO).ok()?;
    let Some((_, play)) = scenarios.iter().find(|(known, _)| *known == name) else {
        eprintln!("testkit: no scenario is called {name}");
        return Some(ExitCode::from(2));
    };
    let args: Vec<String> = env::args().skip(1).collect();
    let acks = Acks::take_stdout().expect("standard output can be duplicated");
    play(&acks, &args);
    Some(ExitCode::SUCCESS)
}

static REEXEC_ALLOWED: AtomicBool = AtomicBool::new(false);

pub(crate) fn allow_reexec() {
    REEXEC_ALLOWED.store(true, Ordering::Relaxed);
}

/// This executable, to be started again with `variable` set.
///
/// Fails if `main` does not begin with [`crate::run`] or [`crate::serve_if_asked`]: the child would
/// run all tests, which would start children again.
pub(crate) fn reexec(variable: &str, value: &str) -> io::Result<Command> {
    if !REEXEC_ALLOWED.load(Ordering::Relaxed) {
        return Err(io::Error::other(
            "the main must begin with dioxide_testkit::run or serve_if_asked",
        ));
    }
    // Not by path: a build may have replaced the file since.
    let mut command = Command::new("/proc/self/exe");
    command.env(variable, value);
    Ok(command)
}

/// Starts a child that plays `scenario`.
pub fn spawn<S: AsRef<str>>(scenario: &str, args: &[S]) -> io::Result<Child> {
    let (reader, writer) = io::pipe()?;
    let process = reexec(SCENARIO, scenario)?
        .args(args.iter().map(AsRef::as_ref))
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(writer))
        .spawn()?;
    let (sender, incoming) = mpsc::channel();
    thread::spawn(move || read_acks(reader, |ack| sender.send(ack).is_ok()));
    Ok(Child { process, incoming, acks: Vec::new() })
}

/// Drains the pipe continuously, so that a child never waits for its parent.
fn read_acks(mut pipe: impl Read, mut take: impl FnMut(Ack) -> bool) {
    let mut record = [0; 24];
    while pipe.read_exact(&mut record).is_ok() {
        let number =
            |i: usize| u64::from_le_bytes(record[i * 8..][..8].try_into().expect("eight bytes"));
        if !take([number(0), number(1), number(2)]) {
            return;
        }
    }
}

/// The parent's end. Dropping it kills a child that still runs.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    incoming: Receiver<Ack>,
    acks: Vec<Ack>,
}

impl Child {
    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the child has sent `count` acknowledgements in all, and returns those received.
    /// Fails if the child ends or `limit` passes first.
    pub fn wait_for_acks(&mut self, count: usize, limit: Duration) -> io::Result<&[Ack]> {
        let deadline = Instant::now() + limit;
        while self.acks.len() < count {
            match self.incoming.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(ack) => self.acks.push(ack),
                Err(e) => {
                    let had = self.acks.len();
                    return Err(io::Error::other(format!(
                        "{had} of {count} acknowledgements: {e}"
                    )));
                }
            }
        }
        Ok(&self.acks)
    }

    /// Lets the child run for `time`, then kills it. Returns all its acknowledgements.
    pub fn kill_after(self, time: Duration) -> io::Result<Vec<Ack>> {
        thread::sleep(time);
        self.kill_9()
    }

    /// Kills the child at once and waits for its end. Returns all its acknowledgements.
    pub fn kill_9(mut self) -> io::Result<Vec<Ack>> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(self.drain())
    }

    /// Waits at most `limit` for the child to end by itself, then kills it.
    pub fn wait(mut self, limit: Duration) -> io::Result<(ExitStatus, Vec<Ack>)> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok((status, self.drain()));
            }
            if Instant::now() > deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("child runs after {limit:?}"),
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reads to the end of the pipe. Bounded, because a process that the child forked may hold it
    /// open.
    fn drain(&mut self) -> Vec<Ack> {
        let deadline = Instant::now() + PATIENCE;
        while let Ok(ack) =
            self.incoming.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            self.acks.push(ack);
        }
        std::mem::take(&mut self.acks)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
