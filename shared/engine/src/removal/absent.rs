//! How rules and sources disappeared: deleted on purpose, lost together with their namespace or
//! CRD, or not known yet.
//!
//! A deletion on purpose needs a proof that the object lived in the present namespace, and a rule
//! also under the present CRD. If this process saw the object, it knows the object's namespace and
//! a rule's creation time. Otherwise the namespace and the CRD must be older than the copy. Times
//! have whole seconds, so equal times prove nothing.

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
    /// The number of observations of copies when that read began.
    shown: u64,
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
        /// When its CRD was created, in seconds since 1970. Set only if the object may have lived
        /// under a former CRD of the same name.
        defined: Option<u32>,
        /// When its namespace was created, in seconds since 1970. Set only if the object may have
        /// been in a former namespace of the same name.
        since: Option<u32>,
    },
    /// Gone together with its namespace.
    GoneWithNamespace {
        /// As in [`Became::Deleted`].
        defined: Option<u32>,
    },
    /// Gone with its CRD, no longer selected, or gone for an unknown reason.
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

    /// Returns how the object disappeared, from the point of view of a copy. `None`: that is
    /// unknown. A deletion on purpose is proven only if the read is fresh, too: recent enough.
    ///
    /// A read proves nothing about a copy that this process observed after the read began. The
    /// object may have been created again, and the copy may be made from it.
    ///
    /// An object that this process never saw may have gone with a former CRD or namespace of the
    /// same name, and no user deleted it. Only a copy written after the present one was created
    /// excludes that.
    pub(crate) fn how_gone(&self, copy: &CopyState) -> Option<HowGone> {
        let made = copy.ours()?.last_made();
        match self.became {
            Became::Unknown => None,
            Became::Deleted {
                defined: Some(defined),
                ..
            }
            | Became::GoneWithNamespace {
                defined: Some(defined),
            } if made <= defined => Some(HowGone::Unexplained),
            Became::Deleted {
                since: Some(since), ..
            } if made <= since => Some(HowGone::WithNamespace),
            Became::Deleted { .. } => {
                (self.fresh && copy.shown <= self.shown).then_some(HowGone::Deleted)
            }
            Became::GoneWithNamespace { .. } => Some(HowGone::WithNamespace),
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

    /// Records how the object disappeared, or that this is unknown (again). The read began after
    /// `shown` observations of copies. Returns the namespaces that must be planned again.
    #[must_use]
    fn turn_out(&mut self, became: Became, shown: u64, now: Tick) -> BTreeSet<Arc<str>> {
        let mut again = std::mem::take(&mut self.asking);
        // A user who changes copies causes one read after another. Each read proves what the one
        // before it has proven, so the other copies need no plan.
        if became != self.became {
            again.append(&mut self.users);
        }
        self.became = became;
        self.fresh = matches!(became, Became::Deleted { .. });
        self.read_at = now;
        self.shown = shown;
        again
    }

    /// Returns how the object disappeared if a read found this namespace but not the object. `home`
    /// is `None` if the read found neither. `defined` is when the CRD was created, if the object
    /// may have lived under a former CRD.
    pub(crate) fn absent_at(&self, home: Option<Home>, defined: Option<u32>) -> Became {
        let since = match (self.home, home) {
            (_, None) => return Became::GoneWithNamespace { defined },
            // The object went with its former namespace. The present one is another namespace of
            // the same name.
            (Some(former), Some(home)) if former != home.uid => {
                return Became::GoneWithNamespace { defined };
            }
            (Some(_), Some(_)) => None,
            (None, Some(home)) => Some(home.created),
        };
        Became::Deleted { defined, since }
    }
}

/// A rule that copies name but that does not exist. The default is a rule that this process never
/// saw.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    /// When the rule was created, in seconds since 1970. `None`: this process never saw it.
    created: Option<u32>,
    pub(crate) absence: Absence,
    /// The rule is remembered until this time even if no copy names it. A write whose answer was
    /// lost may still appear in the watch.
    pub(crate) until: Tick,
}

/// Longer than any write takes to appear in the watch.
const REMEMBERED: Duration = Duration::from_mins(10);

impl Gone {
    /// Creates the record of a rule that existed until just now, in this namespace.
    pub(crate) fn seen(created: Option<u32>, home: Option<Uid>, now: Tick) -> Self {
        Self {
            created,
            absence: Absence::from(home),
            until: now + REMEMBERED,
        }
    }

    /// Returns how the rule disappeared if this read did not find it.
    fn became(&self, id: &RuleId, read: &RuleRead) -> Became {
        let defined = match (self.created, read.defined) {
            (_, None) => return Became::Unexplained,
            // The rule went with its former CRD. A watch may show that after the present CRD was
            // installed, and a write may make a copy even later.
            (Some(created), Some(defined)) if created <= defined => return Became::Unexplained,
            (Some(_), Some(_)) => None,
            (None, defined) => defined,
        };
        if id.namespace.is_some() {
            return self.absence.absent_at(read.home, defined);
        }
        let since = None;
        Became::Deleted { defined, since }
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
    /// When the CRD was created, in seconds since 1970. `None`: the CRD does not exist or is being
    /// deleted.
    pub defined: Option<u32>,
}

impl Index {
    /// The facts about a missing object. `key` is the job that reads the object. `None`: the object
    /// is not missing, or no copy depends on it.
    pub(crate) fn absence(&self, key: &JobKey) -> Option<&Absence> {
        match key {
            JobKey::ConfirmRule(id) => Some(&self.gone.get(id)?.absence),
            JobKey::ConfirmSource(source) => match self.sources.get(source)? {
                SourceState::Missing { absence, .. } => Some(absence),
                _ => None,
            },
            JobKey::ConfirmGrants(giver) => self.consent.withdrawals.get(giver),
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
            JobKey::ConfirmGrants(giver) => self.consent.withdrawals.get_mut(giver),
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
    pub(crate) fn how_rule_went_if_known(&self, id: &RuleId, copy: &CopyState) -> Option<HowGone> {
        self.gone.get(id)?.absence.how_gone(copy)
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
        let Some((id, gone)) = self.gone.get_key_value(id) else {
            return true;
        };
        let key = JobKey::ConfirmRule(id.clone());
        if read.found {
            self.became(key, Became::Unknown, shown, effects);
            return false;
        }
        let became = gone.became(id, read);
        self.became(key, became, shown, effects);
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
            SourceRead::Absent(home) => absence.absent_at(home, None),
            SourceRead::Relabelled => Became::Unexplained,
        };
        self.became(key, became, shown, effects);
        became != Became::Unknown
    }

    /// Records how an object disappeared, for all copies whose verdicts depend on that. `key` is
    /// the job that reads the object. The read began after `shown` observations of copies.
    pub(crate) fn became(
        &mut self,
        key: JobKey,
        became: Became,
        shown: u64,
        effects: &mut Effects,
    ) {
        let now = self.now;
        let Some(absence) = self.absence_mut(&key) else {
            return;
        };
        let mut again = absence.turn_out(became, shown, now);
        self.dirty.append(&mut again);
        if matches!(became, Became::Deleted { .. }) {
            effects.work.timer(now + FRESH, Timer::Expired(key));
        }
    }
}
