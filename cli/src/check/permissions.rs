//! Mimeo's own permissions on the kinds that rules copy.
//!
//! Whether a permission is needed, and how to grant it, is decided by [`own_rights`]. This file asks
//! the API server which of them Mimeo's accounts have.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    own_rights::{self, Program, ProgramRight, RoleRef},
    reach::Reach,
    review::User,
    rule::Rule,
    source::SourceRef,
};
use mimeo_runtime::{
    access::is_allowed,
    discovery::{Discovery, resource_path},
    fault::{Fault, status},
};
use tokio::time::Instant;

use super::{Item, Report, Verdict, programs::Accounts};
use crate::{
    connect::Connected,
    picture::{Picture, Scope},
    read::{AT_ONCE, Part, Reader},
};

/// Most permissions that are checked. An installation that is limited to many namespaces needs each
/// permission in each of them.
const MOST: usize = 2000;

/// The kinds that rules copy, as the API server serves them.
type Kinds = BTreeMap<GroupVersionKind, Option<Resource>>;

/// Adds one item for each kind that rules copy.
pub(super) async fn check(
    connected: &Connected,
    reader: &Reader,
    accounts: &Accounts,
    report: &mut Report,
) {
    // A user who may not list namespaces can name one with -n.
    let scope = Scope::asked(connected);
    let (picture, reach) = match Picture::outline(connected, scope).await {
        Ok(read) => read,
        Err(error) => {
            let item = Item::new("Permissions", Verdict::Unknown, format!("{error:#}"));
            return report.checks.push(item);
        }
    };
    report.notes.extend(picture.unread.iter().cloned());
    let rules = picture.rules.values();
    let rules = rules.filter_map(|stored| stored.rule.as_ref().ok());
    let rules: Vec<Rule> = rules.map(|rule| rule.clone().within(&reach)).collect();
    if rules.is_empty() {
        let item = if picture.unread.is_empty() {
            Item::new("Permissions", Verdict::Ok, "there are no rules")
        } else {
            Item::new("Permissions", Verdict::Unknown, "no rule could be read")
        };
        return report.checks.push(item);
    }
    let kinds = kinds(connected, &rules, report).await;
    let roles = roles(reader, &rules, &kinds).await;
    let mut needs = needs(&picture, &reach, &rules, &kinds, &roles);
    if needs.len() > MOST {
        let more = needs.len() - MOST;
        let note = format!("Only {MOST} permissions were checked. {more} more are needed.");
        report.notes.push(note);
        needs = needs.into_iter().take(MOST).collect();
    }
    let answers = ask(connected, accounts, &needs).await;
    let named: BTreeSet<&str> = needs.iter().map(|need| &*need.kind).collect();
    let items = named.into_iter().map(|kind| judge(kind, &answers, &reach));
    let items = items.map(|item| doubt(item, accounts));
    report.checks.extend(items);
}

/// Finds the kinds of the rules. Adds an item for each kind that is not served.
async fn kinds(connected: &Connected, rules: &[Rule], report: &mut Report) -> Kinds {
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

/// The roles of RoleBindings among the sources. Mimeo needs the permission to bind exactly these.
async fn roles(reader: &Reader, rules: &[Rule], kinds: &Kinds) -> BTreeMap<SourceRef, RoleRef> {
    let sources: BTreeSet<&SourceRef> = rules.iter().flat_map(|rule| &rule.sources).collect();
    let mut roles = BTreeMap::new();
    for source in sources {
        let resource = kinds.get(&source.gvk).and_then(Option::as_ref);
        let (Some(resource), Some(home)) = (resource, source.home()) else {
            continue;
        };
        if !own_rights::binds(&source.gvk) {
            continue;
        }
        let path = resource_path(resource, Some(home), Some(&source.name));
        let object = reader.get(&path, Part::Whole).await.ok().flatten();
        if let Some(role) = object.as_ref().and_then(RoleRef::of) {
            roles.insert(source.clone(), role);
        }
    }
    roles
}

/// The permissions that Mimeo's programs need for all rules.
fn needs(
    picture: &Picture,
    reach: &Reach,
    rules: &[Rule],
    kinds: &Kinds,
    roles: &BTreeMap<SourceRef, RoleRef>,
) -> BTreeSet<ProgramRight> {
    let (engine, _) = picture.snapshot.decided();
    let mut needs = BTreeSet::new();
    for rule in rules {
        let homes = rule.homes(|source| roles.get(source).cloned());
        let homes = homes.filter(|home| reach.refuses_home(home.gvk, home.namespace).is_none());
        let places = engine.index().reached(rule);
        let look_up = |gvk: &GroupVersionKind| kinds.get(gvk).cloned().flatten();
        let own = own_rights::needed_by(rule.id.kind, homes, places.as_ref(), look_up);
        needs.extend(own);
    }
    needs
}

/// The answers of the API server, in two sets.
#[derive(Default)]
struct Answers {
    missing: BTreeSet<ProgramRight>,
    unknown: BTreeMap<ProgramRight, String>,
}

async fn ask(
    connected: &Connected,
    accounts: &Accounts,
    needs: &BTreeSet<ProgramRight>,
) -> Answers {
    let mut answers = Answers::default();
    let one = |need: ProgramRight| async move {
        let account = match need.program {
            Program::Webhook => &accounts.webhook,
            Program::Reconciler => &accounts.reconciler,
        };
        let deadline = Instant::now() + connected.timeout;
        let user = account_user(account);
        let allowed = is_allowed(&connected.client, &user, &need.right, deadline).await;
        let failed = allowed.map_err(|error| match status(&error) {
            Some(403) => {
                "you have no permission to check the permissions of Mimeo's accounts (create subjectaccessreviews.authorization.k8s.io)".to_owned()
            }
            _ => format!("the API server did not decide: {}", Fault(&error)),
        });
        (need, failed)
    };
    let mut asked = stream::iter(needs.iter().cloned().map(one)).buffer_unordered(AT_ONCE);
    while let Some((need, allowed)) = asked.next().await {
        match allowed {
            Ok(true) => {}
            Ok(false) => _ = answers.missing.insert(need),
            Err(why) => _ = answers.unknown.insert(need, why),
        }
    }
    answers
}

/// A service account with the groups that the API server derives from its name.
fn account_user(name: &str) -> User {
    let namespace = name.split(':').nth(2).unwrap_or_default();
    User {
        name: name.to_owned(),
        groups: vec![
            "system:authenticated".to_owned(),
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ],
        ..User::default()
    }
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
        let message = own_rights::explain(&missing, reach).join("; ");
        let fix = "create these roles with kubectl apply; manifests/chart/templates/rbac-kinds.yaml has an example";
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
fn doubt(item: Item, accounts: &Accounts) -> Item {
    let Accounts {
        webhook,
        reconciler,
        assumed,
    } = accounts;
    if !assumed || item.result != Verdict::Failed {
        return item;
    }
    let message = format!(
        "if Mimeo runs as {webhook} and {reconciler}, then {}",
        item.message
    );
    Item {
        result: Verdict::Warning,
        message,
        ..item
    }
}

#[cfg(test)]
mod tests {
    use mimeo_model::right::Right;

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
        assert_eq!(doubt(item.clone(), &accounts), item);
        accounts.assumed = true;
        let doubted = doubt(item, &accounts);
        assert_eq!(doubted.result, Verdict::Warning);
        let words = "if Mimeo runs as a and b, then ";
        assert!(doubted.message.starts_with(words), "{}", doubted.message);
    }

    #[test]
    fn an_account_has_the_groups_of_its_namespace() {
        let user = account_user("system:serviceaccount:mimeo-system:mimeo-webhook");
        assert_eq!(user.groups[2], "system:serviceaccounts:mimeo-system");
    }
}
