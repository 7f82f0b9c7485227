//! Whole lives of bundles, hour by hour. Clients that trust one `caBundle` verify the certificates
//! of another time.

use std::time::Duration;

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

use tokio::time::Instant;

use super::*;
use crate::certificates::Trusted;

const START: i64 = 1_800_000_000;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

fn at(second: i64) -> Timestamp {
    timestamp(START + second)
}

fn service() -> ServingNames {
    ServingNames::for_service("mimeo-system", "mimeo-webhook")
}

fn issued() -> Bundle {
    Bundle::issue(&service(), &Lifetimes::default(), at(0)).expect("a bundle")
}

fn renewal(bundle: &Bundle, second: i64) -> Renewal {
    bundle.renewal(&service(), &Lifetimes::default(), at(second))
}

#[track_caller]
fn step(bundle: &Bundle, want: Renewal, second: i64) -> Bundle {
    assert_eq!(renewal(bundle, second), want);
    bundle
        .renewed(want, &service(), &Lifetimes::default(), at(second))
        .expect("the next bundle")
}

/// Whether a client that trusts the CAs of one bundle accepts the certificate of the other as
/// `name`.
fn verifies(trusted: &Bundle, served: &Bundle, name: &str, second: i64) -> bool {
    accepts(&trusted.ca_bundle(), served, name, second)
}

/// Whether a client that trusts these CAs accepts the bundle's certificate as `name`.
fn accepts(trusted: &str, served: &Bundle, name: &str, second: i64) -> bool {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("a CA");
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .expect("roots");
    let shown = CertificateDer::from_pem_slice(served.serving.certificate.as_bytes()).expect("PEM");
    let now = UnixTime::since_unix_epoch(Duration::from_secs(
        u64::try_from(START + second).expect("after 1970"),
    ));
    let name = ServerName::try_from(name).expect("a name");
    verifier
        .verify_server_cert(&shown, &[], &name, &[], now)
        .is_ok()
}

#[test]
fn serving_certificates_hold_for_their_names_and_time() {
    let names = ServingNames::new(["Localhost", "127.0.0.1", "[::1]"]);
    let bundle = Bundle::issue(&names, &Lifetimes::default(), at(0)).expect("a bundle");
    for name in ["localhost", "127.0.0.1", "::1"] {
        assert!(verifies(&bundle, &bundle, name, 0), "{name}");
    }
    assert!(!verifies(&bundle, &bundle, "example.org", 0));
    assert!(!verifies(&issued(), &bundle, "localhost", 0), "another CA");
    assert!(
        verifies(&bundle, &bundle, "localhost", -HOUR + 1),
        "a client whose clock is late"
    );
    assert!(!verifies(&bundle, &bundle, "localhost", -HOUR - 1));
    assert!(verifies(&bundle, &bundle, "localhost", 90 * DAY - 1));
    assert!(!verifies(&bundle, &bundle, "localhost", 90 * DAY + 1));
    assert!(Bundle::issue(&ServingNames::new(["ä"]), &Lifetimes::default(), at(0)).is_err());
}

#[test]
fn a_serving_certificate_is_renewed_after_two_thirds_by_the_same_ca() {
    let first = issued();
    assert_eq!(
        renewal(&first, 0),
        Renewal::Keep {
            until: at(60 * DAY)
        }
    );
    assert_eq!(
        renewal(&first, 60 * DAY - 1),
        Renewal::Keep {
            until: at(60 * DAY)
        }
    );
    let second = step(&first, Renewal::RenewServing, 60 * DAY);
    assert_eq!(
        renewal(&second, 60 * DAY),
        Renewal::Keep {
            until: at(120 * DAY)
        }
    );
    assert_eq!(second.ca, first.ca);
    assert_ne!(second.serving.key, first.serving.key);
    assert!(verifies(
        &first,
        &second,
        "mimeo-webhook.mimeo-system.svc",
        60 * DAY
    ));
    // The same step is due after a long time without a check.
    step(&first, Renewal::RenewServing, 200 * DAY);
}

#[test]
fn other_names_are_added_once_and_dropped_by_the_next_ca() {
    let (mine, yours) = (ServingNames::new(["10.0.0.1"]), service());
    let lifetimes = Lifetimes::default();
    let first = issued();
    assert_eq!(
        first.renewal(&mine, &lifetimes, at(HOUR)),
        Renewal::RenewServing
    );
    let next = |bundle: &Bundle, step, second| {
        bundle
            .renewed(step, &mine, &lifetimes, at(second))
            .expect("the next bundle")
    };
    let both = next(&first, Renewal::RenewServing, HOUR);
    for names in [&mine, &yours] {
        assert!(matches!(
            both.renewal(names, &lifetimes, at(HOUR)),
            Renewal::Keep { .. }
        ));
    }
    assert!(verifies(&first, &both, "10.0.0.1", HOUR));
    assert!(verifies(
        &first,
        &both,
        "mimeo-webhook.mimeo-system.svc",
        HOUR
    ));
    let later = next(&both, Renewal::RenewServing, 61 * DAY);
    assert_eq!(later.serving.facts.names, both.serving.facts.names);
    let introduced = next(&later, Renewal::IntroduceCa, 244 * DAY);
    let promoted = next(&introduced, Renewal::PromoteCa, 245 * DAY);
    assert_eq!(ServingNames(promoted.serving.facts.names), mine);
}

/// Runs a year and a half, hour by hour. A client has the present `caBundle` or the one before. It
/// accepts the present certificate and the one before.
#[test]
fn no_client_notices_a_rotation() {
    let name = "mimeo-webhook.mimeo-system.svc";
    let start = Instant::now();
    let mut trusted = Trusted::new(Lifetimes::default().overlap, "", start);
    let mut now = issued();
    let mut ca_bundle = trusted.bundle(&now.ca_bundle(), start);
    let mut steps = Vec::new();
    for hour in 0..(550 * 24) {
        let second = hour * HOUR;
        let due = renewal(&now, second);
        let next = step(&now, due, second);
        assert!(
            matches!(renewal(&next, second), Renewal::Keep { .. }),
            "one step at a time"
        );
        let clock = start + Duration::from_hours(hour.cast_unsigned());
        let next_ca_bundle = trusted.bundle(&next.ca_bundle(), clock);
        if (&next, &next_ca_bundle) == (&now, &ca_bundle) {
            continue;
        }
        for (trusted, served) in [
            (&ca_bundle, &next),
            (&next_ca_bundle, &now),
            (&next_ca_bundle, &next),
        ] {
            assert!(
                accepts(trusted, served, name, second),
                "{due:?} in hour {hour}"
            );
        }
        if !matches!(due, Renewal::Keep { .. }) {
            steps.push(due);
        }
        (now, ca_bundle) = (next, next_ca_bundle);
    }
    assert!(!steps.contains(&Renewal::Reissue));
    assert_eq!(ca_bundle, now.ca.certificate, "no former CA is left");
    let rotation = [Renewal::IntroduceCa, Renewal::PromoteCa];
    let rotations: Vec<_> = steps
        .iter()
        .filter(|step| **step != Renewal::RenewServing)
        .copied()
        .collect();
    assert_eq!(rotations, [rotation, rotation].concat());
}

#[test]
fn the_steps_of_a_rotation_keep_their_distance() {
    let lifetimes = Lifetimes {
        serving: Duration::from_hours(365 * 24),
        ..Lifetimes::default()
    };
    let names = service();
    let due = 365 * DAY * 2 / 3;
    let first = Bundle::issue(&names, &lifetimes, at(0)).expect("a bundle");
    let first = first
        .renewed(Renewal::RenewServing, &names, &lifetimes, at(due))
        .expect("renewed");
    let advance = |bundle: &Bundle, step, second| {
        assert_eq!(bundle.renewal(&names, &lifetimes, at(second)), step);
        bundle
            .renewed(step, &names, &lifetimes, at(second))
            .expect("the next bundle")
    };
    let introduced = advance(&first, Renewal::IntroduceCa, due);
    assert_eq!(introduced.serving, first.serving);
    assert_eq!(
        introduced.renewal(&names, &lifetimes, at(due + HOUR - 1)),
        Renewal::Keep {
            until: at(due + HOUR)
        }
    );
    let promoted = advance(&introduced, Renewal::PromoteCa, due + HOUR);
    assert_eq!(promoted.ca_bundle(), promoted.ca.certificate);
    assert_ne!(promoted.ca, first.ca);
}

#[test]
fn what_expired_is_replaced_at_once() {
    let first = issued();
    let again = step(&first, Renewal::Reissue, 365 * DAY);
    assert!(verifies(
        &again,
        &again,
        "mimeo-webhook.mimeo-system.svc",
        365 * DAY
    ));
    let introduced = step(&first, Renewal::RenewServing, 364 * DAY);
    let introduced = step(&introduced, Renewal::IntroduceCa, 364 * DAY);
    step(&introduced, Renewal::PromoteCa, 366 * DAY);
    step(&introduced, Renewal::Reissue, 800 * DAY);
}

#[test]
fn a_serving_certificate_never_outlives_its_ca() {
    let lifetimes = Lifetimes {
        ca: Duration::from_mins(10),
        ..Lifetimes::default()
    };
    let bundle = Bundle::issue(&service(), &lifetimes, at(0)).expect("a bundle");
    assert_eq!(bundle.serving.not_after(), at(600));
}

#[test]
fn a_secret_holds_every_state_and_keeps_what_is_not_ours() {
    let first = issued();
    let introduced = first
        .renewed(
            Renewal::IntroduceCa,
            &service(),
            &Lifetimes::default(),
            at(DAY),
        )
        .expect("next");
    let promoted = introduced
        .renewed(
            Renewal::PromoteCa,
            &service(),
            &Lifetimes::default(),
            at(DAY),
        )
        .expect("next");
    let mut data = BTreeMap::from([("other".to_owned(), ByteString(b"x".to_vec()))]);
    for bundle in [&first, &introduced, &promoted, &first] {
        bundle.write_to(&mut data);
        assert_eq!(&Bundle::from_data(&data).expect("readable"), bundle);
        assert!(data.contains_key("other"));
    }
}

#[test]
fn a_broken_secret_is_refused_by_the_key_that_is_wrong() {
    let broken: [(&str, Option<&str>); 5] = [
        ("tls.crt", None),
        ("tls.key", Some("")),
        ("ca.key", Some("?")),
        ("ca.crt", Some("?")),
        ("next-ca.crt", Some("?")),
    ];
    for (name, value) in broken {
        let mut data = BTreeMap::new();
        issued().write_to(&mut data);
        match value {
            None => data.remove(name),
            Some(value) => data.insert(name.to_owned(), ByteString(value.as_bytes().to_vec())),
        };
        assert!(Bundle::from_data(&data).is_err(), "{name}");
    }
    let (mut one, mut two) = (BTreeMap::new(), BTreeMap::new());
    issued().write_to(&mut one);
    issued().write_to(&mut two);
    one.insert(CA_KEY.to_owned(), two[CA_KEY].clone());
    let error = Bundle::from_data(&one).expect_err("not its key");
    assert_eq!(error.to_string(), "ca.crt and its key can't be used");
    assert!(!format!("{error:?}").contains("PRIVATE"), "{error:?}");
}

#[test]
fn keys_are_not_shown() {
    let bundle = issued();
    let shown = format!("{bundle:?} {:?}", bundle.material().expect("material"));
    assert!(!shown.contains("PRIVATE"), "{shown}");
    assert!(shown.contains("SigningKey { algorithm: ECDSA }"), "{shown}");
}
