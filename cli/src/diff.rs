//! `kubectl mimeo diff -f ...`: the changes of copies that applying files would lead to.
//!
//! The engine decides about the cluster as it is, and with the objects of the files in place of the
//! stored ones. The difference is the work of the files.

mod effects;
mod fields;
mod permissions;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Result, bail};
use clap::Args;
use futures::{StreamExt as _, stream};
use mimeo_model::{plural, right::Right};
use mimeo_runtime::access::may_self;
use serde::Serialize;

use self::{
    effects::{Action, CopyKey, Effect, Effects, Failure},
    fields::FieldChange,
    permissions::Permissions,
};
use crate::{
    connect::Connected,
    files::{FileArgs, Files},
    output::{Format, line, print},
    picture::{Gap, Overlay, Picture, Scope},
    read::{AT_ONCE, Reader},
};

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: FileArgs,
}

/// The explanation under `--help`.
pub(crate) const HELP: &str = "\
The files hold rules, grants, sources and namespaces. The command only reads from the API server. It
treats the files as kubectl apply does; fields that the API server adds to a source of another kind
than Secret and ConfigMap stay as they are stored. The output has the lengths of values, and no
values.

If the files resume a suspended rule, Mimeo also undoes edits of its copies. Only the API server can
tell which: see status.plan of the rule.

A user who may not list namespaces gets an answer about the namespace of -n alone.

Exit code 0: the files change no copy. 1: they change copies, or a rule fails. 2: an error.";

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diff {
    changes: Vec<Change>,
    /// Failures that the cluster does not have yet.
    failures: Vec<Failure>,
    permissions: Permissions,
    /// The number of changes that Mimeo makes without the files, too.
    pending_anyway: usize,
    /// The number of changes that Mimeo would make now, and not after the files are applied.
    no_longer_pending: usize,
    /// Facts that could not be read.
    notes: Vec<String>,
}

/// One copy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    #[serde(flatten)]
    copy: CopyKey,
    action: Action,
    /// The engine's word for the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    fields: Vec<FieldChange>,
}

pub(crate) async fn run(args: DiffArgs, connected: &Connected, format: Format) -> Result<u8> {
    let files = Files::read(&args.files, Some(&connected.namespace))?;
    let scope = scope(connected).await;
    // Both pictures see the same answers.
    let reader = connected.reader().keeping();
    let read =
        async |overlay| Picture::read_with(connected, reader.clone(), scope.clone(), overlay).await;
    let before = effects::of(&mut read(Overlay::default()).await?);
    let mut picture = read(Overlay::new(files.clone())).await?;
    let after = effects::of(&mut picture);
    let permissions = permissions::missing(connected, &picture, &files).await;
    let diff = compare(connected, &picture, &before, after, permissions).await;
    print(format, &diff, text)?;
    if diff.is_empty() && picture.unread.has(&Gap::Copies) {
        bail!("some copies could not be read, so there may be differences");
    }
    Ok(u8::from(!diff.is_empty()))
}

/// All namespaces, or the one of -n for a user who may not list them.
async fn scope(connected: &Connected) -> Scope {
    let list = Right {
        verb: "list",
        group: "".into(),
        resource: "namespaces".into(),
        namespace: None,
        name: None,
    };
    match may_self(&connected.client, &list, connected.timeout).await {
        Ok(false) => Scope::One(connected.namespace.clone()),
        Ok(true) | Err(_) => Scope::All,
    }
}

impl Diff {
    fn is_empty(&self) -> bool {
        let Self {
            changes,
            failures,
            permissions,
            no_longer_pending,
            pending_anyway: _,
            notes: _,
        } = self;
        changes.is_empty()
            && failures.is_empty()
            && permissions.none_missing()
            && *no_longer_pending == 0
    }
}

/// Takes the effects of the cluster as it is from those with the files.
async fn compare(
    connected: &Connected,
    picture: &Picture,
    before: &Effects,
    after: Effects,
    permissions: Permissions,
) -> Diff {
    let gone = before.changes.keys();
    let no_longer_pending = gone.filter(|key| !after.changes.contains_key(*key)).count();
    let (anyway, new): (Vec<_>, Vec<_>) = after
        .changes
        .into_iter()
        .partition(|(key, effect)| before.changes.get(key).is_some_and(|old| old.same(effect)));
    let mut notes: BTreeSet<String> = picture.unread.sentences().cloned().collect();
    let reader = connected.reader();
    let mut described = stream::iter(new)
        .map(|(copy, effect)| describe(&reader, copy, effect))
        .buffered(AT_ONCE);
    let mut changes = Vec::new();
    while let Some((change, note)) = described.next().await {
        changes.push(change);
        notes.extend(note);
    }
    drop(described);
    // The message of a condition changes with each source and each grant that is missing.
    let new = |failure: &Failure| !before.failures.contains(failure);
    Diff {
        changes,
        failures: after.failures.into_iter().filter(new).collect(),
        permissions,
        pending_anyway: anyway.len(),
        no_longer_pending,
        notes: notes.into_iter().collect(),
    }
}

async fn describe(reader: &Reader, copy: CopyKey, effect: Effect) -> (Change, Option<String>) {
    let (fields, note) = match &effect.request {
        Some(request) => fields::of(reader, request).await,
        None => (Vec::new(), None),
    };
    let why = effect
        .request
        .and_then(|request| Some(request.why?.to_string()));
    let change = Change {
        copy,
        action: effect.action,
        why,
        fields,
    };
    (change, note)
}

fn text(diff: &Diff) -> String {
    let Diff {
        changes,
        failures,
        permissions,
        pending_anyway,
        no_longer_pending,
        notes,
    } = diff;
    let mut text = String::new();
    write_changes(&mut text, changes);
    if changes.is_empty() {
        text.push_str(if notes.is_empty() {
            "The files change no copy.\n"
        } else {
            "The files change no copy, as far as the cluster could be read.\n"
        });
    }
    write_failures(&mut text, failures);
    permissions.write(&mut text);
    if *no_longer_pending > 0 {
        _ = writeln!(
            text,
            "Mimeo would make {} now, and no longer makes them with these files.",
            changes_are(*no_longer_pending)
        );
    }
    if *pending_anyway > 0 {
        _ = writeln!(
            text,
            "Mimeo makes {} without these files, too.",
            changes_are(*pending_anyway)
        );
    }
    for note in notes {
        _ = writeln!(text, "{}", line(note));
    }
    text
}

/// Writes one line for equal changes in several namespaces.
fn write_changes(text: &mut String, changes: &[Change]) {
    type Alike<'a> = (Action, [&'a str; 3], Option<&'a str>, &'a [FieldChange]);
    let mut groups: BTreeMap<Alike<'_>, Vec<&str>> = BTreeMap::new();
    for Change {
        copy,
        action,
        why,
        fields,
    } in changes
    {
        let why = why.as_deref().filter(|_| *action != Action::Create);
        let what = [&*copy.rule, &*copy.kind, &*copy.name];
        let group = (*action, what, why, &**fields);
        groups.entry(group).or_default().push(&copy.namespace);
    }
    for ((action, [rule, kind, name], why, fields), namespaces) in groups {
        let why = match action {
            Action::HeldDelete => Some("so many at once that a person must confirm it"),
            _ => why,
        };
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        let places = places(&namespaces);
        // Writing to a String never fails.
        _ = writeln!(text, "{action} {kind} {name} of {rule} in {places}{why}");
        for field in fields {
            // The keys of an object may contain line breaks.
            _ = writeln!(text, "  {}", line(&field.to_string()));
        }
    }
}

/// Writes one line for equal failures in several namespaces.
fn write_failures(text: &mut String, failures: &[Failure]) {
    let mut groups: BTreeMap<Failure, Vec<&str>> = BTreeMap::new();
    for failure in failures {
        let mut alike = failure.clone();
        let namespace = alike.namespace.take();
        let namespaces = groups.entry(alike).or_default();
        namespaces.extend(namespace.and(failure.namespace.as_deref()));
    }
    for (failure, namespaces) in groups {
        let Failure {
            rule,
            namespace: _,
            kind,
            name,
            reason,
            message,
        } = failure;
        _ = write!(text, "fail {reason}: {rule}: ");
        if let (Some(kind), Some(name)) = (kind, name) {
            _ = write!(text, "{kind} {name} in {}: ", places(&namespaces));
        }
        _ = writeln!(text, "{}", line(&message));
    }
}

fn changes_are(count: usize) -> String {
    match count {
        1 => "1 change".into(),
        count => format!("{count} changes"),
    }
}

fn places(namespaces: &[&str]) -> String {
    let named = plural::first_items(namespaces, ", ");
    match namespaces.len() {
        0 | 1 => named,
        count => format!("{count} namespaces: {named}"),
    }
}
