//! Copies as their watch shows them.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    id::KindId,
    kind::GroupKind,
    meta::{Seen, Uid, version},
    names,
    role::Role,
};

use crate::{
    Engine,
    cell::{Belief, Cell, Content, Phase},
    clock::Tick,
};

impl Engine {
    /// The watch of copies shows an object: one that carries our label, ours or not.
    pub fn copy_applied(&mut self, kind: &GroupKind, meta: &ObjectMeta, now: Tick) {
        self.at(now);
        let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref())
        else {
            return;
        };
        let Some(mut seen) = Seen::read(meta, kind, &self.settings.cluster) else {
            return;
        };
        let Some(kind) = self.kind_id(kind) else {
            return;
        };
        let listing = self.kinds[kind].surveys.of(namespace).listing;
        let namespace = self.namespace_name(namespace);
        if let Some(rule) = &seen.rule {
            let rule = self.rule_name(rule);
            self.consent.strew(&rule, &namespace);
            seen.rule = Some(rule);
        }
        let name = self.copy_name(kind, name);
        self.remember_origin(
            &seen,
            meta.annotations
                .as_ref()
                .and_then(|all| all.get(names::SOURCE)),
        );
        let entry = self.namespaces.entry(namespace.clone()).or_default();
        let cell = entry.cell_or_insert(kind, &name);
        cell.listing = listing;
        let owner = self.slots.owner(cell).cloned();
        if !cell.show(seen) {
            return;
        }
        self.shown += 1;
        cell.shown = self.shown;
        cell.retry_now();
        self.dirty.insert(namespace);
        owner.iter().for_each(|rule| self.mark_status_due(rule));
    }

    /// The watch of copies lost an object: it was deleted, or only its label was.
    pub fn copy_gone(&mut self, kind: &GroupKind, meta: &ObjectMeta, now: Tick) {
        self.at(now);
        let (Some(namespace), Some(name)) = (meta.namespace.as_deref(), meta.name.as_deref())
        else {
            return;
        };
        let Some(uid) = meta.uid.as_deref().and_then(Uid::parse) else {
            return;
        };
        let Some(kind) = self.kind_id(kind) else {
            return;
        };
        let namespace = self.namespace_name(namespace);
        let Some(mut entry) = self.namespaces.remove(&namespace) else {
            return;
        };
        if let Ok(at) = entry.position(kind, name) {
            // What a rule creates once was created, though it goes before anything is planned.
            self.sow(&namespace, &mut entry, at);
            let born = entry.born;
            let cell = &mut entry.cells[at];
            let version = version(meta.resource_version.as_deref());
            let owner = self.rule_of(cell);
            if cell.vanish(Some(uid), version) {
                if version < born {
                    // It went with a former namespace of the name: in this one it never was.
                    cell.belief = Belief::Unknown;
                }
                cell.retry_now();
                self.dirty.insert(namespace.clone());
                self.work.tidy_later();
                owner.iter().for_each(|rule| self.mark_status_due(rule));
            }
        }
        self.namespaces.insert(namespace, entry);
    }

    /// One name shared by all cells of a slot, and by a slot's cells and what its watch shows.
    fn copy_name(&self, kind: KindId, name: &str) -> Arc<str> {
        self.slots
            .copy_name(kind, name)
            .cloned()
            .unwrap_or_else(|| name.into())
    }
}

impl Cell {
    /// The world changed: what was put off may be tried at once.
    pub(crate) fn retry_now(&mut self) {
        if self.phase == Phase::Waiting {
            self.phase = Phase::Idle;
        }
    }

    /// A rule comes to create its copies once: that counts which is there now, and not what was
    /// when nobody watched it.
    pub(crate) fn look_anew(&mut self) {
        if self
            .seen()
            .is_some_and(|seen| !seen.ours() && seen.unwatched(Role::Keeper))
        {
            self.belief = Belief::Unknown;
        }
    }

    /// Other bytes are wanted here: what the server said of the former ones doesn't hold of them.
    pub(crate) fn start_over(&mut self) {
        self.failure = None;
        self.condemned = None;
        self.stuck = false;
        self.content = Content::Unknown;
        self.verify = false;
        self.retry_now();
    }
}
