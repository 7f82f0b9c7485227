//! `kubectl mimeo why NS/KIND/NAME`: why a copy exists, or why it is missing.

mod marks;
mod pods;
mod verdict;
mod written;

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_model::{
    kind::{GroupVersionKind, Resource},
    rule::Rule,
};
use mimeo_runtime::discovery::resource_path;
use serde::Serialize;

use self::{
    marks::{Change, Copy, changes, copy_of},
    verdict::{Answer, answers, left_behind, others},
    written::{EarlierChange, WriteEvent},
};
use crate::{
    connect::{ClusterFlags, Connected},
    kinds,
    names::ObjectName,
    output::{Format, age, line, print, quoted},
    picture::{Picture, Scope, as_source, sources},
    read::{Part, Reader, metadata},
    state::State,
};

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The object: NAMESPACE/KIND/NAME, or KIND/NAME in the namespace of -n
    #[arg(value_name = "NAMESPACE/KIND/NAME")]
    object: String,
}

/// The answer about one object.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Why {
    kind: String,
    namespace: String,
    name: String,
    /// `None`: it could not be read. The command doesn't look at pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<bool>,
    /// The rule that the object's marks name, if it is a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy: Option<Copy>,
    /// The other clients that have written the object.
    changed_by: Vec<Change>,
    /// One entry for each rule that concerns the object.
    rules: Vec<Answer>,
    /// Facts that could not be read, and hints.
    notes: Vec<String>,
}

/// The object that a user asks about.
struct Key<'a> {
    namespace: &'a str,
    name: &'a str,
    gvk: GroupVersionKind,
}

pub(crate) async fn run(args: WhyArgs, connected: &Connected, format: Format) -> Result<u8> {
    let object = ObjectName::parse(&args.object, &connected.namespace)?;
    let ObjectName {
        namespace,
        kind,
        name,
    } = object;
    let scope = Scope::One(namespace.to_owned());
    let picture = Picture::read(connected, scope).await?;
    let reader = connected.reader();
    if pods::means_pods(kind) {
        let (why, healthy) = pods::explain(&picture, &object);
        let now = reader.now();
        print(format, &why.for_cluster(&connected.flags), |why| {
            text(why, now)
        })?;
        return Ok(u8::from(!healthy));
    }
    let (gvk, resource) = kinds::find(&reader, &picture, kind).await?;
    let key = Key {
        namespace,
        name,
        gvk,
    };
    let mut notes: Vec<String> = picture.unread.sentences().cloned().collect();
    let (exists, meta) = match &resource {
        None => (Some(false), None),
        Some(resource) => match read(&reader, resource, &key).await {
            Ok(meta) => (Some(meta.is_some()), meta),
            Err(note) => {
                notes.push(note);
                (None, None)
            }
        },
    };
    let mut copy = meta.as_ref().and_then(copy_of);
    if let Some(copy) = &mut copy
        && let Some(written) = copy.written
    {
        let change = written::earlier_change(&reader, &picture, &key, copy, written).await;
        copy.earlier_change = change;
        copy.event = written::event(&reader, &key).await;
    }
    let mut why = explain(&picture, &key, exists, copy, notes);
    why.changed_by = meta.as_ref().map(changes).unwrap_or_default();
    // A copy that its rule created once may be gone. Then the answer has a next step.
    let correct = |rule: &Answer| rule.state == State::Synced && rule.fix.is_none();
    let healthy = why.rules.iter().any(correct);
    let now = reader.now();
    print(format, &why.for_cluster(&connected.flags), |why| {
        text(why, now)
    })?;
    Ok(u8::from(!healthy))
}

impl Why {
    /// The same answer, with commands for the cluster that the user named.
    fn for_cluster(mut self, cluster: &ClusterFlags) -> Self {
        for rule in &mut self.rules {
            rule.fix = rule.fix.take().map(|fix| fix.for_cluster(cluster));
        }
        for note in &mut self.notes {
            *note = cluster.in_commands(note);
        }
        self
    }
}

fn explain(
    picture: &Picture,
    key: &Key<'_>,
    exists: Option<bool>,
    copy: Option<Copy>,
    mut notes: Vec<String>,
) -> Why {
    let mut rules: Vec<Answer> = Vec::new();
    let namespace = picture.namespaces.get(key.namespace);
    let deleting = namespace.is_some_and(|namespace| namespace.deletion_timestamp.is_some());
    if deleting {
        notes.push(format!(
            "Namespace {} is being deleted. Mimeo writes nothing there.",
            key.namespace
        ));
    } else {
        let all = picture.rules.iter();
        rules.extend(all.flat_map(|(id, stored)| answers(picture, key, exists, id, stored)));
    }
    if namespace.is_none() {
        notes.push(format!("There is no namespace {}.", key.namespace));
    }
    let object = (key.namespace, &key.gvk, key.name);
    let feeds = picture.valid_rules();
    let feeds: Vec<&Rule> = feeds
        .filter(|rule| as_source(&sources(picture, rule), object).is_some())
        .collect();
    for rule in &feeds {
        notes.push(format!(
            "It is a source of {}, and never a copy of it: kubectl mimeo where {} {}",
            rule.id,
            key.gvk.kind,
            quoted(&format!("{}/{}", key.namespace, key.name))
        ));
    }
    // Annotations alone prove nothing: Mimeo leaves such an object alone.
    let own = copy.as_ref().filter(|copy| copy.owned_by_mimeo);
    if let Some(copy) = own.filter(|_| !deleting) {
        let own = |answer: &Answer| answer.rule == copy.rule;
        let wanted = |answer: &Answer| own(answer) && answer.state != State::NotSelected;
        if !rules.iter().any(wanted) {
            let why = rules.iter().find(|answer| own(answer));
            let why = why.map(|answer| answer.message.clone());
            rules.retain(|answer| !own(answer));
            rules.extend(left_behind(picture, key, copy, why));
        }
    }
    rules.sort_by_key(|answer| rank(&answer.state));
    if rules.is_empty() && feeds.is_empty() && !deleting {
        // Rules and sources that could not be read have notes of their own.
        let none = if picture.unread.is_empty() {
            "No rule makes"
        } else {
            "As far as you may read them, no rule makes"
        };
        notes.push(format!(
            "{none} a {} named {}.{}",
            key.gvk.kind,
            key.name,
            others(picture, key)
        ));
    }
    Why {
        kind: key.gvk.kind.to_string(),
        namespace: key.namespace.to_owned(),
        name: key.name.to_owned(),
        exists,
        copy,
        changed_by: Vec::new(),
        rules,
        notes,
    }
}

async fn read(
    reader: &Reader,
    resource: &Resource,
    key: &Key<'_>,
) -> Result<Option<ObjectMeta>, String> {
    let path = resource_path(resource, Some(key.namespace), Some(key.name));
    let read = reader.get(&path, Part::Metadata).await;
    match read {
        Ok(object) => Ok(object.as_ref().and_then(metadata)),
        Err(error) => Err(format!(
            "Can't read {} {}/{}: {error}.",
            key.gvk.kind, key.namespace, key.name
        )),
    }
}

/// The order of the answers: correct copies, then failing ones, then rules that don't select the
/// namespace.
fn rank(state: &State) -> u8 {
    match state {
        State::Synced => 0,
        State::NotSelected => 2,
        State::InvalidSpec => 3,
        _ => 1,
    }
}

fn text(why: &Why, now: Timestamp) -> String {
    let Why {
        kind,
        namespace,
        name,
        exists,
        copy,
        changed_by,
        rules,
        notes,
    } = why;
    let mut text = match (exists, copy) {
        (None, _) if kind == "Pod" => format!("Pods of namespace {namespace}\n"),
        (None, _) => format!("{kind} {namespace}/{name} can't be read.\n"),
        (Some(false), _) => format!("{kind} {namespace}/{name} does not exist.\n"),
        (Some(true), None) => {
            format!("{kind} {namespace}/{name} exists, and is no copy of Mimeo's.\n")
        }
        (Some(true), Some(copy)) if !copy.owned_by_mimeo => format!(
            "{kind} {namespace}/{name} has the annotations of a copy of {}, for {}.\n",
            copy.source, copy.rule
        ),
        (Some(true), Some(copy)) => format!(
            "{kind} {namespace}/{name} is a copy of {}, for {}.\n",
            copy.source, copy.rule
        ),
    };
    if let Some(copy) = copy {
        write_marks(&mut text, copy, now);
    }
    write_changes(&mut text, changed_by, copy.is_some(), now);
    for Answer {
        rule,
        source,
        state,
        message,
        fix,
    } in rules
    {
        // Writing to a String never fails.
        _ = writeln!(text, "\n{rule}: {state}");
        _ = writeln!(text, "  source  {}", line(source));
        _ = writeln!(text, "  why     {}", line(message));
        let fix = fix.iter().flat_map(|fix| [&fix.command, &fix.note]);
        for (index, part) in fix.flatten().enumerate() {
            let head = if index == 0 { "fix" } else { "" };
            _ = writeln!(text, "  {head:<8}{}", line(part));
        }
    }
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        _ = writeln!(text, "{}", line(note));
    }
    text
}

/// When Mimeo wrote the copy, and what led to it.
fn write_marks(text: &mut String, copy: &Copy, now: Timestamp) {
    if !copy.owned_by_mimeo {
        *text += "  But Mimeo owns no field of it: another client wrote them, or cleared managedFields.\n";
    }
    let Some(written) = copy.written else {
        return;
    };
    // The API server sets both times in one request, to the second.
    let created = copy
        .created
        .is_some_and(|created| written.duration_since(created).as_secs() <= 1);
    let what = if created { "Created" } else { "Last written" };
    let before = copy.earlier_change.as_ref().map(|change| {
        let EarlierChange {
            object,
            manager,
            time,
        } = change;
        let ago = age(*time, now);
        format!(" Before that, {manager:?} changed the {object} {ago} ago.")
    });
    // Writing to a String never fails.
    _ = writeln!(
        text,
        "  {what} by Mimeo {} ago.{}",
        age(written, now),
        before.unwrap_or_default()
    );
    if let Some(WriteEvent { time, reason, note }) = &copy.event {
        let ago = age(*time, now);
        _ = writeln!(text, "  Event {reason} {ago} ago: {}", line(note));
    }
}

/// Which other clients have written the object, and when. Of a copy, also their fields.
fn write_changes(text: &mut String, changes: &[Change], is_copy: bool, now: Timestamp) {
    for Change {
        manager,
        time,
        fields,
    } in changes
    {
        let ago = time.map_or_else(String::new, |time| format!(" {} ago", age(time, now)));
        // The keys of an object may contain line breaks.
        let fields = line(&fields.join(", "));
        // Writing to a String never fails.
        _ = if is_copy {
            writeln!(text, "  Changed by {manager:?}{ago}: {fields}")
        } else {
            writeln!(text, "  Written by {manager:?}{ago}.")
        };
    }
}
