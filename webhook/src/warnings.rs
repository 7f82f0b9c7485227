//! Warnings for the author of an accepted rule. The API server passes them on to the client.
//!
//! A warning on every harmless change would soon be ignored. So there are only three kinds:
//!
//! - The number of selected namespaces, when the targets are new or changed, and on any dry run.
//! - Probable mistakes: the rule selects nothing or everything, or this change deletes copies.
//! - Obstacles to the rule: other rules and missing permissions.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use mimeo_engine::{Contest, Preview};
use mimeo_model::{
    choices::Retain,
    kind::GroupVersionKind,
    own_rights::{self, Program, ProgramRight},
    plural,
    reach::{OutOfReach, Reach},
    review::User,
    rule::{Rule, Target},
    source::{SourceQuery, SourceRef, SourceSelector},
    template::near_misses as near_misses_in,
};
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use crate::app::App;

/// Most warnings of one sort.
const MOST: usize = 3;
/// Most permissions that are checked. This covers about ten kinds.
const RIGHTS: usize = 128;
/// Concurrent permission checks.
const AT_ONCE: usize = 16;

/// How much the warnings may say about namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Only about namespaces that the rule names, as every tenant's rule does. An author who may not
    /// list namespaces must not learn their number, nor the matches of a glob.
    Named,
    /// Only probable mistakes.
    Odd,
    /// Also the number of selected namespaces, even without any mistake.
    Counts,
}

/// Warnings about the namespaces that the rule selects and the other rules that want the same
/// copies. The sources that selectors find are not known here. `before` is the stored rule.
pub(crate) fn foresee(app: &App, rule: &Rule, before: Option<&Rule>, told: Detail) -> Vec<String> {
    let preview = app.index(|index| {
        let primed = index.primed();
        primed.then(|| index.preview(rule, before))
    });
    let Some(mut preview) = preview else {
        return vec![];
    };
    if told == Detail::Named {
        preview.contests.retain_mut(|contest| {
            contest.namespaces.retain(|namespace| rule.names(namespace));
            !contest.namespaces.is_empty()
        });
        return contested(&preview.contests);
    }
    let mut warnings = Vec::new();
    warnings.extend(selection(rule, &preview, told == Detail::Counts));
    warnings.extend(losses(rule, &preview));
    warnings.extend(contested(&preview.contests));
    warnings
}

/// The first of these warnings, and the number of the others.
fn first(mut warnings: Vec<String>, one: &str, many: &str) -> Vec<String> {
    let more = warnings.len().saturating_sub(MOST);
    warnings.truncate(MOST);
    if more > 0 {
        warnings.push(format!("and {}", plural::counted(more, one, many)));
    }
    warnings
}

fn contested(contests: &[Contest]) -> Vec<String> {
    first(
        contests.iter().map(contest).collect(),
        "more copy that another rule wants, too (RuleConflict)",
        "more copies that other rules want, too (RuleConflict)",
    )
}

fn selection(rule: &Rule, preview: &Preview, counts: bool) -> Option<String> {
    let Preview { matching, all, .. } = *preview;
    let everywhere = rule
        .targets
        .iter()
        .position(|target| target.selection.selects_all());
    match everywhere {
        _ if matching == all && all > 0 => Some(format!("the rule selects all {all} namespaces")),
        Some(i) => Some(format!(
            "spec.targets[{i}].namespaceSelector is empty: the rule selects {matching} of {all} \
             namespaces; kube-system, kube-public and kube-node-lease are left out unless a target \
             names them"
        )),
        None if matching == 0 => {
            let by_pattern = |target: &Target| target.selection.is_by_pattern();
            let hint = if rule.targets.iter().any(by_pattern) {
                ". A namespacePattern must match the whole name, as in team-.*"
            } else {
                ""
            };
            Some(format!("no namespace matches the rule now{hint}"))
        }
        None => counts.then(|| format!("the rule selects {matching} of {all} namespaces")),
    }
}

fn losses(rule: &Rule, preview: &Preview) -> Option<String> {
    let deletes = rule.retention.when_unmatched == Retain::Delete && !rule.suspend;
    (deletes && preview.lost > 0).then(|| {
        let lost = plural::counted(preview.lost, "namespace", "namespaces");
        format!("this change removes {lost} from the rule. Mimeo deletes the copies there")
    })
}

/// A warning if the rule changes to retain its copies after its deletion. Each copy carries this in
/// its own annotation. If the rule is deleted before Mimeo has written all annotations, Mimeo
/// deletes the other copies.
pub(crate) fn untold_retention(rule: &Rule, before: Option<&Rule>) -> Option<String> {
    let retains = |rule: &Rule| rule.retention.when_rule_deleted == Retain::Retain;
    let untold = retains(rule) && before.is_some_and(|before| !retains(before));
    let when = if rule.suspend {
        "after suspend is lifted. If the rule is deleted before that, Mimeo deletes its copies"
    } else {
        "now. If the rule is deleted before it is Ready again, Mimeo deletes the other copies"
    };
    untold.then(|| format!("each copy gets a note that it stays when the rule is deleted, {when}"))
}

fn contest(contest: &Contest) -> String {
    let Contest {
        other,
        kind,
        name,
        lost,
        ..
    } = contest;
    let places = contest.places();
    // The webhook does not know whether the other rule's copies exist already. A new rule has none.
    let gets = if *lost {
        format!("{other} gets {kind} {name} in {places}, not this rule (RuleConflict)")
    } else {
        format!(
            "this rule gets {kind} {name} in {places}, not {other} (RuleConflict), unless that \
             rule's copy is there already"
        )
    };
    format!("{gets}. Name one rule's copies differently (copyName)")
}

/// Warnings about grants that a tenant's rule lacks for its selectors and its named sources; none
/// for other rules. The warnings do not depend on whether the other namespaces exist.
pub(crate) fn not_granted(app: &App, rule: &Rule) -> Vec<String> {
    first(
        app.index(|index| index.not_granted(rule, &rule.sources)),
        "more missing ReplicationGrant",
        "more missing ReplicationGrants",
    )
}

/// Warnings about text in a spec that resembles a variable but is none.
pub(crate) fn near_misses(object: &Value, variables: &str) -> Vec<String> {
    let misses = near_misses_in(&object["spec"]);
    let warning = |miss: &&str| {
        format!("${miss} is not a variable and stays text. The variables are: {variables}")
    };
    first(
        misses.iter().map(warning).collect(),
        "more text that looks like a variable and is none",
        "more texts that look like variables and are none",
    )
}

/// Says that a kind is not served. `meant` is the kind that the author may have meant.
pub(crate) fn unserved(gvk: &GroupVersionKind, meant: Option<&str>) -> String {
    match meant {
        Some(kind) => format!("the cluster does not serve {gvk}; did you mean {kind}?"),
        None => format!(
            "the cluster does not serve {gvk}; install its CRD, or correct apiVersion and kind"
        ),
    }
}

/// The warning that a source, or the objects that a selector finds, will not be copied.
pub(crate) fn out_of_reach(query: SourceQuery<'_>, why: OutOfReach) -> String {
    let what = match query {
        SourceQuery::One(_) => "source",
        SourceQuery::Selected(_) => "sources",
    };
    format!("{what} {query}: {why}")
}

/// The warning that a source does not exist.
pub(crate) fn missing_source(source: &SourceRef) -> String {
    format!("source {source} does not exist; nothing is copied until it does")
}

/// The warning about a selector that is empty.
pub(crate) fn empty_selector(selector: &SourceSelector) -> Option<String> {
    let SourceSelector {
        gvk,
        namespace,
        selector,
    } = selector;
    selector.is_empty().then(|| {
        format!(
            "a selector is empty: every {} in namespace {namespace} is copied",
            gvk.kind
        )
    })
}

/// Warnings that say how to grant the permissions which Mimeo's programs lack for the rule's kinds.
/// A permission without an answer before the deadline counts as granted.
pub(crate) async fn missing_rights(
    app: &App,
    needs: BTreeSet<ProgramRight>,
    reach: &Reach,
    deadline: Instant,
) -> Vec<String> {
    let questions = needs
        .into_iter()
        .take(RIGHTS)
        .map(|need| missing(app, need, deadline));
    let answers: Vec<Option<ProgramRight>> = stream::iter(questions)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let missing = answers.into_iter().flatten().collect();
    first(
        own_rights::explain(&missing, reach),
        "more missing permission",
        "more missing permissions",
    )
}

/// Returns the permission if one of the program's users lacks it. A check without an answer counts
/// as granted.
async fn missing(app: &App, need: ProgramRight, deadline: Instant) -> Option<ProgramRight> {
    for user in users(app, need.program) {
        match app.questions.may(&user, &need.right, deadline).await {
            Ok(true) => {}
            Ok(false) => return Some(need),
            Err(error) => {
                debug!(user = user.name, right = %need.right, %error, "cannot ask for a right");
            }
        }
    }
    None
}

fn users(app: &App, program: Program) -> Vec<User> {
    let own = &app.username;
    match program {
        Program::Webhook => vec![user(own)],
        // The reconciler's users are all of Mimeo's users besides this program's own.
        Program::Reconciler => app
            .mimeo_users
            .iter()
            .filter(|user| *user != own)
            .map(|name| user(name))
            .collect(),
    }
}

/// A user in the groups that the API server derives from its name.
fn user(name: &str) -> User {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) = name
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'))
    {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    User {
        name: name.to_owned(),
        groups,
        ..User::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use std::sync::Arc;

    use mimeo_model::{
        id::{RuleId, RuleKind},
        kind::GroupKind,
        policy::{changed, kept_type},
        refusal::Refusals,
        review::{Verdict, encode},
        right::Right,
        selection::Selector,
        template::VARIABLES,
    };
    use serde_json::{from_slice, json};

    use super::*;

    fn long(letter: &str, length: usize) -> String {
        letter.repeat(length)
    }

    /// The warnings as the API server receives them.
    fn sent(warnings: Vec<String>) -> Vec<String> {
        let review: Value = from_slice(&encode("u", &Verdict::Allow { warnings })).unwrap();
        serde_json::from_value(review["response"]["warnings"].clone()).unwrap()
    }

    fn contest(lost: bool, namespaces: usize) -> Contest {
        let other = RuleId {
            kind: RuleKind::ClusterReplication,
            namespace: None,
            name: long("o", 253).into(),
        };
        let kind = GroupKind {
            group: "".into(),
            kind: long("K", 63).into(),
        };
        let namespaces = (0..namespaces).map(|_| long("n", 63).into()).collect();
        Contest {
            other: Arc::new(other),
            kind,
            name: long("c", 253).into(),
            lost,
            namespaces,
        }
    }

    #[test]
    fn the_warnings_of_a_kind_end_with_how_many_more_there_are() {
        let of = |number: usize| -> Option<String> {
            let contests: Vec<Contest> = (0..number).map(|_| contest(true, 1)).collect();
            contested(&contests).get(MOST).cloned()
        };
        assert_eq!(of(3), None);
        assert_eq!(
            [4, 6].map(of).map(Option::unwrap_or_default),
            [
                "and 1 more copy that another rule wants, too (RuleConflict)",
                "and 3 more copies that other rules want, too (RuleConflict)",
            ]
        );
        let texts: serde_json::Map<String, Value> = (0..5)
            .map(|number| (format!("k{number}"), json!(format!("${{source.{number}}}"))))
            .collect();
        let spec = json!({"spec": {"transform": {"annotations": {"set": texts}}}});
        let told = near_misses(&spec, VARIABLES);
        assert_eq!(
            told.last().map(String::as_str),
            Some("and 2 more texts that look like variables and are none"),
            "{told:#?}"
        );
    }

    #[test]
    fn no_warning_is_cut_however_long_the_names_are() {
        let gvk =
            GroupVersionKind::parse(&format!("{}/v1", long("g", 253)), &long("K", 63)).unwrap();
        let source = SourceRef::named(gvk.clone(), long("n", 63), long("s", 253));
        let selector = |labels: Value| {
            let labels = serde_json::from_value(labels).unwrap();
            let selector = Arc::new(Selector::parse(
                &labels,
                "selector",
                &mut Refusals::default(),
            ));
            SourceSelector {
                gvk: gvk.clone(),
                namespace: long("n", 63).into(),
                selector,
            }
        };
        let (every, some) = (
            selector(json!({})),
            selector(json!({"matchLabels": {"a": "b"}})),
        );
        let spec = json!({"spec": {"transform": {"annotations": {"set": {
            format!("{}/{}", long("k", 253), long("k", 63)): format!("$(source{})", long(" ", 300)),
        }}}}});
        let needs = |verb: &'static str, namespace: Option<&str>| ProgramRight {
            program: Program::Reconciler,
            kind: long("K", 63).into(),
            right: Right {
                verb,
                group: long("g", 253).into(),
                resource: long("r", 63).into(),
                namespace: namespace.map(Into::into),
                name: None,
            },
        };
        let bind = ProgramRight {
            program: Program::Webhook,
            kind: "RoleBinding".into(),
            right: Right {
                verb: "bind",
                group: "rbac.authorization.k8s.io".into(),
                resource: "clusterroles".into(),
                namespace: None,
                name: Some(long("b", 253).into()),
            },
        };
        let everywhere =
            ["create", "get", "list", "patch", "watch", "delete"].map(|verb| needs(verb, None));
        let place = long("n", 63);
        let there = ["create", "get", "list", "patch", "watch", "delete"]
            .map(|verb| needs(verb, Some(&place)));
        let limited = Reach {
            targets: Some(Arc::new([place.as_str().into()].into())),
            ..Reach::default()
        };
        let explain = |needs: Vec<ProgramRight>, reach: &Reach| {
            own_rights::explain(&needs.into_iter().collect(), reach)
        };
        let name = long("p", 253);
        for (warnings, advice) in [
            (
                vec![unserved(&gvk, None)],
                "; install its CRD, or correct apiVersion and kind",
            ),
            (
                vec![unserved(&gvk, Some(&long("K", 63)))],
                "; did you mean K",
            ),
            (
                vec![missing_source(&source)],
                " does not exist; nothing is copied until it does",
            ),
            (
                vec![out_of_reach(
                    SourceQuery::One(&source),
                    OutOfReach::Namespace,
                )],
                "this installation of Mimeo reads no sources in the namespace \
                 (--source-namespaces)",
            ),
            (
                vec![out_of_reach(SourceQuery::Selected(&some), OutOfReach::Kind)],
                "this installation of Mimeo does not copy the kind (--kinds)",
            ),
            (empty_selector(&every).into_iter().collect(), "is copied"),
            (
                vec![super::contest(&contest(true, 1))],
                ". Name one rule's copies differently (copyName)",
            ),
            (
                vec![super::contest(&contest(true, 9_999))],
                ". Name one rule's copies differently (copyName)",
            ),
            (
                vec![super::contest(&contest(false, 3))],
                ". Name one rule's copies differently (copyName)",
            ),
            (
                vec![super::contest(&contest(false, 9_999))],
                ". Name one rule's copies differently (copyName)",
            ),
            (near_misses(&spec, VARIABLES), VARIABLES),
            (
                explain(everywhere.to_vec(), &Reach::default()),
                "a ClusterRole labelled mimeo.dev/aggregate-to-mimeo=true must have the rule \
                 {apiGroups: [",
            ),
            (
                explain(everywhere[5..].to_vec(), &Reach::default()),
                "a ClusterRole labelled mimeo.dev/aggregate-to-mimeo-reconciler=true must have the \
                 rule {apiGroups: [",
            ),
            (
                explain(there.to_vec(), &limited),
                "verbs: [create, delete, get, list, patch, watch]}",
            ),
            (
                explain(vec![bind], &Reach::default()),
                "verbs: [bind], resourceNames: [",
            ),
            (
                vec![kept_type(&name, &long("t", 253), &long("w", 253))],
                "Delete the Secret and create it again",
            ),
            (
                vec![changed(
                    &name,
                    "annotations, data, finalizers, labels, type",
                    &long("K", 63),
                )],
                "change the policy or exclude the object from it (spec.match)",
            ),
        ] {
            assert!(warnings[0].contains(advice), "{warnings:#?}");
            let whole: Vec<String> = warnings
                .iter()
                .map(|text| format!("Mimeo: {text}"))
                .collect();
            assert_eq!(sent(warnings), whole);
        }
    }
}
