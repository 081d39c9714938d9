//! Pages: well-formed, complete, in one file, and with every name escaped. Documents: valid by
//! their schemas.

mod common;

use common::{expect_code, expect_refusal, run, stdout};
use scraper::{Html, Selector};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A name that would be markup.
const ODD: &str = "<b>&\"'x";

/// On a file system that takes O_DIRECT.
fn odd_dir() -> (TempDir, String) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let odd = dir.path().join(ODD);
    fs::create_dir(&odd).unwrap();
    let odd = odd.display().to_string();
    (dir, odd)
}

/// The page and the document of a command on a path with such a name.
fn results(line: &str) -> (Html, String, Value) {
    let (dir, odd) = odd_dir();
    let page = dir.path().join("page.html");
    let output =
        run(&format!("{} --html {} --json -", line.replace("PLACE", &odd), page.display()));
    expect_code(&output, 0);
    let text = fs::read_to_string(&page).unwrap();
    (Html::parse_document(&text), text, serde_json::from_str(stdout(&output)).unwrap())
}

fn count(page: &Html, selector: &str) -> usize {
    page.select(&Selector::parse(selector).unwrap()).count()
}

fn check_page(page: &Html, text: &str) {
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    for element in ["script", "link", "img", "iframe", "object", "embed", "base"] {
        assert_eq!(count(page, element), 0, "{element}");
    }
    for (attribute, selector) in
        [("src", "[src]"), ("href", "[href]"), ("http-equiv", "[http-equiv]")]
    {
        assert_eq!(count(page, selector), 0, "{attribute}");
    }
    assert!(!text.contains("url(") && !text.contains("@import"));
    let without_names = text.replace("http://www.w3.org/2000/svg", "");
    assert!(!without_names.contains("://"), "an address of something else");
    assert_eq!(count(page, "svg"), count(page, "svg[role=img][viewBox]"));
    assert_eq!(
        (count(page, "svg"), count(page, "svg")),
        (count(page, "svg > title"), count(page, "svg > desc"))
    );
    assert_eq!(count(page, "b"), 0, "a name became markup");
    assert!(text.contains("&lt;b&gt;&amp;&quot;'x"), "the name is there, escaped");
}

/// Fails unless `document` is valid by the schema of its kind, and invalid without any of its keys.
fn check_schema(document: &Value) {
    let kind = document["kind"].as_str().unwrap();
    let path = format!("{}/../../docs/schema/{kind}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(Path::new(&path)).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(document).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    let mut less = document.clone();
    less.as_object_mut().unwrap().remove("kind");
    assert!(!validator.is_valid(&less));
}

#[test]
fn of_a_bench() {
    let (page, text, document) = results(
        "bench append --dir PLACE --bs 4k,8k --numjobs 1,2 --iodepth 2 --runtime 30ms --rounds 2 \
         --size 8m",
    );
    check_page(&page, &text);
    check_schema(&document);
    let rows = document["results"].as_array().unwrap().len();
    // A table of rates and one of percentiles for each block size, and the matrices.
    let [section, title, row] =
        ["section", "h3", "tbody tr"].map(|selector| Selector::parse(selector).unwrap());
    let tables = page.select(&section).filter(|section| {
        section.select(&title).any(|title| title.inner_html() == "Latency percentiles")
    });
    let shown: usize = tables.map(|section| section.select(&row).count()).sum();
    assert_eq!(shown, 2 * rows, "every row is in both");
    assert_eq!(count(&page, "svg"), 4);
}

#[test]
fn of_a_probe() {
    let (page, text, document) = results("probe PLACE --quick");
    check_page(&page, &text);
    check_schema(&document);
    let facts = document["facts"].as_object().unwrap();
    assert_eq!(count(&page, "dl.list > div"), facts.len());
}

#[test]
fn of_a_diagnosis() {
    let line = "diagnose PLACE --rw overwrite --numjobs 1,2,3,4,5,6 --runtime 30ms --rounds 2 \
        --size 4m --no-trace";
    let (page, text, document) = results(line);
    check_page(&page, &text);
    check_schema(&document);
    let diagnosis = &document["diagnoses"][0];
    assert_eq!(count(&page, ".finding"), diagnosis["findings"].as_array().unwrap().len());
    let rows =
        [&diagnosis["waits"], &diagnosis["evidence"]["curve"], &diagnosis["evidence"]["others"]];
    let rows: usize = rows.iter().map(|rows| rows.as_array().unwrap().len()).sum();
    assert_eq!(count(&page, "tbody tr"), rows);
}

#[test]
fn of_a_comparison() {
    let (dir, odd) = odd_dir();
    let [saved, page] = ["saved.json", "page.html"].map(|name| dir.path().join(name));
    let line = "--numjobs 1,2 --iodepth 2 --runtime 30ms --rounds 2 --size 8m";
    let saved = saved.display();
    expect_code(&run(&format!("bench append --dir {odd} {line} --json {saved}")), 0);
    let line = format!("compare {saved} {saved} --html {} --json -", page.display());
    let output = run(&line);
    expect_code(&output, 0);
    let text = fs::read_to_string(&page).unwrap();
    let page = Html::parse_document(&text);
    check_page(&page, &text);
    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(count(&page, "tbody tr"), document["comparison"].as_array().unwrap().len());
}

/// Of one result: a plot for each row.
#[test]
fn of_a_history() {
    let (dir, odd) = odd_dir();
    let [saved, page] = ["saved.json", "page.html"].map(|name| dir.path().join(name));
    let line = "--numjobs 1,2 --iodepth 2 --runtime 30ms --rounds 2 --size 8m --label <b>&\"'x";
    let saved = saved.display();
    expect_code(&run(&format!("bench append --dir {odd} {line} --json {saved}")), 0);
    let output = run(&format!("history {saved} --html {} --json -", page.display()));
    expect_code(&output, 0);
    let text = fs::read_to_string(&page).unwrap();
    let page = Html::parse_document(&text);
    check_page(&page, &text);
    let document: Value = serde_json::from_str(stdout(&output)).unwrap();
    check_schema(&document);
    assert_eq!(document["runs"][0]["label"], ODD);
    assert_eq!(count(&page, "svg"), document["series"].as_array().unwrap().len());
}

#[test]
fn fio_json_has_a_job_for_each_row() {
    let (dir, odd) = odd_dir();
    let file = dir.path().join("fio.json");
    let line = format!(
        "bench mixed --dir {odd} --numjobs 1 --iodepth 4 --runtime 30ms --rounds 2 --size 4m"
    );
    let output = run(&format!("{line} --json - --fio-json {}", file.display()));
    expect_code(&output, 0);
    let ours: Value = serde_json::from_str(stdout(&output)).unwrap();
    let rows = ours["results"].as_array().unwrap();
    assert!(rows.len() > 3 && !file.exists(), "{rows:?}");
    for row in rows {
        let name = format!("fio.{}.json", row["path"].as_str().unwrap());
        let fio: Value =
            serde_json::from_str(&fs::read_to_string(dir.path().join(name)).unwrap()).unwrap();
        let [job] = &fio["jobs"].as_array().unwrap()[..] else { panic!("one row: {fio}") };
        for way in ["read", "write"] {
            assert_eq!(row[way]["clat_ns"]["N"], job[way]["total_ios"]);
            let percentile =
                |document: &Value| document[way]["clat_ns"]["percentile"]["99.000000"].clone();
            assert_eq!(percentile(row), percentile(job));
        }
    }
    let output = run(&format!("{line} --fio-json - --fio-path dioxide"));
    expect_code(&output, 0);
    let fio: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(fio["jobs"].as_array().unwrap().len(), 1, "{fio}");
    assert_eq!(fio["jobs"][0]["jobname"], "mixed-dioxide-4k-1");
    let output = run(&format!("{line} --fio-json x --fio-path sparse"));
    expect_refusal(&output, "the paths of this bench are serialised, kernel, dioxide");
}
