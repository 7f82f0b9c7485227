//! A copy's body: rendered once per source version and target, then shared by all of the target's
//! namespaces, but for the values of the variables that each of them fills in. How it is made of
//! the source: `draft`.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    meta::{Checksum, Uid},
    outcome::{Failure, FailureReason},
    syntax,
    template::{Place, Template, Variable},
};

mod draft;

pub use self::draft::Draft;
use self::draft::Encoded;

/// The bytes of one copy. The namespace is in the URL only, so they may be those of others, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendering {
    /// Identifies the rendering; also on the copy, as the annotation
    /// [`CHECKSUM`](crate::names::CHECKSUM).
    pub checksum: Checksum,
    /// The body behind the id, which alone differs from copy to copy.
    metadata: Vec<Bytes>,
    /// And behind the metadata.
    content: Vec<Bytes>,
}

/// Not derived: the bytes may be a Secret's.
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

/// What the written object must be for the write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing has the name. Server-side apply has no such wish of its own, but no object ever has
    /// resourceVersion "1": with it an apply creates, or answers 409 even when forced. Neither a
    /// read before nor a race between can do damage.
    Absent,
    /// It is this very object, not one that took its name since.
    Is(Uid),
    /// It is this very object as it was at this version.
    Unchanged(Uid, u64),
}

impl Rendering {
    /// The body in pieces; only the second one is made anew.
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

    /// The body of the copy of this name without labels, annotations and finalizers: what is the
    /// same in an object that only lacks our marks.
    pub fn unmarked(&self, name: &str, uid: Uid, version: u64) -> Vec<Bytes> {
        let name = Value::from(name);
        let id =
            format!(r#"{{"metadata":{{"uid":"{uid}","resourceVersion":"{version}","name":{name}"#);
        std::iter::once(id.into())
            .chain(self.content.iter().cloned())
            .collect()
    }
}

/// The copies of one source for one target: alike in all namespaces, or a form that each of them
/// fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    /// No variable of the namespace is in them.
    Alike(Arc<Rendering>),
    /// Its variables stand in them.
    Form(Arc<Form>),
}

impl Copies {
    /// Takes the bytes behind the metadata from others that are made of the same source, if they
    /// are equal: targets differ in the copies' names alone, and sources may be large. Others that
    /// have none like these are joined by them.
    pub fn share(&mut self, others: &mut Vec<Self>) {
        if !others.iter().any(|other| self.shares(other)) {
            others.push(self.clone());
        }
    }

    fn shares(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Alike(own), Self::Alike(other)) if own.content == other.content => {
                *own = Arc::new(Rendering {
                    content: other.content.clone(),
                    ..(**own).clone()
                });
                true
            }
            (Self::Form(own), Self::Form(other)) if own.content == other.content => {
                *own = Arc::new(Form {
                    content: other.content.clone(),
                    ..(**own).clone()
                });
                true
            }
            _ => false,
        }
    }

    /// Tells these copies from all others, whatever is filled in.
    pub fn checksum(&self) -> Checksum {
        match self {
            Self::Alike(rendering) => rendering.checksum,
            Self::Form(form) => form.checksum,
        }
    }

    /// Whether two good copies may own different fields: only what is not in a list is known by its
    /// path alone.
    pub fn own_fields_apart(&self) -> bool {
        matches!(self, Self::Form(form) if form.apart)
    }

    /// Checksum of the copy in one namespace. No bytes are moved for it.
    ///
    /// # Errors
    /// Why there is none in this namespace.
    pub fn checksum_at(&self, place: Place<'_>) -> Result<Checksum, Failure> {
        match self {
            Self::Alike(rendering) => Ok(rendering.checksum),
            Self::Form(form) => form.checksum_at(place),
        }
    }

    /// The copy in one namespace.
    ///
    /// # Errors
    /// Those of [`Self::checksum_at`].
    pub fn rendering_at(&self, place: Place<'_>) -> Result<Arc<Rendering>, Failure> {
        match self {
            Self::Alike(rendering) => Ok(rendering.clone()),
            Self::Form(form) => form.fill(place).map(Arc::new),
        }
    }
}

/// A copy's body with blanks. What is between them is shared by all namespaces.
#[derive(Clone, PartialEq, Eq)]
pub struct Form {
    /// Of everything but the blanks' values.
    checksum: Checksum,
    variables: BTreeSet<Variable>,
    /// API group of the copy, which decides what it may be named.
    group: Box<str>,
    name: Template,
    /// Labels with blanks: what they may be is known, so that none but the right ones are sent.
    labels: Vec<(String, Vec<Part>)>,
    /// Values with blanks that are base64.
    encoded: Arc<[(Encoded, Vec<Part>)]>,
    /// Whether a value may be among the keys by which the API server tells a list's items apart.
    apart: bool,
    metadata: Vec<Part>,
    /// Shared by the forms of all targets.
    content: Arc<[Part]>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Bytes(Bytes),
    Blank(Variable),
    Checksum,
}

impl Part {
    /// A part of a label's value.
    fn text_at<'a>(&'a self, place: Place<'a>) -> &'a str {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Blank(variable) => variable.value(place).unwrap_or_default(),
            Self::Checksum => "",
        }
    }
}

/// Not derived: the bytes may be a Secret's.
impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Form({}, {:?})", self.checksum, self.variables)
    }
}

impl Form {
    fn checksum_at(&self, place: Place<'_>) -> Result<Checksum, Failure> {
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            let unset = || failure(FailureReason::VariableUnset, unset(variable));
            values.push((
                variable.to_string(),
                variable.value(place).ok_or_else(unset)?,
            ));
        }
        let invalid = |what: String| {
            move |why: String| failure(FailureReason::Invalid, format!("{what} {why}"))
        };
        syntax::object_name(&self.group, &self.name.text_at(place))
            .map_err(invalid("the copy's name".into()))?;
        for (key, value) in &self.labels {
            let value: String = value.iter().map(|part| part.text_at(place)).collect();
            syntax::label_value(&value).map_err(invalid(format!("the copy's label {key}")))?;
        }
        for (at, value) in &*self.encoded {
            let value: String = value.iter().map(|part| part.text_at(place)).collect();
            at.check(&value).map_err(|refused| refused.failure())?;
        }
        Ok(Checksum::of(
            json!([self.checksum.to_string(), values])
                .to_string()
                .as_bytes(),
        ))
    }

    fn fill(&self, place: Place<'_>) -> Result<Rendering, Failure> {
        let checksum = self.checksum_at(place)?;
        let fill = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.clone(),
            Part::Blank(variable) => {
                // Neither names nor label values have anything to escape, but JSON must not hang by
                // that.
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

/// That a namespace has no value for a variable, to people.
pub fn unset(variable: &Variable) -> String {
    format!("the namespace has no value for {variable}")
}

fn failure(reason: FailureReason, message: String) -> Failure {
    Failure {
        reason,
        message: message.into(),
    }
}
