//! Copies with `strategy: CreateOnce`: whether they were created already, and the record of them in
//! an annotation of their namespace.

use std::sync::Arc;

use mimeo_model::{
    choices::Strategy,
    created::{CreatedCopies, CreatedCopy},
    id::{KindId, RuleId, RuleKind},
    rule::Rule,
};

use crate::{
    Effects, Index, Namespace,
    copy::CopyState,
    jobs::{JobKey, Task},
};

impl Index {
    /// True if the rule has `strategy: CreateOnce` and the copy's create is done or not
    /// needed (any more).
    pub(crate) fn created_once(
        &self,
        rule: &Rule,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> bool {
        rule.strategy == Strategy::CreateOnce
            && (copy.shows_created(rule.conflict)
                || self.remembers(namespace, &rule.id, copy.kind, &copy.name))
    }

    /// True if the namespace has a record that the rule created this copy.
    pub(crate) fn remembers(
        &self,
        namespace: &Namespace,
        rule: &RuleId,
        kind: KindId,
        name: &str,
    ) -> bool {
        let created = || self.created_copy(namespace, rule, kind, name);
        let recorded = &namespace.created.entries;
        !recorded.is_empty() && created().is_some_and(|created| recorded.contains(&created))
    }

    fn created_copy(
        &self,
        namespace: &Namespace,
        rule: &RuleId,
        kind: KindId,
        name: &str,
    ) -> Option<CreatedCopy> {
        let kind = &self.kinds[kind].group_kind;
        Some(CreatedCopy::new(namespace.uid?, rule, kind, name))
    }

    /// Records the object at a copy's place as created, if its rule is active and has `strategy:
    /// CreateOnce`. So Mimeo does not create the copy again if it is deleted, even before the
    /// annotation is written. An object that was there while the rule was inactive is not recorded.
    pub(crate) fn note_created(&self, namespace: &mut Namespace, at: usize) {
        let copy = &namespace.copies[at];
        if let Some(rule) = self.acting_for(copy)
            && rule.strategy == Strategy::CreateOnce
            && namespace.alive()
            && copy.shows_created(rule.conflict)
            && !copy.leaving
            && copy.seen().is_none_or(|seen| namespace.has(seen))
            && let Some(created) = self.created_copy(namespace, &rule.id, copy.kind, &copy.name)
        {
            let tenants = rule.id.kind == RuleKind::Replication;
            namespace.created.insert(created, tenants);
        }
    }

    /// Returns the record that the namespace's annotation must hold. `None`: this process does not
    /// write it, or a fact that decides about it is still unknown.
    fn created_to_keep(&self, namespace: &Namespace) -> Option<CreatedCopies> {
        let writes = self.settings.keeps_copies()
            && namespace.alive()
            && self.all_rules()
            && self.in_charge(namespace)
            && !namespace.created.entries.is_empty();
        if !writes {
            return None;
        }
        let mut created = namespace.created.clone();
        for copy in &namespace.copies {
            let Some(rule) = self.acting_for(copy) else {
                continue;
            };
            if rule.strategy != Strategy::CreateOnce {
                // While the copies of the kind are not all observed, the object may be the copy of
                // another rule. Mimeo's labels and annotations on it decide that.
                if self.kinds[copy.kind].copies_known_in(&namespace.name)
                    && let Some(entry) =
                        self.created_copy(namespace, &rule.id, copy.kind, &copy.name)
                {
                    created.entries.remove(&entry);
                }
            } else if !copy.settled() && self.resource(copy.kind, None).is_some() {
                // The answer to its request plans the namespace again. No request is sent while no
                // version of the kind is served.
                return None;
            }
        }
        Some(created)
    }

    /// Returns the write of the annotation for the present state of the namespace. `None`: the
    /// annotation is up to date.
    pub(crate) fn created_to_record(&self, name: &Arc<str>) -> Option<Task> {
        let namespace = self.namespaces.get(name)?;
        let created = self.created_to_keep(namespace)?;
        (created != namespace.annotated).then(|| Task::RecordCreated {
            namespace: name.clone(),
            created,
            version: namespace.version,
        })
    }
}

impl Index {
    /// Requests one write that records all created copies in the namespace's annotation. If a rule
    /// no longer has `strategy: CreateOnce`, its entries are removed. If such a rule changes back
    /// later, the copy that exists then is recorded again.
    pub(crate) fn plan_created(&mut self, namespace: &mut Namespace, effects: &mut Effects) {
        (0..namespace.copies.len()).for_each(|at| self.note_created(namespace, at));
        let Some(mut created) = self.created_to_keep(namespace) else {
            return;
        };
        // A write that changes nothing causes no watch event, so its job would never end.
        if created != namespace.annotated {
            let key = JobKey::RecordCreated(namespace.name.clone());
            effects.jobs.ask(key);
        }
        // An entry of the annotation counts until the annotation no longer has it.
        created.entries.extend(&namespace.annotated.entries);
        namespace.created = created;
    }
}
