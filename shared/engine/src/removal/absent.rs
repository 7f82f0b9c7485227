//! How rules and sources disappeared: deleted on purpose, lost together with their namespace or
//! CRD, or not known yet.
//!
//! A deletion on purpose needs a proof that the object lived in the present namespace, and a rule
//! also under the present CRD. If this process saw the object, it knows when the object was
//! created. Otherwise the namespace and the CRD must be older than the copy. Times have whole
//! seconds, so equal times prove nothing about a CRD or a copy. A namespace may seem up to `SKEW`
//! seconds younger than the object.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use mimeo_model::{id::RuleId, source::SourceRef};

use crate::{
    Effects, Index, SourceState,
    clock::{SKEW, Tick},
    copy::CopyState,
    jobs::{Answer, JobKey},
    verdict::{Need, Needs},
    work::Timer,
};

/// The facts about a missing object: a rule that copies name, a source, or a grant of a namespace. The
/// default is that of an object that this process never saw.
#[derive(Debug, Default)]
pub(crate) struct Absence {
    became: Became,
    /// When the object was created, in seconds since 1970. Known only of a rule or a source that
    /// this process saw.
    created: Option<u32>,
    /// The absence is remembered until this time even if no copy depends on it. A write whose answer
    /// was lost may still appear in the watch.
    pub(crate) until: Tick,
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

/// How the object disappeared. That depends on when a copy was made, in seconds since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Became {
    /// Not known.
    #[default]
    Unknown,
    /// A copy that was made after these times has lost an object that was deleted on purpose.
    Gone {
        /// A copy made at this time or before may have lost the object with its CRD, or the object
        /// is no longer selected. `ALWAYS`: any copy. `None`: no copy.
        unexplained: Option<u32>,
        /// A copy made at this time or before may have lost the object with its namespace.
        with_namespace: Option<u32>,
    },
}

/// A time that no copy was made after.
const ALWAYS: Option<u32> = Some(u32::MAX);

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

/// How long a missing rule is remembered even if no copy names it: longer than any write takes to
/// appear in the watch.
const REMEMBERED: Duration = Duration::from_mins(10);

/// How long a read that found an object missing stays valid. The object may have been created again
/// since, and the watch may show that late.
const FRESH: Duration = Duration::from_secs(10);

impl Absence {
    /// Returns how the object disappeared, from the point of view of a copy. `None`: that is
    /// unknown. A deletion on purpose is proven only if the read is fresh, too: recent enough.
    ///
    /// A read proves nothing about a copy that this process observed after the read began. The
    /// object may have been created again, and the copy may be made from it.
    ///
    /// An object that this process never saw may have gone with a former CRD or namespace of the
    /// same name, and no user deleted it. Only a copy written after the present one was created
    /// excludes that.
    pub(crate) fn how_gone(&self, copy: &CopyState, now: Tick) -> Option<HowGone> {
        let made = Some(copy.ours()?.last_made());
        match self.became {
            Became::Unknown => None,
            Became::Gone { unexplained, .. } if made <= unexplained => Some(HowGone::Unexplained),
            Became::Gone { with_namespace, .. } if made <= with_namespace => {
                Some(HowGone::WithNamespace)
            }
            Became::Gone { .. } => {
                let fresh = now < self.read_at + FRESH;
                (fresh && copy.shown <= self.shown).then_some(HowGone::Deleted)
            }
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
        self.read_at = now;
        self.shown = shown;
        again
    }

    /// Returns how the object disappeared, after a read that did not find it.
    pub(crate) fn became_gone(&self, home: Home) -> Became {
        let Home { namespace, crd } = home;
        let (unexplained, with_namespace) = match self.created {
            // A copy that is younger than both was made of an object that was in this namespace,
            // under this CRD.
            None => (crd.or(ALWAYS), namespace.or(ALWAYS)),
            Some(created) => {
                let unless = |same: bool| if same { None } else { ALWAYS };
                // If the rule went with its former CRD, a watch may show that after the present CRD
                // was installed, and a write may make a copy even later.
                let crd = unless(crd.is_some_and(|crd| crd < created));
                let created = created.saturating_add(SKEW);
                (crd, unless(namespace.is_some_and(|home| home <= created)))
            }
        };
        Became::Gone {
            unexplained,
            with_namespace,
        }
    }
}

/// The answer to [`Task::ConfirmRule`](crate::Task) and [`Task::ConfirmSource`](crate::Task), from
/// uncached reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The object exists. Its watch shows it, or will.
    Present,
    /// The source exists, but its selector no longer matches its labels.
    Relabelled,
    /// The object does not exist. The value says when its namespace and its CRD were created.
    Absent(Home),
}

/// The present namespace and CRD of a missing object: when they were created, in seconds since 1970.
/// `None`: the namespace or CRD does not exist, or is being deleted. `Some(0)`: the object needs
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The namespace of the object.
    pub namespace: Option<u32>,
    /// The CRD of its kind.
    pub crd: Option<u32>,
}

impl Index {
    /// Records that a rule is missing from now on, and that no read has shown why. `created` is when
    /// the rule was created, in seconds since 1970.
    pub(crate) fn lose_rule(&mut self, id: Arc<RuleId>, created: Option<u32>) {
        let absence = Absence {
            created,
            until: self.now + REMEMBERED,
            ..Absence::default()
        };
        self.absences.insert(JobKey::ConfirmRule(id), absence);
    }

    /// Records that a source is missing from now on, and that no read has shown why. `created` is
    /// when the source was created, in seconds since 1970, if this process saw it.
    pub(crate) fn lose_source(&mut self, source: SourceRef, created: Option<u32>) {
        let absence = Absence {
            created,
            ..Absence::default()
        };
        let read = JobKey::ConfirmSource(source.clone());
        self.absences.insert(read, absence);
        let state = SourceState::Missing { since: self.now };
        self.sources.insert(source, state);
    }

    /// A read that found an object missing may be too old now. Copies that still depend on it then
    /// wait for another read.
    pub(crate) fn expire(&mut self, key: &JobKey) {
        if let Some(absence) = self.absences.get_mut(key)
            && self.now >= absence.read_at + FRESH
        {
            self.dirty.append(&mut absence.users);
        }
    }

    /// Returns how an object disappeared, from the point of view of a copy whose verdict depends on
    /// that. `key` is the job that reads the object. `None`: that is unknown, and the object must be
    /// read.
    pub(crate) fn how_gone(
        &self,
        key: JobKey,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let how = self.how_gone_if_known(&key, copy);
        needs.push(Need::Absence(key, how.is_none()));
        how
    }

    /// Returns how an object disappeared, as far as this process knows.
    pub(crate) fn how_gone_if_known(&self, key: &JobKey, copy: &CopyState) -> Option<HowGone> {
        self.absences.get(key)?.how_gone(copy, self.now)
    }

    /// Returns how the source of this copy disappeared. `None`: that is unknown, and the source must
    /// be read.
    pub(crate) fn how_source_went(
        &self,
        source: SourceRef,
        copy: &CopyState,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        match self.sources.get(&source).map(SourceState::is_missing) {
            Some(true) => self.how_gone(JobKey::ConfirmSource(source), copy, needs),
            // The object still exists, but it has become a copy. No client has deleted it.
            Some(false) => Some(HowGone::Unexplained),
            // Its absence begins now. An earlier read of the object proves nothing.
            None => {
                needs.push(Need::Absence(JobKey::ConfirmSource(source), true));
                None
            }
        }
    }

    /// Returns how a missing object disappeared according to the answer to this job.
    /// [`Became::Unknown`]: the read proves nothing, because the watch has yet to show the same.
    /// `None`: no verdict depends on this answer any more, or the job has failed.
    fn shown_by(&self, key: &JobKey, answer: &Answer) -> Option<Became> {
        let absence = self.absences.get(key)?;
        Some(match (key, answer) {
            (_, Answer::Presence(Presence::Present)) => Became::Unknown,
            (_, Answer::Presence(Presence::Absent(home))) => absence.became_gone(*home),
            (_, Answer::Presence(Presence::Relabelled)) => Became::Gone {
                unexplained: ALWAYS,
                with_namespace: None,
            },
            (JobKey::ConfirmGrants(giver), Answer::Grants(read)) => {
                self.grants_became(giver, absence, read)
            }
            _ => return None,
        })
    }

    /// Takes in a read of a missing object, which began after `shown` observations of copies. Returns
    /// true if it proves how the object disappeared.
    pub(crate) fn absence_read(
        &mut self,
        key: &JobKey,
        answer: &Answer,
        shown: u64,
        effects: &mut Effects,
    ) -> bool {
        let Some(became) = self.shown_by(key, answer) else {
            return false;
        };
        self.became(key, became, shown, effects);
        became != Became::Unknown
    }

    /// Records how an object disappeared, for all copies whose verdicts depend on that. `key` is
    /// the job that reads the object. The read began after `shown` observations of copies.
    pub(crate) fn became(
        &mut self,
        key: &JobKey,
        became: Became,
        shown: u64,
        effects: &mut Effects,
    ) {
        let Some(absence) = self.absences.get_mut(key) else {
            return;
        };
        let mut again = absence.turn_out(became, shown, self.now);
        self.dirty.append(&mut again);
        if became != Became::Unknown {
            let expired = Timer::Expired(key.clone());
            effects.work.timer(self.now + FRESH, expired);
        }
    }
}
