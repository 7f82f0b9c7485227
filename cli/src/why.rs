//! `kubectl mimeo why NS/KIND/NAME`: why a copy is there, or why it is not.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mimeo_api::{ClusterReplicationStatus, CopyFailure};
use mimeo_engine::{CopyView, State};
use mimeo_model::{
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    names::{self, MANAGER, SOURCE},
    outcome::FailureReason,
    rule::Rule,
    selection::{Labels, Mismatch},
    source::SourceRef,
    template::Place,
};
use mimeo_runtime::discovery::resource_path;
use serde::Serialize;
use serde_json::Value;

use crate::{
    connect::Connected,
    output::{Format, age, print},
    picture::{Picture, Scope, Stored, metadata},
    read::{Part, Reader},
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
    exists: bool,
    /// The rule that the object's marks name, if it is a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy: Option<Copy>,
    /// One entry for each rule that concerns the object.
    rules: Vec<Answer>,
    /// What else a reader must know: facts that could not be read, and hints.
    notes: Vec<String>,
}

/// An existing copy.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Copy {
    rule: String,
    source: String,
    /// True if `managedFields` has Mimeo's entry. Without it, the labels and annotations prove
    /// nothing.
    owned_by_mimeo: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Timestamp>,
    /// The field managers of others, with the time of their last change.
    changed_by: Vec<Change>,
}

#[derive(Debug, Serialize)]
struct Change {
    manager: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
    fields: Vec<String>,
}

/// What one rule does with the object.
#[derive(Debug, Serialize)]
struct Answer {
    rule: String,
    source: String,
    /// `Synced`, `Pending`, or the reason why there is no correct copy.
    state: String,
    /// The reason in a sentence.
    message: String,
    /// What a person can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// The object that a user asks about.
struct Key<'a> {
    namespace: &'a str,
    name: &'a str,
    gvk: GroupVersionKind,
}

pub(crate) async fn run(args: WhyArgs, connected: &Connected, format: Format) -> Result<u8> {
    let parts: Vec<&str> = args.object.split('/').collect();
    let (namespace, kind, name) = match *parts {
        [namespace, kind, name] => (namespace, kind, name),
        [kind, name] => (connected.namespace.as_str(), kind, name),
        _ => bail!(
            "{} is no object: write NAMESPACE/KIND/NAME, for example team-blue/secret/registry",
            args.object
        ),
    };
    let scope = Scope {
        namespace: Some(namespace.to_owned()),
        ..Scope::default()
    };
    let mut picture = Picture::read(connected, scope).await?;
    let gvk = kind_of(&picture, kind)?;
    let key = Key {
        namespace,
        name,
        gvk,
    };
    let reader = Reader::new(connected.client.clone(), connected.timeout);
    let why = explain(&mut picture, &key, &reader).await;
    let healthy = why.rules.iter().any(|rule| rule.state == "Synced");
    print(format, &why, text)?;
    Ok(u8::from(!healthy))
}

/// Finds the kind that a user means: its name, its plural, or one of both with the group.
fn kind_of(picture: &Picture, text: &str) -> Result<GroupVersionKind> {
    let rules = picture
        .rules
        .values()
        .filter_map(|stored| stored.rule.as_ref().ok());
    let mut known: Vec<&GroupVersionKind> = rules.flat_map(|rule| &rule.kinds).collect();
    known.extend(picture.kinds.keys());
    let wanted = text.to_lowercase();
    let wanted = if wanted == "cm" {
        "configmap".to_owned()
    } else {
        wanted
    };
    let means = |gvk: &GroupVersionKind| {
        let kind = gvk.kind.to_lowercase();
        let plural = picture.kinds.get(gvk).and_then(Option::as_ref);
        let names = [
            Some(kind.as_str()),
            plural.map(|resource| &*resource.plural),
        ];
        names
            .into_iter()
            .flatten()
            .any(|name| wanted == name || wanted == format!("{name}.{}", gvk.group))
    };
    if let Some(gvk) = known.iter().find(|gvk| means(gvk)) {
        return Ok((*gvk).clone());
    }
    for (kind, plural) in [("Secret", "secrets"), ("ConfigMap", "configmaps")] {
        if wanted == kind.to_lowercase() || wanted == plural {
            return GroupVersionKind::parse("v1", kind).map_err(anyhow::Error::msg);
        }
    }
    let mut kinds: Vec<String> = known
        .iter()
        .map(|gvk| gvk.group_kind().to_string())
        .collect();
    kinds.sort();
    kinds.dedup();
    let kinds = if kinds.is_empty() {
        "none".to_owned()
    } else {
        kinds.join(", ")
    };
    bail!("no rule copies objects of kind {text:?}; the kinds that rules copy: {kinds}")
}

async fn explain(picture: &mut Picture, key: &Key<'_>, reader: &Reader) -> Why {
    let mut notes: Vec<String> = picture.unread.iter().cloned().collect();
    let resource = picture.kinds.get(&key.gvk).cloned().flatten();
    let object = match &resource {
        None => None,
        Some(resource) => match read(reader, resource, key).await {
            Ok(object) => object,
            Err(note) => {
                notes.push(note);
                None
            }
        },
    };
    let copy = object.as_ref().and_then(copy_of);
    if let Some(namespace) = picture.namespaces.get(key.namespace) {
        if namespace.deletion_timestamp.is_some() {
            notes.push(format!(
                "Namespace {} is being deleted. Mimeo writes nothing there.",
                key.namespace
            ));
        }
    } else {
        notes.push(format!("There is no namespace {}.", key.namespace));
    }
    let statuses = statuses(picture);
    let mut rules = Vec::new();
    for (id, stored) in &picture.rules {
        let status = statuses
            .iter()
            .find(|(rule, _)| rule == id)
            .map(|(_, status)| status);
        let status = status.or(stored.status.as_ref());
        rules.extend(answers(picture, key, id, stored, status));
    }
    rules.sort_by_key(|answer| rank(&answer.state));
    if let Some(copy) = &copy
        && !rules.iter().any(|answer| answer.rule == copy.rule)
    {
        rules.extend(left_behind(picture, key, copy));
    }
    if rules.is_empty() {
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
        exists: object.is_some(),
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

/// The statuses that the engine would write now, where they differ from the stored ones.
fn statuses(picture: &mut Picture) -> Vec<(RuleId, ClusterReplicationStatus)> {
    let mut all = Vec::new();
    let (engine, now) = picture.snapshot.engine();
    // Each call counts a bounded number of copies.
    loop {
        let updates = engine.statuses(now, Timestamp::now());
        let ended = updates.is_empty() && !engine.counts();
        all.extend(updates.into_iter().map(|update| (update.id, update.status)));
        if ended {
            return all;
        }
    }
}

/// The marks of a copy. `None`: the object has none.
fn copy_of(meta: &ObjectMeta) -> Option<Copy> {
    let annotation = |key| meta.annotations.as_ref().and_then(|all| all.get(key));
    let rule = annotation(names::RULE)?.clone();
    let managers = meta.managed_fields.iter().flatten();
    let own = |manager: &Option<String>| manager.as_deref() == Some(MANAGER);
    let mut written = None;
    let mut changed_by = Vec::new();
    let mut owned_by_mimeo = false;
    for entry in managers {
        let time = entry.time.as_ref().map(|time| time.0);
        if own(&entry.manager) {
            owned_by_mimeo = true;
            written = written.max(time);
            continue;
        }
        let fields = entry.fields_v1.as_ref().map(|fields| paths(&fields.0));
        changed_by.push(Change {
            manager: entry.manager.clone().unwrap_or_default(),
            time,
            fields: fields.unwrap_or_default(),
        });
    }
    Some(Copy {
        rule,
        source: annotation(SOURCE).cloned().unwrap_or_default(),
        owned_by_mimeo,
        written,
        changed_by,
    })
}

/// The first fields of a field set, by path. Keys of data are shown, values are in no field set.
fn paths(fields: &Value) -> Vec<String> {
    fn walk(fields: &Value, path: &str, found: &mut Vec<String>) {
        let children: Vec<_> = fields.as_object().into_iter().flatten().collect();
        let named = children
            .iter()
            .filter_map(|(key, below)| Some((key.strip_prefix("f:")?, below)));
        let mut leaf = true;
        for (key, below) in named {
            leaf = false;
            let path = if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            };
            walk(below, &path, found);
        }
        if leaf && !path.is_empty() && found.len() < 10 {
            found.push(path.to_owned());
        }
    }
    let mut found = Vec::new();
    walk(fields, "", &mut found);
    found
}

/// The sources of a rule: named, inline, and found by selectors.
fn sources(picture: &Picture, rule: &Rule) -> Vec<SourceRef> {
    let mut sources = rule.sources.clone();
    for selector in &rule.selectors {
        let names = picture.selected.get(selector).into_iter().flatten();
        sources.extend(names.map(|name| selector.source(name.as_str())));
    }
    sources
}

/// What a rule does with the object: one answer for each source whose copy would have its name.
fn answers(
    picture: &Picture,
    key: &Key<'_>,
    id: &RuleId,
    stored: &Stored,
    status: Option<&ClusterReplicationStatus>,
) -> Vec<Answer> {
    let rule = match &stored.rule {
        Ok(rule) => rule,
        Err(refused) => {
            // Its copies are unknown, but a spec with the name is worth a look.
            let spec = stored.object["spec"].to_string();
            let refusals = refused.refusals.iter().map(ToString::to_string);
            let answer = Answer {
                rule: id.to_string(),
                source: refused.source.clone().unwrap_or_default(),
                state: "InvalidSpec".into(),
                message: refusals.collect::<Vec<_>>().join("; "),
                fix: Some(format!("kubectl edit {}", object(id))),
            };
            return spec
                .contains(key.name)
                .then_some(answer)
                .into_iter()
                .collect();
        }
    };
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let place = Place {
        name: key.namespace,
        labels: &labels,
    };
    let mut answers = Vec::new();
    for source in sources(picture, rule) {
        if source.gvk.group_kind() != key.gvk.group_kind() {
            continue;
        }
        let named = rule
            .targets
            .iter()
            .filter(|target| target.copy_name(&source).text_at(place) == key.name);
        let mut mismatches = Vec::new();
        let mut selected = false;
        for target in named {
            match target.selection.mismatch(key.namespace, &labels) {
                Some(mismatch) => mismatches.push(mismatch),
                None => selected = true,
            }
        }
        if selected {
            answers.push(wanted(picture, key, rule, &source, status));
        } else if let Some(mismatch) = mismatches.into_iter().next() {
            answers.push(not_selected(key, id, &source, mismatch));
        }
    }
    answers
}

fn not_selected(key: &Key<'_>, id: &RuleId, source: &SourceRef, mismatch: Mismatch) -> Answer {
    let namespace = key.namespace;
    let fix = match mismatch.label {
        Some(label) => format!("kubectl label namespace {namespace} {label}"),
        None => format!("kubectl edit {}   (spec.targets, spec.exclude)", object(id)),
    };
    Answer {
        rule: id.to_string(),
        source: source.to_string(),
        state: "NotSelected".into(),
        message: format!(
            "the rule doesn't select namespace {namespace}: {}",
            mismatch.why
        ),
        fix: Some(fix),
    }
}

/// The state of a copy that the rule selects.
fn wanted(
    picture: &Picture,
    key: &Key<'_>,
    rule: &Rule,
    source: &SourceRef,
    status: Option<&ClusterReplicationStatus>,
) -> Answer {
    let (engine, now) = picture.snapshot.decided();
    let copies = engine.copies(&rule.id, key.namespace, now, Timestamp::now());
    let same = |copy: &&CopyView| *copy.kind == *key.gvk.kind && copy.name == key.name;
    let copy = copies.iter().find(same);
    let (state, message) = state(picture, key, rule, source, copy, status);
    let fix = fix(&state, key, rule, source);
    Answer {
        rule: rule.id.to_string(),
        source: source.to_string(),
        state,
        message,
        fix,
    }
}

fn state(
    picture: &Picture,
    key: &Key<'_>,
    rule: &Rule,
    source: &SourceRef,
    copy: Option<&CopyView>,
    status: Option<&ClusterReplicationStatus>,
) -> (String, String) {
    let known = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    if rule.suspend {
        return known(
            "Suspended",
            "the rule is suspended: Mimeo writes and deletes nothing for it",
        );
    }
    if let Some(copy) = copy {
        match copy.state {
            State::Failed => {
                let reason = copy.reason.clone().unwrap_or_default();
                return (reason, copy.message.clone().unwrap_or_default());
            }
            State::Synced => return known("Synced", "the copy is as the rule says"),
            State::Held => return known("DeletionHeld", "the copy's deletion waits for a person"),
            State::Pending | State::Suspended => {}
        }
    }
    // The reconciler has tried, and the API server has refused.
    if let Some(failure) = recorded(status, key) {
        return (failure.reason.clone(), failure.message.clone());
    }
    let conditions = status.into_iter().flat_map(|status| &status.conditions);
    for condition in conditions.filter(|condition| condition.status == "False") {
        let causes = ["SourcesFound", "Authorized"];
        if causes.contains(&&*condition.type_) && condition.reason != "Pending" {
            return (condition.reason.clone(), condition.message.clone());
        }
    }
    if picture.hidden.contains(source) {
        return known(
            "Unknown",
            "you may not read the source, so the state of its copy is unknown",
        );
    }
    match copy.and_then(|copy| copy.reason.as_deref()) {
        Some("Create") => known("Pending", "Mimeo has to create the copy"),
        Some("Update") => known("Pending", "Mimeo has to update the copy"),
        Some("Delete") => known("Pending", "Mimeo has to delete the copy"),
        _ => known("Pending", "Mimeo has not decided about the copy yet"),
    }
}

/// The failure that the rule's status names for this copy.
fn recorded<'a>(
    status: Option<&'a ClusterReplicationStatus>,
    key: &Key<'_>,
) -> Option<&'a CopyFailure> {
    let failures = &status?.failures;
    failures.iter().find(|failure| {
        failure.kind == *key.gvk.kind
            && failure.namespace == key.namespace
            && failure.name == key.name
    })
}

/// What a person can do about a state.
fn fix(state: &str, key: &Key<'_>, rule: &Rule, source: &SourceRef) -> Option<String> {
    let Key {
        namespace,
        name,
        gvk,
    } = key;
    let kind = gvk.kind.to_lowercase();
    let rule = object(&rule.id);
    Some(match state {
        "Synced" | "Unknown" => return None,
        "Suspended" => {
            format!("kubectl patch {rule} --type=merge -p '{{\"spec\":{{\"suspend\":false}}}}'")
        }
        "SourceNotFound" | "InGracePeriod" => format!(
            "create the source, or correct spec.sources; is it there?  kubectl -n {} get {} {}",
            source.namespace,
            source.gvk.kind.to_lowercase(),
            source.name
        ),
        "KindNotServed" => format!(
            "install the CRD of {}, or correct apiVersion and kind in spec.sources",
            source.gvk
        ),
        "SourceRefused" => format!("kubectl edit {rule}   (spec.sources, or transform.type)"),
        "NotGranted" => format!(
            "kubectl mimeo grant {rule}   prints the ReplicationGrant for the owner of the other namespace"
        ),
        "ControllerForbidden" | "Forbidden" => {
            "kubectl mimeo check   prints the permission that Mimeo lacks".into()
        }
        "DeletionHeld" => format!("kubectl mimeo held; kubectl mimeo confirm {rule}"),
        "Conflict" => format!(
            "kubectl -n {namespace} get {kind} {name} -o yaml --show-managed-fields   shows whose it is; then delete it, or set copyName or conflictPolicy in {rule}"
        ),
        "QuotaExceeded" => format!("kubectl -n {namespace} describe resourcequota"),
        "VariableUnset" => format!(
            "kubectl label namespace {namespace} KEY=VALUE   with the label that the message names"
        ),
        "Pending" => {
            "kubectl mimeo check   tells whether Mimeo runs; if it does, wait some seconds".into()
        }
        other => FailureReason::ALL
            .iter()
            .find(|reason| reason.as_str() == other)?
            .advice()
            .to_owned(),
    })
}

/// A copy that no rule wants, as its marks tell.
fn left_behind(picture: &Picture, key: &Key<'_>, copy: &Copy) -> Option<Answer> {
    let id: RuleId = copy.rule.parse().ok()?;
    let rule = picture.rules.get(&id);
    let (engine, now) = picture.snapshot.decided();
    let copies = engine.copies(&id, key.namespace, now, Timestamp::now());
    let view = copies
        .iter()
        .find(|view| *view.kind == *key.gvk.kind && view.name == key.name);
    let (state, message, fix) = match (rule, view.map(|view| view.state)) {
        (None, _) => (
            "RuleDeleted",
            "the rule that wrote the copy no longer exists. Mimeo deletes the copy, unless the rule retained it or its deletion is held",
            Some("kubectl mimeo held".to_owned()),
        ),
        (Some(_), Some(State::Held)) => (
            "DeletionHeld",
            "the rule no longer wants the copy, and its deletion waits for a person",
            Some(format!(
                "kubectl mimeo held; kubectl mimeo confirm {}",
                object(&id)
            )),
        ),
        (Some(_), Some(_)) => (
            "Unwanted",
            "the rule no longer wants the copy. Mimeo deletes it",
            None,
        ),
        (Some(_), None) => (
            "Retained",
            "the rule no longer wants the copy, and its retentionPolicy leaves it behind",
            Some(format!(
                "kubectl -n {} delete {} {}   if it isn't needed",
                key.namespace,
                key.gvk.kind.to_lowercase(),
                key.name
            )),
        ),
    };
    Some(Answer {
        rule: copy.rule.clone(),
        source: copy.source.clone(),
        state: state.into(),
        message: message.into(),
        fix,
    })
}

/// The names that rules do make in the namespace, for a user who misspelt one.
fn others(picture: &Picture, key: &Key<'_>) -> String {
    let labels = picture.labels(key.namespace).unwrap_or_default();
    let mut found = Vec::new();
    for (id, stored) in &picture.rules {
        let Ok(rule) = &stored.rule else { continue };
        for source in sources(picture, rule) {
            if source.gvk.group_kind() == key.gvk.group_kind() {
                found.extend(
                    names_of(rule, &source, key.namespace, &labels)
                        .map(|name| format!("{name} ({id})")),
                );
            }
        }
    }
    found.sort();
    found.truncate(5);
    if found.is_empty() {
        return String::new();
    }
    format!(" In this namespace rules make: {}.", found.join(", "))
}

fn names_of<'a>(
    rule: &'a Rule,
    source: &'a SourceRef,
    namespace: &'a str,
    labels: &'a Labels,
) -> impl Iterator<Item = String> + 'a {
    let place = Place {
        name: namespace,
        labels,
    };
    let targets = rule.targets.iter();
    let matching = targets.filter(move |target| target.selection.matches(namespace, labels));
    matching.map(move |target| target.copy_name(source).text_at(place))
}

/// A rule as an argument of kubectl.
pub(crate) fn object(id: &RuleId) -> String {
    match (&id.kind, &id.namespace) {
        (RuleKind::Replication, Some(namespace)) => {
            format!("-n {namespace} replication/{}", id.name)
        }
        _ => format!("clusterreplication/{}", id.name),
    }
}

/// The order of the answers: what is there, then what could be there, then what isn't selected.
fn rank(state: &str) -> u8 {
    match state {
        "Synced" => 0,
        "NotSelected" => 2,
        "InvalidSpec" => 3,
        _ => 1,
    }
}

fn text(why: &Why) -> String {
    let now = Timestamp::now();
    let mut text = String::new();
    let Why {
        kind,
        namespace,
        name,
        exists,
        copy,
        rules,
        notes,
    } = why;
    // Writing to a String never fails.
    _ = match (exists, copy) {
        (false, _) => writeln!(text, "{kind} {namespace}/{name} does not exist."),
        (true, None) => writeln!(
            text,
            "{kind} {namespace}/{name} exists, and is no copy of Mimeo's."
        ),
        (true, Some(copy)) => writeln!(
            text,
            "{kind} {namespace}/{name} is a copy of {}, for {}.",
            copy.source, copy.rule
        ),
    };
    if let Some(copy) = copy {
        if !copy.owned_by_mimeo {
            _ = writeln!(
                text,
                "  Mimeo owns no field of it: its labels and annotations are not Mimeo's work, or managedFields was cleared."
            );
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
            _ = writeln!(text, "  Changed by {manager:?}{ago}: {}", fields.join(", "));
        }
    }
    for Answer {
        rule,
        source,
        state,
        message,
        fix,
    } in rules
    {
        _ = writeln!(text, "\n{rule}: {state}");
        _ = writeln!(text, "  source  {source}");
        _ = writeln!(text, "  why     {message}");
        if let Some(fix) = fix {
            _ = writeln!(text, "  fix     {fix}");
        }
    }
    if !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        _ = writeln!(text, "{note}");
    }
    text
}
