//! Path lookup from the root of the volume. Symbolic links are resolved within the volume.

use crate::directory;
use crate::features::FILETYPE;
use crate::format::{Inode, Kind, ROOT_INODE};
use crate::node::Node;
use crate::volume::{Volume, corrupt};
use dioxide::Buffer;
use std::io;
use std::sync::Arc;

/// The limit of symbolic links in a lookup, as in the kernel.
const LINKS_MAX: u32 = 40;

/// Returns the inode of `path`.
pub(super) fn find(volume: &Arc<Volume>, path: &[u8]) -> io::Result<u32> {
    let mut names: Vec<Vec<u8>> = names(path);
    let mut directory = ROOT_INODE;
    let mut links = 0;
    let mut found = ROOT_INODE;
    while let Some(name) = names.pop() {
        found = look_up(volume, directory, &name)?;
        if volume.inode(found)?.kind != Kind::Link {
            directory = found;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        let target = target(&Node::open(volume.clone(), found)?)?;
        if target.starts_with(b"/") {
            directory = ROOT_INODE;
        }
        found = directory;
        names.extend(self::names(&target));
    }
    Ok(found)
}

/// Returns the names of a path in reverse order.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}

fn look_up(volume: &Arc<Volume>, directory: u32, name: &[u8]) -> io::Result<u32> {
    if volume.inode(directory)?.kind != Kind::Directory {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    let node = Node::open(volume.clone(), directory)?;
    let Inode { size, .. } = usable(&node)?;
    let has_kinds = volume.geometry.features.incompat & FILETYPE != 0;
    let mut bytes = Buffer::zeroed(volume.geometry.block_bytes as usize);
    for block in 0..size / volume.geometry.block_bytes {
        if node.runs(block..block + 1)?[0].at.is_none() {
            return Err(corrupt(format!("directory {directory} has holes")));
        }
        node.read(&mut bytes, block)?;
        match directory::find(&bytes, name, has_kinds) {
            Ok(Some(inode)) if volume.geometry.may_have_names(inode) => return Ok(inode),
            Ok(Some(inode)) => {
                return Err(corrupt(format!(
                    "directory {directory} names inode {inode}, the volume's own"
                )));
            }
            Ok(None) => {}
            Err(why) => return Err(corrupt(format!("directory {directory}: {why}"))),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOENT))
}

fn target(node: &Node) -> io::Result<Vec<u8>> {
    let inode = usable(node)?;
    let geometry = &node.volume.geometry;
    if let Some(target) = inode.short_target(geometry) {
        return Ok(target);
    }
    if inode.size == 0 || inode.size >= geometry.block_bytes {
        return Err(corrupt(format!("symbolic link {} has {} bytes", node.number, inode.size)));
    }
    let mut bytes = Buffer::zeroed(geometry.block_bytes as usize);
    node.read(&mut bytes, 0)?;
    Ok(bytes[..inode.size as usize].to_vec())
}

/// Returns the inode. Fails if the file is not readable as plain blocks.
fn usable(node: &Node) -> io::Result<Inode> {
    let inode = node.inode();
    inode.refusal(false)?;
    Ok(inode)
}
