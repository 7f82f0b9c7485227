//! Every field of a tenant's rule has its effect on copies: in the tenant's own namespace, and in
//! another namespace with the consent of its owner.

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use mimeo_api::{ClusterReplicationStatus, Replication, ReplicationGrant};
use mimeo_tests::managed::{keys, ours};
use mimeo_tests::scenario::{
    SOON, Scene, annotation, delete, label, merge, of, put, uid, value, version, wait_for,
    wait_gone,
};
use mimeo_tests::tenant::{Tenant, consent, copying, has};
use mimeo_tests::traffic::refusal;
use mimeo_tests::{AuditEvent, eventually};
use serde_json::{Value, json};

use crate::stages::SHIPPED_QUICK as STAGE;

/// The namespaces and users of one Replication.
struct Ground<'a> {
    scene: &'a Scene<'a>,
    /// The author of the rules. The rules and the sources are in the author's namespace.
    author: Tenant<'a>,
    /// An editor of the namespace of the copies.
    owner: Tenant<'a>,
}

impl<'a> Ground<'a> {
    /// The copies are in the author's own namespace. Another user may edit it, too.
    async fn at_home(scene: &'a Scene<'a>) -> Result<Self> {
        let author = Tenant::editor(scene).await?;
        let owner = Tenant::editor_of(scene, &author.home).await?;
        Ok(Self {
            scene,
            author,
            owner,
        })
    }

    /// The copies are in another namespace. Its owner grants the author the names `copy-*`, and no
    /// others.
    async fn granted(scene: &'a Scene<'a>) -> Result<Self> {
        let (author, owner) = (Tenant::editor(scene).await?, Tenant::editor(scene).await?);
        owner
            .writes(
                "replicationgrants",
                "g",
                &consent("Write", &author.home, &["copy-*"]),
            )
            .await?;
        Ok(Self {
            scene,
            author,
            owner,
        })
    }

    fn is_abroad(&self) -> bool {
        self.author.home != self.owner.home
    }

    /// Returns the spec of a rule that copies the author's source, under each of these names.
    fn copying(&self, source: &str, copies: &[&str]) -> Value {
        let mut spec = copying(None, source, &[]);
        spec["targets"] = copies
            .iter()
            .map(|name| json!({"namespaces": [self.owner.home], "copyName": name}))
            .collect();
        spec
    }

    /// Replaces the spec of a rule, as its author.
    async fn replace(&self, rule: &str, spec: &Value) -> Result<()> {
        let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        self.author
            .rules()
            .patch(rule, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Changes the author's source.
    async fn rotate(&self, source: &str, token: &str) -> Result<()> {
        put(&self.author.secrets(), source, &[("token", token)]).await?;
        Ok(())
    }

    /// Waits for a copy, as an editor of its namespace.
    async fn copy(&self, name: &str, is: impl Fn(&Secret) -> bool) -> Result<Secret> {
        wait_for(self.owner.secrets(), name.to_owned(), is).await
    }
}

/// Runs the test on both grounds at the same time.
async fn on_each_ground<'a>(
    scene: &'a Scene<'a>,
    play: impl AsyncFn(Ground<'a>) -> Result<()>,
) -> Result<()> {
    let grounds = [Ground::at_home(scene).await?, Ground::granted(scene).await?];
    try_join_all(grounds.into_iter().map(|ground| play(ground))).await?;
    Ok(())
}

fn holds(token: &str) -> impl Fn(&Secret) -> bool {
    move |copy| value(copy, "token").as_deref() == Some(token)
}

#[tokio::test]
async fn a_shared_copy_keeps_what_its_namespaces_owner_adds_and_an_exclusive_one_does_not()
-> Result<()> {
    let scene = STAGE.scene("strategy").await?;
    on_each_ground(&scene, async |ground| {
        let Ground { author, owner, .. } = &ground;
        author.makes("db", "one").await?;
        put(&author.secrets(), "db", &[("user", "robot")]).await?;
        let shared = ground.copying("db", &["copy-shared"]);
        let mut exclusive = ground.copying("db", &["copy-exclusive"]);
        exclusive["strategy"] = json!("Replace");
        for (rule, spec) in [("shared", &shared), ("exclusive", &exclusive)] {
            author.writes("replications", rule, spec).await?;
            author.status(rule, "Ready", "Synced").await?;
        }
        let added = json!({"metadata": {"labels": {"team": "blue"}}, "data": {"added": "eA=="}});
        for copy in ["copy-shared", "copy-exclusive"] {
            merge(&owner.secrets(), copy, added.clone()).await?;
        }
        let bare = |copy: &Secret| keys(copy) == ["token", "user"] && label(copy, "team").is_none();
        let before = ground.copy("copy-exclusive", bare).await?;
        // A key that the source loses is removed from both copies.
        merge(&author.secrets(), "db", json!({"data": {"user": null}})).await?;
        let is = |wanted: &'static [&str]| move |copy: &Secret| keys(copy) == wanted;
        let after = ground.copy("copy-exclusive", is(&["token"])).await?;
        assert_eq!(uid(&after), uid(&before));
        let copy = ground.copy("copy-shared", is(&["added", "token"])).await?;
        assert_eq!(label(&copy, "team"), Some("blue"));
        // Once the rule has the strategy `Replace`, the copy has no fields of other clients, as if
        // the strategy had been `Replace` from the start.
        let mut changed = shared.clone();
        changed["strategy"] = json!("Replace");
        ground.replace("shared", &changed).await?;
        let copy = ground.copy("copy-shared", is(&["token"])).await?;
        assert_eq!((label(&copy, "team"), ours(&copy)), (None, true));
        Ok(())
    })
    .await
}

/// A copy that is created once belongs to its namespace afterwards. Users may change and delete it,
/// and it stays when the rule is deleted.
#[tokio::test]
async fn what_a_tenants_rule_creates_once_is_neither_changed_nor_restored_nor_deleted() -> Result<()>
{
    let scene = STAGE.scene("once").await?;
    on_each_ground(&scene, async |ground| {
        let Ground { author, owner, .. } = &ground;
        author.makes("db", "one").await?;
        let mut once = ground.copying("db", &["copy-kept", "copy-changed", "copy-deleted"]);
        once["strategy"] = json!("CreateOnce");
        author.writes("replications", "once", &once).await?;
        author
            .writes(
                "replications",
                "pace",
                &ground.copying("db", &["copy-pace"]),
            )
            .await?;
        author.status("once", "Ready", "Synced").await?;
        let seeded = |namespace: &Namespace| {
            annotation(namespace, "mimeo.dev/seeded").is_some_and(|all| all.split(',').count() == 3)
        };
        wait_for(
            Api::all(ground.scene.client.clone()),
            owner.home.clone(),
            seeded,
        )
        .await?;

        let kept = ground.copy("copy-kept", has("one")).await?;
        let changed = put(&owner.secrets(), "copy-changed", &[("token", "theirs")]).await?;
        delete(&owner.secrets(), "copy-deleted").await?;
        let same = async || -> Result<()> {
            for copy in [&kept, &changed] {
                let name = copy.metadata.name.as_deref().unwrap_or_default();
                assert_eq!(
                    version(&owner.secrets().get(name).await?),
                    version(copy),
                    "{name}"
                );
            }
            ensure!(
                owner.secrets().get_opt("copy-deleted").await?.is_none(),
                "it came back"
            );
            Ok(())
        };
        ground.rotate("db", "two").await?;
        ground.copy("copy-pace", has("two")).await?;
        author.status("once", "Ready", "Synced").await?;
        same().await?;
        delete(&author.rules(), "once").await?;
        delete(&author.rules(), "pace").await?;
        wait_gone(owner.secrets(), "copy-pace").await?;
        same().await
    })
    .await
}

/// Tests each policy with two foreign objects: one with the content of the copy, and one without.
/// In other namespaces only one policy is permitted, even with a grant.
#[tokio::test]
async fn what_is_in_the_way_of_a_tenants_copies_is_taken_as_far_as_his_rule_says_so() -> Result<()>
{
    let scene = STAGE.scene("conflicts").await?;
    on_each_ground(&scene, async |ground| {
        let Ground { author, owner, .. } = &ground;
        author.makes("db", "one").await?;
        let (names, mut before) = (["copy-same", "copy-other"], Vec::new());
        for (name, token) in names.into_iter().zip(["one", "theirs"]) {
            before.push(owner.makes(name, token).await?);
        }
        let mut spec = ground.copying("db", &names);
        author.writes("replications", "r", &spec).await?;
        // For each policy: the number of synced copies, and whether Mimeo changes each of the two
        // existing objects.
        for (policy, synced, taken) in [
            ("Report", 0, [false, false]),
            ("Adopt", 1, [true, false]),
            ("Overwrite", 2, [true, true]),
        ] {
            spec["conflictPolicy"] = json!(policy);
            let replaced = ground.replace("r", &spec).await;
            if ground.is_abroad() && policy != "Report" {
                let Err(refused) = replaced else {
                    bail!("{policy} was accepted")
                };
                ensure!(
                    refused
                        .to_string()
                        .contains("spec.conflictPolicy: must be Report"),
                    "{refused}"
                );
                continue;
            }
            replaced?;
            let reason = if synced == 2 {
                "Synced"
            } else {
                "CopiesFailed"
            };
            // The status may count the first copy before Mimeo has tried the second.
            let counted = |rule: &Replication| {
                let status = rule
                    .status
                    .as_ref()
                    .filter(|status| status.observed_generation == rule.metadata.generation);
                let counts = status
                    .and_then(|status| status.copies.as_ref())
                    .map(|copies| (copies.desired, copies.synced, copies.failed));
                counts == Some((2, synced, 2 - synced))
            };
            let rules: Api<Replication> = of(&scene.client, &author.home);
            wait_for(rules, "r".to_owned(), counted).await?;
            let status = author.status("r", "Ready", reason).await?;
            ensure!(
                status
                    .failures
                    .iter()
                    .all(|failure| failure.reason == "Conflict"),
                "{policy}: {status:?}"
            );
            for ((name, before), taken) in names.into_iter().zip(&before).zip(taken) {
                let found = owner.secrets().get(name).await?;
                assert_eq!(
                    (ours(&found), uid(&found)),
                    (taken, uid(before)),
                    "{policy}: {name}"
                );
                if taken {
                    ensure!(holds("one")(&found), "{policy}: {name}");
                } else {
                    assert_eq!(version(&found), version(before), "{policy}: {name}");
                }
            }
        }
        Ok(())
    })
    .await
}

fn denies_drift(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 403 && status.message.contains("driftPolicy is Deny"))
}

/// The guard holds while the rule is active, and only in the rule's own namespace. It also holds
/// for the author of the rule.
#[tokio::test]
async fn a_tenants_rule_that_denies_drift_is_heard_in_his_own_namespace() -> Result<()> {
    let scene = STAGE.scene("deny").await?;
    on_each_ground(&scene, async |ground| {
        let Ground {
            scene,
            author,
            owner,
        } = &ground;
        author.makes("db", "one").await?;
        let repairs = ground.copying("db", &["copy-db"]);
        let mut denies = repairs.clone();
        denies["strategy"] = json!("Replace");
        denies["driftPolicy"] = json!("Deny");
        if ground.is_abroad() {
            return author
                .is_refused(
                    "replications",
                    "r",
                    &denies,
                    "spec.driftPolicy: must be Repair",
                )
                .await;
        }
        let mut rests = denies.clone();
        rests["suspend"] = json!(true);
        author.writes("replications", "r", &denies).await?;
        author.status("r", "Ready", "Synced").await?;
        let drift = Patch::Merge(json!({"stringData": {"token": "theirs"}}));
        let denied = async |copies: &Api<Secret>, params: &PatchParams| match copies
            .patch("copy-db", params, &drift)
            .await
        {
            Ok(_) => Ok(false),
            Err(error) if denies_drift(&error) => Ok(true),
            Err(error) => Err(error),
        };
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let is_denied = async |wanted: bool| {
            eventually(SOON, format!("denied: {wanted}"), || async {
                Ok((denied(&owner.secrets(), &dry_run).await? == wanted).then_some(()))
            })
            .await
        };
        is_denied(true).await?;
        let before = owner.secrets().get("copy-db").await?;
        let mark = scene.setting.control_plane.audit_mark().await?;
        for tenant in [owner, author] {
            let secrets = tenant.secrets();
            let (params, deletion) = (PatchParams::default(), DeleteParams::default());
            let changed = refusal(|| secrets.patch("copy-db", &params, &drift)).await;
            let changed = changed.with_context(|| format!("{} changed it", tenant.name()))?;
            ensure!(denies_drift(&changed), "{changed}");
            match refusal(|| secrets.delete("copy-db", &deletion)).await? {
                kube::Error::Api(status) if status.code == 403 => {}
                other => bail!("{other}"),
            }
        }
        // The API server may carry out a request if a busy webhook answers too late.
        let events = scene.setting.control_plane.audit_since(&mark).await?;
        let unasked =
            |event: &AuditEvent| event.namespace == owner.home && !event.passed_over.is_empty();
        if !events.iter().any(unasked) {
            assert_eq!(
                version(&owner.secrets().get("copy-db").await?),
                version(&before)
            );
        }
        // An added label is drift, too. A change of the source is not.
        let (secrets, params) = (owner.secrets(), PatchParams::default());
        let label = Patch::Merge(json!({"metadata": {"labels": {"team": "blue"}}}));
        let added = refusal(|| secrets.patch("copy-db", &params, &label)).await;
        let added = added.context("a label was added")?;
        ensure!(denies_drift(&added), "{added}");
        ground.rotate("db", "two").await?;
        ground.copy("copy-db", has("two")).await?;

        ground.replace("r", &rests).await?;
        is_denied(false).await?;
        ground.replace("r", &denies).await?;
        is_denied(true).await?;
        ground.replace("r", &repairs).await?;
        is_denied(false).await?;
        // Here Mimeo repairs the drift instead.
        merge(
            &owner.secrets(),
            "copy-db",
            json!({"stringData": {"token": "theirs"}}),
        )
        .await?;
        ground.copy("copy-db", has("two")).await?;
        Ok(())
    })
    .await
}

/// The ways in which a copy can lose its reason. Each has a field of the rule that decides about
/// the copy.
#[derive(Clone, Copy, Debug)]
enum End {
    RuleDeleted,
    Unmatched,
    NotGranted,
    SourceDeleted,
}

#[tokio::test]
async fn copies_of_a_tenant_stay_in_the_cases_in_which_his_rule_retains_them() -> Result<()> {
    let scene = STAGE.scene("retain").await?;
    let ends = [
        (End::RuleDeleted, "whenRuleDeleted"),
        (End::Unmatched, "whenUnmatched"),
        (End::NotGranted, "whenUnmatched"),
        (End::SourceDeleted, "whenSourceDeleted"),
    ];
    try_join_all(ends.map(|(end, field)| {
        let scene = &scene;
        on_each_ground(scene, async move |ground| {
            if matches!(end, End::NotGranted) && !ground.is_abroad() {
                return Ok(());
            }
            let Ground { author, owner, .. } = &ground;
            author.makes("db", "one").await?;
            // One rule retains only in this case, the other in all cases except this one.
            let fields = ["whenRuleDeleted", "whenUnmatched", "whenSourceDeleted"];
            for (rule, retains) in [("kept", true), ("gone", false)] {
                let mut spec = ground.copying("db", &[&format!("copy-{rule}")]);
                spec["retentionPolicy"] = json!({"sourceGracePeriodSeconds": 0});
                for one in fields {
                    let retain = (one == field) == retains;
                    spec["retentionPolicy"][one] = json!(if retain { "Retain" } else { "Delete" });
                }
                author.writes("replications", rule, &spec).await?;
                author.status(rule, "Ready", "Synced").await?;
            }
            let before = owner.secrets().get("copy-kept").await?;
            match end {
                End::RuleDeleted => {
                    for rule in ["kept", "gone"] {
                        delete(&author.rules(), rule).await?;
                    }
                }
                End::Unmatched => {
                    let elsewhere = json!([{"namespaces": [format!("{}-x", owner.home)]}]);
                    for rule in ["kept", "gone"] {
                        merge(
                            &author.rules(),
                            rule,
                            json!({"spec": {"targets": elsewhere}}),
                        )
                        .await?;
                        author.status(rule, "Authorized", "NotGranted").await?;
                    }
                }
                End::NotGranted => {
                    delete(&of::<ReplicationGrant>(&owner.client, &owner.home), "g").await?;
                    for rule in ["kept", "gone"] {
                        author.status(rule, "Authorized", "NotGranted").await?;
                    }
                }
                End::SourceDeleted => {
                    delete(&author.secrets(), "db").await?;
                    for rule in ["kept", "gone"] {
                        author
                            .status(rule, "SourcesFound", "SourceNotFound")
                            .await?;
                    }
                }
            }
            wait_gone(owner.secrets(), "copy-gone").await?;
            let after = owner.secrets().get("copy-kept").await?;
            assert_eq!(
                version(&after),
                version(&before),
                "{end:?}: it is not even touched"
            );
            // From then on the copy belongs to the owner of the namespace.
            if !matches!(end, End::SourceDeleted) {
                delete(&owner.secrets(), "copy-kept").await?;
            }
            Ok(())
        })
    }))
    .await?;
    Ok(())
}

fn plan(status: &ClusterReplicationStatus) -> Option<[i32; 4]> {
    status
        .plan
        .as_ref()
        .map(|plan| [plan.create, plan.update, plan.delete, plan.conflict])
}

#[tokio::test]
async fn a_tenants_suspended_rule_plans_and_lifting_it_does_exactly_that() -> Result<()> {
    let scene = STAGE.scene("suspend").await?;
    on_each_ground(&scene, async |ground| {
        let Ground { author, owner, .. } = &ground;
        let sources = ["changed", "left", "new", "taken"];
        let mut lifted = ground.copying("", &["copy-$(source.name)"]);
        lifted["sources"] = sources
            .iter()
            .map(|name| json!({"apiVersion": "v1", "kind": "Secret", "name": name}))
            .collect();
        lifted["retentionPolicy"] = json!({"sourceGracePeriodSeconds": 0});
        let mut suspended = lifted.clone();
        suspended["suspend"] = json!(true);
        let planned = async |wanted: [i32; 4]| {
            eventually(SOON, format!("a plan of {wanted:?}"), || async {
                let status = author.status("r", "Ready", "Suspended").await?;
                if plan(&status) == Some(wanted) {
                    Ok(Some(status))
                } else {
                    bail!("{status:#?}")
                }
            })
            .await
        };
        for source in ["changed", "left"] {
            author.makes(source, "one").await?;
        }
        author.writes("replications", "r", &suspended).await?;
        planned([2, 0, 0, 0]).await?;
        ensure!(
            owner.secrets().get_opt("copy-changed").await?.is_none(),
            "it was made all the same"
        );
        ground.replace("r", &lifted).await?;
        let before = [
            version(&ground.copy("copy-changed", has("one")).await?),
            version(&ground.copy("copy-left", has("one")).await?),
        ];

        ground.replace("r", &suspended).await?;
        author.status("r", "Ready", "Suspended").await?;
        ground.rotate("changed", "two").await?;
        delete(&author.secrets(), "left").await?;
        let theirs = owner.makes("copy-taken", "theirs").await?;
        for source in ["new", "taken"] {
            author.makes(source, "one").await?;
        }
        let status = planned([1, 1, 1, 1]).await?;
        let mut named: Vec<String> = status
            .plan
            .iter()
            .flat_map(|plan| &plan.copies)
            .map(|copy| {
                assert_eq!(copy.namespace, owner.home);
                format!("{} {}", copy.action, copy.name)
            })
            .collect();
        named.sort();
        assert_eq!(
            named,
            [
                "Conflict copy-taken",
                "Create copy-new",
                "Delete copy-left",
                "Update copy-changed"
            ]
        );
        let after = [
            version(&owner.secrets().get("copy-changed").await?),
            version(&owner.secrets().get("copy-left").await?),
        ];
        assert_eq!(after, before, "nothing is done");
        ensure!(
            owner.secrets().get_opt("copy-new").await?.is_none(),
            "it was made all the same"
        );

        ground.replace("r", &lifted).await?;
        ground.copy("copy-changed", has("two")).await?;
        ground.copy("copy-new", has("one")).await?;
        wait_gone(owner.secrets(), "copy-left").await?;
        let status = eventually(SOON, "the status after the plan", || async {
            let status = author.rules().get("r").await?.status.unwrap_or_default();
            let counts = status
                .copies
                .map(|copies| (copies.desired, copies.synced, copies.failed));
            // The fourth copy has no source.
            if status.plan.is_none() && status.failures.len() == 1 {
                Ok(Some(status))
            } else {
                bail!("{counts:?}")
            }
        })
        .await?;
        assert_eq!(
            (&*status.failures[0].reason, &*status.failures[0].name),
            ("Conflict", "copy-taken")
        );
        assert_eq!(
            version(&owner.secrets().get("copy-taken").await?),
            version(&theirs)
        );
        Ok(())
    })
    .await
}

/// Without a grant, an author may plan anything. The plan tells the author nothing.
#[tokio::test]
async fn a_plan_for_where_nobody_let_him_in_is_empty_until_somebody_does() -> Result<()> {
    let scene = STAGE.scene("empty").await?;
    let ground = Ground::granted(&scene).await?;
    let Ground { author, owner, .. } = &ground;
    author.makes("db", "one").await?;
    // A foreign object is in the way of a copy that is not granted.
    owner.makes("theirs", "theirs").await?;
    let mut spec = ground.copying("db", &["copy-db", "theirs", "nothing"]);
    spec["suspend"] = json!(true);
    author.writes("replications", "r", &spec).await?;
    let planned = async |wanted: [i32; 4]| {
        eventually(SOON, format!("a plan of {wanted:?}"), || async {
            let status = author.rules().get("r").await?.status.unwrap_or_default();
            if plan(&status) == Some(wanted) {
                Ok(Some(()))
            } else {
                bail!("{status:#?}")
            }
        })
        .await
    };
    planned([1, 0, 0, 0]).await?;
    owner
        .writes(
            "replicationgrants",
            "all",
            &consent("Write", &author.home, &[]),
        )
        .await?;
    planned([2, 0, 0, 1]).await?;
    let rules: Api<Replication> = author.rules();
    merge(&rules, "r", json!({"spec": {"suspend": false}})).await?;
    for copy in ["copy-db", "nothing"] {
        ground.copy(copy, has("one")).await?;
    }
    let theirs = owner.secrets().get("theirs").await?;
    ensure!(holds("theirs")(&theirs) && !ours(&theirs), "it was taken");
    Ok(())
}
