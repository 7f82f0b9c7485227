//! What chance alone hardly ever makes up: two rules about one place, or one rule that becomes another. Whatever else happens, happens
//! around it.

use super::{
    RULES,
    chance::Chance,
    platforms,
    rules::{rule, sources},
    source,
    tenants::{self, fitting_grants, tenants_rule},
};
use crate::{
    server::{Key, Res},
    spec::{By, Event, Inline, Keep, Piece, Policy, RuleSpec, Strategy, Target, Text},
};

/// What happens first, and what in later steps.
#[derive(Default)]
pub struct Plot {
    pub first: Vec<Event>,
    pub then: Vec<Event>,
}

pub fn plot(chance: &mut Chance) -> Plot {
    match chance.below(4) {
        0 => rivals(chance, false),
        1 => rivals(chance, true),
        2 => in_the_way(chance),
        _ => strategies(chance),
    }
}

/// The platform's rule and a tenant's, about the same places; the platform's may come first, and later rest and want them no more.
fn rivals(chance: &mut Chance, first: bool) -> Plot {
    let tenants = tenants::key(chance);
    let mut spec = tenants_rule(chance, &tenants);
    spec.suspend = false;
    let mut plot = Plot { first: fitting_grants(chance, &tenants, &spec), ..Plot::default() };
    let name = platforms(chance.of(&RULES));
    let mut over = alike(chance, &spec);
    let other = platforms("r2");
    let theirs = match (first && name != other).then(|| chance.percent(30)) {
        // Among the platform's own only what it can't be understood in keeps a rule's copies.
        Some(true) => Event::Rule(other, Box::new(alike(chance, &spec))),
        _ => Event::Rule(tenants, spec),
    };
    let ours = Event::Rule(name.clone(), Box::new(over.clone()));
    if first {
        plot.first.push(ours);
        plot.first.extend(chance.percent(50).then(|| theirs.clone()));
        over.targets.iter_mut().for_each(|target| target.name = Some(Text(vec![Piece::SourceName, Piece::Text("-z")])));
        if chance.percent(60) {
            over.suspend = true;
        } else if chance.percent(80) {
            over.transform.labels.set.push(("note", Text(vec![Piece::Unknown("namespace.uid")])));
        }
        plot.then = vec![theirs, Event::Rule(name.clone(), Box::new(over))];
        plot.then.extend(chance.percent(50).then(|| Event::Suspend(name)));
    } else {
        plot.first.push(theirs);
        plot.then.push(ours);
        plot.then.extend(chance.percent(40).then(|| Event::DeleteRule(name)));
    }
    plot
}

/// A rule of the platform's for the same copies.
fn alike(chance: &mut Chance, spec: &RuleSpec) -> RuleSpec {
    let own = *rule(chance);
    let target = |target: &Target| Target { by: By::Names(target.by.exact().to_vec()), ..target.clone() };
    RuleSpec {
        sources: spec.sources.clone(),
        inline: spec.inline.clone(),
        targets: spec.targets.iter().map(target).collect(),
        transform: spec.transform.clone(),
        suspend: false,
        ..own
    }
}

/// What a tenant's rule copies is where the platform's copies go.
fn in_the_way(chance: &mut Chance) -> Plot {
    let all = sources();
    let (own, other, name) = chance.of(&[(&all[4], &all[0], "r0"), (&all[5], &all[1], "r1")]);
    let home = if own.namespace == "t0" { "t0" } else { "t1" };
    let tenants = Key::new(Res::Replication, home, name);
    let by_name = |source: &Key, by: By, name: Option<Text>, spec: Box<RuleSpec>| RuleSpec {
        sources: vec![source.clone()],
        inline: Inline::new(),
        targets: vec![Target { by, exclude: None, name }],
        transform: crate::spec::Transform::default(),
        ..*spec
    };
    let mut theirs = by_name(own, By::Home(home), Some(Text(vec![Piece::Text("shared")])), rule(chance));
    theirs.conflict = Policy::Fail;
    let mut ours = by_name(other, By::Names(vec![home]), None, rule(chance));
    ours.conflict = chance.of(&[Policy::Overwrite, Policy::Overwrite, Policy::Adopt, Policy::Fail]);
    ours.suspend = false;
    let theirs = Event::Rule(tenants, Box::new(theirs));
    let platforms = platforms(chance.of(&RULES));
    let ours = Event::Rule(platforms.clone(), Box::new(ours));
    let mut first = vec![Event::Namespace(home, super::labels(chance)), source(chance, other)];
    first.extend(chance.percent(80).then(|| source(chance, own)));
    first.push(theirs);
    if chance.percent(50) {
        first.push(ours);
        Plot { first, then: vec![Event::DeleteRule(platforms)] }
    } else {
        Plot { first, then: vec![ours] }
    }
}

/// A rule that comes to create its copies once, or to keep them; and then ends, or goes elsewhere.
fn strategies(chance: &mut Chance) -> Plot {
    let tenants = chance.percent(30);
    let name = if tenants { tenants::key(chance) } else { platforms(chance.of(&RULES)) };
    let mut spec = if tenants { tenants_rule(chance, &name) } else { rule(chance) };
    spec.suspend = false;
    let first_grants = if tenants { fitting_grants(chance, &name, &spec) } else { Vec::new() };
    let keeps = chance.of(&[Strategy::Apply, Strategy::Replace]);
    spec.retention.rule_deleted = if chance.percent(85) { Keep::Delete } else { Keep::Retain };
    let of = |strategy| Event::Rule(name.clone(), Box::new(RuleSpec { strategy, ..(*spec).clone() }));
    let (kept, once) = (of(keeps), of(Strategy::CreateOnce));
    let mut plot = Plot { first: first_grants, then: Vec::new() };
    if chance.percent(70) {
        plot.first.push(kept);
        plot.then.push(once);
    } else {
        plot.first.push(once);
        plot.then.push(kept);
    }
    plot.then.push(Event::DeleteRule(name));
    plot
}
