//! Situations that random choice hardly ever produces: two rules for one place, or one rule that
//! turns into another. All other events of the world happen around them.

use super::{
    RULES,
    chance::Chance,
    platforms,
    rules::{rule, sources},
    source,
    tenants::{self, fitting_grants, tenants_rule},
};
use crate::worlds::{
    server::{Key, Res},
    spec::{
        All, By, Event, Inline, Keep, Operation, Piece, Policy, RuleSpec, Selected, Selector,
        Strategy, Target, Text, Worth,
    },
};

/// The first events, and the events of later steps.
#[derive(Default)]
pub struct Plot {
    pub first: Vec<Event>,
    pub then: Vec<Vec<Event>>,
}

pub fn plot(chance: &mut Chance) -> Plot {
    match chance.below(100) {
        // This plot takes as long as dozens of others.
        0 => crowd(chance),
        1..=3 => long_chain(chance),
        4..=7 => unmarked(chance),
        8 => denied(chance),
        9..=23 => forged(chance),
        24..=38 => rivals(chance, false),
        39..=53 => rivals(chance, true),
        54..=68 => in_the_way(chance),
        69..=88 => previewed(chance),
        _ => strategies(chance),
    }
}

/// A rule that copies the objects with a label from one namespace to another.
fn by_label(
    chance: &mut Chance,
    kind: Res,
    namespace: &'static str,
    label: (&'static str, &'static str),
) -> RuleSpec {
    let selector = Selector {
        labels: vec![label],
        expressions: Vec::new(),
    };
    RuleSpec {
        sources: Vec::new(),
        inline: Inline::new(),
        selected: vec![Selected {
            res: kind,
            namespace,
            selector,
        }],
        targets: Vec::new(),
        exclude: Vec::new(),
        transform: crate::worlds::spec::Transform::default(),
        strategy: Strategy::Apply,
        suspend: false,
        ..*rule(chance)
    }
}

fn to(namespace: &'static str, name: Option<Text>) -> Vec<Target> {
    vec![Target {
        by: By::Names(vec![namespace]),
        and: All::default(),
        name,
    }]
}

fn labelled(kind: Res, namespace: &str, name: &str, key: &str, value: &str) -> Event {
    Event::Source(
        Key::new(kind, namespace, name),
        vec![(format!("label/{key}"), value.to_owned())],
    )
}

/// As many sources as a rule may have, or one less. Some appear later, and some disappear.
fn crowd(chance: &mut Chance) -> Plot {
    let kind = Res::ConfigMap;
    let mut spec = by_label(chance, kind, "q", ("crowd", "in"));
    spec.targets = to("t0", None);
    // Without a period: each copy would be verified at its own moment.
    spec.resync = 0;
    let one = |name: &str, value: &str| labelled(kind, "q", name, "crowd", value);
    let mut first = vec![
        Event::Namespace("t0", Vec::new()),
        Event::Rule(platforms("r2"), Box::new(spec)),
    ];
    first.extend((0..255 + chance.below(2)).map(|number| one(&format!("c{number:03}"), "in")));
    let mut then = vec![vec![one("late0", "in")], vec![one("late1", "in")]];
    then.push(vec![if chance.percent(50) {
        one("c007", "out")
    } else {
        Event::DeleteSource(Key::new(kind, "q", "c007"))
    }]);
    Plot { first, then }
}

/// Each rule copies the copy of the rule before it, if that exists. The ninth rule finds no object.
fn long_chain(chance: &mut Chance) -> Plot {
    const LINKS: [&str; 10] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"];
    let mut first = vec![labelled(Res::Secret, "q", "chain", "link", "k0")];
    for (at, links) in LINKS.windows(2).enumerate() {
        let mut spec = by_label(chance, Res::Secret, "q", ("link", links[0]));
        spec.targets = to("q", Some(Text(vec![Piece::SourceName, Piece::Text("-x")])));
        spec.transform.labels.set = vec![("link", Text(vec![Piece::Text(links[1])]))];
        first.push(Event::Rule(platforms(&format!("l{at}")), Box::new(spec)));
    }
    let last = chance.of(&[
        Event::DeleteSource(Key::new(Res::Secret, "q", "chain")),
        labelled(Res::Secret, "q", "chain", "link", "none"),
        Event::DeleteRule(platforms("l3")),
        Event::Restart,
    ]);
    Plot {
        first,
        then: vec![vec![last]],
    }
}

/// A copy that is not restored loses one of Mimeo's marks. It is either the annotation, where
/// another rule selects, or the label, before its rule is deleted.
fn unmarked(chance: &mut Chance) -> Plot {
    let mut spec = by_label(chance, Res::Secret, "p", ("app", "val1"));
    (spec.selected, spec.sources) = (Vec::new(), vec![sources()[0].clone()]);
    spec.targets = to(
        "q",
        Some(Text(vec![Piece::SourceName, Piece::Text("-bare")])),
    );
    let name = platforms("r0");
    let copy = Key::new(Res::Secret, "q", "s0-bare");
    let mut first = vec![
        source(chance, &sources()[0]),
        Event::Rule(name.clone(), Box::new(spec)),
    ];
    if chance.percent(30) {
        let step = vec![
            Event::Strip(copy, "label/app.kubernetes.io/managed-by"),
            Event::DeleteRule(name.clone()),
        ];
        return Plot {
            first,
            then: vec![vec![Event::Suspend(name)], step],
        };
    }
    let mut other = by_label(chance, Res::Secret, "q", ("app", "val1"));
    other.selected[0].selector = Selector::default();
    other.targets = to("t1", None);
    first.extend([
        Event::Namespace("t1", Vec::new()),
        Event::Rule(platforms("r1"), Box::new(other)),
    ]);
    let strip = Event::Strip(copy, "ann/mimeo.dev/rule");
    Plot {
        first,
        then: vec![
            vec![Event::Suspend(name.clone()), strip],
            vec![Event::Suspend(name)],
        ],
    }
}

/// A user changes a copy whose rule has `driftPolicy: Deny`: while the rule is active, while it is
/// suspended, and when it no longer wants the copy.
fn denied(chance: &mut Chance) -> Plot {
    let name = platforms("r0");
    let rule = |spec: &RuleSpec| Event::Rule(name.clone(), Box::new(spec.clone()));
    let mut spec = by_label(chance, Res::Secret, "p", ("app", "val1"));
    (spec.selected, spec.sources) = (Vec::new(), vec![sources()[0].clone()]);
    (spec.strategy, spec.deny) = (Strategy::Replace, true);
    spec.targets = to(
        "q",
        Some(Text(vec![Piece::SourceName, Piece::Text("-kept")])),
    );
    let elsewhere = RuleSpec {
        targets: to("t0", None),
        ..spec.clone()
    };
    let first = vec![source(chance, &sources()[0]), rule(&spec)];
    let copy = Key::new(Res::Secret, "q", "s0-kept");
    let edit = Event::Source(copy, vec![("data/a".to_owned(), "val3".to_owned())]);
    let before = chance.of(&[
        None,
        Some(Event::Suspend(name.clone())),
        Some(rule(&elsewhere)),
    ]);
    Plot {
        first,
        then: vec![before.into_iter().chain([edit]).collect()],
    }
}

/// A copy is changed so that its metadata does not show it, mostly while no process watches.
fn forged(chance: &mut Chance) -> Plot {
    let name = platforms(chance.of(&RULES));
    let mut spec = rule(chance);
    spec.suspend = false;
    spec.strategy = chance.of(&[Strategy::Apply, Strategy::Apply, Strategy::Replace]);
    spec.resync = chance.of(&[0, 0, 60]);
    if chance.percent(25) {
        let items = Worth::List(vec![Worth::Text(Text(vec![
            Piece::Text("in-"),
            Piece::NamespaceName,
        ]))]);
        *spec = RuleSpec {
            sources: vec![sources()[3].clone()],
            transform: crate::worlds::spec::Transform {
                patch: vec![Operation::Add("/spec/list", items)],
                ..Default::default()
            },
            targets: to("t0", None),
            ..by_label(chance, Res::Widget, "p", ("app", "val1"))
        };
        spec.selected.clear();
    }
    let nth = chance.below(64);
    let mut step = vec![Event::Forge(nth, "forged".to_owned())];
    if chance.percent(75) {
        step.insert(chance.below(2), Event::Restart);
    }
    let mut then = vec![step];
    then.extend(chance.some(50, |chance| vec![super::edited(chance, nth)]));
    then.extend(chance.some(30, |_| {
        vec![Event::Suspend(name.clone()), Event::Suspend(name.clone())]
    }));
    Plot {
        first: vec![Event::Rule(name, spec)],
        then,
    }
}

/// A `ClusterReplication` and a tenant's rule for the same places. The `ClusterReplication` may be
/// first, and later be suspended and no longer want them.
fn rivals(chance: &mut Chance, first: bool) -> Plot {
    let tenants = tenants::key(chance);
    let mut spec = tenants_rule(chance, &tenants);
    spec.suspend = false;
    let mut plot = Plot {
        first: fitting_grants(chance, &tenants, &spec),
        ..Plot::default()
    };
    let name = platforms(chance.of(&RULES));
    let mut over = alike(chance, &spec);
    let other = platforms("r2");
    let theirs = match (first && name != other).then(|| chance.percent(30)) {
        // Among `ClusterReplication`s, only a spec that can't be parsed keeps the copies of a rule.
        Some(true) => Event::Rule(other, Box::new(alike(chance, &spec))),
        _ => Event::Rule(tenants, spec),
    };
    let ours = Event::Rule(name.clone(), Box::new(over.clone()));
    if first {
        plot.first.push(ours);
        plot.first
            .extend(chance.percent(50).then(|| theirs.clone()));
        over.targets.iter_mut().for_each(|target| {
            target.name = Some(Text(vec![Piece::SourceName, Piece::Text("-z")]));
        });
        if chance.percent(60) {
            over.suspend = true;
        } else if chance.percent(80) {
            over.transform
                .labels
                .set
                .push(("note", Text(vec![Piece::Unknown("namespace.uid")])));
        }
        plot.then = vec![
            vec![theirs],
            vec![Event::Rule(name.clone(), Box::new(over))],
        ];
        plot.then
            .extend(chance.percent(50).then(|| vec![Event::Suspend(name)]));
    } else {
        plot.first.push(theirs);
        plot.then.push(vec![ours]);
        plot.then
            .extend(chance.percent(40).then(|| vec![Event::DeleteRule(name)]));
    }
    plot
}

/// A `ClusterReplication` for the same copies.
fn alike(chance: &mut Chance, spec: &RuleSpec) -> RuleSpec {
    let own = *rule(chance);
    let target = |target: &Target| Target {
        by: By::Names(target.by.exact().to_vec()),
        ..target.clone()
    };
    RuleSpec {
        sources: spec.sources.clone(),
        inline: spec.inline.clone(),
        selected: spec.selected.clone(),
        targets: spec.targets.iter().map(target).collect(),
        exclude: Vec::new(),
        transform: spec.transform.clone(),
        suspend: false,
        ..own
    }
}

/// The source of a tenant's rule is in the place of a `ClusterReplication`'s copies.
fn in_the_way(chance: &mut Chance) -> Plot {
    let all = sources();
    let (own, other, name) = chance.of(&[(&all[4], &all[0], "r0"), (&all[5], &all[1], "r1")]);
    let home = if own.namespace == "t0" { "t0" } else { "t1" };
    let tenants = Key::new(Res::Replication, home, name);
    let by_name = |source: &Key, by: By, name: Option<Text>, spec: Box<RuleSpec>| RuleSpec {
        sources: vec![source.clone()],
        inline: Inline::new(),
        selected: Vec::new(),
        targets: vec![Target {
            by,
            and: All::default(),
            name,
        }],
        exclude: Vec::new(),
        transform: crate::worlds::spec::Transform::default(),
        ..*spec
    };
    let mut theirs = by_name(
        own,
        By::Home(home),
        Some(Text(vec![Piece::Text("shared")])),
        rule(chance),
    );
    theirs.conflict = Policy::Report;
    let mut ours = by_name(other, By::Names(vec![home]), None, rule(chance));
    ours.conflict = chance.of(&[
        Policy::Overwrite,
        Policy::Overwrite,
        Policy::Adopt,
        Policy::Report,
    ]);
    ours.suspend = false;
    let theirs = Event::Rule(tenants, Box::new(theirs));
    let platforms = platforms(chance.of(&RULES));
    let ours = Event::Rule(platforms.clone(), Box::new(ours));
    let mut first = vec![
        Event::Namespace(home, super::labels(chance)),
        source(chance, other),
    ];
    first.extend(chance.percent(80).then(|| source(chance, own)));
    first.push(theirs);
    if chance.percent(50) {
        first.push(ours);
        Plot {
            first,
            then: vec![vec![Event::DeleteRule(platforms)]],
        }
    } else {
        Plot {
            first,
            then: vec![vec![ours]],
        }
    }
}

/// A rule is suspended. Meanwhile its spec or the cluster changes. Then the suspension ends.
fn previewed(chance: &mut Chance) -> Plot {
    let tenants = chance.percent(30);
    let name = if tenants {
        tenants::key(chance)
    } else {
        platforms(chance.of(&RULES))
    };
    let one = |chance: &mut Chance| {
        if tenants {
            tenants_rule(chance, &name)
        } else {
            rule(chance)
        }
    };
    let (before, mut resting) = (one(chance), one(chance));
    let grants = [&before, &resting].map(|spec| {
        if tenants {
            fitting_grants(chance, &name, spec)
        } else {
            Vec::new()
        }
    });
    let mut plot = Plot {
        first: grants.concat(),
        then: Vec::new(),
    };
    if chance.percent(70) {
        let acting = RuleSpec {
            suspend: false,
            ..*before
        };
        if chance.percent(50) {
            resting = Box::new(acting.clone());
        }
        plot.first.push(Event::Rule(name.clone(), Box::new(acting)));
    }
    resting.suspend = true;
    plot.then.push(vec![Event::Rule(name.clone(), resting)]);
    plot.then
        .extend(chance.few(2, |chance| vec![super::event(chance, tenants)]));
    plot.then.push(vec![Event::Suspend(name)]);
    plot
}

/// A rule changes its strategy to `CreateOnce`, or from it. Then it is deleted or gets other
/// targets.
fn strategies(chance: &mut Chance) -> Plot {
    let tenants = chance.percent(30);
    let name = if tenants {
        tenants::key(chance)
    } else {
        platforms(chance.of(&RULES))
    };
    let mut spec = if tenants {
        tenants_rule(chance, &name)
    } else {
        rule(chance)
    };
    spec.suspend = false;
    let first_grants = if tenants {
        fitting_grants(chance, &name, &spec)
    } else {
        Vec::new()
    };
    let keeps = chance.of(&[Strategy::Apply, Strategy::Replace]);
    spec.retention.rule_deleted = if chance.percent(85) {
        Keep::Delete
    } else {
        Keep::Retain
    };
    let of = |strategy| {
        Event::Rule(
            name.clone(),
            Box::new(RuleSpec {
                strategy,
                ..(*spec).clone()
            }),
        )
    };
    let (kept, once) = (of(keeps), of(Strategy::CreateOnce));
    let mut plot = Plot {
        first: first_grants,
        then: Vec::new(),
    };
    if chance.percent(70) {
        plot.first.push(kept);
        plot.then.push(vec![once]);
    } else {
        plot.first.push(once);
        plot.then.push(vec![kept]);
    }
    plot.then.push(vec![Event::DeleteRule(name)]);
    plot
}
