//! Differences between copies and their sources.

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
    /// A `$(…)` with the name of no known variable.
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

/// A value that a patch puts in, or compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worth {
    Text(Text),
    Number(u8),
    List(Vec<Worth>),
    Fields(Vec<(&'static str, Worth)>),
}

impl Worth {
    /// Returns the value with each text replaced by the result of `show`.
    pub fn map<E>(&self, show: &impl Fn(&Text) -> Result<String, E>) -> Result<Value, E> {
        Ok(match self {
            Self::Text(text) => show(text)?.into(),
            Self::Number(number) => (*number).into(),
            Self::List(items) => items
                .iter()
                .map(|item| item.map(show))
                .collect::<Result<Vec<_>, _>>()?
                .into(),
            Self::Fields(fields) => {
                let field =
                    |(name, worth): &(&str, Self)| Ok(((*name).to_owned(), worth.map(show)?));
                fields
                    .iter()
                    .map(field)
                    .collect::<Result<serde_json::Map<_, _>, _>>()?
                    .into()
            }
        })
    }

    pub fn texts(&self) -> Vec<&Text> {
        match self {
            Self::Text(text) => vec![text],
            Self::Number(_) => Vec::new(),
            Self::List(items) => items.iter().flat_map(Self::texts).collect(),
            Self::Fields(fields) => fields.iter().flat_map(|(_, worth)| worth.texts()).collect(),
        }
    }
}

/// One operation of a JSON Patch. Paths are JSON pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Add(&'static str, Worth),
    Remove(&'static str),
    Replace(&'static str, Worth),
    /// Moves a value from the first path to the second.
    Move(&'static str, &'static str),
    /// Copies a value from the first path to the second.
    Copy(&'static str, &'static str),
    Test(&'static str, Worth),
}

impl Operation {
    /// Returns the paths that the operation reads or changes.
    pub fn paths(&self) -> Vec<&'static str> {
        match self {
            Self::Add(path, _)
            | Self::Remove(path)
            | Self::Replace(path, _)
            | Self::Test(path, _) => vec![path],
            Self::Move(from, path) | Self::Copy(from, path) => vec![from, path],
        }
    }

    pub fn worth(&self) -> Option<&Worth> {
        match self {
            Self::Add(_, worth) | Self::Replace(_, worth) | Self::Test(_, worth) => Some(worth),
            Self::Remove(_) | Self::Move(..) | Self::Copy(..) => None,
        }
    }

    fn json(&self) -> Value {
        let as_written = |worth: &Worth| {
            let Ok(value) = worth.map(&|text| Ok::<_, std::convert::Infallible>(text.text()));
            value
        };
        match self {
            Self::Add(path, worth) => {
                json!({"op": "add", "path": path, "value": as_written(worth)})
            }
            Self::Remove(path) => json!({"op": "remove", "path": path}),
            Self::Replace(path, worth) => {
                json!({"op": "replace", "path": path, "value": as_written(worth)})
            }
            Self::Move(from, path) => json!({"op": "move", "from": from, "path": path}),
            Self::Copy(from, path) => json!({"op": "copy", "from": from, "path": path}),
            Self::Test(path, worth) => {
                json!({"op": "test", "path": path, "value": as_written(worth)})
            }
        }
    }
}

/// The labels or annotations that are kept, and those that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    pub include: Option<Vec<&'static str>>,
    pub exclude: Vec<&'static str>,
    pub set: Vec<(&'static str, Text)>,
}

/// The keys of the data that are kept, and their new names.
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
    pub patch: Vec<Operation>,
}

impl Transform {
    pub fn json(&self) -> Value {
        let mut transform = json!({});
        if let Some(type_) = self.type_ {
            transform["type"] = type_.into();
        }
        let keys = |Keys {
                        include,
                        exclude,
                        set,
                    }: &Keys| {
            let set: serde_json::Map<String, Value> = set
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.text().into()))
                .collect();
            let mut keys = json!({"exclude": exclude, "set": set});
            if let Some(include) = include {
                keys["include"] = json!(include);
            }
            keys
        };
        transform["labels"] = keys(&self.labels);
        transform["annotations"] = keys(&self.annotations);
        if self.data != Data::default() {
            let Data {
                include,
                exclude,
                rename,
            } = &self.data;
            let rename: serde_json::Map<String, Value> = rename
                .iter()
                .map(|(old, new)| ((*old).to_owned(), json!(new)))
                .collect();
            transform["data"] = json!({"exclude": exclude, "rename": rename});
            if let Some(include) = include {
                transform["data"]["include"] = json!(include);
            }
        }
        if !self.patch.is_empty() {
            transform["jsonPatch"] = self.patch.iter().map(Operation::json).collect();
        }
        transform
    }
}
