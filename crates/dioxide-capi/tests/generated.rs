//! Checks that the checked-in `dioxide.h` and manual pages are up to date. They are generated from
//! the comments of the code, and from docs/c.md. `scripts/capi write` writes them.

mod manual;

use manual::Header;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn header() -> String {
    let config = cbindgen::Config::from_file(Path::new(HERE).join("cbindgen.toml"))
        .expect("a configuration");
    let mut bytes = Vec::new();
    // Includes its modules.
    let sources =
        cbindgen::Builder::new().with_config(config).with_src(Path::new(HERE).join("src/lib.rs"));
    sources.generate().expect("the code is understood").write(&mut bytes);
    String::from_utf8(bytes).expect("text")
}

/// All generated files, by their paths in the crate.
fn generated() -> BTreeMap<PathBuf, String> {
    let header = header();
    let document =
        fs::read_to_string(Path::new(HERE).join("../../docs/c.md")).expect("docs/c.md is there");
    let pages = Header::parse(&header).pages(&document, env!("CARGO_PKG_VERSION"));
    let man = pages.into_iter().map(|(name, page)| (PathBuf::from(format!("man/{name}.3")), page));
    man.chain([("include/dioxide.h".into(), header)]).collect()
}

#[test]
fn what_is_checked_in_is_up_to_date() {
    let generated = generated();
    let writes = std::env::var_os("DIOXIDE_WRITE").is_some();
    for (path, text) in &generated {
        let path = Path::new(HERE).join(path);
        if writes {
            fs::write(&path, text).expect("it can be written");
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        assert!(there == *text, "{} is not up to date: run scripts/capi write", path.display());
    }
    for page in fs::read_dir(Path::new(HERE).join("man")).expect("the manual is there") {
        let path = page.expect("as above").path();
        let known = generated.contains_key(path.strip_prefix(HERE).expect("it is below"));
        assert!(known, "{} is of nothing that there is: remove it", path.display());
    }
}
