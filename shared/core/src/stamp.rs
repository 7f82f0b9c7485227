//! The stamp on a rule: who last wrote what it does, sealed.
//!
//! Two annotations: [`names::AUTHOR`] has the author, [`names::SEAL`] a keyed hash over the author and all that the author
//! answers for. The key is the caller's, and so is hashing; here is what is hashed, and who becomes the author.
//!
//! The uid isn't in it: a rule has none yet when it is stamped. So an old stamp fits again where an old spec comes back under
//! its name, as from a backup: the author of then is the author of just that spec, and the reconciler asks again what they may
//! do before it writes. The webhook, which asks nobody while a namespace waits, may fill namespaces before that.
//!
//! The name is in it, or a stamp would fit any rule of this spec. Under `generateName` the API server makes a name up only
//! after the stamp was put on, so the hook that stamps makes it up instead: [`generated_name`].

use mimeo_api::{ClusterReplicationSpec, ReplicationSpec};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    meta::Checksum,
    names,
    review::{Operation, Request, User},
};

/// Longest text of an author, in bytes: an object has room for 256 KiB of annotations in all.
const AUTHOR_LENGTH: usize = 64 << 10;

/// Instead of an author: no text of [`author`]'s.
const UNKNOWN: &str = "unknown";

/// Prefix of what the API server says in `extra` of a credential.
const CREDENTIAL: &str = "authentication.kubernetes.io/";

/// Both annotations of a rule, as they stand there: whether they are true is for [`sealed`] and the key to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The author, as [`author`] writes one.
    pub author: String,
    /// The keyed hash.
    pub seal: String,
}

impl Stamp {
    /// Of an object, if it has both annotations.
    pub fn of(object: &Value) -> Option<Self> {
        let annotation = |key| object["metadata"]["annotations"][key].as_str().map(Into::into);
        Some(Self { author: annotation(names::AUTHOR)?, seal: annotation(names::SEAL)? })
    }

    /// Who the author is; none if it isn't a text of [`author`]'s.
    pub fn user(&self) -> Option<User> {
        let written: Written = serde_json::from_str(&self.author).ok()?;
        let Written { username, uid, groups, extra } = written;
        Some(User { name: username, uid, groups, extra })
    }
}

/// As in `userInfo` of a review.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    username: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// The text of an author; none if it would be too long for an annotation. By which token they came, and from which pod, is left out:
/// that is soon another, and says nothing of who they are.
pub fn author(user: &User) -> Option<String> {
    let User { name, uid, groups, mut extra } = user.clone();
    extra.retain(|key, _| !key.starts_with(CREDENTIAL));
    let written = serde_json::to_string(&Written { username: name, uid, groups, extra }).ok()?;
    (written.len() <= AUTHOR_LENGTH).then_some(written)
}

/// What is hashed: the object's identity, its spec, and the author's text. The length of each part stands before it, so that no
/// two lists of parts give the same bytes. None for what has no name or makes no sense, and for kinds that are not stamped: of
/// a `TransformPolicy` nobody asks who its author was.
pub fn sealed(kind: &str, object: &Value, author: &str) -> Option<Vec<u8>> {
    let spec = match kind {
        mimeo_api::names::CLUSTER_REPLICATION => canonical::<ClusterReplicationSpec>(&object["spec"])?,
        mimeo_api::names::REPLICATION => canonical::<ReplicationSpec>(&object["spec"])?,
        _ => return None,
    };
    let metadata = &object["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str().unwrap_or_default(), metadata["name"].as_str()?);
    let mut bytes = Vec::new();
    for part in ["mimeo.dev/stamp/1", kind, namespace, name, &spec.to_string(), author] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    Some(bytes)
}

/// The spec without what is as if left out, keys in order: a later version's new fields, which the API server fills in for rules
/// that were stored before there were any, change nothing.
fn canonical<S: Serialize + DeserializeOwned + Default>(spec: &Value) -> Option<Value> {
    let mut spec = serde_json::to_value(S::deserialize(spec).ok()?).ok()?;
    let default = serde_json::to_value(S::default()).ok()?;
    spec.as_object_mut()?.retain(|name, field| default.get(name) != Some(field));
    Some(spec)
}

/// The name of an object that is created with `generateName` alone, as the API server would make one up.
pub fn generated_name(request: &Request) -> Option<String> {
    const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    const LONGEST_BEGINNING: usize = 58;
    let named = request.object.as_ref()?["metadata"]["name"].as_str().is_some_and(|name| !name.is_empty());
    let beginning = request.generate_name().filter(|_| !named && request.operation == Operation::Create)?;
    let cut = beginning.char_indices().nth(LONGEST_BEGINNING).map_or(beginning.len(), |(at, _)| at);
    let mut random = Checksum::of(request.uid.as_bytes()).short();
    let letters = (0..5).map(|_| {
        let letter = LETTERS[usize::try_from(random % 27).unwrap_or_default()];
        random /= 27;
        char::from(letter)
    });
    Some(beginning[..cut].chars().chain(letters).collect())
}

/// Who is the author of an object once it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorship {
    /// Whoever writes it now. That they may is for the validating hook to check.
    Writer,
    /// The previous author stays: what the object does is the same, and nobody asks for another author.
    Before,
    /// Whoever writes it now if they may do all that it does, else who was it before, if anybody. So an object without an author
    /// gets one, and one whose author has lost the right another.
    WriterIfAllowed,
    /// Nobody yet. It is created with the stamp of somebody else on it, as by a backup tool: whoever restores everything, with the
    /// rights to everything, doesn't answer for what each rule does, and who did then needn't be trusted now.
    Nobody,
}

/// Decides it for an object that `writer` (as [`author`] writes one) creates, or changes from `old`; `valid` says whether the stamp on
/// `old` is true. With a true one it takes another text in its place to say that somebody wants to be the author: who writes the whole
/// object anew, and knows of no stamp, says no such thing.
pub fn authorship(operation: Operation, writer: &str, old: Option<&Value>, object: &Value, valid: bool) -> Authorship {
    match old.filter(|_| operation == Operation::Update) {
        Some(old) if old["spec"] != object["spec"] => Authorship::Writer,
        Some(old) if valid && (is_bare(object) || Stamp::of(old) == Stamp::of(object)) => Authorship::Before,
        Some(_) => Authorship::WriterIfAllowed,
        None if Stamp::of(object).is_some_and(|stamp| stamp.author != writer) => Authorship::Nobody,
        None => Authorship::Writer,
    }
}

/// Whether it has neither of the annotations.
fn is_bare(object: &Value) -> bool {
    [names::AUTHOR, names::SEAL].iter().all(|key| object["metadata"]["annotations"][key].is_null())
}

/// Whether the stamping hook has found [nobody](Authorship::Nobody) to be the author of what is created. Whatever else is created it seals.
pub fn is_unanswered(object: &Value) -> bool {
    Stamp::of(object).is_none() && object["metadata"]["annotations"][names::AUTHOR] == UNKNOWN
}

/// What says of an object that has a stamp that [nobody](Authorship::Nobody) is its author: not who the stamp says, who may be anybody.
pub fn unseal() -> Vec<Value> {
    vec![
        json!({"op": "add", "path": annotation_path(names::AUTHOR), "value": UNKNOWN}),
        json!({"op": "remove", "path": annotation_path(names::SEAL)}),
    ]
}

fn annotation_path(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// What gives an object this stamp, or none, whatever it has: operations of a JSON patch, none where it has just that.
pub fn put(object: &Value, stamp: Option<&Stamp>) -> Vec<Value> {
    let annotations = &object["metadata"]["annotations"];
    let wanted = [(names::AUTHOR, stamp.map(|stamp| &stamp.author)), (names::SEAL, stamp.map(|stamp| &stamp.seal))];
    let mut operations = Vec::new();
    if stamp.is_some() && !annotations.is_object() {
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {}}));
    }
    for (key, wanted) in wanted {
        let path = annotation_path(key);
        match (annotations[key].as_str(), wanted) {
            (Some(there), Some(wanted)) if there == wanted => {}
            (_, Some(wanted)) => operations.push(json!({"op": "add", "path": path, "value": wanted})),
            (Some(_), None) => operations.push(json!({"op": "remove", "path": path})),
            (None, None) => {}
        }
    }
    operations
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;
    use crate::{
        admission::patch,
        review::{Kept, decode},
    };

    const KIND: &str = "ClusterReplication";

    fn ann() -> User {
        User {
            name: "ann".into(),
            uid: "u-7".into(),
            groups: vec!["a,b".into(), "c".into()],
            extra: [("k".into(), vec!["v".into()])].into(),
        }
    }

    fn spec() -> Value {
        json!({
            "sources": [{"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": "registry"}],
            "targets": [{"namespaces": ["team-*"], "exclude": {"namespaces": ["team-a"]}}],
            "transform": {"labels": {"set": {"b": "1", "a": "2"}}, "data": {"exclude": ["x"]}},
            "retentionPolicy": {"whenUnmatched": "Retain"},
            "barrier": "Required",
        })
    }

    fn rule(name: &str, spec: &Value) -> Value {
        json!({"metadata": {"name": name}, "spec": spec})
    }

    fn bytes(name: &str, spec: &Value, author: &str) -> Vec<u8> {
        sealed(KIND, &rule(name, spec), author).unwrap()
    }

    #[test]
    fn an_author_is_read_as_it_was_written() {
        let stamp = |author: &str| Stamp { author: author.into(), seal: String::new() };
        let text = author(&ann()).unwrap();
        assert_eq!(text, r#"{"username":"ann","uid":"u-7","groups":["a,b","c"],"extra":{"k":["v"]}}"#);
        assert_eq!(stamp(&text).user(), Some(ann()));
        for bad in ["", "ann", "{}", r#"{"username":"ann","more":1}"#, r#"{"username":1}"#] {
            assert_eq!(stamp(bad).user(), None, "{bad}");
        }
        let mut by_token = ann();
        by_token.extra.insert("authentication.kubernetes.io/credential-id".into(), vec!["JTI=1".into()]);
        assert_eq!(author(&by_token).as_ref(), Some(&text));
        let many = User { groups: vec!["group".into(); 20_000], ..ann() };
        assert_eq!(author(&many), None);
    }

    #[test]
    fn whatever_a_rule_does_is_sealed() {
        let whole = bytes("registry", &spec(), "ann");
        let change = |pointer: &str, value: Value| {
            let mut spec = spec();
            *spec.pointer_mut(pointer).unwrap() = value;
            bytes("registry", &spec, "ann")
        };
        for (what, other) in [
            ("name", bytes("registry2", &spec(), "ann")),
            ("author", bytes("registry", &spec(), "ann2")),
            ("source", change("/sources/0/name", json!("other"))),
            ("target", change("/targets/0/namespaces/0", json!("*"))),
            ("exclusion", change("/targets/0/exclude/namespaces/0", json!("team-b"))),
            ("label", change("/transform/labels/set/a", json!("1"))),
            ("data", change("/transform/data/exclude/0", json!("y"))),
            ("retention", change("/retentionPolicy/whenUnmatched", json!("Delete"))),
            ("barrier", change("/barrier", json!("None"))),
        ] {
            assert_ne!(whole, other, "{what}");
        }
        assert_ne!(bytes("ab", &spec(), "c"), bytes("a", &spec(), "bc"));
        let mut elsewhere = rule("registry", &spec());
        elsewhere["metadata"]["namespace"] = json!("team");
        assert_ne!(whole, sealed(KIND, &elsewhere, "ann").unwrap());
    }

    /// Its author may speak for one namespace, and not for another that has a rule of the same name and spec.
    #[test]
    fn the_seal_of_a_namespaces_own_rule_is_of_that_namespace() {
        let spec = |name: &str| {
            let source = json!({"apiVersion": "v1", "kind": "Secret", "namespace": "platform", "name": name});
            json!({"sources": [source], "targets": [{"namespaces": ["team-a"]}]})
        };
        let bytes = |kind: &str, namespace: &str, name: &str, spec: &Value, author: &str| {
            let metadata = json!({"namespace": namespace, "name": name});
            sealed(kind, &json!({"metadata": metadata, "spec": spec}), author).unwrap()
        };
        let whole = bytes("Replication", "team-a", "pull", &spec("db"), "ann");
        for (what, other) in [
            ("namespace", bytes("Replication", "team-b", "pull", &spec("db"), "ann")),
            ("name", bytes("Replication", "team-a", "push", &spec("db"), "ann")),
            ("where one ends", bytes("Replication", "team-ap", "ull", &spec("db"), "ann")),
            ("spec", bytes("Replication", "team-a", "pull", &spec("other"), "ann")),
            ("author", bytes("Replication", "team-a", "pull", &spec("db"), "bob")),
            ("kind", bytes(KIND, "team-a", "pull", &spec("db"), "ann")),
        ] {
            assert_ne!(whole, other, "{what}");
        }
    }

    #[test]
    fn what_has_no_name_or_makes_no_sense_or_needs_no_author_has_no_seal() {
        assert_eq!(sealed(KIND, &json!({"metadata": {"generateName": "a-"}, "spec": spec()}), "ann"), None);
        assert_eq!(sealed(KIND, &rule("registry", &json!({"sources": 1})), "ann"), None);
        assert_eq!(sealed("TransformPolicy", &rule("registry", &spec()), "ann"), None);
    }

    #[test]
    fn a_name_is_made_up_where_the_api_server_would() {
        let asked = |operation: &str, metadata: Value| {
            let kind = json!({"group": "mimeo.dev", "version": "v1alpha1", "kind": KIND});
            let resource = json!({"group": "mimeo.dev", "version": "v1alpha1", "resource": "clusterreplications"});
            let review = json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {
                    "uid": "7", "kind": kind, "resource": resource, "operation": operation, "userInfo": {"username": "ann"},
                    "object": {"metadata": metadata},
                },
            });
            generated_name(&decode(review.to_string().as_bytes(), Kept::Rule).unwrap().request)
        };
        let name = asked("CREATE", json!({"generateName": "registry-"})).unwrap();
        let letters = name.strip_prefix("registry-").unwrap();
        assert!(letters.len() == 5 && letters.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)));
        assert_eq!(asked("CREATE", json!({"generateName": "r".repeat(80)})).unwrap().len(), 63);
        assert_eq!(asked("CREATE", json!({"generateName": "registry-", "name": "registry"})), None);
        assert_eq!(asked("CREATE", json!({"name": "registry"})), None);
        assert_eq!(asked("CREATE", json!({})), None);
        assert_eq!(asked("UPDATE", json!({"generateName": "registry-", "name": "registry-x"})), None);
    }

    /// Stamps outlive versions of Mimeo. A new field must not show here while it has its default; if this text changes otherwise,
    /// every stored rule loses its author.
    #[test]
    fn what_is_sealed_is_the_same_in_every_version() {
        let want = concat!(
            r#"{"barrier":"Required","retentionPolicy":{"sourceGracePeriodSeconds":60,"whenRuleDeleted":"Delete","#,
            r#""whenSourceDeleted":"Delete","whenUnmatched":"Retain"},"sources":[{"apiVersion":"v1","kind":"Secret","#,
            r#""name":"registry","namespace":"platform"}],"targets":[{"exclude":{"namespaces":["team-a"]},"#,
            r#""namespaces":["team-*"]}],"transform":{"data":{"exclude":["x"],"include":["*"]},"#,
            r#""labels":{"include":["*"],"set":{"a":"2","b":"1"}}}}"#,
        );
        let canonical = |spec: &Value| canonical::<ClusterReplicationSpec>(spec).unwrap().to_string();
        assert_eq!(canonical(&spec()), want);
        let mut spelled = spec();
        spelled["strategy"] = json!("Apply");
        spelled["suspend"] = json!(false);
        spelled["transform"]["annotations"] = json!({"include": ["*"]});
        assert_eq!(canonical(&spelled), want, "a default is as good as nothing");
    }

    #[test]
    fn who_changes_what_a_rule_does_is_its_author() {
        use Authorship::{Before, Nobody, Writer, WriterIfAllowed};
        let stamped = |spec: Value, seal: &str| json!({"metadata": {"annotations": {names::AUTHOR: "a", names::SEAL: seal}}, "spec": spec});
        let (rule, other, bare) = (stamped(spec(), "s"), stamped(json!({}), "s"), json!({"spec": spec()}));
        let by_another = json!({"metadata": {"annotations": {names::AUTHOR: "b", names::SEAL: "s"}}, "spec": spec()});
        let asks = json!({"metadata": {"annotations": {names::AUTHOR: "me"}}, "spec": spec()});
        let (create, update) = (Operation::Create, Operation::Update);
        for (operation, old, object, valid, want) in [
            (create, None, &bare, false, Writer),
            (create, None, &rule, false, Writer),
            (create, None, &by_another, false, Nobody),
            (update, Some(&other), &rule, true, Writer),
            (update, Some(&other), &rule, false, Writer),
            (update, Some(&rule), &rule, true, Before),
            (update, Some(&rule), &rule, false, WriterIfAllowed),
            (update, Some(&bare), &rule, false, WriterIfAllowed),
            (update, Some(&rule), &bare, true, Before),
            (update, Some(&rule), &asks, true, WriterIfAllowed),
            (update, Some(&rule), &stamped(spec(), "x"), true, WriterIfAllowed),
        ] {
            assert_eq!(authorship(operation, "a", old, object, valid), want, "{operation:?} {old:?} {object} {valid}");
        }
    }

    #[test]
    fn what_is_restored_has_no_seal_and_names_nobody() {
        let mut restored = json!({"metadata": {"annotations": {names::AUTHOR: "b", names::SEAL: "s"}}, "spec": spec()});
        assert!(!is_unanswered(&restored));
        json_patch::patch(&mut restored, &patch(unseal().into())).unwrap();
        assert_eq!(restored["metadata"]["annotations"], json!({names::AUTHOR: UNKNOWN}));
        assert!(is_unanswered(&restored) && !is_unanswered(&rule("registry", &spec())));
    }

    #[test]
    fn a_stamp_is_put_on_whatever_is_there() {
        let stamp = Stamp { author: "a".into(), seal: "s".into() };
        let with = |annotations: Value| json!({"metadata": {"name": "n", "annotations": annotations}});
        let stamped = with(json!({names::AUTHOR: "a", names::SEAL: "s", "note": "x"}));
        for (object, want) in [
            (json!({"metadata": {"name": "n"}}), Some(&stamp)),
            (with(Value::Null), Some(&stamp)),
            (with(json!({names::AUTHOR: "forged"})), Some(&stamp)),
            (with(json!({names::AUTHOR: "forged", names::SEAL: "s"})), Some(&stamp)),
            (stamped.clone(), Some(&stamp)),
            (stamped.clone(), None),
            (with(json!({names::SEAL: "s"})), None),
            (json!({"metadata": {"name": "n"}}), None),
        ] {
            let mut patched = object.clone();
            json_patch::patch(&mut patched, &patch(put(&object, want).into())).unwrap();
            assert_eq!(Stamp::of(&patched).as_ref(), want, "{object}");
            let left = patched["metadata"]["annotations"].get(names::SEAL).is_some();
            assert!(want.is_some() || !left, "{object}");
            assert!(put(&patched, want).is_empty(), "twice is once");
        }
        assert!(put(&stamped, Some(&stamp)).is_empty());
    }
}
