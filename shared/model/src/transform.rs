//! The differences between a copy and its source, and the changes of a policy to an object at
//! admission.

use std::collections::BTreeSet;

use serde_json::{Map, Value, map::Entry};

use crate::{
    kind::GroupVersionKind,
    marks::is_ours,
    patch::JsonPatch,
    refusal::{Refusal, Refusals},
    source::{SourceRef, refused_type},
    syntax,
    template::{Template, Variable},
};

mod keys;

use self::keys::{ANNOTATIONS, DataEdits, Edits, LABELS};

/// Most finalizers.
const FINALIZERS: usize = 8;

/// The changes to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transform {
    secret_type: Option<String>,
    pub(crate) labels: Edits,
    pub(crate) annotations: Edits,
    pub(crate) data: DataEdits,
    finalizers: Vec<String>,
    pub(crate) json_patch: JsonPatch,
}

/// The use of a text with variables. It determines the check of the text.
#[derive(Clone, Copy)]
enum Use<'a> {
    /// For copies of these sources.
    Copies(&'a [SourceRef]),
    /// For an object at admission. There is no source.
    Admission,
}

impl Transform {
    /// Compiles the transform of a rule. Its texts may have variables of any of `sources`. Refusals
    /// name fields below `field`.
    pub fn of_copies(
        spec: &mimeo_api::CopyTransform,
        field: &str,
        sources: &[SourceRef],
    ) -> Result<Self, Vec<Refusal>> {
        let mimeo_api::CopyTransform { common, json_patch } = spec;
        let mut refusals = Refusals::default();
        let parsed = Self::parse(
            common,
            field,
            Use::Copies(sources),
            sources.iter().map(|source| &source.gvk),
        );
        let parsed = refusals.all(parsed);
        let json_patch = refusals.all(JsonPatch::parse(
            json_patch,
            &format!("{field}.jsonPatch"),
            sources,
        ));
        refusals.finish_with(parsed.zip(json_patch).map(|(parsed, json_patch)| Self {
            json_patch,
            ..parsed
        }))
    }

    /// Compiles the transform of a policy for objects of these kinds.
    pub fn of_admission(
        spec: &mimeo_api::Transform,
        field: &str,
        kinds: &[GroupVersionKind],
    ) -> Result<Self, Vec<Refusal>> {
        Self::parse(spec, field, Use::Admission, kinds.iter())
    }

    fn parse<'a>(
        spec: &mimeo_api::Transform,
        field: &str,
        used: Use<'_>,
        mut kinds: impl Iterator<Item = &'a GroupVersionKind> + Clone,
    ) -> Result<Self, Vec<Refusal>> {
        let mimeo_api::Transform {
            type_,
            labels,
            annotations,
            data,
            finalizers,
        } = spec;
        let mut refusals = Refusals::default();
        let secrets = kinds.clone().all(GroupVersionKind::is_secret);
        if !data.is_noop() && !kinds.all(|kind| kind.is_secret() || kind.is_config_map()) {
            refusals.add(
                format!("{field}.data"),
                "is only for Secrets and ConfigMaps",
            );
        }
        let at_type = format!("{field}.type");
        if let Some(text) = type_ {
            refusals.one(&at_type, syntax::secret_type(text));
            if refused_type(Some(text)).is_some() {
                refusals.add(
                    &at_type,
                    "must not be that of service account tokens or Helm \
                     releases: Kubernetes or Helm would use the Secret as one",
                );
            }
            if !secrets {
                refusals.add(at_type, "is only for Secrets");
            }
        }
        let labels = refusals.all(Edits::parse(
            labels,
            &format!("{field}.labels"),
            used,
            LABELS,
        ));
        let annotations = refusals.all(Edits::parse(
            annotations,
            &format!("{field}.annotations"),
            used,
            ANNOTATIONS,
        ));
        let data = DataEdits::parse(data, &format!("{field}.data"), &mut refusals);
        refuse_finalizers(finalizers, &format!("{field}.finalizers"), &mut refusals);
        refusals.finish_with(labels.zip(annotations).map(|(labels, annotations)| Self {
            secret_type: type_.clone(),
            labels,
            annotations,
            data,
            finalizers: finalizers.clone(),
            json_patch: JsonPatch::default(),
        }))
    }

    /// Type of a copy, or of a new object. `None` keeps the type of the source or the object.
    pub fn secret_type(&self) -> Option<&str> {
        self.secret_type.as_deref()
    }

    /// Finalizers for a copy, or to add to an object, in the author's order.
    pub fn finalizers(&self) -> &[String] {
        &self.finalizers
    }

    /// All variables of the namespace in its texts.
    pub fn variables(&self) -> BTreeSet<Variable> {
        let values = self
            .labels
            .set
            .values()
            .chain(self.annotations.set.values());
        values
            .flat_map(Template::variables)
            .cloned()
            .chain(self.json_patch.variables())
            .collect()
    }

    /// Changes an object at admission, except its data. `stored` is the old object of an UPDATE.
    /// The variable `$(namespace.name)` has the value `namespace`.
    ///
    /// A new Secret gets the type of the transform. A stored Secret keeps its type, which is
    /// immutable. So a client can send the original type again without an error. An object that is
    /// being deleted is not changed, otherwise no client could remove its finalizers. Mimeo's
    /// labels and annotations are not changed. A second run changes nothing.
    pub fn rewrite(&self, object: &mut Value, stored: Option<&Value>, namespace: &str) {
        if is_being_deleted(object) || stored.is_some_and(is_being_deleted) {
            return;
        }
        let Some(fields) = object.as_object_mut() else {
            return;
        };
        if let Some(wanted) = &self.secret_type {
            let kept = match stored {
                None => Some(wanted.as_str()),
                Some(stored) => stored["type"].as_str(),
            };
            if let Some(kept) = kept {
                fields.insert("type".into(), kept.into());
            }
        }
        if let Some(metadata) = object_in(fields, "metadata") {
            self.labels.rewrite(metadata, "labels", namespace);
            self.annotations.rewrite(metadata, "annotations", namespace);
            add_finalizers(&self.finalizers, metadata);
        }
    }

    /// True if it changes nothing.
    pub fn is_noop(&self) -> bool {
        let Self {
            secret_type,
            labels,
            annotations,
            data,
            finalizers,
            json_patch,
        } = self;
        let metadata = labels.is_noop() && annotations.is_noop() && finalizers.is_empty();
        secret_type.is_none() && metadata && data.is_noop() && json_patch.is_noop()
    }
}

/// True if the object has a deletionTimestamp. Mimeo never writes or changes such an object.
pub fn is_being_deleted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The object at `key`. It is added if it does not exist.
fn object_in<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
) -> Option<&'a mut Map<String, Value>> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

fn add_finalizers(finalizers: &[String], metadata: &mut Map<String, Value>) {
    if finalizers.is_empty() {
        return;
    }
    let value = match metadata.entry("finalizers") {
        Entry::Vacant(vacant) => vacant.insert(Value::Array(Vec::new())),
        Entry::Occupied(occupied) => occupied.into_mut(),
    };
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    let Some(there) = value.as_array_mut() else {
        return;
    };
    for finalizer in finalizers {
        if !there.iter().any(|one| one == finalizer) {
            there.push(finalizer.as_str().into());
        }
    }
}

fn refuse_finalizers(finalizers: &[String], field: &str, refusals: &mut Refusals) {
    if finalizers.len() > FINALIZERS {
        refusals.add(field, format!("must not have more than {FINALIZERS} items"));
    }
    for (i, finalizer) in finalizers.iter().enumerate() {
        let field = format!("{field}[{i}]");
        refusals.one(&field, syntax::finalizer(finalizer));
        if is_ours(finalizer) {
            refusals.add(
                &field,
                "must not be in Mimeo's own domain: nothing would remove it",
            );
        }
        if finalizers[..i].contains(finalizer) {
            refusals.add(field, format!("{finalizer:?} is listed twice"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests;
