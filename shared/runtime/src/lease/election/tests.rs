//! When a candidate takes a Lease, and the Lease's content after that.

use super::{super::testing::lease, *};
use crate::testing::{Script, Server};

const ME: &str = "me";

#[tokio::test]
async fn a_standby_that_was_told_of_a_conflict_reads_the_lease() {
    let at = |version: &str| {
        let metadata = ObjectMeta {
            name: Some("l".into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        serde_json::to_value(Lease {
            metadata,
            ..Lease::default()
        })
        .expect("JSON")
    };
    let conflict = Script::json(409, &serde_json::json!({"kind": "Status", "code": 409}));
    let read = Script::json(200, &at("7"));
    let server = Server::start([conflict, read, Script::json(200, &at("8"))]).await;
    let stale = Server::start([Script::json(200, &at("20")), Script::lines([]).hold()]).await;
    let candidate = Candidate {
        leading: watch::Sender::new(false),
        holder: watch::Sender::new(None),
        client: server.client(),
        path: "/apis/coordination.k8s.io/v1/namespaces/default/leases".into(),
        watcher: stale.client().into(),
        name: "l",
        me: ME.into(),
        args: LeaseArgs {
            lease_duration: Duration::from_secs(15),
            lease_renew_deadline: Duration::from_secs(10),
            lease_retry_period: Duration::from_millis(100),
        },
    };
    let won = tokio::time::timeout(Duration::from_secs(20), candidate.stand_by())
        .await
        .expect("it takes the Lease");
    assert_eq!(won.0.metadata.resource_version.as_deref(), Some("8"));
    let written: Vec<Lease> = server
        .came()
        .iter()
        .filter_map(|came| serde_json::from_slice(&came.body).ok())
        .collect();
    let versions: Vec<_> = written
        .into_iter()
        .filter_map(|lease| lease.metadata.resource_version)
        .collect();
    assert_eq!(versions, ["20", "7"]);
}

#[test]
fn a_lease_is_taken_when_it_is_free_or_was_not_renewed_for_its_duration() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let seen = |holder| {
        Some(SeenLease {
            lease: lease(holder, 0),
            since: start,
            deleted: false,
        })
    };
    let gone = |holder| observe(seen(holder), None, after(9));
    let unspecified = Some(SeenLease {
        lease: Lease::default(),
        since: start,
        deleted: false,
    });
    let cases = [
        ("no Lease", None, after(0), (None, false)),
        ("an empty one", unspecified, after(0), (None, true)),
        ("released", seen(None), after(0), (None, true)),
        (
            "released the other way",
            seen(Some("")),
            after(0),
            (None, true),
        ),
        (
            "mine from an earlier life",
            seen(Some(ME)),
            after(0),
            (None, true),
        ),
        (
            "another's",
            seen(Some("you")),
            after(0),
            (Some(after(15)), true),
        ),
        (
            "another's, a moment before it expires",
            seen(Some("you")),
            after(14),
            (Some(after(15)), true),
        ),
        (
            "another's, expired",
            seen(Some("you")),
            after(15),
            (None, true),
        ),
        (
            "another's, deleted under it",
            gone(Some("you")),
            after(14),
            (Some(after(15)), false),
        ),
        (
            "another's, deleted long ago",
            gone(Some("you")),
            after(15),
            (None, false),
        ),
        ("released and deleted", gone(None), after(9), (None, false)),
    ];
    for (what, observed, now, want) in cases {
        let exists = observed.as_ref().is_some_and(|seen| !seen.deleted);
        let held = held_until(observed.as_ref(), ME, now);
        assert_eq!((held, exists), want, "{what}");
    }
}

#[test]
fn taking_renewing_and_releasing_keep_the_record() {
    let now = Timestamp::from_second(100).expect("in range");
    let theirs = lease(Some("you"), 0).spec.expect("a spec");
    let taken = held(theirs, ME, Duration::from_millis(14_500), now);
    assert_eq!(taken.holder_identity.as_deref(), Some(ME));
    assert_eq!(
        (taken.lease_transitions, taken.lease_duration_seconds),
        (Some(4), Some(15))
    );
    assert_eq!(taken.acquire_time, Some(MicroTime(now)));

    let later = Timestamp::from_second(102).expect("in range");
    let renewed = held(taken.clone(), ME, Duration::from_secs(15), later);
    assert_eq!(
        (&renewed.acquire_time, renewed.lease_transitions),
        (&taken.acquire_time, Some(4))
    );
    assert_eq!(renewed.renew_time, Some(MicroTime(later)));

    let free = released(renewed, later);
    let seen = SeenLease {
        lease: Lease {
            spec: Some(free),
            ..Lease::default()
        },
        since: Instant::now(),
        deleted: false,
    };
    assert_eq!(held_until(Some(&seen), "you", seen.since), None);
    assert_eq!(
        held(LeaseSpec::default(), ME, Duration::ZERO, now).lease_duration_seconds,
        Some(1)
    );
}
