//! The changes that the engine would make, and the failures that it would report.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mimeo_engine::{CopyView, Request, State, Verb};
use mimeo_model::{id::RuleId, outcome::FailureReason};
use serde::Serialize;

use crate::{
    picture::{Picture, unsynced},
    render::offline::causes,
    state::is_lost,
};

/// One copy of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct CopyKey {
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) rule: String,
}

/// A change of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Action {
    /// The copy is created.
    Create,
    /// The copy is changed, or an object becomes the copy.
    Update,
    /// The copy is deleted.
    Delete,
    /// So many copies are lost that a person must confirm their deletion.
    HeldDelete,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::HeldDelete => "held delete",
        })
    }
}

/// A change, with the request that makes it.
pub(super) struct Effect {
    pub(super) action: Action,
    /// `None`: the change waits for others.
    pub(super) request: Option<Request>,
}

impl Effect {
    /// True if both changes have the same result.
    pub(super) fn same(&self, other: &Self) -> bool {
        let content = |effect: &Self| {
            let rendering = effect.request.as_ref()?.rendering.as_ref()?;
            Some(rendering.checksum)
        };
        self.action == other.action && content(self) == content(other)
    }
}

/// A reason why a rule or one of its copies is not as the rule says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Failure {
    pub(super) rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Everything that the engine would do and report about a picture.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) changes: BTreeMap<CopyKey, Effect>,
    pub(super) failures: BTreeSet<Failure>,
}

/// Collects the decisions about all copies.
pub(super) fn of(picture: &mut Picture) -> Effects {
    let mut effects = Effects::default();
    for request in picture.snapshot.changes() {
        effects.add_request(request);
    }
    let statuses = picture.statuses();
    for (id, stored) in &picture.rules {
        let failure = |reason: &str, message: &str| Failure {
            rule: id.to_string(),
            namespace: None,
            kind: None,
            name: None,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        match &stored.rule {
            Err(refused) => {
                let refusals = refused.refusals.iter();
                let refusals = refusals.map(|refusal| failure("InvalidSpec", &refusal.to_string()));
                effects.failures.extend(refusals);
                continue;
            }
            Ok(rule) if rule.suspend => continue,
            Ok(_) => {}
        }
        let status = statuses.get(id).or(stored.status.as_ref());
        let causes = status.map(causes).unwrap_or_default();
        let causes = causes.iter().filter(|(reason, _)| *reason != "Pending");
        effects
            .failures
            .extend(causes.map(|(reason, message)| failure(reason, message)));
    }
    let suspended = |id: &RuleId| {
        let rule = picture.rules.get(id).and_then(|it| it.rule.as_ref().ok());
        rule.is_some_and(|rule| rule.suspend)
    };
    unsynced(&picture.snapshot, |rule, namespace, copy| {
        // A suspended rule writes nothing, so nothing fails. What is in its way is news when it is
        // resumed.
        if copy.state != State::Failed || !suspended(rule) {
            effects.add_copy(rule, namespace, copy);
        }
    });
    effects
}

impl Effects {
    fn add_request(&mut self, request: &Request) {
        let key = CopyKey {
            namespace: request.namespace.to_string(),
            kind: request.resource.gvk.kind.to_string(),
            name: request.name.to_string(),
            rule: request
                .rule
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
        };
        let action = match request.verb {
            Verb::Create => Action::Create,
            Verb::Delete(..) => Action::Delete,
            _ => Action::Update,
        };
        let request = Some(request.clone());
        self.changes.insert(key, Effect { action, request });
    }

    fn add_copy(&mut self, rule: &RuleId, namespace: &str, copy: CopyView) {
        let action = match copy.state {
            State::Failed => {
                // A condition names the missing grants already.
                if let Some((reason, message)) = copy.failure
                    && reason != FailureReason::NotGranted
                {
                    self.failures.insert(Failure {
                        rule: rule.to_string(),
                        namespace: Some(namespace.to_owned()),
                        kind: Some(copy.kind),
                        name: Some(copy.name),
                        reason: reason.to_string(),
                        message,
                    });
                }
                return;
            }
            State::Held => Action::HeldDelete,
            // The deletion follows the creation of other copies.
            State::Pending if is_lost(&copy) => Action::Delete,
            State::Pending | State::Synced | State::Suspended => return,
        };
        let key = CopyKey {
            namespace: namespace.to_owned(),
            kind: copy.kind,
            name: copy.name,
            rule: rule.to_string(),
        };
        let request = None;
        self.changes
            .entry(key)
            .or_insert(Effect { action, request });
    }
}
