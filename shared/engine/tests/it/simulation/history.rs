//! Random histories: actions of users, and failures at the same time.

use mimeo_model::role::Role;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{
    server::Res,
    spec::{Clash, Hold, Keep, RuleSpec, Select, TEAMS, To},
    world::{Act, Fate, Move},
};

fn team() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "b"])
}

fn value() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just("v1"), 4 => Just("v2"), 4 => Just("v3"), 1 => Just("bad")]
}

fn selection() -> impl Strategy<Value = Select> {
    prop_oneof![
        4 => Just(Select::All),
        3 => team().prop_map(Select::Team),
        1 => Just(Select::Names(&["t*", "p"])),
        1 => Just(Select::Names(&["t0", "kube-system", "u0"])),
        1 => Just(Select::Pattern("t[0-1]")),
        1 => Just(Select::Names(&["f*"])),
    ]
}

fn target() -> impl Strategy<Value = To> {
    (selection(), prop::bool::weighted(0.25)).prop_map(|(select, renamed)| To { select, renamed })
}

fn sources() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        4 => Just(vec![0]),
        2 => Just(vec![1]),
        1 => Just(vec![2]),
        2 => Just(vec![3]),
        1 => Just(vec![4]),
        1 => Just(vec![0, 2, 3]),
        1 => Just(vec![0, 1]),
    ]
}

fn spec() -> impl Strategy<Value = RuleSpec> {
    let keep = (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(rule, unmatched, source)| Keep {
            rule,
            unmatched,
            source,
        });
    let hold =
        prop_oneof![2 => Just(Hold::None), 2 => Just(Hold::BestEffort), 3 => Just(Hold::Required)];
    let clash =
        prop_oneof![4 => Just(Clash::Report), 1 => Just(Clash::Adopt), 1 => Just(Clash::Overwrite)];
    let strategy =
        prop_oneof![14 => Just((false, false)), 3 => Just((true, false)), 3 => Just((false, true))];
    let rare = prop::bool::weighted(0.08);
    let grace = select(vec![0, 0, 5, 60]);
    let sources = (sources(), prop::bool::weighted(0.3));
    (
        sources,
        (vec(target(), 1..3), option::weighted(0.25, selection())),
        (strategy, clash, keep),
        grace,
        hold,
        rare,
        rare,
        option::weighted(0.2, select(vec!["gold", "iron", TEAMS])),
        prop::bool::weighted(0.04),
    )
        .prop_map(
            |(
                (sources, picks),
                (targets, exclude),
                ((once, exclusive), clash, keep),
                grace,
                hold,
                suspend,
                finalizer,
                tier,
                invalid,
            )| {
                RuleSpec {
                    sources,
                    picks,
                    targets,
                    exclude,
                    once,
                    exclusive,
                    clash,
                    keep: if once { Keep::ALL } else { keep },
                    grace,
                    hold,
                    suspend,
                    finalizer,
                    tier,
                    invalid,
                }
            },
        )
}

/// The content of an object that has the name of a copy.
fn content() -> impl Strategy<Value = &'static str> {
    select(vec!["theirs", "v1", "v1", "copied"])
}

pub fn act() -> impl Strategy<Value = Act> {
    let n = || 0..40usize;
    let on = any::<bool>();
    let team = || option::of(team());
    prop_oneof![
        10 => (n(), value()).prop_map(|(n, v)| Act::PutSource(n, v)),
        2 => (n(), on, value()).prop_map(|(n, on, v)| Act::Annotate(n, on, v)),
        3 => n().prop_map(Act::DeleteSource),
        3 => (n(), on).prop_map(|(n, on)| Act::Pick(n, on)),
        14 => (n(), team()).prop_map(|(n, team)| Act::PutNamespace(n, team)),
        3 => n().prop_map(Act::DeleteNamespace),
        3 => n().prop_map(Act::Reap),
        2 => (n(), on).prop_map(|(n, on)| Act::Mark(n, on)),
        12 => (n(), spec()).prop_map(|(n, spec)| Act::PutRule(n, Box::new(spec))),
        4 => n().prop_map(Act::DeleteRule),
        2 => n().prop_map(Act::Suspend),
        3 => (n(), value()).prop_map(|(n, v)| Act::EditCopy(n, v)),
        2 => (n(), value()).prop_map(|(n, v)| Act::AddToCopy(n, v)),
        1 => n().prop_map(Act::DropFromCopy),
        3 => n().prop_map(Act::Unlabel),
        2 => n().prop_map(Act::Disown),
        2 => n().prop_map(Act::CoOwn),
        4 => n().prop_map(Act::DeleteCopy),
        2 => n().prop_map(Act::Finalize),
        3 => (n(), n(), prop::bool::weighted(0.25), on, content())
            .prop_map(|(s, n, renamed, labelled, content)| Act::Foreign(s, n, renamed, labelled, content)),
        2 => n().prop_map(Act::DeleteForeign),
        1 => (n(), on).prop_map(|(n, on)| Act::Quota(n, on)),
        3 => (n(), n()).prop_map(|(n, replica)| Act::Pod(n, replica)),
    ]
}

/// Acts with large effects, such as the removal of a CRD.
pub fn upheaval() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Unserve(Res::Widget)),
        3 => Just(Act::Serve(Res::Widget)),
        1 => Just(Act::Unserve(Res::Rule)),
        2 => Just(Act::Serve(Res::Rule)),
        2 => option::of(team()).prop_map(Act::Fleet),
        1 => Just(Act::FleetGone),
        1 => (0..3usize).prop_map(Act::Confirm),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Good),
        1 => Just(Fate::Refused),
        1 => Just(Fate::Throttled),
        2 => Just(Fate::Unanswered),
        1 => Just(Fate::Late),
    ]
}

fn tick() -> impl Strategy<Value = Move> {
    select(vec![1u64, 20, 300, 1100, 2500, 11_000, 70_000]).prop_map(Move::Tick)
}

/// Begins a history: sources, namespaces, a rule, and everything that results from them.
fn begun(moves: impl Strategy<Value = Vec<Move>>) -> impl Strategy<Value = Vec<Move>> {
    let begin = (select(vec![0usize, 1, 3]), spec(), moves);
    begin.prop_map(|(source, spec, moves)| {
        let begin = [
            Act::PutSource(source, "v1"),
            Act::PutNamespace(2, Some("a")),
            Act::PutNamespace(3, None),
            Act::PutRule(
                0,
                Box::new(RuleSpec {
                    sources: vec![source],
                    ..spec
                }),
            ),
        ];
        begin
            .map(Move::Act)
            .into_iter()
            .chain([Move::Calm(6)])
            .chain(moves)
            .collect()
    })
}

/// Users act, and no failure happens.
pub fn fair() -> impl Strategy<Value = Vec<Move>> {
    begun(vec(
        prop_oneof![6 => act().prop_map(Move::Act), 3 => Just(Move::Calm(3)), 1 => tick()],
        1..40,
    ))
}

/// Users act, and every kind of failure happens.
pub fn foul() -> impl Strategy<Value = Vec<Move>> {
    let n = || 0..60usize;
    let one = prop_oneof![
        30 => act().prop_map(Move::Act),
        2 => upheaval().prop_map(Move::Act),
        20 => (n(), n(), 1..6usize).prop_map(|(p, w, c)| Move::Deliver(p, w, c)),
        6 => (n(), n()).prop_map(|(p, f)| Move::Carry(p, f)),
        14 => (n(), n(), fate()).prop_map(|(p, f, fate)| Move::Answer(p, f, fate)),
        3 => n().prop_map(Move::Late),
        3 => (n(), n()).prop_map(|(p, w)| Move::Relist(p, w)),
        2 => n().prop_map(Move::Restart),
        6 => tick(),
        8 => (1..4usize).prop_map(Move::Calm),
        3 => any::<bool>().prop_map(Move::Status),
    ];
    begun(vec(one, 1..90))
}

/// Many acts in one namespace: two rules, one source, one or two copies.
fn crowded_act() -> impl Strategy<Value = Act> {
    let n = || 0..3usize;
    let place = || select(vec![1usize, 2, 2, 2]);
    let spec = (
        prop::bool::weighted(0.2),
        option::of(select(vec!["gold", TEAMS])),
        any::<bool>(),
        prop::bool::weighted(0.1),
        0..3u8,
        prop::bool::weighted(0.2),
        select(vec![
            Clash::Report,
            Clash::Report,
            Clash::Adopt,
            Clash::Overwrite,
        ]),
        select(vec![
            (false, false),
            (false, false),
            (true, false),
            (false, true),
        ]),
    );
    let spec = spec.prop_map(
        |(renamed, tier, team, suspend, hold, finalizer, clash, (once, exclusive))| RuleSpec {
            targets: vec![To {
                select: if team { Select::Team("a") } else { Select::All },
                renamed,
            }],
            tier,
            suspend,
            finalizer,
            clash,
            once,
            exclusive,
            keep: if once { Keep::ALL } else { Keep::default() },
            hold: [Hold::None, Hold::BestEffort, Hold::Required][usize::from(hold)],
            ..RuleSpec::of(0, Select::All)
        },
    );
    prop_oneof![
        6 => select(vec!["v1", "v2", "v3", "bad"]).prop_map(|v| Act::PutSource(0, v)),
        1 => Just(Act::DeleteSource(0)),
        3 => value().prop_map(|v| Act::Annotate(0, true, v)),
        6 => (place(), option::of(Just("a"))).prop_map(|(n, team)| Act::PutNamespace(n, team)),
        3 => place().prop_map(Act::DeleteNamespace),
        4 => place().prop_map(Act::Reap),
        1 => (place(), any::<bool>()).prop_map(|(n, on)| Act::Mark(n, on)),
        6 => (0..2usize, spec).prop_map(|(n, spec)| Act::PutRule(n, Box::new(spec))),
        2 => (0..2usize).prop_map(Act::DeleteRule),
        1 => (0..2usize).prop_map(Act::Suspend),
        4 => (n(), value()).prop_map(|(n, v)| Act::EditCopy(n, v)),
        3 => n().prop_map(Act::Unlabel),
        2 => n().prop_map(Act::Disown),
        1 => n().prop_map(Act::CoOwn),
        4 => n().prop_map(Act::DeleteCopy),
        2 => n().prop_map(Act::Finalize),
        4 => (place(), any::<bool>(), content())
            .prop_map(|(n, labelled, content)| Act::Foreign(0, n, false, labelled, content)),
        3 => n().prop_map(Act::DeleteForeign),
        1 => (place(), any::<bool>()).prop_map(|(n, on)| Act::Quota(n, on)),
        3 => (place(), n()).prop_map(|(n, replica)| Act::Pod(n, replica)),
        1 => Just(Act::Unserve(Res::Rule)),
        1 => Just(Act::Serve(Res::Rule)),
    ]
}

/// Many acts in one namespace, with every kind of failure.
pub fn crowded() -> impl Strategy<Value = Vec<Move>> {
    let n = || 0..60usize;
    let one = prop_oneof![
        24 => crowded_act().prop_map(Move::Act),
        30 => (n(), n(), 1..4usize).prop_map(|(p, w, c)| Move::Deliver(p, w, c)),
        10 => (n(), n()).prop_map(|(p, f)| Move::Carry(p, f)),
        16 => (n(), n(), fate()).prop_map(|(p, f, fate)| Move::Answer(p, f, fate)),
        2 => n().prop_map(Move::Late),
        3 => (n(), n()).prop_map(|(p, w)| Move::Relist(p, w)),
        2 => n().prop_map(Move::Restart),
        8 => tick(),
        4 => (1..4usize).prop_map(Move::Calm),
    ];
    let begin = [
        Act::PutSource(0, "v1"),
        Act::PutRule(0, Box::new(RuleSpec::of(0, Select::All))),
    ]
    .map(Move::Act);
    vec(one, 1..120).prop_map(move |moves| {
        begin
            .iter()
            .cloned()
            .chain([Move::Calm(4)])
            .chain(moves)
            .collect()
    })
}

/// The programs, and the largest number of requests that each may have in flight.
pub fn cast() -> impl Strategy<Value = (Vec<Role>, usize)> {
    let roles = prop_oneof![
        3 => Just(vec![Role::Keeper]),
        3 => Just(vec![Role::Keeper, Role::Injector]),
        1 => Just(vec![Role::Keeper, Role::Injector, Role::Injector]),
    ];
    (roles, select(vec![1usize, 3, 64]))
}
