//! Why a rule or a policy is refused.

/// Most sources of one rule, and most targets.
pub(crate) const ITEMS: usize = 32;

/// One reason why a rule or a policy is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Refusal {
    /// Path of the field, as in `spec.targets[0].namespacePattern`.
    pub field: String,
    /// What is wrong with it, for people.
    pub message: String,
}

/// A stored object that is refused, of which only this is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which of its specs that is (`metadata.generation`).
    pub generation: i64,
    /// Why, all of it.
    pub refusals: Vec<Refusal>,
}

/// Reasons gathered on the way through an object, so that its author reads all of them at once.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<Refusal>);

impl Refusals {
    pub(crate) fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.0.push(Refusal {
            field: field.into(),
            message: message.into(),
        });
    }

    /// Keeps the reason why one field is refused.
    pub(crate) fn one<T>(&mut self, field: &str, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|message| self.add(field, message)).ok()
    }

    /// Keeps the reasons why a part is refused.
    pub(crate) fn all<T>(&mut self, checked: Result<T, Vec<Refusal>>) -> Option<T> {
        checked.map_err(|refusals| self.0.extend(refusals)).ok()
    }

    /// Refuses a list without items, or with more than a rule may have.
    pub(crate) fn count(&mut self, field: &str, items: usize) {
        self.at_most(field, items, ITEMS);
    }

    /// Refuses a list without items, or with more than these.
    pub(crate) fn at_most(&mut self, field: &str, items: usize, most: usize) {
        match items {
            0 => self.add(field, "must not be empty"),
            _ if items <= most => {}
            _ => self.add(field, format!("must not have more than {most} items")),
        }
    }

    /// `parsed` if nothing was refused. Whoever passes `None` has refused something.
    pub(crate) fn finish_with<T>(self, parsed: Option<T>) -> Result<T, Vec<Refusal>> {
        match parsed {
            Some(parsed) if self.0.is_empty() => Ok(parsed),
            _ => Err(self.0),
        }
    }
}
