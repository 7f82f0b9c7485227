//! Whether the programs' watches are up to date: the reconciler and the webhook have seen the
//! present spec of each rule.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use mimeo_model::{
    condition::{ConditionReason, ConditionType},
    id::RuleKind,
};
use serde::Deserialize;
use serde_json::Value;

use super::{Item, Verdict};
use crate::{
    output::line,
    read::{Part, Reader, own_path, text},
};

const CHECK: &str = "Watches";
/// A change that is younger may not have been seen yet.
const FRESH: SignedDuration = SignedDuration::from_secs(30);

/// The part of a rule that shows who has seen it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: Option<i64>,
    conditions: Vec<Condition>,
}

/// The number of rules, and those that a program has not seen.
#[derive(Default)]
struct Unseen {
    rules: usize,
    reconciler: Vec<String>,
    webhook: Vec<String>,
}

pub(super) async fn check(reader: &Reader, mimeo: &str) -> Item {
    let mut unseen = Unseen::default();
    for kind in RuleKind::ALL {
        let now = reader.now();
        let mut each = |rule: &Value| unseen.look(kind, rule, now);
        let path = own_path(None, kind.plural(), None);
        let listed = reader.list(&path, None, Part::Whole, |rule| each(rule.value()));
        if let Err(error) = listed.await {
            return Item::unread(CHECK, kind.plural(), &error);
        }
    }
    unseen.item(mimeo)
}

impl Unseen {
    fn look(&mut self, kind: RuleKind, rule: &Value, now: Timestamp) {
        self.rules += 1;
        let name = match text(rule, "/metadata/namespace") {
            "" => text(rule, "/metadata/name").to_owned(),
            namespace => format!("{namespace}/{}", text(rule, "/metadata/name")),
        };
        let name = format!("{kind}/{name}");
        let status: Status = serde_json::from_value(rule["status"].clone()).unwrap_or_default();
        let old = |time: Timestamp| now.duration_since(time) > FRESH;
        if !changed(rule).is_none_or(old) {
            return;
        }
        if status.observed_generation != rule["metadata"]["generation"].as_i64() {
            self.reconciler.push(name);
            return;
        }
        let waits = |one: &&Condition| {
            one.type_ == ConditionType::PodGateActive.as_str()
                && one.status == "False"
                && one.reason == ConditionReason::Pending.as_str()
        };
        let waits = status.conditions.iter().find(waits);
        if waits.is_some_and(|one| old(one.last_transition_time.0)) {
            self.webhook.push(name);
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
            [rule] => format!("{who} the present spec of {}", line(rule)),
            _ => format!(
                "{who} the present spec of {} rules, such as {}",
                rules.len(),
                line(&rules[0])
            ),
        };
        let fix = format!(
            "kubectl -n {mimeo} logs -l app.kubernetes.io/name={program} --tail=-1   shows watches \
             that fail"
        );
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
    use serde_json::json;

    use super::*;

    /// A rule whose spec was written, and whose pod gate began to wait, this many seconds ago.
    fn item(observed: i64, written: i64, waits: Option<i64>) -> Item {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().expect("a time");
        let ago = |seconds| (now - SignedDuration::from_secs(seconds)).to_string();
        let condition = |seconds| {
            json!({
                "type": "PodGateActive", "status": "False", "reason": "Pending", "message": "",
                "lastTransitionTime": ago(seconds),
            })
        };
        let rule = json!({
            "metadata": {
                "name": "registry", "generation": 2,
                "managedFields": [
                    {"manager": "kubectl", "time": ago(written)},
                    {"manager": "mimeo", "subresource": "status", "time": ago(0)},
                ],
            },
            "status": {
                "observedGeneration": observed,
                "conditions": waits.map(condition).into_iter().collect::<Vec<_>>(),
            },
        });
        let mut unseen = Unseen::default();
        unseen.look(RuleKind::ClusterReplication, &rule, now);
        unseen.item("mimeo-system")
    }

    #[test]
    fn a_program_that_has_not_seen_an_older_change_is_named() {
        for good in [item(2, 60, None), item(1, 5, None), item(2, 60, Some(5))] {
            assert_eq!(good.result, Verdict::Ok, "{}", good.message);
        }
        for (bad, who) in [
            (item(1, 60, None), "the reconciler has not seen"),
            (item(2, 60, Some(60)), "not every webhook replica has seen"),
        ] {
            assert_eq!(bad.result, Verdict::Failed);
            let words = format!("{who} the present spec of ClusterReplication/registry");
            assert_eq!(bad.message, words);
        }
    }
}
