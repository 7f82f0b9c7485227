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

/// A test of a label's value. Each operator is one of two positive tests, or its opposite.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Test {
    /// The values of `In` and `NotIn`. `None` for `Exists` and `DoesNotExist`.
    values: Option<BTreeSet<Box<str>>>,
    /// True for `NotIn` and `DoesNotExist`.
    negative: bool,
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
                test: Test {
                    values: Some([value.as_str().into()].into()),
                    negative: false,
                },
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

    /// The selector as the query of a list or a watch: `a=b,c in (d,e),f,!g`. Keys and values
    /// contain nothing to escape.
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
        let Self {
            key,
            test: Test { values, negative },
        } = self;
        let values: Option<Vec<&str>> = values
            .as_ref()
            .map(|values| values.iter().map(|value| &**value).collect());
        match (values.as_deref(), negative) {
            (Some([value]), false) => format!("{key}={value}"),
            (Some(values), false) => format!("{key} in ({})", values.join(",")),
            (Some(values), true) => format!("{key} notin ({})", values.join(",")),
            (None, false) => key.to_string(),
            (None, true) => format!("!{key}"),
        }
    }
}

impl Test {
    /// An unknown operator is refused, so the test that it becomes has no effect.
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
        let (takes_values, negative) = match operator.as_str() {
            "In" => (true, false),
            "NotIn" => (true, true),
            "Exists" => (false, false),
            "DoesNotExist" => (false, true),
            _ => {
                refusals.add(
                    format!("{field}.operator"),
                    "must be one of In, NotIn, Exists and DoesNotExist",
                );
                (!values.is_empty(), false)
            }
        };
        if takes_values == values.is_empty() {
            let not = if takes_values { "not " } else { "" };
            refusals.add(
                at_values,
                format!("must {not}be empty for operator {operator}"),
            );
        }
        Self {
            values: takes_values.then_some(values),
            negative,
        }
    }

    pub(super) fn passes(&self, value: Option<&str>) -> bool {
        let values = self.values.as_ref();
        let allowed = |value| values.is_none_or(|values| values.contains(value));
        value.is_some_and(allowed) != self.negative
    }

    /// A value that passes, if a label must be set.
    pub(super) fn example(&self) -> Option<&str> {
        let first = match &self.values {
            Some(values) => values.first().map(|value| &**value),
            None => Some("true"),
        };
        first.filter(|_| !self.negative)
    }
}
