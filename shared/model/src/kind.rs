//! Kinds of objects, as rules and policies name them and as discovery describes them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use mimeo_api::names::GROUP;
use serde::Deserialize;

use crate::syntax;

/// A kind in all of its versions.
///
/// Prints as `Secret` in the core group and as `Certificate.cert-manager.io` in other groups.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupKind {
    /// API group, empty for the core group.
    pub group: Box<str>,
    /// Kind, as in `kind: Secret`.
    pub kind: Box<str>,
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, kind } = self;
        if group.is_empty() {
            write!(f, "{kind}")
        } else {
            write!(f, "{kind}.{group}")
        }
    }
}

impl FromStr for GroupKind {
    type Err = String;

    /// Parses the text that [`Display`](fmt::Display) prints.
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        syntax::kind(kind).map_err(|why| format!("kind {why}"))?;
        if text.contains('.') {
            syntax::dns_subdomain(group).map_err(|why| format!("the group {why}"))?;
        }
        Ok(Self {
            group: group.into(),
            kind: kind.into(),
        })
    }
}

/// A kind in one version, as objects name it by `apiVersion` and `kind`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct GroupVersionKind {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: Box<str>,
    /// Version, as in `v1`.
    pub version: Box<str>,
    /// Kind, as in `kind: Secret`.
    pub kind: Box<str>,
}

impl GroupVersionKind {
    /// Parses `apiVersion` (`v1`, `apps/v1`) and `kind` as objects carry them.
    ///
    /// # Errors
    /// A message for people that says which of the two is malformed.
    pub fn parse(api_version: &str, kind: &str) -> Result<Self, String> {
        let (group, version) = match api_version.split_once('/') {
            None => ("", api_version),
            Some((group, version)) => {
                syntax::dns_subdomain(group)
                    .map_err(|why| format!("the group of apiVersion {why}"))?;
                (group, version)
            }
        };
        syntax::dns_label(version).map_err(|why| format!("the version of apiVersion {why}"))?;
        syntax::kind(kind).map_err(|why| format!("kind {why}"))?;
        Ok(Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        })
    }

    /// `v1`, or `apps/v1` outside the core group.
    pub fn api_version(&self) -> String {
        let Self { group, version, .. } = self;
        if group.is_empty() {
            version.to_string()
        } else {
            format!("{group}/{version}")
        }
    }

    /// The kind without its version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind {
            group: self.group.clone(),
            kind: self.kind.clone(),
        }
    }

    /// True if this is a version of that kind.
    pub fn is_of(&self, kind: &GroupKind) -> bool {
        self.group == kind.group && self.kind == kind.kind
    }

    /// True for `Secret` in the core group.
    pub fn is_secret(&self) -> bool {
        self.group.is_empty() && &*self.kind == "Secret"
    }

    /// The reason why Mimeo neither copies nor rewrites objects of the kind, if there is one.
    pub(crate) fn left_alone(&self) -> Option<&'static str> {
        match (&*self.group, &*self.kind) {
            ("", "Namespace") => Some("kind Namespace is never copied and never rewritten"),
            (GROUP, _) => Some("Mimeo's own kinds are never copied and never rewritten"),
            _ => None,
        }
    }

    /// True for `ConfigMap` in the core group.
    pub fn is_config_map(&self) -> bool {
        self.group.is_empty() && &*self.kind == "ConfigMap"
    }
}

/// Prints as `v1/Secret`, `apps/v1/Deployment`.
impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.api_version(), self.kind)
    }
}

/// A kind as discovery describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The kind that was looked up.
    pub gvk: GroupVersionKind,
    /// The resource name in URLs and in admission rules: `secrets`.
    pub plural: Box<str>,
    /// True if objects of the kind live in namespaces.
    pub namespaced: bool,
}

/// The kinds that the cluster is known to serve.
pub type Served = BTreeMap<GroupVersionKind, Resource>;

/// Prints as authorization rules name the resource: `secrets`, `deployments.apps`.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.plural)?;
        if self.gvk.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.gvk.group)
        }
    }
}

/// Fields that are never copied. The cluster assigns their values to one object only, or they name
/// other objects in the source's namespace.
pub(crate) fn assigned(group: &str, kind: &str) -> &'static [&'static [&'static str]] {
    match (group, kind) {
        ("", "Service") => &[
            &["spec", "clusterIP"],
            &["spec", "clusterIPs"],
            &["spec", "healthCheckNodePort"],
        ],
        ("", "ServiceAccount") => &[&["secrets"]],
        ("", "PersistentVolumeClaim") => &[&["spec", "volumeName"]],
        _ => &[],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    #[test]
    fn parse_reads_group_and_version() {
        let secret = GroupVersionKind::parse("v1", "Secret").unwrap();
        assert_eq!(
            (&*secret.group, &*secret.version, &*secret.kind),
            ("", "v1", "Secret")
        );
        assert_eq!(
            (secret.api_version().as_str(), secret.is_secret()),
            ("v1", true)
        );
        assert_eq!(
            (
                secret.to_string().as_str(),
                secret.group_kind().to_string().as_str()
            ),
            ("v1/Secret", "Secret")
        );

        let other = GroupVersionKind::parse("cert-manager.io/v1", "Certificate").unwrap();
        assert_eq!(other.api_version(), "cert-manager.io/v1");
        assert_eq!(
            other.group_kind().to_string(),
            "Certificate.cert-manager.io"
        );
        assert!(
            !GroupVersionKind::parse("example.com/v1", "Secret")
                .unwrap()
                .is_secret()
        );
    }

    #[test]
    fn parse_refuses_what_no_server_serves() {
        for (api_version, kind) in [
            ("", "Secret"),
            ("/v1", "Secret"),
            ("apps/", "Deployment"),
            ("apps/v1/x", "Deployment"),
            ("Apps/v1", "Deployment"),
            ("V1", "Secret"),
            ("v1", ""),
            ("v1", "Sec/ret"),
            ("v1", "Sec ret"),
            ("v1", "-Secret"),
        ] {
            assert!(
                GroupVersionKind::parse(api_version, kind).is_err(),
                "{api_version:?} {kind:?}"
            );
        }
    }
}
