//! The two hooks for Mimeo's own kinds. `/mutate/rules` notes the author. `/validate/rules` refuses
//! objects that cannot work or that use permissions which their author does not have. It also warns
//! about probable mistakes.
//!
//! Both hooks fail closed and have no effects, so they treat a dry run like any other request. The
//! author is checked when the object is created or its spec changes, and never again. A later write
//! of labels, annotations or finalizers does not make its user the author.

use std::collections::BTreeSet;

use mimeo_api::{ClusterReplication, Replication, ReplicationGrant, TransformPolicy, names};
use mimeo_engine::author;
use mimeo_model::{
    authority::{Need, of_grant, of_policy, of_rule, only_suspends},
    grant::Grant,
    id::RuleKind,
    kind::{GroupVersionKind, Served},
    own_rights::{self, ProgramRight},
    policy::Policy,
    reach::Reach,
    refusal::{Refusal, in_one_line, refuse_cluster_scoped},
    review::{Request, Verdict},
    right::Right,
    rule::Rule,
    source::{SourceQuery, SourceRef},
    template::{VARIABLES, Variable},
};
use mimeo_runtime::{discovery::resource_path, named};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::{
    app::App,
    permissions,
    warnings::{self, Detail},
};

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
    let old = request.old_object.as_ref();
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        return Verdict::ALLOW;
    }
    let check = Check {
        app,
        request,
        object,
        deadline,
    };
    let checked = match &*request.kind.kind {
        names::CLUSTER_REPLICATION | names::REPLICATION => check.rule().await,
        names::REPLICATION_GRANT => check.grant().await,
        names::TRANSFORM_POLICY => check.policy().await,
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
    Verdict::deny(422, "Invalid", in_one_line(refusals))
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
    let object = T::deserialize(object)
        .map_err(|error| Verdict::deny(422, "Invalid", format!("spec: {error}")))?;
    parse(&object).map_err(|refusals| invalid(&refusals))
}

/// An object that a user wants to write, and the time for all questions about it.
#[derive(Clone, Copy)]
struct Check<'a> {
    app: &'a App,
    request: &'a Request,
    object: &'a Value,
    deadline: Instant,
}

impl Check<'_> {
    /// Checks a rule. The author's permissions come first: every later check reveals something
    /// about the cluster's objects, which only an author with the permissions may know.
    async fn rule(&self) -> Checked {
        let app = self.app;
        let reach = app.index(|index| index.reach().clone());
        let rule = self.parse_rule(self.object)?.within(&reach);
        let kinds = self.kinds(rule.kinds.iter().collect()).await;
        refuse(&refuse_cluster_scoped(
            &rule.kinds,
            "spec.sources",
            &kinds.served,
        ))?;
        let needs = of_rule(&rule, &kinds.served);
        let old = self.request.old_object.as_ref();
        if let Err(refusal) = self.authorize(&needs, &kinds).await {
            // A user who may delete the rule is allowed to suspend it, and learns nothing more
            // about the cluster.
            return if old.is_some_and(|old| only_suspends(old, self.object)) {
                Ok(vec![])
            } else {
                Err(refusal)
            };
        }
        let before = old.and_then(|old| Some(self.parse_rule(old).ok()?.within(&reach)));
        // A rule that makes no more copies than before stays editable and removable, wherever it
        // is.
        let copies = before.as_ref().map(Rule::most_copies);
        if copies.is_none_or(|before| before < rule.most_copies()) {
            let refused = app.index(|index| index.refuses_rule(&rule));
            refuse(refused.as_slice())?;
        }
        let draft = Draft {
            check: self,
            rule: &rule,
            before: before.as_ref(),
            reach: &reach,
            kinds: &kinds,
        };
        Ok(draft.warnings().await)
    }

    async fn grant(&self) -> Checked {
        let grant = parse::<ReplicationGrant, _>(self.object, Grant::parse)?;
        let kinds = grant.objects.iter().map(|objects| &objects.gvk).collect();
        let kinds = self.kinds(kinds).await;
        let home = self.request.namespace.as_deref().unwrap_or_default();
        let needs = of_grant(&grant, home, &kinds.served);
        self.authorize(&needs, &kinds).await?;
        let name = self.request.name.as_deref().unwrap_or_default();
        let refused = self
            .app
            .index(|index| index.refuses_grant(home, name, &grant));
        refuse(refused.as_slice())?;
        Ok(kinds.unserved)
    }

    async fn policy(&self) -> Checked {
        let policy = parse::<TransformPolicy, _>(self.object, Policy::parse)?;
        let kinds = self.kinds(policy.kinds.iter().collect()).await;
        refuse(&refuse_cluster_scoped(
            &policy.kinds,
            "spec.match.kinds",
            &kinds.served,
        ))?;
        let needs = of_policy(&policy, &kinds.served);
        self.authorize(&needs, &kinds).await?;
        let mut warnings = kinds.unserved;
        let variables = Variable::Name.to_string();
        warnings.extend(warnings::near_misses(self.object, &variables));
        Ok(warnings)
    }

    fn parse_rule(&self, object: &Value) -> Result<Rule, Verdict> {
        match &*self.request.kind.kind {
            names::REPLICATION => parse::<Replication, _>(object, Rule::parse_replication),
            _ => parse::<ClusterReplication, _>(object, Rule::parse),
        }
    }

    /// Refuses an author without the permissions.
    async fn authorize(&self, needs: &[Need], kinds: &Kinds) -> Result<(), Verdict> {
        let Self { app, request, .. } = self;
        let (kind, name) = (&request.kind.kind, request.shown_name());
        let object = format!("{kind} {name}");
        let (questions, user) = (&app.questions, &request.user);
        let checked = permissions::check(questions, user, &object, needs, self.deadline).await;
        if let Err(Verdict::Deny { message, .. }) = &checked {
            info!(%kind, name, message, "author refused");
        }
        checked.map_err(|refusal| kinds.explain(refusal))
    }

    /// The answer to one question, if it comes before the deadline.
    async fn ask<T>(&self, question: impl Future<Output = T>) -> Option<T> {
        self.app.questions.ask(question, self.deadline).await
    }

    /// Looks kinds up. A kind without an answer before the deadline is missing.
    async fn kinds(&self, kinds: BTreeSet<&GroupVersionKind>) -> Kinds {
        let discovery = &self.app.discovery;
        let mut found = Kinds::default();
        for gvk in kinds {
            match self.ask(discovery.find(gvk)).await {
                Some(Ok(Some(resource))) => _ = found.served.insert(gvk.clone(), resource),
                Some(Ok(None)) => {
                    let meant = discovery.meant(gvk);
                    found
                        .unserved
                        .push(warnings::unserved(gvk, meant.as_deref()));
                }
                Some(Err(error)) => debug!(%gvk, %error, "cannot look a kind up"),
                None => break,
            }
        }
        found
    }
}

/// A rule that nothing forbids, and all that its warnings depend on.
struct Draft<'a> {
    check: &'a Check<'a>,
    rule: &'a Rule,
    /// The stored rule that it replaces.
    before: Option<&'a Rule>,
    reach: &'a Reach,
    kinds: &'a Kinds,
}

impl Draft<'_> {
    async fn warnings(&self) -> Vec<String> {
        let Self {
            check,
            rule,
            before,
            reach,
            kinds,
        } = *self;
        let app = check.app;
        let mut warnings = kinds.unserved.clone();
        warnings.extend(warnings::near_misses(check.object, VARIABLES));
        // The sources and selectors that no limit of the installation refuses.
        let (mut sources, mut selectors) = (Vec::new(), Vec::new());
        for query in rule.queries().filter(|query| self.tells(query.home())) {
            match (query, reach.refuses(query)) {
                (_, Some(why)) => warnings.push(warnings::out_of_reach(query, why)),
                (SourceQuery::One(source), None) => sources.push(source),
                (SourceQuery::Selected(selector), None) => selectors.push(selector),
            }
        }
        warnings.extend(rule.leaves_out(reach));
        warnings.extend(self.missing_sources(&sources).await);
        let told = self.of_namespaces().await;
        let rights = self.rights(told);
        warnings.extend(selectors.into_iter().filter_map(warnings::empty_selector));
        warnings.extend(warnings::not_granted(app, rule));
        warnings.extend(warnings::foresee(app, rule, before, told));
        warnings.extend(warnings::untold_retention(rule, before));
        warnings.extend(warnings::missing_rights(app, rights, reach, check.deadline).await);
        warnings
    }

    /// False for another namespace than a tenant's own: naming it must not reveal its objects, nor
    /// Mimeo's permissions there.
    fn tells(&self, home: Option<&str>) -> bool {
        let own = self.rule.id.namespace.as_deref();
        own.is_none() || own == home
    }

    /// How much the warnings may say about namespaces.
    async fn of_namespaces(&self) -> Detail {
        let Check {
            app,
            request,
            object,
            deadline,
        } = *self.check;
        // A tenant's rule names all its namespaces.
        if self.rule.id.kind == RuleKind::Replication {
            return Detail::Named;
        }
        let list = Right::new("list", "", "namespaces");
        // Without an answer, the author counts as one who may not list them.
        let Ok(true) = app.questions.may(&request.user, &list, deadline).await else {
            return Detail::Named;
        };
        let same = request.old_object.as_ref().is_some_and(|old| {
            ["targets", "exclude"]
                .iter()
                .all(|field| old["spec"][field] == object["spec"][field])
        });
        if same && !request.dry_run {
            Detail::Odd
        } else {
            Detail::Counts
        }
    }

    /// The permissions that Mimeo's programs need for the rule. Those that copies of a Role or a
    /// RoleBinding give depend on the source, and only a denied write shows that Mimeo lacks them.
    fn rights(&self, told: Detail) -> BTreeSet<ProgramRight> {
        let sources = self.rule.with_roles(|_| None).filter(|(source, _)| {
            self.tells(source.home()) && self.reach.refuses(*source).is_none()
        });
        let mut places = self.check.app.index(|index| index.reached(self.rule));
        if let (Some(places), Detail::Named) = (&mut places, told) {
            places.retain(|namespace| self.rule.names(namespace));
        }
        let (kind, served) = (self.rule.id.kind, &self.kinds.served);
        let mut rights = own_rights::needed_by(kind, sources, places.as_ref(), served);
        rights.retain(|right| !right.hands_out());
        rights
    }

    /// Returns one warning for each source that the API server answers with 404. The sources are
    /// read one after the other, because any user with a namespace can make their metadata large.
    async fn missing_sources(&self, sources: &[&SourceRef]) -> Vec<String> {
        let mut warnings = Vec::new();
        for source in sources {
            let resource = self.kinds.served.get(&source.gvk);
            let Some((resource, home)) = resource.zip(source.home()) else {
                continue;
            };
            let path = resource_path(resource, Some(home), None);
            let read = named::read_metadata(&self.check.app.client, &path, &source.name);
            match self.check.ask(read).await {
                Some(Ok(None)) => warnings.push(warnings::missing_source(source)),
                Some(_) => {}
                None => break,
            }
        }
        warnings
    }
}

/// Discovery's answers about some kinds.
#[derive(Default)]
struct Kinds {
    served: Served,
    /// A warning about each kind that is not served.
    unserved: Vec<String>,
}

impl Kinds {
    /// Adds to a refusal that a kind is not served. Its resource is then unknown, and the author
    /// would need the permissions on all resources of its group.
    fn explain(&self, mut refusal: Verdict) -> Verdict {
        if let Verdict::Deny {
            code: 403, message, ..
        } = &mut refusal
        {
            for unserved in &self.unserved {
                *message += "; ";
                *message += unserved;
            }
        }
        refusal
    }
}
