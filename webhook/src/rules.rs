//! `/validate/rules`: refuses rules and policies that can't work, and says what is odd about those that can.
//!
//! Fails closed: what nobody checked isn't stored. It has no effects, so dry runs are like any other request.

use std::collections::BTreeMap;

use futures::future::join_all;
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
};
use mimeo_api::{ClusterReplication, TransformPolicy, names};
use mimeo_core::{
    kind::{GroupVersionKind, Resource},
    policy::Policy,
    review::{Request, Verdict},
    rule::{Refusal, Rule, SourceRef},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use crate::hooks::App;

pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let Some(object) = &request.object else { return Verdict::ALLOW };
    // Whoever stored this spec was told; what is refused by now must still be editable otherwise, and removable.
    if request.old_object.as_ref().is_some_and(|old| old["spec"] == object["spec"]) {
        return Verdict::ALLOW;
    }
    let checked = match &*request.kind.kind {
        names::CLUSTER_REPLICATION => check_rule(app, object, deadline).await,
        names::TRANSFORM_POLICY => check_policy(app, object, deadline).await,
        _ => Ok(vec![]),
    };
    match checked {
        Ok(warnings) => Verdict::Allow { warnings },
        Err(refusals) => {
            let message = refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Verdict::Deny { code: 422, reason: "Invalid", message, retry_after_seconds: None }
        }
    }
}

type Checked = Result<Vec<String>, Vec<Refusal>>;

fn read<T: DeserializeOwned>(object: &Value) -> Result<T, Vec<Refusal>> {
    T::deserialize(object).map_err(|error| vec![Refusal { field: "spec".into(), message: error.to_string() }])
}

async fn check_rule(app: &App, object: &Value, deadline: Instant) -> Checked {
    let rule = Rule::parse(&read::<ClusterReplication>(object)?)?;
    let kinds = Kinds::find(app, rule.sources.iter().map(|source| &source.gvk), deadline).await;
    let refusals = rule.refuse_kinds(|gvk| kinds.resource(gvk));
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let mut warnings = kinds.warnings();
    warnings.extend(missing_sources(app, &rule, &kinds, deadline).await);
    warnings.extend(selection(app, &rule));
    Ok(warnings)
}

async fn check_policy(app: &App, object: &Value, deadline: Instant) -> Checked {
    let policy = Policy::parse(&read::<TransformPolicy>(object)?)?;
    let kinds = Kinds::find(app, policy.kinds.iter(), deadline).await;
    let refusals = policy.refuse_kinds(|gvk| kinds.resource(gvk));
    if refusals.is_empty() { Ok(kinds.warnings()) } else { Err(refusals) }
}

/// What discovery says of some kinds; one that wasn't answered about in time is left out.
struct Kinds(BTreeMap<GroupVersionKind, Option<Resource>>);

impl Kinds {
    async fn find(app: &App, kinds: impl Iterator<Item = &GroupVersionKind>, deadline: Instant) -> Self {
        let mut found = BTreeMap::new();
        for gvk in kinds {
            if found.contains_key(gvk) {
                continue;
            }
            match timeout_at(deadline, app.discovery.find(gvk)).await {
                Ok(Ok(resource)) => {
                    found.insert(gvk.clone(), resource);
                }
                Ok(Err(error)) => debug!(%gvk, %error, "cannot look a kind up"),
                Err(_) => break,
            }
        }
        Self(found)
    }

    fn resource(&self, gvk: &GroupVersionKind) -> Option<Resource> {
        self.0.get(gvk).cloned().flatten()
    }

    fn warnings(&self) -> Vec<String> {
        let missing = self.0.iter().filter(|(_, resource)| resource.is_none());
        missing
            .map(|(gvk, _)| format!("Mimeo: the cluster does not serve {gvk}; nothing is done until it does"))
            .collect()
    }
}

/// Sources that a read answers with 404, one warning each.
async fn missing_sources(app: &App, rule: &Rule, kinds: &Kinds, deadline: Instant) -> Vec<String> {
    let read = async |source: &SourceRef| {
        let api = api_of(app, source, &kinds.resource(&source.gvk)?);
        let answer = timeout_at(deadline, api.get_metadata_opt(&source.name)).await.ok()?.ok()?;
        answer.is_none().then(|| format!("Mimeo: source {source} does not exist; nothing is copied until it does"))
    };
    join_all(rule.sources.iter().map(read)).await.into_iter().flatten().collect()
}

fn api_of(app: &App, source: &SourceRef, resource: &Resource) -> Api<DynamicObject> {
    let kind = ApiResource {
        group: source.gvk.group.to_string(),
        version: source.gvk.version.to_string(),
        api_version: source.gvk.api_version(),
        kind: source.gvk.kind.to_string(),
        plural: resource.plural.to_string(),
    };
    Api::namespaced_with(app.client.clone(), &source.namespace, &kind)
}

/// A word about rules that select every namespace, or none.
fn selection(app: &App, rule: &Rule) -> Option<String> {
    let (matching, all) = app.handle.look(|engine, _| engine.primed().then(|| engine.count_matching(rule)))?;
    let everywhere = rule.targets.iter().position(|target| target.selection.selects_all());
    match (everywhere, matching) {
        (Some(_), _) if matching == all => Some(format!("Mimeo: the rule selects all {all} namespaces")),
        (Some(i), _) => Some(format!(
            "Mimeo: spec.targets[{i}].namespaceSelector is empty: the rule selects {matching} of {all} namespaces"
        )),
        (None, 0) => Some("Mimeo: no namespace matches the rule now".into()),
        (None, _) => None,
    }
}
