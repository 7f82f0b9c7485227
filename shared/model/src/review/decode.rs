//! Bytes to a [`Request`].
//!
//! The objects stay raw text until the rest of the review is checked. Then the decoder parses only
//! the parts of each object that the hook needs, up to a number of values. Tenants write these
//! objects, and parsed JSON may take a hundred times the memory of its text.

mod object;

use std::collections::BTreeMap;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

pub use self::object::Kept;
use self::object::TOO_MANY;
use super::{API_VERSION, KIND, Operation, Request, User};
use crate::{kind::GroupVersionKind, syntax};

/// Longest name of an object or user, uid, kind and so on, in bytes. Names of most kinds have at
/// most 253 bytes. The API server sets no limit for names of Roles.
const NAME_LENGTH: usize = 1 << 10;
/// Longest JSON of a user's groups, and of the user's extra, in bytes. It has room for some
/// thousands of groups.
const GROUPS_LENGTH: usize = 256 << 10;
/// The short fields of an object's metadata. They appear in logs.
const IDENTITY: [&str; 5] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
];

/// The bytes are not a review. The message says where the decoder stopped, but never quotes the
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AdmissionReview of {API_VERSION}: {why}")]
pub struct Undecodable {
    why: String,
}

/// True if an object can have this name: it is one path segment. The API server accepts no other
/// names, and reads `%2F` as a slash.
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_LENGTH && syntax::path_segment(text).is_ok()
}

/// Reads the body of an admission request.
pub fn decode(body: &[u8], kept: Kept) -> Result<Request, Undecodable> {
    let review: Review<'_> = serde_json::from_slice(body).map_err(|error| place(&error))?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(undecodable("another apiVersion or kind"));
    }
    let mut asked = review
        .request
        .ok_or_else(|| undecodable("no request in it"))?;
    // An API server may write an empty name where there is none.
    for name in [&mut asked.name, &mut asked.namespace] {
        name.take_if(|name| name.is_empty());
    }
    asked.check().map_err(undecodable)?;
    let object = asked.object.map(|object| keep(object, kept)).transpose()?;
    let old_object = asked
        .old_object
        .map(|old| match keep(old, kept) {
            // A namespace with too many labels must be readable, so that a user can remove the
            // labels.
            Err(_) if kept == Kept::Metadata => keep(old, Kept::Mark),
            read => read,
        })
        .transpose()?;
    let user = if kept == Kept::Rule {
        asked.user_info.whole()?
    } else {
        User {
            name: asked.user_info.username,
            ..User::default()
        }
    };
    Ok(Request {
        uid: asked.uid,
        kind: asked.kind,
        name: asked.name,
        namespace: asked.namespace,
        operation: asked.operation,
        user,
        object,
        old_object,
        dry_run: asked.dry_run,
    })
}

/// Parses the parts of an object that are kept.
fn keep(object: &RawValue, kept: Kept) -> Result<Value, Undecodable> {
    let object = object::parse(object, kept).map_err(|error| {
        if error.to_string().starts_with(TOO_MANY) {
            undecodable("an object with too many values")
        } else {
            place(&error)
        }
    })?;
    let mut names = IDENTITY
        .iter()
        .filter_map(|field| object["metadata"][field].as_str());
    if names.any(|name| name.len() > NAME_LENGTH) {
        return Err(undecodable("an object with a name that can't be one"));
    }
    Ok(object)
}

fn parse<T: DeserializeOwned>(text: &RawValue) -> Result<T, Undecodable> {
    serde_json::from_str(text.get()).map_err(|error| place(&error))
}

fn undecodable(why: &str) -> Undecodable {
    Undecodable { why: why.into() }
}

/// The fault and its place. The parser's own message may quote the text, which may be secret.
fn place(error: &serde_json::Error) -> Undecodable {
    let (sort, line, column) = (error.classify(), error.line(), error.column());
    undecodable(&format!("{sort:?} error, line {line} column {column}"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Asked<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked<'a> {
    uid: String,
    kind: GroupVersionKind,
    name: Option<String>,
    namespace: Option<String>,
    operation: Operation,
    #[serde(borrow, default)]
    user_info: UserInfo<'a>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
    #[serde(default)]
    dry_run: bool,
}

impl Asked<'_> {
    /// Checks all names in the review. They go into URLs, logs, answers and further requests, and
    /// any client may send a review.
    fn check(&self) -> Result<(), &'static str> {
        let kind = &self.kind;
        let words = [
            &*self.uid,
            &kind.group,
            &kind.version,
            &kind.kind,
            &self.user_info.username,
        ];
        if words
            .into_iter()
            .chain(self.user_info.uid.as_deref())
            .any(|word| word.len() > NAME_LENGTH)
        {
            return Err("a word that is too long");
        }
        let names_namespace = kind.group.is_empty() && &*kind.kind == "Namespace";
        let mut namespaces = self
            .namespace
            .iter()
            .chain(self.name.iter().filter(|_| names_namespace));
        if namespaces.any(|name| syntax::dns_label(name).is_err()) {
            return Err("a namespace's name that can't be one");
        }
        if !self.name.iter().all(|name| is_name(name)) {
            return Err("a name that can't be one");
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo<'a> {
    username: String,
    uid: Option<String>,
    #[serde(borrow)]
    groups: Option<&'a RawValue>,
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
}

impl UserInfo<'_> {
    /// The user with groups and extra.
    fn whole(self) -> Result<User, Undecodable> {
        let is_too_long = |text: &RawValue| text.get().len() > GROUPS_LENGTH;
        if [self.groups, self.extra]
            .into_iter()
            .flatten()
            .any(is_too_long)
        {
            return Err(undecodable("a user with too many groups"));
        }
        let groups = self.groups.map(parse).transpose()?;
        let extra: Option<BTreeMap<_, Option<_>>> = self.extra.map(parse).transpose()?;
        let extra = extra
            .into_iter()
            .flatten()
            .map(|(key, values)| (key, values.unwrap_or_default()))
            .collect();
        Ok(User {
            name: self.username,
            uid: self.uid.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
            extra,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests;
