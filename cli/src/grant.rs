//! `kubectl mimeo grant RULE`: the missing grants of a Replication.
//!
//! The engine decides which grants are missing. This file gives the engine the new grants, and asks
//! again: so the printed grants are enough.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use mimeo_api::{
    Access, GrantedObjects, NamespaceSelection, ReplicationGrant, ReplicationGrantSpec,
    names::API_VERSION,
};
use mimeo_engine::{Settings, Snapshot};
use mimeo_model::{
    grant::Grant,
    id::{RuleId, RuleKind},
    kind::GroupVersionKind,
    known::Decoded,
    role::Role,
    rule::Rule,
    selection::Glob,
    source::{SourceQuery, SourceRef},
};
use mimeo_runtime::{call::encode, stored::parse_rule};
use serde_json::{Value, json};

use crate::{
    completion,
    connect::Connected,
    names,
    output::{Format, manifests, tell, write},
    picture::{GrantNames, assumed, show_grants, show_namespaces},
    read::{Part, ReadError, Reader, metadata, own_path},
};

/// Most items of a grant, and most names of one item, as the CRD allows.
const ITEMS: usize = 16;
const NAMES: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// The Replication: NAMESPACE/NAME, or NAME in the namespace of -n
    #[arg(
        value_name = "NAMESPACE/NAME",
        add = ArgValueCompleter::new(completion::replications)
    )]
    rule: String,
}

/// The objects that the grants of one namespace must cover, by kind. `None`: objects of any name.
type Objects = BTreeMap<GroupVersionKind, Option<BTreeSet<String>>>;
/// All of them, by the namespace that must consent and the access.
type Wanted = BTreeMap<(String, Access), Objects>;

pub(crate) async fn run(args: &GrantArgs, connected: &Connected, format: Format) -> Result<u8> {
    let (home, name) = replication(&args.rule, &connected.namespace)?;
    let reader = connected.reader();
    let rule = read_rule(connected, &home, &name).await?;
    let mut snapshot = Snapshot::new(Settings::new(Role::Keeper, ""));
    let mut notes = Vec::new();
    read_home(&reader, &home, &mut snapshot, &mut notes).await;
    let existing = read_grants(&reader, &rule, &home, &mut snapshot, &mut notes).await;
    let (grants, enough) = plan(&rule, &home, &existing, &mut snapshot);
    for note in notes {
        tell(&note);
    }
    if !enough {
        tell(
            "A namespace has so many ReplicationGrants that no more of them count. Its owner must \
             shorten or delete some.",
        );
    }
    if grants.is_empty() && enough {
        tell(&format!(
            "No ReplicationGrant is missing for Replication {home}/{name}."
        ));
    }
    show(&grants, format)?;
    Ok(u8::from(!enough))
}

/// The namespace and the name of the Replication that a user means.
fn replication(text: &str, namespace: &str) -> Result<(String, String)> {
    let long = if text.contains('/') {
        text.to_owned()
    } else {
        format!("{namespace}/{text}")
    };
    let RuleId {
        kind,
        namespace,
        name,
    } = names::rule(&long)
        .ok()
        .with_context(|| format!("{text} is no Replication: write NAMESPACE/NAME"))?;
    match namespace {
        Some(home) if kind == RuleKind::Replication => Ok((home.into(), name.into())),
        _ => bail!("{text} is a ClusterReplication, which needs no ReplicationGrant"),
    }
}

async fn read_rule(connected: &Connected, home: &str, name: &str) -> Result<Rule> {
    let plural = RuleKind::Replication.plural();
    let path = own_path(Some(home), plural, Some(name));
    let object = match connected.reader().get(&path, Part::Whole).await {
        Ok(Some(object)) => object,
        Ok(None) => {
            bail!(
                "there is no Replication {home}/{name}; kubectl -n {home} get replications   shows \
                 those that exist"
            )
        }
        Err(ReadError::NotServed) => bail!(
            "the API server doesn't serve Replications: Mimeo's CRDs are not installed in this \
             cluster"
        ),
        Err(error) => bail!("can't read Replication {home}/{name}: {error}"),
    };
    let (rule, _) = parse_rule(RuleKind::Replication, Decoded::Whole(object));
    rule.map_err(|refused| {
        let refusals = names::refusals(&refused.refusals);
        anyhow::anyhow!("Replication {home}/{name} is invalid: {refusals}")
    })
}

/// Shows the engine the Replication's namespace. Grants may select it by labels.
async fn read_home(reader: &Reader, home: &str, snapshot: &mut Snapshot, notes: &mut Vec<String>) {
    let path = format!("/api/v1/namespaces/{}", encode(home));
    let read = reader.get(&path, Part::Metadata).await;
    let read = read.map(|object| object.as_ref().and_then(metadata));
    let meta = match read {
        Ok(Some(meta)) => meta,
        Ok(None) => assumed(home),
        Err(error) => {
            notes.push(format!(
                "Can't read Namespace {home}: {error}. ReplicationGrants that select it by labels \
                 are left out."
            ));
            assumed(home)
        }
    };
    show_namespaces(snapshot, [&meta]);
}

/// Shows the engine the grants that exist. Returns their names.
async fn read_grants(
    reader: &Reader,
    rule: &Rule,
    home: &str,
    snapshot: &mut Snapshot,
    notes: &mut Vec<String>,
) -> GrantNames {
    const PLURAL: &str = "replicationgrants";
    let mut found = Vec::new();
    let all = own_path(None, PLURAL, None);
    let keep = |object| found.push(object);
    if reader.list(&all, None, Part::Whole, keep).await.is_err() {
        found.clear();
        for namespace in others(rule, home) {
            let path = own_path(Some(namespace), PLURAL, None);
            let keep = |object| found.push(object);
            if let Err(error) = reader.list(&path, None, Part::Whole, keep).await {
                notes.push(format!(
                    "Can't read the ReplicationGrants of namespace {namespace}: {error}. All that \
                     the Replication needs there are printed, and some may exist already."
                ));
            }
        }
    }
    show_grants(snapshot, found)
}

/// The other namespaces that the Replication names.
fn others<'a>(rule: &'a Rule, home: &str) -> BTreeSet<&'a str> {
    let sources = rule.queries().filter_map(SourceQuery::home);
    let named = sources.chain(rule.named_targets());
    let mut all: BTreeSet<&str> = named.collect();
    all.remove(home);
    all
}

/// The missing grants. The second value is false if they are not enough.
fn plan(
    rule: &Rule,
    home: &str,
    existing: &GrantNames,
    snapshot: &mut Snapshot,
) -> (Vec<ReplicationGrant>, bool) {
    // A selector may find a source of any name later, so its copies need a grant for any name.
    let mut sources: Vec<SourceRef> = rule.sources.clone();
    sources.extend(rule.selectors.iter().map(|selector| selector.source("*")));
    let (mut wanted, mut grants) = (Wanted::new(), Vec::new());
    // The engine names the grants of copies only if the sources are granted.
    for _ in 0..3 {
        let engine = snapshot.decided();
        let missing = engine.index().missing_grants(rule, &sources);
        if missing.is_empty() {
            return (grants, true);
        }
        for one in missing {
            let place = (one.namespace.to_owned(), one.access);
            let objects = wanted.entry(place).or_default();
            add(objects, one.gvk, one.name);
        }
        grants = build(&wanted, home, &rule.id.name, existing);
        let engine = snapshot.engine();
        for grant in &grants {
            let metadata = &grant.metadata;
            let names = metadata.namespace.as_deref().zip(metadata.name.as_deref());
            if let (Some((namespace, name)), Ok(grant)) = (names, Grant::parse(grant)) {
                engine.grant_applied(namespace, name, Ok(grant));
            }
        }
    }
    let engine = snapshot.decided();
    let enough = engine.index().missing_grants(rule, &sources).is_empty();
    (grants, enough)
}

fn add(objects: &mut Objects, gvk: &GroupVersionKind, name: Option<String>) {
    // The name of a copy may have the star of a source of any name.
    let name = name.filter(|name| name != "*" && Glob(name).is_quick());
    let names = objects
        .entry(gvk.clone())
        .or_insert_with(|| Some(BTreeSet::new()));
    match (names.as_mut(), name) {
        (Some(names), Some(name)) => _ = names.insert(name),
        _ => *names = None,
    }
}

/// One grant for each namespace and access. More than one if the CRD's limits demand it.
fn build(wanted: &Wanted, home: &str, rule: &str, existing: &GrantNames) -> Vec<ReplicationGrant> {
    let mut grants = Vec::new();
    for ((namespace, access), objects) in wanted {
        let mut items = Vec::new();
        for (gvk, names) in objects {
            let names: Vec<String> = names.iter().flatten().cloned().collect();
            let item = |names: &[String]| GrantedObjects {
                api_version: gvk.api_version(),
                kind: gvk.kind.to_string(),
                names: names.to_vec(),
            };
            if names.is_empty() {
                items.push(item(&[]));
            }
            items.extend(names.chunks(NAMES).map(item));
        }
        let verb = match access {
            Access::Read => "read",
            Access::Write => "write",
        };
        let mut free = (1_u32..)
            .map(|number| grant_name(home, rule, verb, number))
            .filter(|name| !existing.contains(&(namespace.as_str().into(), name.as_str().into())));
        for objects in items.chunks(ITEMS) {
            let spec = ReplicationGrantSpec {
                access: *access,
                grantees: vec![NamespaceSelection {
                    namespaces: vec![home.to_owned()],
                    ..NamespaceSelection::default()
                }],
                objects: objects.to_vec(),
            };
            let mut grant = ReplicationGrant::new(&free.next().unwrap_or_default(), spec);
            grant.metadata.namespace = Some(namespace.clone());
            grants.push(grant);
        }
    }
    grants
}

/// A name that says whose rule the grant is for, within the limit of names.
fn grant_name(home: &str, rule: &str, verb: &str, number: u32) -> String {
    let mut name = format!("{home}-{rule}");
    name.truncate(name.floor_char_boundary(230));
    let name = name.trim_end_matches(['-', '.']);
    match number {
        1 => format!("{name}-{verb}"),
        _ => format!("{name}-{verb}-{number}"),
    }
}

/// Prints the grants as kubectl takes them.
fn show(grants: &[ReplicationGrant], format: Format) -> Result<()> {
    let items: Vec<Value> = grants
        .iter()
        .map(|grant| {
            json!({
                "apiVersion": API_VERSION,
                "kind": "ReplicationGrant",
                "metadata": {"namespace": grant.metadata.namespace, "name": grant.metadata.name},
                "spec": grant.spec,
            })
        })
        .collect();
    write(&manifests(items.iter(), format)?)
}

#[cfg(test)]
mod tests {
    use mimeo_api::Replication;
    use serde_json::from_value;

    use super::*;

    fn rule(spec: &Value) -> Rule {
        let metadata = json!({"namespace": "blue", "name": "db"});
        let object = json!({"apiVersion": API_VERSION, "kind": "Replication", "metadata": metadata, "spec": spec});
        let object: Replication = from_value(object).expect("a Replication");
        Rule::parse_replication(&object).expect("a valid rule")
    }

    /// The missing grants of the rule while no grant exists: their namespaces and names, accesses
    /// and objects.
    fn missing(spec: &Value) -> Vec<String> {
        let rule = rule(spec);
        let mut snapshot = Snapshot::new(Settings::new(Role::Keeper, ""));
        show_namespaces(&mut snapshot, [&assumed("blue")]);
        show_grants(&mut snapshot, Vec::new());
        let taken = GrantNames::from([("shop".into(), "blue-db-read".into())]);
        let (grants, enough) = plan(&rule, "blue", &taken, &mut snapshot);
        assert!(enough);
        let line = |grant: &ReplicationGrant| {
            let objects = grant.spec.objects.iter();
            let objects: Vec<String> = objects
                .map(|one| format!("{} {}", one.kind, one.names.join(",")))
                .collect();
            format!(
                "{}/{} {}",
                grant.metadata.namespace.as_deref().unwrap_or_default(),
                grant.metadata.name.as_deref().unwrap_or_default(),
                objects.join("; ")
            )
        };
        grants.iter().map(line).collect()
    }

    fn source(namespace: &str, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "namespace": namespace, "name": name})
    }

    #[test]
    fn each_other_namespace_gets_one_grant_for_each_access() {
        let own = json!({"sources": [source("blue", "a")], "targets": [{"copyName": "b"}]});
        assert_eq!(missing(&own), [""; 0]);
        let pull = json!({"sources": [source("shop", "b"), source("shop", "a")]});
        assert_eq!(missing(&pull), ["shop/blue-db-read-2 Secret a,b"]);
        let both = json!({
            "sources": [source("shop", "a")],
            "targets": [{"namespaces": ["red", "shop"], "copyName": "c"}],
        });
        assert_eq!(
            missing(&both),
            [
                "red/blue-db-write Secret c",
                "shop/blue-db-read-2 Secret a",
                "shop/blue-db-write Secret c"
            ]
        );
    }

    #[test]
    fn copies_of_selected_sources_need_a_grant_for_any_name() {
        let selecting = |target: Value| {
            let source =
                json!({"apiVersion": "v1", "kind": "Secret", "namespace": "blue", "selector": {}});
            missing(&json!({"sources": [source], "targets": [target]}))
        };
        assert_eq!(
            selecting(json!({"namespaces": ["red"]})),
            ["red/blue-db-write Secret "]
        );
        let named = json!({"namespaces": ["red"], "copyName": "blue-$(source.name)"});
        assert_eq!(selecting(named), ["red/blue-db-write Secret blue-*"]);
        let abroad =
            json!({"apiVersion": "v1", "kind": "Secret", "namespace": "shop", "selector": {}});
        assert_eq!(
            missing(&json!({"sources": [abroad]})),
            ["shop/blue-db-read-2 Secret "]
        );
    }

    #[test]
    fn grants_keep_the_limits_of_the_crd() {
        let gvk = GroupVersionKind::parse("v1", "Secret").expect("a kind");
        let mut objects = Objects::new();
        for number in 0..=(ITEMS * NAMES) {
            add(&mut objects, &gvk, Some(format!("s{number}")));
        }
        let wanted = Wanted::from([(("shop".to_owned(), Access::Read), objects)]);
        let grants = build(&wanted, "blue", "db", &GrantNames::new());
        assert_eq!(grants.len(), 2);
        assert_eq!(grants[0].spec.objects.len(), ITEMS);
        assert_eq!(grants[1].metadata.name.as_deref(), Some("blue-db-read-2"));
        let long = grant_name(&"n".repeat(63), &"r".repeat(253), "write", 10);
        assert!(long.len() <= 253, "{long}");
    }

    #[test]
    fn a_replication_is_named_with_or_without_its_namespace() {
        let parse = |text| replication(text, "here").map_err(|error| error.to_string());
        let full = |namespace: &str| Ok((namespace.to_owned(), "db".to_owned()));
        assert_eq!(parse("db"), full("here"));
        assert_eq!(parse("blue/db"), full("blue"));
        assert_eq!(parse("Replication/blue/db"), full("blue"));
        let cluster = parse("clusterreplication/db").expect_err("it is refused");
        assert!(cluster.contains("needs no ReplicationGrant"), "{cluster}");
        let wrong = parse("a/b/c").expect_err("it is refused");
        assert!(wrong.contains("NAMESPACE/NAME"), "{wrong}");
    }
}
