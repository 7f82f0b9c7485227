//! The test library notices leaked Secret data wherever it appears. Without this proof, the silence
//! of all other scenarios would mean nothing.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{ByteString, api::events::v1::Event};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use mimeo_tests::{
    ControlPlane, Pair, create_secret, eventually,
    planted::{MARK, is_in},
    scenario::{SOON, Setting, annotation, create, kubectl, rule, value},
};
use serde_json::{Value, json};

/// Set only in the process that runs the test.
const ALONE: &str = "MIMEO_TESTS_ALONE";

/// Runs in a process of its own. A leaked value fails the next scene that ends, which would belong
/// to another test here.
#[test]
fn what_comes_up_of_a_secret_fails_the_scene_wherever_it_is_told() -> Result<()> {
    if env::var_os(ALONE).is_some() {
        return tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(what_comes_up());
    }
    let name = "planted::what_comes_up_of_a_secret_fails_the_scene_wherever_it_is_told";
    let output = Command::new(env::current_exe()?)
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()?;
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{stderr}"
    );
    Ok(())
}

async fn what_comes_up() -> Result<()> {
    let setting = Setting::start(ControlPlane::builder(), Pair::builder()).await?;
    let scene = setting.scene("seen").await?;
    let namespaces = scene.namespaces(2).await?;
    scene.secret("registry", &[("token", "one")]).await?;
    create_secret(
        &scene.client,
        &namespaces[0],
        "registry",
        &[("token", "theirs")],
    )
    .await?;
    // The cluster has the marked value. The client of the tests shows it without the mark.
    ensure!(
        value(&scene.secrets(&scene.home).get("registry").await?, "token").as_deref()
            == Some("one")
    );
    let args = [
        "get",
        "secret",
        "registry",
        "-o",
        "json",
        "--namespace",
        &scene.home,
    ];
    let stored: Value =
        serde_json::from_slice(&setting.control_plane.kubectl()?.args(args).output()?.stdout)?;
    assert_eq!(
        stored["data"]["token"],
        json!(ByteString(format!("{MARK}one").into_bytes()))
    );
    // The API server reads some contents itself. They are marked, too.
    let login = r#"{"auths":{"registry.example.com":{"auth":"b25l"}}}"#;
    let pull = json!({
        "metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": login},
    });
    let secrets = scene.secrets(&scene.home);
    secrets
        .create(&PostParams::default(), &serde_json::from_value(pull)?)
        .await?;
    ensure!(value(&secrets.get("pull").await?, ".dockerconfigjson").as_deref() == Some(login));
    let args = [
        "get",
        "secret",
        "pull",
        "-o",
        "json",
        "--namespace",
        &scene.home,
    ];
    let stored = setting.control_plane.kubectl()?.args(args).output()?.stdout;
    ensure!(
        is_in(&String::from_utf8_lossy(&stored)),
        "it wasn't planted"
    );

    // The name of this rule has the mark and appears everywhere. So it looks like leaked content of
    // a Secret.
    let betrayer = rule(&format!("{MARK}-{}", scene.tag)).to_label("scene", &scene.tag);
    let betrayer = betrayer.secret(&scene.home, "registry");
    betrayer.create(&scene.client).await?;
    scene.wait_counts(&betrayer.name, [2, 1, 1]).await?;
    // The webhook leaks it, too.
    scene
        .wait_condition(&betrayer.name, "PodGateActive", "True", "Active")
        .await?;
    let new = scene.namespace().await?;
    let copy = scene
        .wait_secret(&new, "registry", |copy| {
            value(copy, "token").as_deref() == Some("one")
        })
        .await?;
    // A copy's checksum may not appear either.
    let checksum = annotation(&copy, "mimeo.dev/checksum").context("no checksum")?;
    let second = rule(&format!("{}-{checksum}", scene.tag)).to_label("scene", &scene.tag);
    let second = second.secret(&scene.home, "registry").named("second");
    second.create(&scene.client).await?;
    scene.wait_synced(&second.name).await?;
    let events: Api<Event> = Api::all(scene.client.clone());
    eventually(SOON, "an Event about the rule", || async {
        let told = events.list(&ListParams::default()).await?.items;
        let about = |event: &Event| {
            event
                .regarding
                .iter()
                .any(|object| object.name.as_ref() == Some(&betrayer.name))
        };
        if told.iter().any(about) {
            Ok(Some(()))
        } else {
            bail!("{} Events", told.len())
        }
    })
    .await?;
    let refused = create(&scene.client, "clusterreplications", &betrayer.object()).await;
    ensure!(refused.is_err(), "there is one");
    kubectl(&setting.control_plane, ["get", "clusterreplications"])?;

    let found = fails(|| drop(scene)).context("the scene ended well")?;
    for place in [
        "the log of webhook-",
        "the log of reconciler-",
        "an answer of /api/v1/events",
        "an answer of /apis/mimeo.dev/v1alpha1/clusterreplications",
        "already exists",
        "kubectl get clusterreplications",
    ] {
        ensure!(found.contains(place), "not found: {place}; but: {found}");
    }
    let of_checksum: Vec<_> = found
        .lines()
        .filter(|line| line.contains(checksum) && !line.contains(MARK))
        .collect();
    for place in [
        "the log of reconciler-",
        "an answer of /apis/mimeo.dev/v1alpha1/clusterreplications",
    ] {
        ensure!(
            of_checksum.iter().any(|line| line.contains(place)),
            "not found: {place}; but: {of_checksum:#?}"
        );
    }
    // A value that is found after all scenes fails the setting.
    let found = fails(|| drop(setting)).context("the programs ended well")?;
    ensure!(found.contains("the log of webhook-"), "{found}");
    Ok(())
}

/// Returns the message of the panic.
fn fails(end: impl FnOnce()) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(end)).err()?;
    panic.downcast_ref::<String>().cloned()
}
