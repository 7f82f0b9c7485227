//! Bytes to a [`Request`].
//!
//! Parsed JSON takes up to a hundred times the memory of its text, and anybody may send some. So of the objects only that is
//! parsed which the hook looks at, and [`decode`] says beforehand what it comes to.

mod object;
mod uid;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

pub use self::object::Kept;
use self::object::{KEPT_MEMORY, Object};
pub(super) use self::uid::find_uid;
use super::{API_VERSION, GroupVersionResource, KIND, Operation, Request, User};
use crate::{kind::GroupVersionKind, memory, rule::syntax};

/// Most memory for one user's groups and extra, in bytes: some thousands of groups.
const USER_MEMORY: usize = 1 << 20;

/// Longest uid of a review, kind, resource and the like, in bytes; real ones are far shorter.
const WORD_LENGTH: usize = 253;
/// Longest name of an object. Those of most kinds have 253 bytes at most; to those of Roles the API server sets no limit.
const NAME_LENGTH: usize = 1 << 10;
/// Longest name and uid of a user.
const USER_NAME_LENGTH: usize = 1 << 10;

/// Not a review. Says where reading stopped, never what stood there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AdmissionReview of {API_VERSION}: {why}")]
pub struct Undecodable {
    why: String,
}

/// A review that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// What it asks.
    pub request: Request,
    /// Bytes of memory that the request's objects take at most.
    pub memory: usize,
}

/// Whether anything can have that name: it is one segment of a path. (The API server takes no other, and takes `%2F` for a slash.)
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME_LENGTH && syntax::path_segment(text).is_ok()
}

/// Reads the body of an admission request.
pub fn decode(body: &[u8], kept: Kept) -> Result<Decoded, Undecodable> {
    let undecodable = |why| Undecodable { why };
    let review: Review<'_> = serde_json::from_slice(body).map_err(|error| undecodable(place(&error)))?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(undecodable("another apiVersion or kind".into()));
    }
    let asked = review.request.ok_or_else(|| undecodable("no request in it".into()))?;
    asked.check().map_err(|why| undecodable(why.into()))?;
    let whole_user = kept == Kept::Rule;
    let mut memory = if whole_user { asked.user_info.memory() } else { 0 };
    if memory > USER_MEMORY {
        return Err(undecodable("a user with too many groups".into()));
    }
    let user = asked.user_info.parse(whole_user).map_err(|error| undecodable(place(&error)))?;
    // None if it is too much.
    let mut keep = |object: &RawValue, kept| {
        let object = Object::pick(object, kept).map_err(|error| undecodable(place(&error)))?;
        if object.longest_name() > NAME_LENGTH {
            return Err(undecodable("an object with a name that can't be one".into()));
        }
        if object.memory() > KEPT_MEMORY {
            return Ok(None);
        }
        memory += object.memory();
        object.parse().map(Some).map_err(|error| undecodable(place(&error)))
    };
    let too_much = || undecodable("an object with too many values".into());
    let object = asked.object.map(|object| keep(object, kept)?.ok_or_else(too_much)).transpose()?;
    let mut keep_old = |old| match keep(old, kept)? {
        // What a namespace has too much of can still be taken away.
        None if kept == Kept::Metadata => keep(old, Kept::Mark),
        whole => Ok(whole),
    };
    let old_object = asked.old_object.map(|old| keep_old(old)?.ok_or_else(too_much)).transpose()?;
    let request = Request {
        uid: asked.uid,
        kind: GroupVersionKind { group: asked.kind.group, version: asked.kind.version, kind: asked.kind.kind },
        resource: asked.resource,
        sub_resource: asked.sub_resource,
        name: asked.name,
        namespace: asked.namespace,
        operation: asked.operation,
        user,
        object,
        old_object,
        dry_run: asked.dry_run,
    };
    Ok(Decoded { request, memory })
}

/// What is wrong and where. The parser's own message may quote the text, which may be secret.
fn place(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Syntax => "no JSON",
        serde_json::error::Category::Data => "a field is missing or of another type",
        serde_json::error::Category::Io => "unreadable",
    };
    format!("{what}, line {} column {}", error.line(), error.column())
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
    kind: AskedKind,
    resource: GroupVersionResource,
    #[serde(default, deserialize_with = "unless_empty")]
    sub_resource: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
    name: Option<String>,
    #[serde(default, deserialize_with = "unless_empty")]
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
    /// Whether all that it names could be: names come to stand in URLs, logs and answers, and anybody may send some.
    fn check(&self) -> Result<(), &'static str> {
        let AskedKind { group, version, kind } = &self.kind;
        let resource = &self.resource;
        let words = [&*self.uid, group, version, kind, &resource.group, &resource.version, &resource.resource];
        if words.into_iter().chain(self.sub_resource.as_deref()).any(|word| word.len() > WORD_LENGTH) {
            return Err("a uid, kind or resource that is too long");
        }
        if [&self.user_info.username].into_iter().chain(&self.user_info.uid).any(|name| name.len() > USER_NAME_LENGTH) {
            return Err("a user whose name is too long");
        }
        let names_namespace = resource.group.is_empty() && &*resource.resource == "namespaces";
        let mut namespaces = self.namespace.iter().chain(self.name.iter().filter(|_| names_namespace));
        if namespaces.any(|name| syntax::dns_label(name).is_err()) {
            return Err("a namespace's name that can't be one");
        }
        if !self.name.iter().all(|name| is_name(name)) {
            return Err("a name that can't be one");
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct AskedKind {
    #[serde(default)]
    group: Box<str>,
    version: Box<str>,
    kind: Box<str>,
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
    fn memory(&self) -> usize {
        [self.groups, self.extra].into_iter().flatten().map(|text| memory::of_text(text.get())).sum()
    }

    fn parse(self, whole: bool) -> serde_json::Result<User> {
        let name = self.username;
        if !whole {
            return Ok(User { name, ..User::default() });
        }
        let groups = self.groups.map(|text| serde_json::from_str(text.get())).transpose()?;
        let extra: Option<BTreeMap<_, Option<_>>> =
            self.extra.map(|text| serde_json::from_str(text.get())).transpose()?;
        let extra = extra.into_iter().flatten().map(|(key, values)| (key, values.unwrap_or_default())).collect();
        Ok(User { name, uid: self.uid.unwrap_or_default(), groups: groups.unwrap_or_default(), extra })
    }
}

fn unless_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests;
