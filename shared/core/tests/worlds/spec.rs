//! What a world is made of: rules as their authors write them, and what people do. Descriptions only; what they mean is told by
//! [`super::select`], [`super::render`] and [`super::tables`].

use std::{cell::OnceCell, fmt};

use mimeo_api::ClusterReplicationSpec;
use serde_json::{Value, json};

use super::server::{Key, Res};

/// A regular expression, as a tree, so that what it matches needs no engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Text(&'static str),
    Digits,
    Rest,
    All(Vec<Pattern>),
    Either(Vec<Pattern>),
}

impl Pattern {
    /// Alternatives have no group around them where nothing is beside them: what must match is the whole of a name all the same.
    fn text(&self) -> String {
        let join = |parts: &[Self], by: &str| parts.iter().map(Self::text).collect::<Vec<_>>().join(by);
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Digits => "[0-9]+".to_owned(),
            Self::Rest => ".*".to_owned(),
            Self::All(parts) => parts
                .iter()
                .map(|part| if matches!(part, Self::Either(_)) { format!("({})", part.text()) } else { part.text() })
                .collect(),
            Self::Either(parts) => join(parts, "|"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub labels: Vec<(&'static str, &'static str)>,
    pub expressions: Vec<(&'static str, Op, Vec<&'static str>)>,
}

impl Selector {
    fn json(&self) -> Value {
        let labels: serde_json::Map<String, Value> =
            self.labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let expression = |(key, op, values): &(&str, Op, Vec<&str>)| match op {
            Op::In | Op::NotIn => json!({"key": key, "operator": format!("{op:?}"), "values": values}),
            Op::Exists | Op::DoesNotExist => json!({"key": key, "operator": format!("{op:?}")}),
        };
        json!({"matchLabels": labels, "matchExpressions": self.expressions.iter().map(expression).collect::<Vec<_>>()})
    }
}

/// How a target selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    Names(Vec<&'static str>),
    Pattern(Pattern),
    Selector(Selector),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclude {
    pub names: Vec<&'static str>,
    pub pattern: Option<Pattern>,
    pub selector: Option<Selector>,
}

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
    fn text(&self) -> String {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub by: By,
    pub exclude: Option<Exclude>,
    pub name: Option<Text>,
}

impl Target {
    fn json(&self) -> Value {
        let mut target = match &self.by {
            By::Names(names) => json!({"namespaces": names}),
            By::Pattern(pattern) => json!({"namespacePattern": pattern.text()}),
            By::Selector(selector) => json!({"namespaceSelector": selector.json()}),
        };
        if let Some(Exclude { names, pattern, selector }) = &self.exclude {
            let mut exclude = json!({});
            if !names.is_empty() {
                exclude["namespaces"] = json!(names);
            }
            if let Some(pattern) = pattern {
                exclude["namespacePattern"] = pattern.text().into();
            }
            if let Some(selector) = selector {
                exclude["namespaceSelector"] = selector.json();
            }
            target["exclude"] = exclude;
        }
        if let Some(name) = &self.name {
            target["name"] = name.text().into();
        }
        target
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
    fn json(&self) -> Value {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Apply,
    Replace,
    CreateOnce,
}

/// `conflictPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Fail,
    Adopt,
    Overwrite,
}

/// `Delete` or `Retain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    #[default]
    Delete,
    Retain,
}

/// `retentionPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    pub rule_deleted: Keep,
    pub unmatched: Keep,
    pub source_deleted: Keep,
}

/// The spec of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    pub sources: Vec<Key>,
    pub targets: Vec<Target>,
    pub transform: Transform,
    pub strategy: Strategy,
    pub conflict: Policy,
    pub retention: Retention,
    /// Seconds.
    pub grace: u32,
    pub suspend: bool,
    pub typed: Typed,
}

/// What a spec is once it was read; says nothing that the spec doesn't.
#[derive(Default)]
pub struct Typed(OnceCell<Box<ClusterReplicationSpec>>);

impl Clone for Typed {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Typed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Typed {}

impl fmt::Debug for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl RuleSpec {
    /// All authors are known, and may: as the programs of the simulation ask.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    pub fn author_may(&self) -> Option<bool> {
        Some(true)
    }

    /// As the API server shows it, which is asked for often.
    pub fn typed(&self) -> ClusterReplicationSpec {
        let typed = || Box::new(serde_json::from_value(self.json()).expect("the CRD's schema lets it pass"));
        (**self.typed.0.get_or_init(typed)).clone()
    }

    fn json(&self) -> Value {
        let source = |key: &Key| {
            let gvk = key.res.gvk();
            json!({"apiVersion": gvk.api_version(), "kind": *gvk.kind, "namespace": key.namespace, "name": key.name})
        };
        let mut spec = json!({
            "sources": self.sources.iter().map(source).collect::<Vec<_>>(),
            "targets": self.targets.iter().map(Target::json).collect::<Vec<_>>(),
            "transform": self.transform.json(),
            "strategy": format!("{:?}", self.strategy),
            "conflictPolicy": format!("{:?}", self.conflict),
            "suspend": self.suspend,
        });
        // Not with CreateOnce, whose copies always stay.
        if self.strategy != Strategy::CreateOnce {
            let Retention { rule_deleted, unmatched, source_deleted } = self.retention;
            spec["retentionPolicy"] = json!({
                "whenRuleDeleted": format!("{rule_deleted:?}"),
                "whenUnmatched": format!("{unmatched:?}"),
                "whenSourceDeleted": format!("{source_deleted:?}"),
                "sourceGracePeriodSeconds": self.grace,
            });
        }
        spec
    }
}

/// Fields of an object by their paths, as the server has them: `data/k`, `label/k`, `ann/k`, `type`.
pub type Fields = Vec<(String, String)>;

/// One of the places that rules want or have wanted, or where somebody else put something: counted through, as there are then.
pub type Nth = usize;

/// Something that somebody does. What is impossible comes to nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Creates or relabels.
    Namespace(&'static str, Vec<(&'static str, &'static str)>),
    /// Begins to delete.
    EndNamespace(&'static str),
    /// Ends what terminates.
    Reap(&'static str),
    /// Creates or edits.
    Source(Key, Fields),
    DeleteSource(Key),
    /// Creates or edits.
    Rule(&'static str, Box<RuleSpec>),
    DeleteRule(&'static str),
    /// Lifts `suspend` or sets it.
    Suspend(&'static str),
    /// Creates an object of somebody else's, with what is here; or with a copy's own content.
    Foreign(Nth, Option<Fields>, Fields),
    /// Sets a field of what is there, or removes it.
    Edit(Nth, String, Option<String>),
    Delete(Nth),
    /// Removes the finalizers.
    Release(Nth),
    /// Makes it somebody else's: `managedFields` without Mimeo.
    Disown(Nth),
    /// Clears `managedFields`.
    Clear(Nth),
    /// Another tool comes to own, by the same values, all that is in it.
    Share(Nth),
    Restart,
}

/// A world and its history: what happens in one step happens before anybody looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Story(pub Vec<Vec<Event>>);

/// The kinds that copies are of here.
pub const KINDS: [Res; 3] = [Res::Secret, Res::ConfigMap, Res::Widget];
