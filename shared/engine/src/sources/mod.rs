//! The sources of rules, as they appear, change and disappear, and the copies that are rendered
//! from them.
//!
//! - `select`: the sources that the selectors of rules find
//! - `members`: the order of these sources

pub(crate) mod members;
pub(crate) mod select;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use serde_json::Value;

use mimeo_model::{
    id::{ProjectionId, RuleId, RuleKind},
    known::Decoded,
    meta::version,
    outcome::Unreadable,
    render::Draft,
    rule::{Rule, Target},
    size::bytes_of,
    source::{SourceRef, SourceRefused, refused_size, refused_type},
};

use crate::{
    Effects, Index, Namespace, Settings,
    clock::Tick,
    copy::{CopyState, Reference},
    jobs::JobKey,
    projection::{NoRendering, Projection},
};

/// The known state of one source.
pub(crate) enum SourceState {
    /// A job reads it, or its watch has yet to show it.
    NotRead,
    Found {
        /// `None` if the object isn't held: no rule copies it, or it is too large for all rules
        /// that would.
        object: Option<Arc<Value>>,
        /// Why the object is never copied with its own type. Known even if the object isn't held.
        never: Option<SourceRefused>,
        /// Its size as JSON, without `managedFields`.
        bytes: usize,
        version: u64,
        /// When it was created, in seconds since 1970, if that is known.
        created: Option<u32>,
    },
    Missing {
        since: Tick,
    },
}

impl SourceState {
    /// The source exists, and the engine holds the object.
    pub(crate) fn found(source: &SourceRef, object: Arc<Value>) -> Self {
        let secret = source.gvk.is_secret();
        let never = secret.then(|| refused_type(object["type"].as_str()));
        Self::Found {
            version: version_of(&object),
            created: created_at(&object),
            never: never.flatten(),
            bytes: bytes_of(&object) - bytes_of(&object["metadata"]["managedFields"]),
            object: Some(object),
        }
    }

    /// The source exists, but only this part of it can be decoded. Mimeo makes no copies of half an
    /// object.
    fn undecodable(rest: &Value) -> Self {
        Self::Found {
            object: None,
            never: Some(SourceRefused::Undecodable),
            bytes: 0,
            version: version_of(rest),
            created: created_at(rest),
        }
    }

    /// Returns the common part of all copies that a rule makes of this source, or why it makes
    /// none. `granted`: the rule may read the source.
    pub(crate) fn draft(
        &self,
        rule: &Rule,
        source: &SourceRef,
        granted: bool,
        cluster: &str,
    ) -> Result<Draft, NoRendering> {
        match self {
            _ if !granted => Err(NoRendering::NotGranted),
            Self::Found {
                never: Some(SourceRefused::Undecodable),
                ..
            } => Err(NoRendering::Refused(SourceRefused::Undecodable)),
            Self::Found { bytes, .. } if let Some(why) = refused_size(rule.id.kind, *bytes) => {
                Err(NoRendering::Refused(why))
            }
            Self::NotRead | Self::Found { object: None, .. } => Err(NoRendering::NotRead),
            Self::Missing { .. } => Err(NoRendering::SourceMissing),
            Self::Found {
                object: Some(object),
                ..
            } => Draft::of(rule, source, object, cluster).map_err(NoRendering::Refused),
        }
    }

    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(
            self,
            Self::Found {
                object: Some(_),
                ..
            }
        )
    }
}

fn version_of(object: &Value) -> u64 {
    version(
        object
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str),
    )
}

fn created_at(object: &Value) -> Option<u32> {
    let created = object["metadata"]["creationTimestamp"].as_str()?;
    let created: Timestamp = created.parse().ok()?;
    u32::try_from(created.as_second()).ok()
}

/// `Debug` is not derived, because the object may be a Secret.
impl std::fmt::Debug for SourceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRead => f.write_str("NotRead"),
            Self::Found { version, .. } => write!(f, "Found({version})"),
            Self::Missing { since } => write!(f, "Missing({since:?})"),
        }
    }
}

impl Index {
    /// The projections of the object at a copy's place, in any version. A source that its rule may
    /// not read doesn't count.
    fn sources_at(
        &self,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> impl Iterator<Item = &Projection> {
        let kind = &self.kinds[copy.kind].group_kind;
        self.projections
            .of_object(kind, &namespace.name, &copy.name)
            .filter(|projection| projection.granted)
    }

    /// True if the object is a source that a rule of the kind `by` must leave alone. For
    /// `ClusterReplication`s, the sources of Replications don't count. Otherwise a tenant could
    /// name the place of a copy as a source, and so keep the copy away or keep it for good. A copy
    /// is a source only where a rule names it, because selectors find none.
    pub(crate) fn is_source(&self, by: RuleKind, namespace: &Namespace, copy: &CopyState) -> bool {
        let mut sources = self.sources_at(namespace, copy);
        sources.any(|projection| projection.rule.kind <= by)
    }

    /// True if a rule of a higher rank than this one names the object as its source. The same rank
    /// decides which rule wins a copy: the wider kind of rule, then the older rule, then the name.
    ///
    /// A rule that was created later never keeps a rule of its kind from a copy.
    pub(crate) fn is_named_above(
        &self,
        rule: &Arc<RuleId>,
        namespace: &Namespace,
        copy: &CopyState,
    ) -> bool {
        let above = |projection: &Projection| {
            projection.source.is_named() && self.precedes(&projection.rule, rule, None)
        };
        self.sources_at(namespace, copy).any(above)
    }
}

impl Index {
    /// Records that a source exists, or that it doesn't. If a watch shows that, it reads a cache.
    /// So Mimeo confirms a deletion before it acts on it.
    pub(crate) fn source_shown(
        &mut self,
        source: &SourceRef,
        object: Option<Decoded<Value>>,
        effects: &mut Effects,
    ) {
        if let Some(selector) = source.selector() {
            self.selected_source(selector, source, object, effects);
        } else {
            self.take_source(source, object, effects);
            self.render_source(source);
            self.keep_if_copied(source, effects);
        }
    }

    /// Records the state of a source, unless the engine has forgotten the source.
    pub(crate) fn take_source(
        &mut self,
        source: &SourceRef,
        object: Option<Decoded<Value>>,
        effects: &mut Effects,
    ) {
        let Some(state) = self.sources.get_mut(source) else {
            return;
        };
        self.unreadable.remove(source);
        match (object, &state) {
            // Nothing has changed. A read that confirms the absence may be in progress. It goes on.
            (None, SourceState::Missing { .. }) => return,
            (None, known) => {
                let (was_there, created) = match known {
                    SourceState::Found { created, .. } => (true, *created),
                    _ => (false, None),
                };
                self.lose_source(source.clone(), created);
                self.source_lost(source, was_there, &mut effects.events);
            }
            (Some(Decoded::Whole(object)), _) => {
                *state = SourceState::found(source, Arc::new(object));
            }
            (Some(Decoded::Part(rest)), _) => *state = SourceState::undecodable(&rest),
        }
        // The answers of earlier reads are older than the state that was shown just now.
        effects.jobs.end(&JobKey::ConfirmSource(source.clone()));
        effects.jobs.end(&JobKey::ReadSource(source.clone()));
    }

    /// Records that a source can't be read, until `Engine::source` says otherwise. Pods stop
    /// waiting for its copies.
    pub(crate) fn source_unreadable(&mut self, source: &SourceRef, why: Unreadable) {
        if !self.sources.contains_key(source)
            || self.unreadable.insert(source.clone(), why) == Some(why)
        {
            return;
        }
        self.replan_rules_of_source(source);
    }

    /// Renders the copies of a source again, because it has changed.
    pub(crate) fn render_source(&mut self, source: &SourceRef) {
        // The projections, by their rules and whether these may read the source.
        let mut rules: BTreeMap<(Arc<RuleId>, bool), Vec<ProjectionId>> = BTreeMap::new();
        for (id, projection) in self.projections.of_source(source) {
            let key = (projection.rule.clone(), projection.granted);
            rules.entry(key).or_default().push(id);
        }
        let mut changed = BTreeSet::new();
        for ((id, granted), projections) in rules {
            let Some(Ok(rule)) = self.rules.get(&id).map(|state| &state.rule) else {
                continue;
            };
            let Some(state) = self.sources.get(source) else {
                continue;
            };
            let draft = state.draft(rule, source, granted, &self.settings.cluster);
            let before = changed.len();
            for id in projections {
                if let Some(projection) = self.projections.get_mut(&id)
                    && let Some(target) = rule.targets.get(projection.target)
                    && projection.render(target, &draft, &self.settings)
                {
                    projection.renewed = Some(self.now);
                    changed.insert(id);
                }
            }
            self.mark_status_due(&id);
            // If the copies don't carry the edit of the source, nothing more happens.
            if changed.len() > before {
                self.replan_rule(&id);
            }
        }
        if changed.is_empty() {
            return;
        }
        // The copies of these projections are in namespaces that are dirty now.
        for name in &self.dirty {
            let Some(namespace) = self.namespaces.get_mut(name) else {
                continue;
            };
            let copies = namespace.copies.iter_mut();
            copies
                .filter(|copy| copy.want.is_some_and(|id| changed.contains(&id)))
                .for_each(CopyState::start_over);
        }
    }
}

impl Projection {
    /// Makes the copies for its target from the draft. Returns true if they have changed.
    pub(crate) fn render(
        &mut self,
        target: &Target,
        draft: &Result<Draft, NoRendering>,
        settings: &Settings,
    ) -> bool {
        let rendering = match draft {
            Ok(draft) => draft.copies(target).map_err(NoRendering::Refused),
            Err(why) => Err(why.clone()),
        };
        let changed = rendering != self.rendering;
        if changed {
            self.reference = match &rendering {
                _ if !settings.keeps_copies() => Reference::Waived,
                Ok(copies) if copies.own_fields_apart => Reference::Apart,
                _ => Reference::Unknown,
            };
            self.failed_dry_runs = 0;
            self.rendering = rendering;
        }
        changed
    }
}
