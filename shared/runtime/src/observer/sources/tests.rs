use std::time::Duration;

use mimeo_engine::{AwaitedCopy, Engine, Settings};
use mimeo_model::{
    id::RuleKind,
    kind::GroupVersionKind,
    known::Known,
    names,
    role::Role,
    rule::{MOST_SOURCES, Rule},
};
use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::{
    handle::{CopyMetrics, Handle},
    limiter::Limiter,
    object::tests::{nested, object as text_of, undecodable},
    testing::{Script, Server},
    trace::Traces,
    writer::Writer,
};

const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";
const SECOND: Duration = Duration::from_secs(1);

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").expect("a kind");
    Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    }
}

fn source(name: &str) -> SourceRef {
    SourceRef::named(secrets().gvk, "platform", name)
}

fn object(name: &str, version: u64) -> Value {
    let metadata =
        json!({"name": name, "namespace": "platform", "resourceVersion": version.to_string()});
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": {"a": "aHVudGVyMg=="}})
}

/// An observer of this server. Its engine has one rule with these sources, and a namespace that
/// waits for their copies.
fn observer(server: &Server, names: &[&str]) -> Observer {
    let named = |name: &&str| json!({"name": name});
    observer_of(server, names.iter().map(named).collect())
}

/// The same, with these names and selectors of Secrets.
fn observer_of(server: &Server, mut sources: Vec<Value>) -> Observer {
    for source in &mut sources {
        source["apiVersion"] = "v1".into();
        source["kind"] = "Secret".into();
        source["namespace"] = "platform".into();
    }
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry"},
        "spec": {"podGate": "Required", "sources": sources, "targets": [{"namespaces": ["team"]}]},
    });
    let rule = Rule::parse(&serde_json::from_value(rule).expect("a rule")).expect("a good rule");
    let id = rule.id.clone();
    let mut engine = Engine::new(Settings::new(Role::Injector, "cluster"));
    engine.at(SECOND);
    engine.rule_applied(id.clone(), Ok(rule), None);
    engine.rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine.rules_known(RuleKind::Replication, Known::Unserved);
    let meta = json!({"name": "team", "uid": UID, "resourceVersion": "3", "labels": {names::PENDING_LABEL: "token"}});
    engine.namespace_applied(&serde_json::from_value(meta).expect("metadata"));
    engine.namespaces_listed(&["team".into()].into());
    engine.take_charge("team");
    engine.kinds_recorded(&BTreeSet::new());
    engine.kind(&secrets().gvk, Known::Listed(secrets()));
    let client = server.client();
    let handle = Handle::new(
        engine,
        CopyMetrics::new(&mut Registry::default()),
        Traces::off(),
    );
    let (limiter, deadline) = (Limiter::new(1, 1), Duration::from_secs(5));
    let writer = Writer::new(client.clone(), limiter, deadline, "mimeo");
    Observer::new(&handle, &client.into(), &writer)
}

/// Runs `work` until `holds` returns true for the engine.
#[track_caller]
fn until(
    work: impl Future<Output = ()>,
    handle: &Handle,
    mut holds: impl FnMut(&mut Engine) -> bool,
) -> impl Future<Output = ()> {
    let (caller, mut changes) = (std::panic::Location::caller(), handle.changes());
    async move {
        let waiting = async {
            while !handle.look(&mut holds) {
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            () = work => {}
            done = tokio::time::timeout(Duration::from_secs(20), waiting) => assert!(done.is_ok(), "{caller}"),
        }
    }
}

fn refusal(code: u16) -> Script {
    Script::json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "code": code}),
    )
}

#[tokio::test]
async fn the_engine_is_told_of_a_source_that_may_not_be_watched() {
    let server = Server::start([refusal(403), refusal(403)]).await;
    let observer = observer(&server, &["a"]);
    let handle = observer.handle.clone();
    until(observer.source(source("a"), secrets()), &handle, |engine| {
        engine.index().informed()
    })
    .await;
    assert_eq!(held(&handle), ["Secret a (Forbidden)"]);
}

/// Whether pods of the namespace are denied because one copy is missing for this reason.
fn denied_for(engine: &mut Engine, why: &str) -> bool {
    let denied = engine.progress("team").denied;
    matches!(&denied[..], [copy] if copy.copy == "Secret a" && copy.why == why)
}

/// The copies that the namespace waits for, and the copies it cannot get.
fn held(handle: &Handle) -> Vec<String> {
    let progress = handle.look(|engine| engine.progress("team"));
    let waits = progress.waiting.iter().map(|copy| copy.copy.clone());
    let told = |copy: &AwaitedCopy| format!("{} ({})", copy.copy, copy.why);
    waits.chain(progress.denied.iter().map(told)).collect()
}

fn many(observer: Observer, names: &[&str]) -> impl Future<Output = ()> {
    let members = Arc::new(Members::default());
    let sources: Vec<SourceRef> = names.iter().map(|name| source(name)).collect();
    members.set(sources.iter(), false);
    observer.many(secrets(), Some("platform".into()), members, BTreeSet::new())
}

fn listing(names: &[&str]) -> Script {
    let line = |name: &&str| format!("{}\n", json!({"type": "ADDED", "object": object(name, 9)}));
    Script::text(200, names.iter().map(line).collect::<String>() + &end())
}

/// The bookmark that ends a streamed list.
fn end() -> String {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let object = json!({"metadata": {"resourceVersion": "10", "annotations": annotations}});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}

#[tokio::test]
async fn a_source_that_cannot_be_read_holds_up_no_other() {
    let names = ["a", "b", "c"];
    let absent =
        json!({"kind": "Status", "apiVersion": "v1", "code": 404, "details": {"name": "c"}});
    let server = Server::start([
        listing(&["a", "b"]).hold(),
        refusal(403),
        Script::json(200, &object("b", 9)),
        Script::json(404, &absent),
    ])
    .await;
    let observer = observer(&server, &names);
    let handle = observer.handle.clone();
    until(many(observer, &names), &handle, |engine| {
        engine.index().informed()
    })
    .await;
    let paths: Vec<String> = server.requests().split_off(1);
    assert_eq!(
        paths,
        ["a", "b", "c"].map(|name| format!("GET /api/v1/namespaces/platform/secrets/{name}"))
    );
    assert_eq!(
        held(&handle),
        [
            "Secret b",
            "Secret a (Forbidden)",
            "Secret c (SourceNotFound)"
        ]
    );
}

/// A source that the decoder cannot read is not copied, and no pod waits for it. Other sources are
/// not affected.
#[tokio::test]
async fn a_source_that_cannot_be_decoded_is_refused_alone() {
    let deep = || text_of("a", 9, &[], &format!(r#","spec":{}"#, nested(130)));
    let added = |object: &str| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
    let refused = |engine: &mut Engine| denied_for(engine, "SourceRefused");

    let server = Server::start([
        refusal(503),
        Script::text(200, "")
            .send(added(&deep()))
            .send(end())
            .hold(),
    ])
    .await;
    let alone = observer(&server, &["a"]);
    let handle = alone.handle.clone();
    until(alone.source(source("a"), secrets()), &handle, refused).await;

    let answers = [
        listing(&["a", "b"]).hold(),
        Script::text(200, deep()),
        Script::json(200, &object("b", 9)),
    ];
    let server = Server::start(answers).await;
    let names = ["a", "b"];
    let beside = observer(&server, &names);
    let handle = beside.handle.clone();
    until(many(beside, &names), &handle, |engine| {
        engine.index().informed()
    })
    .await;
    assert_eq!(held(&handle), ["Secret b", "Secret a (SourceRefused)"]);
    assert_eq!(
        server.requests().len(),
        3,
        "it is read again when it changes"
    );

    // The `managedFields` that a client wrote make no difference.
    for bad in undecodable() {
        let object = text_of("a", 9, &[&bad], "");
        let server = Server::start([
            refusal(503),
            Script::text(200, "")
                .send(added(&object))
                .send(end())
                .hold(),
        ])
        .await;
        let observer = observer(&server, &["a"]);
        let handle = observer.handle.clone();
        until(observer.source(source("a"), secrets()), &handle, |engine| {
            engine.index().informed()
        })
        .await;
        assert_eq!(held(&handle), ["Secret a"]);
    }
}

/// A streamed list may show a deletion before its end. Such an object takes the place of no other.
#[tokio::test]
async fn an_object_that_is_deleted_during_a_listing_is_not_selected() {
    let names: Vec<String> = (10..=10 + MOST_SOURCES).map(|n| format!("s{n}")).collect();
    let line = |kind, name| format!("{}\n", json!({"type": kind, "object": object(name, 9)}));
    let lines: String = names.iter().map(|name| line("ADDED", name)).collect();
    let deleted = line("DELETED", &names[0]);
    let server = Server::start([Script::text(200, lines + &deleted + &end()).hold()]).await;
    let observer = observer_of(&server, vec![json!({"selector": {}})]);
    let handle = observer.handle.clone();
    let mut watches = handle.with(Engine::demand).selectors;
    let (selector, resource) = watches.pop_first().expect("a watch");
    let mut copies: Vec<String> = names[1..]
        .iter()
        .map(|name| format!("Secret {name}"))
        .collect();
    copies.sort();
    let all = |engine: &mut Engine| {
        let waiting = engine.progress("team").waiting;
        waiting.iter().map(|copy| &copy.copy).eq(&copies)
    };
    until(observer.selected(selector, resource), &handle, all).await;
}

/// The source is deleted while its last state is still being read.
#[tokio::test]
async fn a_deleted_source_is_not_revived_by_a_read_under_way() {
    let deleted = json!({"type": "DELETED", "object": object("a", 11)});
    let absent =
        json!({"kind": "Status", "apiVersion": "v1", "code": 404, "details": {"name": "a"}});
    let server = Server::start([
        listing(&["a"])
            .pause(Duration::from_millis(100))
            .send(format!("{deleted}\n"))
            .hold(),
        Script::text(200, "")
            .pause(Duration::from_millis(300))
            .send(object("a", 9).to_string()),
        Script::json(404, &absent),
    ])
    .await;
    let observer = observer(&server, &["a"]);
    let handle = observer.handle.clone();
    let gone = |engine: &mut Engine| denied_for(engine, "SourceNotFound");
    until(many(observer, &["a"]), &handle, gone).await;
    assert_eq!(server.requests().len(), 3);
}

/// A user that makes such watches list again and again must not keep the last of many sources from
/// being read.
#[tokio::test]
async fn a_new_listing_leads_to_reads_of_changed_sources_only() {
    let names = ["a", "b"];
    let added = |name, version| {
        let added = json!({"type": "ADDED", "object": object(name, version)});
        format!("{added}\n")
    };
    let server = Server::start([
        listing(&names).hold(),
        Script::json(200, &object("a", 9)),
        Script::json(200, &object("b", 9)),
        Script::text(200, added("a", 9) + &added("b", 11) + &end()).hold(),
        Script::json(200, &object("b", 11)),
    ])
    .await;
    let observer = observer(&server, &names);
    let handle = observer.handle.clone();
    for version in [9, 11] {
        until(many(observer.clone(), &names), &handle, |engine| {
            engine.index().knows(&source("b"), version)
        })
        .await;
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 5, "{requests:?}");
    assert!(requests[4].ends_with("/secrets/b"), "{requests:?}");
}

#[tokio::test]
async fn a_source_waits_its_turn_once() {
    let reads = Reads::default();
    let later = Instant::now() + Duration::from_hours(1);
    reads.want(source("b"));
    reads.want_at(source("b"), later);
    reads.want_at(source("a"), later);
    assert_eq!(reads.next().await, source("b"));
    reads.want(source("a"));
    assert_eq!(reads.next().await, source("a"));
    assert!(reads.due.lock().is_empty());
}
