//! Labels and annotations that name the manager of an object. Some of them are never carried from a
//! source to its copies, some identify a copy made by another tool, and some are Mimeo's own.

use crate::names;

/// Domains of labels and annotations that name the manager of an object, grouped by tools.
/// Subdomains count as well.
///
/// These labels and annotations would be wrong on a copy, and some do damage there. A tool that
/// prunes objects with its label deletes the copies, because they are not in its repository.
/// Another replicator takes the copies for its own sources.
pub const MARKS: &[(&str, &[&str])] = &[
    ("Mimeo", &[mimeo_api::names::GROUP]),
    (
        "GitOps",
        &[
            "argocd.argoproj.io",
            "configmanagement.gke.io",
            "configsync.gke.io",
            "fleet.cattle.io",
            "fluxcd.io",
            "kapp.k14s.io",
            "objectset.rio.cattle.io",
        ],
    ),
    (
        "Helm, kubectl, kustomize",
        &[
            "applyset.kubernetes.io",
            "config.k8s.io",
            "config.kubernetes.io",
            "helm.sh",
            "kubectl.kubernetes.io",
        ],
    ),
    (
        "Controllers, of what they manage",
        &["cert-manager.io", "deployment.kubernetes.io"],
    ),
    (
        "Other replicators",
        &[
            "cloud.teleport.dev",
            "clustersecret.io",
            "infra.einstein.ai",
            "kopf.zalando.org",
            "kubed.appscode.com",
            "kyverno.io",
            "reflector.v1.k8s.emberstack.com",
            "replicator.v1.mittwald.de",
            "replika.prosimcorp.com",
            "sync.rustrial.org",
        ],
    ),
];

/// Single keys of the same sort. Their domains also have harmless keys, or they have no domain.
pub const MARK_KEYS: &[&str] = &[
    names::MANAGED_BY,
    "app.kubernetes.io/instance",
    "clustersecret.io",
];

/// Labels and annotations that replicators put on their copies and on nothing else. A key that only
/// their sources carry is not in the list, because it does not identify a copy. Mimeo's own key is
/// in the list for a copy that lost its `managedFields`, as some backup tools drop them.
pub const COPY_MARKS: &[&str] = &[
    names::RULE,
    "clustersecret.io/created-by",
    "generate.kyverno.io/policy-name",
    "kubed.appscode.com/origin",
    "kubed.appscode.com/origin.name",
    "reflector.v1.k8s.emberstack.com/reflected-version",
    "replicator.v1.mittwald.de/replicated-from-version",
];

/// True if Mimeo never carries this label or annotation from a source to its copies.
pub fn never_carried(key: &str) -> bool {
    let domain = key.split_once('/').map(|(domain, _)| domain);
    let mut marks = MARKS.iter().flat_map(|(_, domains)| *domains);
    MARK_KEYS.contains(&key)
        || domain.is_some_and(|domain| marks.any(|mark| is_within(domain, mark)))
}

/// True if this label or annotation shows that a replicator made the object as a copy.
pub fn is_copy_mark(key: &str) -> bool {
    COPY_MARKS.contains(&key)
}

/// True if Mimeo sets this key on its copies.
pub(crate) fn is_mark(key: &str) -> bool {
    key == names::MANAGED_BY || is_ours(key)
}

/// True if the key is in Mimeo's own domain, so that only Mimeo sets it.
pub(crate) fn is_ours(key: &str) -> bool {
    let domain = key.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| is_within(domain, mimeo_api::names::GROUP))
}

fn is_within(domain: &str, parent: &str) -> bool {
    domain
        .strip_suffix(parent)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_other_managers_are_never_carried() {
        for domain in MARKS.iter().flat_map(|(_, domains)| *domains) {
            for key in [format!("{domain}/x"), format!("a.b.{domain}/x")] {
                assert!(never_carried(&key), "{key}");
            }
            for key in [
                format!("not{domain}/x"),
                format!("{domain}.example/x"),
                format!("example.com/{domain}"),
            ] {
                assert!(!never_carried(&key), "{key}");
            }
        }
        for key in MARK_KEYS {
            assert!(never_carried(key), "{key}");
            assert!(!never_carried(&format!("{key}-s")), "{key}-s");
        }
        for key in [
            "app",
            "app.kubernetes.io/name",
            "kubernetes.io/x",
            "helm.sh",
        ] {
            assert!(!never_carried(key), "{key}");
        }
        // Otherwise the copies of a source that is itself a copy would be mistaken: copies of
        // another tool for Mimeo's, or Mimeo's for those of another tool.
        for key in COPY_MARKS {
            assert!(never_carried(key), "{key}");
        }
    }
}
