//! The suite of object_store, and what this store adds.

use dioxide_object_store::{DIRECT_BYTES_MIN, DioxideStore};
use object_store::integration::{
    copy_if_not_exists, copy_rename_nonexistent_object, get_opts, list_uses_directories_correctly,
    list_with_delimiter, list_with_offset_exclusivity, put_get_delete_list, put_opts,
    rename_and_copy, stream_get,
};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart,
};
use std::fs;
use tempfile::TempDir;

fn store() -> (TempDir, DioxideStore) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = DioxideStore::new(dir.path()).unwrap();
    (dir, store)
}

fn names(dir: &TempDir) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_of_object_store() {
    let (_dir, store) = store();
    put_get_delete_list(&store).await;
    list_with_offset_exclusivity(&store).await;
    get_opts(&store).await;
    list_uses_directories_correctly(&store).await;
    list_with_delimiter(&store).await;
    rename_and_copy(&store).await;
    copy_if_not_exists(&store).await;
    copy_rename_nonexistent_object(&store).await;
    stream_get(&store).await;
    put_opts(&store, false).await;
}

#[tokio::test]
async fn the_etag_is_that_of_local_file_system() {
    let (dir, store) = store();
    let local = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
    for bytes in [DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN] {
        let path = Path::from(format!("a/{bytes}/object"));
        let put = store.put(&path, vec![7; bytes].into()).await.unwrap();
        assert_eq!(put.e_tag, local.head(&path).await.unwrap().e_tag);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_any_length_at_the_same_time() {
    let (dir, store) = store();
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    for part_bytes in [1000, 4096, 777_777] {
        let path = Path::from("object");
        let mut upload = store.put_multipart(&path).await.unwrap();
        let parts: Vec<_> = content
            .chunks(part_bytes)
            .map(|part| upload.put_part(PutPayload::from(part.to_vec())))
            .collect();
        // The last part is written first.
        for part in parts.into_iter().rev().map(tokio::spawn).collect::<Vec<_>>() {
            part.await.unwrap().unwrap();
        }
        upload.complete().await.unwrap();
        assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == content);
        assert_eq!(names(&dir), ["object"]);
        upload.complete().await.expect_err("it has ended");
    }
}

#[tokio::test]
async fn an_upload_that_ends_early_leaves_nothing() {
    let (dir, store) = store();
    let path = Path::from("object");
    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part("part".into()).await.unwrap();
    assert_eq!(names(&dir), ["object#1"]);
    upload.abort().await.unwrap();
    assert_eq!(names(&dir), [""; 0]);
    upload.put_part("part".into()).await.expect_err("it has ended");

    // A part that is not written yet.
    let mut upload = store.put_multipart(&path).await.unwrap();
    let part = upload.put_part("part".into());
    upload.complete().await.expect_err("a part is in flight");
    drop(part);
    assert_eq!(names(&dir), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_creations_succeeds() {
    let (dir, store) = store();
    let create = |number: u8| {
        let store = store.clone();
        tokio::spawn(async move {
            let options = PutOptions::from(PutMode::Create);
            let path = Path::from("object");
            let content = vec![number; DIRECT_BYTES_MIN];
            store.put_opts(&path, content.into(), options).await.map(|_| number)
        })
    };
    let mut winners = Vec::new();
    for put in (0..20).map(create).collect::<Vec<_>>() {
        match put.await.unwrap() {
            Ok(number) => winners.push(number),
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(winners.len(), 1);
    assert!(fs::read(dir.path().join("object")).unwrap() == vec![winners[0]; DIRECT_BYTES_MIN]);
    assert_eq!(names(&dir), ["object"]);
}

/// The names of staged files are free for others after a rename.
#[tokio::test(flavor = "multi_thread")]
async fn puts_of_one_name_beside_each_other() {
    let (dir, store) = store();
    let put = |number: u32| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut upload =
                WriteMultipart::new(store.put_multipart(&Path::from("object")).await.unwrap());
            upload.write(&number.to_le_bytes().repeat(5000));
            upload.finish().await.unwrap();
            let content = vec![number as u8; DIRECT_BYTES_MIN];
            store.put(&Path::from("object"), content.into()).await.unwrap();
        })
    };
    for put in (0..50).map(put).collect::<Vec<_>>() {
        put.await.unwrap();
    }
    assert_eq!(names(&dir), ["object"]);
}

/// As an object store of the cloud, and unlike a rename.
#[tokio::test]
async fn a_put_through_a_directory_that_is_a_file_fails() {
    let (dir, store) = store();
    let content = PutPayload::from(vec![7; DIRECT_BYTES_MIN]);
    store.put(&Path::from("a"), content.clone()).await.unwrap();
    let error = store.put(&Path::from("a/b"), content).await.unwrap_err();
    assert!(error.to_string().contains("DioxideStore"), "{error}");
    assert_eq!(names(&dir), ["a"]);
}
