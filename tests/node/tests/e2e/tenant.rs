//! A user inside the cluster, with an account but no permissions, looks for a Secret's content at
//! each of Mimeo's endpoints.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use mimeo_api::TransformPolicy;
use mimeo_node_tests::{Mimeo, PROGRAMS, Program};
use mimeo_tests::{
    NAMESPACE, create_namespace, create_secret, eventually, planted,
    scenario::{RuleSpec, SOON, apply, of, relabel, rule, value, version, wait_for},
    unique,
};
use serde_json::{Value, json};

use crate::{
    doors::{Door, token},
    people::{PULL_SECRET, People},
};

/// The content that no other user may see.
const SECRET: &str = "correct-horse-battery-staple";
/// The copy that the rule guards against drift.
const GUARDED: &str = "guarded";
/// The pending label, which Mimeo sets while a namespace waits.
const MARK: &str = "mimeo.dev/copies";

/// A path of the operations port, and the codes of a tenant's requests: on a port without tokens,
/// with the tenant's token, and without a token.
struct Page(&'static str, &'static [Program], [u16; 3]);

/// The existing paths, and some that an attacker would try.
const PAGES: [Page; 16] = [
    Page("/healthz", &PROGRAMS, [200; 3]),
    Page("/readyz", &PROGRAMS, [200; 3]),
    Page("/metrics", &PROGRAMS, [200, 403, 401]),
    // On a port without tokens, only clients inside the pod may use these paths.
    Page("/debug/state", &PROGRAMS, [403, 403, 401]),
    Page("/log-level", &PROGRAMS, [403, 403, 401]),
    // Every client gets the page, but only permitted users get its data.
    Page("/ui/", &[Program::Reconciler], [200; 3]),
    Page("/ui/page.js", &[Program::Reconciler], [200; 3]),
    Page("/ui/stream", &[Program::Reconciler], [403, 403, 401]),
    Page("/ui/copies", &[Program::Reconciler], [403, 403, 401]),
    Page("/", &[], [404; 3]),
    Page("/livez", &[], [404; 3]),
    Page("/debug", &[], [404; 3]),
    Page("/debug/pprof/", &[], [404; 3]),
    Page("/api", &[], [404; 3]),
    Page("/events", &[], [404; 3]),
    Page("/secrets", &[], [404; 3]),
];

impl Page {
    async fn answers(&self, program: Program, door: &Door, case: usize) -> Result<()> {
        let Self(path, programs, statuses) = self;
        let status = door.get(path).await?;
        let expected = if programs.contains(&program) {
            statuses[case]
        } else {
            404
        };
        ensure!(
            status == expected,
            "{path} of {} answers {status}, not {expected}",
            program.name()
        );
        Ok(())
    }
}

#[tokio::test]
async fn a_tenant_reads_no_secret_through_any_of_its_doors() -> Result<()> {
    // All endpoints are switched on.
    let switches = [
        ("MIMEO_UI", "mimeo-reconciler"),
        ("MIMEO_DEBUG_ENDPOINTS", "mimeo-(webhook|reconciler)"),
    ];
    let patches = switches.map(|(name, deployments)| {
        let patch = json!([{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": name, "value": "true"}}]);
        json!({"target": {"kind": "Deployment", "name": deployments}, "patch": patch.to_string()})
    });
    let mimeo = Mimeo::kustomized(&json!({"patches": patches})).await?;
    let scene = Scene::set(&mimeo).await?;
    let token = token(&mimeo, &scene.tenant).await?;
    let tenant = mimeo.node.client_with(&token).await?;
    for namespace in [scene.people.home(), &scene.filled, NAMESPACE] {
        let refused = of::<Secret>(&tenant, namespace)
            .list(&ListParams::default())
            .await;
        ensure!(
            matches!(refused, Err(kube::Error::Api(status)) if status.code == 403),
            "secrets of {namespace} are open"
        );
    }
    ensure!(
        Api::<Secret>::all(tenant)
            .list(&ListParams::default())
            .await
            .is_err(),
        "all secrets are open"
    );

    for program in PROGRAMS {
        for pod in mimeo.pods(program).await? {
            let ops = Door::of(&pod, "http", 8080, Some(&token))?;
            for page in PAGES {
                page.answers(program, &ops, 0).await?;
            }
            if program == Program::Webhook {
                scene
                    .review(&Door::of(&pod, "https", 8443, Some(&token))?)
                    .await?;
            }
        }
    }
    let refused = of::<Secret>(&mimeo.client, &scene.tenant)
        .get_opt(PULL_SECRET)
        .await?;
    ensure!(refused.is_none(), "a forged review has brought them a copy");
    scene.strike().await
}

#[tokio::test]
async fn a_tenant_s_token_opens_nothing_where_tokens_are_asked_for() -> Result<()> {
    Mimeo::remove_any().await?;
    let mimeo = Mimeo::by_chart(&json!({
        "metrics": {"auth": "Token"}, "debugEndpoints": true, "reconciler": {"ui": true},
    }))
    .await?;
    let home = unique("tenant");
    create_namespace(&mimeo.client, &home, &[]).await?;
    let token = token(&mimeo, &home).await?;
    for program in PROGRAMS {
        for pod in mimeo.pods(program).await? {
            for (case, token) in [(1, Some(&*token)), (2, None)] {
                let ops = Door::of(&pod, "https", 8080, token)?;
                for page in PAGES {
                    page.answers(program, &ops, case).await?;
                }
            }
        }
    }
    mimeo.delete().await?;
    mimeo
        .node
        .kubectl(["delete", "namespace", &home])
        .await
        .map(drop)
}

/// The objects to look for: a source, its copies, and a foreign Secret in the place of a copy, all
/// with the same content.
struct Scene {
    people: People,
    /// A namespace with copies.
    filled: String,
    /// A namespace that waits for a copy which cannot be written.
    stuck: String,
    /// The tenant's own namespace, which no rule selects.
    tenant: String,
    /// A `TransformPolicy` changes Secrets.
    policies: Api<TransformPolicy>,
    guarding: RuleSpec,
}

impl Scene {
    async fn set(mimeo: &Mimeo) -> Result<Self> {
        let client = &mimeo.client;
        let people = People::settle(client, "doors").await?;
        let tag = people.tag.clone();
        apply(
            client,
            &json!({
                "apiVersion": "mimeo.dev/v1alpha1", "kind": "TransformPolicy", "metadata": {"name": &tag},
                "spec": {
                    "match": {"kinds": [{"apiVersion": "v1", "kind": "Secret"}], "objectSelector": {"matchLabels": {"doors": &tag}}},
                    "transform": {"labels": {"set": {"seen": "yes"}}},
                },
            }),
        )
        .await?;
        let guarding = rule(&format!("{tag}-guarding"))
            .secret(people.home(), PULL_SECRET)
            .to_label("people", &tag);
        let guarding = guarding.named(GUARDED).denying();
        guarding.create(client).await?;

        let planted = format!("{}{SECRET}", planted::MARK);
        people.rotate(&planted).await?;
        let filled = people.move_in().await?;
        people.have(std::slice::from_ref(&filled), SECRET).await?;
        let holds = |copy: &Secret| value(copy, "password").as_deref() == Some(SECRET);
        wait_for(of(client, &filled), GUARDED.to_owned(), holds).await?;
        let (stuck, tenant) = (unique(&tag), format!("{tag}-tenant"));
        create_namespace(client, &stuck, &[]).await?;
        create_secret(client, &stuck, PULL_SECRET, &[("password", &planted)]).await?;
        relabel(client, &stuck, "people", Some(&tag)).await?;
        create_namespace(client, &tenant, &[]).await?;
        Ok(Self {
            people,
            filled,
            stuck,
            tenant,
            policies: Api::all(client.clone()),
            guarding,
        })
    }

    async fn strike(&self) -> Result<()> {
        self.policies
            .delete(&self.people.tag, &DeleteParams::default())
            .await?;
        self.guarding.delete(&self.people.client).await?;
        self.people.leave().await
    }

    /// Sends reviews to one replica as if they came from the API server, so that each hook uses the
    /// objects that it knows. The answers have the words named here, and never the content of a
    /// Secret.
    async fn review(&self, door: &Door) -> Result<()> {
        let (client, tag, home) = (&self.people.client, &*self.people.tag, self.people.home());
        let metadata = json!({"name": unique(tag), "labels": {"people": tag}});
        let created = review(
            "namespaces",
            "Namespace",
            "CREATE",
            &json!({"object": {"metadata": metadata}}),
        );
        says(door, "/mutate/namespaces", &created, "mimeo.dev~1copies").await?;
        self.claim_to_be_selected(door).await?;

        let pod = json!({"namespace": self.stuck, "object": {"metadata": {"name": "a", "namespace": self.stuck}}});
        says(
            door,
            "/mutate/pods",
            &review("pods", "Pod", "CREATE", &pod),
            "podGate Required): Conflict",
        )
        .await?;

        let metadata =
            json!({"name": PULL_SECRET, "namespace": self.stuck, "labels": {"doors": tag}});
        let secret = json!({"namespace": self.stuck, "object": {"metadata": metadata, "data": {"password": ""}}});
        let objects = format!("/mutate/objects/{tag}");
        says(
            door,
            &objects,
            &review("secrets", "Secret", "CREATE", &secret),
            "seen",
        )
        .await?;

        let all = json!({"apiVersion": "v1", "kind": "Secret", "namespace": home, "selector": {}});
        let (named, mut selecting) = (self.people.rule(), self.people.rule());
        selecting.spec["sources"] = json!([all]);
        selecting.spec["targets"][0]["copyName"] = json!("$(source.name)");
        for (rule, words) in [
            (named, "Name one rule's copies differently"),
            (selecting, "every Secret in namespace"),
        ] {
            self.review_rule(
                door,
                RuleSpec {
                    name: unique(tag),
                    ..rule
                },
                words,
            )
            .await?;
        }

        let copy = of::<Secret>(client, &self.filled).get(GUARDED).await?;
        let metadata =
            json!({"name": GUARDED, "namespace": self.filled, "annotations": copy.annotations()});
        let copy =
            json!({"namespace": self.filled, "name": GUARDED, "oldObject": {"metadata": metadata}});
        let mut change = copy.clone();
        change["object"] = json!({"metadata": {"name": GUARDED, "namespace": self.filled}});
        for (operation, about) in [("UPDATE", &change), ("DELETE", &copy)] {
            let review = review("secrets", "Secret", operation, about);
            says(
                door,
                "/validate/copies",
                &review,
                "whose driftPolicy is Deny",
            )
            .await?;
        }
        Ok(())
    }

    /// Claims that the tenant's namespace gets the label that the rule selects. The hook must set
    /// the pending label, and then finds that the claim is false.
    async fn claim_to_be_selected(&self, door: &Door) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.people.client.clone());
        let before = wait_for(namespaces.clone(), self.tenant.clone(), |found| {
            !found.labels().contains_key(MARK)
        })
        .await?;
        let mut after = before.clone();
        after
            .labels_mut()
            .insert("people".to_owned(), self.people.tag.clone());
        let labelled = json!({"name": self.tenant, "namespace": self.tenant, "object": after, "oldObject": before});
        let review = review("namespaces", "Namespace", "UPDATE", &labelled);
        let answer = door.ask("/mutate/namespaces", &review).await?;
        ensure!(answer.contains("\"allowed\":true"), "{answer}");
        ensure!(
            version(&namespaces.get(&self.tenant).await?) != version(&before),
            "nothing was done about it"
        );
        let unmarked = |found: &Namespace| !found.labels().contains_key(MARK);
        wait_for(namespaces, self.tenant.clone(), unmarked)
            .await
            .map(drop)
    }

    /// Reviews a rule as the admin, and expects these words in the answer. Reviews it as the
    /// tenant, and expects a refusal.
    async fn review_rule(&self, door: &Door, rule: RuleSpec, words: &str) -> Result<()> {
        let (kind, plural) = ("ClusterReplication", "clusterreplications");
        let object = rule.object();
        let created = review(
            plural,
            kind,
            "CREATE",
            &json!({"name": rule.name, "object": object}),
        );
        says(door, "/mutate/rules", &created, "mimeo.dev/author").await?;
        let admin = json!({"username": "admin", "groups": ["system:masters"]});
        let mut about = json!({"name": rule.name, "object": object, "userInfo": admin});
        says(
            door,
            "/validate/rules",
            &review(plural, kind, "CREATE", &about),
            words,
        )
        .await?;
        about["userInfo"] =
            json!({"username": format!("system:serviceaccount:{}:default", self.tenant)});
        says(
            door,
            "/validate/rules",
            &review(plural, kind, "CREATE", &about),
            "may not",
        )
        .await
    }
}

/// Waits until a hook's answer has these words. They prove that the hook used the objects. No
/// answer may contain a Secret's content.
async fn says(door: &Door, hook: &str, review: &Value, words: &str) -> Result<()> {
    eventually(SOON, format!("{hook} to say {words:?}"), || async {
        let answer = door.ask(hook, review).await?;
        ensure!(answer.contains(words), "it says {answer}");
        Ok(Some(()))
    })
    .await
}

/// Returns a review of this request. Its user is the reconciler's service account, unless `about`
/// names another one.
fn review(resource: &str, kind: &str, operation: &str, about: &Value) -> Value {
    let group = if resource == "clusterreplications" {
        "mimeo.dev"
    } else {
        ""
    };
    let version = if group.is_empty() { "v1" } else { "v1alpha1" };
    let kind = json!({"group": group, "version": version, "kind": kind});
    let resource = json!({"group": group, "version": version, "resource": resource});
    let mut request = json!({
        "uid": unique("review"), "operation": operation, "kind": kind, "requestKind": kind,
        "resource": resource, "requestResource": resource, "name": about["object"]["metadata"]["name"],
        "userInfo": {"username": "system:serviceaccount:mimeo-system:mimeo-reconciler"}, "object": null, "oldObject": null,
        "dryRun": false, "options": {},
    });
    for (field, value) in about.as_object().into_iter().flatten() {
        request[field] = value.clone();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}
