//! Sealing: the keyed hash that shows who the author of a rule is, and its key, in a Secret of Mimeo's namespace.
//!
//! The webhook seals and verifies, the reconciler verifies. The first webhook replica makes the key; all follow the Secret by a
//! watch on that one name. A Secret that is deleted comes back as it was: with another key every rule would lose its author. A replica
//! that stops puts nothing back, so that whoever wants another key can delete it once no other replica runs.
//!
//! Needs, in its namespace: `get`, `list` and `watch` on the one name, and `create` on Secrets to make it.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use mimeo_core::{
    review::User,
    stamp::{self, Stamp},
};
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use serde_json::Value;
use tokio::{sync::watch, time::sleep};
use tracing::{error, info};

use crate::{
    backoff::Backoff,
    client::{Clients, Fault, status, within},
    follow::Follower,
    shutdown::Shutdown,
};

/// Name of the Secret.
pub const SECRET: &str = "mimeo-author-key";
/// Its one key.
const DATA: &str = "key";
/// Length of what stands there, in bytes: that of the hash.
const LENGTH: usize = 32;

const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// The key, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keyring {
    /// Nobody has looked yet.
    #[default]
    Unread,
    /// There is none.
    Empty,
    /// That one.
    Holds(Arc<Key>),
}

impl Keyring {
    /// Who wrote the object's spec, if its stamp is true.
    pub fn author(&self, kind: &str, object: &Value) -> Option<User> {
        let Self::Holds(key) = self else { return None };
        key.author(kind, object)
    }
}

/// The key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; LENGTH]);

/// Not derived: it is a secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    fn new() -> Result<Self, SealError> {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).map_err(|_| SealError::Random)?;
        Ok(Self(bytes))
    }

    fn of(secret: &Secret) -> Result<Self, SealError> {
        let data = secret.data.as_ref().and_then(|data| data.get(DATA));
        let bytes = data.and_then(|bytes| bytes.0.as_slice().try_into().ok());
        bytes.map(Self).ok_or(SealError::Unusable)
    }

    /// What makes the user the author of the object; none if it can't be stamped.
    pub fn stamp(&self, kind: &str, object: &Value, user: &User) -> Option<Stamp> {
        let author = stamp::author(user)?;
        let seal = self.seal(&stamp::sealed(kind, object, &author)?);
        Some(Stamp { author, seal })
    }

    /// Who wrote the object's spec, if its stamp is true.
    pub fn author(&self, kind: &str, object: &Value) -> Option<User> {
        let stamp = Stamp::of(object)?;
        let sealed = stamp::sealed(kind, object, &stamp.author)?;
        self.verify(&sealed, &stamp.seal).then(|| stamp.user())?
    }

    /// The seal of these bytes, as text.
    fn seal(&self, bytes: &[u8]) -> String {
        let tag = hmac::sign(&self.hmac(), bytes);
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    /// Whether that is their seal; takes as long whatever is wrong with it.
    fn verify(&self, bytes: &[u8], seal: &str) -> bool {
        unhex(seal).is_some_and(|tag| hmac::verify(&self.hmac(), bytes, &tag).is_ok())
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::try_from(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?).ok();
    pairs.map(byte).collect()
}

#[derive(Debug, thiserror::Error)]
enum SealError {
    #[error("the Secret has no key of {LENGTH} bytes in it; delete it to have another made")]
    Unusable,
    #[error("no random numbers")]
    Random,
    #[error("failed to write the Secret: {}", Fault(.0))]
    Write(Box<kube::Error>),
    #[error("failed to read the Secret: {}", Fault(.0))]
    Read(Box<kube::Error>),
}

/// Follows the key until nobody receives it any more, or until the shutdown: what was received last stays then. Who `makes` it
/// creates the Secret where there is none.
pub fn follow(clients: &Clients, namespace: &str, makes: bool, shutdown: Shutdown) -> watch::Receiver<Keyring> {
    let (publish, receiver) = watch::channel(Keyring::Unread);
    let follower = Follower::new(Api::namespaced(clients.watches.clone(), namespace), SECRET);
    let keeper = Keeper { api: Api::namespaced(clients.requests.clone(), namespace), makes, known: None };
    tokio::spawn(async move {
        tokio::select! {
            () = publish.closed() => {}
            () = keeper.keep(follower, &publish) => {}
            // Requests under way are answered by the key that is known.
            () = shutdown.triggered() => publish.closed().await,
        }
    });
    receiver
}

struct Keeper {
    api: Api<Secret>,
    makes: bool,
    /// The last one.
    known: Option<Key>,
}

impl Keeper {
    async fn keep(mut self, mut follower: Follower<Secret>, publish: &watch::Sender<Keyring>) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
        let mut seen = follower.next().await;
        loop {
            match self.settle(seen.as_ref()).await {
                Ok(Some(key)) => {
                    backoff.reset();
                    let news = self.known.as_ref() != Some(&key);
                    self.known = Some(key.clone());
                    if news {
                        publish.send_replace(Keyring::Holds(Arc::new(key)));
                    }
                    seen = follower.next().await;
                }
                Ok(None) => {
                    self.miss(publish);
                    seen = follower.next().await;
                }
                Err(error) => {
                    error!(secret = SECRET, %error, "no key for the authors of rules");
                    self.miss(publish);
                    tokio::select! {
                        changed = follower.next() => seen = changed,
                        () = sleep(backoff.pause()) => {}
                    }
                }
            }
        }
    }

    /// There is none to be had now. One that was known stays: nothing was sealed with another.
    fn miss(&self, publish: &watch::Sender<Keyring>) {
        if self.known.is_none() {
            publish.send_if_modified(|ring| std::mem::replace(ring, Keyring::Empty) != Keyring::Empty);
        }
    }

    /// The key that is in force; none while nobody has made it.
    async fn settle(&self, seen: Option<&Secret>) -> Result<Option<Key>, SealError> {
        match seen {
            Some(secret) => Key::of(secret).map(Some),
            None if self.makes => self.make().await.map(Some),
            None => Ok(None),
        }
    }

    /// Makes the Secret; if somebody else was faster, theirs is the key.
    async fn make(&self) -> Result<Key, SealError> {
        let key = self.known.clone().map_or_else(Key::new, Ok)?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(SECRET.into()), ..ObjectMeta::default() },
            data: Some([(DATA.to_owned(), ByteString(key.0.to_vec()))].into()),
            ..Secret::default()
        };
        match within(REQUEST_DEADLINE, self.api.create(&PostParams::default(), &secret)).await {
            Ok(_) => {
                info!(secret = SECRET, "key for the authors of rules made");
                Ok(key)
            }
            Err(error) if status(&error) == Some(409) => {
                let theirs = within(REQUEST_DEADLINE, self.api.get(SECRET)).await;
                Key::of(&theirs.map_err(|error| SealError::Read(Box::new(error)))?)
            }
            Err(error) => Err(SealError::Write(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Script, Server};

    fn secret(key: &[u8]) -> Value {
        let data = json!({DATA: ByteString(key.to_vec())});
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": SECRET, "resourceVersion": "1"}, "data": data})
    }

    fn keeper(server: &Server, makes: bool, known: Option<Key>) -> Keeper {
        Keeper { api: Api::namespaced(server.client(), "here"), makes, known }
    }

    fn conflict() -> Script {
        Script::json(409, &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409}))
    }

    #[test]
    fn a_seal_is_of_these_bytes_and_this_key_alone() {
        // RFC 4231, test case 2, whose key is shorter.
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"Jefe"), b"what do ya want for nothing?");
        assert_eq!(
            unhex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843").as_deref(),
            Some(tag.as_ref())
        );
        let (key, other) = (Key([1; LENGTH]), Key([2; LENGTH]));
        let seal = key.seal(b"a");
        assert!(key.verify(b"a", &seal));
        assert!(!other.verify(b"a", &seal) && !key.verify(b"b", &seal));
        for bad in ["", "a", &seal[2..], &seal.to_uppercase(), &format!("{seal}00"), "ä", &"zz".repeat(LENGTH)] {
            assert!(!key.verify(b"a", bad), "{bad}");
        }
        assert_eq!(format!("{key:?}"), "Key");
    }

    #[test]
    fn an_author_is_who_the_stamp_says_if_it_is_true() {
        let (key, kind) = (Key([1; LENGTH]), "ClusterReplication");
        let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"});
        let spec = json!({"sources": [source], "targets": [{"namespaces": ["team"]}]});
        let mut rule = json!({"metadata": {"name": "registry", "annotations": {}}, "spec": spec});
        let ann = User { name: "ann".into(), ..User::default() };
        let Stamp { author, seal } = key.stamp(kind, &rule, &ann).expect("a stamp");
        rule["metadata"]["annotations"] = json!({"mimeo.dev/author": author, "mimeo.dev/author-seal": seal});
        assert_eq!(key.author(kind, &rule), Some(ann));
        assert_eq!(Keyring::Holds(Arc::new(Key([2; LENGTH]))).author(kind, &rule), None);
        assert_eq!(Keyring::Empty.author(kind, &rule), None);
        let forged = author.replace("ann", "root");
        for (pointer, value) in [
            ("/metadata/name", "other"),
            ("/spec/targets/0/namespaces/0", "*"),
            ("/metadata/annotations/mimeo.dev~1author", &*forged),
            ("/metadata/annotations/mimeo.dev~1author-seal", "00"),
        ] {
            let mut rule = rule.clone();
            *rule.pointer_mut(pointer).expect("it is there") = value.into();
            assert_eq!(key.author(kind, &rule), None, "{pointer}");
        }
    }

    #[tokio::test]
    async fn whoever_is_first_makes_the_key() {
        let server = Server::start([
            Script::json(201, &secret(&[7; LENGTH])),
            conflict(),
            Script::json(200, &secret(&[9; LENGTH])),
        ])
        .await;
        let first = keeper(&server, true, None).settle(None).await.expect("a key").expect("a key");
        assert_ne!(first, Key([0; LENGTH]));
        let second = keeper(&server, true, None).settle(None).await.expect("a key");
        assert_eq!(second, Some(Key([9; LENGTH])), "somebody was faster");
        assert_eq!(keeper(&server, false, None).settle(None).await.expect("an answer"), None, "who makes none waits");
        let methods: Vec<String> =
            server.requests().iter().filter_map(|line| line.split(' ').next().map(Into::into)).collect();
        assert_eq!(methods, ["POST", "POST", "GET"]);
    }

    #[tokio::test]
    async fn a_deleted_key_comes_back_as_it_was() {
        let server = Server::start([Script::json(201, &secret(&[7; LENGTH]))]).await;
        let known = Key([7; LENGTH]);
        let put_back = keeper(&server, true, Some(known.clone())).settle(None).await.expect("a key");
        assert_eq!(put_back, Some(known));
        let body: Value = serde_json::from_slice(&server.came()[0].body).expect("JSON");
        assert_eq!(body["data"], secret(&[7; LENGTH])["data"]);
    }

    #[tokio::test]
    async fn an_unusable_secret_is_left_alone() {
        let server = Server::start([]).await;
        let short: Secret = serde_json::from_value(secret(b"short")).expect("a Secret");
        let error = keeper(&server, true, None).settle(Some(&short)).await.expect_err("no key");
        assert!(matches!(error, SealError::Unusable) && server.requests().is_empty());
    }
}
