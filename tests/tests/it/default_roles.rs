//! The cluster's default roles view, edit and admin, to which the chart adds permissions on rules
//! and grants. Users with one of these roles in one namespace test them.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mimeo_tests::{
    ControlPlane, Pair, create_namespace, create_secret, eventually,
    scenario::{SOON, apply, create, kubectl, rule, wait_for},
};
use serde::Deserialize;
use serde_json::{Value, json};

const GROUP: &str = "/apis/mimeo.dev/v1alpha1";

/// Returns the roles of the chart with `rbac.aggregate`.
fn roles() -> Result<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/chart/everything.yaml");
    let manifests = fs::read_to_string(path)?;
    let objects = serde_yaml::Deserializer::from_str(&manifests)
        .map(Value::deserialize)
        .collect::<Result<Vec<_>, _>>()?;
    let is = |object: &Value| {
        object["kind"] == "ClusterRole"
            && matches!(
                object["metadata"]["name"].as_str(),
                Some("mimeo-view" | "mimeo-edit" | "mimeo-admin")
            )
    };
    let roles: Vec<Value> = objects.into_iter().filter(is).collect();
    assert_eq!(roles.len(), 3);
    Ok(roles)
}

fn replication(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "Replication", "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "sources": [{"apiVersion": "v1", "kind": "Secret", "name": "db"}],
            "targets": [{"namespaces": [namespace], "copyName": format!("{name}-copy")}],
        },
    })
}

fn grant(namespace: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "mimeo.dev/v1alpha1", "kind": "ReplicationGrant", "metadata": {"namespace": namespace, "name": kind.to_lowercase()},
        "spec": {"access": "Read", "grantees": [{"namespaces": ["team-b"]}], "objects": [{"apiVersion": "v1", "kind": kind}]},
    })
}

/// A user. The API server's answers show the user's permissions.
struct Person(Client);

impl Person {
    /// Returns the code of the answer to a GET.
    async fn reads(&self, path: &str) -> Result<u16> {
        let request = http::Request::get(format!("{GROUP}/{path}")).body(Vec::new())?;
        code(self.0.request::<Value>(request).await)
    }

    async fn creates(&self, namespace: &str, plural: &str, object: &Value) -> Result<u16> {
        code(create(&self.0, &format!("namespaces/{namespace}/{plural}"), object).await)
    }

    async fn deletes(&self, path: &str) -> Result<u16> {
        let request = http::Request::delete(format!("{GROUP}/{path}")).body(Vec::new())?;
        code(self.0.request::<Value>(request).await)
    }
}

fn code(answer: kube::Result<Value>) -> Result<u16> {
    match answer {
        Ok(_) => Ok(200),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error).context("no answer"),
    }
}

/// Returns a user with that role in team-a. Waits until the role has the last of Mimeo's additions.
async fn with(control_plane: &ControlPlane, role: &str, may: [&str; 2]) -> Result<Person> {
    let name = format!("a-{role}");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": "team-a", "name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    });
    apply(&control_plane.client().await?, &binding).await?;
    let person = Person(control_plane.user(&name, &[])?.client().await?);
    eventually(SOON, format!("{name}'s rights"), || async {
        let seen = person.reads("namespaces/team-a/replications").await?;
        let may = [
            "auth",
            "can-i",
            may[0],
            may[1],
            "--namespace=team-a",
            "--as",
            &name,
        ];
        if seen == 200 && kubectl(control_plane, may)?.starts_with("yes") {
            Ok(Some(()))
        } else {
            bail!("{seen}")
        }
    })
    .await?;
    Ok(person)
}

#[tokio::test]
async fn who_may_view_sees_who_may_edit_copies_and_who_is_admin_consents_and_all_in_their_namespace()
-> Result<()> {
    let control_plane = ControlPlane::builder().start().await?;
    let client = control_plane.client().await?;
    let _pair = Pair::builder()
        .shipped_rights()
        .start(&control_plane)
        .await?;
    for role in roles()? {
        apply(&client, &role).await?;
    }
    for namespace in ["team-a", "team-b"] {
        create_namespace(&client, namespace, &[]).await?;
    }
    create_secret(&client, "team-a", "db", &[("token", "one")]).await?;
    let [viewer, editor, admin] = [
        with(
            &control_plane,
            "view",
            ["list", "replicationgrants.mimeo.dev"],
        )
        .await?,
        with(&control_plane, "edit", ["create", "replications.mimeo.dev"]).await?,
        with(
            &control_plane,
            "admin",
            ["create", "replicationgrants.mimeo.dev"],
        )
        .await?,
    ];

    // Paths that all of them may read, and paths that none may read.
    for (who, person) in [("view", &viewer), ("edit", &editor), ("admin", &admin)] {
        for (path, want) in [
            ("namespaces/team-a/replications", 200),
            ("namespaces/team-a/replicationgrants", 200),
            ("namespaces/team-b/replications", 403),
            ("replications", 403),
            ("clusterreplications", 403),
            ("transformpolicies", 403),
        ] {
            assert_eq!(person.reads(path).await?, want, "{who}: {path}");
        }
        let elsewhere = person
            .creates("team-b", "replications", &replication("team-b", who))
            .await?;
        assert_eq!(elsewhere, 403, "{who}");
        let everywhere = create(&person.0, "clusterreplications", &rule(who).object()).await;
        assert_eq!(code(everywhere)?, 403, "{who}");
    }
    // Rules that copy.
    assert_eq!(
        viewer
            .creates("team-a", "replications", &replication("team-a", "view"))
            .await?,
        403
    );
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "team-a");
    for (person, name) in [(&editor, "edit"), (&admin, "admin")] {
        assert_eq!(
            person
                .creates("team-a", "replications", &replication("team-a", name))
                .await?,
            200,
            "{name}"
        );
        wait_for(secrets.clone(), format!("{name}-copy"), |_: &Secret| true).await?;
    }
    assert_eq!(
        viewer
            .deletes("namespaces/team-a/replications/edit")
            .await?,
        403
    );
    assert_eq!(
        editor
            .deletes("namespaces/team-a/replications/edit")
            .await?,
        200
    );
    // No rule copies RBAC objects, not even for users with that permission.
    let mut roles = replication("team-a", "roles");
    roles["spec"]["sources"][0] =
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "name": "db"});
    for person in [&editor, &admin] {
        ensure!(
            person.creates("team-a", "replications", &roles).await? != 200,
            "a Replication of RBAC"
        );
    }
    // Grants.
    let secret = grant("team-a", "Secret");
    assert_eq!(
        viewer
            .creates("team-a", "replicationgrants", &secret)
            .await?,
        403
    );
    assert_eq!(
        editor
            .creates("team-a", "replicationgrants", &secret)
            .await?,
        403
    );
    assert_eq!(
        admin
            .creates("team-a", "replicationgrants", &secret)
            .await?,
        200
    );
    // No user may grant a kind that the user cannot read, not even with the role admin.
    let mut unreadable = grant("team-a", "CSIStorageCapacity");
    unreadable["spec"]["objects"][0]["apiVersion"] = "storage.k8s.io/v1".into();
    let told = create(&admin.0, "namespaces/team-a/replicationgrants", &unreadable).await;
    ensure!(
        matches!(&told, Err(kube::Error::Api(status)) if status.code == 403),
        "{told:?}"
    );
    assert_eq!(
        editor
            .deletes("namespaces/team-a/replicationgrants/secret")
            .await?,
        403
    );
    assert_eq!(
        admin
            .deletes("namespaces/team-a/replicationgrants/secret")
            .await?,
        200
    );
    Ok(())
}
