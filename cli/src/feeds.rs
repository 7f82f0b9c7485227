//! `kubectl mimeo where KIND NAMESPACE/NAME`: the copies of a source, and the effect of its deletion.

use anyhow::Result;
use clap::Args;
use mimeo_model::{
    choices::{Retain, Strategy},
    rule::Rule,
    selection::Place,
    source::SourceRef,
};
use mimeo_runtime::discovery::resource_path;
use serde::Serialize;

use crate::{
    connect::Connected,
    kinds,
    names::ObjectName,
    output::{Cell, Format, line, print, table},
    picture::{Picture, Scope, as_source, copies, sources},
    read::Part,
    state::{State, state},
};

#[derive(Debug, Args)]
pub(crate) struct WhereArgs {
    /// The source: KIND NAMESPACE/NAME, or NAMESPACE/KIND/NAME
    #[arg(value_name = "SOURCE", num_args = 1..=2, required = true)]
    source: Vec<String>,
}

/// A source, and the copies that rules make of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Feeds {
    source: String,
    /// `None`: it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<bool>,
    rules: Vec<Fed>,
    /// Facts that could not be read.
    notes: Vec<String>,
}

/// The copies that one rule makes of the source.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fed {
    rule: String,
    /// The fate of the copies if the source is deleted.
    when_deleted: String,
    copies: Vec<FedCopy>,
}

#[derive(Debug, Serialize)]
struct FedCopy {
    namespace: String,
    name: String,
    state: State,
}

pub(crate) async fn run(args: WhereArgs, connected: &Connected, format: Format) -> Result<u8> {
    let named = match &args.source[..] {
        [kind, name] => match name.split_once('/') {
            Some((namespace, name)) => format!("{namespace}/{kind}/{name}"),
            None => format!("{kind}/{name}"),
        },
        whole => whole.concat(),
    };
    let object = ObjectName::parse(&named, &connected.namespace)?;
    let picture = Picture::read(connected, Scope::All).await?;
    let reader = connected.reader();
    let (gvk, resource) = kinds::find(&reader, &picture, object.kind).await?;
    let source = SourceRef::named(gvk, object.namespace, object.name);
    let mut notes: Vec<String> = picture.unread.sentences().cloned().collect();
    let exists = match resource {
        None => Some(false),
        Some(resource) => {
            let path = resource_path(&resource, Some(&source.namespace), Some(&source.name));
            let object = reader.get(&path, Part::Metadata).await;
            if let Err(error) = &object {
                notes.push(format!("Can't read {source}: {error}."));
            }
            object.ok().map(|object| object.is_some())
        }
    };
    let feeds = Feeds {
        source: source.to_string(),
        exists,
        rules: fed(&picture, &source),
        notes,
    };
    print(format, &feeds, text)?;
    Ok(u8::from(feeds.rules.is_empty()))
}

/// The rules that have the source, and their copies of it.
fn fed(picture: &Picture, source: &SourceRef) -> Vec<Fed> {
    let mut rules = Vec::new();
    for rule in picture.valid_rules() {
        let sources = sources(picture, rule);
        let object = (&*source.namespace, &source.gvk, &*source.name);
        if let Some(found) = as_source(&sources, object) {
            rules.push(Fed {
                rule: rule.id.to_string(),
                when_deleted: when_deleted(rule),
                copies: fed_copies(picture, rule, &sources, found),
            });
        }
    }
    rules
}

/// The copies of one of the rule's sources, by namespace.
fn fed_copies(
    picture: &Picture,
    rule: &Rule,
    sources: &[SourceRef],
    source: &SourceRef,
) -> Vec<FedCopy> {
    let kind = &*source.gvk.kind;
    let mut fed = Vec::new();
    let alive = picture.namespaces.iter();
    let alive = alive.filter(|(_, meta)| meta.deletion_timestamp.is_none());
    for (namespace, _) in alive {
        let labels = picture.labels(namespace).unwrap_or_default();
        let place = Place {
            name: namespace,
            labels: &labels,
        };
        let mut names: Vec<String> = rule.copy_names(source, place).collect();
        names.dedup();
        names.retain(|name| as_source(sources, (namespace, &source.gvk, name)).is_none());
        if names.is_empty() {
            continue;
        }
        let views = copies(&picture.snapshot, &rule.id, namespace);
        for name in names {
            let key = ObjectName {
                namespace,
                kind,
                name: &name,
            };
            let mut views = views.iter();
            let view = views.find(|view| view.kind == kind && view.name == name);
            let (state, _) = state(picture, &key, &rule.id, Some(source), view);
            fed.push(FedCopy {
                namespace: namespace.clone(),
                name,
                state,
            });
        }
    }
    fed
}

/// The fate of a rule's copies if their source is deleted, as a sentence.
fn when_deleted(rule: &Rule) -> String {
    let grace = rule.source_grace().as_secs();
    match rule.retention.when_source_deleted {
        _ if rule.suspend => "The rule is suspended: its copies stay as they are.".into(),
        _ if rule.strategy == Strategy::CreateOnce => {
            "Its copies stay as they are (strategy: CreateOnce).".into()
        }
        Retain::Retain => {
            "Its copies stay as they are (retentionPolicy.whenSourceDeleted: Retain).".into()
        }
        Retain::Delete => format!(
            "Mimeo deletes its copies {grace} s later, unless the source is created again in this \
             time (retentionPolicy.sourceGracePeriodSeconds)."
        ),
    }
}

fn text(feeds: &Feeds) -> String {
    let Feeds {
        source,
        exists,
        rules,
        notes,
    } = feeds;
    let head = match exists {
        Some(true) => format!("{source} exists.\n"),
        Some(false) => format!("{source} does not exist.\n"),
        None => format!("{source}\n"),
    };
    let mut blocks = vec![head];
    if rules.is_empty() {
        // Rules that could not be read have notes of their own.
        let none = if notes.is_empty() {
            "No rule has it as a source.\n"
        } else {
            "As far as you may read them, no rule has it as a source.\n"
        };
        blocks.push(none.into());
    }
    for Fed {
        rule,
        when_deleted,
        copies,
    } in rules
    {
        let row = |copy: &FedCopy| {
            vec![
                Cell::from(format!("  {}", copy.namespace)),
                copy.name.as_str().into(),
                Cell::new(copy.state.to_string(), copy.state.tone()),
            ]
        };
        let rows: Vec<Vec<Cell>> = copies.iter().map(row).collect();
        let table = if rows.is_empty() {
            "  It makes no copy of this source.\n".to_owned()
        } else {
            table(&["  NAMESPACE", "NAME", "STATE"], rows)
        };
        blocks.push(format!(
            "{rule}\n  If the source is deleted: {when_deleted}\n{table}"
        ));
    }
    if !notes.is_empty() {
        let notes: Vec<String> = notes.iter().map(|note| line(note)).collect();
        blocks.push(notes.join("\n") + "\n");
    }
    blocks.join("\n")
}
