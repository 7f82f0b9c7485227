//! Copies that are sources of other rules. A change passes through the whole chain. If the rules
//! form a ring, the writes come to an end.

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use mimeo_tests::scenario::{
    RuleSpec, Scene, annotation, delete, label, put, rule, uid, value, version, wait_gone,
};
use mimeo_tests::{AuditEvent, AuditMark, create_namespace};
use serde_json::json;

use super::{BELONGS_TO, STAGE};

/// The namespaces and rules of a chain. Each rule copies the Secret `registry` of the previous
/// namespace into its own.
struct Chain<'a> {
    scene: &'a Scene<'a>,
    /// The namespaces in order. The first one has the source.
    places: Vec<String>,
    rules: Vec<RuleSpec>,
}

impl<'a> Chain<'a> {
    async fn new(scene: &'a Scene<'a>, length: usize) -> Result<Self> {
        let mut places = vec![scene.home.clone()];
        for number in 1..=length {
            let name = format!("{}-{number}", scene.tag);
            create_namespace(&scene.client, &name, &[]).await?;
            places.push(name);
        }
        let link = |pair: &[String]| {
            let rule = rule(&pair[1])
                .secret(&pair[0], "registry")
                .target(json!({"namespaces": [pair[1]]}));
            rule.set("retentionPolicy", json!({"sourceGracePeriodSeconds": 0}))
        };
        let rules = places.windows(2).map(link).collect();
        Ok(Self {
            scene,
            places,
            rules,
        })
    }

    /// Waits until each copy in the chain has this token.
    async fn carries(&self, token: &str) -> Result<Vec<Secret>> {
        let mut copies = Vec::new();
        for place in &self.places[1..] {
            let has = |copy: &Secret| value(copy, "token").as_deref() == Some(token);
            copies.push(self.scene.wait_secret(place, "registry", has).await?);
        }
        Ok(copies)
    }

    /// Returns how often Mimeo has written each copy since the mark, in the order of the chain.
    async fn writes(&self, mark: &AuditMark) -> Result<Vec<usize>> {
        let events = self.scene.setting.control_plane.audit_since(mark).await?;
        let ours = |event: &&AuditEvent| {
            self.scene.setting.is_ours(event)
                && event.is_write()
                && event.resource == "secrets"
                && event.code < 300
        };
        let count = |place: &String| {
            events
                .iter()
                .filter(ours)
                .filter(|event| event.namespace == *place)
                .count()
        };
        Ok(self.places.iter().map(count).collect())
    }
}

#[tokio::test]
async fn a_chain_of_three_rules_carries_a_change_to_its_end_and_a_loss_too() -> Result<()> {
    let scene = STAGE.scene("chain").await?;
    let chain = Chain::new(&scene, 3).await?;
    // The rules are created from the beginning of the chain, because no rule writes over the source
    // of an older rule.
    for rule in &chain.rules {
        rule.create(&scene.client).await?;
    }
    scene
        .wait_condition(
            &chain.rules[2].name,
            "SourcesFound",
            "False",
            "SourceNotFound",
        )
        .await?;
    let mark = scene.setting.control_plane.audit_mark().await?;
    scene.secret("registry", &[("token", "one")]).await?;
    let before = chain.carries("one").await?;
    for (index, (copy, rule)) in before.iter().zip(&chain.rules).enumerate() {
        assert_eq!(label(copy, BELONGS_TO), Some(&*rule.name));
        let from = format!("v1/Secret/{}/registry", chain.places[index]);
        assert_eq!(annotation(copy, "mimeo.dev/source"), Some(&*from));
    }
    put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    let after = chain.carries("two").await?;
    for rule in &chain.rules {
        scene.wait_synced(&rule.name).await?;
    }
    assert_eq!(
        before.iter().map(uid).collect::<Vec<_>>(),
        after.iter().map(uid).collect::<Vec<_>>()
    );
    assert_eq!(
        chain.writes(&mark).await?,
        [0, 2, 2, 2],
        "each change is written once in each"
    );

    // Mimeo reverts an edit of a copy in the chain. The edit gets no further.
    let link = scene.secrets(&chain.places[1]);
    put(&link, "registry", &[("token", "theirs")]).await?;
    chain.carries("two").await?;
    // The source is deleted, and so is one copy after another.
    delete(&scene.secrets(&scene.home), "registry").await?;
    for place in &chain.places[1..] {
        wait_gone(scene.secrets(place), "registry").await?;
    }
    for rule in &chain.rules {
        scene
            .wait_condition(&rule.name, "SourcesFound", "False", "SourceNotFound")
            .await?;
    }
    Ok(())
}

/// Every cell of the loop is the source of one rule and wanted by another. The last rule would
/// write over the source of an older one, so it writes nothing.
#[tokio::test]
async fn rules_that_name_each_others_copies_write_nothing_round_and_round() -> Result<()> {
    let scene = STAGE.scene("round").await?;
    let mut chain = Chain::new(&scene, 3).await?;
    for rule in &chain.rules {
        rule.create(&scene.client).await?;
    }
    scene.secret("registry", &[("token", "one")]).await?;
    chain.carries("one").await?;
    let back = rule(&format!("{}-back", scene.tag)).secret(&chain.places[3], "registry");
    let back = back
        .target(json!({"namespaces": [scene.home]}))
        .set("conflictPolicy", json!("Overwrite"));
    back.create(&scene.client).await?;
    let status = scene.wait_counts(&back.name, [1, 0, 1]).await?;
    assert_eq!(status.failures[0].reason, "Conflict", "{status:#?}");
    let mark = scene.setting.control_plane.audit_mark().await?;
    let source = put(&scene.secrets(&scene.home), "registry", &[("token", "two")]).await?;
    chain.carries("two").await?;
    chain.rules.push(back);
    let names = async |place: &str| -> Result<Vec<String>> {
        let all = scene.secrets(place).list(&ListParams::default()).await?;
        Ok(all
            .items
            .into_iter()
            .filter_map(|secret| secret.metadata.name)
            .collect())
    };
    for place in &chain.places {
        assert_eq!(names(place).await?, ["registry"]);
    }
    scene.wait_counts(&chain.rules[3].name, [1, 0, 1]).await?;
    assert_eq!(
        chain.writes(&mark).await?,
        [0, 1, 1, 1],
        "once round, and no further"
    );
    assert_eq!(
        version(&scene.secrets(&scene.home).get("registry").await?),
        version(&source)
    );
    Ok(())
}
