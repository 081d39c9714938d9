//! Judges evidence that was recorded elsewhere: `judge FILE...`. FILE is the output of the example
//! `record`, or the JSON of `dioxide diagnose`.

use dioxide_diagnose::evidence::Evidence;
use dioxide_diagnose::judge::judge;
use serde_json::Value;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        for evidence in read(&std::fs::read_to_string(&path)?)? {
            println!("{path}:");
            for finding in judge(&evidence) {
                println!("  {}", finding.verdict);
                finding.evidence.iter().for_each(|line| println!("    {line}"));
                finding.advice.iter().for_each(|line| println!("    > {line}"));
            }
        }
    }
    Ok(())
}

fn read(text: &str) -> serde_json::Result<Vec<Evidence>> {
    let document: Value = serde_json::from_str(text)?;
    match document["diagnoses"].as_array() {
        Some(diagnoses) => diagnoses
            .iter()
            .map(|diagnosis| serde_json::from_value(diagnosis["evidence"].clone()))
            .collect(),
        None => Ok(vec![serde_json::from_value(document)?]),
    }
}
