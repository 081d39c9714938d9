//! The settings in the environment.

use glob::Pattern;
use std::env;
use std::path::Path;

/// The variables of `docs/preload.md`.
#[derive(Debug, Default)]
pub struct Settings {
    /// Patterns of the paths to take. Empty: all paths.
    globs: Vec<Pattern>,
    /// Block devices too.
    pub devices: bool,
    /// Take files over at open.
    pub eager: bool,
    /// Print a summary at exit.
    pub stats: bool,
    /// The largest growth step, in bytes. None: the default of the engine.
    pub growth_cap: Option<u64>,
}

impl Settings {
    /// Fails with the invalid variable and its valid values.
    pub fn from_environment() -> Result<Self, String> {
        Self::from_variables(|name| match env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8")),
        })
    }

    fn from_variables(
        variable: impl Fn(&str) -> Result<Option<String>, String>,
    ) -> Result<Self, String> {
        let is_set = |name: &str| match variable(name)?.as_deref() {
            None | Some("" | "0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(format!("{name}={other} is not understood: 0 or 1")),
        };
        let globs = variable("DIOXIDE_MATCH")?.unwrap_or_default();
        let globs = globs.split(':').filter(|glob| !glob.is_empty()).map(|glob| {
            Pattern::new(glob)
                .map_err(|error| format!("DIOXIDE_MATCH: {glob} is no pattern: {}", error.msg))
        });
        let growth_cap = match variable("DIOXIDE_GROWTH_CAP")? {
            Some(size) if !size.is_empty() => Some(bytes(&size).ok_or_else(|| {
                format!("DIOXIDE_GROWTH_CAP={size} is not understood: a size such as 64M or 1G")
            })?),
            _ => None,
        };
        Ok(Self {
            globs: globs.collect::<Result<_, _>>()?,
            devices: is_set("DIOXIDE_DEVICES")?,
            eager: is_set("DIOXIDE_EAGER")?,
            stats: is_set("DIOXIDE_STATS")?,
            growth_cap,
        })
    }

    /// Whether patterns select the paths.
    pub fn has_globs(&self) -> bool {
        !self.globs.is_empty()
    }

    /// Whether the path matches. A pattern without a slash applies to the file name.
    pub fn wants(&self, path: &Path) -> bool {
        let name = path.file_name().map(Path::new);
        self.globs.is_empty()
            || self.globs.iter().any(|glob| match glob.as_str().contains('/') {
                true => glob.matches_path(path),
                false => name.is_some_and(|name| glob.matches_path(name)),
            })
    }
}

/// Parses a size: `64M` is 64 MiB. None for zero, or if it is no size.
fn bytes(size: &str) -> Option<u64> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match size[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::from_variables(|name| {
            Ok(variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.to_string()))
        })
    }

    #[test]
    fn without_variables_every_file_is_wanted_and_no_device() {
        let settings = of(&[]).unwrap();
        assert!(settings.wants(Path::new("/any/thing")) && !settings.has_globs());
        assert!(!settings.devices && !settings.eager && !settings.stats);
        assert_eq!(settings.growth_cap, None);
    }

    #[test]
    fn a_pattern_with_a_slash_is_for_paths_and_one_without_for_names() {
        let settings = of(&[("DIOXIDE_MATCH", "*.log:/data/*/wal*:")]).unwrap();
        for wanted in ["/a/b.log", "b.log", "/data/7/wal.3"] {
            assert!(settings.wants(Path::new(wanted)), "{wanted}");
        }
        for left in ["/a/b.logs", "/data/wal.3", "/b.log/x"] {
            assert!(!settings.wants(Path::new(left)), "{left}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_said() {
        for (name, value) in [
            ("DIOXIDE_DEVICES", "maybe"),
            ("DIOXIDE_STATS", "yes"),
            ("DIOXIDE_EAGER", "2"),
            ("DIOXIDE_MATCH", "/a/[b"),
            ("DIOXIDE_GROWTH_CAP", "big"),
            ("DIOXIDE_GROWTH_CAP", "0"),
            ("DIOXIDE_GROWTH_CAP", "99999999999G"),
        ] {
            let why = of(&[(name, value)]).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(of(&[("DIOXIDE_GROWTH_CAP", "64M")]).unwrap().growth_cap, Some(64 << 20));
        assert_eq!(of(&[("DIOXIDE_GROWTH_CAP", "4096")]).unwrap().growth_cap, Some(4096));
        assert_eq!(of(&[("DIOXIDE_GROWTH_CAP", "")]).unwrap().growth_cap, None);
    }
}
