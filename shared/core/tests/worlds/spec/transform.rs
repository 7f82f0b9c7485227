//! How copies differ from their sources.

use serde_json::{Value, json};

/// A piece of a text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(&'static str),
    SourceName,
    SourceNamespace,
    NamespaceName,
    NamespaceLabel(&'static str),
    /// `$(…)` that is no variable.
    Literal(&'static str),
    /// What would be a variable, if there were one of that name.
    Unknown(&'static str),
}

/// A text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub Vec<Piece>);

impl Text {
    pub fn text(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::SourceName => "$(source.name)".to_owned(),
            Piece::SourceNamespace => "$(source.namespace)".to_owned(),
            Piece::NamespaceName => "$(namespace.name)".to_owned(),
            Piece::NamespaceLabel(key) => format!("$(namespace.labels['{key}'])"),
            Piece::Literal(text) | Piece::Unknown(text) => format!("$({text})"),
        };
        self.0.iter().map(piece).collect()
    }
}

/// Which labels or annotations are kept, and which are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub include: Option<Vec<&'static str>>,
    pub exclude: Vec<&'static str>,
    pub set: Vec<(&'static str, Text)>,
}

/// Which keys of the data are kept, and under which names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    pub include: Option<Vec<&'static str>>,
    pub exclude: Vec<&'static str>,
    pub rename: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transform {
    pub type_: Option<&'static str>,
    pub labels: Keys,
    pub annotations: Keys,
    pub data: Data,
}

impl Transform {
    pub fn json(&self) -> Value {
        let mut transform = json!({});
        if let Some(type_) = self.type_ {
            transform["type"] = type_.into();
        }
        let keys = |Keys { include, exclude, set }: &Keys| {
            let set: serde_json::Map<String, Value> =
                set.iter().map(|(key, value)| ((*key).to_owned(), value.text().into())).collect();
            let mut keys = json!({"exclude": exclude, "set": set});
            if let Some(include) = include {
                keys["include"] = json!(include);
            }
            keys
        };
        transform["labels"] = keys(&self.labels);
        transform["annotations"] = keys(&self.annotations);
        if self.data != Data::default() {
            let Data { include, exclude, rename } = &self.data;
            let rename: serde_json::Map<String, Value> =
                rename.iter().map(|(old, new)| ((*old).to_owned(), json!(new))).collect();
            transform["data"] = json!({"exclude": exclude, "rename": rename});
            if let Some(include) = include {
                transform["data"]["include"] = json!(include);
            }
        }
        transform
    }
}
