//! What became of rules and sources that aren't there: deleted on purpose, lost with what they lived in, or not known yet.

use std::{sync::Arc, time::Duration};

use super::{
    Engine, Source, Tick,
    work::{Errand, Timer},
};
use crate::{
    meta::{Seen, Uid},
    rule::{RuleId, SourceRef},
};

/// A rule that copies name but that doesn't exist.
#[derive(Debug)]
pub(super) struct Gone {
    /// When this process last saw it.
    seen: LastSeen,
    pub(super) verdict: RuleVerdict,
    /// Until then it is remembered even if no copy names it: a write that was never answered may still show.
    pub(super) until: Tick,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleVerdict {
    Unconfirmed,
    Asked,
    /// Deleted on purpose.
    Meant,
    /// Deleted with its namespace.
    Homeless,
    /// Lost with its CRD, or with the record of that: no copy goes by itself.
    Lost,
}

impl Gone {
    /// It was there until just now, under this CRD.
    pub(super) fn seen_under(crd: Option<Box<str>>, now: Tick) -> Self {
        let seen = crd.map_or(LastSeen::Never, LastSeen::Under);
        Self { seen, verdict: RuleVerdict::Unconfirmed, until: now + REMEMBERED }
    }
}

/// What became of a missing source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceVerdict {
    Unconfirmed,
    Asked,
    /// Deleted on purpose.
    Meant,
    /// Gone with its namespace, not selected any more, or gone for reasons unknown.
    Lost,
}

/// The answer to [`Errand::ConfirmSource`], by reads that no cache answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRead {
    /// It isn't there; its namespace is, with this uid, and stays.
    Absent(Uid),
    /// Neither is there, or the namespace is going.
    Homeless,
    /// It is there, with labels that its selector doesn't match.
    Relabelled,
}

/// The answer to [`Errand::ConfirmRule`]: the rule, and the CRD it lives under, each by a read that no cache answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRead {
    /// Whether the rule exists after all.
    pub found: bool,
    /// Whether its namespace is gone, or going, if it lives in one.
    pub homeless: bool,
    /// Uid of its CRD, unless that is missing or being deleted.
    pub crd: Option<Box<str>>,
}

impl Engine {
    /// A rule was read.
    pub fn rule_read(&mut self, id: &RuleId, read: Option<&RuleRead>, now: Tick) {
        self.at(now);
        if let Some(state) = self.rules.get_mut(id) {
            state.crd_asked = false;
            match read {
                Some(read) if read.found => {
                    state.crd.clone_from(&read.crd);
                    self.work.disturb();
                }
                // Its watch will say that it is gone. Not answered, it is asked again.
                _ => self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything),
            }
            return;
        }
        let Some((id, gone)) = self.gone.get_key_value(id).map(|(id, _)| id.clone()).zip(self.gone.get_mut(id)) else {
            return;
        };
        let Some(read) = read else {
            // Not answered. A 403 or 5xx is never read as "gone".
            gone.verdict = RuleVerdict::Unconfirmed;
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        };
        if read.found {
            // Its watch will show it, or shows it already.
            gone.verdict = RuleVerdict::Unconfirmed;
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        }
        let lived_under = match &gone.seen {
            LastSeen::Under(crd) => Some(crd),
            LastSeen::Never => self.crds[id.kind].recorded.as_ref(),
        };
        let meant = read.crd.is_some() && read.crd.as_ref() == lived_under;
        gone.verdict = match (meant, read.homeless) {
            (true, false) => RuleVerdict::Meant,
            (true, true) => RuleVerdict::Homeless,
            (false, _) => RuleVerdict::Lost,
        };
        let keys = self.cells_of(&id);
        self.dirty.extend(keys.into_iter().map(|(namespace, ..)| namespace));
    }

    /// A source was read; none: it is there after all, or there was no answer.
    pub fn source_read(&mut self, source: &SourceRef, read: Option<SourceRead>, now: Tick) {
        self.at(now);
        let Some(Source::Missing { verdict, home, .. }) = self.sources.get_mut(source) else { return };
        *verdict = match read {
            // Not by itself, but with its namespace, of which this is another.
            Some(SourceRead::Absent(now)) if home.is_some_and(|then| then != now) => SourceVerdict::Lost,
            Some(SourceRead::Absent(_)) => SourceVerdict::Meant,
            Some(SourceRead::Homeless | SourceRead::Relabelled) => SourceVerdict::Lost,
            None => SourceVerdict::Unconfirmed,
        };
        if read.is_none() {
            self.work.timer(self.now + self.settings.backoff * 4, Timer::Everything);
            return;
        }
        let source = source.clone();
        self.concern_source(&source);
    }

    /// What became of a rule that isn't there but that this copy names. If that isn't known it is asked.
    ///
    /// Whether a rule that this process never saw was deleted on purpose it knows by the CRD that was recorded. Of a copy that was last
    /// written before there was this record that says nothing: its rule may have been lost with a former one, as when Mimeo was
    /// removed.
    pub(super) fn rule_verdict(&mut self, id: &Arc<RuleId>, copy: &Seen) -> RuleVerdict {
        let gone = self.gone.entry(id.clone()).or_insert_with(|| Gone::seen_under(None, Tick::ZERO));
        if gone.verdict == RuleVerdict::Unconfirmed {
            gone.verdict = RuleVerdict::Asked;
            self.work.errands.push_back(Errand::ConfirmRule((**id).clone()));
        }
        let unseen = matches!(gone.seen, LastSeen::Never);
        match gone.verdict {
            RuleVerdict::Meant if unseen && self.kinds_since.is_none_or(|since| copy.written < since) => {
                RuleVerdict::Lost
            }
            verdict => verdict,
        }
    }
}
