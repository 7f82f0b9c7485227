//! The body of a copy. It is rendered once for each version of the source and each target, and
//! shared by all namespaces of the target. Each namespace only fills in the checksum and the values
//! of its variables. The module `draft` makes the body from the source.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    meta::{Checksum, Uid},
    outcome::{Failure, FailureReason},
    selection::Place,
    syntax,
    template::{Template, Variable},
};

mod draft;

pub use self::draft::Draft;
use self::draft::of_json;

/// The bytes of one copy. Only the URL has the namespace, so copies in several namespaces may share
/// them.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendering {
    /// Identifies the rendering. The copy carries it as the annotation
    /// [`CHECKSUM`](crate::names::CHECKSUM).
    pub checksum: Checksum,
    /// The part of the body after the id. Only the id differs from copy to copy.
    metadata: Vec<Bytes>,
    /// The part of the body after the metadata.
    content: Vec<Bytes>,
}

/// Not derived, because the bytes may belong to a Secret.
impl std::fmt::Debug for Rendering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length: usize = self
            .metadata
            .iter()
            .chain(&self.content)
            .map(Bytes::len)
            .sum();
        write!(f, "Rendering({}, {length} bytes)", self.checksum)
    }
}

/// The state of the object that the write requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// No object has the name. Server-side apply has no option for this. But no object ever has
    /// resourceVersion "1". So an apply with this version creates the object, or fails with 409,
    /// even with force. Neither an earlier read nor a race with another writer can do damage.
    Absent,
    /// The object still has this uid. Another object may have taken its name.
    Is(Uid),
    /// The object still has this uid and this version.
    Unchanged(Uid, u64),
}

impl Rendering {
    /// The body in pieces. Only the second piece is new for each call.
    pub fn body(&self, precondition: Precondition) -> Vec<Bytes> {
        let id = match precondition {
            Precondition::Absent => Bytes::from_static(br#""resourceVersion":"1","#),
            Precondition::Is(uid) => Bytes::from(format!(r#""uid":"{uid}","#)),
            Precondition::Unchanged(uid, version) => {
                Bytes::from(format!(r#""uid":"{uid}","resourceVersion":"{version}","#))
            }
        };
        let rest = self.metadata.iter().chain(&self.content).cloned();
        [Bytes::from_static(br#"{"metadata":{"#), id]
            .into_iter()
            .chain(rest)
            .collect()
    }

    /// The body of the copy with this name, but without labels, annotations and finalizers. An
    /// object that only lacks Mimeo's labels and annotations has the same content.
    pub fn unmarked(&self, name: &str, uid: Uid, version: u64) -> Vec<Bytes> {
        let name = Value::from(name);
        let id =
            format!(r#"{{"metadata":{{"uid":"{uid}","resourceVersion":"{version}","name":{name}"#);
        std::iter::once(id.into())
            .chain(self.content.iter().cloned())
            .collect()
    }
}

/// The copies of one source for one target: a body with blanks, which each namespace fills in. All
/// namespaces share the parts between the blanks. Copies without variables of the namespace have no
/// blank except the checksum.
#[derive(Clone, PartialEq, Eq)]
pub struct Copies {
    /// Identifies these copies among all others, for any values of the blanks.
    pub checksum: Checksum,
    variables: BTreeSet<Variable>,
    /// API group of the copy. It determines the valid names.
    group: Box<str>,
    name: Template,
    /// True if two correct copies may own different fields, because a blank is inside a list.
    /// `managedFields` identify an item of a list by its key, so a value there can change the path
    /// of a field.
    pub own_fields_apart: bool,
    metadata: Vec<Part>,
    /// Shared by the copies for all targets.
    content: Arc<[Part]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Bytes(Bytes),
    Blank(Variable),
    Checksum,
}

/// Not derived, because the bytes may belong to a Secret.
impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copies({}, {:?})", self.checksum, self.variables)
    }
}

impl Copies {
    /// The checksum of the copy in one namespace. It is computed without copying the body.
    ///
    /// # Errors
    /// The reason why this namespace gets no copy.
    pub fn checksum_at(&self, place: Place<'_>) -> Result<Checksum, Failure> {
        if self.variables.is_empty() {
            return Ok(self.checksum);
        }
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            let unset = || failure(FailureReason::VariableUnset, unset(variable));
            values.push((
                variable.to_string(),
                variable.value(place).ok_or_else(unset)?,
            ));
        }
        // The name becomes part of a path. The API server checks all else.
        syntax::object_name(&self.group, &self.name.text_at(place))
            .map_err(|why| failure(FailureReason::Invalid, format!("the copy's name {why}")))?;
        Ok(of_json(&json!([self.checksum.to_string(), values])))
    }

    /// The copy in one namespace.
    ///
    /// # Errors
    /// Those of [`Self::checksum_at`].
    pub fn rendering_at(&self, place: Place<'_>) -> Result<Rendering, Failure> {
        let checksum = self.checksum_at(place)?;
        let fill = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.clone(),
            Part::Blank(variable) => {
                // Names and label values contain nothing to escape. But the JSON must stay valid
                // without this assumption.
                let quoted = Value::from(variable.value(place).unwrap_or_default()).to_string();
                Bytes::copy_from_slice(&quoted.as_bytes()[1..quoted.len() - 1])
            }
            Part::Checksum => checksum.to_string().into(),
        };
        let [metadata, content] =
            [&*self.metadata, &*self.content].map(|parts| parts.iter().map(fill).collect());
        Ok(Rendering {
            checksum,
            metadata,
            content,
        })
    }
}

/// The message that a namespace has no value for a variable.
pub fn unset(variable: &Variable) -> String {
    format!("the namespace has no value for {variable}")
}

fn failure(reason: FailureReason, message: String) -> Failure {
    Failure {
        reason,
        message: message.into(),
    }
}
