//! Random `Replication`s, and random grants of namespaces for them.

use super::{
    chance::Chance,
    rules::{EXACT, name, patch, pattern, rule, selector, sources},
};
use crate::worlds::{
    server::{Key, Res},
    spec::{Access, All, By, Event, GrantSpec, Granted, Inline, Policy, RuleSpec, Target},
};

/// The namespaces and names of these rules.
const TENANTS: [(&str, &str); 5] = [
    ("p", "r0"),
    ("q", "r0"),
    ("q", "a0"),
    ("t0", "r0"),
    ("t1", "r1"),
];
/// Namespaces with objects that other tenants want, or with places for their copies.
const GRANTING: [&str; 7] = ["p", "q", "t0", "t1", "t10", "team-a", "kube-system"];
/// Names of sources and of copies.
const OBJECTS: [&str; 7] = ["s0", "s1", "w0", "s*", "*-x", "shared", "x*"];

pub fn key(chance: &mut Chance) -> Key {
    let (home, name) = chance.of(&TENANTS);
    Key::new(Res::Replication, home, name)
}

fn home_of(rule: &Key) -> &'static str {
    TENANTS
        .iter()
        .map(|(home, _)| *home)
        .find(|home| *home == rule.namespace)
        .expect("it lives in one of these")
}

fn target(chance: &mut Chance, home: &'static str, several: bool) -> Target {
    let by = match chance.below(5) {
        0 | 1 => By::Home(home),
        2 | 3 => By::Names(vec![chance.of(&EXACT)]),
        _ => {
            let mut names = vec![home, chance.of(&EXACT)];
            names.sort_unstable();
            names.dedup();
            By::Names(names)
        }
    };
    Target {
        by,
        and: All::default(),
        name: chance.some(45, |chance| name(chance, several)),
    }
}

/// A `Replication` with this name. It is like a `ClusterReplication`, but names its sources and
/// namespaces.
pub fn tenants_rule(chance: &mut Chance, rule_name: &Key) -> Box<RuleSpec> {
    let home = home_of(rule_name);
    let mut all = sources().to_vec();
    // The source that most `ClusterReplication`s copy, too, under its own name.
    let rival = chance.percent(30);
    if !rival && chance.percent(65) {
        all.sort_by_key(|source| source.namespace != home);
    } else if !rival {
        let first = chance.below(all.len());
        all.rotate_left(first);
    }
    let mut named = vec![all[0].clone()];
    // Two copies with the same name would conflict.
    let other = all[1..]
        .iter()
        .find(|key| (key.res, &key.name) != (all[0].res, &all[0].name))
        .cloned();
    named.extend(other.filter(|_| chance.percent(25)));
    let mut spec = *rule(chance);
    if !rival && !spec.selected.is_empty() && chance.percent(90) {
        named.clear();
    } else {
        spec.selected.clear();
    }
    let kinds: Vec<Res> = named
        .iter()
        .map(|key| key.res)
        .chain(spec.selected.iter().map(|one| one.res))
        .collect();
    let several = named.len() > 1 || !spec.selected.is_empty();
    let mut targets = vec![target(chance, home, several)];
    if rival {
        targets[0].name = None;
    }
    targets.extend(chance.some(25, |chance| target(chance, home, several)));
    let abroad = targets.iter().any(|target| target.by != By::Home(home));
    let refused = spec.conflict == Policy::Overwrite && abroad && !chance.percent(80);
    if abroad && !refused {
        (spec.conflict, spec.deny) = (Policy::Report, false);
    }
    if kinds.iter().any(|kind| *kind != Res::Secret) {
        spec.transform.type_ = None;
    }
    if kinds.contains(&Res::Widget) {
        spec.transform.data = crate::worlds::spec::Data::default();
    }
    // The patch was made for the kinds of another rule.
    if !spec.transform.patch.is_empty() {
        spec.transform.patch = patch(chance, &kinds);
    }
    Box::new(RuleSpec {
        sources: named,
        inline: Inline::new(),
        targets,
        exclude: Vec::new(),
        ..spec
    })
}

fn grant(chance: &mut Chance, access: Access, home: &'static str, kind: Res) -> GrantSpec {
    let by = |chance: &mut Chance| match chance.below(10) {
        0..=3 => By::Names(vec![home]),
        4 => By::Names(vec![chance.of(&["*", "t*", "?", "p", "q"])]),
        5 => By::Pattern(pattern(chance)),
        _ => By::Selector(selector(chance)),
    };
    let granted = |chance: &mut Chance| Granted {
        kind: if chance.percent(85) {
            kind
        } else {
            chance.of(&[Res::Secret, Res::ConfigMap, Res::Widget])
        },
        names: chance
            .some(40, |chance| vec![chance.of(&OBJECTS)])
            .unwrap_or_default(),
    };
    let mut grantees = vec![by(chance)];
    grantees.extend(chance.some(20, by));
    let mut objects = vec![granted(chance)];
    objects.extend(chance.some(20, granted));
    GrantSpec {
        access,
        grantees,
        objects,
    }
}

fn grant_in(chance: &mut Chance, namespace: &str, grant: GrantSpec) -> Event {
    Event::Grant(
        Key::new(Res::Grant, namespace, chance.of(&["g0", "g1", "g2"])),
        grant,
    )
}

/// A random grant.
pub fn some_grant(chance: &mut Chance) -> Event {
    let namespace = chance.of(&GRANTING);
    let access = chance.of(&[Access::Read, Access::Write]);
    let home = chance.of(&TENANTS).0;
    let grant = grant(chance, access, home, Res::Secret);
    grant_in(chance, namespace, grant)
}

/// Grants for most of the access that a rule needs.
pub fn fitting_grants(chance: &mut Chance, rule: &Key, spec: &RuleSpec) -> Vec<Event> {
    let home = home_of(rule);
    let named = spec
        .sources
        .iter()
        .map(|source| (&*source.namespace, Access::Read, source.res));
    let selected = spec
        .selected
        .iter()
        .map(|selected| (selected.namespace, Access::Read, selected.res));
    let reads = named.chain(selected);
    let kind = spec
        .sources
        .first()
        .map_or_else(|| spec.selected[0].res, |source| source.res);
    let targets = spec.targets.iter().flat_map(|target| target.by.exact());
    let writes = targets.map(|namespace| (*namespace, Access::Write, kind));
    let mut events = Vec::new();
    for (namespace, access, kind) in reads
        .chain(writes)
        .filter(|(namespace, ..)| *namespace != home)
    {
        if chance.percent(85) {
            let grant = grant(chance, access, home, kind);
            events.push(grant_in(chance, namespace, grant));
        }
    }
    events
}
