//! Both ends of an admission review: bytes to a [`Request`], a [`Verdict`] to bytes.
//! `admission.k8s.io/v1` only.
//!
//! What lies between is the caller's, and so are limits of size and time.

use std::{collections::BTreeMap, fmt};

use json_patch::Patch;
use serde::Deserialize;
use serde_json::Value;

use crate::kind::GroupVersionKind;

mod decode;
mod encode;

pub use self::{
    decode::{Kept, Undecodable, decode, is_name},
    encode::{encode, encode_unread},
};

/// `apiVersion` of the reviews that are understood and answered.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// What the API server asks about. `Debug` leaves the objects out: they may be Secrets.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Identifies the review; the answer repeats it.
    pub uid: String,
    /// Kind of the object, in the version that the webhook's rule asks for.
    pub kind: GroupVersionKind,
    /// Resource, in that version.
    pub resource: GroupVersionResource,
    /// As in `status`, `finalize`.
    pub sub_resource: Option<String>,
    /// Name of the object, which a path can have as a segment; of a namespace a DNS label. `None`
    /// while the API server has yet to make it up from [`Self::generate_name`].
    pub name: Option<String>,
    /// Namespace of the object, a DNS label; of a namespace it is the namespace itself.
    pub namespace: Option<String>,
    /// What is done.
    pub operation: Operation,
    /// Who does it.
    pub user: User,
    /// The object as it will be; `None` on DELETE. Here and in the next: what is [`Kept`].
    pub object: Option<Value>,
    /// The object as it is stored; `None` on CREATE.
    pub old_object: Option<Value>,
    /// Nothing will be stored, so nothing else may be.
    pub dry_run: bool,
}

/// Who sends a request, as the API server authenticated them. Uid, groups and extra are kept with
/// [`Kept::Rule`] alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Their name.
    pub name: String,
    /// Tells them from others who had the name before; often empty.
    pub uid: String,
    /// Groups that they are in.
    pub groups: Vec<String>,
    /// Whatever else the authenticator says of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Request {
    /// `metadata.generateName` of the object.
    pub fn generate_name(&self) -> Option<&str> {
        let name = self
            .object
            .as_ref()?
            .pointer("/metadata/generateName")?
            .as_str()?;
        (!name.is_empty()).then_some(name)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("uid", &self.uid)
            .field("kind", &self.kind)
            .field("resource", &self.resource)
            .field("sub_resource", &self.sub_resource)
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("operation", &self.operation)
            .field("user", &self.user.name)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}

/// A resource in one version, as URLs and admission rules name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct GroupVersionResource {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: Box<str>,
    /// Version, as in `v1`.
    pub version: Box<str>,
    /// Plural, as in `pods`.
    pub resource: Box<str>,
}

impl GroupVersionResource {
    /// Of these three.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }
}

/// What a request does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// It is new.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// It is connected to, as by `exec`.
    Connect,
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// As it is.
    Allow {
        /// For the client, one sentence each.
        warnings: Vec<String>,
    },
    /// Changed. An empty patch allows.
    Patch {
        /// What to change.
        patch: Patch,
        /// For the client, one sentence each.
        warnings: Vec<String>,
    },
    /// Not at all, or not now.
    Deny {
        /// HTTP status of the answer to the client, 400 or above.
        code: u16,
        /// The word of the Kubernetes API for it, as in `Forbidden`, `TooManyRequests`.
        reason: &'static str,
        /// For people.
        message: String,
        /// When the client should come back, in seconds.
        retry_after_seconds: Option<u32>,
    },
}

impl Verdict {
    /// As it is, without a word.
    pub const ALLOW: Self = Self::Allow {
        warnings: Vec::new(),
    };
}

/// "This is no review."
pub fn bad_request(message: String) -> Verdict {
    Verdict::Deny {
        code: 400,
        reason: "BadRequest",
        message,
        retry_after_seconds: None,
    }
}
