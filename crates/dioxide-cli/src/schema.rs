//! The JSON Schema of our JSON documents, generated from their types, and checked in under
//! `docs/schema`.

use crate::{diagnose, history, probe, report};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use std::env;
use std::fs;

/// Set to write the files rather than compare them.
const WRITE: &str = "DIOXIDE_SCHEMA_WRITE";

fn check<T: JsonSchema>(name: &str) {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let schema = generator.into_root_schema_for::<T>();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let path = format!("{}/../../docs/schema/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    if env::var_os(WRITE).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{path} is not what is written: set {WRITE} to make it anew");
}

#[test]
fn bench() {
    check::<report::json::BenchDocument<'_>>("bench");
}

#[test]
fn diagnose() {
    check::<diagnose::document::DiagnoseDocument>("diagnose");
}

#[test]
fn history() {
    check::<history::document::HistoryDocument<'_>>("history");
}

/// `probe --for` has keys of its own.
#[test]
fn a_fitness_was_never_validated() {
    let schema =
        serde_json::to_value(schemars::schema_for!(probe::document::ProbeDocument)).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut document = serde_json::to_value(probe::document::examples::fit()).unwrap();
    assert!(validator.is_valid(&document));
    document["fitness"]["checks"][0].as_object_mut().unwrap().remove("outcome");
    assert!(!validator.is_valid(&document));
}

#[test]
fn probe() {
    check::<probe::document::ProbeDocument>("probe");
}
