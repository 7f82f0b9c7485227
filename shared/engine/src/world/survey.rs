//! Which copies have been seen: what the watches of copies have listed so far.

use std::collections::{BTreeMap, BTreeSet};

use mimeo_model::{
    id::KindId,
    kind::{GroupKind, Resource},
    outcome::Unreadable,
    reach::Reach,
    role::Role,
    rule::Rule,
    selection::Labels,
    template::Place,
};

use crate::{Demand, Engine, KindState, clock::Tick, kinds::Note};

/// One watch of copies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyWatch {
    /// Their kind.
    pub kind: GroupKind,
    /// Where; everywhere if `None`.
    pub namespace: Option<Box<str>>,
}

impl From<GroupKind> for CopyWatch {
    /// Everywhere.
    fn from(kind: GroupKind) -> Self {
        Self {
            kind,
            namespace: None,
        }
    }
}

/// What one watch has shown.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Number of the listing under way or done.
    pub(crate) listing: u8,
    /// Whether it is done.
    pub(crate) listed: bool,
    /// resourceVersion of the last one done.
    pub(crate) listed_at: u64,
    /// Why it can't be watched now.
    pub(crate) unreadable: Option<Unreadable>,
}

/// What the watches of one kind have shown.
#[derive(Debug)]
pub(crate) enum Surveys {
    /// There is one for all namespaces.
    Everywhere(Survey),
    /// Each namespace in reach has its own, once it has shown something; `other` is that of all
    /// others, which never sees anything.
    Each {
        places: BTreeMap<Box<str>, Survey>,
        other: Survey,
    },
}

impl Surveys {
    pub(crate) fn new(reach: &Reach) -> Self {
        match &reach.targets {
            None => Self::Everywhere(Survey::default()),
            Some(_) => Self::Each {
                places: BTreeMap::new(),
                other: Survey::default(),
            },
        }
    }

    /// The one that shows a namespace's copies.
    pub(crate) fn of(&self, namespace: &str) -> &Survey {
        match self {
            Self::Everywhere(survey) => survey,
            Self::Each { places, other } => places.get(namespace).unwrap_or(other),
        }
    }

    /// That of a watch, if there is such a one.
    fn of_watch(&mut self, namespace: Option<&str>) -> Option<&mut Survey> {
        match (self, namespace) {
            (Self::Everywhere(survey), None) => Some(survey),
            (Self::Each { places, .. }, Some(namespace)) => {
                Some(places.entry(namespace.into()).or_default())
            }
            _ => None,
        }
    }

    fn all(&mut self) -> Vec<(Option<&str>, &mut Survey)> {
        match self {
            Self::Everywhere(survey) => vec![(None, survey)],
            Self::Each { places, .. } => places
                .iter_mut()
                .map(|(name, survey)| (Some(&**name), survey))
                .collect(),
        }
    }
}

impl Engine {
    /// A listing of copies begins.
    pub fn copies_listing(&mut self, watch: &CopyWatch, now: Tick) {
        self.at(now);
        if let Some(survey) = self.survey(watch) {
            survey.listing = survey.listing.wrapping_add(1);
        }
    }

    /// The listing is complete as of `at` (a resourceVersion): what it didn't show was gone then.
    pub fn copies_listed(&mut self, watch: &CopyWatch, at: u64, now: Tick) {
        self.at(now);
        let Some(id) = self.kind_id(&watch.kind) else {
            return;
        };
        let Some(survey) = self.survey(watch) else {
            return;
        };
        survey.listed = true;
        survey.listed_at = at;
        let readable_again = survey.unreadable.take().is_some();
        let listing = survey.listing;
        let shown = |name: &str| watch.namespace.as_deref().is_none_or(|only| only == name);
        let mut owners = BTreeSet::new();
        for (_, entry) in self.namespaces.iter_mut().filter(|(name, _)| shown(name)) {
            for cell in entry
                .cells
                .iter_mut()
                .filter(|cell| cell.kind == id && cell.listing != listing)
            {
                // Our own write may be newer than the listing.
                let owner = self.slots.owner(cell).cloned();
                if cell.vanish(None, at) {
                    cell.retry_now();
                    owners.extend(owner);
                }
            }
        }
        owners.iter().for_each(|rule| self.mark_status_due(rule));
        if readable_again {
            self.mark_statuses_due_of_slots(|slot| slot.kind == id);
        }
        self.replan_all();
    }

    /// Copies can't be watched, until [`Engine::copies_listed`] says otherwise. What was seen of
    /// them holds.
    pub fn copies_unreadable(&mut self, watch: &CopyWatch, why: Unreadable, now: Tick) {
        self.at(now);
        let Some(id) = self.kind_id(&watch.kind) else {
            return;
        };
        if self
            .survey(watch)
            .is_some_and(|survey| survey.unreadable.replace(why) != Some(why))
        {
            self.mark_statuses_due_of_slots(|slot| slot.kind == id);
        }
    }

    /// Why copies of the rule can't be watched, and where, if not in general. What is amiss in
    /// other namespaces is not its author's to know.
    pub(crate) fn unwatchable(
        &self,
        rule: &Rule,
        kind: &GroupKind,
    ) -> Option<(Option<&str>, Unreadable)> {
        let id = self.kinds.id(kind)?;
        let mut surveys = self.surveys_of(rule, id).into_iter();
        surveys.find_map(|(name, survey)| survey.unreadable.map(|why| (name, why)))
    }

    /// Whether every copy of the rule that there can be has been listed, or can't be.
    pub(crate) fn knows_copies_of(&self, rule: &Rule, kind: KindId) -> bool {
        self.surveys_of(rule, kind)
            .iter()
            .all(|(_, survey)| survey.listed || survey.unreadable.is_some())
    }

    fn surveys_of(&self, rule: &Rule, kind: KindId) -> Vec<(Option<&str>, &Survey)> {
        let surveys = &self.kinds[kind].surveys;
        match (surveys, &self.settings.reach.targets) {
            (Surveys::Each { .. }, Some(targets)) => {
                let reached = self.reached(rule).unwrap_or_default();
                let places = targets.iter().filter(|name| reached.contains(*name));
                places
                    .map(|name| (Some(&**name), surveys.of(name)))
                    .collect()
            }
            (Surveys::Everywhere(survey) | Surveys::Each { other: survey, .. }, _) => {
                vec![(None, survey)]
            }
        }
    }

    /// The namespaces in reach into which the rule would write now; none: there is no limit.
    pub fn reached(&self, rule: &Rule) -> Option<BTreeSet<Box<str>>> {
        let targets = self.settings.reach.targets.as_ref()?;
        let writes = |name: &str, labels: &Labels| {
            rule.targets
                .iter()
                .filter(|target| target.selection.matches(name, labels))
                .any(|target| {
                    // The platform's rules need nobody's consent.
                    let mut copies = rule.sources.iter();
                    // What others find isn't known yet.
                    let mut kinds = rule
                        .selectors
                        .iter()
                        .map(|selector| selector.gvk.group_kind());
                    rule.id.namespace.is_none()
                        || kinds.any(|kind| self.may_write_some(&rule.id, name, &kind))
                        || copies.any(|source| {
                            let copy = target.copy_name(source).text_at(Place { name, labels });
                            self.may_write(&rule.id, name, &source.gvk.group_kind(), &copy)
                        })
                })
        };
        let reached = |name: &str| {
            self.namespaces
                .get(name)
                .is_some_and(|entry| writes(name, &entry.labels))
        };
        Some(
            targets
                .iter()
                .filter(|name| reached(name))
                .cloned()
                .collect(),
        )
    }

    fn survey(&mut self, watch: &CopyWatch) -> Option<&mut Survey> {
        let id = self.kind_id(&watch.kind)?;
        self.kinds[id].surveys.of_watch(watch.namespace.as_deref())
    }

    /// Asks for the watches of a kind's copies. Whoever only fills namespaces watches none.
    pub(crate) fn demand_copies(&self, demand: &mut Demand, resource: &Resource) {
        if self.settings.role == Role::Injector {
            return;
        }
        let kind = resource.gvk.group_kind();
        for namespace in self.watched_places() {
            demand
                .copies
                .entry(CopyWatch {
                    kind: kind.clone(),
                    namespace,
                })
                .or_insert_with(|| resource.clone());
        }
    }

    /// Where copies are watched: everywhere by one watch, or in each namespace in reach. One that
    /// doesn't exist has no copies, and its Role isn't there either.
    pub(crate) fn watched_places(&self) -> Vec<Option<Box<str>>> {
        let Some(targets) = &self.settings.reach.targets else {
            return vec![None];
        };
        let exists = |name: &str| {
            self.namespaces
                .get(name)
                .is_some_and(|entry| entry.uid.is_some())
        };
        targets
            .iter()
            .filter(|name| exists(name))
            .cloned()
            .map(Some)
            .collect()
    }

    /// What isn't watched any more says nothing any more.
    pub(crate) fn forget_surveys(&mut self, watched: &BTreeMap<CopyWatch, Resource>) {
        for (
            _,
            KindState {
                group_kind,
                note,
                surveys,
            },
        ) in self.kinds.iter_mut()
        {
            let mut any = false;
            for (namespace, survey) in surveys.all() {
                let watch = CopyWatch {
                    kind: group_kind.clone(),
                    namespace: namespace.map(Into::into),
                };
                let kept = watched.contains_key(&watch);
                any |= kept;
                if !kept {
                    survey.listed = false;
                    survey.unreadable = None;
                }
            }
            if !any && *note == (Note::Present { fresh: true }) {
                *note = Note::Present { fresh: false };
            }
        }
    }

    /// Whether every copy of the kind that there can be has been listed.
    pub(crate) fn all_copies_listed(&self, kind: &KindState) -> bool {
        match &kind.surveys {
            Surveys::Everywhere(survey) => survey.listed,
            Surveys::Each { .. } => {
                let places = self.watched_places();
                self.namespaces_listed
                    && places
                        .iter()
                        .flatten()
                        .all(|name| kind.surveys.of(name).listed)
            }
        }
    }
}
