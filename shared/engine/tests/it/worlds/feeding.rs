//! A finite number of writes follows each event, even though rules copy each other's copies.
//!
//! The model of the other worlds does not cover rules that feed each other. These worlds consist of
//! such rules: there are few places, and every rule may name or select objects where another rule
//! writes. Copies keep the label that selectors look for, and rules swap two values. So a ring of
//! rules would never come to rest.

use super::{
    drive::{Cluster, Done},
    generate::Chance,
    model::Deed,
    number,
    server::{Key, Res},
    spec::{
        Access, All, By, Data, GrantSpec, Granted, Keep, Op, Piece, Policy, Retention, RuleSpec,
        Selected, Selector, Strategy, Target, Text, Transform, Typed,
    },
};

/// The number of worlds in a normal run. `make test` tries more.
const WORLDS: u64 = 500;
const STEPS: usize = 14;
/// The largest number of writes that may follow one step. The rules here want some dozens of
/// copies.
const WRITES: usize = 100;

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const NAMES: [&str; 5] = ["x", "y", "z", "x-x", "y-x"];
const LABEL: &str = "pick";

fn key(chance: &mut Chance) -> Key {
    Key::new(Res::Secret, chance.of(&NAMESPACES), chance.of(&NAMES))
}

fn rule_name(chance: &mut Chance) -> Key {
    if chance.percent(60) {
        Key::new(Res::Rule, "", chance.of(&["r1", "r2", "r3", "r4"]))
    } else {
        Key::new(
            Res::Replication,
            chance.of(&NAMESPACES),
            chance.of(&["t1", "t2"]),
        )
    }
}

fn rule(chance: &mut Chance, name: &Key) -> RuleSpec {
    let selects = chance.percent(40);
    let selected = selects.then(|| Selected {
        res: Res::Secret,
        namespace: chance.of(&NAMESPACES),
        selector: Selector {
            labels: vec![],
            expressions: vec![(LABEL, Op::Exists, vec![])],
        },
    });
    let mut sources = vec![];
    if !selects || chance.percent(20) {
        sources.push(key(chance));
    }
    let alone = !selects && sources.len() == 1;
    let targets = (0..=chance.below(2))
        .map(|_| target(chance, name, alone))
        .collect();
    let swap = Data {
        rename: vec![("a", "b"), ("b", "a")],
        ..Data::default()
    };
    RuleSpec {
        sources,
        inline: [].into(),
        selected: selected.into_iter().collect(),
        targets,
        exclude: vec![],
        transform: Transform {
            data: chance.some(50, |_| swap).unwrap_or_default(),
            ..Transform::default()
        },
        strategy: chance.of(&[Strategy::Apply, Strategy::Apply, Strategy::Replace]),
        conflict: chance.of(&[Policy::Report, Policy::Adopt, Policy::Overwrite]),
        deny: false,
        retention: Retention {
            source_deleted: chance.of(&[Keep::Delete, Keep::Delete, Keep::Retain]),
            ..Retention::default()
        },
        grace: chance.of(&[0, 60]),
        resync: 0,
        suspend: false,
        typed: Typed::default(),
    }
}

fn target(chance: &mut Chance, rule: &Key, alone: bool) -> Target {
    let by = if rule.res == Res::Rule && chance.percent(40) {
        By::Selector(Selector::default())
    } else {
        let first = chance.of(&NAMESPACES);
        let second = chance.of(&NAMESPACES);
        By::Names(if first == second {
            vec![first]
        } else {
            vec![first, second]
        })
    };
    let name = match chance.below(3) {
        0 if alone => Some(Text(vec![Piece::Text(chance.of(&NAMES))])),
        0 | 1 => Some(Text(vec![Piece::SourceName, Piece::Text("-x")])),
        _ => None,
    };
    Target {
        by,
        and: All::default(),
        name,
    }
}

/// A random action of one user, given the existing objects.
fn deed(chance: &mut Chance, there: &[Key]) -> Deed {
    let some = |chance: &mut Chance| {
        if there.is_empty() {
            key(chance)
        } else {
            chance.of(there)
        }
    };
    let set = |path: &str, value: Option<&str>| vec![(path.to_owned(), value.map(str::to_owned))];
    match chance.below(20) {
        0..=6 => {
            let name = rule_name(chance);
            let spec = rule(chance, &name);
            Deed::Rule(name, Box::new(spec))
        }
        7 | 8 => Deed::DeleteRule(rule_name(chance)),
        9..=11 => {
            let field = |path: &str, value: &str| (path.to_owned(), value.to_owned());
            let mut fields = vec![
                field("type", "Opaque"),
                field("data/a", "YQ=="),
                field("data/b", "Yg=="),
            ];
            if chance.percent(80) {
                fields.push(field(&format!("label/{LABEL}"), "yes"));
            }
            Deed::Create(key(chance), fields)
        }
        12 | 13 => Deed::Change(
            some(chance),
            set("data/a", Some(chance.of(&["YQ==", "Yw==", "ZA=="]))),
        ),
        14 => Deed::Change(
            some(chance),
            set(&format!("label/{LABEL}"), chance.of(&[None, Some("yes")])),
        ),
        15 => Deed::Change(some(chance), set("ann/mimeo.dev/rule", None)),
        16 => Deed::Clear(some(chance)),
        17 | 18 => Deed::Remove(some(chance)),
        _ => Deed::Restart,
    }
}

/// Plays one world. Returns the largest number of writes that followed one step.
fn play(seed: u64) -> Result<usize, String> {
    let (mut chance, mut cluster) = (Chance::new(seed), Cluster::new());
    let mut deeds = Vec::new();
    for name in NAMESPACES {
        deeds.push(Deed::Namespace(name.to_owned(), [].into()));
        for access in [Access::Read, Access::Write] {
            let grant = GrantSpec {
                access,
                grantees: vec![By::Selector(Selector::default())],
                objects: vec![Granted {
                    kind: Res::Secret,
                    names: vec![],
                }],
            };
            let name = Key::new(Res::Grant, name, &format!("{access:?}").to_lowercase());
            deeds.push(Deed::Grant(name, grant));
        }
    }
    for deed in &deeds {
        assert_eq!(cluster.act(deed), Done::Yes, "{deed:?}");
    }
    let mut most = 0;
    for _ in 0..STEPS {
        for _ in 0..=chance.below(3) {
            let there: Vec<Key> = cluster.objects().into_keys().collect();
            let deed = deed(&mut chance, &there);
            cluster.act(&deed);
            deeds.push(deed);
        }
        let before = cluster.writes();
        let rest = cluster.settle();
        let writes = cluster.writes() - before;
        most = most.max(writes);
        if rest.is_err() || writes > WRITES {
            let deeds: Vec<String> = deeds.iter().map(|deed| format!("{deed:?}")).collect();
            return Err(format!(
                "{rest:?} after {writes} writes\n  {}",
                deeds.join("\n  ")
            ));
        }
    }
    Ok(most)
}

#[test]
fn a_finite_number_of_writes_follows_each_event() {
    let worlds = number("MIMEO_WORLDS").map_or(WORLDS, |worlds| worlds.div_ceil(20));
    let most = (0..worlds)
        .map(|seed| play(seed).unwrap_or_else(|why| panic!("world {seed}: {why}")))
        .max();
    println!("at most {most:?} writes after one step of {worlds} worlds");
}
