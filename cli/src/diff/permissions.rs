//! The permissions that the author of new and changed rules and grants lacks, and those that Mimeo
//! lacks.
//!
//! The webhook asks the same when the objects are written. It does not ask about a change that only
//! takes something away. The author is the user of this command.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, api::PostParams};
use mimeo_api::names::REPLICATION_GRANT;
use mimeo_model::{
    authority::{Finding, Need, find, lacks, of_grant, of_rule},
    grant::Grant,
    id::RuleId,
    kind::{GroupVersionKind, Resource},
    known::Decoded,
    own_rights::{self, Program, ProgramRight, RoleRef},
    review::User,
    right::Right,
    rule::Rule,
    source::SourceRef,
};
use mimeo_runtime::{
    access::{is_allowed, may_self},
    discovery::{Discovery, resource_path},
    stored::explain_grant,
};
use serde::Serialize;
use tokio::time::Instant;

use crate::{
    connect::Connected,
    files::{Files, Key},
    picture::Picture,
    read::{AT_ONCE, Part},
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
        .filter(|(id, _)| picture.widened.contains(&key(id)))
        .filter_map(|(_, stored)| stored.rule.as_ref().ok())
        .collect();
    for rule in &rules {
        asking.find_kinds(rule.kinds.iter()).await;
        let needs = of_rule(rule, |gvk| asking.resource(gvk));
        asking.author(&rule.id.to_string(), &needs).await;
    }
    let grants = files.of_kind(REPLICATION_GRANT);
    for (key, found) in grants.filter(|(key, _)| picture.widened.contains(key)) {
        let (grant, _) = explain_grant(Decoded::Whole(found.object.clone()));
        if let Ok(grant) = Grant::parse(&grant) {
            asking
                .find_kinds(grant.objects.iter().map(|to| &to.gvk))
                .await;
            let needs = of_grant(&grant, &key.namespace, |gvk| asking.resource(gvk));
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
    kinds: BTreeMap<GroupVersionKind, Option<Resource>>,
    /// The answers about the user.
    held: BTreeMap<Right, bool>,
    missing: Permissions,
}

impl Asking<'_> {
    fn deadline(&self) -> Instant {
        Instant::now() + self.connected.timeout
    }

    fn resource(&self, gvk: &GroupVersionKind) -> Option<Resource> {
        self.kinds.get(gvk).cloned().flatten()
    }

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
                Finding::Held => return,
                Finding::Lacks(missing) => {
                    let user = self.user().await;
                    let lacks = lacks(&user, &missing);
                    self.missing.author.push(format!("{object}: {lacks}"));
                    return;
                }
                Finding::Ask(open) => open,
            };
            let deadline = self.deadline();
            let asked = open.into_iter().map(async |right: &Right| {
                let held = may_self(client, right, deadline).await;
                (right.clone(), held)
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
        let mut needed = BTreeSet::new();
        for rule in rules {
            needed.extend(self.needed(rule).await);
        }
        let (client, deadline) = (&self.connected.client, self.deadline());
        let mimeo = &self.picture.mimeo;
        let asked = needed.into_iter().map(async |need: ProgramRight| {
            let held =
                is_allowed(client, &program(mimeo, need.program), &need.right, deadline).await;
            (need, held)
        });
        let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
        let mut missing = BTreeSet::new();
        while let Some((need, held)) = answers.next().await {
            match held {
                Ok(true) => {}
                Ok(false) => _ = missing.insert(need),
                Err(_) => {
                    self.missing.unknown.push(
                        "Whether Mimeo has the permissions that the rules need is unknown: you may not create subjectaccessreviews, or the API server gives no answer.".into(),
                    );
                    return;
                }
            }
        }
        drop(answers);
        let (engine, _) = self.picture.snapshot.decided();
        self.missing.mimeo = own_rights::explain(&missing, engine.index().reach());
    }

    async fn needed(&self, rule: &Rule) -> BTreeSet<ProgramRight> {
        let (engine, _) = self.picture.snapshot.decided();
        let reach = engine.index().reach();
        let mut roles = BTreeMap::new();
        for source in &rule.sources {
            if own_rights::binds(&source.gvk) {
                roles.insert(source, self.role(source).await);
            }
        }
        let homes = rule
            .homes(|source| roles.get(source).cloned().flatten())
            .filter(|home| reach.refuses_home(home.gvk, home.namespace).is_none());
        let places = engine.index().reached(rule);
        let look_up = |gvk: &GroupVersionKind| self.resource(gvk);
        own_rights::needed_by(rule.id.kind, homes, places.as_ref(), look_up)
    }

    /// The role that a RoleBinding in the files or in the cluster binds.
    async fn role(&self, source: &SourceRef) -> Option<RoleRef> {
        if let Some(found) = self.files.source(source) {
            return RoleRef::of(&found.object);
        }
        let resource = self.resource(&source.gvk)?;
        let path = resource_path(&resource, Some(&source.namespace), Some(&source.name));
        let reader = self.connected.reader();
        RoleRef::of(&reader.get(&path, Part::Whole).await.ok()??)
    }
}

/// The service account of one of Mimeo's programs.
fn program(namespace: &str, program: Program) -> User {
    let name = match program {
        Program::Webhook => "mimeo-webhook",
        Program::Reconciler => "mimeo-reconciler",
    };
    User {
        name: format!("system:serviceaccount:{namespace}:{name}"),
        uid: String::new(),
        groups: vec![
            "system:serviceaccounts".into(),
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated".into(),
        ],
        extra: BTreeMap::new(),
    }
}
