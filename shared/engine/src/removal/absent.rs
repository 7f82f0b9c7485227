//! How rules and sources disappeared: deleted on purpose, lost together with their namespace or
//! CRD, or not known yet.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    id::RuleId,
    meta::{Uid, seconds},
    source::SourceRef,
};

use crate::{
    Effects, Index, SourceState,
    clock::Tick,
    copy::CopyState,
    jobs::JobKey,
    verdict::{Need, Needs},
    work::Timer,
};

/// The facts about a missing object: a rule that copies name, or a source.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    pub(crate) became: Became,
    /// True if the read is recent enough to prove a deletion on purpose. False once it is older than
    /// [`FRESH`].
    fresh: bool,
    /// The uid of its namespace, if this process saw the object.
    home: Option<Uid>,
    /// When the object was last read.
    read_at: Tick,
    /// Namespaces with copies that wait for a read.
    asking: BTreeSet<Arc<str>>,
    /// Namespaces with copies whose verdict depends on `became`. Only these are planned again when
    /// it changes, for two reasons. Any user can write labels and annotations that name any number
    /// of rules. And a copy does not always name the rule that would own it now.
    users: BTreeSet<Arc<str>>,
}

/// How the object disappeared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Became {
    /// Not known.
    #[default]
    Unknown,
    /// Deleted on purpose.
    Deleted {
        /// The number of observations of copies when the read began.
        shown: u64,
        /// When its namespace was created, in seconds since 1970. Set only if the object may have
        /// been in a former namespace of the same name.
        since: Option<u32>,
    },
    /// Gone together with its namespace.
    GoneWithNamespace,
    /// Gone with its CRD or with the CRD's record, no longer selected, or gone for an unknown
    /// reason.
    Unexplained,
}

/// How the object disappeared, from the point of view of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HowGone {
    /// Deleted on purpose.
    Deleted,
    /// Gone together with its namespace.
    WithNamespace,
    /// Unknown. Such a loss alone deletes no copy.
    Unexplained,
}

/// How long a read that found an object missing stays valid. The object may have been created again
/// since, and the watch may show that late.
pub(crate) const FRESH: Duration = Duration::from_secs(10);

impl Absence {
    /// The absence of an object that was in this namespace until just now, as far as this process
    /// knows.
    pub(crate) fn from(home: Option<Uid>) -> Self {
        Self {
            home,
            ..Self::default()
        }
    }

    /// Returns how the object disappeared, from the point of view of a copy. `None`:
    /// that is unknown. A deletion on purpose is proven only if the read is fresh, too: recent
    /// enough.
    ///
    /// A read proves nothing about a copy that this process observed after the read began. The
    /// object may have been created again, and the copy may be made from it.
    ///
    /// An object that this process never saw may have been in a former namespace of the same name.
    /// Then it went with that namespace, and no user deleted it. Only a copy written after the
    /// present namespace was created excludes that. Times have whole seconds, so equal times prove
    /// nothing.
    pub(crate) fn how_gone(&self, copy: &CopyState) -> Option<HowGone> {
        let seen = copy.ours()?;
        match self.became {
            Became::Unknown => None,
            Became::Deleted {
                since: Some(since), ..
            } if seen.last_made() <= since => Some(HowGone::WithNamespace),
            Became::Deleted { shown, .. } => {
                (self.fresh && copy.shown <= shown).then_some(HowGone::Deleted)
            }
            Became::GoneWithNamespace => Some(HowGone::WithNamespace),
            Became::Unexplained => Some(HowGone::Unexplained),
        }
    }

    /// Records that the verdict of a copy in this namespace depends on the absence. With `asks` the
    /// copy waits for a read.
    pub(crate) fn used(&mut self, namespace: &Arc<str>, asks: bool) {
        let set = if asks {
            &mut self.asking
        } else {
            &mut self.users
        };
        set.insert(namespace.clone());
    }

    /// Records how the object disappeared, or that this is unknown (again). Returns the namespaces
    /// that must be planned again.
    #[must_use]
    pub(crate) fn turn_out(&mut self, became: Became, now: Tick) -> BTreeSet<Arc<str>> {
        // A user who changes copies causes one read after another. Each read proves what the one
        // before it has proven, so the other copies need no plan.
        let proves_the_same = self.fresh
            && matches!(
                (self.became, became),
                (Became::Deleted { since: before, .. }, Became::Deleted { since, .. })
                    if before == since
            );
        self.became = became;
        self.fresh = matches!(became, Became::Deleted { .. });
        self.read_at = now;
        let mut again = std::mem::take(&mut self.asking);
        if !proves_the_same {
            again.append(&mut self.users);
        }
        again
    }

    /// Returns how the object disappeared if a read found this namespace but not the object.
    /// `None`: the read found neither. `shown` is the number of observations of copies when the
    /// read began.
    pub(crate) fn absent_at(&self, home: Option<Home>, shown: u64) -> Became {
        let Some(home) = home else {
            return Became::GoneWithNamespace;
        };
        match self.home {
            // The object went with its former namespace. The present one is another namespace of
            // the same name.
            Some(former) if former != home.uid => Became::GoneWithNamespace,
            Some(_) => Became::Deleted { shown, since: None },
            None => Became::Deleted {
                shown,
                since: Some(home.created),
            },
        }
    }
}

/// A rule that copies name but that does not exist.
#[derive(Debug)]
pub(crate) struct Gone {
    /// Uid of the CRD under which this process last saw the rule. `None`: not since this process
    /// began, or only before this process knew any CRD.
    seen_under: Option<Box<str>>,
    pub(crate) absence: Absence,
    /// The rule is remembered until this time even if no copy names it. A write whose answer was
    /// lost may still appear in the watch.
    pub(crate) until: Tick,
}

/// Longer than any write takes to appear in the watch.
const REMEMBERED: Duration = Duration::from_mins(10);

impl Gone {
    /// Creates the record of a rule that existed until just now, under this CRD and in this
    /// namespace.
    pub(crate) fn seen_under(crd: Option<Box<str>>, home: Option<Uid>, now: Tick) -> Self {
        Self {
            seen_under: crd,
            absence: Absence::from(home),
            until: now + REMEMBERED,
        }
    }
}

/// A namespace that exists and is not being deleted, from an uncached read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Uid of the namespace.
    pub uid: Uid,
    /// When the namespace was created, in seconds since 1970.
    pub created: u32,
}

impl Home {
    /// Reads the uid and the creation time from a namespace's metadata. `None`: the uid can't be
    /// parsed.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        // A namespace without a creation time is treated as created just now. Then no object in it
        // counts as deleted on purpose.
        let created = meta.creation_timestamp.as_ref().map_or(u32::MAX, seconds);
        Some(Self {
            uid: Uid::parse(meta.uid.as_deref()?)?,
            created,
        })
    }
}

/// The answer to [`Task::ConfirmSource`](crate::Task), from uncached reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRead {
    /// The source exists. Its watch shows it, or will.
    Present,
    /// The source does not exist. Its namespace is `None` if it does not exist either, or is being
    /// deleted.
    Absent(Option<Home>),
    /// The source exists, but its selector no longer matches its labels.
    Relabelled,
}

/// The answer to [`Task::ConfirmRule`](crate::Task), from uncached reads of the rule and of its
/// CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRead {
    /// True if the rule exists after all.
    pub found: bool,
    /// The namespace of the rule. `None`: the rule has none, or the namespace does not exist or is
    /// being deleted.
    pub home: Option<Home>,
    /// Uid of the CRD. `None`: the CRD does not exist or is being deleted.
    pub crd: Option<Box<str>>,
}

impl Index {
    /// True if the engine still needs the read of this job. A copy waits for the read of a missing
    /// object, or a rule may belong to another CRD than the one served now.
    pub(crate) fn awaits_read(&self, key: &JobKey) -> bool {
        if let JobKey::ConfirmRule(id) = key
            && let Some(state) = self.rules.get(id)
        {
            return state.crd != self.collections[id.kind].crd.current;
        }
        self.absence(key)
            .is_some_and(|absence| !absence.asking.is_empty())
    }

    /// The facts about a missing object. `key` is the job that reads the object.
    fn absence(&self, key: &JobKey) -> Option<&Absence> {
        match key {
            JobKey::ConfirmRule(id) => Some(&self.gone.get(id)?.absence),
            JobKey::ConfirmSource(source) => match self.sources.get(source)? {
                SourceState::Missing { absence, .. } => Some(absence),
                _ => None,
            },
            JobKey::ConfirmGrants(giver) => Some(&self.consent.withdrawals.get(giver)?.absence),
            _ => None,
        }
    }

    /// A read that found an object missing may be too old now. Copies that still depend on it then
    /// wait for another read.
    pub(crate) fn expire(&mut self, key: &JobKey) {
        let now = self.now;
        if let Some(absence) = self.absence_mut(key)
            && now >= absence.read_at + FRESH
        {
            absence.fresh = false;
            let mut users = std::mem::take(&mut absence.users);
            self.dirty.append(&mut users);
        }
    }

    /// The facts about a missing object, for a change. `key` is the job that reads the object.
    pub(crate) fn absence_mut(&mut self, key: &JobKey) -> Option<&mut Absence> {
        match key {
            JobKey::ConfirmRule(id) => Some(&mut self.gone.get_mut(id)?.absence),
            JobKey::ConfirmSource(source) => match self.sources.get_mut(source)? {
                SourceState::Missing { absence, .. } => Some(absence),
                _ => None,
            },
            JobKey::ConfirmGrants(giver) => {
                Some(&mut self.consent.withdrawals.get_mut(giver)?.absence)
            }
            _ => None,
        }
    }

    /// Returns how a rule disappeared that this copy names. `None`: that is unknown, and the rule
    /// must be read.
    pub(crate) fn how_rule_went(
        &self,
        id: &Arc<RuleId>,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let how = self.how_rule_went_if_known(id, copy);
        needs.push(Need::Absence(
            JobKey::ConfirmRule(id.clone()),
            how.is_none(),
        ));
        how
    }

    /// Returns how a rule disappeared, as far as this process knows.
    ///
    /// For a rule that this process never saw, the recorded uid of the CRD proves a deletion on
    /// purpose. It proves nothing about a copy that was last written before the kinds `ConfigMap`
    /// was created. The rule of such a copy may have been lost with a former CRD, for example when
    /// Mimeo was uninstalled.
    pub(crate) fn how_rule_went_if_known(&self, id: &RuleId, copy: &CopyState) -> Option<HowGone> {
        let (gone, seen) = (self.gone.get(id)?, copy.ours()?);
        if matches!(gone.absence.became, Became::Deleted { .. })
            && gone.seen_under.is_none()
            && self
                .kinds
                .since
                .is_none_or(|since| seen.last_made() < since)
        {
            return Some(HowGone::Unexplained);
        }
        gone.absence.how_gone(copy)
    }

    /// Returns how the source of this copy disappeared. `None`: that is unknown, and the source must
    /// be read.
    pub(crate) fn how_source_went(
        &self,
        source: &SourceRef,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let known = self.sources.get(source);
        if known.is_some_and(|state| !state.is_missing()) {
            // The object still exists, but it has become a copy. No client has deleted it.
            return Some(HowGone::Unexplained);
        }
        let key = JobKey::ConfirmSource(source.clone());
        let absence = self.absence(&key);
        let how = absence.and_then(|absence| absence.how_gone(copy));
        needs.push(Need::Absence(key, how.is_none()));
        how
    }
}

impl Index {
    /// Takes in a read of a rule. Returns false if the read proves nothing: the watch has yet to
    /// show the rule, or its deletion.
    pub(crate) fn rule_confirmed(
        &mut self,
        id: &RuleId,
        read: &RuleRead,
        shown: u64,
        effects: &mut Effects,
    ) -> bool {
        if let Some(state) = self.rules.get_mut(id) {
            if read.found {
                state.crd.clone_from(&read.crd);
                effects.work.untidy = true;
            }
            return read.found;
        }
        let Some((id, gone)) = self.gone.get_key_value(id) else {
            return true;
        };
        let key = JobKey::ConfirmRule(id.clone());
        if read.found {
            self.became(key, Became::Unknown, effects);
            return false;
        }
        let recorded = self.collections[id.kind].crd.recorded.as_ref();
        let lived_under = gone.seen_under.as_ref().or(recorded);
        let became = if read.crd.is_none() || read.crd.as_ref() != lived_under {
            Became::Unexplained
        } else if id.namespace.is_none() {
            Became::Deleted { shown, since: None }
        } else {
            gone.absence.absent_at(read.home, shown)
        };
        self.became(key, became, effects);
        true
    }

    /// Takes in a read of a missing source. Returns false if the source exists: its watch has yet
    /// to show it.
    pub(crate) fn source_confirmed(
        &mut self,
        source: &SourceRef,
        read: SourceRead,
        shown: u64,
        effects: &mut Effects,
    ) -> bool {
        let key = JobKey::ConfirmSource(source.clone());
        let Some(absence) = self.absence(&key) else {
            return true;
        };
        let became = match read {
            SourceRead::Present => Became::Unknown,
            SourceRead::Absent(home) => absence.absent_at(home, shown),
            SourceRead::Relabelled => Became::Unexplained,
        };
        self.became(key, became, effects);
        became != Became::Unknown
    }

    /// Records how an object disappeared, for all copies whose verdicts depend on that. `key` is
    /// the job that reads the object.
    pub(crate) fn became(&mut self, key: JobKey, became: Became, effects: &mut Effects) {
        let now = self.now;
        let Some(absence) = self.absence_mut(&key) else {
            return;
        };
        let mut again = absence.turn_out(became, now);
        self.dirty.append(&mut again);
        if matches!(became, Became::Deleted { .. }) {
            effects.work.timer(now + FRESH, Timer::Expired(key));
        }
    }
}
