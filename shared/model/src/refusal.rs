//! The reasons why Mimeo refuses a rule, a grant or a policy.

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
    /// Its sources as the column SOURCE shows them, if that much can be read.
    pub source: Option<String>,
    /// All reasons for the refusal.
    pub refusals: Vec<Refusal>,
}

/// Collects refusals while an object is parsed, so that its author sees all of them at once.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

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

    /// Adds the refusals of one part of the object.
    pub(crate) fn all<T>(&mut self, checked: Result<T, Vec<Refusal>>) -> Option<T> {
        checked.map_err(|refusals| self.0.extend(refusals)).ok()
    }

    /// Refuses an empty list, and a list with more items than a rule may have.
    pub(crate) fn count(&mut self, field: &str, items: usize) {
        self.at_most(field, items, ITEMS);
    }

    /// Refuses an empty list, and a list with more than `most` items.
    pub(crate) fn at_most(&mut self, field: &str, items: usize, most: usize) {
        match items {
            0 => self.add(field, "must not be empty"),
            _ if items <= most => {}
            _ => self.add(field, format!("must not have more than {most} items")),
        }
    }

    /// Returns `parsed` if nothing was refused. A caller that passes `None` has added a refusal
    /// before.
    pub(crate) fn finish_with<T>(self, parsed: Option<T>) -> Result<T, Vec<Refusal>> {
        match parsed {
            Some(parsed) if self.0.is_empty() => Ok(parsed),
            _ => Err(self.0),
        }
    }
}
