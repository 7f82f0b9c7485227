//! Which rules an object has come through. A copy may be a source again, but no selector takes what has come through its own
//! rule: copies of copies would have no end.

use serde_json::Value;

use crate::{meta::Checksum, names, rule::RuleId};

/// Most rules that an object may have come through for a selector to take it.
const LONGEST: usize = 8;

/// The rules that an object has come through, the nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// These; none if it is no copy.
    Known(Vec<RuleId>),
    /// It is a copy that doesn't say whose: somebody took its marks off.
    Lost,
}

impl Lineage {
    /// Of the object with this metadata.
    pub fn of(metadata: Option<&Value>) -> Self {
        let metadata = metadata.unwrap_or(&Value::Null);
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        let Some(rule) = annotation(names::RULE) else {
            return if is_ours(metadata) { Self::Lost } else { Self::Known(vec![]) };
        };
        let rules = std::iter::once(rule).chain(annotation(names::VIA).into_iter().flat_map(|via| via.split(',')));
        let rules: Result<Vec<RuleId>, _> = rules.take(LONGEST).map(str::parse).collect();
        rules.map_or(Self::Lost, Self::Known)
    }

    /// Whether a selector of that rule may take the object.
    pub fn admits(&self, rule: &RuleId) -> bool {
        match self {
            Self::Known(rules) => rules.len() < LONGEST && !rules.contains(rule),
            Self::Lost => false,
        }
    }

    /// Value of [`names::VIA`] on copies of the object; none where there is nothing to tell.
    pub fn annotation(&self) -> Option<String> {
        match self {
            Self::Known(rules) if !rules.is_empty() => {
                Some(rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            Self::Known(_) | Self::Lost => None,
        }
    }
}

/// A lineage in little room: enough to say whom it admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kin(Option<Box<[u64]>>);

impl From<&Lineage> for Kin {
    fn from(lineage: &Lineage) -> Self {
        Self(match lineage {
            Lineage::Known(rules) if rules.len() < LONGEST => Some(rules.iter().map(hash).collect()),
            Lineage::Known(_) | Lineage::Lost => None,
        })
    }
}

impl Kin {
    /// As [`Lineage::admits`].
    pub fn admits(&self, rule: &RuleId) -> bool {
        self.0.as_ref().is_some_and(|rules| rules.is_empty() || !rules.contains(&hash(rule)))
    }
}

fn hash(rule: &RuleId) -> u64 {
    Checksum::of(rule.to_string().as_bytes()).short()
}

fn is_ours(metadata: &Value) -> bool {
    let entries = metadata["managedFields"].as_array();
    entries.into_iter().flatten().any(|entry| {
        let whole = entry["subresource"].as_str().is_none_or(str::is_empty);
        entry["manager"] == names::MANAGER && entry["operation"] == "Apply" && whole
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_admitted_by_rules_that_it_has_not_come_through() {
        let marked = |marks: Value, ours: bool| {
            let entry = json!({"manager": "mimeo", "operation": "Apply"});
            let entries = if ours { json!([entry]) } else { json!([]) };
            json!({"annotations": marks, "managedFields": entries})
        };
        let a: RuleId = "ClusterReplication/a".parse().unwrap();
        let via = |count: usize| vec!["ClusterReplication/x"; count].join(",");
        for (metadata, admitted, told) in [
            (json!({}), true, None),
            (
                marked(json!({"mimeo.dev/rule": "ClusterReplication/b"}), true),
                true,
                Some("ClusterReplication/b".into()),
            ),
            (
                marked(json!({"mimeo.dev/rule": "ClusterReplication/a"}), true),
                false,
                Some("ClusterReplication/a".into()),
            ),
            (
                marked(
                    json!({"mimeo.dev/rule": "ClusterReplication/b", "mimeo.dev/via": "ClusterReplication/a"}),
                    true,
                ),
                false,
                Some("ClusterReplication/b,ClusterReplication/a".to_owned()),
            ),
            (
                marked(json!({"mimeo.dev/rule": "ClusterReplication/x", "mimeo.dev/via": via(6)}), true),
                true,
                Some(via(7)),
            ),
            (
                marked(json!({"mimeo.dev/rule": "ClusterReplication/x", "mimeo.dev/via": via(9)}), true),
                false,
                Some(via(8)),
            ),
            (marked(json!({}), true), false, None),
            (marked(json!({}), false), true, None),
            (marked(json!({"mimeo.dev/rule": "nonsense"}), false), false, None),
        ] {
            let lineage = Lineage::of(Some(&metadata));
            assert_eq!((lineage.admits(&a), lineage.annotation()), (admitted, told), "{metadata}");
            assert_eq!(Kin::from(&lineage).admits(&a), admitted, "{metadata}");
        }
    }
}
