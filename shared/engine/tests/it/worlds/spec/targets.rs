//! Targets: the namespaces that they select, and the names of the copies there.

use serde_json::{Value, json};

use super::Text;

/// A regular expression as a tree, so that its matches can be found without a regular-expression
/// engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    Text(&'static str),
    Digits,
    Rest,
    All(Vec<Pattern>),
    Either(Vec<Pattern>),
}

impl Pattern {
    /// Alternatives that stand alone have no group around them. They must match the whole of a name
    /// all the same.
    pub fn text(&self) -> String {
        let join =
            |parts: &[Self], by: &str| parts.iter().map(Self::text).collect::<Vec<_>>().join(by);
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Digits => "[0-9]+".to_owned(),
            Self::Rest => ".*".to_owned(),
            Self::All(parts) => parts
                .iter()
                .map(|part| {
                    if matches!(part, Self::Either(_)) {
                        format!("({})", part.text())
                    } else {
                        part.text()
                    }
                })
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
    pub fn json(&self) -> Value {
        let labels: serde_json::Map<String, Value> = self
            .labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let expression = |(key, op, values): &(&str, Op, Vec<&str>)| match op {
            Op::In | Op::NotIn => {
                json!({"key": key, "operator": format!("{op:?}"), "values": values})
            }
            Op::Exists | Op::DoesNotExist => json!({"key": key, "operator": format!("{op:?}")}),
        };
        json!({"matchLabels": labels, "matchExpressions": self.expressions.iter().map(expression).collect::<Vec<_>>()})
    }
}

/// How a target selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The namespace of the rule. It is the target of a rule without targets.
    Home(&'static str),
    Names(Vec<&'static str>),
    Pattern(Pattern),
    Selector(Selector),
}

impl By {
    pub fn json(&self) -> Value {
        match self {
            Self::Home(home) => json!({"namespaces": [home]}),
            Self::Names(names) => json!({"namespaces": names}),
            Self::Pattern(pattern) => json!({"namespacePattern": pattern.text()}),
            Self::Selector(selector) => json!({"namespaceSelector": selector.json()}),
        }
    }

    /// Returns the namespaces that the target names, if it names any.
    pub fn exact(&self) -> &[&'static str] {
        match self {
            Self::Home(home) => std::slice::from_ref(home),
            Self::Names(names) => names,
            Self::Pattern(_) | Self::Selector(_) => &[],
        }
    }
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct All {
    pub names: Vec<&'static str>,
    pub pattern: Option<Pattern>,
    pub selector: Option<Selector>,
}

impl All {
    pub fn json(&self) -> Value {
        let mut all = json!({});
        if !self.names.is_empty() {
            all["namespaces"] = json!(self.names);
        }
        if let Some(pattern) = &self.pattern {
            all["namespacePattern"] = pattern.text().into();
        }
        if let Some(selector) = &self.selector {
            all["namespaceSelector"] = selector.json();
        }
        all
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub by: By,
    /// Further conditions, of another sort than `by`.
    pub and: All,
    pub name: Option<Text>,
}

impl Target {
    pub fn json(&self) -> Value {
        let mut target = self.by.json();
        for (field, value) in self.and.json().as_object().into_iter().flatten() {
            target[field] = value.clone();
        }
        if let Some(name) = &self.name {
            target["copyName"] = name.text().into();
        }
        target
    }
}
