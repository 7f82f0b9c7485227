//! Mimeo's two programs: their replicas as Leases and Deployments show them.

use jiff::Timestamp;
use serde_json::Value;

use super::{Item, Verdict};
use crate::{
    installation::{Accounts, Installation, Replica, deployment_path},
    read::{Part, ReadError, Reader},
    state::Fix,
};

/// Facts from the Deployments of both programs.
pub(super) struct Deployments {
    /// The webhook's, if it was found.
    pub(super) webhook: Option<Value>,
    pub(super) accounts: Accounts,
}

/// The items of both programs.
pub(super) async fn check(reader: &Reader, mimeo: &str) -> (Vec<Item>, Deployments) {
    let (installation, unread) = Installation::read(reader, mimeo).await;
    // The first sentence is about the leader if its Lease could not be read.
    let unread = [unread.first(), unread.last()].map(|one| one.cloned().unwrap_or_default());
    let now = installation.now;
    let pods = Fix::run(format!("kubectl -n {mimeo} get pods")).note("shows whether they run");
    let leases = [
        (
            "Reconciler leader",
            &installation.leader,
            "no replica leads. Copies don't change until one does",
        ),
        (
            "Webhook replicas",
            &installation.webhooks,
            "no replica is alive. New namespaces wait for the reconciler, and rules can't be \
             created",
        ),
    ];
    let mut items = Vec::new();
    for ((check, replicas, none), unread) in leases.into_iter().zip(unread) {
        items.push(match replicas {
            Some(replicas) => alive(check, replicas, none, &pods, now),
            None => Item::new(check, Verdict::Unknown, unread),
        });
    }
    let read = async |program: &str| {
        let path = deployment_path(mimeo, program);
        reader.get(&path, Part::Whole).await
    };
    let webhook = read("mimeo-webhook").await;
    let reconciler = read("mimeo-reconciler").await;
    items.push(ready("mimeo-webhook", mimeo, &webhook));
    items.push(ready("mimeo-reconciler", mimeo, &reconciler));
    let [webhook, reconciler] = [webhook, reconciler].map(|read| read.ok().flatten());
    let accounts = Accounts::of(mimeo, webhook.as_ref(), reconciler.as_ref());
    (items, Deployments { webhook, accounts })
}

/// The item of replicas with Leases.
fn alive(check: &str, replicas: &[Replica], none: &str, pods: &Fix, now: Timestamp) -> Item {
    let living = replicas.iter().filter(|replica| replica.alive);
    let living: Vec<String> = living.map(|replica| replica.text(now)).collect();
    if !living.is_empty() {
        let message = format!("the last renewals: {}", living.join(", "));
        return Item::new(check, Verdict::Ok, message);
    }
    let expired: Vec<String> = replicas.iter().map(|replica| replica.text(now)).collect();
    let message = if expired.is_empty() {
        none.to_owned()
    } else {
        format!("{none}. The last renewals: {}", expired.join(", "))
    };
    Item::new(check, Verdict::Failed, message).fix(pods.clone())
}

/// The item of a Deployment.
fn ready(program: &str, mimeo: &str, deployment: &Result<Option<Value>, ReadError>) -> Item {
    let check = format!("Deployment {program}");
    let deployment = match deployment {
        Ok(Some(deployment)) => deployment,
        Ok(None) => {
            let message = format!(
                "there is none in namespace {mimeo}. This is expected only if the program runs \
                 outside of the cluster"
            );
            return Item::new(check, Verdict::Warning, message);
        }
        Err(error) => return Item::unread(check, "the Deployment", error),
    };
    let count = |pointer: &str| deployment.pointer(pointer).and_then(Value::as_u64);
    let wanted = count("/spec/replicas").unwrap_or(1);
    let ready = count("/status/readyReplicas").unwrap_or(0);
    let message = format!("{ready} of {wanted} replicas are ready");
    let result = match (ready, wanted) {
        (0, _) => Verdict::Failed,
        (ready, wanted) if ready < wanted => Verdict::Warning,
        _ => return Item::new(check, Verdict::Ok, message),
    };
    let fix = if wanted == 0 {
        Fix::run(format!(
            "kubectl -n {mimeo} scale deployment {program} --replicas=2"
        ))
    } else {
        Fix::run(format!(
            "kubectl -n {mimeo} describe pods -l app.kubernetes.io/name={program}"
        ))
        .note("shows the reason")
    };
    Item::new(check, result, message).fix(fix)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_needs_ready_replicas() {
        let judged = |wanted: Value, status: Value| {
            let deployment = json!({"spec": {"replicas": wanted}, "status": status});
            ready("mimeo-webhook", "mimeo-system", &Ok(Some(deployment)))
        };
        let of = |ready: u32| json!({"readyReplicas": ready});
        assert_eq!(judged(json!(2), of(2)).result, Verdict::Ok);
        assert_eq!(judged(json!(2), of(1)).result, Verdict::Warning);
        assert_eq!(judged(json!(2), json!({})).result, Verdict::Failed);
        assert_eq!(
            judged(Value::Null, of(1)).message,
            "1 of 1 replicas are ready"
        );
        let none = judged(json!(0), json!({}));
        let fix = none.fix.and_then(|fix| fix.command).unwrap_or_default();
        assert!(fix.contains("scale deployment mimeo-webhook"), "{fix}");
    }

    #[test]
    fn expired_leases_are_named_with_their_age() {
        let now = Timestamp::from_second(1_000).expect("a time");
        let replica = |name: &str, alive| Replica {
            name: name.into(),
            renewed: Timestamp::from_second(900).ok(),
            alive,
        };
        let item = alive(
            "Leader",
            &[replica("a", false)],
            "none leads",
            &Fix::say("look"),
            now,
        );
        assert_eq!(item.result, Verdict::Failed);
        assert_eq!(item.message, "none leads. The last renewals: a (100s ago)");
        let two = [replica("a", false), replica("b", true)];
        let item = alive("Leader", &two, "none leads", &Fix::say("look"), now);
        assert_eq!(item.result, Verdict::Ok);
        assert_eq!(item.message, "the last renewals: b (100s ago)");
    }
}
