//! Generates worlds by number. The same number gives the same world everywhere.

mod chance;
mod plots;
mod rules;
mod shrink;
mod tenants;

pub use self::{chance::Chance, shrink::smaller};
use self::{
    rules::{TYPES, members, rule, sources},
    tenants::{fitting_grants, some_grant, tenants_rule},
};
use super::{
    server::{Key, Res},
    spec::{Event, Fields, Nth, Story},
    tables::{CARRIED, COPY_MARKS},
};

const HOMES: [&str; 2] = ["p", "q"];
const NAMESPACES: [&str; 6] = ["t0", "t1", "t10", "team-a", "kube-system", "kube-public"];
const RULES: [&str; 3] = ["r0", "r1", "r2"];

fn platforms(rule: &str) -> Key {
    Key::new(Res::Rule, "", rule)
}

fn labels(chance: &mut Chance) -> Vec<(&'static str, &'static str)> {
    let team = chance.some(65, |chance| ("team", chance.of(&["a", "b"])));
    let tier = chance.some(40, |chance| ("tier", chance.of(&["gold", "iron"])));
    team.into_iter().chain(tier).collect()
}

fn value(chance: &mut Chance) -> String {
    chance.of(&["val1", "val2", "val3"]).to_owned()
}

/// Labels and annotations of tools and of users.
fn notes(chance: &mut Chance, percent: usize) -> Fields {
    if !chance.percent(percent) {
        return Vec::new();
    }
    let part = |chance: &mut Chance| chance.of(&["label", "ann", "ann"]);
    let note = |chance: &mut Chance| {
        (
            format!("{}/{}", part(chance), chance.of(&CARRIED).0),
            value(chance),
        )
    };
    unique(chance.few(3, note))
}

fn unique(mut fields: Fields) -> Fields {
    fields.sort();
    fields.dedup_by(|one, other| one.0 == other.0);
    fields
}

fn content(chance: &mut Chance, res: Res) -> Fields {
    let part = if res == Res::Widget { "spec" } else { "data" };
    let key = |chance: &mut Chance| {
        (
            format!("{part}/{}", chance.of(&["a", "b", "c1", "c2"])),
            value(chance),
        )
    };
    let mut fields = chance.few(3, key);
    if res == Res::ConfigMap && chance.percent(30) {
        fields.push((
            format!("binaryData/{}", chance.of(&["d", "ca"])),
            "djE=".to_owned(),
        ));
    }
    if res == Res::Secret && chance.percent(25) {
        let all = [
            TYPES[0],
            TYPES[1],
            TYPES[1],
            "kubernetes.io/service-account-token",
            "helm.sh/release.v1",
        ];
        fields.push(("type".to_owned(), chance.of(&all).to_owned()));
    }
    if res != Res::Widget && chance.percent(8) {
        fields.push(("immutable".to_owned(), "true".to_owned()));
    }
    unique(fields)
}

fn source(chance: &mut Chance, key: &Key) -> Event {
    let mut fields = content(chance, key.res);
    fields.extend(notes(chance, 50));
    // Selectors find the object by this label.
    fields.extend(chance.some(45, |chance| {
        (
            "label/app".to_owned(),
            chance.of(&["val1", "val2"]).to_owned(),
        )
    }));
    Event::Source(key.clone(), unique(fields))
}

fn foreign(chance: &mut Chance) -> Event {
    let nth = chance.below(64);
    let content = if chance.percent(40) {
        None
    } else {
        Some(vec![("data/a".to_owned(), value(chance))])
    };
    let mut more = Vec::new();
    if chance.percent(40) {
        more.push((format!("ann/{}", chance.of(&COPY_MARKS).0), "x".to_owned()));
    }
    if chance.percent(20) {
        more.push((
            "label/app.kubernetes.io/managed-by".to_owned(),
            "mimeo".to_owned(),
        ));
    }
    if chance.percent(15) {
        more.push(("fin/example.com/held".to_owned(), String::new()));
    }
    if chance.percent(20) {
        more.push(("data/z".to_owned(), value(chance)));
    }
    if chance.percent(15) {
        more.push(("immutable".to_owned(), "true".to_owned()));
    }
    Event::Foreign(nth, content, more)
}

fn edit(chance: &mut Chance) -> Event {
    let nth = chance.below(64);
    edited(chance, nth)
}

fn edited(chance: &mut Chance, nth: Nth) -> Event {
    let path = chance.of(&[
        "data/a",
        "data/a",
        "data/b",
        "data/z",
        "data/new-a",
        "spec/a",
        "label/app",
        "label/mine",
        "ann/note",
        "label/app.kubernetes.io/managed-by",
        "label/mimeo.dev/drift",
        "fin/example.com/held",
        "immutable",
    ]);
    let value = match path {
        "immutable" => Some("true".to_owned()),
        "label/app.kubernetes.io/managed-by" => None,
        "label/mimeo.dev/drift" => chance.some(40, |_| "deny".to_owned()),
        "fin/example.com/held" => Some(String::new()),
        _ => chance.some(75, value),
    };
    Event::Edit(nth, path.to_owned(), value)
}

/// A random event. `tenants` is true if namespaces of the world have rules of their own.
fn event(chance: &mut Chance, tenants: bool) -> Event {
    let nth = chance.below(64);
    let tenants = tenants && chance.percent(50);
    let name = if tenants {
        tenants::key(chance)
    } else {
        platforms(chance.of(&RULES))
    };
    let which = sources();
    let key = &which[[0, 0, 0, 1, 2, 3, 4, 5][chance.below(8)]];
    if tenants && chance.percent(30) {
        return if chance.percent(60) {
            Event::Revoke(nth)
        } else {
            some_grant(chance)
        };
    }
    match chance.below(47) {
        0..=5 => source(chance, key),
        6..=8 => Event::DeleteSource(key.clone()),
        9..=13 => Event::Namespace(chance.of(&NAMESPACES), labels(chance)),
        14 => Event::EndNamespace(chance.of(&NAMESPACES)),
        15 => Event::Reap(chance.of(&NAMESPACES)),
        16..=19 => {
            let spec = if tenants {
                tenants_rule(chance, &name)
            } else {
                rule(chance)
            };
            Event::Rule(name, spec)
        }
        20..=22 => Event::DeleteRule(name),
        23 | 24 => Event::Suspend(name),
        25..=28 => foreign(chance),
        29..=33 => edit(chance),
        34..=36 => Event::Delete(nth),
        37 => Event::Release(nth),
        38 => Event::Disown(nth),
        39 => Event::Clear(nth),
        40 => Event::Share(nth),
        41 | 45 => Event::Forge(nth, value(chance)),
        42 | 43 => {
            let key = chance.of(&members());
            source(chance, &key)
        }
        44 => Event::DeleteSource(chance.of(&members())),
        _ => Event::Restart,
    }
}

/// First the rules, namespaces, sources and the objects that occupy places of copies. Then the
/// events.
pub fn story(seed: u64) -> Story {
    let chance = &mut Chance::new(seed);
    let mut first: Vec<Event> = HOMES
        .iter()
        .map(|home| Event::Namespace(home, labels(chance)))
        .collect();
    let count = 1 + chance.below(3);
    for _ in 0..count {
        first.push(Event::Namespace(chance.of(&NAMESPACES), labels(chance)));
    }
    let all = sources();
    for key in &all {
        // The last two occupy places of copies of the others.
        if chance.percent(if HOMES.contains(&&*key.namespace) {
            93
        } else {
            30
        }) {
            first.push(source(chance, key));
        }
    }
    let tenants = chance.percent(45);
    let rules = if tenants {
        chance.below(3)
    } else {
        1 + chance.below(3)
    };
    first.extend(
        RULES[..rules]
            .iter()
            .map(|name| Event::Rule(platforms(name), rule(chance))),
    );
    if tenants {
        for _ in 0..=chance.below(2) {
            let name = tenants::key(chance);
            let spec = tenants_rule(chance, &name);
            first.extend(fitting_grants(chance, &name, &spec));
            first.push(Event::Rule(name, spec));
        }
        first.extend(chance.few(1, some_grant));
    }
    let selects =
        |event: &Event| matches!(event, Event::Rule(_, spec) if !spec.selected.is_empty());
    if first.iter().any(selects) {
        for key in members() {
            first.extend(chance.some(65, |chance| source(chance, &key)));
        }
    }
    first.extend(chance.few(2, foreign));
    let plot = chance.some(25, plots::plot).unwrap_or_default();
    first.extend(plot.first);
    let mut steps = vec![first];
    for _ in 0..chance.below(if plot.then.is_empty() { 6 } else { 4 }) {
        let mut step = vec![event(chance, tenants)];
        // A process that starts later does not know the former owner of the object, nor its former
        // content.
        if let Event::Clear(nth) | Event::Disown(nth) | Event::Forge(nth, _) = step[0]
            && chance.percent(60)
        {
            step.extend(chance.some(30, |chance| edited(chance, nth)));
            step.push(Event::Restart);
        }
        step.extend(chance.some(25, |chance| event(chance, tenants)));
        steps.push(step);
    }
    let mut at = 0;
    for step in plot.then {
        at += 1 + chance.below(steps.len() - at);
        steps.insert(at, step);
    }
    Story(steps)
}
