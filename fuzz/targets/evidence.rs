//! Evidence from elsewhere: any evidence that parses is judged, and shares stay within the whole.
#![no_main]

use dioxide_diagnose::evidence::Evidence;
use dioxide_diagnose::judge::judge;
use dioxide_diagnose::{usl, waits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(evidence) = serde_json::from_slice::<Evidence>(text) else { return };
    let findings = judge(&evidence);
    assert!(!findings.is_empty());
    assert!(findings.iter().all(|finding| (0.0..=1.0).contains(&finding.share)));
    let waits = waits::table(&evidence);
    assert!(waits.iter().filter_map(|wait| wait.share).all(|share| (0.0..=1.0).contains(&share)));
    let _ = usl::fit(&evidence.curve);
});
