//! Label selectors, with the meaning that they have for the API server.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::Labels;
use crate::{refusal::Refusals, syntax};

/// A compiled `LabelSelector`. As for the API server, every requirement must hold, and a selector
/// without requirements selects everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    pub(super) requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Requirement {
    pub(super) key: Box<str>,
    pub(super) test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Test {
    In(BTreeSet<Box<str>>),
    NotIn(BTreeSet<Box<str>>),
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Compiles `selector`, and refuses the same selectors as the API server. Refusals name fields
    /// below `field`.
    pub fn parse(selector: &LabelSelector, field: &str, refusals: &mut Refusals) -> Self {
        let LabelSelector {
            match_labels,
            match_expressions,
        } = selector;
        let mut requirements = Vec::new();
        for (key, value) in match_labels.iter().flatten() {
            let field = format!("{field}.matchLabels[{key}]");
            refusals.one(&field, syntax::qualified_name(key));
            refusals.one(&field, syntax::label_value(value));
            requirements.push(Requirement {
                key: key.as_str().into(),
                test: Test::In([value.as_str().into()].into()),
            });
        }
        for (i, expression) in match_expressions.iter().flatten().enumerate() {
            let field = format!("{field}.matchExpressions[{i}]");
            refusals.one(
                &format!("{field}.key"),
                syntax::qualified_name(&expression.key),
            );
            requirements.push(Requirement {
                key: expression.key.as_str().into(),
                test: Test::parse(expression, &field, refusals),
            });
        }
        Self { requirements }
    }

    /// True if it selects an object with these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_by(|key| labels.get(key))
    }

    /// True if it selects an object. `label` returns the value of a label by its key.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|Requirement { key, test }| test.passes(label(key)))
    }

    /// True if it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The selector as the query of a list or a watch: `a in (b,c),d,!e`. Keys and values contain
    /// nothing to escape.
    pub fn to_query(&self) -> String {
        self.requirements
            .iter()
            .map(Requirement::to_query)
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl Requirement {
    pub(super) fn to_query(&self) -> String {
        let key = &self.key;
        let list = |values: &BTreeSet<Box<str>>| {
            let values: Vec<&str> = values.iter().map(|value| &**value).collect();
            values.join(",")
        };
        match &self.test {
            Test::In(values) => format!("{key} in ({})", list(values)),
            Test::NotIn(values) => format!("{key} notin ({})", list(values)),
            Test::Exists => key.to_string(),
            Test::DoesNotExist => format!("!{key}"),
        }
    }
}

impl Test {
    /// A test with an unknown operator counts as `Exists`: it is refused, so this has no effect.
    fn parse(expression: &LabelSelectorRequirement, field: &str, refusals: &mut Refusals) -> Self {
        let LabelSelectorRequirement {
            key: _,
            operator,
            values,
        } = expression;
        let at_values = format!("{field}.values");
        let values: BTreeSet<Box<str>> = values
            .iter()
            .flatten()
            .map(|value| value.as_str().into())
            .collect();
        for value in &values {
            refusals.one(&at_values, syntax::label_value(value));
        }
        let is_empty = values.is_empty();
        let (test, needs_none) = match operator.as_str() {
            "In" => (Self::In(values), false),
            "NotIn" => (Self::NotIn(values), false),
            "Exists" => (Self::Exists, true),
            "DoesNotExist" => (Self::DoesNotExist, true),
            _ => {
                refusals.add(
                    format!("{field}.operator"),
                    "must be one of In, NotIn, Exists and DoesNotExist",
                );
                return Self::Exists;
            }
        };
        if needs_none != is_empty {
            let must = if needs_none {
                "must be empty"
            } else {
                "must not be empty"
            };
            refusals.add(at_values, format!("{must} for operator {operator}"));
        }
        test
    }

    pub(super) fn passes(&self, value: Option<&str>) -> bool {
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
        }
    }

    /// A value that passes, if a label must be set.
    pub(super) fn example(&self) -> Option<&str> {
        match self {
            Self::In(values) => values.first().map(|value| &**value),
            Self::Exists => Some("true"),
            Self::NotIn(_) | Self::DoesNotExist => None,
        }
    }
}
