//! `dioxide-fuse-disk DIR SIZE`: a disk that fails on command, at `DIR/image`, for use by hand.

fn main() -> std::process::ExitCode {
    dioxide_testkit::fuse_disk::server::main()
}
