//! Worlds by number: the same number is the same world, everywhere.

use super::{
    server::{Key, Res},
    spec::{
        By, Data, Event, Exclude, Fields, Keep, Keys, Op, Pattern, Piece, Policy, Retention, RuleSpec, Selector, Story,
        Strategy, Target, Text, Transform, Typed,
    },
    tables::{CARRIED, COPY_MARKS},
};

/// `SplitMix64`.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        // Neighbours must not be the same worlds but for their beginning.
        let mut chance = Self(seed ^ 0x6d69_6d65_6f00_0000);
        Self(chance.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).expect("below a usize")
    }

    /// So many times in a hundred.
    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn some<T>(&mut self, percent: usize, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.percent(percent).then(|| make(self))
    }

    fn few<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }
}

const HOMES: [&str; 2] = ["p", "q"];
const NAMESPACES: [&str; 6] = ["t0", "t1", "t10", "team-a", "kube-system", "kube-public"];
const RULES: [&str; 3] = ["r0", "r1", "r2"];
const GLOBS: [&str; 9] = ["t*", "t?", "*", "team-*", "kube-*", "?", "*-a", "t?0", "q*"];
const EXACT: [&str; 8] = ["t0", "t1", "t10", "team-a", "kube-system", "kube-public", "q", "p"];
const TYPES: [&str; 2] = ["Opaque", "example.com/other"];

/// What rules name as their sources. The last two are where copies of the first can be.
fn sources() -> [Key; 6] {
    [
        Key::new(Res::Secret, "p", "s0"),
        Key::new(Res::ConfigMap, "p", "s0"),
        Key::new(Res::Secret, "q", "s1"),
        Key::new(Res::Widget, "p", "w0"),
        Key::new(Res::Secret, "t0", "s0"),
        Key::new(Res::ConfigMap, "t1", "s0"),
    ]
}

fn labels(chance: &mut Chance) -> Vec<(&'static str, &'static str)> {
    let team = chance.some(65, |chance| ("team", chance.of(&["a", "b"])));
    let tier = chance.some(40, |chance| ("tier", chance.of(&["gold", "iron"])));
    team.into_iter().chain(tier).collect()
}

fn pattern(chance: &mut Chance) -> Pattern {
    let all = [
        Pattern::All(vec![Pattern::Text("t"), Pattern::Digits]),
        Pattern::All(vec![Pattern::Text("t"), Pattern::Rest]),
        Pattern::Either(vec![Pattern::Text("t0"), Pattern::Text("team")]),
        Pattern::All(vec![Pattern::Either(vec![Pattern::Text("t"), Pattern::Text("team-")]), Pattern::Rest]),
        Pattern::Text("t1"),
        Pattern::Rest,
        Pattern::All(vec![Pattern::Text("kube-"), Pattern::Rest]),
    ];
    chance.of(&all)
}

fn selector(chance: &mut Chance) -> Selector {
    let label = |chance: &mut Chance| chance.of(&[("team", "a"), ("team", "b"), ("tier", "gold")]);
    let expression = |chance: &mut Chance| {
        let op = chance.of(&[Op::In, Op::NotIn, Op::Exists, Op::DoesNotExist]);
        let key = chance.of(&["team", "tier"]);
        let values = chance.of(&[vec!["a"], vec!["a", "b"], vec!["gold", "b"]]);
        (key, op, if matches!(op, Op::In | Op::NotIn) { values } else { Vec::new() })
    };
    match chance.below(4) {
        0 => Selector::default(),
        1 => Selector { labels: vec![label(chance)], expressions: Vec::new() },
        2 => Selector { labels: Vec::new(), expressions: vec![expression(chance)] },
        _ => Selector { labels: chance.few(1, label), expressions: chance.few(2, expression) },
    }
}

fn by(chance: &mut Chance) -> By {
    match chance.below(10) {
        0..=2 => By::Selector(selector(chance)),
        3 | 4 => By::Selector(Selector::default()),
        5 | 6 => By::Pattern(pattern(chance)),
        _ => {
            let mut names: Vec<&str> =
                chance.few(2, |chance| if chance.percent(50) { chance.of(&GLOBS) } else { chance.of(&EXACT) });
            names.push(chance.of(&EXACT));
            names.sort_unstable();
            names.dedup();
            By::Names(names)
        }
    }
}

fn exclude(chance: &mut Chance) -> Exclude {
    match chance.below(4) {
        0 => Exclude { names: vec![chance.of(&EXACT)], ..Exclude::default() },
        1 => Exclude { names: vec![chance.of(&GLOBS[3..])], selector: Some(selector(chance)), ..Exclude::default() },
        2 => Exclude { pattern: Some(pattern(chance)), ..Exclude::default() },
        _ => Exclude { selector: Some(selector(chance)), ..Exclude::default() },
    }
}

/// A text with variables, safe as the value of a label and as part of a name.
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

/// Names of copies. Every source of a rule comes to a name of its own.
fn name(chance: &mut Chance, several: bool) -> Text {
    match chance.below(4) {
        0 if !several => Text(vec![Piece::Text("shared")]),
        1 if !several => text(chance, Vec::new()),
        2 => Text(vec![Piece::SourceName, Piece::Text("-x")]),
        _ => text(chance, vec![Piece::SourceName]),
    }
}

fn target(chance: &mut Chance, several: bool) -> Target {
    Target { by: by(chance), exclude: chance.some(25, exclude), name: chance.some(30, |chance| name(chance, several)) }
}

fn keys(chance: &mut Chance, annotations: bool) -> Keys {
    let globs = ["a*", "app", "*", "example.com/*", "note", "no?e", "*owner"];
    let value = |chance: &mut Chance| {
        let mut value = text(chance, Vec::new());
        if annotations && chance.percent(30) {
            value.0.push(Piece::Literal(["HOME", "other.name"][chance.below(2)]));
        }
        value
    };
    let mut set: Vec<(&str, Text)> =
        chance.few(2, |chance| (chance.of(&["app", "note", "example.com/set"]), value(chance)));
    set.sort_by_key(|(key, _)| *key);
    set.dedup_by_key(|(key, _)| *key);
    let one = |chance: &mut Chance| chance.of(&globs);
    Keys {
        include: chance.some(30, |chance| sorted(chance.few(2, one))),
        exclude: if chance.percent(30) { sorted(chance.few(2, one)) } else { Vec::new() },
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
        exclude: if chance.percent(30) { sorted(chance.few(1, one)) } else { Vec::new() },
        rename: if chance.percent(40) {
            vec![chance.of(&[("a", "new-a"), ("b", "new-b"), ("c1", "new-c")])]
        } else {
            Vec::new()
        },
    };
    Transform {
        type_: chance.some(15, |chance| chance.of(&TYPES)).filter(|_| secrets),
        labels: if chance.percent(35) { keys(chance, false) } else { Keys::default() },
        annotations: if chance.percent(35) { keys(chance, true) } else { Keys::default() },
        data: if data && chance.percent(35) { made } else { Data::default() },
    }
}

fn keep(chance: &mut Chance) -> Keep {
    if chance.percent(30) { Keep::Retain } else { Keep::Delete }
}

fn rule(chance: &mut Chance) -> Box<RuleSpec> {
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
    let kinds: Vec<Res> = named.iter().map(|key| key.res).collect();
    let several = named.len() > 1;
    let mut targets = vec![target(chance, several)];
    targets.extend(chance.some(25, |chance| target(chance, several)));
    let strategy = [Strategy::CreateOnce, Strategy::Replace, Strategy::Apply][chance.below(6).min(2)];
    Box::new(RuleSpec {
        sources: named,
        targets,
        transform: transform(chance, &kinds),
        strategy,
        conflict: chance.of(&[Policy::Fail, Policy::Fail, Policy::Adopt, Policy::Overwrite]),
        retention: Retention { rule_deleted: keep(chance), unmatched: keep(chance), source_deleted: keep(chance) },
        grace: chance.of(&[0, 0, 5]),
        suspend: chance.percent(6),
        typed: Typed::default(),
    })
}

fn value(chance: &mut Chance) -> String {
    chance.of(&["v1", "v2", "v3"]).to_owned()
}

/// Labels and annotations, of tools and of people.
fn notes(chance: &mut Chance, percent: usize) -> Fields {
    if !chance.percent(percent) {
        return Vec::new();
    }
    let part = |chance: &mut Chance| chance.of(&["label", "ann", "ann"]);
    let note = |chance: &mut Chance| (format!("{}/{}", part(chance), chance.of(&CARRIED).0), value(chance));
    unique(chance.few(3, note))
}

fn unique(mut fields: Fields) -> Fields {
    fields.sort();
    fields.dedup_by(|one, other| one.0 == other.0);
    fields
}

fn content(chance: &mut Chance, res: Res) -> Fields {
    let part = if res == Res::Widget { "spec" } else { "data" };
    let key = |chance: &mut Chance| (format!("{part}/{}", chance.of(&["a", "b", "c1", "c2"])), value(chance));
    let mut fields = chance.few(3, key);
    if res == Res::ConfigMap && chance.percent(30) {
        fields.push((format!("binaryData/{}", chance.of(&["d", "ca"])), "djE=".to_owned()));
    }
    if res == Res::Secret && chance.percent(25) {
        let all = [TYPES[0], TYPES[1], TYPES[1], "kubernetes.io/service-account-token", "helm.sh/release.v1"];
        fields.push(("type".to_owned(), chance.of(&all).to_owned()));
    }
    unique(fields)
}

fn source(chance: &mut Chance, key: &Key) -> Event {
    let mut fields = content(chance, key.res);
    fields.extend(notes(chance, 50));
    Event::Source(key.clone(), fields)
}

fn foreign(chance: &mut Chance) -> Event {
    let nth = chance.below(64);
    let content = if chance.percent(40) { None } else { Some(vec![("data/a".to_owned(), value(chance))]) };
    let mut more = Vec::new();
    if chance.percent(40) {
        more.push((format!("ann/{}", chance.of(&COPY_MARKS).0), "x".to_owned()));
    }
    if chance.percent(20) {
        more.push(("label/app.kubernetes.io/managed-by".to_owned(), "mimeo".to_owned()));
    }
    if chance.percent(15) {
        more.push(("fin/example.com/held".to_owned(), String::new()));
    }
    if chance.percent(20) {
        more.push(("data/z".to_owned(), value(chance)));
    }
    Event::Foreign(nth, content, more)
}

fn edit(chance: &mut Chance) -> Event {
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
        "fin/example.com/held",
    ]);
    let value = match path {
        "label/app.kubernetes.io/managed-by" => None,
        "fin/example.com/held" => Some(String::new()),
        _ => chance.some(75, value),
    };
    Event::Edit(chance.below(64), path.to_owned(), value)
}

fn event(chance: &mut Chance) -> Event {
    let nth = chance.below(64);
    let name = chance.of(&RULES);
    let which = sources();
    let key = &which[[0, 0, 0, 1, 2, 3, 4, 5][chance.below(8)]];
    match chance.below(42) {
        0..=5 => source(chance, key),
        6..=8 => Event::DeleteSource(key.clone()),
        9..=13 => Event::Namespace(chance.of(&NAMESPACES), labels(chance)),
        14 => Event::EndNamespace(chance.of(&NAMESPACES)),
        15 => Event::Reap(chance.of(&NAMESPACES)),
        16..=19 => Event::Rule(name, rule(chance)),
        20..=22 => Event::DeleteRule(name),
        23 | 24 => Event::Suspend(name),
        25..=28 => foreign(chance),
        29..=33 => edit(chance),
        34..=36 => Event::Delete(nth),
        37 => Event::Release(nth),
        38 => Event::Disown(nth),
        39 => Event::Clear(nth),
        40 => Event::Share(nth),
        _ => Event::Restart,
    }
}

/// Rules, namespaces, sources, and what was in the way before; then what happens to them.
pub fn story(seed: u64) -> Story {
    let chance = &mut Chance::new(seed);
    let mut first: Vec<Event> = HOMES.iter().map(|home| Event::Namespace(home, labels(chance))).collect();
    let count = 1 + chance.below(3);
    for _ in 0..count {
        first.push(Event::Namespace(chance.of(&NAMESPACES), labels(chance)));
    }
    let all = sources();
    for key in &all {
        // The last two are in the way of the others' copies.
        if chance.percent(if HOMES.contains(&&*key.namespace) { 93 } else { 30 }) {
            first.push(source(chance, key));
        }
    }
    let rules = 1 + chance.below(3);
    first.extend(RULES[..rules].iter().map(|name| Event::Rule(name, rule(chance))));
    first.extend(chance.few(2, foreign));
    let mut steps = vec![first];
    for _ in 0..chance.below(6) {
        let mut step = vec![event(chance)];
        // Who comes after it knows nothing of whose it was.
        let forgotten = matches!(step[0], Event::Clear(_) | Event::Disown(_)) && chance.percent(60);
        step.extend(forgotten.then_some(Event::Restart));
        step.extend(chance.some(25, event));
        steps.push(step);
    }
    Story(steps)
}

/// The same story without one thing, in every way that there is.
pub fn smaller(story: &Story) -> Vec<Story> {
    let mut all = Vec::new();
    let steps = &story.0;
    for at in (1..steps.len()).rev() {
        let mut without = steps.clone();
        without.remove(at);
        all.push(Story(without));
    }
    for (at, step) in steps.iter().enumerate() {
        for event in 0..step.len() {
            let mut without = steps.clone();
            without[at].remove(event);
            all.push(Story(without));
        }
    }
    for (at, step) in steps.iter().enumerate() {
        for (nth, event) in step.iter().enumerate() {
            let simpler: Vec<Event> = match event {
                Event::Rule(name, spec) => {
                    plainer(spec).into_iter().map(|spec| Event::Rule(name, Box::new(spec))).collect()
                }
                Event::Source(key, fields) => {
                    fewer(fields).into_iter().map(|fields| Event::Source(key.clone(), fields)).collect()
                }
                Event::Foreign(nth, content, more) => {
                    fewer(more).into_iter().map(|more| Event::Foreign(*nth, content.clone(), more)).collect()
                }
                Event::Namespace(name, labels) if !labels.is_empty() => {
                    vec![Event::Namespace(name, labels[1..].to_vec())]
                }
                _ => Vec::new(),
            };
            for event in simpler {
                let mut with = steps.clone();
                with[at][nth] = event;
                all.push(Story(with));
            }
        }
    }
    all
}

fn fewer(fields: &Fields) -> Vec<Fields> {
    (0..fields.len()).map(|at| [&fields[..at], &fields[at + 1..]].concat()).collect()
}

fn plainer(spec: &RuleSpec) -> Vec<RuleSpec> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut RuleSpec)| {
        let mut plain = spec.clone();
        change(&mut plain);
        if plain != *spec {
            all.push(plain);
        }
    };
    with(&|spec| spec.transform = Transform::default());
    with(&|spec| spec.transform.labels = Keys::default());
    with(&|spec| spec.transform.annotations = Keys::default());
    with(&|spec| spec.transform.data = Data::default());
    with(&|spec| spec.targets.truncate(1));
    with(&|spec| drop(spec.targets.drain(..spec.targets.len() - 1)));
    with(&|spec| spec.targets.iter_mut().for_each(|target| target.exclude = None));
    with(&|spec| spec.targets.iter_mut().for_each(|target| target.name = None));
    with(&|spec| spec.targets.iter_mut().for_each(|target| target.by = By::Selector(Selector::default())));
    with(&|spec| spec.sources.truncate(1));
    with(&|spec| spec.retention = Retention::default());
    with(&|spec| spec.conflict = Policy::Fail);
    with(&|spec| spec.strategy = Strategy::Apply);
    with(&|spec| spec.suspend = false);
    with(&|spec| spec.grace = 0);
    all
}
