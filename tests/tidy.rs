//! The layout of `src`: a module imports only from its own row or from a row below. In a crate, a
//! type name means one thing. No line of any Rust source is too long.
//!
//! `ROWS` is the table. A `use` or an inline path that names a module of a higher row fails with
//! its file and line. A path through a re-export of `lib.rs` fails as well. Test modules may import
//! anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

/// The longest line, in characters.
const COLUMNS_MAX: usize = 100;

/// The modules of the crate, from the top.
const ROWS: &[&[&str]] = &[
    &["api", "ledger"],
    &["open"],
    &["engine"],
    &["backend"],
    &["sys"],
    // Below `backend`: backends and engine use extents, limits and refusals.
    &["rules"],
    &["buffer", "observe"],
    &["sync"],
    &["error", "os_error", "stats", "text"],
];

/// The modules of the engine, from the top. `mod` is `engine/mod.rs`: the engine of one file.
const ENGINE_ROWS: &[&[&str]] = &[
    &["reactor"],
    &["grower"],
    &["exclusive"],
    &["queue"],
    &["handle"],
    &["reader"],
    &["registry"],
    &["mod"],
    &["placement"],
    &["process"],
    &["token"],
    &["inbox"],
    &["waiter"],
    &["packing", "reading"],
    &["io"],
    &["core"],
    &["recover"],
    &["truncate"],
    &["abort"],
];

/// The allowed upward arrows of the engine, with their reasons.
const ENGINE_UPWARD: &[(&str, &str, &str)] = &[
    ("waiter", "token", "a request that a waiter is given names its owner, which may be a waiter"),
    ("process", "registry", "the process has the open files, and each has its process"),
    ("process", "reactor", "the process has the shared reactor, and each reactor has its process"),
    ("mod", "reactor", "a file waits at its end until the reactors that work on it let go"),
    ("mod", "queue", "a thread finishes what its own queues began before it waits for others"),
    ("queue", "reactor", "a file is told of the reactor whose queue works on it"),
];

/// The allowed arrows between rules, with their reasons. `map` is a folder of rules.
const RULE_ARROWS: &[(&str, &str, &str)] = &[
    ("recovery", "marker", "recovery judges a file by its marker"),
    ("map", "merge", "the runs of a map are requests"),
    ("map", "recovery", "a map of members has their extents"),
];

/// The type names that a crate may declare twice, with their reasons.
const TYPES_TWICE: &[(&str, &str, &str)] = &[
    ("src", "JoinHandle", "the thread of a simulation is that of its threads"),
    ("src", "Reactor", "the public one is a handle of the engine's"),
    ("crates/dioxide-diagnose/src", "Error", "each of two public modules has its own"),
];

/// The crates with less than one meaning for each type name: programs that compare others.
const UNCHECKED: &[&str] = &["crates/bench-peers/src"];

/// The model of `sync/system.rs` in loom has the same names.
const SYNC_MODEL: &str = "src/sync/model.rs";

/// The folders with Rust sources.
const FOLDERS: &[&str] = &["src", "tests", "crates", "examples", "benches", "fuzz/targets"];

/// A source file.
#[derive(Clone)]
struct Source {
    path: String,
    text: String,
    /// The text without comments, literals and test modules.
    code: String,
    /// The names of its test modules that are files.
    tests: Vec<String>,
}

impl Source {
    fn new(path: &str, text: String) -> Self {
        let (code, tests) = without_tests(&code_of(&text));
        Self { path: path.into(), text, code, tests }
    }
}

/// A path in a source: its line, and the module and item that it names, from the root of the crate.
type Named = (usize, Vec<String>);

fn sources() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
        let mut found = Vec::new();
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), "src", &mut found);
        assert!(found.len() > 50, "the sources are in src");
        found
    });
    &SOURCES
}

fn collect(root: &Path, dir: &str, into: &mut Vec<Source>) {
    for entry in fs::read_dir(root.join(dir)).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = format!("{dir}/{}", entry.file_name().to_str().expect("a name in UTF-8"));
        if entry.path().is_dir() {
            if path.ends_with("/target") {
                continue;
            }
            collect(root, &path, into);
        } else if path.ends_with(".rs") {
            into.push(Source::new(&path, fs::read_to_string(entry.path()).expect("a text")));
        }
    }
}

/// The module of a file: empty for `lib.rs`.
fn module_of(path: &str) -> Vec<String> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    let segments = path.split('/').map(String::from);
    segments.filter(|segment| segment != "mod" && segment != "lib").collect()
}

// --- the text ------------------------------------------------------------------------------------

/// The text with spaces in place of comments and literals.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        }
        while at < end {
            code.push(if chars[at] == '\n' { '\n' } else { ' ' });
            at += 1;
        }
    }
    code
}

/// The end of the comment or literal at `at`, or `at` if there is none.
fn literal_end(chars: &[char], at: usize) -> usize {
    let is = |offset: usize, wanted: char| chars.get(at + offset) == Some(&wanted);
    let is_word = |index: usize| chars.get(index).is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let find = |from: usize, wanted: &[char]| {
        let rest = chars.get(from..).unwrap_or_default();
        rest.windows(wanted.len())
            .position(|window| window == wanted)
            .map_or(chars.len(), |found| from + found)
    };
    match chars[at] {
        '/' if is(1, '/') => find(at, &['\n']),
        '/' if is(1, '*') => (find(at + 2, &['*', '/']) + 2).min(chars.len()),
        'r' if (is(1, '"') || is(1, '#')) && !(at > 0 && is_word(at - 1)) => {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if !is(1 + hashes, '"') {
                return at;
            }
            let end: Vec<char> =
                std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            (find(at + 2 + hashes, &end) + end.len()).min(chars.len())
        }
        '"' => {
            let mut end = at + 1;
            while end < chars.len() && chars[end] != '"' {
                end += if chars[end] == '\\' { 2 } else { 1 };
            }
            (end + 1).min(chars.len())
        }
        '\'' if is(1, '\\') => (find(at + 3, &['\'']) + 1).min(chars.len()),
        '\'' if is(2, '\'') => at + 3,
        _ => at,
    }
}

/// The code with spaces in place of test modules, and the names of the test modules that are files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let mut rest = code.to_string();
    let mut files = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test,"] {
        let mut from = 0;
        while let Some(found) = rest[from..].find(attribute).map(|found| from + found) {
            from = found + attribute.len();
            let item_at = found + rest[found..].find(']').expect("the end of an attribute") + 1;
            let item = rest[item_at..].trim_start();
            // More attributes may follow.
            let item = item.split_once("mod ").filter(|(before, _)| {
                before
                    .split_whitespace()
                    .all(|word| word.starts_with("#[") || word.starts_with("pub"))
            });
            let Some((_, item)) = item else { continue };
            let name: String =
                item.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if item[name.len()..].trim_start().starts_with('{') {
                let open = rest.len() - item.len() + item.find('{').expect("just seen");
                let close = closing(&rest, open);
                let blank: String = rest[found..close]
                    .chars()
                    .map(|c| if c == '\n' { '\n' } else { ' ' })
                    .collect();
                rest.replace_range(found..close, &blank);
            } else {
                files.push(name);
            }
        }
    }
    (rest, files)
}

/// The index after the brace that closes the one at `open`.
fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (index, c) in code[open..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + index + 1;
        }
    }
    code.len()
}

/// All paths to a module or item of the crate, in the file of this module with these children.
fn paths_of(code: &str, module: &[String], children: &BTreeSet<String>) -> Vec<Named> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if word.is_empty() {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        }
        let before = code[..at].trim_end();
        let is_start =
            !before.ends_with("::") && !before.ends_with("(in") && !before.ends_with("mod");
        let is_path = rest[word.len()..].starts_with("::");
        let base = match word.as_str() {
            "crate" => Some(Vec::new()),
            "self" => Some(module.to_vec()),
            "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
            name if children.contains(name) => Some([module, std::slice::from_ref(&word)].concat()),
            _ => None,
        };
        if let Some(base) = base.filter(|_| is_start && is_path) {
            let line = code[..at].matches('\n').count() + 1;
            tree(&rest[word.len() + 2..], &base, line, &mut found);
        }
        at += word.len();
    }
    found
}

/// Parses the rest of a path, which may branch. Returns the length of that text.
fn tree(text: &str, base: &[String], line: usize, found: &mut Vec<Named>) -> usize {
    let blank = text.len() - text.trim_start().len();
    let line = line + text[..blank].matches('\n').count();
    let rest = &text[blank..];
    if rest.starts_with('{') {
        let mut at = 1;
        while at < rest.len() && !rest[at..].starts_with('}') {
            let is_between = rest[at..].starts_with(|c: char| c == ',' || c.is_whitespace());
            at += match is_between {
                true => 1,
                false => {
                    tree(&rest[at..], base, line + rest[..at].matches('\n').count(), found).max(1)
                }
            };
        }
        return blank + at + 1;
    }
    let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let full = match word.as_str() {
        "super" => base[..base.len().saturating_sub(1)].to_vec(),
        "" | "self" => base.to_vec(),
        _ => [base, std::slice::from_ref(&word)].concat(),
    };
    let used = blank + word.len();
    match text[used..].strip_prefix("::").filter(|more| !more.starts_with('<')) {
        Some(more) => used + 2 + tree(more, &full, line, found),
        None => {
            found.push((line, full));
            used
        }
    }
}

// --- the rules -----------------------------------------------------------------------------------

/// The row of a module, from the top.
fn row(rows: &[&[&str]], name: &str) -> Option<usize> {
    rows.iter().position(|row| row.contains(&name))
}

/// The part of the engine to which a module belongs.
fn engine_part<'a>(module: &'a [String], parts: &BTreeSet<String>) -> &'a str {
    module.get(1).filter(|name| parts.contains(*name)).map_or("mod", String::as_str)
}

/// The violations of the table, and the upward arrows of the engine that are allowed.
fn broken_arrows(sources: &[Source]) -> (Vec<String>, BTreeSet<(String, String)>) {
    let modules: Vec<Vec<String>> = sources.iter().map(|source| module_of(&source.path)).collect();
    let mut children: BTreeMap<&[String], BTreeSet<String>> = BTreeMap::new();
    for module in modules.iter().filter(|module| !module.is_empty()) {
        let (last, parent) = module.split_last().expect("not the root");
        children.entry(parent).or_default().insert(last.clone());
    }
    let tests: BTreeSet<Vec<String>> = modules
        .iter()
        .zip(sources)
        .flat_map(|(module, source)| {
            source.tests.iter().map(|file| [&module[..], std::slice::from_ref(file)].concat())
        })
        .collect();
    let of_engine = children.get(&["engine".to_string()][..]).cloned().unwrap_or_default();
    let (mut broken, mut permitted) = (Vec::new(), BTreeSet::new());
    for (Source { path, code, .. }, module) in sources.iter().zip(&modules) {
        let is_test = (1..=module.len()).any(|len| tests.contains(&module[..len]));
        let Some(room) = module.first().filter(|_| !is_test) else { continue };
        let Some(own) = row(ROWS, room) else {
            broken.push(format!("{path}: the table has no row for `{room}`"));
            continue;
        };
        let none = BTreeSet::new();
        for (line, target) in paths_of(code, module, children.get(&module[..]).unwrap_or(&none)) {
            let Some(to) = target.first() else { continue };
            let name = target.join("::");
            match row(ROWS, to) {
                None => broken
                    .push(format!("{path}:{line}: `crate::{name}` is not named by its module")),
                Some(row) if row < own => {
                    broken.push(format!("{path}:{line}: `{room}` is below `{to}` (crate::{name})"));
                }
                Some(_) if room == "engine" && to == "engine" => {
                    let (from, to) =
                        (engine_part(module, &of_engine), engine_part(&target, &of_engine));
                    match (row(ENGINE_ROWS, from), row(ENGINE_ROWS, to)) {
                        (Some(own), Some(row)) if row >= own || from == to => {}
                        (Some(_), Some(_))
                            if ENGINE_UPWARD.iter().any(|(a, b, _)| (*a, *b) == (from, to)) =>
                        {
                            permitted.insert((from.to_string(), to.to_string()));
                        }
                        _ => broken.push(format!(
                            "{path}:{line}: `engine::{from}` is below `engine::{to}` \
                             (crate::{name})"
                        )),
                    }
                }
                Some(_) => {}
            }
        }
    }
    (broken, permitted)
}

/// The arrows between rules that the table does not permit, and the permitted ones that exist.
fn rule_arrows(sources: &[Source]) -> (Vec<String>, BTreeSet<(String, String)>) {
    let rules = sources.iter().filter(|source| source.path.starts_with("src/rules/"));
    let (mut broken, mut permitted) = (Vec::new(), BTreeSet::new());
    for Source { path, code, .. } in rules {
        let module = module_of(path);
        let Some(own) = module.get(1) else { continue };
        for (line, target) in paths_of(code, &module, &BTreeSet::new()) {
            let [row, rule, ..] = &target[..] else { continue };
            if row != "rules" || rule == own {
                continue;
            }
            match RULE_ARROWS.iter().any(|(a, b, _)| (a, b) == (&own.as_str(), &rule.as_str())) {
                true => _ = permitted.insert((own.clone(), rule.clone())),
                false => broken.push(format!("{path}:{line}: `{own}` imports `{rule}`")),
            }
        }
    }
    (broken, permitted)
}

/// The folder of the crate's sources. None for tests, and for what is not a library or a program.
fn crate_of(path: &str) -> Option<&str> {
    let end = if path.starts_with("src/") { 3 } else { path.find("/src/")? + 4 };
    Some(&path[..end])
}

/// Whether a module exists only for tests or models.
fn is_for_tests(source: &Source, all: &[Source]) -> bool {
    let (folder, name) = source.path.rsplit_once('/').expect("a path in a folder");
    let stem = name.trim_end_matches(".rs");
    let above = |folder: &str| {
        let (parent, name) = folder.rsplit_once('/')?;
        let own = [format!("{folder}/mod.rs"), format!("{parent}/{name}.rs")];
        all.iter()
            .find(|other| own.contains(&other.path))
            .or_else(|| all.iter().find(|other| other.path == format!("{folder}/lib.rs")))
    };
    if source.path == SYNC_MODEL {
        return true;
    }
    let Some(parent) = above(folder) else { return false };
    if parent.path == source.path {
        return false;
    }
    parent.tests.iter().any(|test| test == stem) || is_for_tests(parent, all)
}

/// The type names that a crate declares more than once, each with its places.
fn types_declared_twice(sources: &[Source]) -> BTreeMap<(&str, &str), Vec<String>> {
    let mut found: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for source in sources {
        let Some(of) = crate_of(&source.path) else { continue };
        if is_for_tests(source, sources) {
            continue;
        }
        for (number, line) in source.code.lines().enumerate() {
            let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
            let kind = words.by_ref().find(|word| !word.ends_with(')'));
            let is_type = matches!(kind, Some("struct" | "enum" | "trait" | "union"));
            let Some(name) = words.next().filter(|_| is_type) else { continue };
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = &name[..end.unwrap_or(name.len())];
            found.entry((of, name)).or_default().push(format!("{}:{}", source.path, number + 1));
        }
    }
    found.retain(|_, places| places.len() > 1);
    found
}

fn long_lines<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in texts {
        for (number, columns) in text.lines().map(|line| line.chars().count()).enumerate() {
            if columns > COLUMNS_MAX {
                found.push(format!("{path}:{}: {columns} columns", number + 1));
            }
        }
    }
    found
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

// --- the tests -----------------------------------------------------------------------------------

#[test]
fn no_module_imports_from_a_row_above() {
    assert_none(&broken_arrows(sources()).0);
}

#[test]
fn no_rule_imports_another_but_as_listed() {
    let (broken, permitted) = rule_arrows(sources());
    assert_none(&broken);
    let listed: BTreeSet<_> =
        RULE_ARROWS.iter().map(|(a, b, _)| (a.to_string(), b.to_string())).collect();
    assert_eq!(permitted, listed, "remove the arrow that is gone from the table");
}

#[test]
fn a_planted_arrow_between_rules_is_found() {
    let text = "fn f() {}\nuse crate::rules::{flush::Ledger, marker};\n";
    let (broken, _) = rule_arrows(&[Source::new("src/rules/recovery.rs", text.into())]);
    assert_eq!(broken, ["src/rules/recovery.rs:2: `recovery` imports `flush`"]);
}

#[test]
fn each_permitted_upward_arrow_exists() {
    let (_, permitted) = broken_arrows(sources());
    let listed: BTreeSet<_> =
        ENGINE_UPWARD.iter().map(|(a, b, _)| (a.to_string(), b.to_string())).collect();
    assert_eq!(permitted, listed, "remove the arrow that is gone from the table");
    assert!(listed.len() <= 7, "find another way");
}

/// The sources of all crates, with their tests.
fn all_sources() -> Vec<Source> {
    let mut all = Vec::new();
    for folder in FOLDERS {
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), folder, &mut all);
    }
    assert!(all.len() > 300, "the sources of all crates");
    all
}

#[test]
fn a_type_name_means_one_thing_in_a_crate() {
    let all = all_sources();
    let twice = types_declared_twice(&all);
    let is_permitted = |(of, name): &(&str, &str)| {
        UNCHECKED.contains(of) || TYPES_TWICE.iter().any(|(a, b, _)| (a, b) == (of, name))
    };
    let problems: Vec<_> = twice
        .iter()
        .filter(|(it, _)| !is_permitted(it))
        .map(|((_, name), places)| format!("{name}: {}", places.join(", ")))
        .collect();
    assert_none(&problems);
    for (of, name, _) in TYPES_TWICE {
        let places = twice.get(&(*of, *name)).map(Vec::len);
        assert_eq!(places, Some(2), "{name} of {of}: remove it from the table, or rename one");
    }
}

#[test]
fn a_planted_second_type_of_a_name_is_found() {
    let text = "pub(crate) enum Core<T> {}\n#[cfg(test)]\nmod tests {\n    struct Planted;\n}\n";
    let mut sources = sources().to_vec();
    sources.push(Source::new("src/engine/planted.rs", text.into()));
    let twice = types_declared_twice(&sources);
    assert_eq!(twice[&("src", "Core")].len(), 2);
    assert!(!twice.contains_key(&("src", "Planted")));
}

#[test]
fn no_line_is_too_long() {
    let all = all_sources();
    assert_none(&long_lines(all.iter().map(|source| (&*source.path, &*source.text))));
}

/// The violations in the sources with one more file.
fn with_planted(path: &str, text: &str) -> Vec<String> {
    let mut sources: Vec<_> =
        sources().iter().filter(|source| source.path != path).cloned().collect();
    sources.push(Source::new(path, text.into()));
    broken_arrows(&sources).0
}

#[test]
fn a_planted_upward_arrow_is_found() {
    let cases = [
        ("src/sync/planted.rs", "\nuse crate::sys::probe::Facts;\n", 2),
        ("src/rules/planted.rs", "fn f() {\n    crate::engine::part_of();\n}\n", 2),
        (
            "src/backend/planted.rs",
            "use crate::{\n    buffer::Buffer,\n    engine::{io, queue::Driver},\n};\n",
            3,
        ),
        ("src/open/planted.rs", "use super::super::api::file::File;\n", 1),
        ("src/engine/planted.rs", "use crate::Stats;\n", 1),
        ("src/engine/truncate.rs", "use super::recover::look;\n", 1),
        ("src/engine/core/planted.rs", "use super::super::Engine;\n", 1),
        ("src/planted.rs", "", 0),
    ];
    for (path, text, line) in cases {
        let found = with_planted(path, text);
        let place = if line > 0 { format!("{path}:{line}: ") } else { format!("{path}: ") };
        assert!(found.iter().any(|problem| problem.starts_with(&place)), "{path}: {found:?}");
    }
}

#[test]
fn comments_literals_and_tests_are_no_arrows() {
    let text = r##"
        //! See [`crate::api`], 'crate::api'.
        /* crate::api::file */
        const TEXT: &str = "\"crate::api::file::File";
        const RAW: &str = r#"crate::api::"file"#;
        const QUOTE: char = '"';
        pub(in crate::sync) fn f<'a>(text: &'a str) -> crate::error::Result<char> { Ok('\'') }
        #[cfg(test)]
        mod tests {
            use crate::api::file::File;
            mod inner {}
        }
    "##;
    assert_none(&with_planted("src/sync/planted.rs", text));
}

#[test]
fn a_planted_long_line_is_found() {
    let line = |columns: usize| format!("fn f() {{}}\n//{}\n", "ä".repeat(columns - 2));
    let planted = |columns| long_lines([("src/planted.rs", line(columns).as_str())]);
    assert!(planted(COLUMNS_MAX).is_empty());
    assert_eq!(
        planted(COLUMNS_MAX + 1),
        [format!("src/planted.rs:2: {} columns", COLUMNS_MAX + 1)]
    );
}
