//! Programs from Debian packages, which `scripts/lab deps` installs. Each checks its own data, or
//! the test checks it: without the library, with it, and with take-overs at open. The outcome is in
//! docs/preload.md.

use super::rig::*;
use dioxide_testkit::files;
use dioxide_testkit::lab::{Applies, Fs, TestDir};
use dioxide_testkit::trials::{Failed, Trial, TrialResult, in_turn, lab_trials_where};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A program: its name, a bash script, and parts of the summary with [`With::Preload`] and with
/// [`With::Eager`].
struct Program {
    name: &'static str,
    script: &'static str,
    says: [&'static str; 2],
}

const NOTHING: [&str; 2] = ["", ""];
const TAKEN: [&str; 2] = [REQUESTS; 2];
/// The summary for a file that each thread opens for itself. The first open may find it open
/// elsewhere, or take it over and hand it back.
const OPEN_TWICE: &str =
    "not taken over: it is open elsewhere too|handed back to the kernel: it was opened again";
/// The summary after a take-over.
const REQUESTS: &str = " write request";

const PROGRAMS: [Program; 22] = [
    Program {
        name: "sysbench_seqwr",
        script: "sysbench fileio --file-total-size=64M --file-test-mode=seqwr --file-num=1 \
            --file-block-size=16384 --file-extra-flags=direct --file-fsync-freq=0 --threads=16 \
            --time=2 --validate run",
        says: TAKEN,
    },
    Program {
        name: "sysbench_rndwr",
        script: "o='--file-total-size=16M --file-num=4 --file-extra-flags=direct --validate'; \
            sysbench fileio $o prepare && sysbench fileio $o --file-test-mode=rndwr --threads=16 \
            --time=1 run",
        says: ["", REQUESTS],
    },
    Program {
        name: "sysbench_rndrw",
        script: "o='--file-total-size=16M --file-num=4 --file-extra-flags=direct --validate'; \
            sysbench fileio $o prepare && sysbench fileio $o --file-test-mode=rndrw --threads=16 \
            --time=1 run",
        says: ["", REQUESTS],
    },
    Program {
        name: "fio_psync_threads",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=psync --direct=1 \
            --verify=crc32c --thread --numjobs=8 --offset_increment=4M --size=4M --fallocate=none",
        says: ["", OPEN_TWICE],
    },
    Program {
        name: "fio_pvsync_threads_random_fdatasync",
        script: "fio --name=a --filename=f --rw=randwrite --bs=4k --ioengine=pvsync --direct=1 \
            --verify=crc32c --thread --numjobs=8 --offset_increment=2M --size=2M --fallocate=none \
            --fdatasync=16",
        says: ["", OPEN_TWICE],
    },
    Program {
        name: "fio_pvsync2_processes",
        script: "fio --name=a --size=4M --rw=randwrite --bs=4k --ioengine=pvsync2 --direct=1 \
            --verify=crc32c --numjobs=4 \
                 --fallocate=none",
        says: NOTHING,
    },
    Program {
        name: "fio_psync_processes_on_one_file",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=psync --direct=1 \
            --verify=crc32c --numjobs=4 --offset_increment=4M --size=4M --fallocate=none",
        says: NOTHING,
    },
    Program {
        name: "fio_sync",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=sync --direct=1 \
            --verify=crc32c --size=8M \
                 --fallocate=none",
        says: ["0 of them taken over", REQUESTS],
    },
    Program {
        name: "fio_libaio",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=libaio --iodepth=16 \
            --direct=1 --verify=crc32c --size=8M --fallocate=none",
        says: ["0 of them taken over", "the program uses libaio"],
    },
    Program {
        name: "fio_io_uring",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=io_uring --iodepth=16 \
            --direct=1 --verify=crc32c --size=8M --fallocate=none",
        says: ["0 of them taken over", "the program uses io_uring"],
    },
    Program {
        name: "fio_posixaio",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=posixaio --iodepth=16 \
            --direct=1 --verify=crc32c --size=4M --fallocate=none",
        says: ["0 of them taken over", "the program uses POSIX AIO"],
    },
    Program {
        name: "fio_mmap",
        script: "fio --name=a --filename=f --rw=write --bs=4k --ioengine=mmap --verify=crc32c \
            --size=1M",
        says: NOTHING,
    },
    Program {
        name: "dd",
        script: "dd if=/dev/urandom of=src bs=1M count=4 status=none && dd if=src of=f bs=64k \
            oflag=direct status=none && cmp src f && dd if=src of=f bs=64k oflag=direct,append \
            conv=notrunc,fsync status=none && cat src src | cmp - f",
        says: NOTHING,
    },
    Program {
        name: "dd_with_an_odd_end",
        script: "head -c 1000000 /dev/urandom > src && dd if=src of=f bs=64k oflag=direct \
            status=none && cmp src f",
        says: NOTHING,
    },
    Program {
        name: "stress_ng",
        script: "stress-ng --hdd 2 --hdd-opts direct,wr-seq,rd-seq --hdd-bytes 8M --hdd-write-size \
            64k -t 2 --verify --temp-path . && stress-ng --hdd 2 --hdd-opts \
            direct,dsync,wr-rnd,rd-rnd --hdd-bytes 4M --hdd-write-size 4k -t 2 --verify \
            --temp-path .",
        says: NOTHING,
    },
    Program {
        name: "qemu_img",
        script: "head -c 8388608 /dev/urandom > src && qemu-img convert -q -t none -T none -f raw \
            -O qcow2 src b.qcow2 && qemu-img compare -T none -f raw -F qcow2 src b.qcow2 && \
            qemu-img check -q b.qcow2 && qemu-img convert -t none -W -m 8 -f qcow2 -O raw b.qcow2 \
            c && cmp src c",
        says: NOTHING,
    },
    Program {
        name: "qemu_io",
        script: "truncate -s 16M f && qemu-io -f raw -t none -c 'write -P 7 0 64k' -c 'write -P 8 \
            1M 1M' -c 'read -P 7 0 64k' -c flush -c 'aio_write -P 9 4M 64k' -c aio_flush -c 'read \
            -P 9 4M 64k' f",
        says: NOTHING,
    },
    Program {
        name: "rocksdb",
        script: "db_bench --benchmarks=fillrandom,readrandom,compact --db=db --num=20000 \
            --value_size=400 --threads=4 --use_direct_io_for_flush_and_compaction=1 \
            --use_direct_reads=1 2>/dev/null && ldb --db=db checkconsistency",
        says: NOTHING,
    },
    Program {
        name: "xfs_io",
        script: "xfs_io -d -f -c 'pwrite -S 7 0 1m' -c 'pwrite -S 8 -b 4k 1m 64k' -c 'pread 1m 4k' \
            -c fsync -c stat f && test $(stat -c %s f) = 1114112",
        says: ["0 of them taken over", REQUESTS],
    },
    Program {
        name: "python_threads",
        script: "python3 -c \"
import os, mmap, threading
f = os.open('f', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
b = mmap.mmap(-1, 4096)
b[:] = b'x' * 4096
write = lambda k: [os.pwrite(f, b, (i * 8 + k) * 4096) for i in range(200)]
threads = [threading.Thread(target=write, args=(k,)) for k in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert os.fstat(f).st_size == os.stat('f').st_size == 8 * 200 * 4096
os.close(f)
assert open('f', 'rb').read() == b'x' * (8 * 200 * 4096)
\"",
        says: ["", REQUESTS],
    },
    Program {
        name: "sqlite",
        script: "sqlite3 db 'create table t(a, b); pragma journal_mode=wal; with recursive n(i) as \
            (select 1 union all select i + 1 from n where i < 5000) insert into t select i, \
            randomblob(100) from n; pragma integrity_check;' | grep -qx ok",
        says: NOTHING,
    },
    Program {
        name: "git_and_a_shell",
        script: "git init -q r && cd r && for i in 1 2 3; do head -c 100000 /dev/urandom > f$i; \
            done && git add . && git -c user.name=a -c user.email=a@b commit -qm x && git fsck \
            --no-progress && git gc -q && tar cf ../x.tar . && tar tf ../x.tar | sort | tail -1",
        says: NOTHING,
    },
];

/// Searches for a file with a marker, also in subdirectories.
fn marked(dir: &Path) -> Result<Option<String>, Failed> {
    for entry in fs::read_dir(dir)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        let found = match kind {
            kind if kind.is_dir() => marked(&path)?,
            kind if kind.is_file() && files::marker(&path)?.is_some() => {
                Some(path.display().to_string())
            }
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn try_program(dir: &TestDir, program: &Program, with: With) -> TrialResult {
    let dir = empty(dir, &format!("{with:?}"))?;
    let mut command = Command::new("bash");
    command.args(["-c", program.script]).current_dir(&dir);
    let again = |error: Failed| {
        failed(format!(
            "{}\nagain, in an empty directory: {} bash -c {:?}",
            message(&error),
            with.words(),
            program.script
        ))
    };
    with.set(&mut command);
    let finished =
        run(command.env("DIOXIDE_STATS", "1")).and_then(Finished::well).map_err(again)?;
    let says = match with {
        With::Nothing => "",
        With::Preload => program.says[0],
        With::Eager => program.says[1],
    };
    if !says.split('|').any(|one| finished.stderr.contains(one)) {
        return Err(again(failed(format!(
            "{with:?} does not say {says:?}, but:\n{}",
            finished.stderr
        ))));
    }
    match marked(&dir)? {
        Some(path) => Err(again(failed(format!("{with:?}: {path} has a marker still")))),
        None => Ok(()),
    }
}

/// File systems with each kind of growth, and one without.
fn on_some(fs: Fs) -> Applies {
    match fs {
        Fs::Ext4 | Fs::Xfs | Fs::BtrfsNocow | Fs::Tmpfs => Ok(()),
        _ => Err("tried on other file systems"),
    }
}

pub fn trials() -> Vec<Trial> {
    let each = |program: &'static Program| {
        lab_trials_where(program.name, on_some, move |dir| {
            // The engine gains nothing on tmpfs, so the test ignores the summary there.
            let program = match dir.fs() {
                Fs::Tmpfs => &Program { says: NOTHING, ..*program },
                _ => program,
            };
            With::ALL.into_iter().try_for_each(|with| try_program(&dir, program, with))
        })
    };
    in_turn(PROGRAMS.iter().map(each))
}
