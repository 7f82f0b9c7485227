//! What the author of a rule is told that was accepted, since the API server passes warnings on to whoever wrote it.
//!
//! A warning on each harmless change is soon read by nobody. So these are spoken of alone: how many namespaces are selected, when the
//! targets are new or others, and on any dry run; what is probably not meant (nothing selected, everything selected, copies that go with this
//! change), and what keeps the rule from doing what it says (other rules, missing rights).

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use mimeo_core::{
    engine::{Contest, Preview},
    own_rights::{self, Program, ProgramRight},
    reach::Reach,
    review::User,
    rule::{Retain, Rule, SourceRef},
};
use mimeo_runtime::client::Fault;
use tokio::time::Instant;
use tracing::debug;

use crate::hooks::App;

/// Most contests that are told one by one.
const CONTESTS: usize = 3;
/// Most missing grants that are told one by one.
const GRANTS: usize = 3;
/// Most rights that are asked for: those of some ten kinds.
const RIGHTS: usize = 128;
/// So many at once.
const AT_ONCE: usize = 16;

/// What of namespaces its author is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing but of those that the rule names: who may not list namespaces is not to learn how many there are, nor what a glob finds.
    Named,
    /// What is odd.
    Odd,
    /// How many are selected, be there nothing odd about it.
    Counts,
}

/// About the namespaces and the other rules that the rule would meet with these sources, all it has now; `before` is the rule as it is stored.
pub(crate) fn foresee(app: &App, rule: &Rule, sources: &[SourceRef], before: Option<&Rule>, told: Told) -> Vec<String> {
    let preview = app.handle.look(|engine, _| engine.primed().then(|| engine.preview(rule, sources, before)));
    let Some(mut preview) = preview else { return vec![] };
    if told == Told::Named {
        preview.contests.retain_mut(|contest| {
            contest.namespaces.retain(|namespace| rule.names(namespace));
            !contest.namespaces.is_empty()
        });
        return contested(&preview.contests);
    }
    let mut warnings: Vec<String> = selection(rule, &preview, told == Told::Counts).into_iter().collect();
    warnings.extend(losses(rule, &preview));
    warnings.extend(contested(&preview.contests));
    warnings
}

/// About the other rules that a tenant's rule would meet in its own namespace.
pub(crate) fn foresee_at_home(app: &App, rule: &Rule, sources: &[SourceRef], before: Option<&Rule>) -> Vec<String> {
    let contests = app.handle.look(|engine, _| engine.primed().then(|| engine.contests_at_home(rule, sources, before)));
    contested(&contests.unwrap_or_default())
}

/// The first, and how many more there are.
fn contested(contests: &[Contest]) -> Vec<String> {
    let mut warnings: Vec<String> = contests.iter().take(CONTESTS).map(contest).collect();
    if contests.len() > CONTESTS {
        warnings.push(format!("Mimeo: so it is with {} more copies of other rules", contests.len() - CONTESTS));
    }
    warnings
}

fn selection(rule: &Rule, preview: &Preview, counts: bool) -> Option<String> {
    let Preview { matching, all, .. } = *preview;
    let everywhere = rule.targets.iter().position(|target| target.selection.selects_all());
    match everywhere {
        _ if matching == all && all > 0 => Some(format!("Mimeo: the rule selects all {all} namespaces")),
        Some(i) => Some(format!(
            "Mimeo: spec.targets[{i}].namespaceSelector is empty: the rule selects {matching} of {all} namespaces"
        )),
        None if matching == 0 => Some("Mimeo: no namespace matches the rule now".into()),
        None => counts.then(|| format!("Mimeo: the rule selects {matching} of {all} namespaces")),
    }
}

fn losses(rule: &Rule, preview: &Preview) -> Option<String> {
    let deletes = rule.retention.when_unmatched == Retain::Delete && !rule.suspend;
    (deletes && preview.lost > 0).then(|| {
        format!("Mimeo: {} namespaces are selected no more; the rule's copies there are deleted", preview.lost)
    })
}

/// Copies know from their own marks that they are to stay without their rule, and whoever deletes it before these are written deletes
/// them.
pub(crate) fn untold_retention(rule: &Rule, before: Option<&Rule>) -> Option<String> {
    let retains = |rule: &Rule| rule.retention.when_rule_deleted == Retain::Retain;
    let untold = retains(rule) && before.is_some_and(|before| !retains(before));
    let when = if rule.suspend {
        "when suspend is lifted: before that, deleting the rule deletes them"
    } else {
        "now: deleting the rule before it is Ready again deletes those on which it isn't yet"
    };
    untold.then(|| format!("Mimeo: that copies stay when the rule is deleted is written on each of them {when}"))
}

fn contest(contest: &Contest) -> String {
    let Contest { other, kind, name, lost, .. } = contest;
    let winner = if *lost { "has it, and this rule reports RuleConflict" } else { "is younger, and yields" };
    // Last what may be long: the API server cuts a warning off.
    format!("Mimeo: {other} wants {kind} {name}, too; it {winner}; in {}", contest.places())
}

/// What other namespaces don't grant a tenant's rule with these sources, all it has now. Whether they exist makes no difference.
pub(crate) fn not_granted(app: &App, rule: &Rule, sources: &[SourceRef]) -> Vec<String> {
    let (lacks, more) = app.handle.look(|engine, _| engine.not_granted(rule, sources, GRANTS));
    let mut warnings: Vec<String> = lacks.iter().map(|lack| format!("Mimeo: {lack}")).collect();
    if more > 0 {
        warnings.push(format!("Mimeo: so it is with {more} more"));
    }
    warnings
}

/// How to grant what Mimeo's programs lack for the rule's kinds. What can't be found out in time isn't told.
pub(crate) async fn missing_rights(
    app: &App,
    needs: BTreeSet<ProgramRight>,
    reach: &Reach,
    deadline: Instant,
) -> Vec<String> {
    let questions = needs.into_iter().take(RIGHTS).map(|need| missing(app, need, deadline));
    let answers: Vec<Option<ProgramRight>> = stream::iter(questions).buffer_unordered(AT_ONCE).collect().await;
    own_rights::explain(&answers.into_iter().flatten().collect(), reach)
}

/// The right, if any of the program's users lacks it; in doubt they don't.
async fn missing(app: &App, need: ProgramRight, deadline: Instant) -> Option<ProgramRight> {
    for user in users(app, need.program) {
        match app.questions.may(&app.client, &user, &need.right, deadline).await {
            Ok(true) => {}
            Ok(false) => return Some(need),
            Err(error) => {
                debug!(user = user.name, right = %need.right, error = %Fault(&error), "cannot ask for a right");
            }
        }
    }
    None
}

fn users(app: &App, program: Program) -> Vec<User> {
    let own = &app.username;
    match program {
        Program::Webhook => vec![user(own)],
        // Whoever else is known as one of Mimeo's users.
        Program::Reconciler => app.mimeo_users.iter().filter(|user| *user != own).map(|name| user(name)).collect(),
    }
}

/// A user with the groups that the API server puts it in by its name.
fn user(name: &str) -> User {
    let mut groups = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        groups.push("system:serviceaccounts".to_owned());
        groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    User { name: name.to_owned(), groups, ..User::default() }
}
