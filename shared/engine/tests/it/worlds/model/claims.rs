//! The places that rules want, and the rule that gets a place if several want it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chosen, Claims, Model, Namespace, Object, ReportedCopy, Silence, State, count};
use crate::worlds::{
    render::{self, Place, Withheld},
    select::selects,
    server::{Key, Res},
    spec::{RuleSpec, Text},
    tables::Coverage,
};

impl Model {
    /// Returns the cells that a rule wants, each with its source, and whether each of them has one.
    pub(super) fn claim(
        &self,
        name: &Key,
        spec: &RuleSpec,
        Chosen { sources, .. }: &Chosen,
        claims: &mut Claims,
        told: &mut ReportedCopy,
        coverage: &mut Coverage,
    ) -> Result<bool, Silence> {
        let mut clear = true;
        let denied = self.denied(name, spec, sources, coverage);
        told.ungranted |= !denied.is_empty();
        denied
            .iter()
            .for_each(|cell| count(told, cell, State::Failed("NotGranted")));
        for (namespace, Namespace { labels, ending, .. }) in &self.namespaces {
            if *ending {
                coverage.other("a terminating namespace");
                continue;
            }
            let mut unnamed: Vec<(&Key, &Text)> = Vec::new();
            for target in &spec.targets {
                if !selects(spec, target, namespace, labels, coverage) {
                    continue;
                }
                for source in sources {
                    let place = Place {
                        source,
                        namespace,
                        labels,
                    };
                    let copy = target.name.as_ref().map_or_else(
                        || Ok(source.name.clone()),
                        |text| render::fill(text, &place),
                    );
                    let Ok(copy) = copy else {
                        let which = (
                            source,
                            target
                                .name
                                .as_ref()
                                .expect("a source's own name has no variable"),
                        );
                        if unnamed.contains(&which) {
                            continue;
                        }
                        unnamed.push(which);
                        coverage.other("variable unset in name");
                        // A source that gives no copy comes first.
                        let gives = self
                            .content(spec, source)
                            .map(|object| render::uncopied(spec, source, &object));
                        told.nameless.insert((namespace.clone(), source.res));
                        let state = match gives.transpose()? {
                            Some(None) => State::Failed("VariableUnset"),
                            Some(Some(Withheld::Unfit)) => State::Failed("Invalid"),
                            Some(Some(_)) | None => State::Open,
                        };
                        count(told, &Key::new(source.res, namespace, ""), state);
                        continue;
                    };
                    let key = Key::new(source.res, namespace, &copy);
                    if sources.contains(&key) {
                        if key != *source
                            && !spec.sources.contains(&key)
                            && self.taken.contains(&key)
                        {
                            return Err("a copy for whose place something was selected as it came");
                        }
                        coverage.other("a source's own cell");
                        continue;
                    }
                    if denied.contains(&key) {
                        continue;
                    }
                    let first = claims
                        .entry(key)
                        .or_default()
                        .entry(name.clone())
                        .or_insert_with(|| source.clone());
                    clear &= first == source;
                }
            }
        }
        Ok(clear)
    }

    /// True if an object is, through its copies, a source of itself.
    pub(super) fn circular(&self, claims: &Claims) -> bool {
        let mut feeds: Vec<(&Key, &Key)> = Vec::new();
        for (key, rules) in claims
            .iter()
            .filter(|(key, _)| self.readers(key).count() > 0)
        {
            feeds.extend(rules.values().map(|source| (source, key)));
        }
        // An object without sources is in no circle.
        loop {
            let before = feeds.len();
            let fed: BTreeSet<&Key> = feeds.iter().map(|(_, key)| *key).collect();
            feeds.retain(|(source, _)| fed.contains(source));
            if feeds.len() == before {
                return before > 0;
            }
        }
    }

    pub(super) fn winner(
        &self,
        key: &Key,
        rules: &BTreeMap<Key, Key>,
        coverage: &mut Coverage,
    ) -> Result<Key, Silence> {
        // The documents do not say which of the two came first.
        let late = |rule: &Key| !self.wanted_first.contains(&(key.clone(), rule.clone()));
        if rules.len() > 1 && self.taken.contains(key) && rules.keys().any(late) {
            return Err("two rules for what one of them has by a chain");
        }
        // The objects that a selector finds aren't known at once. Another rule may have written the
        // cell by then.
        let sought =
            |rule: &Key| self.changed.contains(rule) && !self.rules[rule].spec.selected.is_empty();
        if rules.len() > 1 && self.steps > 1 && rules.keys().any(sought) {
            return Err("two rules for what one of them begins to look for");
        }
        let ranks: BTreeSet<Res> = rules.keys().map(|rule| rule.res).collect();
        let rank = ranks.first().expect("no claim without a rule");
        if ranks.len() > 1 {
            coverage.other("won by the platform");
        }
        let rules: BTreeSet<&Key> = rules.keys().filter(|rule| rule.res == *rank).collect();
        let contested = rules.len() > 1;
        let copy = self.objects.get(key).filter(|object| object.ours());
        if contested && copy.is_some_and(|copy| !copy.shown()) {
            return Err("whose a copy is that no watch shows");
        }
        if contested
            && self
                .objects
                .get(key)
                .is_some_and(|object| object.stripped() || object.ours() && !object.owned())
        {
            return Err("whose a copy is whose entry is gone");
        }
        let of_rule = copy.and_then(Object::rule);
        let marked = of_rule.filter(|rule| rules.contains(rule));
        let oldest = rules
            .iter()
            .map(|name| self.rules[*name].born)
            .min()
            .expect("no claim without a rule");
        let mut eldest = rules
            .into_iter()
            .filter(|name| self.rules[*name].born == oldest);
        let first = eldest.next().expect("one is the oldest");
        if contested {
            coverage.other(match &marked {
                Some(_) => "won by mark",
                None if eldest.next().is_some() => "won by name",
                None => "won by age",
            });
        }
        Ok(marked.unwrap_or_else(|| first.clone()))
    }
}
