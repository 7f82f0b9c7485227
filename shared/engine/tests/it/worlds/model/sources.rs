//! The objects that a rule copies: those that it names, and those that its selectors find.

use super::{Model, Object, Silence};
use crate::worlds::{
    render,
    select::labelled,
    server::{Key, Res},
    spec::{Access, RuleSpec, Selected},
    tables::Coverage,
};

/// The largest number of sources of a rule. For a `Replication` it is also the largest number of
/// copies: sources times namespaces.
const MOST: usize = 256;

/// The sources that a rule copies at this moment.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// The named sources, then those that its selectors find, each once.
    pub sources: Vec<Key>,
    /// True if a selector has no grant.
    pub ungranted: bool,
    /// True if a selector finds no object.
    pub nothing: bool,
    /// True if there are more objects than the rule may have.
    pub beyond: bool,
}

impl Selected {
    /// True if the object is in the selector's namespace and of its kind.
    pub fn looks_at(&self, key: &Key) -> bool {
        key.res == self.res && key.namespace == self.namespace
    }
}

impl Model {
    pub(super) fn chosen(
        &self,
        rule: &Key,
        spec: &RuleSpec,
        coverage: &mut Coverage,
    ) -> Result<Chosen, Silence> {
        let mut chosen = Chosen {
            sources: spec.sources.clone(),
            ..Chosen::default()
        };
        for selected in &spec.selected {
            if !self.may_select(rule, selected.res, selected.namespace, coverage) {
                chosen.ungranted = true;
                continue;
            }
            let mut found = self.found_by(spec, selected, coverage);
            found.retain(|(_, key)| !chosen.sources.contains(key));
            chosen.nothing |= found.is_empty();
            let places: usize = spec
                .targets
                .iter()
                .map(|target| target.by.exact().len())
                .sum();
            let most = if rule.res == Res::Replication {
                MOST / places.max(1)
            } else {
                MOST
            };
            let room = most - chosen.sources.len().min(most);
            if found.len() > room {
                coverage.other("more than a rule may have");
                chosen.beyond = true;
                found.sort();
                let age = |at: usize| found[at].0;
                if spec.selected.len() > 1 || room > 0 && age(room - 1) == age(room) {
                    return Err("which of those of one age are left out");
                }
            }
            for (at, (_, key)) in found.iter().enumerate() {
                if coverage.member([true, false, false, at < room]) {
                    chosen.sources.push((*key).clone());
                }
            }
        }
        Ok(chosen)
    }

    /// Returns the objects that may be taken, each with its creation step.
    fn found_by(
        &self,
        spec: &RuleSpec,
        selected: &Selected,
        coverage: &mut Coverage,
    ) -> Vec<(usize, &Key)> {
        let mut found = Vec::new();
        for (key, object) in self
            .objects
            .iter()
            .filter(|(key, _)| selected.looks_at(key))
        {
            let labels = labelled(&selected.selector, &object.labels());
            let copy = object.is_copy();
            let bound = labels && render::bound(spec, key.res, &object.values());
            if !labels || bound || copy {
                coverage.member([labels, copy, bound, true]);
            } else {
                found.push((object.born, key));
            }
        }
        found
    }

    /// True if the object exists in the selector's namespace with its kind and labels.
    pub(super) fn matches(&self, selected: &Selected, key: &Key) -> bool {
        let object = self.objects.get(key).filter(|_| selected.looks_at(key));
        object.is_some_and(|object| labelled(&selected.selector, &object.labels()))
    }

    /// True if a rule may select objects of a kind there.
    pub(super) fn may_select(
        &self,
        rule: &Key,
        kind: Res,
        namespace: &str,
        coverage: &mut Coverage,
    ) -> bool {
        self.granted(
            rule,
            Access::Read,
            &Key::new(kind, namespace, ""),
            true,
            coverage,
        )
    }
}

impl Object {
    /// Returns the source of this copy, if it is one that the rule's selectors could have found.
    pub(super) fn selected_origin(&self, spec: &RuleSpec) -> Option<Key> {
        let origin = self.value("ann/mimeo.dev/source")?;
        spec.selected
            .iter()
            .find_map(|Selected { res, namespace, .. }| {
                let name = origin.strip_prefix(&render::origin(&Key::new(*res, namespace, "")))?;
                Some(Key::new(*res, namespace, name))
            })
    }

    /// True if the object has the label of a copy, or Mimeo's entry.
    fn is_copy(&self) -> bool {
        self.value("ann/mimeo.dev/rule").is_some() || self.owned()
    }
}
