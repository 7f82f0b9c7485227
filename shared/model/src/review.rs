//! Both ends of an admission review: bytes to a [`Request`], and a [`Verdict`] to bytes. Only
//! `admission.k8s.io/v1` is supported.
//!
//! The caller decides about the request. The caller also sets the limits of size and time.

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

/// `apiVersion` of the reviews that Mimeo reads and answers.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// The request that the API server asks about. `Debug` shows only the uid, because the objects may
/// be Secrets.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Identifies the review. The answer repeats it.
    pub uid: String,
    /// Kind of the object, in the version that the webhook's rule asks for.
    pub kind: GroupVersionKind,
    /// Name of the object. It is a valid path segment, and for a namespace a DNS label. `None` if
    /// the API server has yet to generate the name from [`Self::generate_name`].
    pub name: Option<String>,
    /// Namespace of the object, a DNS label. For a namespace it is its own name.
    pub namespace: Option<String>,
    /// The requested operation.
    pub operation: Operation,
    /// The user of the request.
    pub user: User,
    /// The new object. `None` on DELETE. Both objects have only the parts that [`Kept`] selects.
    pub object: Option<Value>,
    /// The stored object. `None` on CREATE.
    pub old_object: Option<Value>,
    /// A dry run: the API server stores nothing, so Mimeo must not store anything either.
    pub dry_run: bool,
}

/// The user of a request, as the API server authenticated it. Uid, groups and extra are filled in
/// only with [`Kept::Rule`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Name of the user.
    pub name: String,
    /// Distinguishes the user from earlier users of the same name. Often empty.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Further facts from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Request {
    /// Name of the object, or the beginning of a name that the API server has yet to generate.
    pub fn shown_name(&self) -> &str {
        let name = self.name.as_deref().or_else(|| self.generate_name());
        name.unwrap_or_default()
    }

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
            .finish_non_exhaustive()
    }
}

/// A resource in one version, as URLs and admission rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// API group, empty for the core group.
    pub group: Box<str>,
    /// Version, as in `v1`.
    pub version: Box<str>,
    /// Plural, as in `pods`.
    pub resource: Box<str>,
}

impl GroupVersionResource {
    /// A resource from its three parts.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
        }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// The object is created.
    Create,
    /// The object is changed.
    Update,
    /// The object is deleted.
    Delete,
}

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The request is allowed without changes.
    Allow {
        /// Warnings for the client, one sentence each.
        warnings: Vec<String>,
    },
    /// The request is allowed with changes. An empty patch changes nothing.
    Patch {
        /// The changes.
        patch: Patch,
        /// Warnings for the client, one sentence each.
        warnings: Vec<String>,
    },
    /// The request is refused, for now or for good.
    Deny {
        /// HTTP status of the answer to the client, 400 or above. 429 tells the client to try again
        /// after a moment.
        code: u16,
        /// The reason in the words of the Kubernetes API, as in `Forbidden`, `TooManyRequests`.
        reason: &'static str,
        /// The message for people, without the prefix `Mimeo: `, which `encode` writes.
        message: String,
    },
}

impl Verdict {
    /// The request is allowed, without warnings.
    pub const ALLOW: Self = Self::Allow {
        warnings: Vec::new(),
    };

    /// The request is refused.
    pub fn deny(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self::Deny {
            code,
            reason,
            message: message.into(),
        }
    }
}

/// The answer to bytes that are not a review.
pub fn bad_request(message: String) -> Verdict {
    Verdict::deny(400, "BadRequest", message)
}
