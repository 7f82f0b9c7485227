//! How far the cluster is known, and objects as far as they could be decoded.

use std::fmt;

use serde_json::Value;

use crate::outcome::Unreadable;

/// How far something in the cluster is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// Not at all so far.
    #[default]
    Unknown,
    /// The API server doesn't serve the kind.
    Unserved,
    /// The API server refuses or fails the read, until a user fixes that.
    Unreadable(Unreadable),
    /// All of it was listed.
    Listed(T),
}

impl<T> Known<T> {
    /// True if all of it was listed.
    pub fn is_listed(&self) -> bool {
        self.listed().is_some()
    }

    /// The listed value.
    pub fn listed(&self) -> Option<&T> {
        match self {
            Self::Listed(value) => Some(value),
            Self::Unknown | Self::Unserved | Self::Unreadable(_) => None,
        }
    }

    /// Changes the listed value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Unknown => Known::Unknown,
            Self::Unserved => Known::Unserved,
            Self::Unreadable(why) => Known::Unreadable(why),
            Self::Listed(value) => Known::Listed(change(value)),
        }
    }
}

/// The result of a search that is complete: `None` means that the kind is not served.
impl<T> From<Option<T>> for Known<T> {
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Unserved, Self::Listed)
    }
}

/// The state of a watch. Objects that it has listed stay valid while it can't be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    known: Known<()>,
    unreadable: Option<Unreadable>,
}

impl Watched {
    /// Records the present state of the watch. Returns true if that changes anything.
    pub fn becomes<T>(&mut self, state: Known<T>) -> bool {
        let before = *self;
        self.unreadable = match state {
            Known::Unreadable(why) => Some(why),
            Known::Unknown | Known::Unserved | Known::Listed(_) => None,
        };
        if state.is_listed() || !self.is_listed() {
            self.known = state.map(|_| ());
        }
        *self != before
    }

    /// How far its objects are known. Once listed, they stay so.
    pub fn known(&self) -> Known<()> {
        self.known
    }

    /// True if all of its objects were listed.
    pub fn is_listed(&self) -> bool {
        self.known.is_listed()
    }

    /// Why its objects can't be read now.
    pub fn unreadable(&self) -> Option<Unreadable> {
        self.unreadable
    }
}

/// An object, decoded as far as possible. `Debug` is not derived, because the object may be a
/// Secret.
#[derive(Clone, PartialEq)]
pub enum Decoded<T> {
    /// The whole object, without the entries of `managedFields` that cannot be decoded.
    Whole(T),
    /// The object's metadata and those of its other fields that can be decoded.
    Part(Value),
}

impl<T> Decoded<T> {
    /// The whole object. `None`: only a part of it could be decoded.
    pub fn whole(self) -> Option<T> {
        match self {
            Self::Whole(object) => Some(object),
            Self::Part(_) => None,
        }
    }
}

impl Decoded<Value> {
    /// The decoded part of the object.
    pub fn value(&self) -> &Value {
        let (Self::Whole(object) | Self::Part(object)) = self;
        object
    }
}

impl<T> fmt::Debug for Decoded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Part(_) => "Part",
        })
    }
}
