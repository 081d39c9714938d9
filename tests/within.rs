//! Files inside of a volume, in short: what the library writes there, `e2fsck` has nothing to say of, and `debugfs` reads.

use dioxide::{Buffer, Durability, OpenOptions};
use std::path::Path;
use std::process::Command;

fn run(program: &str, arguments: &[&str]) -> Vec<u8> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new(program).args(arguments).env("PATH", path).output().expect(program);
    let said = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(4096)]).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Bytes that tell where they belong.
fn pattern(offset: u64, len: usize) -> Buffer {
    let mut bytes = Buffer::zeroed(len);
    for (n, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(offset + 8 * n as u64 + 1).to_le_bytes());
    }
    bytes
}

fn check(image: &Path) {
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
}

fn read_by_debugfs(image: &Path, name: &str) -> Vec<u8> {
    run("debugfs", &["-R", &format!("cat {name}"), image.to_str().unwrap()])
}

/// A volume with the file `/dir/data` of 48 KiB.
fn volume(dir: &Path, options: &[&str]) -> std::path::PathBuf {
    let (image, source) = (dir.join("volume.img"), dir.join("source"));
    std::fs::create_dir_all(source.join("dir")).unwrap();
    std::fs::write(source.join("dir/data"), &*pattern(0, 48 << 10)).unwrap();
    std::os::unix::fs::symlink("/dir/data", source.join("link")).unwrap();
    let _ = std::fs::remove_file(&image);
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let (source, image_name) = (source.to_str().unwrap(), image.to_str().unwrap());
    run("mke2fs", &[&["-q", "-F", "-d", source][..], options, &[image_name]].concat());
    image
}

#[test]
fn a_file_is_read_overwritten_extended_and_cut() {
    for options in [
        &["-t", "ext3", "-b", "4096"][..],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
        &["-t", "ext2", "-b", "2048", "-O", "none"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-b", "1024", "-r", "0"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), options);
        check(&image);
        let reading = OpenOptions::new();
        let file = reading.open_within(&image, "/link").unwrap();
        let mut bytes = vec![0; 48 << 10];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len(), "{options:?}");
        assert_eq!(bytes, *pattern(0, 48 << 10));
        file.close().unwrap();

        let mut model = bytes;
        let mut writing = OpenOptions::new();
        writing.write(true).durability(Durability::EveryWrite);
        let file = writing.open_within(&image, "dir/data").unwrap();
        file.write_at(&pattern(1 << 32, 8192), 16384).unwrap();
        model[16384..24576].copy_from_slice(&pattern(1 << 32, 8192));
        file.write_at(&pattern(48 << 10, 4 << 20), 48 << 10).unwrap();
        model.extend_from_slice(&pattern(48 << 10, 4 << 20));
        let requests = file.stats().requests;
        assert!(requests <= 3, "{requests} requests for two writes, {options:?}");
        // A hole, then a record that ends in a block.
        file.write_at(&pattern(0, 8192), 12 << 20).unwrap();
        model.resize(12 << 20, 0);
        model.extend_from_slice(&pattern(0, 8192));
        assert_eq!(file.append(b"a record").unwrap(), model.len() as u64);
        model.extend_from_slice(b"a record");
        assert_eq!(file.append(&[7; 5000]).unwrap(), model.len() as u64);
        model.extend_from_slice(&[7; 5000]);
        let mut all = vec![1; model.len()];
        assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
        assert!(all == model, "{options:?}: before it is closed");
        file.close().unwrap();
        check(&image);
        assert!(read_by_debugfs(&image, "/dir/data") == model, "{options:?}: after it is closed");

        let file = writing.open_within(&image, "dir/data").unwrap();
        file.set_len(5 << 20).unwrap();
        file.set_len(100_001).unwrap();
        file.set_len(200_000).unwrap();
        file.close().unwrap();
        model.truncate(100_001);
        model.resize(200_000, 0);
        check(&image);
        assert!(read_by_debugfs(&image, "/dir/data") == model, "{options:?}: after it was cut");

        writing.truncate(true).open_within(&image, "dir/data").unwrap().close().unwrap();
        check(&image);
        assert!(read_by_debugfs(&image, "/dir/data").is_empty());
    }
}
