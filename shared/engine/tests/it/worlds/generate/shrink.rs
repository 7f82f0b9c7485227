//! Makes worlds smaller: the same events with fewer parts.

use crate::worlds::{
    server::{Key, Res},
    spec::{
        All, By, Data, Event, Fields, Inline, Keys, Policy, Retention, RuleSpec, Selector, Story,
        Strategy, Transform,
    },
};

/// Returns the same story without one of its parts, for every part.
pub fn smaller(story: &Story) -> Vec<Story> {
    let mut all = Vec::new();
    let steps = &story.0;
    for at in (1..steps.len()).rev() {
        let mut without = steps.clone();
        without.remove(at);
        all.push(Story(without));
    }
    for (at, step) in steps.iter().enumerate() {
        // If a step has very many events, removing one at a time would take too long.
        let part = step.len().div_ceil(8);
        for from in (0..step.len()).step_by(part.max(1)).filter(|_| part > 2) {
            let mut without = steps.clone();
            without[at].drain(from..(from + part).min(step.len()));
            all.push(Story(without));
        }
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
                Event::Rule(name, spec) => plainer(name, spec)
                    .into_iter()
                    .map(|spec| Event::Rule(name.clone(), Box::new(spec)))
                    .collect(),
                Event::Source(key, fields) => fewer(fields)
                    .into_iter()
                    .map(|fields| Event::Source(key.clone(), fields))
                    .collect(),
                Event::Foreign(nth, content, more) => fewer(more)
                    .into_iter()
                    .map(|more| Event::Foreign(*nth, content.clone(), more))
                    .collect(),
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
    (0..fields.len())
        .map(|at| [&fields[..at], &fields[at + 1..]].concat())
        .collect()
}

fn plainer(name: &Key, spec: &RuleSpec) -> Vec<RuleSpec> {
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
    for at in 0..spec.transform.patch.len() {
        with(&|spec| drop(spec.transform.patch.remove(at)));
    }
    with(&|spec| spec.selected.truncate(1));
    if let [_] = spec.selected[..] {
        with(&|spec| spec.selected[0].selector = Selector::default());
    }
    with(&|spec| spec.resync = 0);
    with(&|spec| spec.targets.truncate(1));
    with(&|spec| drop(spec.targets.drain(..spec.targets.len() - 1)));
    with(&|spec| spec.exclude.clear());
    with(&|spec| {
        spec.targets
            .iter_mut()
            .for_each(|target| target.and = All::default());
    });
    with(&|spec| {
        spec.targets
            .iter_mut()
            .for_each(|target| target.name = None);
    });
    if name.res == Res::Rule {
        with(&|spec| {
            spec.targets
                .iter_mut()
                .for_each(|target| target.by = By::Selector(Selector::default()));
        });
    }
    with(&|spec| spec.sources.truncate(1));
    if !spec.selected.is_empty() {
        with(&|spec| (spec.sources, spec.inline) = (Vec::new(), Inline::new()));
    }
    with(&|spec| spec.retention = Retention::default());
    with(&|spec| spec.conflict = Policy::Report);
    with(&|spec| spec.strategy = Strategy::Apply);
    with(&|spec| spec.deny = false);
    with(&|spec| spec.suspend = false);
    with(&|spec| spec.grace = 0);
    all
}
