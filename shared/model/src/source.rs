//! Sources: one object, or all objects that a selector finds; and the reasons why a source gives no
//! copy.

use std::{fmt, sync::Arc};

use crate::{
    id::{RuleId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
    outcome::{Failure, FailureReason},
    selection::Selector,
};

/// Most bytes of JSON that a source of a Replication may have, and a copy that its `jsonPatch`
/// changes.
pub const MOST_BYTES: usize = 256 << 10;
/// Beginning of the text of an inline source.
const INLINE: &str = "inline/";

/// A source: one object by kind, namespace and name, and how rules come to it.
///
/// Prints as `v1/Secret/platform/registry` and `apps/v1/Deployment/platform/web`; an inline source,
/// which needs no namespace, as `inline/v1/ConfigMap/settings`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceRef {
    /// Its kind, in the version in which it is read and its copies are written.
    pub gvk: GroupVersionKind,
    /// Its namespace; empty, as no namespace's name is, if it is inline.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// How rules come to it.
    pub origin: Origin,
}

/// How rules come to a source. The same object is another source to a rule that comes to it in
/// another way: it may be there to the one and not to the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// By its name.
    Named,
    /// By its labels: it is there for as long as they match.
    Selected(Arc<Selector>),
    /// It stands in this rule, and there is nothing to read.
    Inline(Arc<RuleId>),
}

impl SourceRef {
    /// An object that a rule names.
    pub fn named(
        gvk: GroupVersionKind,
        namespace: impl Into<Box<str>>,
        name: impl Into<Box<str>>,
    ) -> Self {
        Self {
            gvk,
            namespace: namespace.into(),
            name: name.into(),
            origin: Origin::Named,
        }
    }

    /// An object that stands in a rule.
    pub(crate) fn inline(gvk: GroupVersionKind, rule: &RuleId, name: &str) -> Self {
        Self {
            gvk,
            namespace: "".into(),
            name: name.into(),
            origin: Origin::Inline(Arc::new(rule.clone())),
        }
    }

    /// The object that a copy's annotation [`names::SOURCE`](crate::names::SOURCE) names; none if
    /// it doesn't.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with(INLINE) {
            return None;
        }
        let (rest, name) = text.rsplit_once('/')?;
        let (rest, namespace) = rest.rsplit_once('/')?;
        let (api_version, kind) = rest.rsplit_once('/')?;
        Some(Self::named(
            GroupVersionKind::parse(api_version, kind).ok()?,
            namespace,
            name,
        ))
    }

    /// Whether a rule names it, and so has it watched by its name.
    pub fn is_named(&self) -> bool {
        matches!(self.origin, Origin::Named)
    }

    /// Whether it stands in its rule.
    pub fn is_inline(&self) -> bool {
        matches!(self.origin, Origin::Inline(_))
    }

    /// Its namespace, if it has one.
    pub fn home(&self) -> Option<&str> {
        (!self.is_inline()).then_some(&*self.namespace)
    }

    /// Whether it is that object, in whatever version of its kind.
    pub fn is(&self, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        *self.name == *name && *self.namespace == *namespace && self.gvk.is_of(kind)
    }

    /// The selector that finds it, if a selector does.
    pub fn selector(&self) -> Option<SourceSelector> {
        match &self.origin {
            Origin::Named | Origin::Inline(_) => None,
            Origin::Selected(selector) => Some(SourceSelector {
                gvk: self.gvk.clone(),
                namespace: self.namespace.clone(),
                selector: selector.clone(),
            }),
        }
    }

    /// Whether an object of its name is this source, given the value of each of its labels by key.
    pub fn admits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        match &self.origin {
            Origin::Named | Origin::Inline(_) => true,
            Origin::Selected(selector) => selector.matches_by(label),
        }
    }

    /// Kind, namespace and name: the same for every rule and in every version of the kind.
    pub fn object(&self) -> (GroupKind, Box<str>, Box<str>) {
        (
            self.gvk.group_kind(),
            self.namespace.clone(),
            self.name.clone(),
        )
    }

    /// Whether it is the same object, though perhaps in another version, or found in another way.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        (&self.gvk.group, &self.gvk.kind, &self.namespace, &self.name)
            == (
                &other.gvk.group,
                &other.gvk.kind,
                &other.namespace,
                &other.name,
            )
    }
}

impl fmt::Display for SourceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gvk,
            namespace,
            name,
            origin,
        } = self;
        match origin {
            Origin::Named | Origin::Selected(_) => write!(f, "{gvk}/{namespace}/{name}"),
            Origin::Inline(_) => write!(f, "{INLINE}{gvk}/{name}"),
        }
    }
}

/// Every object of a kind in one namespace whose labels match.
///
/// Prints as `v1/Secret/platform`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceSelector {
    /// The kind, in the version in which it is read and its copies are written.
    pub gvk: GroupVersionKind,
    /// The namespace.
    pub namespace: Box<str>,
    /// Which labels.
    pub selector: Arc<Selector>,
}

impl SourceSelector {
    /// The object of that name, as a source that this finds.
    pub fn source(&self, name: impl Into<Box<str>>) -> SourceRef {
        let Self {
            gvk,
            namespace,
            selector,
        } = self.clone();
        SourceRef {
            gvk,
            namespace,
            name: name.into(),
            origin: Origin::Selected(selector),
        }
    }

    /// Whether the selector leaves out an object of that name. Clusters publish their root
    /// certificates in every namespace themselves (`kube-root-ca.crt` by the controller manager,
    /// `openshift-service-ca.crt` by `OpenShift`), so a copy would only be a Conflict. A rule that
    /// names such an object as its source copies it.
    pub fn passes_over(&self, name: &str) -> bool {
        let is_map = self.gvk.group.is_empty() && &*self.gvk.kind == "ConfigMap";
        is_map && ["kube-root-ca.crt", "openshift-service-ca.crt"].contains(&name)
    }

    /// Whether an object is where it looks, in whatever version, and has the kind.
    pub fn could_find(&self, source: &SourceRef) -> bool {
        self.namespace == source.namespace
            && (&self.gvk.group, &self.gvk.kind) == (&source.gvk.group, &source.gvk.kind)
    }

    /// Whether it is what finds this source.
    pub fn finds(&self, source: &SourceRef) -> bool {
        let selector = match &source.origin {
            Origin::Named | Origin::Inline(_) => None,
            Origin::Selected(selector) => Some(selector),
        };
        self.namespace == source.namespace
            && self.gvk == source.gvk
            && selector == Some(&self.selector)
    }
}

impl fmt::Display for SourceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            gvk,
            namespace,
            selector: _,
        } = self;
        write!(f, "{gvk}/{namespace}")
    }
}

/// Why a source gives no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefused {
    /// A token is its service account's; elsewhere it would speak for an account that lives here.
    #[error(
        "a service account token is never copied; set transform.type to copy its data as another type"
    )]
    ServiceAccountToken,
    /// Helm would take a copied release for one of its own.
    #[error("a Helm release is never copied; set transform.type to copy its data as another type")]
    HelmRelease,
    /// Both can't have it, and which one is left out isn't for us to say.
    #[error("transform.data.rename brings two keys to the name {0:?}")]
    SameKey(String),
    /// The author's patch doesn't fit. No data is told.
    #[error("transform.jsonPatch[{number}] can't be applied: {why}")]
    JsonPatch {
        /// Which operation.
        number: usize,
        /// Why.
        why: &'static str,
    },
    /// After an operation of the author's patch the copy has more bytes of JSON than it may.
    #[error("transform.jsonPatch[{number}] makes the copy larger than {most} bytes of JSON")]
    PatchTooLarge {
        /// Which operation.
        number: usize,
        /// The limit.
        most: usize,
    },
    /// The API server would not decode it. The value is not told.
    #[error(
        "{field}[{key}] of the copy is not base64: write the value of a key of {field} in base64"
    )]
    NotBase64 {
        /// `data` or `binaryData`.
        field: &'static str,
        /// Which one.
        key: String,
    },
    /// The author's patch made it of something else.
    #[error("transform makes something of metadata.{field}[{key}] that can't be there")]
    Metadata {
        /// Labels or annotations.
        field: &'static str,
        /// Which one.
        key: String,
    },
    /// It has so many bytes of JSON, and the rule is a Replication.
    #[error(
        "the source has {0} bytes as JSON, and a Replication copies at most {MOST_BYTES}; make the source smaller, or have the \
         cluster's admin copy it with a ClusterReplication"
    )]
    TooLarge(usize),
    /// The API server stores some objects that a decoder refuses.
    #[error(
        "the source can't be decoded: it is nested too deeply, or holds what no decoder of JSON takes"
    )]
    Undecodable,
    /// Not an object at all.
    #[error("the source is not a JSON object")]
    NotAnObject,
}

impl SourceRefused {
    /// Whether the rule makes of the source what can't be a copy, though the source is right.
    pub fn by_the_rule(&self) -> bool {
        match self {
            Self::SameKey(_)
            | Self::JsonPatch { .. }
            | Self::PatchTooLarge { .. }
            | Self::NotBase64 { .. }
            | Self::Metadata { .. } => true,
            Self::ServiceAccountToken
            | Self::HelmRelease
            | Self::TooLarge(_)
            | Self::Undecodable
            | Self::NotAnObject => false,
        }
    }

    /// The failure of a copy that can't be made.
    pub fn failure(&self) -> Failure {
        let reason = match self {
            Self::TooLarge(_) | Self::PatchTooLarge { .. } => FailureReason::TooLarge,
            _ => FailureReason::Invalid,
        };
        Failure {
            reason,
            message: self.to_string().into(),
        }
    }
}

/// Why a rule of this kind copies no source of so many bytes, if it doesn't.
pub fn refused_size(rules: RuleKind, bytes: usize) -> Option<SourceRefused> {
    let too_large = rules == RuleKind::Replication && bytes > MOST_BYTES;
    too_large.then_some(SourceRefused::TooLarge(bytes))
}

/// Why no copy is a Secret of that type, if none is.
pub fn refused_type(secret_type: Option<&str>) -> Option<SourceRefused> {
    match secret_type {
        Some("kubernetes.io/service-account-token") => Some(SourceRefused::ServiceAccountToken),
        Some("helm.sh/release.v1") => Some(SourceRefused::HelmRelease),
        _ => None,
    }
}
