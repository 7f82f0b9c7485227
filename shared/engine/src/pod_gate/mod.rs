//! Namespaces that wait for their copies: the mark, who works on it, and what still holds the
//! namespace's pods.
//!
//! - `issued`: marks that this replica set and has not seen yet

pub(crate) mod issued;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use mimeo_model::{
    choices::PodGate,
    id::{RuleId, RuleKind, SlotId},
    meta::Uid,
    outcome::FailureReason,
    role::Role,
    rule::Rule,
    selection::{Labels, NameHint},
};

use crate::{
    Awaited, Engine, Namespace,
    cell::{Cell, Leave, Step},
    clock::Tick,
    hindrance::Hindrance,
    issued::Issued,
    jobs::{JobKey, Task},
    namespaces::Mark,
    work::Timer,
};

/// How long a mark outlasts the budget. Pods that were told to come again until time ran out come a
/// second later, or two.
const FAREWELL: Duration = Duration::from_secs(5);

/// By how much one watch may be ahead of another; more than that is rare, and only costs a request.
const SETTLING: Duration = Duration::from_millis(250);

/// The marks that this process sets and takes off.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Those that this replica set and has not seen yet.
    pub(crate) issued: Issued,
    /// How long after it has seen its mark it begins to write.
    pub(crate) delay: Duration,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            issued: Issued::default(),
            delay: Duration::from_millis(1),
        }
    }
}

/// A copy that a namespace's pods wait for.
///
/// Prints as
/// `Secret registry (ClusterReplication/registry, podGate Required): Conflict, an object of that name exists`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedCopy {
    /// Kind and name of the copy: `Secret registry`. As long as a selector's sources aren't listed:
    /// what it selects.
    pub copy: String,
    /// The rule that makes it.
    pub rule: Arc<RuleId>,
    /// The rule's `podGate`.
    pub pod_gate: PodGate,
    /// Why it can't be written now; none while it is on its way.
    pub why: Option<String>,
}

impl fmt::Display for AwaitedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            copy,
            rule,
            pod_gate,
            why,
        } = self;
        write!(f, "{copy} ({rule}, podGate {pod_gate:?})")?;
        match why {
            None => Ok(()),
            Some(why) => write!(f, ": {why}"),
        }
    }
}

/// What still holds a namespace's pods.
#[allow(clippy::struct_excessive_bools)] // Four facts that are true or not, each on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether this process has seen the namespace at all.
    pub seen: bool,
    /// Which object of the namespace's name it saw.
    pub uid: Option<Uid>,
    /// The mark that it saw on it.
    pub token: Option<Box<str>>,
    /// Copies of `podGate: Required` that cannot be written now: pods are denied.
    pub denied: Vec<AwaitedCopy>,
    /// Copies of `podGate: BestEffort` that cannot be written now: pods go on with a warning.
    pub excused: Vec<AwaitedCopy>,
    /// Copies that are being written.
    pub waiting: Vec<AwaitedCopy>,
    /// Whether one of `waiting` is of `podGate: Required`, which no budget excuses.
    pub required: bool,
    /// Whether the time budget ran out.
    pub over_budget: bool,
    /// Whether LimitRanges or ServiceAccounts are among the copies: their admission plugins read
    /// them before any webhook is called, so a request held here would be judged without them.
    pub early_kinds: bool,
}

impl Progress {
    /// Adds a copy that isn't there yet. With a hindrance it can't be written now; without one it
    /// is being written.
    fn awaits(
        &mut self,
        copy: String,
        rule: Arc<RuleId>,
        pod_gate: PodGate,
        hindrance: Option<Hindrance>,
    ) {
        let required = pod_gate == PodGate::Required;
        let list = match hindrance {
            None => &mut self.waiting,
            Some(_) if required => &mut self.denied,
            Some(_) => &mut self.excused,
        };
        self.required |= required && hindrance.is_none();
        let why = hindrance.map(|why| match why {
            Hindrance::Failure(FailureReason::Conflict) => {
                "Conflict, an object of that name exists".to_owned()
            }
            why => why.to_string(),
        });
        list.push(AwaitedCopy {
            copy,
            rule,
            pod_gate,
            why,
        });
    }

    /// Whether pods may be admitted without reserve.
    pub fn ready(&self) -> bool {
        self.seen && self.waiting.is_empty() && self.denied.is_empty() && self.excused.is_empty()
    }

    /// Whether nothing is left to wait for.
    pub fn settled(&self) -> bool {
        self.seen && (self.waiting.is_empty() || (self.over_budget && !self.required))
    }
}

impl Engine {
    /// Rules that hold the pods of a namespace with this name and these labels, as far as rules
    /// were shown.
    pub fn pod_gate_rules(&self, hint: NameHint<'_>, labels: &Labels) -> BTreeSet<RuleId> {
        let holding = self
            .cluster_rules()
            .filter(|(_, state)| state.pod_gate() != PodGate::None);
        let rules = holding.filter_map(|(id, state)| Some((id, state.rule.as_ref().ok()?)));
        rules
            .filter(|(_, rule)| rule.could_match(hint, labels))
            .map(|(id, _)| (**id).clone())
            .collect()
    }

    /// Whether everything was seen once that decides about a namespace.
    pub fn primed(&self) -> bool {
        self.all_rules() && self.namespaces_listed
    }

    /// Whether everything was seen once that a namespace's copies are made of: kinds and sources
    /// too.
    pub fn informed(&self) -> bool {
        self.primed()
            && self.kinds.known
            && self
                .slots
                .values()
                .filter(|slot| slot.rule.kind == RuleKind::ClusterReplication)
                .all(|slot| slot.rendering.is_ok() || self.hindrance(slot).is_some())
            && self
                .cluster_rules()
                .filter_map(|(_, state)| state.valid())
                .all(|rule| self.knows_selected(rule))
    }

    /// This replica set a mark with that token: it injects once its watch shows what was awaited.
    pub fn issue(&mut self, token: &str, awaited: Awaited, now: Tick) {
        self.at(now);
        self.marks.issued.add(token, awaited, self.now);
    }

    /// Whether this replica issued that token, and hasn't seen it on a namespace yet.
    pub fn issued(&self, token: &str) -> bool {
        self.marks.issued.contains(token)
    }

    /// A pod waits in this namespace: whoever marked it, this replica helps.
    pub fn take_charge(&mut self, namespace: &str, now: Tick) {
        self.at(now);
        let name = self.namespace_name(namespace);
        let Some(entry) = self.namespaces.get_mut(&name) else {
            return;
        };
        if entry.mark.is_some() && entry.charge.is_none_or(|from| from > self.now) {
            entry.charge = Some(self.now);
            self.dirty.insert(name);
        }
    }

    /// Takes in the mark that a namespace shows; `changed`: its labels aren't what they were.
    pub(crate) fn see_mark(&mut self, name: &Arc<str>, changed: bool) {
        let Some(entry) = self.namespaces.get_mut(name) else {
            return;
        };
        let token: Option<Box<str>> = entry.token().map(Into::into);
        let Some(token) = token else {
            entry.mark = None;
            entry.charge = None;
            return;
        };
        let soon = self.now + self.marks.delay;
        match &entry.mark {
            Some(mark) if mark.token == token => {
                entry.charge = entry
                    .charge
                    .map(|from| if changed { from.min(soon) } else { from });
            }
            _ => {
                entry.mark = Some(Mark {
                    token: token.clone(),
                    since: self.now,
                });
                if let Some(awaited) = self.marks.issued.redeem(&token) {
                    entry.charge = Some(match awaited {
                        Awaited::Namespace => soon,
                        Awaited::Labels => self.now + self.settings.takeover,
                    });
                }
                let budget = self.settings.budget;
                for wait in [self.settings.takeover, budget, budget + FAREWELL] {
                    self.work
                        .timer(self.now + wait, Timer::Namespace(name.clone()));
                }
            }
        }
        if let Some(from) = entry.charge {
            self.work.timer(from, Timer::Namespace(name.clone()));
        }
    }

    /// A namespace has lost its mark, or has got other labels: if a webhook runs, it has written
    /// the copies that these asked for before. Its watch may be ahead of that of the copies; to
    /// write them again would cost a request and gain nothing.
    pub(crate) fn let_settle(&mut self, name: &Arc<str>) {
        if self.settings.role == Role::Injector || self.webhooks.seen.is_empty() {
            return;
        }
        // Not extended while it lasts: else whoever may label a namespace could keep updates out of
        // it.
        let Some(entry) = self
            .namespaces
            .get_mut(name)
            .filter(|entry| entry.settles <= self.now)
        else {
            return;
        };
        entry.settles = self.now + SETTLING;
        self.work
            .timer(entry.settles, Timer::Namespace(name.clone()));
    }

    /// Takes the mark off once nothing holds the namespace's pods any more.
    pub(crate) fn plan_mark(&mut self, name: &Arc<str>, namespace: &Namespace) {
        if namespace.mark.is_some() && self.held_by_nothing(name, namespace) {
            self.jobs.ask(JobKey::RemoveLabel(name.clone()));
        }
    }

    /// The removal of a namespace's mark, as far as the namespace is known now; none if something
    /// holds its pods.
    pub(crate) fn label_to_remove(&self, name: &Arc<str>) -> Option<Task> {
        let namespace = self.namespaces.get(name)?;
        let mark = namespace.mark.as_ref()?;
        self.held_by_nothing(name, namespace)
            .then(|| Task::RemoveLabel {
                namespace: name.clone(),
                token: mark.token.clone(),
                version: namespace.version,
                since: mark.since,
            })
    }

    /// This process took off a mark that a namespace had since then.
    pub(crate) fn label_removed(&mut self, since: Tick) {
        self.lags.namespaces.record(self.now.saturating_sub(since));
    }

    /// Whether a mark may go, and be taken off by this process.
    fn held_by_nothing(&self, name: &str, namespace: &Namespace) -> bool {
        if !namespace.alive() || !self.primed() || !self.in_charge(namespace) {
            return false;
        }
        let progress = self.progress_of(name, namespace);
        // While a copy is only excused the mark stays for the budget's time, so that pods get their
        // warning.
        let excused = progress.excused.is_empty() || progress.over_budget;
        // So do those who waited for a copy until time ran out, or were told to come again: for
        // them it stays longer.
        let stays = self.settings.budget + FAREWELL;
        let told = namespace
            .mark
            .as_ref()
            .is_none_or(|mark| self.now >= mark.since + stays);
        let waited = progress.waiting.is_empty() || told;
        progress.settled() && progress.denied.is_empty() && excused && waited
    }

    /// What still holds a namespace's pods.
    pub fn progress(&mut self, namespace: &str, now: Tick) -> Progress {
        self.at(now);
        self.plan();
        let primed = self.primed();
        match self
            .namespaces
            .get(namespace)
            .filter(|entry| entry.uid.is_some())
        {
            Some(entry) if primed => self.progress_of(namespace, entry),
            _ => Progress::default(),
        }
    }

    pub(crate) fn progress_of(&self, name: &str, namespace: &Namespace) -> Progress {
        let mut progress = Progress {
            seen: true,
            uid: namespace.uid,
            token: namespace.mark.as_ref().map(|mark| mark.token.clone()),
            over_budget: namespace
                .mark
                .as_ref()
                .is_none_or(|mark| self.now >= mark.since + self.settings.budget),
            ..Progress::default()
        };
        self.await_selectors(name, namespace, &mut progress);
        for cell in &namespace.cells {
            let Some(id) = cell.want else { continue };
            let pod_gate = self.pod_gate_of(id);
            if pod_gate == PodGate::None {
                continue;
            }
            let kind = &self.kinds[cell.kind].group_kind;
            let early =
                kind.group.is_empty() && matches!(&*kind.kind, "LimitRange" | "ServiceAccount");
            let why = match self.hold(id, name, namespace, cell) {
                Hold::None => continue,
                Hold::Writing => None,
                Hold::Cannot(why) => Some(why),
            };
            let Some(rule) = self.slots.get(&id).map(|slot| slot.rule.clone()) else {
                continue;
            };
            progress.early_kinds |= early && why.is_none();
            progress.awaits(format!("{kind} {}", cell.name), rule, pod_gate, why);
        }
        progress
    }

    /// What selectors find is waited for until it is known.
    fn await_selectors(&self, name: &str, namespace: &Namespace, progress: &mut Progress) {
        let rules = self
            .rules
            .iter()
            .filter_map(|(id, state)| Some((id, state.acting()?)));
        let held = |rule: &Rule| rule.pod_gate != PodGate::None && !rule.selectors.is_empty();
        let here = |rule: &Rule| held(rule) && rule.matches(name, &namespace.labels);
        for (id, rule) in rules.filter(|(_, rule)| here(rule)) {
            let listed = |selector| {
                self.selectors
                    .get(selector)
                    .is_some_and(|findings| findings.listed)
            };
            for selector in rule.selectors.iter().filter(|selector| !listed(*selector)) {
                let copies = format!("the objects that a selector finds in {selector}");
                progress.awaits(
                    copies,
                    id.clone(),
                    rule.pod_gate,
                    self.selector_hindrance(selector),
                );
            }
        }
    }

    fn hold(&self, id: SlotId, name: &str, namespace: &Namespace, cell: &Cell) -> Hold {
        match self.decide_wanted(id, name, namespace, cell) {
            step if step.is_right() => Hold::None,
            Step::Leave(Leave::NoSource | Leave::SourceRefused | Leave::KindNotServed) => {
                let hindrance = self.slots.get(&id).and_then(|slot| self.hindrance(slot));
                hindrance.map_or(Hold::Writing, Hold::Cannot)
            }
            Step::Leave(Leave::Foreign(_) | Leave::Deleting) => {
                Hold::Cannot(Hindrance::Failure(FailureReason::Conflict))
            }
            _ => match cell.failure.as_ref().map(|failing| &failing.failure) {
                // An installation with Roles instead of a ClusterRole may get the one for a new
                // namespace later than the namespace, and from a pod in it.
                Some(failure)
                    if failure.reason == FailureReason::Forbidden
                        && self.settings.reach.targets.is_some() =>
                {
                    Hold::None
                }
                Some(failure)
                    if !matches!(
                        failure.reason,
                        FailureReason::Timeout | FailureReason::ClusterUnreachable
                    ) =>
                {
                    Hold::Cannot(Hindrance::Failure(failure.reason))
                }
                _ => Hold::Writing,
            },
        }
    }
}

/// What one cell means for the pods of its namespace.
enum Hold {
    None,
    Writing,
    Cannot(Hindrance),
}
