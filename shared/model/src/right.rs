//! A permission, in the form in which Mimeo asks the API server for it.

use std::fmt;

use serde::Serialize;

use crate::kind::GroupVersionKind;

/// Group of Roles and `RoleBindings`.
const RBAC: &str = "rbac.authorization.k8s.io";
/// The verb for rules with `podGate: Required`. Such a rule can keep pods from starting in
/// namespaces of other users. Like `bind` and `escalate`, the verb exists only for permission
/// checks.
pub(crate) const GATE: &str = "gate";

/// The permission to use one verb on objects of one kind.
///
/// Prints as `get secrets/registry in namespace platform` and
/// `create roles.rbac.authorization.k8s.io in all namespaces`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Right {
    /// The verb, as in `get`, `create`.
    pub verb: &'static str,
    /// API group, empty for the core group.
    pub group: Box<str>,
    /// The plural name, as in `secrets`. `*` means all resources of the group.
    pub resource: Box<str>,
    /// The namespace. `None` means all namespaces.
    pub namespace: Option<Box<str>>,
    /// Name of the object. `None` means all objects.
    pub name: Option<Box<str>>,
}

impl Right {
    /// The permission to use the verb on all objects of a resource, in all namespaces.
    pub fn new(
        verb: &'static str,
        group: impl Into<Box<str>>,
        resource: impl Into<Box<str>>,
    ) -> Self {
        Self {
            verb,
            group: group.into(),
            resource: resource.into(),
            namespace: None,
            name: None,
        }
    }
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

/// The permissions to write a Role or a `RoleBinding` that grants more than its writer has. The API
/// server demands them of the writer. A source may grant any permission one day, so the author
/// needs the permission to grant all of them.
pub(crate) fn to_grant(gvk: &GroupVersionKind) -> Vec<Right> {
    let right = |verb, resource: &str| Right::new(verb, RBAC, resource);
    match (&*gvk.group, &*gvk.kind) {
        (RBAC, "Role") => vec![right("escalate", "roles")],
        (RBAC, "RoleBinding") => vec![right("bind", "roles"), right("bind", "clusterroles")],
        _ => vec![],
    }
}
