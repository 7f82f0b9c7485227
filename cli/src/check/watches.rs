//! Whether the programs' watches are up to date: the reconciler and the webhook have seen the
//! present spec of each rule.

use jiff::{SignedDuration, Timestamp};
use mimeo_model::{
    condition::{ConditionReason, ConditionType},
    id::RuleId,
};
use serde_json::Value;

use super::{Item, Verdict};
use crate::{
    picture::{Picture, Stored},
    read::text,
    state::{Fix, condition},
};

pub(super) const CHECK: &str = "Watches";
/// A change that is younger may not have been seen yet.
const FRESH: SignedDuration = SignedDuration::from_secs(30);

/// The number of rules, and those that a program has not seen.
#[derive(Default)]
struct Unseen {
    rules: usize,
    reconciler: Vec<String>,
    webhook: Vec<String>,
}

/// The item. `now` is the time of the API server.
pub(super) fn check(picture: &Picture, now: Timestamp) -> Item {
    let mut unseen = Unseen::default();
    for (id, stored) in &picture.rules {
        unseen.look(id, stored, now);
    }
    let item = unseen.item(&picture.mimeo);
    if item.result == Verdict::Ok && picture.unread.has_rules() {
        return Item::new(CHECK, Verdict::Unknown, "not every rule could be read");
    }
    item
}

impl Unseen {
    fn look(&mut self, id: &RuleId, stored: &Stored, now: Timestamp) {
        self.rules += 1;
        let old = |time: Timestamp| now.duration_since(time) > FRESH;
        if !changed(&stored.object).is_none_or(old) {
            return;
        }
        let Some(status) = &stored.status else {
            self.reconciler.push(id.to_string());
            return;
        };
        let gate = condition(status, ConditionType::PodGateActive.as_str());
        let waits = gate.is_some_and(|one| {
            one.status == "False"
                && one.reason == ConditionReason::Pending.as_str()
                && old(one.last_transition_time.0)
        });
        if waits {
            self.webhook.push(id.to_string());
        }
    }

    fn item(&self, mimeo: &str) -> Item {
        let late = [
            (
                "the reconciler has not seen",
                "mimeo-reconciler",
                &self.reconciler,
            ),
            (
                "not every webhook replica has seen",
                "mimeo-webhook",
                &self.webhook,
            ),
        ];
        let late = late.into_iter().find(|(.., rules)| !rules.is_empty());
        let Some((who, program, rules)) = late else {
            let message = match self.rules {
                0 => "there is no rule that shows it".to_owned(),
                rules => {
                    format!("both programs have seen the present specs of the rules ({rules})")
                }
            };
            return Item::new(CHECK, Verdict::Ok, message);
        };
        let message = match &rules[..] {
            [rule] => format!("{who} the present spec of {rule}"),
            _ => format!(
                "{who} the present spec of {} rules, such as {}",
                rules.len(),
                rules[0]
            ),
        };
        let fix = Fix::run(format!(
            "kubectl -n {mimeo} logs -l app.kubernetes.io/name={program} --tail=-1"
        ))
        .note("shows watches that fail");
        Item::new(CHECK, Verdict::Failed, message).fix(fix)
    }
}

/// The time of the last write to the rule, other than to its status.
fn changed(rule: &Value) -> Option<Timestamp> {
    let entries = rule["metadata"]["managedFields"].as_array();
    let entries = entries.into_iter().flatten();
    let entries = entries.filter(|entry| text(entry, "/subresource").is_empty());
    let times = entries.filter_map(|entry| text(entry, "/time").parse().ok());
    times.max()
}

#[cfg(test)]
mod tests {
    use mimeo_model::refusal::Refused;
    use serde_json::json;

    use super::*;

    /// A rule whose spec was written, and whose pod gate began to wait, this many seconds ago.
    fn item(seen: bool, written: i64, waits: Option<i64>) -> Item {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().expect("a time");
        let ago = |seconds| (now - SignedDuration::from_secs(seconds)).to_string();
        let condition = |seconds| {
            json!({
                "type": "PodGateActive", "status": "False", "reason": "Pending", "message": "",
                "lastTransitionTime": ago(seconds),
            })
        };
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl", "time": ago(written)},
            {"manager": "mimeo", "subresource": "status", "time": ago(0)},
        ]}});
        let conditions: Vec<Value> = waits.map(condition).into_iter().collect();
        let status = json!({"conditions": conditions});
        let refused = Refused {
            generation: 1,
            created: jiff::Timestamp::MAX,
            refusals: Vec::new(),
        };
        let stored = Stored {
            rule: Err(refused),
            status: seen.then(|| serde_json::from_value(status).expect("a status")),
            object,
        };
        let mut unseen = Unseen::default();
        let id = "ClusterReplication/registry".parse().expect("a rule");
        unseen.look(&id, &stored, now);
        unseen.item("mimeo-system")
    }

    #[test]
    fn a_program_that_has_not_seen_an_older_change_is_named() {
        for good in [
            item(true, 60, None),
            item(false, 5, None),
            item(true, 60, Some(5)),
        ] {
            assert_eq!(good.result, Verdict::Ok, "{}", good.message);
        }
        for (bad, who) in [
            (item(false, 60, None), "the reconciler has not seen"),
            (
                item(true, 60, Some(60)),
                "not every webhook replica has seen",
            ),
        ] {
            assert_eq!(bad.result, Verdict::Failed);
            let words = format!("{who} the present spec of ClusterReplication/registry");
            assert_eq!(bad.message, words);
        }
    }
}
