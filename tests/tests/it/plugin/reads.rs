//! The requests that each command of `kubectl mimeo` sends, from the API server's audit log. A
//! command changes the cluster only if that is its purpose.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use mimeo_tests::{
    AuditEvent, User,
    scenario::{Scene, apply, rule},
    tenant::{Tenant, copying},
};

use super::{Output, command, finish};
use crate::stages::PLAIN as STAGE;

const REGISTRY: &str = "registry";

/// Resources whose create asks about permissions. The API server stores none of these objects.
const REVIEWS: [&str; 3] = [
    "selfsubjectaccessreviews",
    "selfsubjectrulesreviews",
    "subjectaccessreviews",
];

/// True if the request can't change the cluster.
fn only_reads(event: &AuditEvent) -> bool {
    let reads = ["get", "list", "watch"].contains(&event.verb.as_str());
    let review = event.verb == "create"
        && event.group == "authorization.k8s.io"
        && REVIEWS.contains(&event.resource.as_str());
    reads || review || event.uri.contains("dryRun=All")
}

/// Runs a command. Returns its output, and the requests of its user meanwhile.
async fn requests(
    scene: &Scene<'_>,
    user: &User,
    args: &[&str],
) -> Result<(Output, Vec<AuditEvent>)> {
    let control_plane = &scene.setting.control_plane;
    let mark = control_plane.audit_mark().await?;
    let mut command = command(control_plane, Some(user), args)?;
    // `ui` starts this program to forward a port.
    command.env("KUBECTL", "false");
    let output = finish(command)?;
    let mut events = control_plane.audit_since(&mark).await?;
    events.retain(|event| event.user == user.name());
    Ok((output, events))
}

#[tokio::test]
async fn only_commands_whose_purpose_is_a_change_change_the_cluster() -> Result<()> {
    let scene = STAGE.scene("reads").await?;
    let namespace = scene.namespace().await?;
    let tenant = Tenant::new(&scene).await?;
    scene.secret(REGISTRY, &[("token", "one")]).await?;
    let registry = scene.rule().secret(&scene.home, REGISTRY);
    registry.create(&scene.client).await?;
    scene.wait_synced(&scene.tag).await?;
    let pull = copying(Some(&scene.home), "db", &[]);
    let pull = tenant.object("replications", "pull", &pull);
    apply(&scene.client, &pull).await?;
    let new = rule(&format!("{}-new", scene.tag)).secret(&scene.home, REGISTRY);
    let new = new.to_label("scene", &scene.tag).named("new");
    let mut file = tempfile::NamedTempFile::with_suffix(".json")?;
    file.write_all(new.object().to_string().as_bytes())?;
    let file = file.path().to_str().context("a path in UTF-8")?;

    // The user's name is in no request of another test.
    let control_plane = &scene.setting.control_plane;
    let user = control_plane.user(&scene.tag, &["system:masters"])?;
    let copy = format!("{namespace}/secret/{REGISTRY}");
    let pod = format!("{namespace}/pod/app");
    let source = format!("{}/{REGISTRY}", scene.home);
    let object = format!("{}/secret/{REGISTRY}", scene.home);
    let by_hand = format!("{namespace}/by-hand");
    let pull = format!("{}/pull", tenant.home);
    for (args, codes) in [
        (&["why", &copy][..], 0..=0),
        (&["why", &pod], 0..=1),
        (&["status", &scene.tag], 0..=1),
        (&["diff", "-f", file], 1..=1),
        (&["check"], 0..=1),
        (&["held"], 0..=1),
        (&["where", "secret", &source], 0..=0),
        (&["grant", &pull], 0..=0),
        (&["copy", &object, &by_hand, "--dry-run"], 0..=0),
        (&["ui"], 2..=2),
    ] {
        let (output, events) = requests(&scene, &user, args).await?;
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(codes.contains(&output.code), "{args:?}: {told}");
        assert!(!events.is_empty(), "{args:?} sent no request: {told}");
        let changes = events.iter().filter(|event| !only_reads(event));
        let changes: Vec<&AuditEvent> = changes.collect();
        assert!(changes.is_empty(), "{args:?}: {changes:#?}");
    }

    // A change would have been found.
    let (output, events) = requests(&scene, &user, &["copy", &object, &by_hand]).await?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(!events.iter().all(only_reads), "{events:#?}");
    Ok(())
}
