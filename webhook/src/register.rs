//! Keeps the webhook configurations in the cluster as they should be: written when this replica can serve, again when what they
//! say changes, and put back when somebody changes or deletes them.
//!
//! Every replica does so. Equal replicas write the same, which is no write to the server, so they don't disturb each other;
//! unequal ones, as during an update of Mimeo, give way with a growing pause.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use mimeo_core::{
    kind::{GroupVersionKind, Resource as Served},
    policy::Policy,
    registration::{NAME, POLICIES_NAME, Registration},
};
use mimeo_runtime::{
    client::{Clients, Fault, status, within},
    follow::{Backoff, Follower},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

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
}

impl Wanted {
    fn name(&self) -> &'static str {
        match self {
            Self::Mutating(_) | Self::Validating(_) => NAME,
            Self::Policies(..) => POLICIES_NAME,
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
        }
    }

    fn owned_by(self, owner: Option<Value>) -> Self {
        let owned = |registration| Registration { owner, ..registration };
        match self {
            Self::Mutating(registration) => Self::Mutating(owned(registration)),
            Self::Validating(registration) => Self::Validating(owned(registration)),
            Self::Policies(registration, policies, served) => Self::Policies(owned(registration), policies, served),
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
    pub(crate) fn mutating(clients: &Clients, name: &'static str) -> Self {
        Self::start::<MutatingWebhookConfiguration>(clients, name)
    }

    /// The same for the validating one.
    pub(crate) fn validating(clients: &Clients, name: &'static str) -> Self {
        Self::start::<ValidatingWebhookConfiguration>(clients, name)
    }

    fn start<K>(clients: &Clients, name: &'static str) -> Self
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let (publish, held) = watch::channel(None);
        let wanted = watch::Sender::new(None);
        let keeper = Keeper::<K> {
            api: Api::all(clients.requests.clone()),
            roles: Api::all(clients.requests.clone()),
            name,
            held: publish,
            owned: false,
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
    held: watch::Sender<Option<Arc<Wanted>>>,
    /// Whether it was seen with an owner.
    owned: bool,
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
            let due = want.clone().filter(|want| !holds(&live, want));
            match due {
                None => {
                    self.held.send_if_modified(|held| {
                        let changed = *held != want;
                        held.clone_from(&want);
                        changed
                    });
                }
                Some(want) if Instant::now() >= not_before => {
                    not_before = Instant::now() + self.pause(&want);
                    match self.write(&want).await {
                        Ok(Some(written)) => live = written,
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
            let retry = want.is_some_and(|want| !holds(&live, &want));
            tokio::select! {
                seen = follower.next() => live = value(seen),
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
        let written = within(DEADLINE, self.api.patch(self.name, &params, &Patch::Apply(&body))).await?;
        info!(name = self.name, kind = %K::kind(&()), "webhook configuration written");
        Ok(Some(value(Some(written))))
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

/// Tries a configuration without writing it.
///
/// # Errors
/// The server's refusal in the inner result; in the outer one that it couldn't be asked.
pub(crate) async fn try_out(client: &Client, wanted: &Wanted) -> anyhow::Result<Result<(), String>> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let params = PatchParams { dry_run: true, ..PatchParams::apply(MANAGER).force() };
    match within(DEADLINE, api.patch(wanted.name(), &params, &Patch::Apply(&wanted.render()))).await {
        Ok(_) => Ok(Ok(())),
        Err(kube::Error::Api(refusal)) if matches!(refusal.code, 400 | 413 | 422) => Ok(Err(refusal.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// The object as JSON; null if there is none.
fn value<K: Serialize>(object: Option<K>) -> Value {
    // A typed object has no maps with other keys than strings.
    object.and_then(|object| serde_json::to_value(object).ok()).unwrap_or_default()
}

fn holds(live: &Value, wanted: &Wanted) -> bool {
    !live.is_null() && contains(live, &wanted.render())
}

/// Whether everything that `part` says is so in `whole`, which may say more. Lists are compared in full.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().all(|(key, part)| {
            let nothing =
                part.as_array().is_some_and(Vec::is_empty) || part.as_object().is_some_and(serde_json::Map::is_empty);
            whole.get(key).map_or(nothing, |whole| contains(whole, part))
        }),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        _ => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_adds_is_no_difference() {
        let want = json!({"a": {"b": 1}, "list": [{"name": "x"}], "none": []});
        for (live, same) in [
            (json!({"a": {"b": 1, "c": 2}, "list": [{"name": "x", "more": true}], "kind": "K"}), true),
            (json!({"a": {"b": 2}, "list": [{"name": "x"}]}), false),
            (json!({"a": {"b": 1}, "list": []}), false),
            (json!({"a": {"b": 1}, "list": [{"name": "x"}, {"name": "y"}]}), false),
            (json!({"a": {"b": 1}, "list": [{"name": "x"}], "none": [1]}), false),
            (Value::Null, false),
        ] {
            assert_eq!(contains(&live, &want), same, "{live}");
        }
    }
}
