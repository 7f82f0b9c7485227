//! The missing permissions of the author of new and changed rules and grants, and of Mimeo.
//!
//! The webhook asks the same when the objects are written. It does not ask about a change that only
//! takes something away. The author is the user of this command.

use std::{collections::BTreeMap, fmt::Write as _};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, api::PostParams};
use mimeo_api::names::REPLICATION_GRANT;
use mimeo_model::{
    authority::{self, Need, find, of_grant, of_rule},
    grant::Grant,
    id::RuleId,
    kind::GroupVersionKind,
    known::Decoded,
    own_rights,
    right::Right,
    rule::Rule,
};
use mimeo_runtime::{access::may_self, discovery::Discovery, stored::explain_grant};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    connect::Connected,
    files::{Files, Key},
    installation::Accounts,
    permissions::{Kinds, ask, served},
    picture::Picture,
    read::AT_ONCE,
};

/// Missing permissions, each as a sentence.
#[derive(Debug, Default, Serialize)]
pub(super) struct Permissions {
    /// Those of the user, by rule or grant. The API server would refuse the object.
    author: Vec<String>,
    /// Those of Mimeo's own programs.
    mimeo: Vec<String>,
    /// Questions without an answer.
    unknown: Vec<String>,
}

impl Permissions {
    pub(super) fn none_missing(&self) -> bool {
        self.author.is_empty() && self.mimeo.is_empty()
    }

    pub(super) fn write(&self, text: &mut String) {
        let Self {
            author,
            mimeo,
            unknown,
        } = self;
        // Writing to a String never fails.
        for missing in author {
            _ = writeln!(text, "refused: {missing}");
        }
        for missing in mimeo {
            _ = writeln!(text, "Mimeo: {missing}");
        }
        for unknown in unknown {
            _ = writeln!(text, "{unknown}");
        }
    }
}

/// Asks for the permissions that the rules and grants of the files need.
pub(super) async fn missing(
    connected: &Connected,
    picture: &Picture,
    files: &Files,
) -> Permissions {
    let mut asking = Asking {
        connected,
        picture,
        files,
        kinds: picture.kinds.clone(),
        held: BTreeMap::new(),
        missing: Permissions::default(),
    };
    let rules: Vec<&Rule> = picture
        .rules
        .iter()
        .filter(|(id, _)| picture.to_authorize.contains(&key(id)))
        .filter_map(|(_, stored)| stored.rule.as_ref().ok())
        .collect();
    for rule in &rules {
        asking.find_kinds(rule.kinds.iter()).await;
        let needs = of_rule(rule, &served(&asking.kinds));
        asking.author(&rule.id.to_string(), &needs).await;
    }
    let grants = files.of_kind(REPLICATION_GRANT);
    for (key, found) in grants.filter(|(key, _)| picture.to_authorize.contains(key)) {
        let (grant, _) = explain_grant(Decoded::Whole(found.object.clone()));
        if let Ok(grant) = Grant::parse(&grant) {
            asking
                .find_kinds(grant.objects.iter().map(|to| &to.gvk))
                .await;
            let needs = of_grant(&grant, &key.namespace, &served(&asking.kinds));
            asking.author(&key.to_string(), &needs).await;
        }
    }
    asking.mimeo(&rules).await;
    asking.missing
}

fn key(rule: &RuleId) -> Key {
    Key {
        group: mimeo_api::names::GROUP.into(),
        kind: rule.kind.to_string(),
        namespace: rule.namespace.as_deref().unwrap_or_default().into(),
        name: rule.name.to_string(),
    }
}

struct Asking<'a> {
    connected: &'a Connected,
    picture: &'a Picture,
    files: &'a Files,
    kinds: Kinds,
    /// The answers about the user.
    held: BTreeMap<Right, bool>,
    missing: Permissions,
}

impl Asking<'_> {
    async fn find_kinds(&mut self, kinds: impl Iterator<Item = &GroupVersionKind>) {
        let discovery = Discovery::new(self.connected.client.clone());
        for gvk in kinds {
            if !self.kinds.contains_key(gvk) {
                let found = discovery.find(gvk).await.ok().flatten();
                self.kinds.insert(gvk.clone(), found);
            }
        }
    }

    /// Asks whether the user has the permissions that an object needs.
    async fn author(&mut self, object: &str, needs: &[Need]) {
        let client = &self.connected.client;
        loop {
            let open = match find(needs, |right| self.held.get(right).copied()) {
                Ok(missing) if missing.is_empty() => return,
                Ok(missing) => {
                    let user = self.user().await;
                    let sentence = authority::lacks(&user, &missing);
                    self.missing.author.push(format!("{object}: {sentence}"));
                    return;
                }
                Err(open) => open,
            };
            let deadline = Instant::now() + self.connected.timeout;
            let asked = open.into_iter().map(async |right: &Right| {
                let time = deadline.saturating_duration_since(Instant::now());
                (right.clone(), may_self(client, right, time).await)
            });
            let answers: Vec<_> = stream::iter(asked)
                .buffer_unordered(AT_ONCE)
                .collect()
                .await;
            for (right, held) in answers {
                let Ok(held) = held else {
                    self.missing.unknown.push(format!(
                        "{object}: whether you have the permissions that it needs is unknown, because the API server gives no answer."
                    ));
                    return;
                };
                self.held.insert(right, held);
            }
        }
    }

    /// The name of the user, as the API server knows it.
    async fn user(&self) -> String {
        let reviews: Api<SelfSubjectReview> = Api::all(self.connected.client.clone());
        let review = SelfSubjectReview::default();
        let answer = reviews.create(&PostParams::default(), &review).await.ok();
        let info = answer.and_then(|answer| answer.status?.user_info);
        info.and_then(|info| info.username)
            .unwrap_or_else(|| "(you)".into())
    }

    /// Asks whether Mimeo's programs have the permissions that the rules need.
    async fn mimeo(&mut self, rules: &[&Rule]) {
        let accounts = Accounts::read(&self.connected.reader(), &self.picture.mimeo).await;
        let answers = ask(
            self.connected,
            self.picture,
            rules,
            &self.kinds,
            self.files,
            &accounts,
        )
        .await;
        if let Some(why) = answers.unknown.values().next() {
            self.missing.unknown.push(format!(
                "Whether Mimeo has the permissions that the rules need is unknown: {why}."
            ));
        }
        let engine = self.picture.snapshot.decided();
        let missing = own_rights::explain(&answers.missing, engine.index().reach());
        if accounts.assumed && !missing.is_empty() {
            self.missing.unknown.push(format!(
                "Mimeo's Deployments were not found, or can't be read; {}{}.",
                accounts.assumption(),
                missing.join("; ")
            ));
        } else {
            self.missing.mimeo = missing;
        }
    }
}
