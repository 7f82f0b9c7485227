//! `TransformPolicies`: watches them, registers one hook for each in a webhook configuration of
//! their own, and writes their statuses.
//!
//! Every replica does all of this. Equal replicas write equal objects, so they do not disturb each
//! other.

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::admissionregistration::v1::MutatingWebhookConfiguration,
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::Client;
use mimeo_api::{TransformPolicy, TransformPolicyStatus, names};
use mimeo_model::{
    condition::{ConditionReason, ConditionType, condition},
    kind::{GroupVersionKind, Served},
    known::{self, Decoded},
    policy::Policy,
    refusal::{Refusal, in_one_line, refuse_cluster_scoped},
    registration::{POLICIES_NAME, Registration},
};
use mimeo_runtime::{
    call::{self, APPLY, CallError, DEADLINE, METADATA},
    client::Clients,
    discovery::Discovery,
    observer::feed,
    watch::{WatchSpec, Watcher},
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::{
    sync::watch as channel,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    metrics::Answers,
    register::{Keeper, Kept, MANAGER, try_out},
};

/// Path of all policies.
pub(crate) const POLICIES_PATH: &str = "/apis/mimeo.dev/v1alpha1/transformpolicies";
/// Most policies in the configuration. The configuration is one object and must fit into etcd.
const MOST: usize = 256;
/// Interval between rounds without an event. No watch announces the kinds of an aggregated API, nor
/// that a dry run which was refused would now succeed. All other answers are kept. So a round sends
/// requests only about kinds that are not served and about refused policies.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Time until every API server uses a configuration that was written. API servers watch their
/// configurations. A status that calls a policy active any earlier would be wrong. Each round waits
/// so long before it writes statuses, also if its configuration is not new.
const HEARD: Duration = Duration::from_secs(1);

/// A policy as last seen.
pub(crate) struct Known {
    /// The object.
    pub(crate) object: TransformPolicy,
    /// The parsed policy, or the reasons why it is invalid.
    pub(crate) policy: Result<Policy, Vec<Refusal>>,
}

impl Known {
    pub(crate) fn new(object: TransformPolicy) -> Self {
        Self {
            policy: Policy::parse(&object),
            object,
        }
    }

    /// Name of the policy.
    pub(crate) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Older policies come first.
    fn age(&self) -> (Option<&Time>, &str) {
        let created = self.object.metadata.creation_timestamp.as_ref();
        (created, self.name())
    }
}

/// All policies in the cluster. Changes of them, and of the kinds that the cluster serves, are
/// signalled, because the registration may then have to change too.
#[derive(Default)]
pub(crate) struct Policies(channel::Sender<All>);

#[derive(Default)]
struct All {
    known: BTreeMap<Box<str>, Arc<Known>>,
    /// True once all policies have been listed.
    listed: bool,
}

impl Policies {
    /// The policy of that name.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Known>> {
        self.0.borrow().known.get(name).cloned()
    }

    /// Signals that the cluster may serve other kinds now.
    pub(crate) fn kinds_changed(&self) {
        self.0.send_modify(|_| {});
    }

    /// Watches the policies until dropped. Calls `listed` after each complete list.
    pub(crate) async fn follow(&self, watcher: Watcher, listed: impl Fn() + Send + Sync) {
        feed(
            watcher,
            WatchSpec::objects(POLICIES_PATH, "policies"),
            |object: Decoded<TransformPolicy>| match object {
                Decoded::Whole(object) => {
                    let name: Box<str> = object.metadata.name.as_deref()?.into();
                    let known = Arc::new(Known::new(object));
                    self.change(|all| all.insert(name.clone(), known));
                    Some(name)
                }
                // The last version that could be decoded stays in force.
                Decoded::Part(part) => part["metadata"]["name"].as_str().map(Box::from),
            },
            |metadata| {
                let name = metadata.name.as_deref().unwrap_or_default();
                self.change(|all| all.remove(name));
            },
            |known| {
                match known {
                    known::Known::Listed(shown) => self.complete(shown),
                    // Without the CRD there are no policies.
                    known::Known::Unserved => self.complete(&BTreeSet::new()),
                    known::Known::Unknown | known::Known::Unreadable(_) => return,
                }
                listed();
            },
        )
        .await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<Box<str>, Arc<Known>>) -> T) {
        self.0.send_modify(|all| drop(change(&mut all.known)));
    }

    fn complete(&self, shown: &BTreeSet<Box<str>>) {
        self.0.send_modify(|all| {
            all.known.retain(|name, _| shown.contains(name));
            all.listed = true;
        });
    }
}

/// The policies, each with its finding.
type Findings = Vec<(Arc<Known>, Finding)>;

/// Keeps the policies' webhook configuration and their statuses.
pub(crate) struct Registrar {
    policies: Arc<Policies>,
    client: Client,
    discovery: Arc<Discovery>,
    metrics: Answers,
    kept: Kept,
    /// The last known resource of each kind. A failed lookup leaves the entry as it is.
    served: Served,
    /// The kinds whose last lookup failed. Only the first failure is logged.
    failing: BTreeSet<GroupVersionKind>,
    /// The configurations of single policies that the API server accepted in a dry run, as JSON.
    accepted: BTreeSet<String>,
}

/// The reason and the message of the condition Ready that a policy will get.
struct Finding {
    reason: ConditionReason,
    message: String,
}

impl Finding {
    /// True if the policy is registered, and so its condition Ready is true.
    fn is_ready(&self) -> bool {
        self.reason == ConditionReason::Active
    }

    /// For a policy that is registered. `missing` are its kinds that are not served.
    fn active(missing: &str) -> Self {
        let also = match missing {
            "" => String::new(),
            missing => format!("; the cluster does not serve {missing}"),
        };
        Self {
            reason: ConditionReason::Active,
            message: format!("matching objects are rewritten as they are written{also}"),
        }
    }
}

impl Registrar {
    pub(crate) fn new(
        policies: Arc<Policies>,
        clients: &Clients,
        metrics: &Answers,
        discovery: Arc<Discovery>,
    ) -> Self {
        Self {
            policies,
            client: clients.requests.clone(),
            discovery,
            kept: Keeper::<MutatingWebhookConfiguration>::start(clients, metrics, POLICIES_NAME),
            metrics: metrics.clone(),
            served: Served::new(),
            failing: BTreeSet::new(),
            accepted: BTreeSet::new(),
        }
    }

    /// Runs until dropped. Registers no policy before it receives a registration.
    pub(crate) async fn run(mut self, mut registration: channel::Receiver<Option<Registration>>) {
        let mut policies = self.policies.0.subscribe();
        loop {
            let current = registration.borrow_and_update().clone();
            let listed = policies.borrow_and_update().listed;
            let pause = match current.filter(|_| listed) {
                None => LOOK_AGAIN,
                Some(registration) => self.register(&registration).await.unwrap_or_else(|error| {
                    warn!(error = %format!("{error:#}"), "failed to register the policies");
                    RETRY
                }),
            };
            tokio::select! {
                changed = policies.changed() => if changed.is_err() { return },
                changed = registration.changed() => if changed.is_err() { return },
                () = sleep(pause) => {}
            }
        }
    }

    /// Registers all policies once. Returns the time until the next round if nothing else happens.
    async fn register(&mut self, registration: &Registration) -> anyhow::Result<Duration> {
        let mut known: Vec<Arc<Known>> = self.policies.0.borrow().known.values().cloned().collect();
        known.sort_by(|a, b| a.age().cmp(&b.age()));
        self.look_kinds_up(&known).await;
        let (accepted, findings) = self.judge_all(registration, known).await?;
        self.count(&accepted, &findings);
        self.kept.want(self.wanted(registration, &accepted));
        if timeout(DEADLINE, self.kept.holds()).await.is_err() {
            // The task that writes the configuration has logged the reason. Until it succeeds no
            // status calls a policy active.
            return Ok(RETRY);
        }
        sleep(HEARD).await;
        for (known, finding) in findings {
            self.report(&known, finding).await?;
        }
        Ok(LOOK_AGAIN)
    }

    /// Decides on each policy. Also returns the policies that can be registered.
    async fn judge_all(
        &mut self,
        registration: &Registration,
        known: Vec<Arc<Known>>,
    ) -> anyhow::Result<(Vec<Policy>, Findings)> {
        let (mut accepted, mut findings) = (Vec::new(), Findings::new());
        let mut tried = BTreeSet::new();
        for known in known {
            let finding = match self.check(&known, accepted.len()) {
                Err(finding) => finding,
                Ok((policy, missing)) => {
                    let wanted = self.wanted(registration, slice::from_ref(policy));
                    let finding = self.try_out(&wanted, &missing).await?;
                    tried.insert(wanted.to_string());
                    accepted.extend(finding.is_ready().then(|| policy.clone()));
                    finding
                }
            };
            findings.push((known, finding));
        }
        self.accepted.retain(|wanted| tried.contains(wanted));
        Ok((accepted, findings))
    }

    /// Brings the metrics up to date.
    fn count(&self, accepted: &[Policy], findings: &Findings) {
        self.metrics
            .policies(findings.iter().map(|(_, finding)| finding.reason));
        for policy in accepted {
            self.metrics.rewrites_by(&policy.name);
        }
    }

    /// The configuration of these policies.
    fn wanted(&self, registration: &Registration, policies: &[Policy]) -> Value {
        registration.policies(policies, &self.served)
    }

    /// Checks a policy beside `before` others that are registered already. Returns the policy, and
    /// those of its kinds that are not served.
    fn check<'k>(&self, known: &'k Known, before: usize) -> Result<(&'k Policy, String), Finding> {
        let invalid = |refusals: &[Refusal]| Finding {
            reason: ConditionReason::InvalidSpec,
            message: in_one_line(refusals),
        };
        let policy = known.policy.as_ref();
        let policy = policy.map_err(|refusals| invalid(refusals))?;
        let refusals = refuse_cluster_scoped(&policy.kinds, "spec.match.kinds", &self.served);
        if !refusals.is_empty() {
            return Err(invalid(&refusals));
        }
        let missing = policy.kinds.iter();
        let missing = missing.filter(|gvk| !self.served.contains_key(gvk));
        let missing: Vec<String> = missing
            .map(|gvk| match self.discovery.meant(gvk) {
                Some(kind) => format!("{gvk} (did you mean {kind}?)"),
                None => gvk.to_string(),
            })
            .collect();
        let names = missing.join(", ");
        if missing.len() == policy.kinds.len() {
            return Err(Finding {
                reason: ConditionReason::KindNotServed,
                message: format!("the cluster does not serve {names}"),
            });
        }
        if before >= MOST {
            return Err(Finding {
                reason: ConditionReason::Rejected,
                message: format!("{MOST} older policies are registered, and no more can be"),
            });
        }
        Ok((policy, names))
    }

    /// Decides by a dry run whether the API server accepts the configuration of one policy.
    /// `missing` are the policy's kinds that are not served.
    async fn try_out(&mut self, wanted: &Value, missing: &str) -> anyhow::Result<Finding> {
        let text = wanted.to_string();
        if !self.accepted.contains(&text)
            && let Err(refusal) = try_out(&self.client, wanted).await?
        {
            return Ok(Finding {
                reason: ConditionReason::Rejected,
                message: refusal.message(),
            });
        }
        self.accepted.insert(text);
        Ok(Finding::active(missing))
    }

    /// Looks up every kind that a policy names.
    async fn look_kinds_up(&mut self, known: &[Arc<Known>]) {
        let kinds: BTreeSet<GroupVersionKind> = known
            .iter()
            .filter_map(|known| known.policy.as_ref().ok())
            .flat_map(|policy| policy.kinds.clone())
            .collect();
        self.served.retain(|gvk, _| kinds.contains(gvk));
        self.failing.retain(|gvk| kinds.contains(gvk));
        for gvk in kinds {
            match self.discovery.find(&gvk).await {
                Ok(found) => {
                    self.failing.remove(&gvk);
                    match found {
                        Some(resource) => _ = self.served.insert(gvk, resource),
                        None => _ = self.served.remove(&gvk),
                    }
                }
                // A failed lookup does not mean that the kind is unserved.
                Err(error) if self.failing.insert(gvk.clone()) => {
                    warn!(%gvk, %error, "cannot look a kind up, retrying every minute");
                }
                Err(_) => {}
            }
        }
    }

    /// Writes the policy's status if it has changed.
    ///
    /// The write names the version of the policy that the finding is based on. The API server then
    /// refuses it if another replica has written its message in the meantime; the watch brings that
    /// message, and with it the next round.
    async fn report(&self, known: &Known, finding: Finding) -> anyhow::Result<()> {
        let old = known.object.status.as_ref();
        let status = compose(known, finding, old, Timestamp::now());
        if old == Some(&status) {
            return Ok(());
        }
        let name = known.name();
        let meta = &known.object.metadata;
        let body = json!({
            "apiVersion": names::API_VERSION, "kind": names::TRANSFORM_POLICY,
            "metadata": {"name": name, "uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": status,
        });
        let uri = format!("{POLICIES_PATH}/{name}/status?force=true&fieldManager={MANAGER}");
        let request = call::write(Method::PATCH, &uri, METADATA, APPLY, body.to_string());
        match call::exchange(&self.client, request, DEADLINE).await {
            Ok(IgnoredAny) => {
                let reason = status.conditions.first().map(|ready| ready.reason.as_str());
                info!(policy = name, reason, "policy status written");
                Ok(())
            }
            // The policy was changed or deleted, or another policy has its name by now.
            Err(CallError::NotFound | CallError::Conflict | CallError::Invalid) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("status of policy {name}")),
        }
    }
}

/// The status for a finding. All replicas make the same one.
fn compose(
    known: &Known,
    finding: Finding,
    old: Option<&TransformPolicyStatus>,
    now: Timestamp,
) -> TransformPolicyStatus {
    let generation = known.object.metadata.generation;
    let old = old.map_or(&[][..], |old| &old.conditions);
    let ready = (ConditionType::Ready, finding.is_ready());
    let ready = condition(ready, finding.reason, finding.message, generation, old, now);
    TransformPolicyStatus {
        observed_generation: generation,
        conditions: vec![ready],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn known() -> Known {
        let object: TransformPolicy = serde_json::from_value(json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": "a", "generation": 2},
            "spec": {"match": {"kinds": [], "objectSelector": {}}, "transform": {}},
        }))
        .unwrap();
        Known::new(object)
    }

    #[test]
    fn a_status_that_says_the_same_is_the_same() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let yes = || Finding::active("");
        let first = compose(&known(), yes(), None, at(10));
        let later = compose(&known(), yes(), Some(&first), at(20));
        assert_eq!(first, later);
        let no = compose(
            &known(),
            Finding {
                reason: ConditionReason::Rejected,
                message: "no".into(),
            },
            Some(&first),
            at(20),
        );
        assert_eq!(
            (
                no.conditions[0].last_transition_time.0,
                &*no.conditions[0].reason
            ),
            (at(20), "Rejected")
        );
        assert_eq!(first.observed_generation, Some(2));
    }

    #[test]
    fn what_a_listing_does_not_show_is_gone() {
        let policies = Policies::default();
        for name in ["a", "b"] {
            policies.change(|all| all.insert(name.into(), Arc::new(known())));
        }
        assert!(!policies.0.borrow().listed);
        policies.complete(&[Box::from("a")].into());
        assert!(
            policies.0.borrow().listed
                && policies.find("a").is_some()
                && policies.find("b").is_none()
        );
    }
}
