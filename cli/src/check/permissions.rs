//! Whether Mimeo has the permissions that the rules need.

use std::collections::BTreeSet;

use mimeo_model::{
    kind::GroupVersionKind,
    own_rights::{self, ProgramRight},
    plural,
    reach::Reach,
    rule::Rule,
};
use mimeo_runtime::discovery::Discovery;

use super::{Item, Report, Verdict};
use crate::{
    connect::Connected,
    files::Files,
    installation::Accounts,
    permissions::{Answers, Kinds, ask},
    picture::Picture,
    state::Fix,
};

/// The item for all kinds.
pub(super) const CHECK: &str = "Permissions";

/// Adds one item for each kind that rules copy.
pub(super) async fn check(
    connected: &Connected,
    picture: &Picture,
    accounts: &Accounts,
    report: &mut Report,
) {
    report.notes.extend(picture.unread.sentences().cloned());
    let rules: Vec<&Rule> = picture.valid_rules().collect();
    if rules.is_empty() {
        let item = if picture.unread.has_rules() {
            Item::new(CHECK, Verdict::Unknown, "no rule could be read")
        } else if picture.rules.is_empty() {
            Item::new(CHECK, Verdict::Ok, "there are no rules")
        } else {
            Item::new(CHECK, Verdict::Unknown, "every rule is invalid")
        };
        return report.checks.push(item);
    }
    let kinds = kinds(connected, &rules, report).await;
    let files = Files::default();
    let answers = ask(connected, picture, &rules, &kinds, &files, accounts).await;
    let asked = answers.held.iter().chain(&answers.missing);
    let asked = asked.chain(answers.unknown.keys());
    let named: BTreeSet<&str> = asked.map(|need| &*need.kind).collect();
    let engine = picture.snapshot.decided();
    let reach = engine.index().reach();
    let items = named.into_iter().map(|kind| judge(kind, &answers, reach));
    let items = items.map(|item| if_assumed(item, accounts));
    report.checks.extend(items);
}

/// Finds the kinds of the rules. Adds an item for each kind that is not served.
async fn kinds(connected: &Connected, rules: &[&Rule], report: &mut Report) -> Kinds {
    let discovery = Discovery::new(connected.client.clone());
    let wanted: BTreeSet<&GroupVersionKind> = rules.iter().flat_map(|rule| &rule.kinds).collect();
    let mut kinds = Kinds::new();
    for gvk in wanted {
        let check = format!("Kind {gvk}");
        match discovery.find(gvk).await {
            Ok(Some(resource)) => _ = kinds.insert(gvk.clone(), Some(resource)),
            Ok(None) => {
                let message = "rules name the kind, and the API server doesn't serve it";
                let fix = "install its CRD, or correct apiVersion and kind in the rules";
                let fix = Fix::say(fix);
                let item = Item::new(check, Verdict::Warning, message).fix(fix);
                report.checks.push(item);
            }
            Err(error) => {
                let item = Item::new(check, Verdict::Unknown, error.to_string());
                report.checks.push(item);
            }
        }
    }
    kinds
}

/// The item of one kind.
fn judge(kind: &str, answers: &Answers, reach: &Reach) -> Item {
    let check = format!("Permissions on {kind}");
    let of_kind = |need: &&ProgramRight| &*need.kind == kind;
    let missing = answers.missing.iter().filter(of_kind);
    let missing: BTreeSet<ProgramRight> = missing.cloned().collect();
    if !missing.is_empty() {
        // Mimeo needs some permissions only if a copy grants more than Mimeo has.
        let perhaps = missing.iter().all(ProgramRight::hands_out);
        let result = if perhaps {
            Verdict::Warning
        } else {
            Verdict::Failed
        };
        let message = plural::first_items(&own_rights::explain(&missing, reach), "; ");
        let fix = Fix::say(
            "create these roles with kubectl apply; manifests/chart/templates/rbac-kinds.yaml has \
             an example",
        );
        return Item::new(check, result, message).fix(fix);
    }
    let mut unknown = answers.unknown.iter();
    match unknown.find(|(need, _)| of_kind(need)) {
        Some((_, why)) => Item::new(check, Verdict::Unknown, why.clone()),
        None => Item::new(
            check,
            Verdict::Ok,
            "Mimeo may read the sources, and write and delete the copies",
        ),
    }
}

/// A missing permission is a fault only if it is known which accounts Mimeo has.
fn if_assumed(item: Item, accounts: &Accounts) -> Item {
    if !accounts.assumed || item.result != Verdict::Failed {
        return item;
    }
    let message = format!("{}{}", accounts.assumption(), item.message);
    Item {
        result: Verdict::Warning,
        message,
        ..item
    }
}

#[cfg(test)]
mod tests {
    use mimeo_model::{own_rights::Program, right::Right};

    use super::*;

    fn need(verb: &'static str) -> ProgramRight {
        ProgramRight {
            program: Program::Reconciler,
            kind: "Role".into(),
            right: Right {
                verb,
                group: "rbac.authorization.k8s.io".into(),
                resource: "roles".into(),
                namespace: None,
                name: None,
            },
        }
    }

    #[test]
    fn a_missing_permission_fails_and_an_unknown_one_does_not() {
        let reach = Reach::default();
        let mut answers = Answers::default();
        assert_eq!(judge("Role", &answers, &reach).result, Verdict::Ok);
        answers.unknown.insert(need("list"), "why".into());
        assert_eq!(judge("Role", &answers, &reach).message, "why");
        answers.missing.insert(need("escalate"));
        assert_eq!(judge("Role", &answers, &reach).result, Verdict::Warning);
        answers.missing.insert(need("create"));
        let item = judge("Role", &answers, &reach);
        assert_eq!(item.result, Verdict::Failed);
        let words = "mimeo.dev/aggregate-to-mimeo=true";
        assert!(item.message.contains(words), "{}", item.message);
        assert_eq!(judge("Secret", &answers, &reach).result, Verdict::Ok);
        let mut accounts = Accounts {
            webhook: "a".into(),
            reconciler: "b".into(),
            assumed: false,
        };
        assert_eq!(if_assumed(item.clone(), &accounts), item);
        accounts.assumed = true;
        let doubted = if_assumed(item, &accounts);
        assert_eq!(doubted.result, Verdict::Warning);
        let words = "if Mimeo runs as a and b, then ";
        assert!(doubted.message.starts_with(words), "{}", doubted.message);
    }
}
