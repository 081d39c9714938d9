//! A file has one database, of this process or another, on dioxide or on redb's own backend.

use dioxide_redb::DioxideBackend;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError};
use std::fs;

#[test]
fn a_file_has_one_database() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data.redb");
    let refused = |result: Result<Database, DatabaseError>, what: &str| match result {
        Err(DatabaseError::DatabaseAlreadyOpen) => {}
        other => panic!("{what}: {other:?}"),
    };
    let on_dioxide = || Database::builder().create_with_backend(DioxideBackend::open(&path)?);
    let database = on_dioxide().unwrap();
    refused(on_dioxide(), "twice in a process");
    refused(Database::open(&path), "redb's own backend beside it");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let own = FileBackend::new(file).unwrap();
    refused(Database::builder().create_with_backend(own), "redb's own backend, given a file");
    drop(database);
    let database = Database::open(&path).unwrap();
    refused(on_dioxide(), "beside redb's own backend");
    drop(database);
    on_dioxide().unwrap();
}
