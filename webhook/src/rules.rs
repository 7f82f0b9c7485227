//! The two hooks for Mimeo's own kinds. `/mutate/rules` notes the author. `/validate/rules` refuses
//! objects that cannot work or that use permissions which their author does not have. It also warns
//! about probable mistakes.
//!
//! Both hooks fail closed and have no effects, so they treat a dry run like any other request. The
//! author is checked when the object is created or its spec changes, and never again. A later write
//! of labels, annotations or finalizers does not make its user the author.

use std::collections::BTreeMap;

use futures::future::join_all;
use k8s_openapi::{api::rbac::v1::RoleBinding, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use mimeo_api::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy, names};
use mimeo_engine::author;
use mimeo_model::{
    authority::{Need, of_grant, of_policy, of_rule},
    grant::Grant,
    id::RuleKind,
    kind::{GroupVersionKind, Resource},
    meta::is_copy,
    narrowing,
    own_rights::{self, RoleRef},
    policy::Policy,
    refusal::Refusal,
    review::{Request, User, Verdict},
    right::Right,
    rule::Rule,
    source::{SourceRef, SourceSelector},
    template::{VARIABLES, Variable},
};
use mimeo_runtime::named;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::{
    app::App,
    permissions::{self, Questions},
    warnings::{self, ReportedCopy},
};

/// Most objects of a selector that are counted. This is more than a rule may have as sources.
const LISTED: u32 = 512;

/// Most selectors of a tenant's rule that are checked.
const TENANTS_LISTS: usize = 4;

/// Answers `/mutate/rules`.
pub(crate) fn note_author(request: &Request) -> Verdict {
    Verdict::Patch {
        patch: author::note(request),
        warnings: vec![],
    }
}

/// Answers `/validate/rules`.
pub(crate) async fn decide(app: &App, request: &Request, deadline: Instant) -> Verdict {
    let Some(object) = &request.object else {
        return Verdict::ALLOW;
    };
    // The spec has passed this hook before. If it would be refused by now, the rest of the object
    // must still be editable, and the object must be removable.
    if request
        .old_object
        .as_ref()
        .is_some_and(|old| old["spec"] == object["spec"])
    {
        return Verdict::ALLOW;
    }
    let checked = match &*request.kind.kind {
        names::CLUSTER_REPLICATION | names::REPLICATION => {
            check_rule(app, request, object, deadline).await
        }
        names::REPLICATION_GRANT => check_grant(app, request, object, deadline).await,
        names::TRANSFORM_POLICY => check_policy(app, request, object, deadline).await,
        _ => Ok(vec![]),
    };
    match checked {
        Ok(warnings) => Verdict::Allow { warnings },
        Err(refusal) => refusal,
    }
}

/// The warnings of an accepted object, or the refusal.
type Checked = Result<Vec<String>, Verdict>;

fn invalid(refusals: &[Refusal]) -> Verdict {
    let message = refusals
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    Verdict::Deny {
        code: 422,
        reason: "Invalid",
        message,
        retry_after_seconds: None,
    }
}

fn refuse(refusals: &[Refusal]) -> Result<(), Verdict> {
    if refusals.is_empty() {
        Ok(())
    } else {
        Err(invalid(refusals))
    }
}

fn parse<T: DeserializeOwned, P>(
    object: &Value,
    parse: fn(&T) -> Result<P, Vec<Refusal>>,
) -> Result<P, Verdict> {
    let read = |error: serde_json::Error| {
        vec![Refusal {
            field: "spec".into(),
            message: error.to_string(),
        }]
    };
    T::deserialize(object)
        .map_err(read)
        .and_then(|object| parse(&object))
        .map_err(|refusals| invalid(&refusals))
}

/// Parses the rule that the request is about.
fn parse_rule(request: &Request, object: &Value) -> Result<Rule, Verdict> {
    match &*request.kind.kind {
        names::REPLICATION => parse::<Replication, _>(object, Rule::parse_replication),
        _ => parse::<ClusterReplication, _>(object, Rule::parse),
    }
}

/// Checks a rule. The author's permissions come first: every later check reveals something about
/// the cluster's objects, which only an author with the permissions may know.
async fn check_rule(app: &App, request: &Request, object: &Value, deadline: Instant) -> Checked {
    let reach = app.handle.look(|engine, _| engine.index().reach().clone());
    let rule = parse_rule(request, object)?.within(&reach);
    let kinds = Kinds::find(app, rule.kinds.iter(), deadline).await;
    refuse(&rule.refuse_kinds(|gvk| kinds.resource(gvk)))?;
    let needs = of_rule(&rule, |gvk| kinds.resource(gvk));
    if let Err(refusal) = authorize(app, request, &needs, deadline).await {
        // A user who may delete or suspend the rule is allowed to do so, and learns nothing more
        // about the cluster.
        return if takes_away(request, object) {
            Ok(vec![])
        } else {
            Err(kinds.explain(app, refusal))
        };
    }
    refuse(
        &app.handle
            .look(|engine, _| engine.index().refuses_selectors(&rule))
            .into_iter()
            .collect::<Vec<_>>(),
    )?;
    let mut warnings = kinds.warnings(app);
    warnings.extend(warnings::near_misses(object, VARIABLES));
    // Naming another namespace must not reveal its objects, nor Mimeo's permissions there.
    let told =
        |home: Option<&str>| rule.id.namespace.is_none() || rule.id.namespace.as_deref() == home;
    let (sources, refused): (Vec<_>, Vec<_>) = rule
        .sources
        .iter()
        .filter(|source| told(source.home()))
        .partition(|source| reach.refuses(source).is_none());
    let refused = refused
        .into_iter()
        .filter_map(|source| Some((source, reach.refuses(source)?)));
    warnings.extend(
        refused.map(|(source, why)| warnings::out_of_reach(&format!("source {source}"), why)),
    );
    let refuses =
        |selector: &SourceSelector| reach.refuses_home(&selector.gvk, Some(&selector.namespace));
    let (selectors, refused): (Vec<_>, Vec<_>) = rule
        .selectors
        .iter()
        .filter(|selector| told(Some(&selector.namespace)))
        .partition(|selector| refuses(selector).is_none());
    let refused = refused
        .into_iter()
        .filter_map(|selector| Some((selector, refuses(selector)?)));
    warnings.extend(
        refused.map(|(selector, why)| warnings::out_of_reach(&format!("sources {selector}"), why)),
    );
    warnings.extend(rule.leaves_out(&reach));
    warnings.extend(missing_sources(app, &sources, &kinds, deadline).await);
    let before = request
        .old_object
        .as_ref()
        .and_then(|old| parse_rule(request, old).ok());
    let before = before.map(|rule| rule.within(&reach));
    // A rule that makes no more copies than before stays editable and removable, wherever it is.
    if before
        .as_ref()
        .is_none_or(|before| before.most_copies() < rule.most_copies())
    {
        refuse(
            app.handle
                .look(|engine, _| engine.index().refuses_rule(&rule))
                .as_slice(),
        )?;
    }
    let bound = bound(&app.client, &app.questions, &sources, deadline).await;
    let homes = rule.homes(|source| bound.get(source).cloned());
    let homes = homes.filter(|home| {
        told(home.namespace) && reach.refuses_home(home.gvk, home.namespace).is_none()
    });
    let of_namespaces = ReportedCopy::of(app, request, &rule, object, deadline).await;
    let mut places = app.handle.look(|engine, _| engine.index().reached(&rule));
    if let (Some(places), ReportedCopy::Named) = (&mut places, of_namespaces) {
        places.retain(|namespace| rule.names(namespace));
    }
    let own = own_rights::needed_by(rule.id.kind, homes, places.as_ref(), |gvk| {
        kinds.resource(gvk)
    });
    // Each selector costs a list. A tenant may write any number of rules, so the webhook checks
    // only the first few selectors of each.
    let most = if rule.id.kind == RuleKind::Replication {
        TENANTS_LISTS
    } else {
        selectors.len()
    };
    let selected = select(
        app,
        &selectors[..most.min(selectors.len())],
        &kinds,
        deadline,
    )
    .await;
    warnings.extend(
        selected
            .iter()
            .filter_map(|selected| selected.warning(rule.most_sources)),
    );
    let found = selected
        .iter()
        .flat_map(|selected| &selected.sources)
        .cloned();
    let sources: Vec<SourceRef> = rule
        .sources
        .iter()
        .cloned()
        .chain(found)
        .take(rule.most_sources)
        .collect();
    match rule.id.kind {
        RuleKind::ClusterReplication => {
            warnings.extend(warnings::foresee(
                app,
                &rule,
                &sources,
                before.as_ref(),
                of_namespaces,
            ));
        }
        RuleKind::Replication => {
            warnings.extend(warnings::not_granted(app, &rule, &sources));
            warnings.extend(warnings::foresee_at_home(
                app,
                &rule,
                &sources,
                before.as_ref(),
            ));
        }
    }
    warnings.extend(warnings::untold_retention(&rule, before.as_ref()));
    warnings.extend(warnings::missing_rights(app, own, &reach, deadline).await);
    Ok(warnings)
}

impl ReportedCopy {
    async fn of(
        app: &App,
        request: &Request,
        rule: &Rule,
        object: &Value,
        deadline: Instant,
    ) -> Self {
        // A tenant's rule names all its namespaces.
        if rule.id.kind == RuleKind::Replication
            || !lists_namespaces(app, &request.user, deadline).await
        {
            return Self::Named;
        }
        let targets =
            |object: &Value| ["targets", "exclude"].map(|field| object["spec"][field].clone());
        let same = request
            .old_object
            .as_ref()
            .is_some_and(|old| targets(old) == targets(object));
        if same && !request.dry_run {
            Self::Odd
        } else {
            Self::Counts
        }
    }
}

/// Returns false if the check has no answer.
async fn lists_namespaces(app: &App, user: &User, deadline: Instant) -> bool {
    let namespaces = Right {
        verb: "list",
        group: "".into(),
        resource: "namespaces".into(),
        namespace: None,
        name: None,
    };
    app.questions
        .may(&app.client, user, &namespaces, deadline)
        .await
        .unwrap_or(false)
}

async fn check_grant(app: &App, request: &Request, object: &Value, deadline: Instant) -> Checked {
    let grant = parse::<ReplicationGrant, _>(object, Grant::parse)?;
    let kinds = Kinds::find(
        app,
        grant.objects.iter().map(|objects| &objects.gvk),
        deadline,
    )
    .await;
    let home = request.namespace.as_deref().unwrap_or_default();
    if !takes_away(request, object) {
        let needs = of_grant(&grant, home, |gvk| kinds.resource(gvk));
        authorize(app, request, &needs, deadline)
            .await
            .map_err(|refusal| kinds.explain(app, refusal))?;
    }
    let name = request.name.as_deref().unwrap_or_default();
    refuse(
        &app.handle
            .look(|engine, _| engine.index().refuses_grant(home, name, &grant))
            .into_iter()
            .collect::<Vec<_>>(),
    )?;
    Ok(kinds.warnings(app))
}

/// True if the request only takes something away from a rule or grant that is stored and valid.
fn takes_away(request: &Request, object: &Value) -> bool {
    let old = request.old_object.as_ref();
    old.is_some_and(|old| narrowing::takes_away(&request.kind.kind, old, object))
}

async fn check_policy(app: &App, request: &Request, object: &Value, deadline: Instant) -> Checked {
    let policy = parse::<TransformPolicy, _>(object, Policy::parse)?;
    let kinds = Kinds::find(app, policy.kinds.iter(), deadline).await;
    refuse(&policy.refuse_kinds(|gvk| kinds.resource(gvk)))?;
    let needs = of_policy(&policy, |gvk| kinds.resource(gvk));
    authorize(app, request, &needs, deadline)
        .await
        .map_err(|refusal| kinds.explain(app, refusal))?;
    let mut warnings = kinds.warnings(app);
    warnings.extend(warnings::near_misses(object, &Variable::Name.to_string()));
    Ok(warnings)
}

async fn authorize(
    app: &App,
    request: &Request,
    needs: &[Need],
    deadline: Instant,
) -> Result<(), Verdict> {
    let kind = &request.kind.kind;
    let name = request
        .name
        .as_deref()
        .or_else(|| request.generate_name())
        .unwrap_or_default();
    let object = format!("{kind} {name}");
    let checked = permissions::check(
        &app.client,
        &app.questions,
        &request.user,
        &object,
        needs,
        deadline,
    )
    .await;
    if let Err(Verdict::Deny { message, .. }) = &checked {
        info!(%kind, name, message, "author refused");
    }
    checked
}

/// Discovery's answers about some kinds. A kind without an answer before the deadline is missing.
struct Kinds(BTreeMap<GroupVersionKind, Option<Resource>>);

impl Kinds {
    async fn find(
        app: &App,
        kinds: impl Iterator<Item = &GroupVersionKind>,
        deadline: Instant,
    ) -> Self {
        let mut found = BTreeMap::new();
        for gvk in kinds {
            if found.contains_key(gvk) {
                continue;
            }
            match app.questions.ask(app.discovery.find(gvk), deadline).await {
                Some(Ok(resource)) => {
                    found.insert(gvk.clone(), resource);
                }
                Some(Err(error)) => debug!(%gvk, %error, "cannot look a kind up"),
                None => break,
            }
        }
        Self(found)
    }

    fn resource(&self, gvk: &GroupVersionKind) -> Option<Resource> {
        self.0.get(gvk).cloned().flatten()
    }

    fn missing(&self) -> impl Iterator<Item = &GroupVersionKind> {
        self.0
            .iter()
            .filter(|(_, resource)| resource.is_none())
            .map(|(gvk, _)| gvk)
    }

    fn warnings(&self, app: &App) -> Vec<String> {
        self.missing()
            .map(|gvk| warnings::unserved(gvk, app.discovery.meant(gvk).as_deref()))
            .collect()
    }

    /// Adds to a refusal the kind that the author may have meant. If a kind is misspelt, its
    /// resource is unknown and the author would need the permissions on all resources of its group.
    fn explain(&self, app: &App, refusal: Verdict) -> Verdict {
        let meant = self
            .missing()
            .find_map(|gvk| Some(warnings::unserved(gvk, Some(&app.discovery.meant(gvk)?))));
        match (refusal, meant) {
            (
                Verdict::Deny {
                    code,
                    reason,
                    message,
                    retry_after_seconds,
                },
                Some(meant),
            ) => Verdict::Deny {
                code,
                reason,
                message: format!("{message}; {meant}"),
                retry_after_seconds,
            },
            (refusal, _) => refusal,
        }
    }
}

/// Returns one warning for each source that the API server answers with 404.
async fn missing_sources(
    app: &App,
    sources: &[&SourceRef],
    kinds: &Kinds,
    deadline: Instant,
) -> Vec<String> {
    let read = async |source: &&SourceRef| {
        let api = api_of(app, source.home()?, &kinds.resource(&source.gvk)?);
        let answer = app
            .questions
            .ask(named::read_metadata(&api, &source.name), deadline)
            .await?
            .ok()?;
        answer.is_none().then(|| warnings::missing_source(source))
    };
    join_all(sources.iter().map(read))
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// The role of a RoleBinding. The subjects are left out: there may be thousands, and they do not
/// matter here.
#[derive(Clone, Debug, Deserialize, kube::Resource)]
#[resource(inherit = RoleBinding)]
#[serde(rename_all = "camelCase")]
struct Binding {
    metadata: ObjectMeta,
    role_ref: RoleRef,
}

/// The roles that RoleBindings among the sources refer to, as far as they can be read before the
/// deadline. Mimeo needs the permission to grant exactly these roles. The RoleBindings are read one
/// after the other, because any user with a namespace can make them as large as an object can be.
async fn bound(
    client: &Client,
    questions: &Questions,
    sources: &[&SourceRef],
    deadline: Instant,
) -> BTreeMap<SourceRef, RoleRef> {
    let mut bound = BTreeMap::new();
    for source in sources
        .iter()
        .filter(|source| own_rights::binds(&source.gvk))
    {
        let Some(home) = source.home() else { continue };
        let api: Api<Binding> = Api::namespaced(client.clone(), home);
        match questions
            .ask(named::read(&api, &source.name), deadline)
            .await
        {
            Some(Ok(Some(Binding { role_ref, .. }))) => {
                _ = bound.insert((*source).clone(), role_ref);
            }
            Some(Ok(None) | Err(_)) => {}
            None => break,
        }
    }
    bound
}

/// The objects that one selector finds.
struct Selected<'a> {
    selector: &'a SourceSelector,
    sources: Vec<SourceRef>,
    /// True if the selector finds more objects than these.
    more: bool,
}

impl Selected<'_> {
    /// The warning about this selector in a rule that may have at most `most` sources.
    fn warning(&self, most: usize) -> Option<String> {
        warnings::selected(self.selector, self.sources.len(), self.more, most)
    }
}

/// Lists the objects that these selectors find. A selector without an answer before the deadline is
/// left out.
async fn select<'a>(
    app: &App,
    selectors: &[&'a SourceSelector],
    kinds: &Kinds,
    deadline: Instant,
) -> Vec<Selected<'a>> {
    let list = async |selector: &'a SourceSelector| {
        let api = api_of(app, &selector.namespace, &kinds.resource(&selector.gvk)?);
        let labels = selector.selector.to_query();
        let list = ListParams::default().labels(&labels).limit(LISTED);
        let found = app
            .questions
            .ask(api.list_metadata(&list), deadline)
            .await?
            .ok()?;
        let original = |metadata: &&ObjectMeta| {
            serde_json::to_value(metadata).is_ok_and(|metadata| !is_copy(&metadata))
        };
        let originals = found
            .items
            .iter()
            .map(|object| &object.metadata)
            .filter(original);
        let names = originals.filter_map(|metadata| metadata.name.as_deref());
        let sources = names
            .filter(|name| !selector.passes_over(name))
            .map(|name| selector.source(name))
            .collect();
        Some(Selected {
            selector,
            sources,
            more: found
                .metadata
                .continue_
                .is_some_and(|more| !more.is_empty()),
        })
    };
    join_all(selectors.iter().copied().map(list))
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn api_of(app: &App, namespace: &str, resource: &Resource) -> Api<DynamicObject> {
    let Resource { gvk, plural, .. } = resource;
    let kind = ApiResource {
        group: gvk.group.to_string(),
        version: gvk.version.to_string(),
        api_version: gvk.api_version(),
        kind: gvk.kind.to_string(),
        plural: plural.to_string(),
    };
    Api::namespaced_with(app.client.clone(), namespace, &kind)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// RoleBindings are read one by one, since each may be as large as an object can be.
    #[tokio::test(start_paused = true)]
    async fn what_role_bindings_give_is_read_one_after_the_other_and_nothing_else() {
        let (asked, at_once) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::new(AtomicUsize::new(0)),
        );
        let (told, open) = (asked.clone(), at_once.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (told, open) = (told.clone(), open.clone());
            async move {
                assert_eq!(
                    open.fetch_add(1, Ordering::Relaxed),
                    0,
                    "another is being read"
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
                open.fetch_sub(1, Ordering::Relaxed);
                let path = request.uri().path().to_owned();
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                told.lock().expect("no test panics with it").push(path);
                let mut object = json!({
                    "metadata": {"name": name}, "subjects": vec![json!({"kind": "User", "name": "ann"}); 3],
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("of-{name}")},
                });
                if name == "odd" {
                    object["roleRef"] = json!(7);
                }
                Ok::<_, Infallible>(http::Response::new(Body::from(
                    object.to_string().into_bytes(),
                )))
            }
        });
        let source = |kind, name| {
            let gvk =
                GroupVersionKind::parse("rbac.authorization.k8s.io/v1", kind).expect("a kind");
            SourceRef::named(gvk, "home", name)
        };
        let [a, b, role, odd] = [
            ("RoleBinding", "a"),
            ("RoleBinding", "b"),
            ("Role", "c"),
            ("RoleBinding", "odd"),
        ]
        .map(|(kind, name)| source(kind, name));
        let (client, deadline) = (
            Client::new(service, "default"),
            Instant::now() + Duration::from_secs(5),
        );
        let bound = bound(
            &client,
            &Questions::default(),
            &[&a, &role, &odd, &b],
            deadline,
        )
        .await;
        let gives = |source| bound.get(source).cloned();
        let named = |name: &str| RoleRef::of(&json!({"roleRef": {"kind": "Role", "name": name}}));
        assert_eq!(
            [&a, &role, &odd, &b].map(gives),
            [named("of-a"), None, None, named("of-b")]
        );
        let path = |name: &str| {
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/home/rolebindings/{name}")
        };
        assert_eq!(
            *asked.lock().expect("no test panics with it"),
            ["a", "odd", "b"].map(path)
        );
    }
}
