//! Generates manual pages from a header of cbindgen, and from a Markdown document.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Heading of comments for Rust programmers; the text has the rules for C programs.
const NOT_FOR_C: &str = "Safety";

/// Sections of the document that require the source.
const NOT_IN_THE_MANUAL: &str = "Install";

/// A declaration with its comment.
pub struct Item {
    name: String,
    comment: String,
    code: String,
}

/// The declarations of a header, in order.
pub struct Header(Vec<Item>);

impl Header {
    /// The comments of the header begin and end on separate lines, before their declaration.
    pub fn parse(text: &str) -> Self {
        let mut items = Vec::new();
        for piece in text.split("\n/**\n").skip(1) {
            let (comment, rest) = piece.split_once("\n */\n").expect("a comment ends");
            let end = if rest.starts_with('#') { "\n" } else { ";\n\n" };
            let code = rest.split(end).next().unwrap_or_default().trim_end();
            let code = if rest.starts_with('#') {
                code.to_owned()
            } else {
                format!("{};", code.trim_end_matches(';'))
            };
            let comment =
                comment.lines().map(|line| line.trim_start_matches(" *").trim_start_matches(' '));
            let comment = comment.collect::<Vec<_>>().join("\n");
            items.push(Item { name: name_of(&code), comment, code });
        }
        Self(items)
    }

    /// The page of each function, and the overview, by name.
    pub fn pages(&self, document: &str, version: &str) -> BTreeMap<String, String> {
        let functions = || self.0.iter().filter(|item| item.is_function());
        let mut pages: BTreeMap<_, _> =
            functions().map(|item| (item.name.clone(), self.page_of(item, version))).collect();
        pages.insert("dioxide".into(), overview(functions(), document, version));
        pages
    }

    fn page_of(&self, function: &Item, version: &str) -> String {
        let mut page = head(&function.name, function.sentence(), version);
        page += &code(&function.code);
        let declared = self.mentioned_by(function);
        page += ".SH DESCRIPTION\n";
        let (text, sections) =
            function.comment.split_once("\n\n# ").unwrap_or((&function.comment, ""));
        page += &markdown(text);
        for section in sections.split("\n\n# ").filter(|section| !section.starts_with(NOT_FOR_C)) {
            let (title, text) = section.split_once('\n').unwrap_or((section, ""));
            if !title.is_empty() {
                write!(page, ".SH {}\n{}", title.to_uppercase(), markdown(text.trim())).unwrap();
            }
        }
        if !declared.is_empty() {
            page += ".SH DECLARATIONS\n";
            declared.iter().for_each(|item| page += &item.declaration());
        }
        page + ".SH SEE ALSO\n.BR dioxide (3)\n"
    }

    /// The structs and types of the function's parameters, and the constants in their members or
    /// the function's comment.
    fn mentioned_by(&self, function: &Item) -> Vec<&Item> {
        let named = |text: &str, item: &Item| words(text).any(|word| word == item.name);
        let types: Vec<_> =
            self.0.iter().filter(|item| item.is_type() && named(&function.code, item)).collect();
        let text = types.iter().fold(function.comment.clone(), |text, item| text + &item.code);
        let is_meant = |item: &&Item| item.is_constant() && named(&text, item);
        types.iter().copied().chain(self.0.iter().filter(is_meant)).collect()
    }
}

impl Item {
    fn is_constant(&self) -> bool {
        self.code.starts_with('#')
    }

    /// Whether it has a visible definition.
    fn is_type(&self) -> bool {
        self.code.starts_with("typedef")
            || self.code.starts_with("struct") && self.code.ends_with("};")
    }

    fn is_function(&self) -> bool {
        self.code.ends_with(");") && !self.is_type()
    }

    /// The first sentence of the comment, without its end.
    fn sentence(&self) -> String {
        let line = self.comment.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let end = line.find(": ").into_iter().chain(line.find(". ")).min().unwrap_or(line.len());
        line[..end].trim_end_matches('.').replace('`', "")
    }

    fn declaration(&self) -> String {
        code(&plain_comments(&self.code)) + &markdown(&self.comment)
    }
}

/// The comments of members, in the usual C style.
fn plain_comments(code: &str) -> String {
    code.replace("/**\n     * ", "/* ")
        .replace("\n     */\n", " */\n")
        .replace("\n     * ", "\n       ")
}

fn name_of(code: &str) -> String {
    let before = match code.strip_prefix("#define ") {
        Some(constant) => constant.split(' ').next(),
        None => code
            .split(['(', '{', ';'])
            .find(|part| !part.trim().is_empty() && *part != "typedef void "),
    };
    words(before.unwrap_or_default()).last().expect("a declaration has a name").to_owned()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn overview<'a>(
    functions: impl Iterator<Item = &'a Item>,
    document: &str,
    version: &str,
) -> String {
    let mut page =
        head("dioxide", "concurrent, durable, safe direct I/O (O_DIRECT)".into(), version);
    page += ".P\nBuilt with\n.BR \"cc program.c $(pkg-config \\-\\-cflags \\-\\-libs dioxide)\" \
        .\n.SH DESCRIPTION\n";
    let mut sections = document.split("\n## ");
    let (_, first) = sections
        .next()
        .and_then(|first| first.split_once("\n\n"))
        .expect("a title, and what it is");
    page += &markdown(first.trim());
    for section in sections.filter(|section| !section.starts_with(NOT_IN_THE_MANUAL)) {
        let (title, text) = section.split_once("\n\n").expect("a title, and its text");
        write!(page, ".SH {}\n{}", title.to_uppercase(), markdown(text.trim())).unwrap();
    }
    page += ".SH FUNCTIONS\n";
    for function in functions {
        write!(page, ".TP\n.BR {} (3)\n{}\n", function.name, escaped(&function.sentence()))
            .unwrap();
    }
    page
}

fn head(name: &str, sentence: String, version: &str) -> String {
    let what = sentence
        .chars()
        .next()
        .into_iter()
        .flat_map(char::to_lowercase)
        .chain(sentence.chars().skip(1));
    format!(
        ".\\\" Generated: see scripts/capi.\n\
         .TH {name} 3 \"\" \"dioxide {version}\" \"dioxide\"\n\
         .SH NAME\n{name} \\- {}\n\
         .SH SYNOPSIS\n.nf\n.B #include <dioxide.h>\n.fi\n",
        escaped(&what.collect::<String>())
    )
}

fn code(text: &str) -> String {
    let lines =
        text.lines().map(|line| format!("{}\n", guarded(&escaped(line).replace('-', "\\-"))));
    format!(".P\n.nf\n{}.fi\n", lines.collect::<String>())
}

/// Paragraphs, lists, and fenced code.
fn markdown(text: &str) -> String {
    let mut page = String::new();
    let mut lines = text.lines().peekable();
    let mut begins = true;
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let inside: Vec<_> =
                lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            page += &code(&inside.join("\n"));
            begins = true;
        } else if line.is_empty() {
            begins = true;
        } else if let Some(point) = line.strip_prefix("- ") {
            write!(page, ".IP \\(bu 2\n{}\n", flowing(point)).unwrap();
            begins = false;
        } else {
            if begins {
                page += ".P\n";
            }
            page += &(flowing(line) + "\n");
            begins = false;
        }
    }
    page
}

/// Text with `code` in bold, and the text of links.
fn flowing(line: &str) -> String {
    let mut text = String::new();
    for (number, piece) in unlinked(line.trim()).split('`').enumerate() {
        match number % 2 {
            1 => write!(text, "\\fB{}\\fP", escaped(piece).replace('-', "\\-")).unwrap(),
            _ => text += &escaped(piece),
        }
    }
    guarded(&text)
}

fn unlinked(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, (said, after))) =
        rest.split_once('[').and_then(|(before, link)| Some((before, link.split_once("](")?)))
    {
        text.extend([before, said]);
        rest = after.split_once(')').expect("a link ends").1;
    }
    text + rest
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('…', "\\&...")
}

/// Escapes a line that begins with a dot, which is not a command.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}
