//! `kubectl mimeo why NS/KIND/NAME`: why a copy exists, or why it is missing.

mod marks;
mod pods;
mod verdict;

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
    marks::{Change, Copy, copy_of},
    verdict::{Answer, answers, left_behind, others},
};
use crate::{
    connect::{ClusterFlags, Connected},
    kinds,
    names::ObjectName,
    output::{Format, age, line, print},
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
    if pods::means_pods(kind) {
        let (why, healthy) = pods::explain(&picture, &object);
        print(format, &why.on(&connected.flags), text)?;
        return Ok(u8::from(!healthy));
    }
    let reader = connected.reader();
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
    let copy = meta.as_ref().and_then(copy_of);
    let why = explain(&picture, &key, exists, copy, notes);
    let healthy = why.rules.iter().any(|rule| rule.state == State::Synced);
    print(format, &why.on(&connected.flags), text)?;
    Ok(u8::from(!healthy))
}

impl Why {
    /// The same answer, with commands for the cluster that the user named.
    fn on(mut self, cluster: &ClusterFlags) -> Self {
        for rule in &mut self.rules {
            rule.fix = rule.fix.take().map(|fix| fix.on(cluster));
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
        rules.extend(all.flat_map(|(id, stored)| answers(picture, key, id, stored)));
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
            "It is a source of {}, and never a copy of it: kubectl mimeo where {} {}/{}",
            rule.id, key.gvk.kind, key.namespace, key.name
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
        notes.push(format!(
            "No rule makes a {} named {}.{}",
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

fn text(why: &Why) -> String {
    let Why {
        kind,
        namespace,
        name,
        exists,
        copy,
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
        write_marks(&mut text, copy);
    }
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

/// Who wrote the copy, and when.
fn write_marks(text: &mut String, copy: &Copy) {
    let now = Timestamp::now();
    if !copy.owned_by_mimeo {
        *text += "  But Mimeo owns no field of it: another client wrote them, or cleared managedFields.\n";
    }
    if let Some(written) = copy.written {
        _ = writeln!(text, "  Last written by Mimeo {} ago.", age(written, now));
    }
    for Change {
        manager,
        time,
        fields,
    } in &copy.changed_by
    {
        let ago = time.map_or_else(String::new, |time| format!(" {} ago", age(time, now)));
        // The keys of an object may contain line breaks.
        let fields = line(&fields.join(", "));
        _ = writeln!(text, "  Changed by {manager:?}{ago}: {fields}");
    }
}
