use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use mimeo_engine::{
    Action, Engine, EventReason, EventUpdate, GrantsRead, Home, Presence, Request, Settings,
    StatusUpdate, Task,
};
use mimeo_model::{
    created::CreatedCopies,
    grant::Edition,
    id::{RuleId, RuleKind},
    kind::{GroupVersionKind, Resource},
    known::{Decoded, Known},
    meta::Uid,
    role::Role,
    rule::Rule,
    source::SourceRef,
};
use serde_json::{Value, from_value, json};

use super::*;
use crate::{
    call::{CallError, CallResult},
    limiter::Limiter,
    object::tests::{nested, object as text_of, undecodable},
    stored::parse_grant,
    testing::{Script, Server},
};

const UID: &str = "0f3e4d5c-1a2b-3c4d-5e6f-708192a3b4c5";

fn uid() -> Uid {
    Uid::parse(UID).expect("a uid")
}

fn secrets() -> Resource {
    let gvk = GroupVersionKind::parse("v1", "Secret").expect("a kind");
    Resource {
        gvk,
        plural: "secrets".into(),
        namespaced: true,
    }
}

/// The first request for a copy, from an engine with one rule, one source and one namespace.
fn request(verb: Verb) -> Request {
    let rule = json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ClusterReplication", "metadata": {"name": "registry", "uid": UID},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
            "targets": [{"namespaces": ["team"]}],
        },
    });
    let rule = Rule::parse(&from_value(rule).expect("a rule")).expect("a good rule");
    let id = rule.id.clone();
    let mut engine = Engine::new(Settings::new(Role::Keeper, "cluster"));
    engine.at(Duration::from_secs(1));
    let source = json!({"metadata": {"name": "registry", "resourceVersion": "7"}, "data": {"a": "aHVudGVyMg=="}});
    let source_ref = rule.sources[0].clone();
    engine.rule_applied(id.clone(), Ok(rule), None);
    engine.rules_known(RuleKind::ClusterReplication, Known::Listed(&[id].into()));
    engine.rules_known(RuleKind::Replication, Known::Unserved);
    engine.kind(&secrets().gvk, Known::Listed(secrets()));
    engine.source(&source_ref, Some(Decoded::Whole(source)));
    let meta =
        from_value(json!({"name": "team", "uid": UID, "resourceVersion": "3"})).expect("metadata");
    engine.namespace_applied(&meta);
    engine.namespaces_listed(&["team".into()].into());
    engine.copies_listing(&secrets().gvk.group_kind().into());
    engine.copies_known(&secrets().gvk.group_kind().into(), Known::Listed(5));
    loop {
        match engine.next_action().expect("something to do") {
            Action::Job(job) => {
                if let Task::RecordKind(gvk) = job.task {
                    engine.kinds_recorded(&[gvk].into());
                }
            }
            Action::Request(mut request) => {
                request.verb = verb;
                return *request;
            }
        }
    }
}

fn writer(server: &Server) -> Writer {
    Writer::new(
        server.client(),
        Limiter::new(1, 4),
        Duration::from_millis(500),
        "mimeo",
    )
}

async fn carry_out(server: &Server, request: &Request, limiter: &Limiter) -> Outcome {
    writer(server)
        .carry_out(request, limiter.acquire().await)
        .await
}

fn status(code: u16, details: &Value) -> Script {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": code, "details": details});
    Script::json(code, &status)
}

#[tokio::test]
async fn each_verb_is_the_request_that_it_should_be() {
    let object = || {
        Script::json(
            200,
            &json!({"kind": "PartialObjectMetadata", "metadata": {"uid": UID}}),
        )
    };
    let apply = "/api/v1/namespaces/team/secrets/registry?fieldManager=mimeo&force=true";
    let plain = "/api/v1/namespaces/team/secrets/registry";
    let cases = [
        (
            Verb::Create,
            format!("PATCH {apply}"),
            Some(r#""resourceVersion":"1""#),
        ),
        (Verb::Apply(uid()), format!("PATCH {apply}"), Some(UID)),
        (
            Verb::Take(uid(), 42),
            format!("PATCH {apply}"),
            Some(r#""resourceVersion":"42""#),
        ),
        (
            Verb::Learn(uid()),
            format!("PATCH {apply}&dryRun=All"),
            Some(UID),
        ),
        (
            Verb::Compare(uid(), 42),
            format!("PATCH {plain}?fieldManager=mimeo&dryRun=All"),
            Some(r#""resourceVersion":"42""#),
        ),
        (Verb::Look, format!("GET {plain}"), None),
        (
            Verb::Delete(uid(), 42),
            format!("DELETE {plain}"),
            Some(r#""resourceVersion":"42""#),
        ),
    ];
    for (verb, line, part) in cases {
        let server = Server::start([object()]).await;
        let _ = carry_out(&server, &request(verb), &Limiter::new(1, 1)).await;
        let came = &server.came()[0];
        assert_eq!(came.line, line);
        let accept = came.headers["accept"].to_str().expect("text");
        assert!(
            accept.starts_with("application/json;as=PartialObjectMetadata;"),
            "{accept}"
        );
        let body = String::from_utf8(came.body.to_vec()).expect("text");
        assert_eq!(body.is_empty(), part.is_none(), "{verb:?}");
        let Some(part) = part else { continue };
        assert!(body.contains(part), "{verb:?} sends {body}");
        assert!(serde_json::from_str::<Value>(&body).is_ok(), "{body}");
        assert_eq!(
            came.headers["content-length"],
            body.len().to_string().as_str()
        );
        assert!(!came.headers.contains_key("transfer-encoding"));
    }
}

#[tokio::test]
async fn a_claim_writes_of_what_it_has_read_and_only_if_something_is_to_be_claimed() {
    let entry = |manager: &str, operation: &str, key: &str| json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": {"f:data": {key: {}}}});
    let read = |others: Value| {
        let entries =
            [json!([entry("mimeo", "Apply", "f:a")]), others].map(|list| list.as_array().cloned());
        let entries = entries.into_iter().flatten().flatten().collect::<Vec<_>>();
        let meta = json!({"uid": UID, "resourceVersion": "43", "managedFields": entries});
        Script::json(
            200,
            &json!({"kind": "PartialObjectMetadata", "metadata": meta}),
        )
    };
    let written = || {
        Script::json(
            200,
            &json!({"metadata": {"uid": UID, "resourceVersion": "44"}}),
        )
    };
    let added = || json!([entry("kubectl", "Update", "f:b")]);
    let path = "/api/v1/namespaces/team/secrets/registry";
    for (exclusive, others, claims) in [
        (true, added(), true),
        (false, added(), false),
        (true, json!([]), false),
    ] {
        let server = Server::start([read(others), written()]).await;
        let mut request = request(Verb::Claim(uid(), 42));
        request.exclusive = exclusive;
        let limiter = Limiter::new(1, 1);
        let Outcome::Object(meta) = carry_out(&server, &request, &limiter).await else {
            panic!("no object")
        };
        assert_eq!(
            meta.resource_version.as_deref(),
            Some(if claims { "44" } else { "43" })
        );
        let came = server.came();
        assert_eq!(
            (came.len(), &*came[0].line),
            (1 + usize::from(claims), &*format!("GET {path}"))
        );
        let Some(came) = came.get(1) else { continue };
        assert_eq!(came.line, format!("PATCH {path}?fieldManager=mimeo"));
        let body: Value = serde_json::from_slice(&came.body).expect("a patch");
        let mut all = entry("mimeo", "Apply", "f:a");
        all["fieldsV1"]["f:data"]["f:b"] = json!({});
        let want = json!({"uid": UID, "resourceVersion": "42", "managedFields": [all]});
        assert_eq!(
            body,
            json!({"metadata": want}),
            "what changed since it was decided is left alone"
        );
    }

    let server = Server::start([status(403, &json!({})), written()]).await;
    let outcome = carry_out(
        &server,
        &request(Verb::Claim(uid(), 42)),
        &Limiter::new(1, 1),
    )
    .await;
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    assert_eq!(server.came().len(), 1);
}

#[tokio::test]
async fn answers_become_outcomes() {
    let meta = |rest: Value| {
        let mut object = json!({"kind": "Secret", "metadata": {"uid": UID, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        object["metadata"]
            .as_object_mut()
            .expect("a map")
            .extend(rest.as_object().cloned().unwrap_or_default());
        Script::json(200, &object)
    };
    let delete = Verb::Delete(uid(), 42);
    let secret = json!({"name": "registry", "kind": "secrets"});
    let cases = [
        (
            Verb::Create,
            Script::json(
                201,
                &json!({"metadata": {"uid": UID}, "data": {"a": "aHVudGVyMg=="}}),
            ),
            "Object",
        ),
        (Verb::Create, Script::text(200, "hunter2"), "Unavailable"),
        (Verb::Create, status(409, &secret), "Conflict"),
        (Verb::Look, status(404, &secret), "Absent"),
        (
            Verb::Create,
            status(404, &json!({"name": "team", "kind": "namespaces"})),
            "NamespaceGone",
        ),
        (
            Verb::Look,
            Script::text(404, "404 page not found\n"),
            "NotServed",
        ),
        (delete, status(200, &secret), "Absent"),
        (delete, meta(json!({})), "Absent"),
        (
            delete,
            meta(json!({"finalizers": ["example.com/hold"]})),
            "Object",
        ),
        (
            delete,
            meta(json!({"deletionGracePeriodSeconds": 30})),
            "Object",
        ),
        (
            Verb::Create,
            Script::text(502, "<html>bad gateway</html>"),
            "Unavailable",
        ),
        (
            Verb::Create,
            Script::text(200, vec![b' '; 5 << 20]),
            "Unavailable",
        ),
        (Verb::Create, Script::text(200, "{").hold(), "Timeout"),
    ];
    for (verb, script, want) in cases {
        let server = Server::start([script]).await;
        let got = format!(
            "{:?}",
            carry_out(&server, &request(verb), &Limiter::new(1, 1)).await
        );
        assert!(got.contains(want), "{verb:?}: {got} is no {want}");
        assert!(
            !got.contains("hunter2") && !got.contains("aHVudGVyMg"),
            "{got}"
        );
    }
}

#[tokio::test]
async fn no_connection_is_no_answer() {
    let limiter = Limiter::new(1, 64);
    let before = limiter.limit();
    let server = Server::start([]).await;
    let client = server.client();
    drop(server);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let writer = Writer::new(client, limiter.clone(), Duration::from_millis(500), "mimeo");
    let outcome = writer
        .carry_out(&request(Verb::Create), limiter.acquire().await)
        .await;
    assert!(
        matches!(outcome, Outcome::Unavailable { .. }),
        "{outcome:?}"
    );
    assert_eq!(limiter.limit(), before / 2);
}

#[tokio::test]
async fn the_limiter_learns_of_overload_alone() {
    let webhook = json!({"message": "Internal error occurred: failed calling webhook \
        \"x.example.com\": timeout"});
    let cases = [
        (
            Script::json(429, &json!({})).header("retry-after", "30"),
            2,
            false,
        ),
        (Script::json(503, &json!({})), 2, true),
        (Script::json(500, &webhook), 1, true),
        (
            Script::json(
                500,
                &json!({"message": "failed to create typed patch object (/w): .x: expected list"}),
            ),
            1,
            true,
        ),
        (Script::json(409, &json!({})), 1, true),
    ];
    for (script, divided_by, open) in cases {
        let limiter = Limiter::new(1, 64);
        let limit = limiter.limit() / divided_by;
        let server = Server::start([script]).await;
        let _ = carry_out(&server, &request(Verb::Create), &limiter).await;
        assert_eq!(
            (limiter.limit(), limiter.try_acquire().is_some()),
            (limit, open)
        );
    }
}

#[tokio::test]
async fn a_mark_is_removed_if_it_is_the_one() {
    let cases = [
        (status(200, &json!({})), Ok(())),
        (status(404, &json!({"name": "team"})), Ok(())),
        (status(422, &json!({})), Err(CallError::Conflict)),
        (status(409, &json!({})), Err(CallError::Conflict)),
        (
            status(403, &json!({})),
            Err(CallError::Denied { code: 403 }),
        ),
        (Script::text(200, "").hold(), Err(CallError::Late)),
    ];
    for (script, want) in cases {
        let server = Server::start([script]).await;
        assert_eq!(writer(&server).remove_label("team", "token", 9).await, want);
        let came = &server.came()[0];
        assert_eq!(came.line, "PATCH /api/v1/namespaces/team");
        assert_eq!(came.headers["content-type"], "application/json-patch+json");
        let patch: Value = serde_json::from_slice(&came.body).expect("a patch");
        assert_eq!(
            patch[0],
            json!({"op": "test", "path": "/metadata/labels/mimeo.dev~1copies", "value": "token"})
        );
        assert_eq!(
            patch[1],
            json!({"op": "test", "path": "/metadata/resourceVersion", "value": "9"})
        );
        assert_eq!(
            patch[2],
            json!({"op": "remove", "path": "/metadata/labels/mimeo.dev~1copies"})
        );
    }
}

#[tokio::test]
async fn what_was_created_once_is_noted_unless_there_is_no_room_for_it() {
    let cases = [
        (status(200, &json!({})), Ok(())),
        (status(404, &json!({"name": "team"})), Ok(())),
        (status(409, &json!({})), Err(CallError::Conflict)),
        (status(422, &json!({})), Err(CallError::Invalid)),
    ];
    for (script, want) in cases {
        let server = Server::start([script]).await;
        let created = CreatedCopies::parse("0123456789abcdef");
        assert_eq!(
            writer(&server).record_created("team", &created, 9).await,
            want
        );
        let patch: Value = serde_json::from_slice(&server.came()[0].body).expect("a patch");
        let annotations = json!({"mimeo.dev/seeded": "0123456789abcdef"});
        assert_eq!(
            patch,
            json!({"metadata": {"resourceVersion": "9", "annotations": annotations}})
        );
    }
}

fn unavailable<T>(code: u16) -> CallResult<T> {
    Err(CallError::Unavailable {
        code,
        reason: String::new(),
    })
}

#[tokio::test]
async fn a_rule_is_gone_only_by_a_clear_answer() {
    let id: RuleId = "ClusterReplication/registry"
        .parse()
        .expect("a rule's identity");
    let created = "1970-01-01T00:01:00Z";
    let there = || Script::json(200, &json!({"metadata": {"creationTimestamp": created}}));
    let going = || {
        let going = "2026-01-01T00:00:00Z";
        Script::json(
            200,
            &json!({"metadata": {"creationTimestamp": created, "deletionTimestamp": going}}),
        )
    };
    let absent = || status(404, &json!({"name": "x"}));
    let page = || Script::text(404, "404 page not found\n");
    let read = |namespace, crd| Ok(Presence::Absent(Home { namespace, crd }));
    let cases = [
        (there(), there(), Ok(Presence::Present)),
        (absent(), there(), read(Some(0), Some(60))),
        (absent(), going(), read(Some(0), None)),
        (absent(), absent(), read(Some(0), None)),
        (page(), absent(), read(None, None)),
        (page(), there(), Err(CallError::NotFound)),
        (page(), page(), Err(CallError::NotFound)),
        (
            status(403, &json!({})),
            there(),
            Err(CallError::Denied { code: 403 }),
        ),
        (absent(), status(503, &json!({})), unavailable(503)),
        (
            absent(),
            Script::text(200, "{}").hold(),
            Err(CallError::Late),
        ),
    ];
    for (index, (rule, crd, want)) in cases.into_iter().enumerate() {
        let server = Server::start([rule, crd]).await;
        assert_eq!(writer(&server).read_rule(&id).await, want, "case {index}");
        assert_eq!(
            server.requests()[0],
            "GET /apis/mimeo.dev/v1alpha1/clusterreplications/registry"
        );
        if let Some(second) = server.requests().get(1) {
            assert_eq!(
                second,
                "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterreplications.mimeo.dev"
            );
        }
    }
}

#[tokio::test]
async fn what_a_namespace_grants_is_told_only_by_clear_answers() {
    let from = json!([{"namespaces": ["a"]}]);
    let to = json!([{"apiVersion": "v1", "kind": "Secret"}]);
    let grant = |name: &str, generation: i64, from: &Value| {
        json!({
            "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant",
            "metadata": {"namespace": "team", "name": name, "uid": UID, "generation": generation}, "spec": {"grantees": from, "objects": to},
        })
    };
    let list = || {
        Script::json(
            200,
            &json!({"items": [grant("g", 7, &from), grant("nonsense", 8, &json!([]))]}),
        )
    };
    let stays = || {
        Script::json(
            200,
            &json!({"metadata": {"uid": UID, "creationTimestamp": "1970-01-01T00:01:00Z"}}),
        )
    };
    let going = || {
        Script::json(
            200,
            &json!({"metadata": {"uid": UID, "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        )
    };
    let absent = || status(404, &json!({"name": "x"}));
    let page = || Script::text(404, "404 page not found\n");
    let home = Some(60);
    let read = |crd, namespace| {
        Ok(GrantsRead {
            grants: [(
                "g".into(),
                Edition {
                    uid: Some(uid()),
                    generation: 7,
                },
            )]
            .into(),
            home: Home { namespace, crd },
        })
    };
    let cases = [
        (list(), stays(), stays(), read(Some(60), home)),
        (list(), going(), stays(), read(None, home)),
        (list(), absent(), stays(), read(None, home)),
        (list(), stays(), going(), read(Some(60), None)),
        (list(), stays(), absent(), read(Some(60), None)),
        (page(), stays(), stays(), Err(CallError::NotFound)),
        (
            status(403, &json!({})),
            stays(),
            stays(),
            Err(CallError::Denied { code: 403 }),
        ),
        (list(), page(), stays(), Err(CallError::NotFound)),
        (list(), status(503, &json!({})), stays(), unavailable(503)),
        (list(), stays(), status(503, &json!({})), unavailable(503)),
    ];
    for (index, (grants, crd, namespace, want)) in cases.into_iter().enumerate() {
        let server = Server::start([grants, crd, namespace]).await;
        assert_eq!(
            writer(&server).read_grants("team").await,
            want,
            "case {index}"
        );
        assert_eq!(
            server.requests()[0],
            "GET /apis/mimeo.dev/v1alpha1/namespaces/team/replicationgrants"
        );
    }
}

/// One of the grants cannot be decoded. It grants nothing, and the other grants stay in force.
#[tokio::test]
async fn a_grant_that_cannot_be_decoded_takes_nothing_from_others() {
    let spec = r#","spec":{"grantees":[{"namespaces":["a"]}],"objects":[{"apiVersion":"v1","kind":"Secret"}]}"#;
    let deep = text_of("deep", 9, &[], &format!(r#","spec":{}"#, nested(130)));
    for bad in undecodable() {
        let bad = text_of("bad", 8, &[&bad], spec);
        let list = format!(
            r#"{{"items":[{bad},{deep},{}]}}"#,
            text_of("good", 7, &[], spec)
        );
        let there = || {
            Script::json(
                200,
                &json!({"metadata": {"uid": UID, "creationTimestamp": "1970-01-01T00:01:00Z"}}),
            )
        };
        let server = Server::start([Script::text(200, list), there(), there()]).await;
        let read = writer(&server)
            .read_grants("team")
            .await
            .expect("an answer");
        assert_eq!(
            read.grants.keys().map(|name| &**name).collect::<Vec<_>>(),
            ["bad", "good"]
        );

        let one = |grant: &str| Script::text(200, format!(r#"{{"items":[{grant}]}}"#));
        let server =
            Server::start([one(&bad), one(&deep), one(""), one(r#"{"metadata":1e999}"#)]).await;
        let writer = writer(&server);
        let read = async || {
            writer
                .read_grant("team", "g")
                .await
                .map(|grant| grant.map(|one| parse_grant(one).is_ok()))
        };
        assert_eq!(
            (read().await, read().await, read().await),
            (Ok(Some(true)), Ok(Some(false)), Ok(None))
        );
        assert!(read().await.is_err(), "no word that it isn't there");
    }
}

#[tokio::test]
async fn what_others_write_into_the_book_of_managers_hides_no_copy() {
    let own = r#"{"manager":"mimeo","operation":"Apply","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}}"#;
    for bad in undecodable() {
        for verb in [Verb::Look, Verb::Apply(uid())] {
            let server =
                Server::start([Script::text(200, text_of("registry", 8, &[&bad, own], ""))]).await;
            let outcome = carry_out(&server, &request(verb), &Limiter::new(1, 1)).await;
            let Outcome::Object(meta) = outcome else {
                panic!("{outcome:?}")
            };
            let managers = meta
                .managed_fields
                .iter()
                .flatten()
                .filter_map(|entry| entry.manager.as_deref());
            let late = serde_json::from_str::<Value>(&bad).is_ok();
            let want: &[&str] = if late { &["m", "mimeo"] } else { &["mimeo"] };
            assert_eq!(managers.collect::<Vec<_>>(), want);
        }
    }
}

#[tokio::test]
async fn what_a_tenants_rule_lived_in_is_read_too() {
    let id: RuleId = "Replication/team/registry"
        .parse()
        .expect("a rule's identity");
    let namespace = |metadata: Value| Script::json(200, &json!({"metadata": metadata}));
    let stays = json!({"uid": UID, "creationTimestamp": "1970-01-01T00:01:00Z"});
    let going = json!({"uid": UID, "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let read = |home| {
        Ok(Presence::Absent(Home {
            namespace: home,
            crd: Some(60),
        }))
    };
    let cases = [
        (namespace(stays), read(Some(60))),
        (namespace(going), read(None)),
        (status(404, &json!({"name": "team"})), read(None)),
        (
            status(403, &json!({})),
            Err(CallError::Denied { code: 403 }),
        ),
    ];
    for (index, (namespace, want)) in cases.into_iter().enumerate() {
        let crd = json!({"metadata": {"creationTimestamp": "1970-01-01T00:01:00Z"}});
        let crd = Script::json(200, &crd);
        let server =
            Server::start([status(404, &json!({"name": "registry"})), crd, namespace]).await;
        assert_eq!(writer(&server).read_rule(&id).await, want, "case {index}");
        assert_eq!(server.requests()[2], "GET /api/v1/namespaces/team");
    }
}

#[tokio::test]
async fn a_source_is_gone_only_by_a_clear_answer() {
    let source = SourceRef::named(secrets().gvk, "platform", "registry");
    let there = || {
        Script::json(
            200,
            &json!({"metadata": {"uid": UID, "creationTimestamp": "1970-01-01T00:01:00Z"}}),
        )
    };
    let going = || {
        Script::json(
            200,
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        )
    };
    let absent = |kind: &str| status(404, &json!({"name": "x", "kind": kind}));
    let cases = [
        (there(), there(), Ok(Presence::Present)),
        (
            absent("secrets"),
            there(),
            Ok(Presence::Absent(Home {
                namespace: Some(60),
                crd: Some(0),
            })),
        ),
        (
            absent("secrets"),
            going(),
            Ok(Presence::Absent(Home {
                namespace: None,
                crd: Some(0),
            })),
        ),
        (
            absent("secrets"),
            absent("namespaces"),
            Ok(Presence::Absent(Home {
                namespace: None,
                crd: Some(0),
            })),
        ),
        (
            absent("secrets"),
            status(403, &json!({})),
            Err(CallError::Denied { code: 403 }),
        ),
        (
            Script::text(404, "404 page not found\n"),
            there(),
            Err(CallError::NotFound),
        ),
        (status(500, &json!({})), there(), unavailable(500)),
    ];
    for (index, (object, namespace, want)) in cases.into_iter().enumerate() {
        let server = Server::start([object, namespace]).await;
        assert_eq!(
            writer(&server).read_source(&source, &secrets()).await,
            want,
            "case {index}"
        );
    }
}

#[tokio::test]
async fn a_kind_is_noted_whoever_creates_the_config_map() {
    let ok = || status(200, &json!({}));
    let server = Server::start([ok()]).await;
    assert_eq!(writer(&server).record(&secrets().gvk).await, Ok(()));
    let came = &server.came()[0];
    assert_eq!(
        came.line,
        "PATCH /api/v1/namespaces/mimeo/configmaps/mimeo-kinds"
    );
    assert_eq!(
        serde_json::from_slice::<Value>(&came.body).expect("a patch"),
        json!({"data": {"Secret": "v1"}})
    );

    let server = Server::start([
        status(404, &json!({"name": "mimeo-kinds"})),
        status(409, &json!({})),
        ok(),
    ])
    .await;
    assert_eq!(writer(&server).record(&secrets().gvk).await, Ok(()));
    let came = server.came();
    assert_eq!(came[1].line, "POST /api/v1/namespaces/mimeo/configmaps");
    let object: ConfigMap = serde_json::from_slice(&came[1].body).expect("a ConfigMap");
    assert_eq!(object.metadata.name.as_deref(), Some(KINDS_CONFIG_MAP));
    assert_eq!(
        parse_kinds(&object),
        Kinds {
            kinds: [secrets().gvk].into(),
            ..Kinds::default()
        }
    );
    assert_eq!(
        came[2].line,
        "PATCH /api/v1/namespaces/mimeo/configmaps/mimeo-kinds"
    );
}

#[tokio::test]
async fn a_kind_with_copies_stays_noted() {
    let list = |items: Value, next: &str| {
        Script::json(
            200,
            &json!({"metadata": {"continue": next}, "items": items}),
        )
    };
    let verbs = ["create", "delete", "get", "list", "patch", "watch"];
    let served = json!([{"name": "secrets", "singularName": "", "namespaced": true, "kind": "Secret", "verbs": verbs}]);
    let cases = [
        (
            list(json!([{"metadata": {}}]), ""),
            Err(CallError::Conflict),
            3,
        ),
        (list(json!([]), "more"), Err(CallError::Conflict), 3),
        (list(json!([]), ""), Ok(()), 4),
        (
            status(403, &json!({})),
            Err(CallError::Denied { code: 403 }),
            3,
        ),
    ];
    for (script, want, requests) in cases {
        let map = json!({"metadata": {"name": "mimeo-kinds", "resourceVersion": "8"}, "data": {"Secret": "v1"}});
        let group = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": served});
        let answers = [
            Script::json(200, &map),
            Script::json(200, &group),
            script,
            status(200, &json!({})),
        ];
        let server = Server::start(answers).await;
        assert_eq!(
            writer(&server)
                .unrecord(&secrets().gvk.group_kind(), &[None])
                .await,
            want
        );
        let came = server.came();
        assert_eq!(came.len(), requests);
        let list =
            "GET /api/v1/secrets?limit=1&labelSelector=app.kubernetes.io%2Fmanaged-by%3Dmimeo";
        assert_eq!(came[2].line, list);
        if let Some(patch) = came.get(3) {
            let want = json!({"metadata": {"resourceVersion": "8"}, "data": {"Secret": null}});
            assert_eq!(
                serde_json::from_slice::<Value>(&patch.body).expect("a patch"),
                want
            );
        }
    }
}

#[tokio::test]
async fn an_object_is_missing_only_by_a_clear_answer() {
    let cases = [
        (
            Script::json(200, &json!({"data": {}})),
            Ok(Some(json!({"data": {}}))),
        ),
        (status(404, &json!({"name": "registry"})), Ok(None)),
        (
            Script::text(404, "404 page not found\n"),
            Err(CallError::NotFound),
        ),
        (
            status(403, &json!({"name": "registry"})),
            Err(CallError::Denied { code: 403 }),
        ),
        (Script::text(200, "hunter2"), Err(CallError::Undecodable)),
    ];
    for (script, want) in cases {
        let server = Server::start([script]).await;
        let source = SourceRef::named(secrets().gvk, "platform", "registry");
        let read = writer(&server).read(&source, &secrets()).await;
        assert_eq!(
            read.map(|object| object.map(|object| object.value().clone())),
            want
        );
        assert_eq!(
            server.requests(),
            ["GET /api/v1/namespaces/platform/secrets/registry"]
        );
    }
}

#[test]
fn kinds_reads_what_record_wrote() {
    let object = json!({
        "metadata": {"name": "mimeo-kinds", "annotations": {"mimeo.dev/confirm-deletion": "n1"}},
        "data": {"Secret": "v1", "Certificate.cert-manager.io": "cert-manager.io/v1", "Secret.x": "v1", "what": "", "": "v1"},
    });
    let Kinds { kinds, confirmed } = parse_kinds(&from_value(object).expect("a ConfigMap"));
    let printed: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    assert_eq!(printed, ["v1/Secret", "cert-manager.io/v1/Certificate"]);
    assert_eq!(confirmed.as_deref(), Some("n1"));
    assert_eq!(parse_kinds(&ConfigMap::default()), Kinds::default());
}

#[tokio::test]
async fn a_status_is_applied_to_the_subresource() {
    let update = StatusUpdate {
        id: "ClusterReplication/registry"
            .parse()
            .expect("a rule's identity"),
        status: mimeo_api::ClusterReplicationStatus::default(),
    };
    let server = Server::start([
        status(200, &json!({})),
        status(404, &json!({})),
        status(500, &json!({})),
    ])
    .await;
    let writer = writer(&server);
    assert_eq!(writer.write_status(&update).await, Ok(()));
    assert_eq!(writer.write_status(&update).await, Ok(()));
    assert!(writer.write_status(&update).await.is_err());
    let came = &server.came()[0];
    assert_eq!(
        came.line,
        "PATCH /apis/mimeo.dev/v1alpha1/clusterreplications/registry/status?fieldManager=mimeo-status&force=true"
    );
    let body: Value = serde_json::from_slice(&came.body).expect("an object");
    let keys: Vec<&str> = body
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["apiVersion", "kind", "metadata", "status"]);
    assert_eq!(body["metadata"], json!({"name": "registry"}));
}

#[tokio::test]
async fn an_event_is_written_or_its_series_continued_and_is_tried_once() {
    let event_update = |count| EventUpdate {
        name: "mimeo.1".into(),
        regarding: ObjectReference {
            kind: Some("Namespace".into()),
            name: Some("team".into()),
            ..Default::default()
        },
        related: None,
        reason: EventReason::CopyRestored,
        note: "no".into(),
        count,
    };
    let at = "2026-01-01T00:00:00.5Z".parse().expect("a time");
    let absent = || status(404, &json!({"name": "mimeo.1", "kind": "events"}));
    let known = |event: Value| Script::json(200, &event);
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let read = format!("GET {events}/mimeo.1");
    let observed = json!("2026-01-01T00:00:00.500000Z");
    let series = |count| json!({"count": count, "lastObservedTime": observed});
    let one = json!({"eventTime": null});
    let many = json!({"eventTime": null, "series": {"count": 5, "lastObservedTime": observed}});
    let cases = [
        (
            1,
            vec![absent(), status(201, &json!({}))],
            Ok(()),
            Some(("POST", Value::Null)),
        ),
        (
            3,
            vec![absent(), status(201, &json!({}))],
            Ok(()),
            Some(("POST", series(3))),
        ),
        (
            1,
            vec![known(one), status(200, &json!({}))],
            Ok(()),
            Some(("PATCH", series(2))),
        ),
        (
            3,
            vec![known(many), status(200, &json!({}))],
            Ok(()),
            Some(("PATCH", series(8))),
        ),
        (
            1,
            vec![absent(), status(403, &json!({}))],
            Err(CallError::Denied { code: 403 }),
            Some(("POST", Value::Null)),
        ),
        (
            1,
            vec![status(403, &json!({}))],
            Err(CallError::Denied { code: 403 }),
            None,
        ),
    ];
    for (count, scripts, want, write) in cases {
        let server = Server::start(scripts).await;
        assert_eq!(
            writer(&server)
                .write_event(&event_update(count), "replica", at)
                .await,
            want
        );
        let came = server.came();
        assert_eq!(
            (came.len(), &came[0].line),
            (1 + usize::from(write.is_some()), &read)
        );
        let Some((method, series)) = write else {
            continue;
        };
        let at = if method == "POST" {
            events.to_owned()
        } else {
            format!("{events}/mimeo.1")
        };
        assert_eq!(came[1].line, format!("{method} {at}"));
        let body: Value = serde_json::from_slice(&came[1].body).expect("an object");
        assert_eq!(body["series"], series);
        let rest = body.as_object().expect("an object").len();
        assert_eq!(
            rest > 1,
            method == "POST",
            "nothing but the series can be changed: {body}"
        );
        if method == "POST" {
            assert_eq!(
                (&body["eventTime"], &body["reportingInstance"]),
                (&observed, &json!("replica"))
            );
            assert_eq!(
                body["regarding"],
                json!({"kind": "Namespace", "name": "team"})
            );
        }
    }
}
