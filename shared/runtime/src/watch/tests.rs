use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::*;
use crate::{
    object::tests::{nested, object as text_of, undecodable},
    testing::{Script, Server},
};

const PATIENCE: Patience = Patience {
    silence: SILENCE,
    lasting: LASTING,
};

/// The events that a sink received, one per line.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn sink(&self) -> impl FnMut(Event<Meta>) + Send + use<> {
        let heard = self.0.clone();
        move |event| {
            let name = |meta: Meta| meta.metadata.name.unwrap_or_default();
            let line = match event {
                Event::Listing => "listing".into(),
                Event::Shown(Decoded::Whole(object)) => format!("+{}", name(object)),
                Event::Shown(Decoded::Part(part)) => format!("?{}", part["metadata"]["name"]),
                Event::Deleted(object) => format!("-{}", name(object)),
                Event::Known(Known::Listed(version)) => format!("listed {version}"),
                Event::Known(Known::Unserved) => "not served".into(),
                Event::Known(Known::Unreadable(Unreadable::Forbidden)) => "forbidden".into(),
                Event::Known(Known::Unreadable(Unreadable::Unavailable)) => "unavailable".into(),
                Event::Known(Known::Unknown) => "unknown".into(),
            };
            heard.lock().expect("no panic").push(line);
        }
    }

    /// Watches until the sink has received these events, and a little longer, so that an unexpected
    /// event fails the test.
    #[track_caller]
    fn expect(
        self,
        server: &Server,
        spec: WatchSpec,
        want: &[&str],
    ) -> impl Future<Output = ()> + use<> {
        self.expect_within(PATIENCE, server, spec, want)
    }

    #[track_caller]
    fn expect_within(
        self,
        patience: Patience,
        server: &Server,
        spec: WatchSpec,
        want: &[&str],
    ) -> impl Future<Output = ()> + use<> {
        let caller = std::panic::Location::caller();
        let watching = watch(watcher(server, patience), spec, self.sink());
        let want: Vec<String> = want.iter().map(ToString::to_string).collect();
        async move {
            let heard = || self.0.lock().expect("no panic").clone();
            let enough = async {
                while heard().len() < want.len() {
                    sleep(Duration::from_millis(5)).await;
                }
                sleep(Duration::from_millis(50)).await;
            };
            tokio::select! {
                () = watching => {}
                done = timeout(Duration::from_secs(20), enough) => assert!(done.is_ok(), "{caller}: only {:?}", heard()),
            }
            assert_eq!(heard(), want, "{caller}");
        }
    }
}

fn watcher(server: &Server, patience: Patience) -> Watcher {
    Watcher {
        patience,
        ..server.client().into()
    }
}

fn spec() -> WatchSpec {
    WatchSpec::metadata("/api/v1/secrets", "secrets")
}

fn object(name: &str, version: u64) -> Value {
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn event(what: &str, name: &str, version: u64) -> Value {
    json!({"type": what, "object": object(name, version)})
}

fn bookmark(version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version.to_string()}}})
}

fn listed(version: u64) -> Value {
    let annotations = json!({INITIAL_EVENTS_END: "true"});
    json!({"type": "BOOKMARK", "object": {
        "metadata": {"resourceVersion": version.to_string(), "annotations": annotations}}})
}

fn error_event(code: u16) -> Value {
    json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}})
}

fn error(code: u16, message: &str) -> Script {
    Script::json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "message": message, "code": code}),
    )
}

/// The version that each request resumed from, or `stream` or `list`.
fn origins(server: &Server) -> Vec<String> {
    let origin = |line: String| {
        let parameters: Vec<&str> = line.split(['?', '&']).collect();
        match parameters
            .iter()
            .find_map(|p| p.strip_prefix("resourceVersion="))
        {
            Some(version) => version.to_owned(),
            None if parameters.contains(&"sendInitialEvents=true") => "stream".into(),
            None => "list".into(),
        }
    };
    server.requests().into_iter().map(origin).collect()
}

#[tokio::test]
async fn a_streamed_list_ends_with_its_bookmark_and_goes_on() {
    let server = Server::start([Script::lines([
        event("ADDED", "a", 9),
        event("ADDED", "b", 5),
        listed(10),
        event("MODIFIED", "a", 11),
        bookmark(12),
        event("DELETED", "b", 13),
    ])
    .hold()])
    .await;
    let spec = WatchSpec {
        label_selector: Some("a=b,c".into()),
        ..spec()
    };
    Heard::default()
        .expect(
            &server,
            spec,
            &["listing", "+a", "+b", "listed 10", "+a", "-b"],
        )
        .await;
    let came = server.came();
    assert_eq!(came.len(), 1);
    let (path, query) = came[0].line.split_once('?').expect("a query");
    assert_eq!(path, "GET /api/v1/secrets");
    for parameter in [
        "watch=true",
        "allowWatchBookmarks=true",
        "sendInitialEvents=true",
        "resourceVersionMatch=NotOlderThan",
        "labelSelector=a%3Db%2Cc",
    ] {
        assert!(
            query.split('&').any(|p| p == parameter),
            "{parameter} in {query}"
        );
    }
    let accept = came[0].headers["accept"].to_str().expect("text");
    assert!(
        accept.starts_with("application/json;as=PartialObjectMetadata;"),
        "{accept}"
    );
}

#[tokio::test]
async fn a_named_object_is_shown_before_it_is_listed() {
    let streamed = || {
        Script::lines([
            event("ADDED", "a", 9),
            listed(10),
            event("DELETED", "a", 11),
        ])
        .hold()
    };
    let spec = || WatchSpec {
        name: Some("a".into()),
        ..spec()
    };
    let server = Server::start([Script::json(200, &object("a", 9)), streamed()]).await;
    Heard::default()
        .expect(&server, spec(), &["+a", "listing", "+a", "listed 10", "-a"])
        .await;
    let requests = server.requests();
    assert_eq!(requests[0], "GET /api/v1/secrets/a");
    assert!(
        requests[1].ends_with("&fieldSelector=metadata.name%3Da"),
        "{requests:?}"
    );

    // If the read fails, the listing shows the object.
    for answer in [
        error(404, "not found"),
        error(403, "no"),
        Script::text(200, "{"),
        error(503, "later"),
    ] {
        let server = Server::start([answer, streamed()]).await;
        Heard::default()
            .expect(&server, spec(), &["listing", "+a", "listed 10", "-a"])
            .await;
    }
}

#[tokio::test]
async fn lines_may_come_in_any_pieces() {
    let text = [event("ADDED", "ä", 1), listed(2), event("MODIFIED", "ä", 3)]
        .map(|line| format!("{line}\n"))
        .concat();
    for size in [1, 7, 1000] {
        let script = text
            .as_bytes()
            .chunks(size)
            .fold(Script::text(200, ""), |script, piece| {
                script.send(piece.to_vec()).pause(Duration::from_micros(1))
            });
        let server = Server::start([script.hold()]).await;
        Heard::default()
            .expect(&server, spec(), &["listing", "+ä", "listed 2", "+ä"])
            .await;
    }
}

#[tokio::test]
async fn a_broken_watch_goes_on_where_it_was() {
    let half = event("MODIFIED", "half", 99).to_string();
    let server = Server::start([
        Script::lines([event("ADDED", "a", 1), listed(2), event("MODIFIED", "a", 4)]).send(half),
        Script::lines([bookmark(8), error_event(500)]),
        error(503, "later"),
        Script::lines([event("DELETED", "a", 9)]).hold(),
    ])
    .await;
    Heard::default()
        .expect(&server, spec(), &["listing", "+a", "listed 2", "+a", "-a"])
        .await;
    assert_eq!(origins(&server), ["stream", "4", "8", "8"]);
}

#[tokio::test]
async fn a_listing_that_breaks_off_begins_again() {
    let server = Server::start([
        Script::lines([event("ADDED", "a", 1)]),
        Script::lines([event("ADDED", "a", 1), listed(2)]).hold(),
    ])
    .await;
    Heard::default()
        .expect(
            &server,
            spec(),
            &["listing", "+a", "listing", "+a", "listed 2"],
        )
        .await;
}

#[tokio::test]
async fn a_silent_watch_is_given_up() {
    let server = Server::start([
        Script::lines([listed(2)]).hold(),
        // Every line is a sign of life, so this watch lasts.
        Script::lines([bookmark(3)])
            .pause(Duration::from_millis(300))
            .send(format!("{}\n", bookmark(4)))
            .pause(Duration::from_millis(300))
            .send(format!("{}\n", event("ADDED", "a", 5))),
    ])
    .await;
    let patience = Patience {
        silence: Duration::from_millis(450),
        ..PATIENCE
    };
    Heard::default()
        .expect_within(patience, &server, spec(), &["listing", "listed 2", "+a"])
        .await;
    assert_eq!(origins(&server)[..2], ["stream", "2"]);
}

/// A server that was restored from a backup sends no events before it reaches the version.
#[tokio::test]
async fn a_watch_that_was_silent_from_its_beginning_lists_anew() {
    let server = Server::start([
        Script::lines([listed(20)]),
        Script::lines([]).hold(),
        Script::lines([event("ADDED", "a", 9), listed(10)]).hold(),
    ])
    .await;
    let patience = Patience {
        silence: Duration::from_millis(300),
        ..PATIENCE
    };
    let want = ["listing", "listed 20", "listing", "+a", "listed 10"];
    Heard::default()
        .expect_within(patience, &server, spec(), &want)
        .await;
    assert_eq!(origins(&server)[..3], ["stream", "20", "stream"]);
}

#[tokio::test]
async fn a_version_that_the_server_forgot_means_a_new_listing() {
    let server = Server::start([
        Script::lines([listed(2), error_event(410)]),
        Script::lines([listed(7)]),
        error(410, "too old"),
        Script::lines([listed(8)]).hold(),
    ])
    .await;
    let want = [
        "listing", "listed 2", "listing", "listed 7", "listing", "listed 8",
    ];
    Heard::default().expect(&server, spec(), &want).await;
    assert_eq!(origins(&server), ["stream", "stream", "7", "stream"]);
}

#[tokio::test]
async fn a_server_that_streams_no_lists_is_listed_in_pages_for_good() {
    let page = |name: &str, next: &str| {
        let metadata = json!({"resourceVersion": "20", "continue": next});
        Script::json(
            200,
            &json!({"metadata": metadata, "items": [object(name, 3)]}),
        )
    };
    let refusals = [
        error(
            422,
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the \
             WatchList feature gate is enabled",
        ),
        error(400, "resourceVersionMatch is forbidden for watch"),
        // A server that ignores the parameters continues with ordinary bookmarks.
        Script::lines([bookmark(19)]),
    ];
    for (index, refusal) in refusals.into_iter().enumerate() {
        let server = Server::start([
            refusal,
            page("a", "n/x"),
            page("b", ""),
            Script::lines([event("ADDED", "c", 21), error_event(410)]),
            page("d", ""),
            Script::lines([]).hold(),
        ])
        .await;
        let want = [
            "listing",
            "listing",
            "+a",
            "+b",
            "listed 20",
            "+c",
            "listing",
            "+d",
            "listed 20",
        ];
        // The last refusal is noticed only after the listing has begun.
        let want = if index == 2 { &want[..] } else { &want[1..] };
        Heard::default().expect(&server, spec(), want).await;
        assert_eq!(
            origins(&server),
            ["stream", "list", "list", "20", "list", "20"]
        );
        let came = server.came();
        assert!(
            came[2].line.contains("limit=500&continue=n%2Fx"),
            "{}",
            came[2].line
        );
        let accept = came[1].headers["accept"].to_str().expect("text");
        assert!(
            accept.starts_with("application/json;as=PartialObjectMetadataList;"),
            "{accept}"
        );
    }
}

#[tokio::test]
async fn refusals_are_said_once_and_end_with_a_new_listing() {
    let server = Server::start([
        Script::lines([listed(2)]),
        error(401, "no"),
        error(403, "no"),
        Script::lines([listed(3)]).hold(),
    ])
    .await;
    Heard::default()
        .expect(
            &server,
            spec(),
            &["listing", "listed 2", "forbidden", "listing", "listed 3"],
        )
        .await;
    assert_eq!(origins(&server), ["stream", "2", "stream", "stream"]);
}

#[tokio::test]
async fn a_listing_in_pages_may_be_forbidden_too() {
    let server = Server::start([
        error(400, "resourceVersionMatch is forbidden for watch"),
        error(403, "no"),
    ])
    .await;
    Heard::default()
        .expect(&server, spec(), &["forbidden"])
        .await;
}

/// So many of these answers, and then a good one.
type Trouble = (usize, fn() -> Script, Script);

#[tokio::test]
async fn errors_that_last_are_said_once_and_end_with_a_new_listing() {
    let streamed = || Script::lines([listed(3)]).hold();
    let empty = json!({"metadata": {"resourceVersion": "3"}, "items": []});
    let trouble: [Trouble; 4] = [
        (3, || error(500, "conversion webhook failed"), streamed()),
        // After the first refusal the watch lists in pages.
        (4, || error(400, "no"), Script::json(200, &empty)),
        (3, || Script::lines([]).send("nonsense\n"), streamed()),
        (3, || Script::text(200, ""), streamed()),
    ];
    let patience = Patience {
        lasting: Duration::from_millis(400),
        ..PATIENCE
    };
    let cases = trouble.map(|(times, trouble, good)| async move {
        let troubles = std::iter::repeat_with(trouble).take(times);
        let server = Server::start(troubles.chain([good])).await;
        let heard = Heard::default();
        let watching = watch(watcher(&server, patience), spec(), heard.sink());
        let _ = timeout(Duration::from_secs(6), watching).await;
        let mut lines = heard.0.lock().expect("no panic").clone();
        lines.dedup();
        lines.retain(|line| line != "listing");
        assert_eq!(lines, ["unavailable", "listed 3"]);
    });
    futures::future::join_all(cases).await;
}

/// The listed state stays valid while the server cannot be reached. If the server answers only with
/// errors, the state becomes uncertain.
#[tokio::test]
async fn a_server_that_is_away_is_not_one_that_refuses() {
    let patience = Patience {
        lasting: Duration::from_millis(400),
        ..PATIENCE
    };
    let ended = || Script::text(200, "");
    let server = Server::start([
        Script::lines([listed(2)]),
        ended(),
        ended(),
        ended(),
        Script::lines([event("ADDED", "a", 3)]).hold(),
    ])
    .await;
    Heard::default()
        .expect_within(patience, &server, spec(), &["listing", "listed 2", "+a"])
        .await;
    let later = || error(503, "later");
    let server = Server::start([
        Script::lines([listed(2)]),
        later(),
        later(),
        Script::lines([listed(4)]).hold(),
    ])
    .await;
    let want = ["listing", "listed 2", "unavailable", "listing", "listed 4"];
    Heard::default()
        .expect_within(patience, &server, spec(), &want)
        .await;
    assert_eq!(origins(&server), ["stream", "2", "2", "stream"]);
}

#[tokio::test]
async fn a_kind_that_is_not_served_may_come() {
    let server = Server::start([error(404, ""), Script::lines([listed(3)]).hold()]).await;
    Heard::default()
        .expect(&server, spec(), &["not served", "listing", "listed 3"])
        .await;
}

#[tokio::test]
async fn a_busy_server_is_given_the_time_it_wants() {
    let server = Server::start([
        error(429, "").header("retry-after", "2"),
        Script::lines([listed(3)]).hold(),
    ])
    .await;
    let started = Instant::now();
    Heard::default()
        .expect(&server, spec(), &["listing", "listed 3"])
        .await;
    assert!(started.elapsed() >= Duration::from_secs(2));
}

#[tokio::test]
async fn what_is_no_event_means_a_new_listing() {
    let nonsense = [
        "hunter2\n",
        "{\"type\":\"MOVED\",\"object\":{}}\n",
        "{\"type\":\"BOOKMARK\",\"object\":{}}\n",
    ];
    for nonsense in nonsense {
        let scripts = [
            Script::lines([listed(2)]).send(nonsense),
            Script::lines([listed(3)]).hold(),
        ];
        let server = Server::start(scripts).await;
        Heard::default()
            .expect(
                &server,
                spec(),
                &["listing", "listed 2", "listing", "listed 3"],
            )
            .await;
    }
}

fn line(what: &str, object: &str) -> String {
    format!("{{\"type\":\"{what}\",\"object\":{object}}}\n")
}

/// Otherwise a user who may write one object could hide the objects of all others.
#[tokio::test]
async fn an_object_that_cannot_be_decoded_stops_no_watch() {
    for bad in undecodable() {
        let bad = |version| text_of("bad", version, &[&bad], "");
        let last = line("DELETED", &bad(14));
        let server = Server::start([
            Script::lines([event("ADDED", "a", 1)])
                .send(line("ADDED", &bad(2)))
                .send(format!("{}\n", listed(10)))
                .send(line("MODIFIED", &bad(11))),
            Script::lines([event("ADDED", "b", 12)])
                .send(line("MODIFIED", &bad(13)))
                .send(last),
            Script::lines([event("DELETED", "b", 15)]).hold(),
        ])
        .await;
        let want = [
            "listing",
            "+a",
            "+bad",
            "listed 10",
            "+bad",
            "+b",
            "+bad",
            "-bad",
            "-b",
        ];
        Heard::default().expect(&server, spec(), &want).await;
        assert_eq!(
            origins(&server),
            ["stream", "11", "14"],
            "it goes on after it"
        );

        let page = |items: &str, next: &str| {
            Script::text(
                200,
                format!(
                    r#"{{"metadata":{{"resourceVersion":"20","continue":"{next}"}},"items":[{items}]}}"#
                ),
            )
        };
        let server = Server::start([
            error(400, "resourceVersionMatch is forbidden for watch"),
            page(&format!("{},{}", bad(3), object("a", 3)), "next"),
            page(&object("b", 3).to_string(), ""),
            Script::lines([event("ADDED", "c", 21)]).hold(),
        ])
        .await;
        Heard::default()
            .expect(
                &server,
                spec(),
                &["listing", "+bad", "+a", "+b", "listed 20", "+c"],
            )
            .await;
    }
}

#[tokio::test]
async fn of_what_cannot_be_decoded_as_a_whole_the_rest_is_told() {
    let more = format!(r#","spec":{},"status":{{}}"#, nested(130));
    let server = Server::start([Script::lines([])
        .send(line("ADDED", &text_of("deep", 2, &[], &more)))
        .send(format!("{}\n", listed(10)))
        .send(line("DELETED", &text_of("deep", 11, &[], &more)))
        // Not even the metadata can be decoded.
        .send(line("ADDED", r#"{"metadata":{"x":1e999}}"#))
        .send(line("DELETED", r#"{"metadata":{"name":5}}"#))
        .send(format!("{}\n", event("ADDED", "a", 12)))
        .hold()])
    .await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let watching = watch::<Value>(server.client().into(), spec(), move |event| {
        drop(told.send(event));
    });
    let mut want = vec![
        Event::Listing,
        Event::Shown(Decoded::Part(json!({
            "apiVersion": "v1", "kind": "Secret", "status": {},
            "metadata": {"name": "deep", "namespace": "team", "resourceVersion": "2", "managedFields": []},
        }))),
        Event::Known(Known::Listed(10)),
        Event::Deleted(serde_json::from_str(&text_of("deep", 11, &[], "")).expect("metadata")),
        Event::Shown(Decoded::Whole(object("a", 12))),
    ]
    .into_iter();
    let listening = async {
        for want in want.by_ref() {
            assert_eq!(heard.recv().await, Some(want));
        }
    };
    tokio::select! {
        () = watching => {}
        done = timeout(Duration::from_secs(20), listening) => assert!(done.is_ok()),
    }
    assert_eq!((want.len(), server.requests().len()), (0, 1));
}
