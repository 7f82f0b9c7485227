//! A permission, as the API server is asked for it.

use std::fmt;

use crate::kind::GroupVersionKind;

/// Group of Roles and `RoleBindings`.
const RBAC: &str = "rbac.authorization.k8s.io";
/// A rule whose pods must wait can keep pods from starting in namespaces of others. Like `bind` and
/// `escalate`, the verb exists for permission checks alone.
pub(crate) const GATE: &str = "gate";

/// To do one thing to objects of one kind.
///
/// Prints as `get secrets/registry in namespace platform` and
/// `create roles.rbac.authorization.k8s.io in all namespaces`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// As in `get`, `create`.
    pub verb: &'static str,
    /// API group, empty for the core group.
    pub group: Box<str>,
    /// Plural, as in `secrets`; `*` for all of the group.
    pub resource: Box<str>,
    /// Where; in all namespaces if `None`.
    pub namespace: Option<Box<str>>,
    /// Name of the object; all if `None`.
    pub name: Option<Box<str>>,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            group,
            resource,
            namespace,
            name,
        } = self;
        write!(f, "{verb} {resource}")?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        if let Some(name) = name {
            write!(f, "/{name}")?;
        }
        match namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            // ClusterReplications have no namespace.
            None if *verb == GATE => Ok(()),
            None => f.write_str(" in all namespaces"),
        }
    }
}

/// Permissions that the API server requires of a user who writes a Role or a `RoleBinding` and
/// doesn't hold all that it grants. A source may grant anything one day, so the permission to grant
/// anything is needed.
pub(crate) fn to_grant(gvk: &GroupVersionKind) -> Vec<Right> {
    let right = |verb, resource: &str| Right {
        verb,
        group: RBAC.into(),
        resource: resource.into(),
        namespace: None,
        name: None,
    };
    match (&*gvk.group, &*gvk.kind) {
        (RBAC, "Role") => vec![right("escalate", "roles")],
        (RBAC, "RoleBinding") => vec![right("bind", "roles"), right("bind", "clusterroles")],
        _ => vec![],
    }
}
