//! The requests of the engine's jobs, and the requests that write statuses and Events.

use std::collections::BTreeSet;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ConfigMap, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{ResourceExt, core::ObjectMeta};
use mimeo_api::names::{API_VERSION, GROUP, VERSION};
use mimeo_engine::{EventUpdate, GrantUpdate, GrantsRead, Home, Presence, StatusUpdate};
use mimeo_model::{
    created::CreatedCopies,
    id::RuleId,
    kind::{GroupKind, GroupVersionKind, Resource},
    known::Decoded,
    meta, names,
    source::SourceRef,
};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};
use tracing::warn;

use super::Writer;
use crate::{
    call::{
        self, APPLY, CallError, CallResult, JSON, JSON_PATCH, MERGE, METADATA, METADATA_LIST,
        Message, encode,
    },
    discovery::resource_path,
    object::{Page, text},
    stored::{explain_grant, parse_grant},
    watch::Meta,
};

/// The `ConfigMap` in Mimeo's namespace that outlives every rule.
pub const KINDS_CONFIG_MAP: &str = "mimeo-kinds";

/// The content of the kinds `ConfigMap`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// The kinds that may have copies.
    pub kinds: BTreeSet<GroupVersionKind>,
    /// The nonce of a held deletion that a user confirmed.
    pub confirmed: Option<Box<str>>,
}

/// Parses the kinds `ConfigMap`. Entries that can't be parsed are skipped with a warning.
pub fn parse_kinds(object: &ConfigMap) -> Kinds {
    let confirmed = object.annotations().get(names::CONFIRM_DELETION);
    let kinds = object
        .data
        .iter()
        .flatten()
        .filter_map(|(key, api_version)| parse_kind(key, api_version))
        .collect();
    Kinds {
        kinds,
        confirmed: confirmed
            .filter(|nonce| !nonce.is_empty())
            .map(|nonce| nonce.as_str().into()),
    }
}

fn parse_kind(key: &str, api_version: &str) -> Option<GroupVersionKind> {
    let kind = key.split_once('.').map_or(key, |(kind, _)| kind);
    let parsed = GroupVersionKind::parse(api_version, kind).ok();
    let parsed = parsed.filter(|gvk| gvk.group_kind().to_string() == key);
    if parsed.is_none() {
        warn!(
            config_map = KINDS_CONFIG_MAP,
            key, "entry is no kind; its copies are not collected"
        );
    }
    parsed
}

impl Writer {
    /// Removes the pending label from a namespace that still has this nonce and this
    /// resourceVersion. A deleted namespace counts as done.
    ///
    /// # Errors
    /// [`CallError::Conflict`] if the namespace has changed, so that the caller must check it again.
    pub async fn remove_label(&self, namespace: &str, nonce: &str, version: u64) -> CallResult<()> {
        let label = format!(
            "/metadata/labels/{}",
            names::PENDING_LABEL.replace('~', "~0").replace('/', "~1")
        );
        let patch = json!([
            {"op": "test", "path": label, "value": nonce},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version.to_string()},
            {"op": "remove", "path": label},
        ]);
        let path = namespace_path(namespace);
        let written = self.write(Method::PATCH, &path, JSON_PATCH, &patch);
        match unless_gone(written.await) {
            // One of the tests failed.
            Err(CallError::Invalid) => Err(CallError::Conflict),
            written => written,
        }
    }

    /// Records in a namespace's annotation the copies that were created once in it, if the
    /// namespace still has this resourceVersion. A deleted namespace counts as done.
    ///
    /// # Errors
    /// [`CallError::Conflict`] if the namespace has changed, so that the caller must check it again.
    /// [`CallError::Invalid`] if the namespace's annotations would be too large. A retry cannot
    /// succeed before a user removes some of them.
    pub async fn record_created(
        &self,
        namespace: &str,
        created: &CreatedCopies,
        version: u64,
    ) -> CallResult<()> {
        let text = (!created.entries.is_empty()).then(|| created.to_string());
        let patch = json!({"metadata": {"resourceVersion": version.to_string(), "annotations": {names::CREATED_ONCE: text}}});
        unless_gone(self.merge(&namespace_path(namespace), &patch).await)
    }

    /// Reads a rule, and then its CRD. If that CRD was created before the rule, the rule lived under
    /// it.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if the server that answered doesn't serve the kind. Then the read
    /// proves nothing about the rule.
    pub async fn read_rule(&self, id: &RuleId) -> CallResult<Presence> {
        let rule = self.look(&rule_path(id)).await;
        let crd = self.look_crd(&id.kind.crd_name()).await?;
        let namespace = match (rule, &id.namespace) {
            (Ok(Some(_)), _) => return Ok(Presence::Present),
            (Ok(None), Some(home)) => self.look_home(home).await?,
            (Ok(None), None) => Some(0),
            // If the CRD exists, the server that answered does not serve it (yet). The answer then
            // proves nothing about the rule.
            (Err(CallError::NotFound), _) if crd.is_none() => None,
            (Err(error), _) => return Err(error),
        };
        Ok(Presence::Absent(Home { namespace, crd }))
    }

    /// Reads a source. If it does not exist, reads its namespace as well.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if its kind isn't served. Then the read proves nothing about the
    /// source.
    pub async fn read_source(
        &self,
        source: &SourceRef,
        resource: &Resource,
    ) -> CallResult<Presence> {
        let path = resource_path(resource, Some(&source.namespace), Some(&source.name));
        let Some(found) = self.look(&path).await? else {
            // The kind is served, so its CRD did not take the source along.
            return Ok(Presence::Absent(Home {
                namespace: self.look_home(&source.namespace).await?,
                crd: Some(0),
            }));
        };
        let labels = found.labels.unwrap_or_default();
        let selected = source.admits(|key| labels.get(key).map(String::as_str));
        Ok(if selected {
            Presence::Present
        } else {
            Presence::Relabelled
        })
    }

    /// Reads when a namespace was created, in seconds since 1970. `None`: it does not exist or is
    /// being deleted.
    async fn look_home(&self, name: &str) -> CallResult<Option<u32>> {
        self.look_created(&namespace_path(name)).await
    }

    /// Reads when a CRD was created, in seconds since 1970. `None`: it does not exist or is being
    /// deleted.
    async fn look_crd(&self, name: &str) -> CallResult<Option<u32>> {
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.look_created(&format!("{crds}/{name}")).await
    }

    async fn look_created(&self, path: &str) -> CallResult<Option<u32>> {
        let found = self.look(path).await?;
        let lasting = found.filter(|meta| meta.deletion_timestamp.is_none());
        Ok(lasting.and_then(|meta| meta.creation_timestamp.as_ref().map(meta::seconds)))
    }

    /// Reads a whole source from the storage, without any cache. `None`: there is no object with
    /// its name, or the object lacks the labels that the source needs.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if its kind isn't served. Then the read proves nothing about the
    /// source.
    pub async fn read(
        &self,
        source: &SourceRef,
        resource: &Resource,
    ) -> CallResult<Option<Decoded<Value>>> {
        let path = resource_path(resource, Some(&source.namespace), Some(&source.name));
        let object: Option<Decoded<Value>> = self.object_at(&path, JSON).await?;
        Ok(object.filter(|object| {
            source.admits(|key| object.value()["metadata"]["labels"][key].as_str())
        }))
    }

    /// Reads a grant from the storage, without any cache. `None`: it does not exist. The request is
    /// a list of one object, because a client that may watch grants may also list them.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if grants aren't served.
    pub async fn read_grant(
        &self,
        namespace: &str,
        name: &str,
    ) -> CallResult<Option<Decoded<Value>>> {
        let selector = encode(&format!("metadata.name={name}"));
        let path = format!("{}?fieldSelector={selector}", grants_path(namespace));
        let mut found = self.list(&path, JSON).await?.items;
        // A grant that can't be decoded still exists, so this is an error.
        found
            .pop()
            .map(|grant| grant.ok_or(CallError::Undecodable))
            .transpose()
    }

    /// Reads all grants of a namespace, then their CRD, then the namespace. If the CRD and the
    /// namespace are the known ones after the first read, they were the same before it, too.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if grants aren't served.
    pub async fn read_grants(&self, namespace: &str) -> CallResult<GrantsRead> {
        let found: Page<Value> = self.list(&grants_path(namespace), JSON).await?;
        // A grant that can't be decoded grants nothing. It does not stop the others.
        let grants = found.items.into_iter().flatten().filter_map(|grant| {
            let name = text(grant.value(), "/metadata/name")?.into();
            Some((name, parse_grant(grant).ok()?.edition))
        });
        let grants = grants.collect();
        let crd = self.look_crd("replicationgrants.mimeo.dev").await?;
        let namespace = self.look_home(namespace).await?;
        let home = Home { namespace, crd };
        Ok(GrantsRead { grants, home })
    }

    /// Records that copies of a kind may exist.
    pub async fn record(&self, gvk: &GroupVersionKind) -> CallResult<()> {
        self.write_kinds(&json!({"data": {gvk.group_kind().to_string(): gvk.api_version()}}))
            .await
    }

    /// Removes that record if there are no copies in these namespaces. A `None` in the list stands
    /// for all namespaces.
    ///
    /// # Errors
    /// [`CallError::Conflict`] if there is a copy after all, or if the kind isn't served and nothing
    /// can be proved.
    pub async fn unrecord(&self, kind: &GroupKind, places: &[Option<Box<str>>]) -> CallResult<()> {
        let (path, key) = (self.kinds_path(), kind.to_string());
        let Some(map) = self.read_at::<ConfigMap>(&path, JSON).await? else {
            return Ok(());
        };
        let mut kinds = parse_kinds(&map).kinds.into_iter();
        let Some(gvk) = kinds.find(|gvk| gvk.group_kind() == *kind) else {
            return Ok(());
        };
        let resource = self.discovery.find_in_any_version(&gvk).await?;
        let resource = resource.ok_or(CallError::Conflict)?;
        for place in places {
            if self.has_copies(&resource, place.as_deref()).await? {
                return Err(CallError::Conflict);
            }
        }
        // The patch names the resourceVersion that was read. So a record that was written since
        // then stays.
        let version = map.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "data": {key: null}});
        self.merge(&path, &patch).await
    }

    /// Writes a rule's status. A deleted rule needs none.
    pub async fn write_status(&self, update: &StatusUpdate) -> CallResult<()> {
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": update.id.kind.to_string(),
            "metadata": {"name": &*update.id.name},
            "status": &update.status,
        });
        unless_gone(self.apply_status(&rule_path(&update.id), &object).await)
    }

    /// Applies the status of the object at this path.
    async fn apply_status(&self, path: &str, object: &Value) -> CallResult<()> {
        let path = format!(
            "{path}/status?fieldManager={}&force=true",
            names::STATUS_MANAGER
        );
        self.write(Method::PATCH, &path, APPLY, object).await
    }

    /// Writes a grant's status. It writes nothing if the status is up to date, or if the grant has
    /// changed since.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if grants aren't served, or if the CRD is of a version in which
    /// grants had no status.
    pub async fn write_grant_status(&self, update: &GrantUpdate, now: Timestamp) -> CallResult<()> {
        let GrantUpdate {
            namespace,
            name,
            standing,
        } = update;
        let Some(grant) = self.read_grant(namespace, name).await? else {
            return Ok(());
        };
        let (grant, refusals) = explain_grant(grant);
        let status = standing.status(&grant, &refusals, now);
        // The watch will show the changed grant.
        if grant.metadata.generation != Some(standing.generation)
            || grant.status.as_ref() == Some(&status)
        {
            return Ok(());
        }
        let path = format!("{}/{}", grants_path(namespace), encode(name));
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": "ReplicationGrant",
            "metadata": {"name": name, "uid": grant.metadata.uid},
            "status": status,
        });
        match self.apply_status(&path, &object).await {
            // Another grant has the same name now.
            Err(CallError::Conflict) => Ok(()),
            written => written,
        }
    }

    /// Writes an Event, or continues the existing series, even a series of another process.
    /// `reporter` is this replica's name, in ASCII and with at most 128 characters.
    pub async fn write_event(
        &self,
        update: &EventUpdate,
        reporter: &str,
        at: Timestamp,
    ) -> CallResult<()> {
        let regarding = &update.regarding;
        let namespace = regarding.namespace.as_deref().unwrap_or(EVENTS_NAMESPACE);
        let path = format!(
            "/apis/events.k8s.io/v1/namespaces/{}/events",
            encode(namespace)
        );
        let one = format!("{path}/{}", update.name);
        let series = |count: i32| json!({"count": count, "lastObservedTime": MicroTime(at)});
        if let Some(known) = self.read_at::<Event>(&one, JSON).await? {
            // The API server accepts changes to no other field of an Event.
            let before = known.series.map_or(1, |series| series.count);
            let series = series(before.saturating_add(update.count));
            return self.merge(&one, &json!({"series": series})).await;
        }
        let event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": update.name},
            "eventTime": MicroTime(at),
            // A single Event is no series.
            "series": (update.count > 1).then(|| series(update.count)),
            "type": update.reason.type_(),
            "reason": update.reason.as_str(),
            "action": "Reconcile",
            "note": update.note,
            "regarding": regarding,
            "related": update.related,
            "reportingController": names::REPORTER,
            "reportingInstance": reporter,
        });
        self.write(Method::POST, &path, JSON, &event).await
    }

    fn kinds_path(&self) -> String {
        format!(
            "{}/configmaps/{}",
            namespace_path(&self.namespace),
            KINDS_CONFIG_MAP
        )
    }

    /// Patches the kinds `ConfigMap`. If it does not exist, creates it with the content of the
    /// patch.
    async fn write_kinds(&self, patch: &Value) -> CallResult<()> {
        let kinds = self.kinds_path();
        let merge = || self.merge(&kinds, patch);
        match merge().await {
            Err(CallError::NotFound) => {}
            noted => return noted,
        }
        let mut object = patch.clone();
        object["apiVersion"] = "v1".into();
        object["kind"] = "ConfigMap".into();
        object["metadata"]["name"] = KINDS_CONFIG_MAP.into();
        let path = format!("{}/configmaps", namespace_path(&self.namespace));
        match self.write(Method::POST, &path, JSON, &object).await {
            // Another client has created it meanwhile.
            Err(CallError::Conflict) => merge().await,
            created => created,
        }
    }

    async fn merge(&self, path: &str, patch: &Value) -> CallResult<()> {
        self.write(Method::PATCH, path, MERGE, patch).await
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> CallResult<()> {
        let request = call::write(method, path, METADATA, content_type, body.to_string());
        self.answer(request).await?.accept().map(drop)
    }

    /// True if the namespace has an object with Mimeo's label. `None` stands for all namespaces.
    async fn has_copies(&self, resource: &Resource, namespace: Option<&str>) -> CallResult<bool> {
        let selector = encode(&format!(
            "{}={}",
            names::MANAGED_BY,
            names::MANAGED_BY_VALUE
        ));
        let path = format!(
            "{}?limit=1&labelSelector={selector}",
            resource_path(resource, namespace, None)
        );
        let Page::<IgnoredAny> { metadata, items } = self.list(&path, METADATA_LIST).await?;
        Ok(!items.is_empty() || metadata.continue_.is_some_and(|next| !next.is_empty()))
    }

    /// Reads a list, or a page of it.
    async fn list<T: DeserializeOwned>(&self, path: &str, accept: &str) -> CallResult<Page<T>> {
        let answer = self.answer(call::read(path, accept)).await?;
        answer.accept()?.page().ok_or(CallError::Undecodable)
    }

    async fn read_at<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &str,
    ) -> CallResult<Option<T>> {
        let object: Option<Decoded<T>> = self.object_at(path, accept).await?;
        object
            .map(|object| object.whole().ok_or(CallError::Undecodable))
            .transpose()
    }

    /// Reads an object from the storage, as far as it can be decoded. `None`: it does not exist.
    async fn object_at<T: DeserializeOwned>(
        &self,
        path: &str,
        accept: &str,
    ) -> CallResult<Option<Decoded<T>>> {
        let answer = self.answer(call::read(path, accept)).await?;
        if answer.is_absence() {
            return Ok(None);
        }
        let object = answer.accept()?.object();
        object.map(Some).ok_or(CallError::Undecodable)
    }

    /// Reads an object's metadata from the storage. `None`: it does not exist.
    ///
    /// # Errors
    /// [`CallError::NotFound`] if its kind isn't served, or if the server that answered isn't the
    /// API server.
    async fn look(&self, path: &str) -> CallResult<Option<ObjectMeta>> {
        let found: Option<Meta> = self.read_at(path, METADATA).await?;
        Ok(found.map(|found| found.metadata))
    }

    /// Returns any answer, even an error. The request needs a permit like every other request.
    async fn answer(&self, request: Message) -> CallResult<call::Answer> {
        let permit = self.permit().await;
        let (answer, verdict) = self.measure(request).await;
        permit.done(verdict);
        answer
    }
}

/// A write to an object that no longer exists counts as done.
fn unless_gone(written: CallResult<()>) -> CallResult<()> {
    match written {
        Err(CallError::NotFound) => Ok(()),
        written => written,
    }
}

/// Events about objects without a namespace are written to this namespace.
const EVENTS_NAMESPACE: &str = "default";

fn grants_path(namespace: &str) -> String {
    let namespace = encode(namespace);
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/replicationgrants")
}

fn namespace_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{}", encode(namespace))
}

fn rule_path(id: &RuleId) -> String {
    let namespace = id
        .namespace
        .as_deref()
        .map_or_else(String::new, |name| format!("namespaces/{}/", encode(name)));
    format!(
        "/apis/{GROUP}/{VERSION}/{namespace}{}/{}",
        id.kind.plural(),
        encode(&id.name)
    )
}
