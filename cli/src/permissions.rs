//! The permissions of Mimeo's own programs: those that rules need, and those that they have.
//!
//! [`own_rights`] decides which permissions are needed. This file asks the API server for each.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use mimeo_model::{
    kind::{GroupVersionKind, Resource, Served},
    own_rights::{self, ProgramRight, RoleRef},
    rule::Rule,
    source::SourceRef,
};
use mimeo_runtime::{access::is_allowed, call::CallError, discovery::resource_path};

use crate::{
    connect::Connected,
    files::Files,
    installation::Accounts,
    picture::Picture,
    read::{AT_ONCE, Part, Reader},
};

/// Most permissions that are asked about. An installation that is limited to many namespaces needs
/// each permission in each of them.
const MOST: usize = 2000;

/// The kinds that rules copy, as the API server serves them.
pub(crate) type Kinds = BTreeMap<GroupVersionKind, Option<Resource>>;

/// The kinds that are served.
pub(crate) fn served(kinds: &Kinds) -> Served {
    let kinds = kinds.iter();
    kinds
        .filter_map(|(gvk, found)| Some((gvk.clone(), found.clone()?)))
        .collect()
}

/// The permissions that rules need, by the answers of the API server.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) held: BTreeSet<ProgramRight>,
    pub(crate) missing: BTreeSet<ProgramRight>,
    /// With the reason.
    pub(crate) unknown: BTreeMap<ProgramRight, String>,
}

/// Asks for the permissions that these rules need. Objects of files take the place of stored ones.
pub(crate) async fn ask(
    connected: &Connected,
    picture: &Picture,
    rules: &[&Rule],
    kinds: &Kinds,
    files: &Files,
    accounts: &Accounts,
) -> Answers {
    let roles = Roles::read(&connected.reader(), rules, kinds, files).await;
    let (needs, unknown) = needs(picture, rules, kinds, &roles);
    let (needs, mut answers) = limit(needs, MOST);
    answers.unknown.extend(unknown);
    let one = |need: ProgramRight| async move {
        let user = accounts.user(need.program);
        let asked = is_allowed(&connected.client, &user, &need.right, connected.timeout);
        let allowed = asked.await.map_err(|error| match error {
            CallError::Denied { code: 403 } => {
                "you have no permission to check the permissions of Mimeo's accounts (create \
                 subjectaccessreviews.authorization.k8s.io)"
                    .to_owned()
            }
            error => format!("the API server did not decide: {error}"),
        });
        (need, allowed)
    };
    let mut asked = stream::iter(needs.into_iter().map(one)).buffer_unordered(AT_ONCE);
    while let Some((need, allowed)) = asked.next().await {
        match allowed {
            Ok(true) => _ = answers.held.insert(need),
            Ok(false) => _ = answers.missing.insert(need),
            Err(why) => _ = answers.unknown.insert(need, why),
        }
    }
    answers
}

/// The permissions to ask about, and the others as unknown.
fn limit(needs: BTreeSet<ProgramRight>, most: usize) -> (Vec<ProgramRight>, Answers) {
    let why = format!("Mimeo needs more than {most} permissions, so not all of them were checked");
    let mut needs = needs.into_iter();
    let asked = needs.by_ref().take(most).collect();
    let answers = Answers {
        unknown: needs.map(|need| (need, why.clone())).collect(),
        ..Answers::default()
    };
    (asked, answers)
}

/// The roles of the RoleBindings among the sources. Mimeo needs the permission to bind exactly these
/// roles.
#[derive(Default)]
struct Roles {
    known: BTreeMap<SourceRef, RoleRef>,
    /// With the reason.
    unknown: BTreeMap<SourceRef, String>,
}

impl Roles {
    async fn read(reader: &Reader, rules: &[&Rule], kinds: &Kinds, files: &Files) -> Self {
        let sources: BTreeSet<&SourceRef> = rules.iter().flat_map(|rule| &rule.sources).collect();
        let mut roles = Self::default();
        for source in sources {
            let resource = kinds.get(&source.gvk).and_then(Option::as_ref);
            let (Some(resource), Some(home)) = (resource, source.home()) else {
                continue;
            };
            if !own_rights::binds(&source.gvk) {
                continue;
            }
            let found = if let Some(found) = files.source(source) {
                Ok(Some(found.object.clone()))
            } else {
                let path = resource_path(resource, Some(home), Some(&source.name));
                reader.get(&path, Part::Whole).await
            };
            let why = match found {
                Ok(Some(object)) => {
                    roles
                        .known
                        .extend(RoleRef::of(&object).map(|role| (source.clone(), role)));
                    continue;
                }
                Ok(None) => format!("the source {source} does not exist"),
                Err(error) => format!("can't read the source {source}: {error}"),
            };
            let why = format!("{why}; so the role that Mimeo must be able to bind is unknown");
            roles.unknown.insert(source.clone(), why);
        }
        roles
    }
}

/// The permissions that the rules need, and those of which it is unknown whether Mimeo needs
/// them, with the reason.
fn needs(
    picture: &Picture,
    rules: &[&Rule],
    kinds: &Kinds,
    roles: &Roles,
) -> (BTreeSet<ProgramRight>, BTreeMap<ProgramRight, String>) {
    let engine = picture.snapshot.decided();
    let reach = engine.index().reach();
    let (mut needs, mut unknown) = (BTreeSet::new(), BTreeMap::new());
    let served = served(kinds);
    for rule in rules {
        let sources = rule.with_roles(|source| roles.known.get(source).cloned());
        let own = sources.filter(|(source, _)| reach.refuses(*source).is_none());
        let places = engine.index().reached(rule);
        let own = own_rights::needed_by(rule.id.kind, own, places.as_ref(), &served);
        let mut sources = rule.sources.iter();
        let why = sources.find_map(|source| roles.unknown.get(source));
        for need in own {
            // Without its role, a RoleBinding would need the permission to bind every role.
            match why.filter(|_| need.right.verb == "bind" && need.right.name.is_none()) {
                Some(why) => _ = unknown.insert(need, why.clone()),
                None => _ = needs.insert(need),
            }
        }
    }
    // Another rule may need to bind every role for a reason of its own.
    unknown.retain(|need, _| !needs.contains(need));
    (needs, unknown)
}

#[cfg(test)]
mod tests {
    use mimeo_model::{own_rights::Program, right::Right};

    use super::*;

    #[test]
    fn a_permission_that_is_not_asked_about_is_unknown() {
        let need = |verb| ProgramRight {
            program: Program::Reconciler,
            kind: "Secret".into(),
            right: Right {
                verb,
                group: "".into(),
                resource: "secrets".into(),
                namespace: None,
                name: None,
            },
        };
        let needs: BTreeSet<ProgramRight> = ["get", "list", "watch"].map(need).into();
        let (asked, answers) = limit(needs.clone(), 3);
        assert_eq!((asked.len(), answers.unknown.len()), (3, 0));
        let (asked, answers) = limit(needs.clone(), 2);
        assert_eq!(asked.len(), 2);
        let (rest, why) = answers.unknown.first_key_value().expect("one is left");
        assert!(needs.contains(rest) && !asked.contains(rest));
        assert!(why.contains("more than 2 permissions"), "{why}");
    }
}
