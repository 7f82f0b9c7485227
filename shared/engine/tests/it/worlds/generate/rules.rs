//! Random rules as a user might write them.

use super::chance::Chance;
use crate::worlds::{
    server::{Key, Res},
    spec::{
        All, By, Data, Inline, Keep, Keys, Op, Operation, Pattern, Piece, Policy, Retention,
        RuleSpec, Selected, Selector, Strategy, Target, Text, Transform, Typed, Worth,
    },
};

const GLOBS: [&str; 9] = ["t*", "t?", "*", "team-*", "kube-*", "?", "*-a", "t?0", "q*"];
pub const EXACT: [&str; 8] = [
    "t0",
    "t1",
    "t10",
    "team-a",
    "kube-system",
    "kube-public",
    "q",
    "p",
];
pub const TYPES: [&str; 2] = ["Opaque", "example.com/other"];

/// The objects that rules name as their sources. The last two are places where copies of the first
/// can be.
pub fn sources() -> [Key; 6] {
    [
        Key::new(Res::Secret, "p", "s0"),
        Key::new(Res::ConfigMap, "p", "s0"),
        Key::new(Res::Secret, "q", "s1"),
        Key::new(Res::Widget, "p", "w0"),
        Key::new(Res::Secret, "t0", "s0"),
        Key::new(Res::ConfigMap, "t1", "s0"),
    ]
}

/// Further objects for selectors to find.
pub fn members() -> [Key; 6] {
    [
        Key::new(Res::Secret, "p", "m0"),
        Key::new(Res::Secret, "p", "m1"),
        Key::new(Res::Secret, "t0", "m0"),
        Key::new(Res::ConfigMap, "p", "m2"),
        Key::new(Res::ConfigMap, "q", "m2"),
        Key::new(Res::Widget, "p", "m3"),
    ]
}

pub fn pattern(chance: &mut Chance) -> Pattern {
    let all = [
        Pattern::All(vec![Pattern::Text("t"), Pattern::Digits]),
        Pattern::All(vec![Pattern::Text("t"), Pattern::Rest]),
        Pattern::Either(vec![Pattern::Text("t0"), Pattern::Text("team")]),
        Pattern::All(vec![
            Pattern::Either(vec![Pattern::Text("t"), Pattern::Text("team-")]),
            Pattern::Rest,
        ]),
        Pattern::Text("t1"),
        Pattern::Rest,
        Pattern::All(vec![Pattern::Text("kube-"), Pattern::Rest]),
    ];
    chance.of(&all)
}

pub fn selector(chance: &mut Chance) -> Selector {
    let label = |chance: &mut Chance| chance.of(&[("team", "a"), ("team", "b"), ("tier", "gold")]);
    let expression = |chance: &mut Chance| {
        let op = chance.of(&[Op::In, Op::NotIn, Op::Exists, Op::DoesNotExist]);
        let key = chance.of(&["team", "tier"]);
        let values = chance.of(&[vec!["a"], vec!["a", "b"], vec!["gold", "b"]]);
        (
            key,
            op,
            if matches!(op, Op::In | Op::NotIn) {
                values
            } else {
                Vec::new()
            },
        )
    };
    match chance.below(4) {
        0 => Selector::default(),
        1 => Selector {
            labels: vec![label(chance)],
            expressions: Vec::new(),
        },
        2 => Selector {
            labels: Vec::new(),
            expressions: vec![expression(chance)],
        },
        _ => Selector {
            labels: chance.few(1, label),
            expressions: chance.few(2, expression),
        },
    }
}

fn by(chance: &mut Chance) -> By {
    match chance.below(10) {
        0..=2 => By::Selector(selector(chance)),
        3 | 4 => By::Selector(Selector::default()),
        5 | 6 => By::Pattern(pattern(chance)),
        _ => {
            let mut names: Vec<&str> = chance.few(2, |chance| {
                if chance.percent(50) {
                    chance.of(&GLOBS)
                } else {
                    chance.of(&EXACT)
                }
            });
            names.push(chance.of(&EXACT));
            names.sort_unstable();
            names.dedup();
            By::Names(names)
        }
    }
}

fn exclude(chance: &mut Chance) -> All {
    match chance.below(5) {
        0 => All {
            names: vec![chance.of(&EXACT)],
            ..All::default()
        },
        1 => All {
            names: vec![chance.of(&GLOBS[3..])],
            ..All::default()
        },
        2 => All {
            names: vec![chance.of(&GLOBS[3..])],
            selector: Some(selector(chance)),
            ..All::default()
        },
        3 => All {
            pattern: Some(pattern(chance)),
            ..All::default()
        },
        _ => All {
            selector: Some(selector(chance)),
            ..All::default()
        },
    }
}

/// Further conditions of a target, besides the one that it selects by.
fn and(chance: &mut Chance, by: &By) -> All {
    let mut and = All::default();
    if !matches!(by, By::Selector(_)) && chance.percent(70) {
        and.selector = Some(selector(chance));
    }
    if !matches!(by, By::Pattern(_)) && chance.percent(40) {
        and.pattern = Some(pattern(chance));
    }
    if !matches!(by, By::Names(_)) && chance.percent(40) {
        and.names = vec![chance.of(&GLOBS)];
    }
    and
}

/// A text with variables. It is valid as the value of a label and as part of a name.
fn text(chance: &mut Chance, begin: Vec<Piece>) -> Text {
    let variable = |chance: &mut Chance| {
        chance.of(&[
            Piece::SourceName,
            Piece::SourceNamespace,
            Piece::NamespaceName,
            Piece::NamespaceName,
            Piece::NamespaceLabel("team"),
            Piece::NamespaceLabel("team"),
            Piece::Unknown("namespace.uid"),
        ])
    };
    let mut pieces = begin;
    if chance.percent(if pieces.is_empty() { 50 } else { 35 }) {
        let piece = variable(chance);
        let rare = matches!(piece, Piece::Unknown(_)) && chance.percent(70);
        pieces.push(Piece::Text("-"));
        pieces.push(if rare { Piece::SourceName } else { piece });
    }
    pieces.insert(0, Piece::Text("x"));
    Text(pieces)
}

/// Names of copies. Each source of a rule leads to a different name.
pub fn name(chance: &mut Chance, several: bool) -> Text {
    match chance.below(4) {
        0 if !several => Text(vec![Piece::Text("shared")]),
        1 if !several => text(chance, Vec::new()),
        2 => Text(vec![Piece::SourceName, Piece::Text("-x")]),
        _ => text(chance, vec![Piece::SourceName]),
    }
}

fn target(chance: &mut Chance, several: bool) -> Target {
    let by = by(chance);
    let and = chance
        .some(12, |chance| and(chance, &by))
        .unwrap_or_default();
    Target {
        by,
        and,
        name: chance.some(30, |chance| name(chance, several)),
    }
}

fn keys(chance: &mut Chance, annotations: bool) -> Keys {
    let globs = ["a*", "app", "*", "example.com/*", "note", "no?e", "*owner"];
    let value = |chance: &mut Chance| {
        let mut value = text(chance, Vec::new());
        if annotations && chance.percent(30) {
            value
                .0
                .push(Piece::Literal(["HOME", "other.name"][chance.below(2)]));
        }
        value
    };
    let mut set: Vec<(&str, Text)> = chance.few(2, |chance| {
        (
            chance.of(&["app", "note", "example.com/set"]),
            value(chance),
        )
    });
    set.sort_by_key(|(key, _)| *key);
    set.dedup_by_key(|(key, _)| *key);
    let one = |chance: &mut Chance| chance.of(&globs);
    Keys {
        include: chance.some(30, |chance| sorted(chance.few(2, one))),
        exclude: if chance.percent(30) {
            sorted(chance.few(2, one))
        } else {
            Vec::new()
        },
        set,
    }
}

fn sorted(mut globs: Vec<&'static str>) -> Vec<&'static str> {
    globs.sort_unstable();
    globs.dedup();
    globs
}

fn transform(chance: &mut Chance, kinds: &[Res]) -> Transform {
    let secrets = kinds.iter().all(|kind| *kind == Res::Secret);
    let data = kinds.iter().all(|kind| *kind != Res::Widget);
    let globs = ["a*", "*", "b", "?", "c*"];
    let one = |chance: &mut Chance| chance.of(&globs);
    let made = Data {
        include: chance.some(30, |chance| sorted(chance.few(2, one))),
        exclude: if chance.percent(30) {
            sorted(chance.few(1, one))
        } else {
            Vec::new()
        },
        rename: if chance.percent(40) {
            vec![chance.of(&[("a", "new-a"), ("b", "new-b"), ("c1", "new-c")])]
        } else {
            Vec::new()
        },
    };
    Transform {
        type_: chance
            .some(15, |chance| chance.of(&TYPES))
            .filter(|_| secrets),
        labels: if chance.percent(35) {
            keys(chance, false)
        } else {
            Keys::default()
        },
        annotations: if chance.percent(35) {
            keys(chance, true)
        } else {
            Keys::default()
        },
        data: if data && chance.percent(35) {
            made
        } else {
            Data::default()
        },
        patch: if chance.percent(20) {
            patch(chance, kinds)
        } else {
            Vec::new()
        },
    }
}

/// Operations that mostly succeed, some that fail, and a few that no rule may ask for.
pub fn patch(chance: &mut Chance, kinds: &[Res]) -> Vec<Operation> {
    let mut operations = vec![operation(chance, kinds)];
    operations.extend(chance.few(3, |chance| operation(chance, kinds)));
    operations
}

fn operation(chance: &mut Chance, kinds: &[Res]) -> Operation {
    let widgets = kinds.contains(&Res::Widget);
    let secrets = kinds.contains(&Res::Secret);
    let plain = |text: &'static str| Worth::Text(Text(vec![Piece::Text(text)]));
    let [a, b, new] = if widgets {
        ["/spec/a", "/spec/b", "/spec/new"]
    } else {
        ["/data/a", "/data/b", "/data/new"]
    };
    let label = "/metadata/labels/example.com~1set";
    if chance.percent(6) {
        if !secrets && chance.percent(30) {
            return Operation::Add("/stringData", Worth::Fields(vec![("a", plain("val1"))]));
        }
        let types: &[&str] = if secrets {
            &["/type", "/stringData/a"]
        } else {
            &[]
        };
        let all = [
            "/kind",
            "/apiVersion",
            "/status/a",
            "/metadata/name",
            "/metadata/labels",
            "/metadata/finalizers/0",
        ];
        let marks = [
            "/metadata/labels/mimeo.dev~1replication",
            "/metadata/annotations/mimeo.dev~1rule",
        ];
        return Operation::Add(
            chance.of(&[&all[..], &marks, types].concat()),
            plain("val1"),
        );
    }
    if widgets && chance.percent(40) {
        let list = Worth::List(vec![plain("val1"), Worth::Text(text(chance, Vec::new()))]);
        let all = [
            Operation::Add("/spec/list", list),
            Operation::Add("/spec/list/-", Worth::Text(text(chance, Vec::new()))),
            Operation::Add("/spec/list/0", Worth::Number(7)),
            Operation::Remove("/spec/list/1"),
            Operation::Replace("/spec/list/0", plain("val3")),
            Operation::Add(
                "/spec/more",
                Worth::Fields(vec![("a", plain("val1")), ("b", Worth::Number(1))]),
            ),
            Operation::Add("/spec/more/c", Worth::Text(text(chance, Vec::new()))),
            Operation::Copy("/spec/more", "/spec/again"),
            Operation::Move("/spec/more/a", "/spec/a"),
        ];
        return chance.of(&all);
    }
    match chance.below(14) {
        0 | 1 => Operation::Add(a, Worth::Text(text(chance, Vec::new()))),
        2 | 3 => Operation::Add(new, Worth::Text(text(chance, Vec::new()))),
        4 => Operation::Replace(a, Worth::Text(text(chance, vec![Piece::Literal("HOME")]))),
        5 => Operation::Remove(chance.of(&[a, b])),
        6 => Operation::Move(a, chance.of(&[b, new])),
        7 => Operation::Copy(a, chance.of(&[b, new])),
        8 => Operation::Test(a, plain(chance.of(&["val1", "val2"]))),
        9 => Operation::Test(label, Worth::Text(text(chance, Vec::new()))),
        10 => Operation::Add(label, Worth::Text(text(chance, Vec::new()))),
        11 => Operation::Add(
            "/metadata/annotations/note",
            Worth::Text(text(chance, vec![Piece::Literal("HOME")])),
        ),
        12 => Operation::Copy("/metadata/labels/app", "/metadata/annotations/app"),
        // For a Secret, that annotation would reveal its content.
        _ if chance.percent(40) => Operation::Copy(a, "/metadata/annotations/told"),
        _ => Operation::Remove("/metadata/labels/app"),
    }
}

/// A selector that finds sources by their labels.
fn selected(chance: &mut Chance) -> Selected {
    let (res, namespace) = chance.of(&[
        (Res::Secret, "p"),
        (Res::Secret, "p"),
        (Res::Secret, "t0"),
        (Res::ConfigMap, "p"),
        (Res::ConfigMap, "q"),
        (Res::Widget, "p"),
    ]);
    let label = |chance: &mut Chance| {
        (
            chance.of(&["app", "app", "app", "note"]),
            chance.of(&["val1", "val2"]),
        )
    };
    let expression = |chance: &mut Chance| {
        let op = chance.of(&[Op::In, Op::NotIn, Op::Exists, Op::DoesNotExist]);
        (
            chance.of(&["app", "example.com/owner"]),
            op,
            if matches!(op, Op::In | Op::NotIn) {
                vec!["val1", "val3"]
            } else {
                Vec::new()
            },
        )
    };
    let selector = match chance.below(5) {
        0 => Selector::default(),
        1 | 2 => Selector {
            labels: vec![label(chance)],
            expressions: Vec::new(),
        },
        3 => Selector {
            labels: Vec::new(),
            expressions: vec![expression(chance)],
        },
        _ => Selector {
            labels: chance.few(1, label),
            expressions: chance.few(2, expression),
        },
    };
    Selected {
        res,
        namespace,
        selector,
    }
}

/// Fields of an inline object.
fn fields(chance: &mut Chance, res: Res) -> Vec<(String, Text)> {
    let part = if res == Res::Widget { "spec" } else { "data" };
    let mut fields = vec![(format!("{part}/a"), text(chance, Vec::new()))];
    fields.extend(chance.some(50, |chance| {
        (
            format!("{part}/b"),
            text(chance, vec![Piece::Literal("HOME")]),
        )
    }));
    fields.extend(chance.some(30, |chance| {
        (
            format!("ann/{}", chance.of(&["note", "helm.sh/chart"])),
            text(chance, Vec::new()),
        )
    }));
    fields.extend(chance.some(30, |chance| {
        (
            "label/app".to_owned(),
            Text(vec![Piece::Text(chance.of(&["val1", "val2"]))]),
        )
    }));
    fields
}

fn keep(chance: &mut Chance) -> Keep {
    if chance.percent(30) {
        Keep::Retain
    } else {
        Keep::Delete
    }
}

pub fn rule(chance: &mut Chance) -> Box<RuleSpec> {
    let all = sources();
    let mut named = match chance.below(14) {
        0..=4 => vec![all[0].clone()],
        5 => vec![all[1].clone()],
        6 => vec![all[2].clone()],
        7 => vec![all[3].clone()],
        8 => vec![all[0].clone(), all[2].clone()],
        9 => vec![all[0].clone(), all[1].clone(), all[3].clone()],
        10 | 11 => vec![all[4].clone()],
        12 => vec![all[5].clone()],
        _ => vec![all[0].clone(), all[5].clone()],
    };
    if chance.percent(30) {
        named.reverse();
    }
    let mut inline = Inline::new();
    if chance.percent(15) {
        let key = Key::new(
            chance.of(&[Res::ConfigMap, Res::ConfigMap, Res::Widget]),
            "",
            "i0",
        );
        if chance.percent(60) {
            named.clear();
        }
        inline.insert(key.clone(), fields(chance, key.res));
        named.push(key);
    }
    let mut selects = Vec::new();
    if chance.percent(20) {
        selects = vec![selected(chance)];
        // Two equal selectors are refused.
        selects.extend(
            chance
                .some(15, selected)
                .filter(|other| *other != selects[0]),
        );
        if chance.percent(80) {
            (named, inline) = (Vec::new(), Inline::new());
        }
    }
    let kinds: Vec<Res> = named
        .iter()
        .map(|key| key.res)
        .chain(selects.iter().map(|one| one.res))
        .collect();
    let several = named.len() > 1 || !selects.is_empty();
    let mut targets = vec![target(chance, several)];
    targets.extend(chance.some(25, |chance| target(chance, several)));
    let strategy =
        [Strategy::CreateOnce, Strategy::Replace, Strategy::Apply][chance.below(6).min(2)];
    Box::new(RuleSpec {
        sources: named,
        inline,
        selected: selects,
        targets,
        exclude: if chance.percent(30) {
            chance.few(2, exclude)
        } else {
            Vec::new()
        },
        transform: transform(chance, &kinds),
        strategy,
        conflict: chance.of(&[
            Policy::Report,
            Policy::Report,
            Policy::Adopt,
            Policy::Overwrite,
        ]),
        deny: chance.percent(12),
        retention: Retention {
            rule_deleted: keep(chance),
            unmatched: keep(chance),
            source_deleted: keep(chance),
        },
        grace: chance.of(&[0, 0, 5]),
        resync: chance.of(&[0, 0, 0, 60]),
        suspend: chance.percent(6),
        typed: Typed::default(),
    })
}
