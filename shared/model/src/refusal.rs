//! The reasons why Mimeo refuses a rule, a grant or a policy.

use crate::{
    kind::{GroupVersionKind, Served},
    syntax::Check,
};

/// Most `sources` items of one rule, and most targets.
pub(crate) const ITEMS: usize = 32;

/// One reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Refusal {
    /// Path of the field, as in `spec.targets[0].namespacePattern`.
    pub field: String,
    /// The fault of the field, for people.
    pub message: String,
}

/// A stored object that Mimeo refuses. Nothing else of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The `metadata.generation` of the refused spec.
    pub generation: i64,
    /// Creation time. `Timestamp::MAX` if it is not known.
    pub created: jiff::Timestamp,
    /// All reasons for the refusal.
    pub refusals: Vec<Refusal>,
}

/// All refusals in one line, for people.
pub fn in_one_line(refusals: &[Refusal]) -> String {
    let refusals: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    refusals.join("; ")
}

/// Refuses the cluster-scoped kinds in the list at `field`. A kind that is not served is not
/// refused, because the API server may serve it later.
pub fn refuse_cluster_scoped(
    kinds: &[GroupVersionKind],
    field: &str,
    served: &Served,
) -> Vec<Refusal> {
    let refuse = |(i, gvk): (usize, &GroupVersionKind)| {
        let message = format!(
            "kind {} is cluster-scoped; only objects in namespaces are allowed",
            gvk.group_kind()
        );
        let field = format!("{field}[{i}]");
        (!served.get(gvk)?.namespaced).then_some(Refusal { field, message })
    };
    kinds.iter().enumerate().filter_map(refuse).collect()
}

/// Collects refusals while an object is parsed, so that its author sees all of them at once. The
/// parser of a part returns a value even if it adds a refusal, because the whole object is refused
/// then.
#[derive(Debug, Default)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Refusal {
            field: field.into(),
            message: message.into(),
        });
    }

    /// Adds the refusal of one field, if there is one.
    pub(crate) fn one<T>(&mut self, field: &str, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|message| self.add(field, message)).ok()
    }

    /// Refuses a list with more than `most` items.
    pub(crate) fn limit(&mut self, field: &str, items: usize, most: usize) {
        if items > most {
            self.add(field, format!("must not have more than {most} items"));
        }
    }

    /// Refuses a list with more than `most` items, and each item that `check` refuses.
    pub(crate) fn each(&mut self, field: &str, items: &[String], most: usize, check: Check) {
        self.limit(field, items.len(), most);
        for (i, item) in items.iter().enumerate() {
            self.one(&format!("{field}[{i}]"), check(item));
        }
    }

    /// Refuses an empty list, and a list with more than `most` items.
    pub(crate) fn count(&mut self, field: &str, items: usize, most: usize) {
        if items == 0 {
            self.add(field, "must not be empty");
        }
        self.limit(field, items, most);
    }

    /// Parses one part of the object. `None` if that adds a refusal.
    pub(crate) fn part<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let before = self.0.len();
        parse(self).filter(|_| self.0.len() == before)
    }

    /// Returns `parsed` if nothing was refused.
    pub(crate) fn finish_with<T>(self, parsed: T) -> Result<T, Vec<Refusal>> {
        if self.0.is_empty() {
            Ok(parsed)
        } else {
            Err(self.0)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::kind::Resource;

    impl Refusals {
        /// The result of the parser of one part.
        pub(crate) fn of<T>(parse: impl FnOnce(&mut Self) -> T) -> Result<T, Vec<Refusal>> {
            let mut refusals = Self::default();
            let parsed = parse(&mut refusals);
            refusals.finish_with(parsed)
        }
    }

    #[test]
    fn cluster_scoped_kinds_are_refused_once_discovery_knows_them() {
        let kinds = ["Secret", "Node", "Gadget"];
        let kinds = kinds.map(|kind| GroupVersionKind::parse("v1", kind).unwrap());
        let [secret, node, _] = &kinds;
        let serve = |gvk: &GroupVersionKind, namespaced| {
            let resource = Resource {
                gvk: gvk.clone(),
                plural: "x".into(),
                namespaced,
            };
            (gvk.clone(), resource)
        };
        let served = [serve(secret, true), serve(node, false)].into();
        let refusals = refuse_cluster_scoped(&kinds, "spec.sources", &served);
        let refusals: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
        assert_eq!(
            refusals,
            [
                "spec.sources[1]: kind Node is cluster-scoped; only objects in namespaces are allowed"
            ]
        );
    }
}
