//! Decodes stored rules and grants as far as possible.

use jiff::Timestamp;
use kube::api::ObjectMeta;
use mimeo_api::{ClusterReplication, Replication, ReplicationGrant};
use mimeo_engine::Observed;
use mimeo_model::{
    grant::{Grant, GrantStatus, Standing},
    id::RuleKind,
    known::Decoded,
    refusal::{Refusal, Refused},
    rule::Rule,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::object::text;

/// Parses a rule and its status. A rule that cannot be decoded is refused without an effect on
/// others; a newer version may have stored it, for example. The status is decoded separately, so
/// that the same status is not written again and again.
pub fn parse_rule(kind: RuleKind, object: Decoded<Value>) -> (Result<Rule, Refused>, Observed) {
    let value = object.value();
    let (observed, generation) = (status(value), generation(value));
    let created = text(value, "/metadata/creationTimestamp").and_then(|time| time.parse().ok());
    let parsed = match kind {
        RuleKind::ClusterReplication => {
            decode(object).and_then(|object: ClusterReplication| Rule::parse(&object))
        }
        RuleKind::Replication => {
            decode(object).and_then(|object: Replication| Rule::parse_replication(&object))
        }
    };
    (
        parsed.map_err(|refusals| Refused {
            generation,
            created: created.unwrap_or(Timestamp::MAX),
            refusals,
        }),
        observed,
    )
}

/// Parses a stored grant.
pub fn parse_grant(object: Decoded<Value>) -> Result<Grant, GrantStatus> {
    let refused = GrantStatus {
        generation: generation(object.value()),
        status: status(object.value()).as_ref().and_then(Standing::read),
    };
    decode(object)
        .and_then(|object: ReplicationGrant| Grant::parse(&object))
        .map_err(|_| refused)
}

/// A grant, and why it is refused, if it is. Of one that can't be decoded there are its metadata
/// and its status alone.
pub fn explain_grant(object: Decoded<Value>) -> (ReplicationGrant, Vec<Refusal>) {
    let value = object.value();
    let part = ReplicationGrant {
        metadata: ObjectMeta {
            uid: text(value, "/metadata/uid").map(Into::into),
            generation: Some(generation(value)),
            ..ObjectMeta::default()
        },
        status: status(value),
        ..ReplicationGrant::default()
    };
    match decode::<ReplicationGrant>(object) {
        Ok(grant) => {
            let refusals = Grant::parse(&grant).err().unwrap_or_default();
            (grant, refusals)
        }
        Err(refusals) => (part, refusals),
    }
}

fn status<T: DeserializeOwned>(object: &Value) -> Option<T> {
    Deserialize::deserialize(object.get("status")?).ok()
}

fn generation(object: &Value) -> i64 {
    let generation = object.pointer("/metadata/generation");
    generation.and_then(Value::as_i64).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(object: Decoded<Value>) -> Result<T, Vec<Refusal>> {
    let message = match object {
        Decoded::Whole(mut object) => {
            // Mimeo never reads the managers of a rule or a grant. A client may have written
            // entries that cannot be decoded.
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
            match serde_json::from_value(object) {
                Ok(object) => return Ok(object),
                Err(error) => error.to_string(),
            }
        }
        Decoded::Part(_) => "can't be decoded: it is nested too deeply".into(),
    };
    Err(vec![Refusal {
        field: "spec".into(),
        message,
    }])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The age of a rule shows under which CRD it lived, even if its spec is refused.
    #[test]
    fn a_refused_rule_has_its_generation_and_its_age() {
        let created = "2026-01-02T03:04:05Z";
        for (time, expected) in [
            (json!(created), created.parse().expect("a time")),
            (json!(null), Timestamp::MAX),
        ] {
            let metadata = json!({"name": "r", "generation": 7, "creationTimestamp": time});
            let object = json!({"metadata": metadata, "spec": "nonsense"});
            let kind = RuleKind::ClusterReplication;
            let (rule, _) = parse_rule(kind, Decoded::Whole(object));
            let refused = rule.expect_err("a refusal");
            assert_eq!((refused.generation, refused.created), (7, expected));
        }
    }
}
