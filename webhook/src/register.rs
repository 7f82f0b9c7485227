//! Keeps the webhook configurations in the cluster as they should be: written when this replica can serve, again when what they
//! say changes, and put back when somebody changes or deletes them.
//!
//! Every replica does so. Equal replicas write the same, which is no write to the server, so they don't disturb each other;
//! unequal ones, as during an update of Mimeo, give way with a growing pause.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        rbac::v1::ClusterRole,
    },
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use mimeo_core::{
    kind::{GroupVersionKind, Resource as Served},
    policy::Policy,
    registration::{NAME, POLICIES_NAME, Registration, SOURCES_NAME},
    rule::SourceRef,
};
use mimeo_runtime::{
    backoff::Backoff,
    client::{Clients, Fault, status, within},
    follow::Follower,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::metrics::Answers;

/// Field manager of the configurations and of policies' statuses.
pub(crate) const MANAGER: &str = "mimeo-webhook";
/// The configurations belong to this `ClusterRole`: whoever removes it removes Mimeo.
const OWNER: &str = "mimeo-webhook";
const DEADLINE: Duration = Duration::from_secs(10);
/// A repair this long after the last one is no part of the same quarrel.
const QUARREL: Duration = Duration::from_mins(5);

/// What a configuration shall say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// The hooks of namespaces and pods.
    Mutating(Registration),
    /// The hook of rules.
    Validating(Registration),
    /// The hooks of these policies, whose kinds are served so.
    Policies(Registration, Vec<Policy>, Vec<Served>),
    /// The hook of these sources.
    Sources(Registration, BTreeMap<SourceRef, Served>),
}

impl Wanted {
    fn name(&self) -> &'static str {
        match self {
            Self::Mutating(_) | Self::Validating(_) => NAME,
            Self::Policies(..) => POLICIES_NAME,
            Self::Sources(..) => SOURCES_NAME,
        }
    }

    /// The configuration, without its owner.
    pub(crate) fn render(&self) -> Value {
        match self {
            Self::Mutating(registration) => registration.mutating(),
            Self::Validating(registration) => registration.validating(),
            Self::Policies(registration, policies, served) => {
                let look_up = |gvk: &GroupVersionKind| served.iter().find(|resource| resource.gvk == *gvk).cloned();
                registration.policies(policies, &look_up)
            }
            Self::Sources(registration, sources) => registration.sources(sources),
        }
    }

    fn owned_by(self, owner: Option<Value>) -> Self {
        let owned = |registration| Registration { owner, ..registration };
        match self {
            Self::Mutating(registration) => Self::Mutating(owned(registration)),
            Self::Validating(registration) => Self::Validating(owned(registration)),
            Self::Policies(registration, policies, served) => Self::Policies(owned(registration), policies, served),
            Self::Sources(registration, sources) => Self::Sources(owned(registration), sources),
        }
    }
}

/// A configuration that is being kept.
#[derive(Debug)]
pub(crate) struct Kept {
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// What the cluster was last seen to hold of it.
    held: watch::Receiver<Option<Arc<Wanted>>>,
}

impl Kept {
    /// Keeps the mutating configuration of that name, once it is known what it shall say.
    pub(crate) fn mutating(clients: &Clients, metrics: &Answers, name: &'static str) -> Self {
        Self::start::<MutatingWebhookConfiguration>(clients, metrics, name, Duration::ZERO)
    }

    /// The same for the validating one.
    pub(crate) fn validating(clients: &Clients, metrics: &Answers, name: &'static str) -> Self {
        Self::start::<ValidatingWebhookConfiguration>(clients, metrics, name, Duration::ZERO)
    }

    /// The same for that of the sources. It follows the rules, which other replicas may have seen a moment before: what another
    /// writes is given time to make sense.
    pub(crate) fn sources(clients: &Clients, metrics: &Answers) -> Self {
        Self::start::<ValidatingWebhookConfiguration>(clients, metrics, SOURCES_NAME, Duration::from_secs(5))
    }

    fn start<K>(clients: &Clients, metrics: &Answers, name: &'static str, patience: Duration) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let (publish, held) = watch::channel(None);
        let wanted = watch::Sender::new(None);
        let keeper = Keeper::<K> {
            api: Api::all(clients.requests.clone()),
            roles: Api::all(clients.requests.clone()),
            name,
            metrics: metrics.clone(),
            patience,
            held: publish,
            owned: false,
            applied: None,
            repaired: None,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_mins(1)),
        };
        tokio::spawn(keeper.run(Follower::new(Api::all(clients.watches.clone()), name), wanted.subscribe()));
        Self { wanted, held }
    }

    /// Says what it shall hold from now on.
    pub(crate) fn want(&self, wanted: Wanted) {
        self.wanted.send_if_modified(|current| {
            let changed = current.as_deref() != Some(&wanted);
            if changed {
                *current = Some(Arc::new(wanted));
            }
            changed
        });
    }

    /// Returns when the cluster holds what was wanted last. Cancel safe.
    pub(crate) async fn holds(&self) {
        let mut held = self.held.clone();
        let current = |held: &Option<Arc<Wanted>>| held.is_some() && *held == *self.wanted.borrow();
        if held.wait_for(current).await.is_err() {
            // The task ends with the runtime.
            std::future::pending::<()>().await;
        }
    }
}

struct Keeper<K> {
    api: Api<K>,
    roles: Api<ClusterRole>,
    name: &'static str,
    metrics: Answers,
    /// How long what others write is left alone.
    patience: Duration,
    held: watch::Sender<Option<Arc<Wanted>>>,
    /// Whether it was seen with an owner.
    owned: bool,
    /// What was written last, or seen to be there: to the letter.
    applied: Option<Arc<Wanted>>,
    repaired: Option<Instant>,
    backoff: Backoff,
}

impl<K> Keeper<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    async fn run(mut self, mut follower: Follower<K>, mut wanted: watch::Receiver<Option<Arc<Wanted>>>) {
        let mut live = value(follower.next().await);
        let mut not_before = Instant::now();
        loop {
            self.owned |= live["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
            let want = wanted.borrow_and_update().clone();
            let due = want.clone().filter(|want| !self.holds(&live, want));
            if want.is_some() {
                self.metrics.registered(&K::kind(&()), self.name, due.is_none());
            }
            match due {
                None => {
                    self.applied.clone_from(&want);
                    self.held.send_if_modified(|held| {
                        let changed = *held != want;
                        held.clone_from(&want);
                        changed
                    });
                }
                Some(want) if Instant::now() >= not_before => {
                    not_before = Instant::now() + self.pause(&want);
                    match self.write(&want).await {
                        Ok(Some(written)) => {
                            live = written;
                            self.applied = Some(want);
                        }
                        Ok(None) => {}
                        Err(error) => {
                            let error = format!("{error:#}");
                            warn!(name = self.name, error, "failed to write a webhook configuration");
                        }
                    }
                    continue;
                }
                Some(_) => {}
            }
            let retry = want.is_some_and(|want| !self.holds(&live, &want));
            tokio::select! {
                seen = follower.next() => {
                    live = value(seen);
                    not_before = not_before.max(Instant::now() + self.patience);
                }
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep_until(not_before), if retry => {}
            }
        }
    }

    /// How long to wait after this write before the next one.
    fn pause(&mut self, want: &Arc<Wanted>) -> Duration {
        let now = Instant::now();
        let news = self.held.borrow().as_ref() != Some(want) && self.held.borrow().is_some();
        if news || self.repaired.is_none_or(|last| now > last + QUARREL) {
            self.backoff.reset();
        }
        self.repaired = Some(now);
        self.backoff.pause()
    }

    /// Whether nothing needs to be written. Certificates that this replica does not ask for may be trusted by others, who have
    /// yet to see, or have already seen, the next ones; once, when what it asks for changes, it takes them out.
    fn holds(&self, live: &Value, want: &Arc<Wanted>) -> bool {
        holds(live, want, if self.applied.as_ref() == Some(want) { Trust::AtLeast } else { Trust::Exactly })
    }

    /// Writes it; none if its owner is gone, and Mimeo with it.
    async fn write(&mut self, want: &Wanted) -> anyhow::Result<Option<Value>> {
        let owner = match self.owner().await? {
            Owner::None if self.owned => {
                info!(name = self.name, "webhook configuration not written: the ClusterRole that owns it is gone");
                return Ok(None);
            }
            Owner::None | Owner::Unknown => None,
            Owner::Role(reference) => Some(reference),
        };
        let body = want.clone().owned_by(owner).render();
        let params = PatchParams::apply(MANAGER).force();
        let mut written =
            value(Some(within(DEADLINE, self.api.patch(self.name, &params, &Patch::Apply(&body))).await?));
        if !holds(&written, want, Trust::Exactly) {
            written = self.replace(&written, &body).await?;
        }
        info!(name = self.name, kind = %K::kind(&()), "webhook configuration written");
        Ok(Some(written))
    }

    /// Takes out what apply leaves to others: entries and conditions that they added.
    async fn replace(&self, live: &Value, body: &Value) -> anyhow::Result<Value> {
        let operations = json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/webhooks", "value": body["webhooks"]},
        ]);
        let patch = Patch::<K>::Json(serde_json::from_value(operations)?);
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        Ok(value(Some(within(DEADLINE, self.api.patch(self.name, &params, &patch)).await?)))
    }

    async fn owner(&self) -> anyhow::Result<Owner> {
        let role = match within(DEADLINE, self.roles.get_metadata_opt(OWNER)).await {
            Err(error) if status(&error) == Some(403) => return Ok(Owner::Unknown),
            Err(error) => anyhow::bail!("failed to read the owner: {}", Fault(&error)),
            Ok(role) => role,
        };
        let reference = |uid| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": OWNER, "uid": uid});
        Ok(role.and_then(|role| role.metadata.uid).map_or(Owner::None, |uid| Owner::Role(reference(uid))))
    }
}

/// The `ClusterRole` of this program.
enum Owner {
    /// A reference to it.
    Role(Value),
    /// There is none, as outside a cluster, or after Mimeo was removed.
    None,
    /// This program may not look.
    Unknown,
}

/// Why the server refuses a configuration.
pub(crate) struct Refused {
    pub(crate) message: String,
    /// Not because of what it says: of somebody who may not write such a one, by their rights or a policy of the cluster's.
    pub(crate) forbidden: bool,
}

/// Tries a configuration without writing it.
///
/// # Errors
/// The server's refusal in the inner result; in the outer one that it couldn't be asked.
pub(crate) async fn try_out(client: &Client, wanted: &Wanted) -> anyhow::Result<Result<(), Refused>> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let params = PatchParams { dry_run: true, ..PatchParams::apply(MANAGER).force() };
    match within(DEADLINE, api.patch(wanted.name(), &params, &Patch::Apply(&wanted.render()))).await {
        Ok(_) => Ok(Ok(())),
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 400 | 403 | 413 | 422) => {
            Ok(Err(Refused { message: refusal.message.clone(), forbidden: refusal.code == 403 }))
        }
        Err(error) => Err(error.into()),
    }
}

/// The object as JSON; null if there is none.
fn value<K: Serialize>(object: Option<K>) -> Value {
    // A typed object has no maps with other keys than strings.
    object.and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default()
}

/// Which certificates a `caBundle` may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Exactly,
    AtLeast,
}

/// Whether the cluster holds what is wanted: in its metadata at least, in its entries nothing else.
fn holds(live: &Value, wanted: &Wanted, trust: Trust) -> bool {
    let wanted = wanted.render();
    contains(&live["metadata"], &wanted["metadata"]) && same(&live["webhooks"], &wanted["webhooks"], trust)
}

/// Whether everything that `part` says is so in `whole`, which may say more.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| contains(whole, part)))
        }
        _ => whole == part,
    }
}

/// Whether both say the same. What is empty may be left out.
fn same(live: &Value, wanted: &Value, trust: Trust) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            let keys: BTreeSet<&String> = live.keys().chain(wanted.keys()).collect();
            keys.into_iter().all(|key| match (live.get(key), wanted.get(key)) {
                // Where Mimeo knows no CA, others may.
                (_, None) if key == "caBundle" => true,
                (Some(live), Some(wanted)) if key == "caBundle" => trusts(live, wanted, trust),
                (live, wanted) => same(live.unwrap_or(&Value::Null), wanted.unwrap_or(&Value::Null), trust),
            })
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| same(live, wanted, trust))
        }
        _ => live == wanted || is_empty(live) && is_empty(wanted),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn trusts(live: &Value, wanted: &Value, trust: Trust) -> bool {
    match trust {
        Trust::Exactly => live == wanted,
        Trust::AtLeast => {
            certificates(live).zip(certificates(wanted)).is_some_and(|(live, wanted)| wanted.is_subset(&live))
        }
    }
}

/// The certificates of a `caBundle`, each as its text.
fn certificates(bundle: &Value) -> Option<BTreeSet<String>> {
    let ByteString(bytes) = serde_json::from_value(bundle.clone()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    Some(each(&text).map(str::to_owned).collect())
}

fn each(pem: &str) -> impl Iterator<Item = &str> {
    pem.split_inclusive("-----END CERTIFICATE-----").map(str::trim).filter(|one| !one.is_empty())
}

/// The certificates by which API servers know the hooks at present, in PEM. Other replicas may serve one that these vouch for, and
/// this one doesn't know: of a Secret that was given another name, or from before there was a folder.
pub(crate) async fn trusted_before(clients: &Clients) -> String {
    let api = Api::<MutatingWebhookConfiguration>::all(clients.requests.clone());
    let found = within(DEADLINE, api.get_opt(NAME)).await.unwrap_or_else(|error| {
        warn!(error = %Fault(&error), "failed to read which certificates are trusted");
        None
    });
    let hooks = found.and_then(|found| found.webhooks).unwrap_or_default();
    let bundles = hooks.into_iter().filter_map(|hook| String::from_utf8(hook.client_config.ca_bundle?.0).ok());
    bundles.reduce(|all, more| joined(&all, &more)).unwrap_or_default()
}

/// These certificates, and after them the others that aren't among them.
pub(crate) fn joined(first: &str, others: &str) -> String {
    let known: BTreeSet<&str> = each(first).collect();
    let more: Vec<&str> = each(others).filter(|one| !known.contains(one)).collect();
    if more.is_empty() { first.to_owned() } else { format!("{}\n{}\n", first.trim_end(), more.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_may_have_more() {
        let want = json!({"name": "x", "labels": {"a": "b"}});
        for (live, holds) in [
            (json!({"name": "x", "labels": {"a": "b", "c": "d"}, "uid": "u"}), true),
            (json!({"name": "x", "labels": {"a": "c"}}), false),
            (json!({"name": "x"}), false),
            (Value::Null, false),
        ] {
            assert_eq!(contains(&live, &want), holds, "{live}");
        }
    }

    #[test]
    fn entries_may_not() {
        let want = json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {}, "conditions": []}]);
        for (live, holds) in [
            (json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {}}]), true),
            (json!([{"name": "x", "rules": [{"scope": "*"}], "clientConfig": {"caBundle": "QQ=="}}]), false),
            (json!([{"name": "x", "rules": [{"scope": "*"}], "caBundle": "QQ=="}]), true),
            (json!([{"name": "x", "rules": [{"scope": "*"}], "selector": {"matchLabels": {"a": "b"}}}]), false),
            (json!([{"name": "x", "rules": [{"scope": "*"}], "conditions": [{"name": "never"}]}]), false),
            (json!([{"name": "x", "rules": []}]), false),
            (json!([{"name": "x", "rules": [{"scope": "*"}]}, {"name": "y"}]), false),
            (Value::Null, false),
        ] {
            assert_eq!(same(&live, &want, Trust::Exactly), holds, "{live}");
        }
    }

    #[test]
    fn certificates_are_joined_each_once_and_what_is_known_first() {
        let pem = |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let all = |names: &[&str]| names.iter().map(|name| pem(name)).collect::<String>();
        for (first, others, both) in [
            (&["a"][..], &["b", "c"][..], &["a", "b", "c"][..]),
            (&["a", "b"], &["b", "a"], &["a", "b"]),
            (&["a", "b"], &["c", "b"], &["a", "b", "c"]),
            (&["a"], &[], &["a"]),
            (&[], &["a"], &["a"]),
        ] {
            assert_eq!(joined(&all(first), &all(others)).trim(), all(both).trim(), "{first:?} {others:?}");
        }
        assert_eq!(joined("as it was", "as it was"), "as it was", "to the letter");
    }

    #[test]
    fn certificates_of_others_stay_while_nothing_changes_here() {
        let pem = |name: &str| format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n");
        let bundle =
            |names: &[&str]| json!(ByteString(names.iter().map(|name| pem(name)).collect::<String>().into_bytes()));
        for (live, want, exactly, at_least) in [
            (&["a"][..], &["a"][..], true, true),
            (&["a", "b"], &["a"], false, true),
            (&["a", "b"], &["b", "a"], false, true),
            (&["a"], &["a", "b"], false, false),
            (&[], &["a"], false, false),
        ] {
            let (live, want) = (bundle(live), bundle(want));
            assert_eq!(trusts(&live, &want, Trust::Exactly), exactly, "{live} {want}");
            assert_eq!(trusts(&live, &want, Trust::AtLeast), at_least, "{live} {want}");
        }
    }
}
