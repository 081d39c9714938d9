//! The text below the options in `--help`, and in the manual: working command lines with
//! explanations.

pub const BENCH: &str = "Examples:
  dioxide bench
      Every wall, on a scratch file in the current directory, in under a minute.
  dioxide bench append --dir /data --numjobs 1,64 --json result.json
      Appends by 1 and by 64 threads, with figures for programs.";

pub const APPEND: &str = "Examples:
  dioxide bench append --dir /data --numjobs 1,4,16,64 --durability every-write
      How durable appends scale.
  dioxide bench append --bs 512,1k,4k,16k --numjobs 1,8,64
      A matrix for each path.
  dioxide bench append --numjobs 16 --rate 20000
      A given load: latencies from when each append was due.";

pub const SYNC: &str = "Examples:
  dioxide bench sync --dir /data
      64 threads, every write durable.
  dioxide bench sync --device /dev/X --overwrite-device /dev/X
      The same on a device, whose contents are destroyed.";

pub const MIXED: &str = "Examples:
  dioxide bench mixed --dir /data --rwmixread 70 --numjobs 1,4
      Random reads and writes, seven of ten are reads.
  dioxide bench mixed --dir /data --rwmixread 0 --bs 512 --numjobs 16 --durability every-write
      Durable writes of parts of shared blocks.";

pub const INDIRECT: &str = "Examples:
  dioxide bench indirect --dir /data
      Writes of 4 MiB through ext3's indirect blocks.";

pub const FILES: &str = "Examples:
  dioxide bench files --dir /data --files 1,256,1024
      Durable writes to one file, and to many.
  dioxide bench files --dir /data --files 1024 --space unwritten
      Into space that was never written, where durable writes need the journal.";

pub const CHECKPOINT: &str = "Examples:
  dioxide bench checkpoint --dir /data --files 10000
      The time until a block in each of 10000 files is durable.";

pub const BENCH_COPY: &str = "Examples:
  dioxide bench copy --dir /data
      A long file written, copied and read, past the page cache and through it.
  dioxide bench copy --dir /data --rw write --size 1g
      Only the writer, with a longer file.";

pub const LOG: &str = "Examples:
  dioxide bench log --dir /data
      Records of 100 bytes by 1, 16 and 64 threads, beside a group commit in the page cache.
  dioxide bench log --dir /data --files 64,256
      Many logs, each with a thread of its own.";

pub const COMPARE: &str = "Examples:
  dioxide bench append --runtime 1s --rounds 9 --json old.json
  dioxide bench append --runtime 1s --rounds 9 --json new.json
  dioxide compare old.json new.json
      What changed in between, beyond chance.
  dioxide compare --fail-on-regression 10% old.json new.json
      The same, for scripts: ends with 3 if something is slower by more than 10 %.";

pub const HISTORY: &str = "Examples:
  dioxide bench append --runtime 1s --rounds 9 --label v1.2 --json results/v1.2.json
      One more result of a series.
  dioxide history results --html history.html
      When something changed, with plots.
  dioxide history results --fail-on-regression 10%
      The same, for scripts: ends with 3 if a row lost more than 10 % when it last changed.";

pub const LOGS: &str = "Examples:
  dioxide log verify /data/log
      Whether a log is sound.";

pub const LOG_VERIFY: &str = "Examples:
  dioxide log verify /data/log
      Ends with 1 if the log is damaged.";

pub const LOG_STAT: &str = "Examples:
  dioxide log stat /data/log --json
      The facts for programs.";

pub const LOG_DUMP: &str = "Examples:
  dioxide log dump /data/log --count 10
      The first ten records.
  dioxide log dump /data/streams --stream 7
      The records of one stream.";

pub const LOG_STREAMS: &str = "Examples:
  dioxide log streams /data/streams
      Which streams a log has.";

pub const LOG_TAIL: &str = "Examples:
  dioxide log tail /data/log
      The last ten records, and then each new one.
  dioxide log tail /data/log --from 1
      All records from the first one on.
  dioxide log tail /data/streams --stream 7
      The last records of a stream, and then each new one.";

pub const PLOT: &str = "Examples:
  dioxide bench append --dir /data --json append.json
  dioxide plot append.json --svg append.svg
      How appends scale, as a picture for a document.";

pub const DIAGNOSE: &str = "Examples:
  dioxide diagnose /data
      Why direct I/O does not scale there.
  dioxide diagnose --pid 1234 --seconds 30
      Where the threads of a program wait.
  dioxide diagnose --unit postgresql --json before.json
  dioxide diagnose --unit postgresql --compare before.json
      The same for a systemd unit, and later what changed.";

pub const PROBE: &str = "Examples:
  dioxide probe /data
      What direct I/O does there.
  dioxide probe /data --for etcd --html etcd.html
      Whether the log of etcd may be there: PASS or FAIL, and a page for a ticket.";

pub const COPY: &str = "Examples:
  dioxide copy /data/file /data/copy
      The copy is stable when the command ends.";

pub const RECOVER: &str = "Examples:
  dioxide recover --dry-run records.log
      What a crash left, without a change.
  dioxide recover --stripe 64k one two three
      The members of a striped volume.";

pub const RUN: &str = "Examples:
  dioxide run --stats -- fio job.fio
      A program with dioxide behind its O_DIRECT files, and what that did.
  dioxide run --match *.log -- program --its-option
      Only for files of these names.";

pub const COMPLETIONS: &str = "Examples:
  dioxide completions bash > ~/.local/share/bash-completion/completions/dioxide
  dioxide completions zsh > ~/.zfunc/_dioxide
      Where ~/.zfunc is in fpath.
  dioxide completions fish > ~/.config/fish/completions/dioxide.fish";

pub const MAN: &str = "Examples:
  dioxide man | man -l -
      Reads dioxide(1).
  dioxide man --dir /usr/local/share/man/man1
      Installs all of the manual.";
