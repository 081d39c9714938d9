//! Opening striped volumes: opens every member as a file, identifies them by their headers, and
//! recovers them as one file.

use super::build::{self, Build, SpaceAhead};
use super::found::{self, There, key_of_stat};
use super::request::OpenRequest;
use super::{
    DIRECT, Joined, Locked, admit, create, facts, file_system, find, flushing, in_order, look_up,
};
use super::{open_there, prepared, recovered, refusal, shared};
use crate::backend::Backend;
use crate::backend::striped::{Members, Striped};
use crate::backend::syscall::Syscall;
use crate::buffer::Buffer;
use crate::engine::handle::FileHandle;
use crate::engine::process::{FileSystems, Process};
use crate::engine::queue::settle_own;
use crate::engine::recover::{Recover, look};
use crate::engine::registry::{Key, Opening};
use crate::engine::{Engine, read_fully};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::os_error;
use crate::rules::marker::{Identity, Prepared};
use crate::rules::merge::Limits;
use crate::rules::recovery::{self, Recovery};
use crate::rules::stripe::{
    self, CHUNK_BYTES_MAX, HEADER_BYTES, Header, HeaderState, MEMBERS_MAX, MemberContent,
    MembersFound,
};
use crate::sys;
use crate::sys::probe::{Alignment, Facts, Part};
use crate::text::shown;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(all(test, not(loom)))]
mod tests;

/// Opens the volume of these paths.
pub(crate) fn open(
    request: &OpenRequest,
    paths: Vec<Arc<Path>>,
    chunk_bytes: u64,
) -> Result<FileHandle> {
    let volume = MemberPaths { name: name_of(&paths), paths, chunk_bytes };
    volume.check_shape()?;
    if !request.write {
        return volume.open_read_only(request);
    }
    settle_own();
    let process = Process::current();
    let (key, engine) = volume.open_writing(request, process)?;
    shared(request, process, key, engine)
}

/// Returns the name of a volume in errors.
pub(crate) fn name_of(paths: &[Arc<Path>]) -> Arc<Path> {
    let names: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    PathBuf::from(names.join(",")).into()
}

/// Returns the key of a volume in this process: that of its first member, marked as a volume.
pub(crate) fn key_of(first: Key) -> Key {
    Key { part: Part::Stripe, ..first }
}

/// The paths of the members.
struct MemberPaths {
    name: Arc<Path>,
    paths: Vec<Arc<Path>>,
    chunk_bytes: u64,
}

impl MemberPaths {
    fn fail(&self, kind: ErrorKind) -> Error {
        Error::new(Operation::Open, &self.name, None, kind)
    }

    fn check_shape(&self) -> Result<()> {
        let count = self.paths.len();
        if count == 0 || count > MEMBERS_MAX {
            let why = format!("a striped volume has 1 to {MEMBERS_MAX} members, not {count}");
            return Err(self.fail(ErrorKind::Unsupported(why)));
        }
        let required = HEADER_BYTES as u64;
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(required) {
            let kind = ErrorKind::Misaligned { what: "chunk", value: self.chunk_bytes, required };
            return Err(self.fail(kind));
        }
        if self.chunk_bytes > CHUNK_BYTES_MAX {
            let why =
                format!("a chunk has at most {CHUNK_BYTES_MAX} bytes, not {}", self.chunk_bytes);
            return Err(self.fail(ErrorKind::Unsupported(why)));
        }
        Ok(())
    }

    fn open_read_only(&self, request: &OpenRequest) -> Result<FileHandle> {
        request.check_read_only().map_err(|kind| self.fail(kind))?;
        let (descriptors, facts) = self.open_all(OFlags::RDONLY, request.descriptor_min)?;
        let members = OpenMember::all(descriptors.into_iter().map(Syscall::new), facts);
        reader(members, &self.name, self.chunk_bytes, Process::current())
    }

    fn open_writing(&self, request: &OpenRequest, process: &'static Process) -> Result<Joined> {
        let found: Vec<_> =
            self.paths.iter().map(|path| look_up(request, path)).collect::<Result<_>>()?;
        if found.iter().any(Option::is_none) {
            self.check_creation(request, process, &found)?;
        }
        let mut created = Created::default();
        let there = self.paths.iter().zip(found).map(|(path, found)| match found {
            Some(found) => Ok(There::Found(found)),
            None => create(request, process, path).inspect(|there| created.add(path, there)),
        });
        let members = there.collect::<Result<Vec<_>>>()?;
        let keys = members.iter().map(There::key).collect::<rustix::io::Result<Vec<_>>>();
        let keys = keys.map_err(|errno| self.fail(refusal(errno)))?;
        let key = key_of(keys[0]);
        let engine = process
            .registry
            .open(key, OpeningVolume { volume: self, request, process, members })?;
        // Another thread may have opened it first.
        let joined = self.joined(process, key, engine, &keys)?;
        created.keep();
        Ok(joined)
    }

    /// Refuses to create members beside an open volume, or beside others that do not belong to a
    /// new one.
    fn check_creation(
        &self,
        request: &OpenRequest,
        process: &Process,
        members: &[Option<found::FoundInode>],
    ) -> Result<()> {
        if let Some(first) = &members[0]
            && process.registry.is_open(key_of(first.key()))
        {
            return Err(self.others());
        }
        let devices = members.iter().flatten().filter(|found| found.is_device()).count();
        check_kinds(devices, members.len()).map_err(|kind| self.fail(kind))?;
        let on_paths = || self.paths.iter().zip(members);
        let seen = on_paths().map(|(path, found)| {
            let fail = |kind| Error::new(Operation::Open, path, None, kind);
            let Some(found) = found else { return Ok(MemberContent::Blank) };
            let fd = found
                .open(DIRECT | OFlags::RDWR, request.descriptor_min)
                .map_err(|errno| fail(refusal(errno)))?;
            let facts = facts(path, &fd)?;
            look_at(&Syscall::new(fd), &facts).map_err(|error| fail(os_error::kind(&error)))
        });
        let seen = seen.collect::<Result<Vec<_>>>()?;
        let Err(why) = stripe::judge(&seen, self.chunk_bytes) else { return Ok(()) };
        // This takes no lock. Another opener creates all members before it writes a header.
        let is_missing = on_paths()
            .any(|(path, found)| found.is_none() && matches!(look_up(request, path), Ok(None)));
        if is_missing { Err(self.fail(ErrorKind::Members(why))) } else { Ok(()) }
    }

    /// Joins an open volume, which must have the same members.
    fn joined(
        &self,
        process: &'static Process,
        key: Key,
        engine: Arc<Engine>,
        keys: &[Key],
    ) -> Result<Joined> {
        let known =
            engine.backend.members().into_iter().map(|member| rustix::fs::fstat(member).ok());
        let same = known
            .map(|stat| stat.map(|stat| key_of_stat(&stat)))
            .eq(keys.iter().copied().map(Some));
        if same && engine.backend.chunk_bytes() == Some(self.chunk_bytes) {
            return Ok((key, engine));
        }
        drop(engine);
        process.registry.leave(key)?;
        Err(self.others())
    }

    fn others(&self) -> Error {
        let why = "its first member is open in this process with other members, another order or \
            another chunk";
        self.fail(ErrorKind::Members(why.into()))
    }

    fn make_engine(
        &self,
        request: &OpenRequest,
        process: &'static Process,
        descriptors: Vec<OwnedFd>,
        facts: Vec<Facts>,
    ) -> Result<Engine> {
        let (fs, locked) = self.claim(process, descriptors, &facts)?;
        for (file, facts) in locked.iter().zip(&facts) {
            if let Some(why) = sys::probe::why_not_direct(file.as_fd(), facts) {
                log::warn!("dioxide: {}: O_DIRECT is not direct here: {why}", shown(&*self.name));
            }
        }
        let on: Vec<_> = locked.iter().map(AsFd::as_fd).zip(&facts).collect();
        let prepared = prepared(request.growth, &self.name, &on);
        let overwrites_in_place = prepared.is_some()
            && on.iter().all(|(fd, facts)| {
                sys::probe::can_grow_ahead(*fd, facts, Prepared::Zeroed).is_ok()
            });
        let id = sys::random_id().map_err(|error| self.fail(os_error::kind(&error)))?;
        let members = OpenMember::all(locked.into_iter().map(Locked::keep), facts);
        let kept: Vec<_> = members.iter().map(|member| member.backend.clone()).collect();
        let bring_up = BringUp {
            request,
            process,
            name: &self.name,
            fs,
            prepared,
            overwrites_in_place,
            epoch: sys::epoch(),
            id,
            // Callers do I/O as well: one thread for each other member is enough.
            threads_max: self.paths.len() - 1,
        };
        // From here on only the engine unlocks them, if there is one.
        bring_up
            .engine(members, self.chunk_bytes)
            .inspect_err(|_| kept.iter().for_each(|file| file.unlock()))
    }

    /// Locks all members, and finds their file systems.
    fn claim(
        &self,
        process: &'static Process,
        descriptors: Vec<OwnedFd>,
        facts: &[Facts],
    ) -> Result<(FileSystems, Vec<Locked>)> {
        self.check_distinct(facts)?;
        let (mut file_systems, mut locked) = (Vec::new(), Vec::new());
        for ((path, facts), fd) in self.paths.iter().zip(facts).zip(descriptors) {
            let fail = |kind| Error::new(Operation::Open, path, None, kind);
            file_systems.push(file_system(
                process,
                path,
                Operation::Open,
                facts.fs,
                facts.through,
            )?);
            locked.push(Locked::new(fd, facts).map_err(fail)?);
            // An opener that fails removes what it has created, while others wait for the lock.
            if find(path).map_err(fail)?.key() != Key::of(facts) {
                return Err(fail(refusal(Errno::STALE)));
            }
        }
        Ok((FileSystems::joined(&file_systems), locked))
    }

    fn check_distinct(&self, facts: &[Facts]) -> Result<()> {
        let keys: Vec<_> = facts.iter().map(Key::of).collect();
        let twice = keys.iter().enumerate().find(|(place, key)| keys[..*place].contains(key));
        match twice {
            Some((place, _)) => {
                Err(self.fail(ErrorKind::Members(format!("member {place} is given twice"))))
            }
            None => Ok(()),
        }
    }
}

/// The members that an open created. A drop removes those that have no header.
#[derive(Default)]
struct Created(Vec<(Arc<Path>, Key)>);

impl Created {
    fn add(&mut self, path: &Arc<Path>, there: &There) {
        if let (There::Created(_), Ok(key)) = (there, there.key()) {
            self.0.push((path.clone(), key));
        }
    }

    fn keep(mut self) {
        self.0.clear();
    }

    /// Removes a member. Leaves it if another opener has locked it or made a volume of it.
    fn remove(path: &Arc<Path>, key: Key) -> Option<()> {
        // The target of a link stays, and so does the link.
        fs::symlink_metadata(path).ok().filter(|named| named.is_file())?;
        let found = find(path).ok().filter(|found| found.key() == key)?;
        let fd = found.open(DIRECT | OFlags::RDWR, 0).ok()?;
        let facts = facts(path, &fd).ok()?;
        sys::try_lock(fd.as_fd()).ok().filter(|locked| *locked)?;
        let file = Locked(Some(Syscall::new(fd)));
        look_at(file.backend(), &facts).ok().filter(|seen| *seen == MemberContent::Blank)?;
        fs::remove_file(path).ok()
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for (path, key) in &self.0 {
            Self::remove(path, *key);
        }
    }
}

/// A volume that is being opened for writing.
struct OpeningVolume<'a> {
    volume: &'a MemberPaths,
    request: &'a OpenRequest,
    process: &'static Process,
    members: Vec<There>,
}

impl Opening for OpeningVolume<'_> {
    fn admit(&self) -> Result<()> {
        self.volume.paths.iter().zip(&self.members).try_for_each(|(path, there)| admit(path, there))
    }

    fn engine(self) -> Result<Engine> {
        let Self { volume, request, process, members } = self;
        let opened = volume.paths.iter().zip(members);
        let opened = opened.map(|(path, there)| open_there(request, process, path, there));
        let (descriptors, facts) = opened.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        volume.make_engine(request, process, descriptors, facts)
    }
}

/// Inspects a striped volume of files that a crash may have left open, and recovers it as far as
/// `how` allows. The counterpart of [`recover`](crate::recover()) for a file. A volume whose
/// members lack data is [`ModifiedExternally`](crate::Verdict::ModifiedExternally), too.
/// [`Recover::Force`] truncates it to the data that its members hold without a gap.
///
/// # Errors
///
/// As [`recover`](crate::recover()), and [`Members`](ErrorKind::Members) if the paths are not one
/// volume in their order.
pub fn recover_striped(
    paths: &[impl AsRef<Path>],
    chunk_bytes: u64,
    how: Recover,
) -> Result<Recovery> {
    let paths: Vec<Arc<Path>> = paths.iter().map(|path| path.as_ref().into()).collect();
    let volume = MemberPaths { name: name_of(&paths), paths, chunk_bytes };
    volume.check_shape()?;
    settle_own();
    volume.recover(how)
}

impl MemberPaths {
    fn recover(&self, how: Recover) -> Result<Recovery> {
        let access = if how == Recover::Inspect { OFlags::RDONLY } else { OFlags::RDWR };
        let (descriptors, facts) = self.open_all(access, 0)?;
        if how == Recover::Inspect {
            let members = OpenMember::all(descriptors.into_iter().map(Syscall::new), facts);
            return self.recover_members(members, &FileSystems::default(), how);
        }
        let (fs, locked) = self.claim(Process::current(), descriptors, &facts)?;
        let members = OpenMember::all(locked.into_iter().map(Locked::keep), facts);
        let kept: Vec<_> = members.iter().map(|member| member.backend.clone()).collect();
        let found = self.recover_members(members, &fs, how);
        kept.iter().for_each(|file| file.unlock());
        found
    }

    fn recover_members(
        &self,
        members: Vec<OpenMember>,
        fs: &FileSystems,
        how: Recover,
    ) -> Result<Recovery> {
        let fail = |kind| Error::new(Operation::Recover, &self.name, None, kind);
        let (header, state) = volume_of(&members, self.chunk_bytes).map_err(fail)?;
        let facts = joint_facts(&members, header);
        if facts.is_device {
            return Err(fail(ErrorKind::Unsupported("a block device does not grow".into())));
        }
        let striped = Striped::new(parts_of(&members, header, &facts, 0));
        let lack = striped.find_length(state).map_err(|error| fail(os_error::kind(&error)))?;
        if let Err(why) = &lack
            && how != Recover::Force
        {
            let len = striped.physical_size().map_err(|error| fail(os_error::kind(&error)))?;
            let verdict = recovery::Verdict::ModifiedExternally(why.clone());
            return Ok(Recovery { physical_size: len, floor: len, ceiling: len, verdict });
        }
        if how == Recover::Inspect {
            let found = look(&striped, facts.identity);
            return found.map(|(_, found)| found).map_err(|error| fail(os_error::kind(&error)));
        }
        let (found, _) = in_order(&striped, fs, &self.name, &facts, how)?;
        if how == Recover::Force
            || !matches!(found.verdict, recovery::Verdict::ModifiedExternally(_))
        {
            flushing(fs, &self.name, Operation::Recover, || striped.close())?;
        }
        Ok(found)
    }

    fn open_all(&self, access: OFlags, descriptor_min: u32) -> Result<(Vec<OwnedFd>, Vec<Facts>)> {
        let mut opened = Vec::new();
        for path in &self.paths {
            let fail = |kind| Error::new(Operation::Open, path, None, kind);
            let found = find(path).map_err(fail)?;
            let fd = found
                .open(DIRECT | access, descriptor_min)
                .map_err(|errno| fail(refusal(errno)))?;
            let facts = facts(path, &fd)?;
            opened.push((fd, facts));
        }
        Ok(opened.into_iter().unzip())
    }
}

/// An open member.
pub(crate) struct OpenMember {
    pub backend: Arc<dyn Backend>,
    pub facts: Facts,
}

impl OpenMember {
    fn all(files: impl Iterator<Item = Syscall>, facts: Vec<Facts>) -> Vec<Self> {
        files.zip(facts).map(|(file, facts)| Self { backend: Arc::new(file), facts }).collect()
    }
}

/// The inputs to make a file of members that are open and locked.
pub(crate) struct BringUp<'a> {
    pub request: &'a OpenRequest,
    pub process: &'static Process,
    pub name: &'a Arc<Path>,
    pub fs: FileSystems,
    pub prepared: Option<Prepared>,
    pub overwrites_in_place: bool,
    pub epoch: u32,
    /// The id of the volume, if it is to be created.
    pub id: [u8; 16],
    pub threads_max: usize,
}

impl BringUp<'_> {
    fn fail(&self, kind: ErrorKind) -> Error {
        Error::new(Operation::Open, self.name, None, kind)
    }

    /// Creates the volume if it is missing and may be created, recovers it, and makes its engine.
    pub fn engine(self, members: Vec<OpenMember>, chunk_bytes: u64) -> Result<Engine> {
        let (header, state, is_new) = match verdict(&members, chunk_bytes)
            .map_err(|kind| self.fail(kind))?
        {
            MembersFound::Volume(header, state) => (header, state, false),
            MembersFound::Create(begun) if self.request.create || self.request.create_new => {
                let (volume, count) = (begun.unwrap_or(self.id), members.len() as u32);
                let header =
                    Header { volume, members: count, member: 0, chunk_bytes, unfinished: false };
                (header, Some(HeaderState::Closed(0)), true)
            }
            MembersFound::Create(_) => return Err(self.fail(nothing_there())),
        };
        let mut facts = joint_facts(&members, header);
        let (value, required) = (chunk_bytes, facts.alignment.append);
        if !value.is_multiple_of(required) {
            return Err(self.fail(ErrorKind::Misaligned { what: "chunk", value, required }));
        }
        let striped = Arc::new(Striped::new(parts_of(&members, header, &facts, self.threads_max)));
        if is_new {
            flushing(&self.fs, self.name, Operation::Open, || striped.create())?;
        }
        let (recovery, held) = match facts.is_device {
            true => {
                facts.len =
                    striped.physical_size().map_err(|error| self.fail(os_error::kind(&error)))?;
                (Recovery::clean(facts.len), None)
            }
            false => {
                let found = striped
                    .find_length(state)
                    .map_err(|error| self.fail(os_error::kind(&error)))?;
                found.map_err(|why| self.fail(ErrorKind::Members(advised(&why))))?;
                let order = recovered(&*striped, &self.fs, self.name, &facts)?;
                flushing(&self.fs, self.name, Operation::Open, || striped.begin_writing())?;
                order
            }
        };
        let ahead = SpaceAhead::new(held.as_ref(), || self.prepared, |_| self.overwrites_in_place);
        let Self { request, process, name: path, fs, epoch, .. } = self;
        let build = Build {
            request,
            process,
            path,
            fs,
            facts: &facts,
            ahead,
            // Each member has other files beside it.
            journal: Err("its members have a journal each".into()),
            order: None,
            epoch,
            recovery,
            held,
        };
        Ok(build.engine(striped))
    }
}

/// Returns the facts of all members together.
fn joint_facts(members: &[OpenMember], header: Header) -> Facts {
    let first = &members[0].facts;
    let alignments = || members.iter().map(|member| member.facts.alignment);
    let most = |of: fn(Alignment) -> u64| alignments().map(of).max().expect("a volume has members");
    let alignment = Alignment {
        memory: most(|a| a.memory),
        offset: most(|a| a.offset),
        append: most(|a| a.append),
    };
    let limits = member_limits(members, header.chunk_bytes, alignment);
    Facts {
        identity: joint_identity(members, header),
        alignment,
        // Adjacent ranges of the members fill one request to each.
        limits: Limits {
            bytes_max: limits.bytes_max.saturating_mul(members.len() as u64),
            ..limits
        },
        writes_through: members.iter().all(|member| member.facts.writes_through),
        ..first.clone()
    }
}

/// Returns the limits of a request to a member: the smallest of all members, in whole chunks if one
/// fits.
fn member_limits(members: &[OpenMember], chunk_bytes: u64, alignment: Alignment) -> Limits {
    let limits = || members.iter().map(|member| member.facts.limits);
    let bytes_max = limits().map(|limits| limits.bytes_max).min().expect("a volume has members");
    let unit = if bytes_max < chunk_bytes { alignment.append } else { chunk_bytes };
    Limits {
        bytes_max: (bytes_max / unit * unit).max(unit),
        segments_max: limits()
            .map(|limits| limits.segments_max)
            .min()
            .expect("a volume has members"),
    }
}

/// Returns the identity of a volume. A copy of the volume that contains no original member has
/// another.
fn joint_identity(members: &[OpenMember], header: Header) -> Identity {
    let sum = |field: fn(Identity) -> u64| {
        let mut hasher = crc32fast::Hasher::new();
        members
            .iter()
            .for_each(|member| hasher.update(&field(member.facts.identity).to_le_bytes()));
        hasher.finalize()
    };
    // Several checksums of the same bytes are worth no more than one, so each covers other bytes.
    let volume = crc32fast::hash(&header.volume);
    Identity {
        inode: u64::from(volume) << 32 | u64::from(sum(|member| member.inode)),
        birth_time: (
            i64::from(sum(|member| member.birth_time.0 as u64)),
            sum(|member| member.birth_time.1.into()),
        ),
    }
}

fn parts_of(members: &[OpenMember], header: Header, facts: &Facts, threads_max: usize) -> Members {
    Members {
        all: members.iter().map(|member| member.backend.clone()).collect(),
        header: Header { member: 0, ..header },
        are_devices: facts.is_device,
        limits: member_limits(members, header.chunk_bytes, facts.alignment),
        file_systems: members.iter().map(|member| member.facts.fs).collect(),
        threads_max,
    }
}

fn check_kinds(devices: usize, members: usize) -> Result<(), ErrorKind> {
    if devices == 0 || devices == members {
        return Ok(());
    }
    Err(ErrorKind::Unsupported("the members of a volume are all files or all devices".into()))
}

/// Makes a read-only handle of a volume.
pub(crate) fn reader(
    members: Vec<OpenMember>,
    name: &Arc<Path>,
    chunk_bytes: u64,
    process: &'static Process,
) -> Result<FileHandle> {
    let fail = |kind| Error::new(Operation::Open, name, None, kind);
    let (header, mut state) = volume_of(&members, chunk_bytes).map_err(fail)?;
    let key = key_of(Key::of(&members[0].facts));
    let facts = joint_facts(&members, header);
    // Without threads of its own: the process may be a forked child.
    let striped = Striped::new(parts_of(&members, header, &facts, 0));
    while let Err(why) = striped.find_length(state).map_err(|error| fail(os_error::kind(&error)))? {
        // A writer records a state before the members change.
        let (_, now) = volume_of(&members, chunk_bytes).map_err(fail)?;
        if now == state {
            return Err(fail(ErrorKind::Members(advised(&why))));
        }
        state = now;
    }
    let len = striped.physical_size().map_err(|error| fail(os_error::kind(&error)))?;
    let facts = Facts { len, ..facts };
    let reader = build::reader(Arc::new(striped), name.clone(), facts, key, process);
    Ok(FileHandle::Reader(reader))
}

fn advised(why: &str) -> String {
    format!("{why}; `dioxide recover --stripe --force` takes what there is")
}

/// Returns the volume of the members.
fn volume_of(
    members: &[OpenMember],
    chunk_bytes: u64,
) -> Result<(Header, Option<HeaderState>), ErrorKind> {
    match verdict(members, chunk_bytes)? {
        MembersFound::Volume(header, state) => Ok((header, state)),
        MembersFound::Create(_) => Err(nothing_there()),
    }
}

fn nothing_there() -> ErrorKind {
    ErrorKind::Members("there is none yet; create(true) makes one".into())
}

/// Judges the headers of the members.
fn verdict(members: &[OpenMember], chunk_bytes: u64) -> Result<MembersFound, ErrorKind> {
    let devices = members.iter().filter(|member| member.facts.is_device).count();
    check_kinds(devices, members.len())?;
    let found: Vec<_> = members
        .iter()
        .map(|member| look_at(&*member.backend, &member.facts))
        .collect::<io::Result<_>>()
        .map_err(|error| os_error::kind(&error))?;
    stripe::judge(&found, chunk_bytes).map_err(ErrorKind::Members)
}

/// Reads the header of a member. A file that is longer than a header, and has none, holds data.
/// Fails where direct I/O takes no transfer as short as a header.
fn look_at(file: &dyn Backend, facts: &Facts) -> io::Result<MemberContent> {
    let unit = facts.alignment.offset;
    if !(HEADER_BYTES as u64).is_multiple_of(unit) {
        let why = format!(
            "a member has a header of {HEADER_BYTES} bytes, where direct I/O takes multiples of \
             {unit}"
        );
        return Err(io::Error::other(ErrorKind::Unsupported(why)));
    }
    let mut block = Buffer::zeroed(HEADER_BYTES);
    let read = read_fully(file, &mut block, 0, unit)?;
    Ok(match stripe::parse(&block[..read as usize]) {
        MemberContent::Blank if !facts.is_device && file.physical_size()? > HEADER_BYTES as u64 => {
            MemberContent::Other("it holds something else".into())
        }
        found => found,
    })
}
