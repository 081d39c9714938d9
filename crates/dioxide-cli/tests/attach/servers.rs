//! Private servers of databases, run by a user other than root, with clients that commit.

use crate::common::wait_until;
use crate::nobody::AsNobody;
use crate::program::{Program, THREADS};
use rustix::process::Signal;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;

/// A client, ended on drop.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// PostgreSQL, with 16 clients.
pub struct Postgres {
    _clients: Client,
    pub server: Program,
    _user: AsNobody,
}

/// Where Debian keeps the programs of each version.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|version| version.path().join("bin")).find(|bin| bin.join("postgres").exists())
}

impl Postgres {
    /// With data, and with clients at work after `before_work`.
    pub fn start(
        dir: &Path,
        before_work: impl FnOnce() -> io::Result<()>,
    ) -> Result<Self, Box<dyn Error>> {
        let programs = postgres_programs().ok_or("no postgres")?;
        let user = AsNobody::new(dir)?;
        let sockets = user.sockets.path().display();
        user.run(
            programs.join("initdb"),
            "--pgdata=data --auth=trust --username=attach --no-sync",
        )?;
        let mut postgres = user.command(
            programs.join("postgres"),
            &format!("-D data -k {sockets} -c listen_addresses="),
        );
        let server = Program::spawn(&mut postgres, Signal::QUIT);
        let pg_isready = programs.join("pg_isready");
        wait_until("the server is ready", || {
            user.run(&pg_isready, &format!("-h {sockets}")).is_ok()
        });
        let (pgbench, client) = (programs.join("pgbench"), format!("-h {sockets} -U attach"));
        user.run(&pgbench, &format!("{client} --initialize --quiet postgres"))?;
        before_work()?;
        let work = format!(
            "{client} --no-vacuum --client={THREADS} --jobs=4 --time=3600 --file=commit.sql \
             postgres"
        );
        fs::write(
            user.home.join("commit.sql"),
            "SELECT pg_logical_emit_message(true, 'attach', 'a record')\n",
        )?;
        let clients = Client(user.command(&pgbench, &work).spawn()?);
        Ok(Self { _clients: clients, server, _user: user })
    }

    /// The server and its child processes.
    pub fn processes(&self) -> Vec<u32> {
        let pid = self.server.pid();
        let children =
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        std::iter::once(pid).chain(children).collect()
    }

    /// Waits until there is a process for each client.
    pub fn wait_for_clients(&self) {
        let is_client = |pid: &u32| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|title| title.starts_with(b"postgres: attach"))
        };
        wait_until("there is a process for each client", || {
            self.processes().iter().filter(|pid| is_client(pid)).count() == THREADS
        });
    }
}

/// MariaDB, with 16 clients that update rows.
pub struct MariaDb {
    _clients: Client,
    pub server: Program,
    _user: AsNobody,
}

impl MariaDb {
    /// With data, and with clients at work after `before_work`.
    pub fn start(
        dir: &Path,
        before_work: impl FnOnce() -> io::Result<()>,
    ) -> Result<Self, Box<dyn Error>> {
        let user = AsNobody::new(dir)?;
        let home = user.home.display();
        let socket = user.sockets.path().join("socket");
        user.run(
            "/usr/bin/mariadb-install-db",
            &format!(
                "--no-defaults --datadir={home}/data --auth-root-authentication-method=normal"
            ),
        )?;
        let options = format!(
            "--no-defaults --datadir={home}/data --socket={} --skip-networking \
             --innodb-flush-log-at-trx-commit=1 --innodb-log-file-size=32M",
            socket.display()
        );
        let mut mariadbd = user.command("/usr/sbin/mariadbd", &options);
        let server = Program::spawn(&mut mariadbd, Signal::TERM);
        let select = format!(
            "--no-defaults --user=root --socket={} --execute=SELECT(1) test",
            socket.display()
        );
        wait_until("the server is ready", || user.run("/usr/bin/mariadb", &select).is_ok());
        let client = format!(
            "oltp_update_non_index --mysql-socket={} --mysql-user=root --mysql-db=test \
             --table-size=1000",
            socket.display()
        );
        user.run("/usr/bin/sysbench", &format!("{client} --threads=1 prepare"))?;
        before_work()?;
        let work = format!("{client} --threads={THREADS} --time=0 run");
        let clients = Client(user.command("/usr/bin/sysbench", &work).spawn()?);
        Ok(Self { _clients: clients, server, _user: user })
    }
}
