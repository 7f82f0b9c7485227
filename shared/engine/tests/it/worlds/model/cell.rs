//! Decides about one place (namespace, kind and name) that a rule has.

use super::{Model, Object, Rule, Silence, State, is_content};
use crate::worlds::{
    patch,
    render::{self, Content, Withheld},
    server::{Key, Res},
    spec::{Keep, Policy, RuleSpec, Strategy},
    tables::{Coverage, Found, Then, Why},
};

impl Model {
    fn found(&self, key: &Key, rule: &Key, copy: &Content, coverage: &mut Coverage) -> Found {
        let Some(object) = self.objects.get(key) else {
            return Found::Nothing;
        };
        let content = |fields: &Content| -> Content {
            fields
                .iter()
                .filter(|(path, _)| is_content(path))
                .map(|(a, b)| (a.clone(), b.clone()))
                .collect()
        };
        let keys = object
            .fields
            .keys()
            .filter_map(|path| path.strip_prefix("ann/").or(path.strip_prefix("label/")));
        let marks = keys.filter(|key| coverage.marks(key)).count() > 0;
        match object {
            _ if object.deleting => Found::Deleting,
            _ if object.ours() && object.rule().as_ref() == Some(rule) => Found::Own,
            _ if object.ours() => Found::Others,
            _ if self.is_source(key, rule, coverage) => Found::Source,
            _ if content(&object.values()) == content(copy) => Found::Same,
            _ if marks => Found::Marked,
            _ => Found::Foreign,
        }
    }

    /// Decides about one cell that the rule has.
    pub(super) fn wanted(
        &mut self,
        key: &Key,
        rule: &Key,
        source: &Key,
        contested: bool,
        coverage: &mut Coverage,
    ) -> Result<State, Silence> {
        let spec = self.rules[rule].spec.clone();
        let seed = (
            self.namespaces[&key.namespace].id,
            rule.clone(),
            key.clone(),
        );
        let seeded = spec.strategy == Strategy::CreateOnce && self.seeded.contains(&seed);
        if self.rules[rule].rests() {
            if spec.suspend {
                coverage.other("suspended");
            }
            return Ok(if seeded { State::Synced } else { State::Open });
        }
        // A source that a selector has lost since this round began has no copy in the next round.
        if !spec.sources.contains(source)
            && !spec
                .selected
                .iter()
                .any(|selected| self.matches(selected, source))
        {
            return Ok(State::Open);
        }
        let there = self.objects.contains_key(key);
        let once = spec.strategy == Strategy::CreateOnce && !seeded && there;
        if spec.strategy == Strategy::CreateOnce && !seeded && !there && self.emptied.contains(key)
        {
            return Err("whether a seed was there before it was taken away");
        }
        if seeded
            && self.objects.get(key).is_some_and(Object::ours)
            && self.content(&spec, source).is_none()
        {
            self.end(
                key,
                Why::SourceDeleted,
                rule,
                spec.retention.source_deleted,
                coverage,
            )?;
        }
        let copy = match self.copy(rule, source, key, coverage) {
            _ if seeded => Content::new(),
            Ok(None) | Err(_) if once => {
                return Err("what counts as created where nothing could be");
            }
            Ok(None) => return self.sourceless(key, rule, source, coverage),
            Err(Withheld::Unset) => {
                coverage.other("variable unset in content");
                return Ok(State::Failed("VariableUnset"));
            }
            Err(Withheld::Refused) => {
                coverage.other("source refused");
                return Ok(State::Open);
            }
            // Before a forged copy is restored, it may be fit to be copied again.
            Err(Withheld::Unfit) if self.objects.get(source).is_some_and(Object::ours) => {
                return Err("a copy that is made into what is no copy");
            }
            Err(Withheld::Unfit) => {
                coverage.other("made into what is no copy");
                return Ok(State::Failed("Invalid"));
            }
            Err(Withheld::Untold(silence)) => return Err(silence),
            Ok(Some(copy)) => copy,
        };
        if self
            .objects
            .get(source)
            .is_some_and(|source| source.deleting)
        {
            return Err("a source that is being deleted");
        }
        if self.objects.get(source).is_some_and(Object::ours) {
            coverage.other("a chain of rules");
        }
        let found = self.found(key, rule, &copy, coverage);
        let object = self.objects.get(key);
        // A copy that a changed rule no longer wants may be deleted before the other rule sees it,
        // or may count as created.
        let left = |of: Key| of != *rule && self.changed.contains(&of);
        if spec.strategy == Strategy::CreateOnce
            && !seeded
            && object.and_then(Object::rule).is_some_and(left)
        {
            return Err("what a changed rule leaves to one that creates once");
        }
        if self.may_be_source(key, rule, coverage) && object.is_some_and(|object| !object.ours()) {
            return Err("the source of a rule that doesn't count");
        }
        if object.is_some_and(Object::blurred) {
            return Err("whose a field is that nobody owns");
        }
        // An object that lost its entry is taken back if it has the content, as under Adopt.
        let stripped = object.is_some_and(|object| object.stripped() && !object.ours());
        let mut conflict = spec.conflict;
        if stripped && conflict == Policy::Report && spec.strategy != Strategy::CreateOnce {
            coverage.other(if found == Found::Same {
                "taken back by its content"
            } else {
                "not taken back"
            });
            conflict = if found == Found::Same {
                Policy::Adopt
            } else {
                Policy::Report
            };
        } else if object.is_some_and(|object| object.ours() && !object.owned()) {
            coverage.other("taken back by its uid");
        }
        if object.is_some_and(|object| !object.hidden.is_empty() && object.watched)
            && self.touched.contains(key)
        {
            return Err("what is changed without a trace as something else is");
        }
        // A dry run would find that out by the API server's refusal.
        if object
            .is_some_and(|object| !object.hidden.is_empty() && !object.watched && object.fixed())
        {
            return Err("what was changed without a trace, and is immutable since");
        }
        let then = coverage.cell(spec.strategy, seeded, found, conflict);
        if then == Then::Write && self.is_named_above(key, rule) {
            coverage.other("named by a rule of a higher rank");
            return Ok(State::Failed("Conflict"));
        }
        if then == Then::Write && self.kept(key, rule, coverage) {
            if object.is_some_and(|object| !object.shown()) {
                return Err("whose a copy is that no watch shows");
            }
            return Ok(State::Failed("RuleConflict"));
        }
        let state = match then {
            Then::Write => self.become_copy(key, &copy, &spec, contested, coverage)?,
            Then::Created => State::Synced,
            Then::Conflict => State::Failed("Conflict"),
            Then::Silent => return Err("how a seed is counted"),
        };
        match spec.strategy {
            Strategy::CreateOnce if state == State::Synced => {
                self.seeded.insert(seed);
                if then == Then::Write {
                    self.sown.insert(source.clone());
                    let born = self.rules[rule].born;
                    self.objects
                        .entry(key.clone())
                        .and_modify(|copy| copy.rules_birth = Some(born));
                }
            }
            Strategy::Apply | Strategy::Replace if then == Then::Write => {
                _ = self.seeded.remove(&seed);
            }
            _ => {}
        }
        Ok(state)
    }

    /// True if the object stays the copy of another rule, a `ClusterReplication` that does nothing.
    /// While that rule is refused, its wishes are unknown. It leaves an object to a tenant's rule
    /// only if it is active and no longer wants the object.
    fn kept(&self, key: &Key, rule: &Key, coverage: &mut Coverage) -> bool {
        let copy = self.objects.get(key).filter(|object| object.ours());
        let Some(of) = copy
            .and_then(Object::rule)
            .filter(|of| of.res == Res::Rule && of != rule)
        else {
            return false;
        };
        let refused = |rule: &Rule| render::refused(&of, &rule.spec);
        let tenants = rule.res == Res::Replication;
        match self.rules.get(&of) {
            Some(former) if refused(former) && !tenants => {
                coverage.other("kept by a rule that is refused");
            }
            Some(former) if tenants && (former.rests() || refused(former)) => {
                coverage.other("kept from a tenant by a rule that rests");
            }
            _ => {
                if tenants {
                    coverage.other("passed on to a tenant");
                }
                return false;
            }
        }
        true
    }

    /// Turns the object into the copy, as far as the documents say how.
    fn become_copy(
        &mut self,
        key: &Key,
        copy: &Content,
        spec: &RuleSpec,
        contested: bool,
        coverage: &mut Coverage,
    ) -> Result<State, Silence> {
        if let Some(object) = self
            .objects
            .get(key)
            .filter(|object| object.must_go(copy, spec.strategy))
        {
            // The copy is applied before Mimeo finds that it can't remove the other fields.
            if object.held() && !object.refuses(copy) {
                return Err("what has half become a copy and is held by a finalizer");
            }
            // Between the deletion and the new create no object carries Mimeo's label.
            if contested {
                return Err("whose a copy is that is made anew");
            }
            if object.ours() && !object.shown() {
                return Err("a copy that no watch shows and that can't be changed in place");
            }
        }
        Ok(self.write(key, copy, spec, coverage))
    }

    fn write(
        &mut self,
        key: &Key,
        copy: &Content,
        spec: &RuleSpec,
        coverage: &mut Coverage,
    ) -> State {
        let before = self.objects.get(key).map(Object::values);
        let object = self.objects.entry(key.clone()).or_default();
        if !object.hidden.is_empty() && !right_again(object, copy, spec, coverage) {
            return State::Synced;
        }
        let goes = object.must_go(copy, spec.strategy);
        if object.refuses(copy) && !object.ours() && spec.conflict == Policy::Adopt {
            let typed = object.value("type") != copy.get("type").map(String::as_str);
            coverage.other(if typed {
                "not adopted for its type"
            } else {
                "not adopted, being immutable"
            });
            return State::Failed("Invalid");
        }
        if goes {
            // An object that can't be changed in place is deleted and created again.
            let typed = object.value("type") != copy.get("type").map(String::as_str);
            coverage.other(if typed {
                "replaced for its type"
            } else {
                "replaced, being immutable"
            });
            self.remove(key);
            if self.objects.contains_key(key) {
                coverage.other("waits for a finalizer");
                return State::Failed("Conflict");
            }
        }
        let object = self.objects.entry(key.clone()).or_default();
        let of = |content: Option<&Content>| {
            content
                .and_then(|content| content.get("ann/mimeo.dev/rule"))
                .cloned()
        };
        if of(before.as_ref()) != of(Some(copy)) {
            self.taken.insert(key.clone());
        }
        object.apply(copy, spec.strategy, coverage);
        if before.is_some_and(|before| object.values() != before) {
            self.rewritten.insert(key.clone());
        }
        State::Synced
    }

    /// Decides about a cell without a source.
    fn sourceless(
        &mut self,
        key: &Key,
        rule: &Key,
        source: &Key,
        coverage: &mut Coverage,
    ) -> Result<State, Silence> {
        coverage.other("source missing");
        let Some(copy) = self
            .objects
            .get(key)
            .filter(|object| object.ours() && !object.deleting)
        else {
            // If the other action came first, the copy exists and stays.
            let spec = &self.rules[rule].spec;
            let stays = spec.strategy == Strategy::CreateOnce
                || spec.retention.source_deleted == Keep::Retain;
            if stays && self.ended.contains(source) {
                return Err("what is copied of a copy that goes at the same time");
            }
            return Ok(State::Open);
        };
        let of_this = copy.value("ann/mimeo.dev/source") == Some(&render::origin(source));
        if copy.rule().as_ref() != Some(rule) || !of_this {
            return Err("another copy where the source is missing");
        }
        let Rule { spec, born } = &self.rules[rule];
        // A copy that a former rule of the same name retained is not deleted for a rule that has
        // never written it.
        let stays = copy
            .value("ann/mimeo.dev/retention")
            .is_some_and(|mark| mark.contains("rule_deleted: Retain"));
        if stays && copy.rules_birth != Some(*born) {
            coverage.other("left by a former rule of the name");
            return Ok(State::Open);
        }
        let keep = spec.retention.source_deleted;
        self.end(key, Why::SourceDeleted, rule, keep, coverage)?;
        Ok(State::Open)
    }
}

/// True if a copy is restored after a change without a trace.
fn right_again(object: &Object, copy: &Content, spec: &RuleSpec, coverage: &mut Coverage) -> bool {
    let due = !object.seems(copy, spec.strategy);
    let right = coverage.unseen(object.watched, spec.resync > 0, due);
    // The right content of such a list is unknown, so a new process applies each copy.
    let anew = !right && !object.watched && patch::leaves_a_varying_list(&spec.transform.patch);
    if anew {
        coverage.other("applied anew for a variable in a list");
    }
    right || anew
}
