//! The plan of a suspended rule, found by carrying it out on a copy of the model.

use std::collections::{BTreeMap, BTreeSet};

use super::{Model, Object, ReportedCopy};
use crate::worlds::{
    patch, render,
    server::Key,
    spec::{KINDS, Policy},
    tables::{Coverage, Planned},
};

/// The planned actions, by cell.
pub type Plan = BTreeMap<Key, Planned>;

/// True if the copy is written. Either it differs, or its uid annotation shows that it outlives a
/// former rule of the name.
fn changes(was: &Object, is: &Object) -> bool {
    let retained = is
        .value("ann/mimeo.dev/retention")
        .is_some_and(|mark| mark.contains("rule_deleted: Retain"));
    was.fields != is.fields || retained && was.rules_birth != is.rules_birth
}

impl Model {
    /// Returns the effect of the end of `suspend` if nothing else changes. `None`: the documents do
    /// not define it.
    pub(super) fn plan(&self, name: &Key, coverage: &mut Coverage) -> Option<Plan> {
        // Only a new read shows a forgery that no process watched. The same holds for a forgery in
        // an object that other clients have changed while Mimeo did not write it.
        let open = |key: &Key| self.open(&key.namespace);
        let shared = |object: &Object| object.fields.values().any(|field| !field.mine);
        let unseen =
            |object: &Object| !object.hidden.is_empty() && (!object.watched || shared(object));
        if self
            .objects
            .iter()
            .any(|(key, object)| open(key) && unseen(object))
        {
            return None;
        }
        // With or without such a part the copy is another one, but its metadata does not show that.
        let spec = &self.rules.get(name)?.spec;
        let left = |key: &Key| Some(render::left_empty(spec, &self.content(spec, key)?));
        if self.chosen[name]
            .sources
            .iter()
            .filter_map(left)
            .any(|left| left)
        {
            return None;
        }
        // The right content of such a list is unknown, so a new process applies each copy.
        if patch::leaves_a_varying_list(&spec.transform.patch) {
            return None;
        }
        // The engine does not read again whether an object occupies the place by now.
        let claims = self.claims(&mut Coverage::default());
        if self.unnoticed.iter().any(|key| {
            claims
                .get(key)
                .is_some_and(|rules| rules.contains_key(name))
        }) {
            return None;
        }
        let mut lifted = self.clone();
        lifted.rules.get_mut(name)?.spec.suspend = false;
        let told = lifted.round(&mut Coverage::default()).ok()?.remove(name)?;
        let telling = ["Conflict", "RuleConflict", "VariableUnset", "NotGranted"];
        // The rule's own unfit results are known before. It is unknown whether the API server lets
        // an object be adopted, which may be immutable or of another type.
        let foreign = |namespace: &str, name: &str| {
            let mut there = self
                .objects
                .iter()
                .filter(|(key, _)| key.namespace == namespace && key.name == name);
            spec.conflict == Policy::Adopt && there.any(|(_, object)| !object.ours())
        };
        let known = |(namespace, name, reason): &(String, String, &str)| {
            telling.contains(reason) || *reason == "Invalid" && !foreign(namespace, name)
        };
        if told.reasons.iter().any(|reason| !known(reason)) {
            return None;
        }
        // The metadata of an object held by a finalizer does not say whether it can be changed in
        // place.
        let held = |key: &Key| self.objects.get(key).is_some_and(|was| !was.deleting);
        let goes = |key: &Key| lifted.objects.get(key).is_some_and(|is| is.deleting);
        if told.conflicts.iter().any(|key| held(key) && goes(key)) {
            return None;
        }
        let plan = self.difference(name, &lifted, &told);
        plan.values().for_each(|planned| coverage.planned(*planned));
        Some(plan)
    }

    /// Returns the changes that the rule made to its copies, and the copies that it could not have.
    fn difference(&self, name: &Key, after: &Self, told: &ReportedCopy) -> Plan {
        let mut plan: Plan = told
            .conflicts
            .iter()
            .map(|key| (key.clone(), Planned::Conflict))
            .collect();
        let keys: BTreeSet<&Key> = self.objects.keys().chain(after.objects.keys()).collect();
        for key in keys.into_iter().filter(|key| KINDS.contains(&key.res)) {
            let (was, is) = (self.objects.get(key), after.objects.get(key));
            let goes = was.is_some_and(|was| !was.deleting) && is.is_none_or(|is| is.deleting);
            let planned = match (was, is) {
                (Some(was), _) if goes && was.rule().as_ref() == Some(name) => Planned::Delete,
                (None, Some(is)) if is.rule().as_ref() == Some(name) => Planned::Create,
                (Some(was), Some(is)) if changes(was, is) && is.rule().as_ref() == Some(name) => {
                    Planned::Update
                }
                _ => continue,
            };
            plan.insert(key.clone(), planned);
        }
        plan
    }
}
