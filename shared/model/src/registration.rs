//! The webhook configurations as Mimeo applies them: the requests that the API server asks about,
//! and the address of the webhook.
//!
//! There are two names. [`NAME`] is the fixed part. [`POLICIES_NAME`] has an entry for each
//! `TransformPolicy`. The parts are separate, so that a bad entry or too many entries can't make
//! the fixed part unwritable. The caller applies the configurations, and tries an entry before it
//! adds it.
//!
//! Both selectors are always written, even if they select everything. An apply then overwrites the
//! change of another client to them.
//!
//! The filters are as narrow as possible, because a request that does not match costs the API
//! server no call. No label of a namespace exempts it, because every user with the permission to
//! create a namespace can set any label.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::ByteString;
use mimeo_api::FailurePolicy;
use serde_json::{Value, json};

use crate::{
    kind::{Resource, Served},
    meta::Checksum,
    names::{DRIFT, DRIFT_DENY, MANAGER, PENDING_LABEL},
    policy::Policy,
    review::GroupVersionResource,
    selection::NAMESPACE_NAME,
};

/// Name of both configurations of the fixed hooks, one mutating and one validating.
pub const NAME: &str = "mimeo";
/// Name of the mutating configuration that has the policies.
pub const POLICIES_NAME: &str = "mimeo-policies";

/// Path of the hook that sets the pending label on namespaces and starts to write their copies.
pub const NAMESPACES_PATH: &str = "/mutate/namespaces";
/// Path of the hook where pods wait for copies.
pub const PODS_PATH: &str = "/mutate/pods";
/// Prefix of the path of a policy's hook. The policy's name follows.
pub const OBJECTS_PATH: &str = "/mutate/objects/";
/// Path of the hook that records the author of rules, grants and policies.
pub const AUTHORS_PATH: &str = "/mutate/rules";
/// Path of the hook that checks rules, grants and policies.
pub const RULES_PATH: &str = "/validate/rules";
/// Path of the hook that refuses changes of copies.
pub const COPIES_PATH: &str = "/validate/copies";

/// Users of the cluster's controllers that delete the objects in a deleted namespace, and the
/// dependents of a deleted owner.
const COLLECTORS: [&str; 3] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
];

/// Prefix of the names of the system's namespaces.
const SYSTEM: &str = "kube-";

/// The API server's timeout for each hook. An answer comes from memory, or after at most one second
/// of waiting for copies. The rest is a reserve for a busy machine. With the API server's default
/// of 10 seconds, an address without answers would delay each new namespace for 10 seconds.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Most entries in an object's `managedFields` that API servers evaluate. Normal objects have about
/// a dozen entries. A user with write access to an object may write thousands. If their evaluation
/// takes too long, the API server lets the request pass.
pub const ENTRIES: usize = 1000;

/// True if no hook may act on the namespace: the system's namespaces, and Mimeo's own. The match
/// conditions in [`Registration::mutating`] keep the API server from asking about them. Other
/// callers of the webhook get the same answer.
pub fn is_exempt(namespace: &str, own_namespace: &str) -> bool {
    namespace.starts_with(SYSTEM) || namespace == own_namespace
}

/// The content of the webhook configurations.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// The address of the hooks.
    pub endpoint: Endpoint,
    /// CA certificates in PEM that the API server trusts for the hooks. `None` means the
    /// certificates of its own machine.
    pub ca_bundle: Option<String>,
    /// The namespace that Mimeo runs in. No hook may keep Mimeo from starting.
    pub own_namespace: String,
    /// The API server's reaction to a new namespace while no webhook answers. `Ignore`: the
    /// namespace is created, and its copies are written later. `Fail`: the creation fails, so each
    /// new namespace has passed through the webhook.
    pub namespaces_failure_policy: FailurePolicy,
    /// Resources besides pods that wait for copies. Pods always wait: a list without them must not
    /// switch off the pod gate.
    pub pod_gate_resources: Vec<GroupVersionResource>,
    /// Names of Mimeo's own programs as users of the API server. The API server asks no webhook
    /// when they remove a pending label. Never empty.
    pub mimeo_users: Vec<String>,
}

/// The address of the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Below this URL, `https://host:port` without a slash at the end.
    Url(String),
    /// Through a Service.
    Service {
        /// Namespace of the Service.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
}

impl Registration {
    /// The `MutatingWebhookConfiguration` for namespaces, for the pod gate, and for rules.
    pub fn mutating(&self) -> Value {
        configuration(
            "MutatingWebhookConfiguration",
            NAME,
            &[self.namespaces(), self.pod_gate(), self.authors()],
        )
    }

    /// The `ValidatingWebhookConfiguration` for rules and policies, and for copies with
    /// `driftPolicy: Deny`.
    pub fn validating(&self) -> Value {
        configuration(
            "ValidatingWebhookConfiguration",
            NAME,
            &[self.on_own_kinds(RULES_PATH), self.copies()],
        )
    }

    /// The `MutatingWebhookConfiguration` of the policies, sorted by name. A kind that is not
    /// served gets no rule. Each policy must have a kind that is served, and none that is
    /// cluster-scoped.
    pub fn policies(&self, policies: &[Policy], served: &Served) -> Value {
        let mut policies: Vec<_> = policies.iter().collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let entries: Vec<_> = policies
            .into_iter()
            .map(|policy| self.policy(policy, served))
            .collect();
        configuration("MutatingWebhookConfiguration", POLICIES_NAME, &entries)
    }

    /// The hook for every request that can give a namespace labels, and so make it a target of a
    /// rule.
    fn namespaces(&self) -> Value {
        // Even with `failurePolicy: Fail`, a namespace must be deletable without a webhook. The
        // namespace controller removes its finalizers by updates.
        let staying = "!(oldObject != null && has(oldObject.metadata.deletionTimestamp))";
        json!({
            "name": "namespaces.mimeo.dev",
            "clientConfig": self.client_config(NAMESPACES_PATH),
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["namespaces", "namespaces/status", "namespaces/finalize"],
                "operations": ["CREATE", "UPDATE"], "scope": "Cluster",
            }],
            "namespaceSelector": {},
            "objectSelector": {},
            "matchConditions": [
                self.not_exempt("name"),
                {"name": "not-leaving", "expression": staying},
                self.not_mimeo_removing_the_mark(),
            ],
            "failurePolicy": self.namespaces_failure_policy,
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            // A later hook may add the label that a rule selects.
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// The hook matches only namespaces with missing copies, so `failurePolicy: Fail` blocks
    /// nothing else. Pods of the system's priority classes pass. They run the node or the cluster,
    /// and can't wait for workloads of the cluster.
    fn pod_gate(&self) -> Value {
        let rule = |GroupVersionResource {
                        group,
                        version,
                        resource,
                    }: &GroupVersionResource| {
            json!({
                "apiGroups": [group], "apiVersions": [version], "resources": [resource],
                "operations": ["CREATE"], "scope": "Namespaced",
            })
        };
        let pods = GroupVersionResource::new("", "v1", "pods");
        let others = self
            .pod_gate_resources
            .iter()
            .filter(|resource| **resource != pods);
        let ordinary = "!(has(object.spec) && has(object.spec.priorityClassName) \
                        && object.spec.priorityClassName.startsWith('system-'))";
        json!({
            "name": "pods.mimeo.dev",
            "clientConfig": self.client_config(PODS_PATH),
            "rules": std::iter::once(&pods).chain(others).map(rule).collect::<Vec<_>>(),
            "namespaceSelector": {"matchExpressions": [{"key": PENDING_LABEL, "operator": "Exists"}]},
            "objectSelector": {},
            "matchConditions": [
                self.not_exempt("namespace"),
                {"name": "not-of-the-system", "expression": ordinary},
            ],
            "failurePolicy": FailurePolicy::Fail,
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "Never",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// Fails closed, so that the author annotation of an object is always true.
    fn authors(&self) -> Value {
        let mut hook = self.on_own_kinds(AUTHORS_PATH);
        // A later hook may change the spec.
        hook["reinvocationPolicy"] = "IfNeeded".into();
        hook
    }

    /// A hook for writes of Mimeo's own kinds. It fails closed, so that no object is stored without
    /// a check of its author. The status of these kinds is a subresource, and the API server does
    /// not call the hook for it.
    fn on_own_kinds(&self, path: &str) -> Value {
        json!({
            "name": "rules.mimeo.dev",
            "clientConfig": self.client_config(path),
            "rules": [{
                "apiGroups": [mimeo_api::names::GROUP], "apiVersions": [mimeo_api::names::VERSION],
                "resources": ["clusterreplications", "replicationgrants", "replications", "transformpolicies"],
                "operations": ["CREATE", "UPDATE"], "scope": "*",
            }],
            "namespaceSelector": {},
            "objectSelector": {},
            "failurePolicy": FailurePolicy::Fail,
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// The hook for guarded copies: those with `driftPolicy: Deny`. The API server itself evaluates
    /// if a request changes a copy. `managedFields` already show the changed fields at this point,
    /// so a write without changes costs no call.
    ///
    /// The hook fails open, because Mimeo restores a copy after a change that no webhook refused.
    /// An expression that fails lets the request pass, so none may fail here. If an object has too
    /// many entries for the API server, the hook is called as well.
    fn copies(&self) -> Value {
        let manager = MANAGER;
        // A client that uses Mimeo's manager name can change values without a change of the entry.
        let forged = format!(
            "has(request.options.fieldManager) && request.options.fieldManager == '{manager}'"
        );
        // Any client may write entries, also entries without a manager. An expression that fails
        // would let the request pass.
        let own = format!(" && e.?manager.orValue('') == '{manager}' && e.operation == 'Apply'");
        let entries = |object: &str, which: &str| {
            let fields = format!("{object}.metadata.managedFields");
            format!("(has({fields}) ? {fields}.filter(e, !has(e.subresource){which}) : [])")
        };
        // A guarded copy is exclusive (strategy Replace), so other managers may own no field of it.
        let changed = format!("{} != {}", entries("oldObject", ""), entries("object", ""));
        let crowded = |object: &str| {
            format!("size({object}.metadata.?managedFields.orValue([])) > {ENTRIES}")
        };
        // If an owner does not exist, the garbage collector deletes the object, and its requests
        // pass.
        let owners = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([])");
        let owned = format!(
            "{}.exists(o, !(o in {}))",
            owners("object"),
            owners("oldObject")
        );
        // Outside a cluster, people may share the user that Mimeo runs as. So the user and the
        // field manager together identify Mimeo.
        let mimeo = format!(
            "{} && (request.operation == 'DELETE' || {forged})",
            self.is_mimeo()
        );
        let collectors = COLLECTORS.map(cel_string).join(", ");
        json!({
            "name": "copies.mimeo.dev",
            "clientConfig": self.client_config(COPIES_PATH),
            "rules": [{
                "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"],
                "operations": ["UPDATE", "DELETE"], "scope": "Namespaced",
            }],
            "namespaceSelector": {},
            "objectSelector": {"matchLabels": {DRIFT: DRIFT_DENY}},
            "matchConditions": [
                self.not_exempt("namespace"),
                {"name": "not-mimeo", "expression": format!("!({mimeo})")},
                {"name": "not-a-collector", "expression": format!("!(request.userInfo.username in \
                    [{collectors}])")},
                // Other clients must be able to remove the finalizers of a copy that is being
                // deleted.
                {"name": "not-leaving", "expression": "!has(oldObject.metadata.deletionTimestamp)"},
                {
                    "name": "a-copy",
                    "expression": format!("{} || size({}) > 0", crowded("oldObject"), entries("oldObject", &own)),
                },
                {
                    "name": "changes-who-owns-what",
                    "expression": format!(
                        "request.operation == 'DELETE' || {} || {} || {forged} || {changed} || \
                         {owned}",
                        crowded("oldObject"),
                        crowded("object"),
                    ),
                },
            ],
            "failurePolicy": FailurePolicy::Ignore,
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// The entry of one policy. The API server calls it again if a later hook changes the object,
    /// because the object may match the policy only then.
    fn policy(&self, policy: &Policy, served: &Served) -> Value {
        let kinds = policy.kinds.iter();
        let rules: Vec<_> = kinds.filter_map(|gvk| served.get(gvk)).map(rule).collect();
        json!({
            "name": entry_name(&policy.name),
            "clientConfig": self.client_config(&format!("{OBJECTS_PATH}{}", policy.name)),
            "rules": rules,
            "objectSelector": policy.spec.match_.object_selector,
            "namespaceSelector": self.namespaces_of(policy),
            "matchConditions": [self.not_exempt("namespace")],
            "failurePolicy": policy.spec.failure_policy,
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// The policy's own selector and its excluded namespaces. The API server labels every namespace
    /// with its name, so a label selector can exclude exact names.
    fn namespaces_of(&self, policy: &Policy) -> Value {
        let matched = &policy.spec.match_;
        let mut selector = json!(matched.namespace_selector);
        let own = std::iter::once(self.own_namespace.as_str());
        let excluded: BTreeSet<_> = matched
            .exclude_namespaces
            .iter()
            .map(String::as_str)
            .chain(own)
            .collect();
        let exclusion = json!({"key": NAMESPACE_NAME, "operator": "NotIn", "values": excluded});
        match selector["matchExpressions"].as_array_mut() {
            Some(expressions) => expressions.push(exclusion),
            None => selector["matchExpressions"] = json!([exclusion]),
        }
        selector
    }

    fn client_config(&self, path: &str) -> Value {
        let mut config = match &self.endpoint {
            Endpoint::Url(base) => json!({"url": format!("{base}{path}")}),
            Endpoint::Service {
                namespace,
                name,
                port,
            } => {
                json!({"service": {"namespace": namespace, "name": name, "port": port, "path": path}})
            }
        };
        if let Some(pem) = &self.ca_bundle {
            config["caBundle"] = json!(ByteString(pem.as_bytes().to_vec()));
        }
        config
    }

    /// A match condition that leaves out the namespaces of [`is_exempt`], by `request.name` or
    /// `request.namespace`. The field is missing if the API server has yet to generate the name.
    fn not_exempt(&self, field: &str) -> Value {
        let own = cel_string(&self.own_namespace);
        let exempt = format!("request.{field}.startsWith('{SYSTEM}') || request.{field} == {own}");
        json!({"name": "not-an-exempt-namespace", "expression": format!("!(has(request.{field}) && \
            ({exempt}))")})
    }

    /// A CEL expression that is true if the request comes from one of Mimeo's programs.
    fn is_mimeo(&self) -> String {
        let users: Vec<_> = self
            .mimeo_users
            .iter()
            .map(|user| cel_string(user))
            .collect();
        format!("request.userInfo.username in [{}]", users.join(", "))
    }

    /// A match condition that leaves out the removal of the pending label by Mimeo. This update is
    /// half of the cost of a new namespace, and the webhook has nothing to do for it. Nothing more
    /// is left out, because outside a cluster people may share the user that Mimeo runs as.
    fn not_mimeo_removing_the_mark(&self) -> Value {
        let marked = |object| {
            format!(
                "(has({object}.metadata.labels) && '{PENDING_LABEL}' in {object}.metadata.labels)"
            )
        };
        let (before, after) = (marked("oldObject"), marked("object"));
        let removes = format!("request.operation == 'UPDATE' && {before} && !{after}");
        let expression = format!("!({} && {removes})", self.is_mimeo());
        json!({"name": "not-mimeo-removing-the-pending-label", "expression": expression})
    }
}

fn configuration(kind: &str, name: &str, webhooks: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": "mimeo"},
            // AKS adds requirements to each namespaceSelector of a webhook without this annotation.
            // It would do so again after each fix.
            "annotations": {"admissions.enforcer/disabled": "true"},
        },
        "webhooks": webhooks,
    })
}

fn rule(Resource { gvk, plural, .. }: &Resource) -> Value {
    json!({
        "apiGroups": [gvk.group], "apiVersions": [gvk.version], "resources": [plural],
        "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
    })
}

/// Name of a policy's entry. It is a hash, because a policy's name may be too long for an entry,
/// and may have dots in places where an entry can't have them.
pub fn entry_name(policy: &str) -> String {
    format!("{}.policies.mimeo.dev", Checksum::of(policy.as_bytes()))
}

/// A CEL string literal. CEL has the same escapes as JSON.
fn cel_string(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            endpoint: Endpoint::Url("https://127.0.0.1:8443".into()),
            ca_bundle: None,
            own_namespace: "mimeo-system".into(),
            namespaces_failure_policy: FailurePolicy::Ignore,
            pod_gate_resources: vec![],
            mimeo_users: vec!["mimeo".into()],
        }
    }

    #[test]
    fn endpoints() {
        let mut registration = registration();
        let config = |registration: &Registration| {
            registration.mutating()["webhooks"][0]["clientConfig"].clone()
        };
        assert_eq!(
            config(&registration),
            json!({"url": "https://127.0.0.1:8443/mutate/namespaces"})
        );
        registration.endpoint = Endpoint::Service {
            namespace: "ns".into(),
            name: "svc".into(),
            port: 443,
        };
        registration.ca_bundle = Some("PEM".into());
        let service =
            json!({"namespace": "ns", "name": "svc", "port": 443, "path": "/mutate/namespaces"});
        assert_eq!(
            config(&registration),
            json!({"service": service, "caBundle": "UEVN"})
        );
    }

    #[test]
    fn the_program_and_the_api_server_exempt_the_same() {
        let condition = registration().not_exempt("name")["expression"].clone();
        let named = "request.name.startsWith('kube-') || request.name == \"mimeo-system\"";
        assert!(condition.as_str().unwrap().contains(named), "{condition}");
        for (name, exempt) in [
            ("kube-system", true),
            ("mimeo-system", true),
            ("kubernetes", false),
            ("team", false),
        ] {
            assert_eq!(is_exempt(name, "mimeo-system"), exempt, "{name}");
        }
    }

    #[test]
    fn entries_are_named_by_a_hash_of_fixed_length() {
        let (a, b) = (entry_name("a"), entry_name(&"b.".repeat(120)));
        assert!(
            a != b && a.len() == b.len() && a.split('.').count() == 4,
            "{a} {b}"
        );
    }

    #[test]
    fn users_are_quoted() {
        let mut registration = registration();
        registration.mimeo_users = vec![r#"a"b\c"#.into(), "d'e".into()];
        let hooks = registration.mutating();
        let mut conditions = hooks["webhooks"][0]["matchConditions"]
            .as_array()
            .unwrap()
            .iter();
        let condition = conditions
            .find(|one| one["name"] == "not-mimeo-removing-the-pending-label")
            .unwrap()["expression"]
            .clone();
        assert!(
            condition
                .as_str()
                .unwrap()
                .contains(r#"["a\"b\\c", "d'e"]"#),
            "{condition}"
        );
    }

    #[test]
    fn without_policies_the_list_is_empty() {
        assert_eq!(
            registration().policies(&[], &Served::new())["webhooks"],
            json!([])
        );
    }
}
