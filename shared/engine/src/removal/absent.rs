//! What became of rules and sources that aren't there: deleted on purpose, lost with what they
//! lived in, or not known yet.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use mimeo_model::{
    id::RuleId,
    meta::{Seen, Uid, seconds},
    source::SourceRef,
};

use crate::{
    Engine, SourceState,
    cell::Cell,
    clock::Tick,
    verdict::{Need, Needs},
};

/// What is known of something that isn't there: a rule that copies name, or a source.
#[derive(Debug)]
pub(crate) struct Absence {
    pub(crate) became: Became,
    /// The namespace that this process saw it in, if it did.
    home: Option<Uid>,
    /// Namespaces where what becomes of a copy depends on the answer. Nobody goes over all others
    /// for it: anybody's marks can name rules without number, and a copy doesn't always carry the
    /// mark of the rule that would have it now.
    asking: BTreeSet<Arc<str>>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Became {
    /// Not known.
    Unknown,
    /// Deleted on purpose.
    Deleted {
        /// When that was read.
        at: Tick,
        /// How much had been shown of copies when it was asked.
        shown: u64,
        /// When its namespace was created, in seconds, if it may have been in a former one of that
        /// name.
        since: Option<u32>,
    },
    /// Gone with its namespace.
    GoneWithNamespace,
    /// Gone with its CRD, or with the record of that; not selected any more; or gone for reasons
    /// unknown.
    Unexplained,
}

/// What became of it, as far as one copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HowGone {
    /// Deleted on purpose.
    Deleted,
    /// Gone with its namespace.
    WithNamespace,
    /// Nobody knows: no copy goes by itself.
    Unexplained,
}

/// For so long a read counts that found something missing: it may be back, and what shows that be
/// late.
pub(crate) const FRESH: Duration = Duration::from_secs(10);

impl Absence {
    /// Of what was in this namespace until just now, as far as this process knows.
    pub(crate) fn from(home: Option<Uid>) -> Self {
        Self {
            became: Became::Unknown,
            home,
            asking: BTreeSet::new(),
        }
    }

    /// What it means for the copy in a cell; none: that isn't known, or not any more.
    ///
    /// A copy that this process has come to see after it had asked may have been made of what has
    /// come back since. And what was never seen here was in the namespace that is there now only if
    /// the copy was written since that was created: with a former one it went without anybody's
    /// having deleted it. Times have whole seconds, so equal ones prove nothing.
    pub(crate) fn how_gone(&self, cell: &Cell, copy: &Seen, now: Tick) -> Option<HowGone> {
        match self.became {
            Became::Unknown => None,
            Became::Deleted {
                since: Some(since), ..
            } if copy.last_made() <= since => Some(HowGone::WithNamespace),
            Became::Deleted { at, shown, .. } => {
                (cell.shown <= shown && now <= at + FRESH).then_some(HowGone::Deleted)
            }
            Became::GoneWithNamespace => Some(HowGone::WithNamespace),
            Became::Unexplained => Some(HowGone::Unexplained),
        }
    }

    /// Notes that a copy in this namespace waits for the answer.
    pub(crate) fn ask(&mut self, namespace: &Arc<str>) {
        self.asking.insert(namespace.clone());
    }

    /// True if a copy waits for the answer.
    pub(crate) fn is_asked(&self) -> bool {
        !self.asking.is_empty()
    }

    /// It was read. Returns the namespaces that waited for that.
    pub(crate) fn answer(&mut self, became: Became) -> BTreeSet<Arc<str>> {
        self.became = became;
        std::mem::take(&mut self.asking)
    }

    /// Asked when so much had been shown of copies, it was read at that time: it isn't there, but
    /// this namespace of its is.
    pub(crate) fn absent_at(&self, home: Home, shown: u64, at: Tick) -> Became {
        match self.home {
            // Not by itself, but with its namespace, of which this is another.
            Some(former) if former != home.uid => Became::GoneWithNamespace,
            Some(_) => Became::Deleted {
                at,
                shown,
                since: None,
            },
            None => Became::Deleted {
                at,
                shown,
                since: Some(home.created),
            },
        }
    }
}

/// A rule that copies name but that doesn't exist.
#[derive(Debug)]
pub(crate) struct Gone {
    /// When this process last saw it.
    seen: LastSeen,
    pub(crate) absence: Absence,
    /// Until then it is remembered even if no copy names it: a write that was never answered may
    /// still show.
    pub(crate) until: Tick,
}

/// Longer than any write may take to show.
const REMEMBERED: Duration = Duration::from_mins(10);

#[derive(Debug)]
enum LastSeen {
    /// Not in this process's life, or before it knew of any CRD.
    Never,
    /// While its CRD had this uid.
    Under(Box<str>),
}

impl Gone {
    /// It was there until just now, under this CRD and in this namespace.
    pub(crate) fn seen_under(crd: Option<Box<str>>, home: Option<Uid>, now: Tick) -> Self {
        let seen = crd.map_or(LastSeen::Never, LastSeen::Under);
        Self {
            seen,
            absence: Absence::from(home),
            until: now + REMEMBERED,
        }
    }
}

/// A namespace that is there and stays, as a read shows it that no cache answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Its uid.
    pub uid: Uid,
    /// When it was created, in seconds since 1970.
    pub created: u32,
}

impl Home {
    /// The namespace with this metadata; none if its uid isn't understood.
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        // Without a time it is as if created just now: then nothing in it counts as deleted on
        // purpose.
        let created = meta.creation_timestamp.as_ref().map_or(u32::MAX, seconds);
        Some(Self {
            uid: Uid::parse(meta.uid.as_deref()?)?,
            created,
        })
    }
}

/// The answer to [`Task::ConfirmSource`](crate::Task), by reads that no cache answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRead {
    /// It isn't there; its namespace is.
    Absent(Home),
    /// Neither is there, or the namespace is going.
    Homeless,
    /// It is there, with labels that its selector doesn't match.
    Relabelled,
}

/// The answer to [`Task::ConfirmRule`](crate::Task): the rule, and the CRD it lives under, each by a read that
/// no cache answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRead {
    /// Whether the rule exists after all.
    pub found: bool,
    /// Its namespace, if it lives in one that isn't gone, or going.
    pub home: Option<Home>,
    /// Uid of its CRD, unless that is missing or being deleted.
    pub crd: Option<Box<str>>,
}

impl Engine {
    /// True if the answer to a read of the rule is awaited: a copy names the rule and the rule
    /// isn't there, or the rule isn't known to live under the CRD that is served now.
    pub(crate) fn asks_for_rule(&self, id: &RuleId) -> bool {
        match self.rules.get(id) {
            Some(state) => state.crd != self.collections[id.kind].crd.current,
            None => self
                .gone
                .get(id)
                .is_some_and(|gone| gone.absence.is_asked()),
        }
    }

    /// True if the answer to a read of the source is awaited.
    pub(crate) fn asks_for_source(&self, source: &SourceRef) -> bool {
        matches!(self.sources.get(source), Some(SourceState::Missing { absence, .. }) if absence.is_asked())
    }

    /// A rule was read. False if that tells nothing: the watch has yet to show the rule, or its
    /// deletion.
    pub(crate) fn rule_confirmed(&mut self, id: &RuleId, read: &RuleRead, shown: u64) -> bool {
        if let Some(state) = self.rules.get_mut(id) {
            if read.found {
                state.crd.clone_from(&read.crd);
                self.work.tidy_later();
            }
            return read.found;
        }
        let Some(gone) = self.gone.get_mut(id) else {
            return true;
        };
        if read.found {
            gone.absence.became = Became::Unknown;
            return false;
        }
        let lived_under = match &gone.seen {
            LastSeen::Under(crd) => Some(crd),
            LastSeen::Never => self.collections[id.kind].crd.recorded.as_ref(),
        };
        let became = match read.home {
            _ if read.crd.is_none() || read.crd.as_ref() != lived_under => Became::Unexplained,
            _ if id.namespace.is_none() => Became::Deleted {
                at: self.now,
                shown,
                since: None,
            },
            Some(home) => gone.absence.absent_at(home, shown, self.now),
            None => Became::GoneWithNamespace,
        };
        self.dirty.append(&mut gone.absence.answer(became));
        true
    }

    /// A source was read: it isn't there.
    pub(crate) fn source_confirmed(&mut self, source: &SourceRef, read: SourceRead, shown: u64) {
        let Some(SourceState::Missing { absence, .. }) = self.sources.get_mut(source) else {
            return;
        };
        let became = match read {
            SourceRead::Absent(home) => absence.absent_at(home, shown, self.now),
            SourceRead::Homeless => Became::GoneWithNamespace,
            SourceRead::Relabelled => Became::Unexplained,
        };
        self.dirty.append(&mut absence.answer(became));
    }

    /// Returns what became of a rule that this copy names and that isn't there. `None`: that is
    /// unknown, and the rule must be read.
    pub(crate) fn how_rule_went(
        &self,
        id: &Arc<RuleId>,
        cell: &Cell,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let how = self.how_rule_went_if_known(id, cell);
        if how.is_none() {
            needs.push(Need::Rule(id.clone()));
        }
        how
    }

    /// The same as far as it is known.
    ///
    /// Whether a rule that this process never saw was deleted on purpose it knows by the CRD that
    /// was recorded. Of a copy that was last written before there was this record that says
    /// nothing: its rule may have been lost with a former one, as when Mimeo was removed.
    pub(crate) fn how_rule_went_if_known(&self, id: &RuleId, cell: &Cell) -> Option<HowGone> {
        let (gone, copy) = (self.gone.get(id)?, cell.ours()?);
        let meant = matches!(gone.absence.became, Became::Deleted { .. });
        let unseen = matches!(gone.seen, LastSeen::Never);
        if meant
            && unseen
            && self
                .kinds
                .since
                .is_none_or(|since| copy.last_made() < since)
        {
            return Some(HowGone::Unexplained);
        }
        gone.absence.how_gone(cell, copy, self.now)
    }

    /// Returns what became of a missing source of this copy. `None`: that is unknown, and the
    /// source must be read.
    pub(crate) fn how_source_went(
        &self,
        source: &SourceRef,
        cell: &Cell,
        needs: &mut Needs,
    ) -> Option<HowGone> {
        let how = match self.sources.get(source) {
            Some(SourceState::Missing { absence, .. }) => {
                absence.how_gone(cell, cell.ours()?, self.now)
            }
            _ => None,
        };
        if how.is_none() {
            needs.push(Need::Source(source.clone()));
        }
        how
    }
}
