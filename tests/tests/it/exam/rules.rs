//! Edits of rules and grants: random specs, and single changes of them.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use kube::api::Patch;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::cluster::{create, delete, grant, grants, patch, rule, rules, spec_of};
use super::edits::{Exam, RULES, SOURCES, TEAMS, TIERS};
use super::model::{
    Access, Cell, Conflict, Gate, KINDS, Kind, LONG_GRACE, Retention, Rule, RuleId, Spec, Strategy,
    Targets, Transform,
};

impl Exam {
    pub fn some_rule(&mut self) -> RuleId {
        let number = self.dice.below(RULES + 2);
        self.rule_id(number)
    }

    pub async fn write_rule(&mut self, id: &RuleId) -> Result<()> {
        let api = rules(&self.client, id)?;
        let before = self.world.rules.get(id).cloned();
        let spec = match &before {
            Some(rule) => self.changed(id, rule.spec.clone()),
            None => self.fresh(id),
        };
        let born = before.as_ref().map_or(self.count, |rule| rule.born);
        let wanted = Rule { born, spec };
        let (what, outcome) = if before.is_some() {
            let change =
                json!([{"op": "replace", "path": "/spec", "value": spec_of(id, &wanted.spec)}]);
            let change = Patch::Json::<Value>(serde_json::from_value(change)?);
            ("edit", patch(&api, &id.name, change).await?)
        } else {
            let object: DynamicObject = serde_json::from_value(rule(id, &wanted))?;
            ("create", create(&api, &object).await?)
        };
        if let Err(status) = outcome {
            bail!(
                "{what} {}: {} {}\n{:?}",
                id.name,
                status.code,
                status.message,
                wanted.spec
            );
        }
        self.count += 1;
        let spec = brief(&wanted.spec);
        self.world.rules.insert(id.clone(), wanted);
        self.note(&format!("{what} rule {} {spec}", id.word()));
        Ok(())
    }

    pub async fn delete_rule(&mut self, id: &RuleId) -> Result<()> {
        if self.world.rules.remove(id).is_some() {
            let api = rules(&self.client, id)?;
            let outcome = delete(&api, &id.name).await?;
            outcome.map_err(|status| anyhow::anyhow!("{}", status.message))?;
            self.note(&format!("delete rule {}", id.word()));
        }
        Ok(())
    }

    /// Deletes a rule and creates it again at once.
    pub async fn swap_rule(&mut self) -> Result<()> {
        let id = self.some_rule();
        self.delete_rule(&id).await?;
        self.write_rule(&id).await
    }

    fn fresh(&mut self, id: &RuleId) -> Spec {
        let plain = Retention {
            rule: false,
            unmatched: false,
            source: false,
            grace: 0,
        };
        let mut spec = Spec {
            sources: BTreeSet::new(),
            targets: Targets::Own,
            shared: false,
            transform: Transform::default(),
            strategy: Strategy::Apply,
            conflict: Conflict::Report,
            deny: false,
            retention: plain,
            gate: Gate::BestEffort,
            suspend: false,
        };
        spec.sources = self.sources(id);
        spec.targets = self.targets(id);
        for _ in 0..self.dice.below(6) {
            spec = self.changed(id, spec);
        }
        spec.retention = self.retention();
        let all = [
            Strategy::Apply,
            Strategy::Apply,
            Strategy::Replace,
            Strategy::CreateOnce,
        ];
        spec.strategy = self.dice.one_of(&all).unwrap_or(Strategy::Apply);
        (spec.deny, spec.shared) = (false, spec.shared && spec.strategy != Strategy::CreateOnce);
        spec.suspend = false;
        spec
    }

    /// The rule that writes into other namespaces copies its own objects.
    fn sources(&mut self, id: &RuleId) -> BTreeSet<Cell> {
        let own = *id == self.rule_id(RULES);
        let numbers: Vec<u64> = (0..=self.dice.below(3))
            .map(|_| self.dice.below(SOURCES))
            .collect();
        numbers
            .into_iter()
            .map(|number| {
                if own {
                    self.own(number % 2)
                } else {
                    self.source(number)
                }
            })
            .collect()
    }

    fn targets(&mut self, id: &RuleId) -> Targets {
        let slot = |number: u64| format!("{}-n{number}", self.tag);
        let slots = [slot(0), slot(1), slot(2), slot(3)];
        let tenant = self.tenant();
        if id.home.is_none() {
            let team = self.dice.one_of(&TEAMS).unwrap_or_default();
            return match self.dice.below(5) {
                0 => Targets::Team(team, self.dice.one_of(&TIERS)),
                1 => Targets::Names(slots[..2].iter().cloned().chain([tenant]).collect()),
                _ => Targets::Team(team, None),
            };
        }
        if *id == self.rule_id(RULES) {
            let first = self.dice.below(3);
            let first = usize::try_from(first).unwrap_or_default();
            return Targets::Names(slots[first..first + 2].iter().cloned().collect());
        }
        Targets::Own
    }

    /// Returns the spec with one change.
    fn changed(&mut self, id: &RuleId, mut spec: Spec) -> Spec {
        let platform = id.home.is_none();
        match self.dice.below(14) {
            0..2 => spec.targets = self.targets(id),
            2..4 => spec.sources = self.sources(id),
            4 => spec.transform.exclude ^= true,
            5 => spec.transform.rename ^= true,
            6 => spec.transform.set = self.dice.once_in(2).then(|| self.dice.below(1000)),
            7 => spec.transform.unlabel ^= true,
            8 => {
                let all = [
                    Strategy::Apply,
                    Strategy::Apply,
                    Strategy::Replace,
                    Strategy::CreateOnce,
                ];
                spec.strategy = self.dice.one_of(&all).unwrap_or(Strategy::Apply);
            }
            9 if platform => {
                let all = [Conflict::Report, Conflict::Adopt, Conflict::Overwrite];
                spec.conflict = self.dice.one_of(&all).unwrap_or(Conflict::Report);
            }
            10 if platform => {
                spec.deny ^= true;
                spec.strategy = Strategy::Replace;
            }
            11 => spec.retention = self.retention(),
            12 => {
                let all = [Gate::BestEffort, Gate::Required, Gate::None];
                spec.gate = self.dice.one_of(&all).unwrap_or(Gate::BestEffort);
            }
            13 if self.dice.once_in(2) => spec.shared ^= true,
            _ => spec.suspend ^= true,
        }
        // `Deny` requires `Replace`. A copy that is created once belongs to its owner: no drift is
        // denied, and no other rule has the copy's name.
        spec.deny &= spec.strategy == Strategy::Replace;
        spec.shared &= spec.strategy != Strategy::CreateOnce && *id != self.rule_id(RULES);
        spec
    }

    fn retention(&mut self) -> Retention {
        let [rule, unmatched, source] = [(); 3].map(|()| self.dice.once_in(4));
        let grace = self
            .dice
            .one_of(&[0, 0, 0, 1, 2, LONG_GRACE])
            .unwrap_or_default();
        Retention {
            rule,
            unmatched,
            source,
            grace,
        }
    }

    pub async fn write_grant(
        &mut self,
        namespace: &str,
        access: Access,
        kinds: BTreeSet<Kind>,
    ) -> Result<()> {
        let api = grants(&self.client, namespace)?;
        let object = grant(access, &self.tenant(), &kinds);
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let key = (namespace.to_owned(), access);
        let outcome = if self.world.grants.contains_key(&key) {
            let change = Patch::Merge(json!({"spec": object["spec"]}));
            patch(&api, &name, change).await?
        } else {
            let object: DynamicObject = serde_json::from_value(object)?;
            create(&api, &object).await?
        };
        outcome.map_err(|status| anyhow::anyhow!("a grant was refused: {}", status.message))?;
        self.note(&format!("{access:?} granted by {namespace} for {kinds:?}"));
        self.world.grants.insert(key, kinds);
        self.note("the grant counts");
        Ok(())
    }

    pub async fn toggle_grant(&mut self) -> Result<()> {
        let slots: Vec<String> = (0..4)
            .map(|number| format!("{}-n{number}", self.tag))
            .collect();
        let live: Vec<String> = slots
            .into_iter()
            .filter(|name| self.world.namespaces.contains_key(name))
            .collect();
        let (namespace, access) = match self.dice.one_of(&live) {
            Some(name) if !self.dice.once_in(3) => (name, Access::Write),
            _ => (self.home(), Access::Read),
        };
        let key = (namespace.clone(), access);
        if self.world.grants.contains_key(&key) && self.dice.once_in(2) {
            let api = grants(&self.client, &namespace)?;
            let name = format!("{access:?}").to_lowercase();
            let outcome = delete(&api, &name).await?;
            outcome.map_err(|status| anyhow::anyhow!("{}", status.message))?;
            self.world.grants.remove(&key);
            self.note(&format!("{access:?} granted by {namespace} no more"));
            return Ok(());
        }
        let kinds = self
            .dice
            .one_of(&[KINDS.into(), [Kind::Secret].into()])
            .unwrap_or_default();
        self.write_grant(&namespace, access, kinds).await
    }
}

/// Describes a rule in one line.
pub fn brief(spec: &Spec) -> String {
    let sources: Vec<&str> = spec.sources.iter().map(|cell| cell.name.as_str()).collect();
    let Retention {
        rule,
        unmatched,
        source,
        grace,
    } = spec.retention;
    let flags = [
        (spec.shared, "shared"),
        (spec.deny, "Deny"),
        (spec.suspend, "suspended"),
    ];
    let flags: Vec<&str> = flags
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, flag)| *flag)
        .collect();
    let Spec {
        targets,
        transform,
        strategy,
        conflict,
        gate,
        ..
    } = spec;
    format!(
        "{sources:?} to {targets:?}, {strategy:?}, {conflict:?}, gate {gate:?}, retain rule {rule} unmatched {unmatched} \
         source {source} grace {grace}, {transform:?} {flags:?}"
    )
}
