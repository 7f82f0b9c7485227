//! The control plane of the tests itself: scenarios may rely on its promises.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use mimeo_tests::scenario::SOON;
use mimeo_tests::{
    Component, ControlPlane, Program, Shared, create_namespace, create_secret, eventually,
    install_crd, unique,
};

static PAIR: Shared = Shared::new(|| ControlPlane::builder().api_servers(2).audit(true));

#[tokio::test]
async fn what_one_api_server_stores_the_other_reads() -> Result<()> {
    let pair = PAIR.get().await?;
    let (first, second) = (pair.client().await?, pair.client_for(1).await?);
    let namespace = unique("team");
    create_namespace(&first, &namespace, &[("tier", "gold")]).await?;
    create_secret(&first, &namespace, "registry", &[("password", "example")]).await?;

    let read: Secret = Api::namespaced(second.clone(), &namespace)
        .get("registry")
        .await?;
    let data = read.data.context("the secret has no data")?;
    assert_eq!(data["password"].0, b"example");
    let labels = Api::<Namespace>::all(second)
        .get(&namespace)
        .await?
        .metadata
        .labels
        .unwrap_or_default();
    assert_eq!(labels["tier"], "gold");
    Ok(())
}

#[tokio::test]
async fn a_user_may_do_what_is_bound_and_no_more() -> Result<()> {
    let pair = PAIR.get().await?;
    let namespace = unique("team");
    let admin = pair.client().await?;
    create_namespace(&admin, &namespace, &[]).await?;
    let reader = pair.user("robin", &["readers", "guests"])?;
    for group in ["readers", "guests"] {
        let verb = if group == "readers" { "list" } else { "create" };
        bind(&admin, &namespace, group, verb).await?;
    }

    for api_server in 0..2 {
        let secrets: Api<Secret> =
            Api::namespaced(reader.client_for(api_server).await?, &namespace);
        eventually(SOON, "the roles to apply", || async {
            Ok(Some(secrets.list(&ListParams::default()).await?))
        })
        .await?;
        assert_forbidden(secrets.get("registry").await)?;
    }
    create_secret(&reader.client().await?, &namespace, "registry", &[]).await?;
    let elsewhere: Api<Secret> = Api::namespaced(reader.client().await?, "kube-system");
    assert_forbidden(elsewhere.list(&ListParams::default()).await)
}

#[tokio::test]
async fn the_audit_log_has_each_request_once() -> Result<()> {
    let pair = PAIR.get().await?;
    let user = pair.user(&unique("counted"), &["system:masters"])?;
    let namespace = unique("team");
    create_namespace(&user.client().await?, &namespace, &[]).await?;

    let mark = pair.audit_mark().await?;
    for api_server in [0, 0, 1] {
        create_secret(
            &user.client_for(api_server).await?,
            &namespace,
            &unique("secret"),
            &[],
        )
        .await?;
    }
    let client = user.client().await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    secrets.list(&ListParams::default()).await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let named = |name: &str| Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    };
    secrets.create(&dry_run, &named("dry")).await?;
    assert!(secrets.get_opt("absent").await?.is_none());

    let events: Vec<_> = pair
        .audit_since(&mark)
        .await?
        .into_iter()
        .filter(|event| event.user == user.name())
        .collect();
    let told = |event: &mimeo_tests::AuditEvent| {
        (
            event.api_server,
            event.verb.clone(),
            event.code,
            event.is_write(),
        )
    };
    let want = [
        (0, "create".to_owned(), 201, true),
        (0, "create".to_owned(), 201, true),
        (0, "list".to_owned(), 200, false),
        (0, "create".to_owned(), 201, false),
        (0, "get".to_owned(), 404, false),
        (1, "create".to_owned(), 201, true),
    ];
    assert_eq!(
        events.iter().map(told).collect::<Vec<_>>(),
        want,
        "{events:#?}"
    );
    assert!(
        events
            .iter()
            .all(|event| event.resource == "secrets" && event.namespace == namespace)
    );

    let later = pair.audit_mark().await?;
    let events = pair.audit_since(&later).await?;
    assert!(
        events.iter().all(|event| event.user != user.name()),
        "{events:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_goes_and_takes_its_objects_along() -> Result<()> {
    let pair = PAIR.get().await?;
    let client = pair.client().await?;
    let namespace = unique("team");
    create_namespace(&client, &namespace, &[]).await?;
    create_secret(&client, &namespace, "registry", &[]).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .delete(&namespace, &DeleteParams::default())
        .await?;
    eventually(SOON, "the namespace to be gone", || async {
        match namespaces.get_opt(&namespace).await? {
            None => Ok(Some(())),
            Some(left) => bail!("its status is {:?}", left.status),
        }
    })
    .await?;
    assert!(
        Api::<Secret>::namespaced(client, &namespace)
            .get_opt("registry")
            .await?
            .is_none()
    );
    Ok(())
}

#[tokio::test]
async fn an_installed_crd_is_served() -> Result<()> {
    let pair = PAIR.get().await?;
    let client = pair.client().await?;
    let crd: CustomResourceDefinition = serde_json::from_value(serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    }))?;
    install_crd(&client, &crd).await?;

    let widget = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    let widgets: Api<DynamicObject> = Api::namespaced_with(client, "default", &widget);
    widgets
        .create(
            &PostParams::default(),
            &DynamicObject::new("first", &widget),
        )
        .await?;
    Ok(())
}

#[tokio::test]
async fn another_control_plane_loses_its_servers_and_no_data() -> Result<()> {
    let other = ControlPlane::builder()
        .api_servers(2)
        .controller_manager(false)
        .start()
        .await?;
    let client = other.client().await?;
    let namespace = unique("team");
    create_namespace(&client, &namespace, &[]).await?;
    let in_pair = Api::<Namespace>::all(PAIR.get().await?.client().await?)
        .get_opt(&namespace)
        .await?;
    assert!(in_pair.is_none(), "control planes share nothing");

    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("kept".to_owned());
    maps.create(&PostParams::default(), &map).await?;

    other.kill(Component::ApiServer(0))?;
    assert!(maps.get("kept").await.is_err(), "no API server runs");
    Api::<ConfigMap>::namespaced(other.client_for(1).await?, &namespace)
        .get("kept")
        .await?;
    other.start_again(Component::ApiServer(0)).await?;
    maps.get("kept").await?;

    other.restart(Component::Etcd).await?;
    eventually(SOON, "the stored object after etcd's restart", || async {
        Ok(maps.get_opt("kept").await?)
    })
    .await?;

    other.pause(Component::Etcd)?;
    // A signal takes a moment to arrive. From then on, a quorum read gets no answer.
    eventually(SOON, "etcd's silence", || async {
        let read = tokio::time::timeout(Duration::from_millis(300), maps.get("kept")).await;
        Ok((!matches!(read, Ok(Ok(_)))).then_some(()))
    })
    .await?;
    other.resume(Component::Etcd)?;
    eventually(SOON, "the stored object after etcd's pause", || async {
        Ok(maps.get_opt("kept").await?)
    })
    .await?;
    assert!(other.resident_bytes(Component::ApiServer(0))? > 50 << 20);
    Ok(())
}

#[tokio::test]
async fn kubectl_speaks_to_it() -> Result<()> {
    let pair = PAIR.get().await?;
    let output = pair
        .kubectl()?
        .args([
            "auth",
            "whoami",
            "-o",
            "jsonpath={.status.userInfo.username}",
        ])
        .output()?;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "admin",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn a_deadline_tells_what_was_seen_last() {
    let outcome: Result<()> = eventually(Duration::from_millis(50), "five copies", || async {
        bail!("3 of 5 copies")
    })
    .await;
    let message = format!("{:#}", outcome.expect_err("never fulfilled"));
    assert!(
        message.contains("five copies: not within 50ms") && message.contains("3 of 5 copies"),
        "{message}"
    );
    assert!(message.contains(file!()), "the caller's line: {message}");
}

#[tokio::test]
async fn a_program_is_run_with_its_log() -> Result<()> {
    // The test's own binary certainly exists.
    let own = std::env::current_exe()?
        .file_name()
        .and_then(|name| name.to_str())
        .context("no name")?
        .to_owned();
    let mut listing = Program::new(&own).arg("--list").quiet().start()?;
    assert!(listing.wait(SOON).await?.success());
    assert!(
        listing
            .log()?
            .contains("a_program_is_run_with_its_log: test")
    );

    let mut waiting = Program::new(&own)
        .args(["--exact", "control_plane::stays_until_it_is_told"])
        .env(STAY, "1")
        .quiet()
        .start()?;
    eventually(SOON, "the start", || async {
        Ok(waiting.log()?.contains("running 1 test").then_some(()))
    })
    .await?;
    assert!(waiting.is_alive()? && waiting.resident_bytes()? > 0);
    assert_eq!(waiting.stop(SOON).await?.signal(), Some(15));
    assert!(!waiting.is_alive()? && waiting.terminate().is_err());

    let missing = Program::new("mimeo-absent")
        .start()
        .expect_err("no such binary");
    assert!(
        missing.to_string().contains("cargo build --bins"),
        "{missing}"
    );
    Ok(())
}

const STAY: &str = "MIMEO_TESTS_STAY";

/// The test above runs this as a program. Alone it does nothing.
#[tokio::test]
async fn stays_until_it_is_told() {
    if std::env::var_os(STAY).is_some() {
        std::future::pending::<()>().await;
    }
}

/// Permits a group this verb on the Secrets of a namespace.
async fn bind(admin: &Client, namespace: &str, group: &str, verb: &str) -> Result<()> {
    let metadata = ObjectMeta {
        name: Some(group.to_owned()),
        ..ObjectMeta::default()
    };
    let allowed = PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".to_owned()]),
        verbs: vec![verb.to_owned()],
        ..PolicyRule::default()
    };
    let role = Role {
        metadata: metadata.clone(),
        rules: Some(vec![allowed]),
    };
    Api::namespaced(admin.clone(), namespace)
        .create(&PostParams::default(), &role)
        .await?;
    let api_group = "rbac.authorization.k8s.io".to_owned();
    let binding = RoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: Some(api_group.clone()),
            kind: "Role".to_owned(),
            name: group.to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some(api_group),
            kind: "Group".to_owned(),
            name: group.to_owned(),
            namespace: None,
        }]),
    };
    Api::namespaced(admin.clone(), namespace)
        .create(&PostParams::default(), &binding)
        .await?;
    Ok(())
}

#[track_caller]
fn assert_forbidden<T>(answer: kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => bail!("allowed, though nothing allows it"),
    }
}
