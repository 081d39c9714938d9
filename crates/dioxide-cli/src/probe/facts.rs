//! Facts about a path, each with its source, or the reason why it is unknown. Values only.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// A known or unknown fact.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    pub topic: Topic,
    /// For programs, unique, with the unit at its end: `offset_bytes`.
    pub key: String,
    /// For people.
    pub name: String,
    /// The value, or why it is unknown.
    pub value: Told,
    /// The call, file or experiment, in a few words.
    pub how: String,
}

/// The value of a fact, or why it is unknown.
pub type Told = Result<Value, String>;

/// The topics of facts, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    FileSystem,
    File,
    Alignment,
    Durability,
    Abilities,
    Nowait,
    IoUring,
}

/// The value of a fact. Numbers have the unit at the end of its key, if any.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    YesNo(bool),
    Number(u64),
    Text(String),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::YesNo(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// Facts in the order of discovery. In JSON an object, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(Vec<Fact>);

impl Facts {
    /// Adds a fact, or the reason why it is unknown.
    pub fn tell<V: Into<Value>, E: fmt::Display>(
        &mut self,
        topic: Topic,
        key: &str,
        name: &str,
        value: Result<V, E>,
        how: impl Into<String>,
    ) {
        debug_assert!(self.find(key).is_none(), "{key} is told twice");
        let value = value.map(Into::into).map_err(|why| why.to_string());
        self.0.push(Fact { topic, key: key.into(), name: name.into(), value, how: how.into() });
    }

    /// Adds a fact that is always known.
    pub fn know(
        &mut self,
        topic: Topic,
        key: &str,
        name: &str,
        value: impl Into<Value>,
        how: impl Into<String>,
    ) {
        self.tell(topic, key, name, Ok::<Value, String>(value.into()), how);
    }

    /// The facts of one topic.
    pub fn about(&self, topic: Topic) -> impl Iterator<Item = &Fact> {
        self.0.iter().filter(move |fact| fact.topic == topic)
    }

    /// The unknown facts.
    pub fn untold(&self) -> impl Iterator<Item = (&Fact, &str)> {
        self.0.iter().filter_map(|fact| Some((fact, fact.value.as_ref().err()?.as_str())))
    }

    fn find(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|fact| fact.key == key)?.value.as_ref().ok()
    }

    /// Whether a fact is true. None if it is unknown.
    pub fn is(&self, key: &str) -> Option<bool> {
        match self.find(key)? {
            Value::YesNo(value) => Some(*value),
            _ => None,
        }
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        match self.find(key)? {
            Value::Number(value) => Some(*value),
            _ => None,
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.find(key)? {
            Value::Text(value) => Some(value),
            _ => None,
        }
    }
}

/// A fact in JSON, without its key.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Entry {
    topic: Topic,
    name: String,
    /// Null if unknown.
    value: Option<Value>,
    /// The reason if unknown.
    unknown: Option<String>,
    how: String,
}

impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|fact| {
            let Fact { topic, name, value, how, .. } = fact.clone();
            let unknown = value.as_ref().err().cloned();
            (&fact.key, Entry { topic, name, value: value.ok(), unknown, how })
        }))
    }
}

/// As an object of entries.
impl JsonSchema for Facts {
    fn schema_name() -> Cow<'static, str> {
        "Facts".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, Entry>::json_schema(generator)
    }
}

/// In order.
impl<'de> Deserialize<'de> for Facts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Facts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("facts by their keys")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Facts, A::Error> {
                let mut facts = Facts::default();
                while let Some((key, entry)) = map.next_entry::<String, Entry>()? {
                    let Entry { topic, name, value, unknown, how } = entry;
                    let value = value.ok_or(unknown.unwrap_or_default());
                    facts.0.push(Fact { topic, key, name, value, how });
                }
                Ok(facts)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut facts = Facts::default();
        facts.tell(Topic::Alignment, "offset_bytes", "offset", Ok::<_, String>(512u64), "statx");
        facts.tell(Topic::Abilities, "reflink", "reflink", Ok::<_, String>(false), "FICLONE");
        facts.tell(Topic::FileSystem, "journal", "journal", Err::<u64, _>("for root only"), "/sys");
        facts.tell(Topic::FileSystem, "file_system", "kind", Ok::<_, String>("ext4"), "/proc");
        facts
    }

    #[test]
    fn facts_are_read_back_in_their_order() {
        let text = serde_json::to_string(&facts()).unwrap();
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts(), "{text}");
    }

    #[test]
    fn keys_lead_to_values() {
        let facts = facts();
        assert_eq!((facts.number("offset_bytes"), facts.is("reflink")), (Some(512), Some(false)));
        assert_eq!((facts.text("file_system"), facts.text("journal")), (Some("ext4"), None));
        let untold: Vec<_> = facts.untold().map(|(fact, why)| (fact.key.as_str(), why)).collect();
        assert_eq!(untold, [("journal", "for root only")]);
        let json = serde_json::to_value(&facts).unwrap();
        assert_eq!(
            (&json["offset_bytes"]["value"], &json["reflink"]["value"]),
            (&512.into(), &false.into())
        );
        assert!(
            json["journal"]["value"].is_null() && json["journal"]["unknown"] == "for root only"
        );
    }
}
