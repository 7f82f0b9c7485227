//! The webhook configurations, as they are applied: which requests the API server asks about, and
//! where.
//!
//! Two names. [`NAME`] is the fixed part. [`POLICIES_NAME`] has an entry per `TransformPolicy`,
//! apart so that a bad entry or too many of them can't make the fixed part unwritable. Applying
//! them, and trying an entry before it is added, is left to the caller.
//!
//! Both selectors are spelled out, also where they select everything: what another writes into one
//! is then put back.
//!
//! The filters are as narrow as the job: what doesn't match costs the API server no call. Nothing
//! is exempt by a label of a namespace, since anyone who may create one can set any.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::ByteString;
use mimeo_api::FailurePolicy;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    kind::{GroupVersionKind, Resource},
    names::{DRIFT, DRIFT_DENY, MANAGER, MARK},
    policy::Policy,
    review::GroupVersionResource,
    selection::{NAMESPACE_NAME, Selector},
};

/// Name of both configurations of the fixed hooks, one mutating and one validating.
pub const NAME: &str = "mimeo";
/// Name of the mutating configuration that has the policies.
pub const POLICIES_NAME: &str = "mimeo-policies";

/// Path of the hook that marks namespaces and starts filling them.
pub const NAMESPACES_PATH: &str = "/mutate/namespaces";
/// Path of the hook where pods wait for copies.
pub const PODS_PATH: &str = "/mutate/pods";
/// What the path of a policy's hook begins with; the policy's name follows.
pub const OBJECTS_PATH: &str = "/mutate/objects/";
/// Path of the hook that notes the author of rules, grants and policies.
pub const AUTHORS_PATH: &str = "/mutate/rules";
/// Path of the hook that checks rules and policies.
pub const RULES_PATH: &str = "/validate/rules";
/// Path of the hook that refuses changes of copies.
pub const COPIES_PATH: &str = "/validate/copies";

/// Users by which the cluster deletes what is in a namespace, and what belonged to an object that
/// is gone.
const COLLECTORS: [&str; 3] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
];

/// What the names of the system's namespaces begin with.
const SYSTEM: &str = "kube-";

/// How long the API server waits for each hook. The answers come from memory, or after at most a
/// second of waiting for copies; the rest is for a busy machine. The server's default, 10, would
/// let an address that swallows packets hold every namespace's creation that long.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Most entries in an object's `managedFields` that API servers are to look through. Who may edit
/// an object may write thousands, and what takes an API server too long lets the request pass;
/// others write a dozen.
pub const ENTRIES: usize = 1000;

/// Whether no hook may concern itself with a namespace: the system's, and Mimeo's own. The API
/// server asks about none of them ([`Registration::mutating`] says so); who else asks is told the
/// same.
pub fn is_exempt(namespace: &str, own_namespace: &str) -> bool {
    namespace.starts_with(SYSTEM) || namespace == own_namespace
}

/// Where and how to register.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Where the API server finds the hooks.
    pub endpoint: Endpoint,
    /// Certificates, in PEM, by which it knows them; the machine's own if `None`.
    pub ca_bundle: Option<String>,
    /// The namespace that Mimeo runs in: no hook may keep Mimeo from starting.
    pub own_namespace: String,
    /// What happens to a new namespace while no webhook answers. `Ignore`: it is created, and
    /// filled later. `Fail`: it isn't, and so every namespace that exists was marked.
    pub namespaces_failure_policy: FailurePolicy,
    /// Resources that wait for copies besides pods. Pods always wait: a list that leaves them out
    /// must not take the pod gate away.
    pub pod_gate_resources: Vec<GroupVersionResource>,
    /// Users that Mimeo's own programs are to the API server: their taking a mark away is asked of
    /// nobody.
    pub mimeo_users: Vec<String>,
    /// Owner reference of the configurations: when the owner is deleted, so are they, and nothing
    /// asks for Mimeo any more.
    pub owner: Option<Value>,
}

/// Where the API server finds the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Below this URL, `https://host:port`.
    Url(String),
    /// At a Service.
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
    /// The `MutatingWebhookConfiguration` of namespaces, of the pod gate, and of rules.
    pub fn mutating(&self) -> Value {
        self.configuration(
            "MutatingWebhookConfiguration",
            NAME,
            &[self.namespaces(), self.pod_gate(), self.authors()],
        )
    }

    /// The `ValidatingWebhookConfiguration` of rules and policies, and of copies that nobody may
    /// change.
    pub fn validating(&self) -> Value {
        self.configuration(
            "ValidatingWebhookConfiguration",
            NAME,
            &[self.rules(), self.copies()],
        )
    }

    /// The `MutatingWebhookConfiguration` of the policies, in the order of their names.
    ///
    /// A kind that `look_up` doesn't find, or finds outside namespaces, has no rule; a policy
    /// without rules no entry.
    pub fn policies(
        &self,
        policies: &[Policy],
        look_up: &dyn Fn(&GroupVersionKind) -> Option<Resource>,
    ) -> Value {
        let mut policies: Vec<_> = policies.iter().collect();
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let entries: Vec<_> = policies
            .into_iter()
            .filter_map(|policy| self.policy(policy, look_up))
            .collect();
        self.configuration("MutatingWebhookConfiguration", POLICIES_NAME, &entries)
    }

    fn configuration(&self, kind: &str, name: &str, webhooks: &[Value]) -> Value {
        let mut configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {
                "name": name,
                "labels": {"app.kubernetes.io/name": "mimeo"},
                // AKS adds to each namespaceSelector of a webhook without this annotation, and
                // would do so again after each repair.
                "annotations": {"admissions.enforcer/disabled": "true"},
            },
            "webhooks": webhooks,
        });
        if let Some(owner) = &self.owner {
            configuration["metadata"]["ownerReferences"] = json!([owner]);
        }
        configuration
    }

    /// Every way to give a namespace labels, and so to bring it under a rule.
    fn namespaces(&self) -> Value {
        // Strict or not, without a webhook a namespace must be able to go: its finalizers are
        // removed by updates.
        let staying = "!(oldObject != null && has(oldObject.metadata.deletionTimestamp))";
        let mut conditions = vec![
            self.not_exempt("name"),
            json!({"name": "not-leaving", "expression": staying}),
        ];
        conditions.extend(self.not_mimeo_removing_the_mark());
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
            "matchConditions": conditions,
            "failurePolicy": self.namespaces_failure_policy,
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": TIMEOUT.as_secs(),
            "matchPolicy": "Equivalent",
            // A later hook may add the label by which a rule matches.
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1"],
        })
    }

    /// Only where copies are missing, so failing closed holds up nothing else. Pods of the system's
    /// priority classes pass: what runs the node or the cluster can't wait for what runs on it.
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
            "namespaceSelector": {"matchExpressions": [{"key": MARK, "operator": "Exists"}]},
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

    /// Fails closed, so that an author whom an object names is the true one.
    fn authors(&self) -> Value {
        let mut hook = self.on_own_kinds(AUTHORS_PATH);
        // A later hook may change the spec.
        hook["reinvocationPolicy"] = "IfNeeded".into();
        hook
    }

    /// Fails closed: an object whose author was not checked is not stored.
    fn rules(&self) -> Value {
        self.on_own_kinds(RULES_PATH)
    }

    /// A hook for writes of Mimeo's own kinds. Their status is a subresource, and the hook is not
    /// called for it.
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

    /// The API server itself can tell whether a request changes a copy: `managedFields` show the
    /// changed fields by the time it asks. So a write that changes nothing costs no call. Fails
    /// open: Mimeo repairs afterwards what no webhook refused. So no expression may fail here, and
    /// objects that take the API server too long to look through are asked about, too.
    fn copies(&self) -> Value {
        let manager = MANAGER;
        // Who writes under Mimeo's name changes values and leaves the entry as it was.
        let forged = format!(
            "has(request.options.fieldManager) && request.options.fieldManager == '{manager}'"
        );
        // Anybody may write entries, also without a manager: what can't be evaluated would let the
        // request pass.
        let own = format!(" && e.?manager.orValue('') == '{manager}' && e.operation == 'Apply'");
        let entries = |object: &str, which: &str| {
            let fields = format!("{object}.metadata.managedFields");
            format!("(has({fields}) ? {fields}.filter(e, !has(e.subresource){which}) : [])")
        };
        // A guarded copy is exclusive (strategy Replace): others may own no field of it.
        let changed = format!("{} != {}", entries("oldObject", ""), entries("object", ""));
        let crowded = |object: &str| {
            format!("size({object}.metadata.?managedFields.orValue([])) > {ENTRIES}")
        };
        // An owner that isn't there has the garbage collector delete the object, and that is let
        // through.
        let owners = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([])");
        let owned = format!(
            "{}.exists(o, !(o in {}))",
            owners("object"),
            owners("oldObject")
        );
        // Outside a cluster Mimeo may run as a user whom people share: it is known by both.
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
                {"name": "not-a-collector", "expression": format!("!(request.userInfo.username in [{collectors}])")},
                // Its finalizers must be removable.
                {"name": "not-leaving", "expression": "!has(oldObject.metadata.deletionTimestamp)"},
                {
                    "name": "a-copy",
                    "expression": format!("{} || size({}) > 0", crowded("oldObject"), entries("oldObject", &own)),
                },
                {
                    "name": "changes-who-owns-what",
                    "expression": format!(
                        "request.operation == 'DELETE' || {} || {} || {forged} || {changed} || {owned}",
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

    /// One policy's entry. Asked again if a later hook changed the object: that one may have
    /// brought it under the policy.
    fn policy(
        &self,
        policy: &Policy,
        look_up: &dyn Fn(&GroupVersionKind) -> Option<Resource>,
    ) -> Option<Value> {
        let resources = policy
            .kinds
            .iter()
            .filter_map(look_up)
            .filter(|resource| resource.namespaced);
        let rules: Vec<_> = resources.map(|resource| rule(&resource)).collect();
        (!rules.is_empty()).then(|| {
            json!({
                "name": entry_name(&policy.name),
                "clientConfig": self.client_config(&format!("{OBJECTS_PATH}{}", policy.name)),
                "rules": rules,
                "objectSelector": policy.object_selector.to_json(),
                "namespaceSelector": self.namespaces_of(policy),
                "matchConditions": [self.not_exempt("namespace")],
                "failurePolicy": policy.failure_policy,
                "sideEffects": "None",
                "timeoutSeconds": TIMEOUT.as_secs(),
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "IfNeeded",
                "admissionReviewVersions": ["v1"],
            })
        })
    }

    /// The policy's own selector and, since the server gives every namespace its name as a label,
    /// the exact exclusions.
    fn namespaces_of(&self, policy: &Policy) -> Value {
        let mut selector = policy
            .namespace_selector
            .as_ref()
            .map_or_else(|| json!({}), Selector::to_json);
        let own = std::iter::once(self.own_namespace.as_str());
        let excluded: BTreeSet<_> = policy
            .exclude_namespaces
            .iter()
            .map(|name| &**name)
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
            Endpoint::Url(base) => json!({"url": format!("{}{path}", base.trim_end_matches('/'))}),
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

    /// A condition that leaves out what [`is_exempt`], by `request.name` or `request.namespace`.
    /// The field is missing where the server has yet to make the name up.
    fn not_exempt(&self, field: &str) -> Value {
        let own = cel_string(&self.own_namespace);
        let exempt = format!("request.{field}.startsWith('{SYSTEM}') || request.{field} == {own}");
        json!({"name": "not-an-exempt-namespace", "expression": format!("!(has(request.{field}) && ({exempt}))")})
    }

    /// Whether it is one of Mimeo's programs that asks.
    fn is_mimeo(&self) -> String {
        let users: Vec<_> = self
            .mimeo_users
            .iter()
            .map(|user| cel_string(user))
            .collect();
        format!("request.userInfo.username in [{}]", users.join(", "))
    }

    /// Removing the mark is half of all that a new namespace costs, and Mimeo has nothing to say to
    /// itself about it. Not more than this is let through: outside a cluster Mimeo may run as a
    /// user whom people share.
    fn not_mimeo_removing_the_mark(&self) -> Option<Value> {
        if self.mimeo_users.is_empty() {
            return None;
        }
        let marked = |object| {
            format!("(has({object}.metadata.labels) && '{MARK}' in {object}.metadata.labels)")
        };
        let (before, after) = (marked("oldObject"), marked("object"));
        let removes = format!("request.operation == 'UPDATE' && {before} && !{after}");
        let expression = format!("!({} && {removes})", self.is_mimeo());
        Some(json!({"name": "not-mimeo-removing-the-mark", "expression": expression}))
    }
}

fn rule(Resource { gvk, plural, .. }: &Resource) -> Value {
    json!({
        "apiGroups": [gvk.group], "apiVersions": [gvk.version], "resources": [plural],
        "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
    })
}

/// Name of a policy's entry. Hashed: a policy's name may be longer than an entry's, and have dots
/// where it can't.
pub fn entry_name(policy: &str) -> String {
    let digest = Sha256::digest(policy.as_bytes());
    let half = digest
        .iter()
        .take(16)
        .fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    format!("{half:032x}.policies.mimeo.dev")
}

/// A CEL string literal: JSON's escapes are CEL's too.
fn cel_string(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // It is how a test fails.
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            endpoint: Endpoint::Url("https://127.0.0.1:8443/".into()),
            ca_bundle: None,
            own_namespace: "mimeo-system".into(),
            namespaces_failure_policy: FailurePolicy::Ignore,
            pod_gate_resources: vec![],
            mimeo_users: vec![],
            owner: None,
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
            .find(|one| one["name"] == "not-mimeo-removing-the-mark")
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
            registration().policies(&[], &|_| None)["webhooks"],
            json!([])
        );
    }
}
