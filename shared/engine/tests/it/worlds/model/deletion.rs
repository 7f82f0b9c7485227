//! Decides about a copy that is no longer wanted.

use std::collections::BTreeMap;

use super::{Claims, Model, Namespace, Rule, Silence, State};
use crate::worlds::{
    render::{self, Place},
    select::selects,
    server::Key,
    spec::{KINDS, Keep, Strategy},
    tables::{Coverage, End, Why},
};

/// The number of losses of one rule from which on a deletion may be held.
const HELD: usize = 20;

impl Model {
    /// Decides about a copy that is no longer wanted.
    pub(super) fn end(
        &mut self,
        key: &Key,
        why: Why,
        rule: &Key,
        keep: Keep,
        coverage: &mut Coverage,
    ) -> Result<(), Silence> {
        let idle = |one: &Rule| one.rests() || render::refused(rule, &one.spec);
        let suspended = self.rules.get(rule).is_some_and(idle);
        let spec = self
            .rules
            .get(rule)
            .map(|rule| &rule.spec)
            .or_else(|| self.last.get(rule));
        let seed = (
            self.namespaces[&key.namespace].id,
            rule.clone(),
            key.clone(),
        );
        if self.seeded.contains(&seed)
            && spec.is_some_and(|spec| spec.strategy != Strategy::CreateOnce)
        {
            return Err("what was created once by a rule that applies now");
        }
        let once = self.seeded.contains(&seed)
            || spec.is_some_and(|spec| spec.strategy == Strategy::CreateOnce);
        let named = self.is_named(key, rule, coverage);
        let maybe = self.may_be_source(key, rule, coverage);
        let object = &self.objects[key];
        match coverage.unwanted(why, suspended, once, named, keep) {
            End::Stays => Ok(()),
            End::Silent => Err("what is superseded and retained"),
            End::Goes if maybe => Err("the source of a rule that doesn't count"),
            End::Goes if !object.shown() && !object.seen => {
                Err("the end of a copy that no watch shows")
            }
            End::Goes if self.touched.contains(key) && self.readers(key).next().is_some() => {
                Err("a copy that is changed as it goes, and is copied on")
            }
            End::Goes => {
                if !object.shown() {
                    coverage.other("goes though its label is gone");
                }
                if object.held() {
                    coverage.other("waits for a finalizer");
                }
                self.ended.insert(key.clone());
                self.remove(key);
                if matches!(why, Why::Unmatched | Why::SourceDeleted) {
                    let lost = self.lost.entry(rule.clone()).or_default();
                    *lost += 1;
                    if *lost >= HELD {
                        return Err(
                            "so many losses of one rule that a person may have to confirm them",
                        );
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn unwanted(
        &mut self,
        key: &Key,
        states: &BTreeMap<Key, (Key, State)>,
        claims: &Claims,
        coverage: &mut Coverage,
    ) -> Result<(), Silence> {
        let object = &self.objects[key];
        if !KINDS.contains(&key.res)
            || !object.ours()
            || object.deleting
            || !self.open(&key.namespace)
        {
            return Ok(());
        }
        let Some(name) = object.rule() else {
            return Err("a copy without its rule's mark");
        };
        let Some(one @ Rule { spec, .. }) = self.rules.get(&name) else {
            let last = self
                .last
                .get(&name)
                .ok_or("a copy of a rule that never was")?;
            // A copy that its namespace records as created once stays, independently of its
            // annotations.
            let seed = (
                self.namespaces[&key.namespace].id,
                name.clone(),
                key.clone(),
            );
            let told = object.value("ann/mimeo.dev/retention").map(str::to_owned)
                == render::retention_mark(last);
            if !told && !self.seeded.contains(&seed) {
                return Err("a policy that its copies were never told of");
            }
            let keep = last.retention.rule_deleted;
            return self.end(key, Why::RuleDeleted, &name, keep, coverage);
        };
        // A retained copy of a deleted rule stays, even if a later rule of the same name has other
        // targets.
        let stays = object
            .value("ann/mimeo.dev/retention")
            .is_some_and(|mark| mark.contains("rule_deleted: Retain"));
        if stays && object.rules_birth != Some(one.born) {
            coverage.other("left by a former rule of the name");
            return Ok(());
        }
        let keep = spec.retention.unmatched;
        let Namespace { labels, .. } = &self.namespaces[&key.namespace];
        let selected = spec
            .targets
            .iter()
            .any(|target| selects(spec, target, &key.namespace, labels, coverage));
        if !selected || one.rests() || render::refused(&name, spec) {
            return self.end(key, Why::Unmatched, &name, keep, coverage);
        }
        // A copy without a grant is no longer wanted.
        let sources = &self.chosen[&name].sources;
        let mut denied = self.denied(&name, spec, sources, coverage);
        let origin = object
            .selected_origin(spec)
            .filter(|origin| !sources.contains(origin));
        let withheld = |origin: &Key| {
            !self.may_select(
                &name,
                origin.res,
                &origin.namespace,
                &mut Coverage::default(),
            )
        };
        if denied.remove(key) || origin.as_ref().is_some_and(withheld) {
            coverage.other("granted no more");
            return self.end(key, Why::Unmatched, &name, keep, coverage);
        }
        if let Some(origin) = origin {
            if spec
                .selected
                .iter()
                .any(|selected| self.matches(selected, &origin))
            {
                return Err("a copy of what is passed over now");
            }
            coverage.other("selected no more");
            return self.end(
                key,
                Why::SourceDeleted,
                &name,
                spec.retention.source_deleted,
                coverage,
            );
        }
        // The replacement of the copy must have a name, and must exist.
        let place = |source| Place {
            source,
            namespace: &key.namespace,
            labels,
        };
        let mut names = spec
            .targets
            .iter()
            .filter_map(|target| target.name.as_ref());
        if names.any(|name| {
            sources
                .iter()
                .any(|source| render::fill(name, &place(source)).is_err())
        }) {
            return Err("what is superseded by nothing yet");
        }
        let here = |other: &&Key| other.namespace == key.namespace;
        if denied.iter().any(|other| here(&other)) {
            return Err("what is superseded by nothing yet");
        }
        let others = claims
            .iter()
            .filter(|(other, rules)| here(other) && rules.contains_key(&name));
        if others
            .map(|(other, _)| &states[other])
            .any(|(winner, state)| *winner != name || *state != State::Synced)
        {
            return Err("what is superseded by nothing yet");
        }
        self.end(key, Why::Superseded, &name, keep, coverage)
    }
}
