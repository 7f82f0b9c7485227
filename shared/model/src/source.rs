//! Sources: one object, or all objects that a selector finds. Also the reasons why a source gives
//! no copy.

use std::{fmt, sync::Arc};

use crate::{
    id::{RuleId, RuleKind},
    kind::{GroupKind, GroupVersionKind},
    outcome::{Failure, FailureReason},
    selection::Selector,
};

/// Most bytes of JSON in a source of a Replication, and in a copy after its `jsonPatch`.
pub const MOST_BYTES: usize = 256 << 10;
/// Prefix of the text of an inline source.
const INLINE: &str = "inline/";

/// A source: one object by kind, namespace and name, and the way in which rules refer to it.
///
/// Prints as `v1/Secret/platform/registry` and `apps/v1/Deployment/platform/web`. An inline source
/// has no namespace and prints as `inline/v1/ConfigMap/settings`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRef {
    /// Kind of the source, in the version that Mimeo uses to read it and to write its copies.
    pub gvk: GroupVersionKind,
    /// Namespace of the source. Empty if it is inline: no real namespace has an empty name.
    pub namespace: Box<str>,
    /// Name of the source.
    pub name: Box<str>,
    /// The way in which rules refer to the source.
    pub origin: Origin,
}

/// The way in which rules refer to a source. The same object counts as different sources to rules
/// that refer to it differently. It may exist for one of them and not for the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// By its name.
    Named,
    /// By its labels. The source exists only while the selector matches.
    Selected(Arc<SourceSelector>),
    /// The object is part of this rule, so there is nothing to read.
    Inline(Arc<RuleId>),
}

impl SourceRef {
    /// A source that a rule names.
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

    /// A source inside a rule.
    pub(crate) fn inline(gvk: GroupVersionKind, rule: &RuleId, name: &str) -> Self {
        Self {
            origin: Origin::Inline(Arc::new(rule.clone())),
            ..Self::named(gvk, "", name)
        }
    }

    /// The object in a copy's annotation [`names::SOURCE`](crate::names::SOURCE). `None` if the
    /// annotation does not name an object.
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

    /// True if a rule names the source. Mimeo then watches it by its name.
    pub fn is_named(&self) -> bool {
        matches!(self.origin, Origin::Named)
    }

    /// True if the source is inside its rule.
    pub fn is_inline(&self) -> bool {
        matches!(self.origin, Origin::Inline(_))
    }

    /// The namespace of the source, if it has one.
    pub fn home(&self) -> Option<&str> {
        (!self.is_inline()).then_some(&*self.namespace)
    }

    /// True if the source is that object, in any version of its kind.
    pub fn is(&self, kind: &GroupKind, namespace: &str, name: &str) -> bool {
        *self.name == *name && *self.namespace == *namespace && self.gvk.is_of(kind)
    }

    /// The selector that finds the source, if there is one.
    pub fn selector(&self) -> Option<&SourceSelector> {
        match &self.origin {
            Origin::Named | Origin::Inline(_) => None,
            Origin::Selected(selector) => Some(selector),
        }
    }

    /// True if an object of the source's name is this source. `label` returns the value of a label
    /// by its key.
    pub fn admits<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.selector()
            .is_none_or(|found| found.selector.matches_by(label))
    }

    /// Kind, namespace and name. They are the same for every rule and every version of the kind.
    pub fn object(&self) -> (GroupKind, Box<str>, Box<str>) {
        (
            self.gvk.group_kind(),
            self.namespace.clone(),
            self.name.clone(),
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

/// A selector for sources: all objects of a kind in one namespace with matching labels.
///
/// Prints as `v1/Secret/platform`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceSelector {
    /// The kind, in the version that Mimeo uses to read the sources and to write their copies.
    pub gvk: GroupVersionKind,
    /// The namespace.
    pub namespace: Box<str>,
    /// The selector of labels.
    pub selector: Arc<Selector>,
}

impl SourceSelector {
    /// The object `name` as a source that this selector finds.
    pub fn source(&self, name: impl Into<Box<str>>) -> SourceRef {
        SourceRef {
            origin: Origin::Selected(Arc::new(self.clone())),
            ..SourceRef::named(self.gvk.clone(), self.namespace.clone(), name)
        }
    }

    /// True if the selector leaves out an object of that name. Clusters publish their root
    /// certificates in every namespace themselves, so a copy would only be a conflict. The
    /// controller manager writes `kube-root-ca.crt`, and `OpenShift` writes
    /// `openshift-service-ca.crt`. A rule that names such an object as its source still copies it.
    pub fn passes_over(&self, name: &str) -> bool {
        self.gvk.is_config_map() && ["kube-root-ca.crt", "openshift-service-ca.crt"].contains(&name)
    }

    /// True if the source has the selector's namespace and kind, in any version.
    pub fn could_find(&self, source: &SourceRef) -> bool {
        self.namespace == source.namespace
            && (&self.gvk.group, &self.gvk.kind) == (&source.gvk.group, &source.gvk.kind)
    }

    /// True if this selector is the origin of the source.
    pub fn finds(&self, source: &SourceRef) -> bool {
        source.selector() == Some(self)
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

/// One source, or all sources that a selector finds.
#[derive(Clone, Copy, Debug)]
pub enum SourceQuery<'a> {
    /// A source that a rule names or has inline, or that a selector has found.
    One(&'a SourceRef),
    /// The sources that this selector finds.
    Selected(&'a SourceSelector),
}

impl<'a> SourceQuery<'a> {
    /// The kind.
    pub fn gvk(self) -> &'a GroupVersionKind {
        match self {
            Self::One(source) => &source.gvk,
            Self::Selected(selector) => &selector.gvk,
        }
    }

    /// The namespace. `None` for an inline source.
    pub fn home(self) -> Option<&'a str> {
        match self {
            Self::One(source) => source.home(),
            Self::Selected(selector) => Some(&selector.namespace),
        }
    }

    /// The name that a rule must be allowed to read. `None` means all names: a selector reveals
    /// which objects exist.
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::One(source) if source.selector().is_none() => Some(&source.name),
            Self::One(_) | Self::Selected(_) => None,
        }
    }
}

impl fmt::Display for SourceQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(source) => source.fmt(f),
            Self::Selected(selector) => selector.fmt(f),
        }
    }
}

/// The reason why a source gives no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefused {
    /// A token belongs to its service account. In another namespace, it would act for an account of
    /// this namespace.
    #[error(
        "a service account token is never copied; set transform.type to copy its data as another \
         type"
    )]
    ServiceAccountToken,
    /// Helm would use a copied release as one of its own.
    #[error("a Helm release is never copied; set transform.type to copy its data as another type")]
    HelmRelease,
    /// Two keys can't have the same name, and only the author can decide between them.
    #[error("transform.data.rename brings two keys to the name {0:?}")]
    SameKey(String),
    /// The author's patch does not fit the copy. The message has no data.
    #[error("transform.jsonPatch[{number}] can't be applied: {why}")]
    JsonPatch {
        /// Index of the operation.
        number: usize,
        /// The reason.
        why: &'static str,
    },
    /// After an operation of the author's patch, the copy has more bytes of JSON than allowed.
    #[error("transform.jsonPatch[{number}] makes the copy larger than {most} bytes of JSON")]
    PatchTooLarge {
        /// Index of the operation.
        number: usize,
        /// The limit.
        most: usize,
    },
    /// The author's patch replaced the value by one that is not valid there.
    #[error(
        "the rule's transform makes metadata.{field}[{key}] of the copy invalid: the value must be \
         a string, and of a label at most 63 letters, digits, '-', '_' and '.'; correct \
         spec.transform"
    )]
    Metadata {
        /// `labels` or `annotations`.
        field: &'static str,
        /// The key.
        key: String,
    },
    /// The source has this many bytes of JSON, and the rule is a Replication.
    #[error(
        "the source has {0} bytes as JSON, and a Replication copies at most {MOST_BYTES}; make the \
         source smaller, or have the cluster's admin copy it with a ClusterReplication"
    )]
    TooLarge(usize),
    /// The API server stores some objects that JSON decoders refuse.
    #[error(
        "the source can't be decoded: it is nested too deeply, or holds what no decoder of JSON \
         takes"
    )]
    Undecodable,
    /// The source is not a JSON object.
    #[error("the source is not a JSON object")]
    NotAnObject,
}

impl SourceRefused {
    /// True if the source is valid, but the rule makes an invalid copy of it.
    pub fn by_the_rule(&self) -> bool {
        matches!(
            self,
            Self::SameKey(_)
                | Self::JsonPatch { .. }
                | Self::PatchTooLarge { .. }
                | Self::Metadata { .. }
        )
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

/// The reason why a rule of this kind does not copy a source of this size, if there is one.
pub fn refused_size(rules: RuleKind, bytes: usize) -> Option<SourceRefused> {
    let too_large = rules == RuleKind::Replication && bytes > MOST_BYTES;
    too_large.then_some(SourceRefused::TooLarge(bytes))
}

/// The reason why no copy may be a Secret of this type, if there is one.
pub fn refused_type(secret_type: Option<&str>) -> Option<SourceRefused> {
    match secret_type {
        Some("kubernetes.io/service-account-token") => Some(SourceRefused::ServiceAccountToken),
        Some("helm.sh/release.v1") => Some(SourceRefused::HelmRelease),
        _ => None,
    }
}
