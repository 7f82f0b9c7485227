//! Labels and annotations that say who manages an object: which of a source's are never carried,
//! which tell a copy of another tool, and which are Mimeo's own.

use crate::names;

/// Domains whose labels and annotations, those of their subdomains included, say who manages an
/// object; by whose they are.
///
/// On a copy they would lie, and some of them kill: a tool that prunes what carries its mark and
/// isn't in its repository deletes the copies, a replicator takes them for sources of its own.
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

/// Single keys of that sort, in domains that have harmless ones too or in none.
pub const MARK_KEYS: &[&str] = &[
    names::MANAGED_BY,
    "app.kubernetes.io/instance",
    "clustersecret.io",
];

/// Labels and annotations that replicators put on the copies that they make, and on nothing else:
/// what only their sources carry is no sign of a copy. A copy of ours whose `managedFields` were
/// lost, as some backup tools do, counts too.
pub const COPY_MARKS: &[&str] = &[
    names::RULE,
    "clustersecret.io/created-by",
    "generate.kyverno.io/policy-name",
    "kubed.appscode.com/origin",
    "kubed.appscode.com/origin.name",
    "reflector.v1.k8s.emberstack.com/reflected-version",
    "replicator.v1.mittwald.de/replicated-from-version",
];

/// Whether a label or annotation of a source is never carried to its copies.
pub fn never_carried(key: &str) -> bool {
    let domain = key.split_once('/').map(|(domain, _)| domain);
    let mut marks = MARKS.iter().flat_map(|(_, domains)| *domains);
    MARK_KEYS.contains(&key)
        || domain.is_some_and(|domain| marks.any(|mark| is_within(domain, mark)))
}

/// Whether a label or annotation says that a replicator made its object as a copy.
pub fn is_copy_mark(key: &str) -> bool {
    COPY_MARKS.contains(&key)
}

/// Whether the key is one that Mimeo gives its copies.
pub(crate) fn is_mark(key: &str) -> bool {
    key == names::MANAGED_BY || is_ours(key)
}

/// Whether only Mimeo sets the key.
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
        // Else a source that is a copy would make another tool's copies look like ours, or the
        // other way round.
        for key in COPY_MARKS {
            assert!(never_carried(key), "{key}");
        }
    }
}
