//! A copy's body: rendered once per source version and target, then shared by all of the target's namespaces, but for the
//! values of the variables that each of them fills in.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use mimeo_api::DriftPolicy;
use serde_json::{Map, Value, json};

use crate::{
    engine::budget,
    kind::GroupVersionKind,
    lineage::Lineage,
    meta::{Checksum, Uid},
    names,
    outcome::{Failure, Reason},
    rule::{Rule, RuleId, RuleKind, SourceRef, Strategy, Target, syntax},
    template::{Place, Template, Variable, fill_in, variables_in},
};

/// The bytes of one copy. The namespace is in the URL only, so they may be those of others, too.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendering {
    /// Identifies the rendering; also on the copy, as the annotation [`names::CHECKSUM`].
    pub checksum: Checksum,
    /// The body behind the id, which alone differs from copy to copy.
    metadata: Vec<Bytes>,
    /// And behind the metadata.
    content: Vec<Bytes>,
}

/// Not derived: the bytes may be a Secret's.
impl std::fmt::Debug for Rendering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let length: usize = self.metadata.iter().chain(&self.content).map(Bytes::len).sum();
        write!(f, "Rendering({}, {length} bytes)", self.checksum)
    }
}

/// What the written object must be for the write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing has the name. Server-side apply has no such wish of its own, but no object ever has resourceVersion "1": with
    /// it an apply creates, or answers 409 even when forced. Neither a read before nor a race between can do damage.
    Absent,
    /// It is this very object, not one that took its name since.
    Is(Uid),
    /// It is this very object as it was at this version.
    Unchanged(Uid, u64),
}

impl Rendering {
    /// The body in pieces; only the second one is made anew.
    pub fn body(&self, precondition: Precondition) -> Vec<Bytes> {
        let id = match precondition {
            Precondition::Absent => Bytes::from_static(br#""resourceVersion":"1","#),
            Precondition::Is(uid) => Bytes::from(format!(r#""uid":"{uid}","#)),
            Precondition::Unchanged(uid, version) => {
                Bytes::from(format!(r#""uid":"{uid}","resourceVersion":"{version}","#))
            }
        };
        let rest = self.metadata.iter().chain(&self.content).cloned();
        [Bytes::from_static(br#"{"metadata":{"#), id].into_iter().chain(rest).collect()
    }

    /// The body of the copy of this name without labels, annotations and finalizers: what is the same in an object that only
    /// lacks our marks.
    pub fn unmarked(&self, name: &str, uid: Uid, version: u64) -> Vec<Bytes> {
        let name = Value::from(name);
        let id = format!(r#"{{"metadata":{{"uid":"{uid}","resourceVersion":"{version}","name":{name}"#);
        std::iter::once(id.into()).chain(self.content.iter().cloned()).collect()
    }
}

/// The copies of one source for one target: alike in all namespaces, or a form that each of them fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copies {
    /// No variable of the namespace is in them.
    Alike(Arc<Rendering>),
    /// Its variables stand in them.
    Form(Arc<Form>),
}

impl Copies {
    /// Takes the bytes behind the metadata from others that are made of the same source, if they are equal: targets differ in
    /// the copies' names alone, and sources may be large. Others that have none like these are joined by them.
    pub fn share(&mut self, others: &mut Vec<Self>) {
        if !others.iter().any(|other| self.shares(other)) {
            others.push(self.clone());
        }
    }

    fn shares(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Self::Alike(own), Self::Alike(other)) if own.content == other.content => {
                *own = Arc::new(Rendering { content: other.content.clone(), ..(**own).clone() });
                true
            }
            (Self::Form(own), Self::Form(other)) if own.content == other.content => {
                *own = Arc::new(Form { content: other.content.clone(), ..(**own).clone() });
                true
            }
            _ => false,
        }
    }

    /// Bytes of the metadata, and of the content if that is asked for.
    pub fn len(&self, content: bool) -> usize {
        let bytes = |all: &[Bytes]| all.iter().map(Bytes::len).sum::<usize>();
        let parts = |all: &[Part]| all.iter().map(Part::len).sum::<usize>();
        match self {
            Self::Alike(one) => bytes(&one.metadata) + if content { bytes(&one.content) } else { 0 },
            Self::Form(form) => parts(&form.metadata) + if content { parts(&form.content) } else { 0 },
        }
    }

    /// Tells these copies from all others, whatever is filled in.
    pub fn checksum(&self) -> Checksum {
        match self {
            Self::Alike(rendering) => rendering.checksum,
            Self::Form(form) => form.checksum,
        }
    }

    /// Whether two good copies may own different fields: only what is not in a list is known by its path alone.
    pub fn own_fields_apart(&self) -> bool {
        matches!(self, Self::Form(form) if form.apart)
    }

    /// Checksum of the copy in one namespace. No bytes are moved for it.
    ///
    /// # Errors
    /// Why there is none in this namespace.
    pub fn checksum_at(&self, place: Place<'_>) -> Result<Checksum, Failure> {
        match self {
            Self::Alike(rendering) => Ok(rendering.checksum),
            Self::Form(form) => form.checksum_at(place),
        }
    }

    /// The copy in one namespace.
    ///
    /// # Errors
    /// Those of [`Self::checksum_at`].
    pub fn rendering_at(&self, place: Place<'_>) -> Result<Arc<Rendering>, Failure> {
        match self {
            Self::Alike(rendering) => Ok(rendering.clone()),
            Self::Form(form) => form.fill(place).map(Arc::new),
        }
    }
}

/// A copy's body with blanks. What is between them is shared by all namespaces.
#[derive(Clone, PartialEq, Eq)]
pub struct Form {
    /// Of everything but the blanks' values.
    checksum: Checksum,
    variables: BTreeSet<Variable>,
    /// API group of the copy, which decides what it may be named.
    group: Box<str>,
    name: Template,
    /// Labels with blanks: what they may be is known, so that none but the right ones are sent.
    labels: Vec<(String, Vec<Part>)>,
    /// Whether a value may be among the keys by which the API server tells a list's items apart.
    apart: bool,
    metadata: Vec<Part>,
    content: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Bytes(Bytes),
    Blank(Variable),
    Checksum,
}

impl Part {
    fn len(&self) -> usize {
        if let Self::Bytes(bytes) = self { bytes.len() } else { size_of::<Self>() }
    }

    /// A part of a label's value.
    fn text_at<'a>(&'a self, place: Place<'a>) -> &'a str {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Blank(variable) => variable.value(place).unwrap_or_default(),
            Self::Checksum => "",
        }
    }
}

/// Not derived: the bytes may be a Secret's.
impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Form({}, {:?})", self.checksum, self.variables)
    }
}

impl Form {
    fn checksum_at(&self, place: Place<'_>) -> Result<Checksum, Failure> {
        let mut values = Vec::with_capacity(self.variables.len());
        for variable in &self.variables {
            let unset = || failure(Reason::VariableUnset, unset(variable));
            values.push((variable.to_string(), variable.value(place).ok_or_else(unset)?));
        }
        let invalid = |what: String| move |why: String| failure(Reason::Invalid, format!("{what} {why}"));
        syntax::object_name(&self.group, &self.name.text_at(place)).map_err(invalid("the copy's name".into()))?;
        for (key, value) in &self.labels {
            let value: String = value.iter().map(|part| part.text_at(place)).collect();
            syntax::label_value(&value).map_err(invalid(format!("the copy's label {key}")))?;
        }
        Ok(Checksum::of(json!([self.checksum.to_string(), values]).to_string().as_bytes()))
    }

    fn fill(&self, place: Place<'_>) -> Result<Rendering, Failure> {
        let checksum = self.checksum_at(place)?;
        let fill = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.clone(),
            Part::Blank(variable) => {
                // Neither names nor label values have anything to escape, but JSON must not hang by that.
                let quoted = Value::from(variable.value(place).unwrap_or_default()).to_string();
                Bytes::copy_from_slice(&quoted.as_bytes()[1..quoted.len() - 1])
            }
            Part::Checksum => checksum.to_string().into(),
        };
        let [metadata, content] = [&self.metadata, &self.content].map(|parts| parts.iter().map(fill).collect());
        Ok(Rendering { checksum, metadata, content })
    }
}

/// That a namespace has no value for a variable, to people.
pub(crate) fn unset(variable: &Variable) -> String {
    format!("the namespace has no value for {variable}")
}

fn failure(reason: Reason, message: String) -> Failure {
    Failure { reason, message: message.into() }
}

/// Why a source gives no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceRefused {
    /// A token is its service account's; elsewhere it would speak for an account that lives here.
    #[error("a service account token is never copied; set transform.type to copy its data as another type")]
    ServiceAccountToken,
    /// Helm would take a copied release for one of its own.
    #[error("a Helm release is never copied; set transform.type to copy its data as another type")]
    HelmRelease,
    /// Both can't have it, and which one is left out isn't for us to say.
    #[error("transform.data.rename brings two keys to the name {0:?}")]
    SameKey(String),
    /// The author's patch doesn't fit. No data is told.
    #[error("transform.jsonPatch[{number}] can't be applied: {why}")]
    JsonPatch {
        /// Which operation.
        number: usize,
        /// Why.
        why: &'static str,
    },
    /// The author's patch made it of something else.
    #[error("transform makes something of metadata.{field}[{key}] that can't be there")]
    Metadata {
        /// Labels or annotations.
        field: &'static str,
        /// Which one.
        key: String,
    },
    /// Tenants' rules may be many, and their sources large.
    #[error(
        "the sources of Replications and what is made of them may take {} MiB of memory for the rules of one namespace and {} MiB for \
         all; older rules have taken what this one would need. Once there is room, change the rule for it to be read again",
        budget::OF_A_NAMESPACE >> 20,
        budget::OF_ALL >> 20
    )]
    TooMuch,
    /// Not an object at all.
    #[error("the source is not a JSON object")]
    NotAnObject,
}

/// Renders the copies of `object` for one target.
pub fn render(
    rule: &Rule,
    source: &SourceRef,
    target: &Target,
    object: &Value,
    cluster: &str,
) -> Result<Copies, SourceRefused> {
    let object = object.as_object().ok_or(SourceRefused::NotAnObject)?;
    let name = target.copy_name(source);
    let draft = |show: &dyn Fn(&Variable) -> String| draft(rule, source, &name, object, cluster, show);
    let (metadata, body) = draft(&Variable::to_string)?;
    let content = json!([&metadata, &body]).to_string();
    let mut variables: BTreeSet<Variable> = name.variables().cloned().chain(rule.transform.variables()).collect();
    if source.is_inline() {
        variables.extend(object.values().flat_map(variables_in));
    }
    if variables.is_empty() {
        check_metadata(&metadata, |_| false)?;
        let checksum = Checksum::of(content.as_bytes());
        let [metadata, content] = texts(metadata, body, checksum.to_string()).map(|text| vec![text.into()]);
        return Ok(Copies::Alike(Arc::new(Rendering { checksum, metadata, content })));
    }
    let blanks = Blanks::unlike(&content, &variables);
    let (metadata, body) = draft(&|variable| blanks.of(variable))?;
    let checksum = Checksum::of(json!([&blanks.sign, &metadata, &body]).to_string().as_bytes());
    check_metadata(&metadata, |text| text.contains(&blanks.sign))?;
    let labels = metadata["labels"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key, value.as_str()?)));
    let labels = labels.filter(|(_, value)| value.contains(&blanks.sign));
    let split = |value: &str| blanks.split(&Bytes::copy_from_slice(value.as_bytes()));
    let labels = labels.map(|(key, value)| (key.clone(), split(value))).collect();
    let apart = body.values().any(|field| in_a_list(field, &blanks.sign));
    let [metadata, content] = texts(metadata, body, blanks.of_checksum()).map(|text| blanks.split(&text.into()));
    let group = source.gvk.group.clone();
    Ok(Copies::Form(Arc::new(Form { checksum, variables, group, name, labels, apart, metadata, content })))
}

type Fields = Map<String, Value>;

/// Metadata and the other fields of the copies, without the checksum; `show` says what stands for variables of the namespace.
fn draft(
    rule: &Rule,
    source: &SourceRef,
    name: &Template,
    object: &Map<String, Value>,
    cluster: &str,
    show: &dyn Fn(&Variable) -> String,
) -> Result<(Fields, Fields), SourceRefused> {
    let mut filled;
    let object = if source.is_inline() {
        filled = object.clone();
        filled.values_mut().for_each(|value| fill_in(value, source, show));
        &filled
    } else {
        object
    };
    let mut body = content(&source.gvk, object);
    if source.gvk.is_secret() {
        secret_type(rule, &mut body)?;
    }
    rule.transform.copy_data(&mut body).map_err(SourceRefused::SameKey)?;
    let from = |field: &str| object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object);
    let mut metadata = Map::new();
    metadata.insert("labels".into(), rule.transform.copy_labels(from("labels"), source, show).into());
    metadata.insert("annotations".into(), rule.transform.copy_annotations(from("annotations"), source, show).into());
    rule.transform.patch_copy(&mut metadata, &mut body, source, show)?;
    // After the patch, which therefore can't change it.
    body.insert("apiVersion".into(), source.gvk.api_version().into());
    body.insert("kind".into(), (*source.gvk.kind).into());
    mark(rule, source, Lineage::of(object.get("metadata")).annotation(), cluster, &mut metadata);
    metadata.insert("name".into(), name.text(|variable| show(variable).into()).into());
    let finalizers = rule.transform.finalizers();
    if !finalizers.is_empty() {
        metadata.insert("finalizers".into(), finalizers.into());
    }
    Ok((metadata, body))
}

/// Checks what a patch may have made of labels and annotations. Values with blanks are checked where they are filled in.
fn check_metadata(metadata: &Map<String, Value>, has_blanks: impl Fn(&str) -> bool) -> Result<(), SourceRefused> {
    for field in ["labels", "annotations"] {
        for (key, value) in metadata.get(field).and_then(Value::as_object).into_iter().flatten() {
            let right = |text: &str| field != "labels" || has_blanks(text) || syntax::label_value(text).is_ok();
            if !value.as_str().is_some_and(right) {
                return Err(SourceRefused::Metadata { field, key: key.clone() });
            }
        }
    }
    Ok(())
}

/// Whether text with this sign is anywhere in a list.
fn in_a_list(value: &Value, sign: &str) -> bool {
    match value {
        Value::Array(_) => value.to_string().contains(sign),
        Value::Object(fields) => fields.values().any(|field| in_a_list(field, sign)),
        _ => false,
    }
}

/// What stands in a copy's text where a variable is to be filled in: a sign that nothing else in the text contains, and a number.
struct Blanks<'a> {
    sign: String,
    variables: Vec<&'a Variable>,
}

impl<'a> Blanks<'a> {
    /// For a text like this one, which spells out the variables.
    fn unlike(content: &str, variables: &'a BTreeSet<Variable>) -> Self {
        // One of them is not in a text of finite length. It begins with a character that is not in the rest of it: no text that
        // stands before it or behind it makes another of it.
        let mut sign = "«".to_owned();
        // Nobody writes a text so that it contains what is made of all of it: the first is as good as always right.
        let first = Checksum::of(content.as_bytes()).short();
        for number in (0_u64..).map(|number| first.wrapping_add(number)) {
            sign = format!("«{number}:");
            if !content.contains(&sign) {
                break;
            }
        }
        Self { sign, variables: variables.iter().collect() }
    }

    fn of(&self, variable: &Variable) -> String {
        self.number(self.variables.iter().position(|one| *one == variable).unwrap_or_default())
    }

    fn of_checksum(&self) -> String {
        self.number(self.variables.len())
    }

    fn number(&self, number: usize) -> String {
        format!("{}{number}»", self.sign)
    }

    /// The text in parts, all of them slices of it.
    fn split(&self, text: &Bytes) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut from = 0;
        for (at, _) in std::str::from_utf8(text).unwrap_or_default().match_indices(&self.sign) {
            let behind = at + self.sign.len();
            let digits = text[behind..].iter().take_while(|byte| byte.is_ascii_digit());
            let number = digits.fold(0_usize, |number, digit| number * 10 + usize::from(digit - b'0'));
            parts.push(Part::Bytes(text.slice(from..at)));
            parts.push(self.variables.get(number).map_or(Part::Checksum, |variable| Part::Blank((*variable).clone())));
            from = behind + number.to_string().len() + "»".len();
        }
        parts.push(Part::Bytes(text.slice(from..)));
        parts
    }
}

/// `…metadata's members`, and `},…the other members}`: what follows the id in the body.
fn texts(mut metadata: Map<String, Value>, body: Map<String, Value>, checksum: String) -> [String; 2] {
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.insert(names::CHECKSUM.into(), checksum.into());
    }
    let mut metadata = Value::Object(metadata).to_string();
    metadata.pop();
    metadata.remove(0);
    // It has members (a kind), so the seam is a comma.
    let mut content = Value::Object(body).to_string();
    content.replace_range(..1, "},");
    [metadata, content]
}

/// Everything but identity, metadata, status, and what the cluster assigned to the source alone.
fn content(gvk: &GroupVersionKind, object: &Map<String, Value>) -> Map<String, Value> {
    let mut content: Map<String, Value> = object
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for path in assigned(&gvk.group, &gvk.kind) {
        remove(&mut content, path);
    }
    content
}

/// Fields that the cluster fills in for one object and no other can have, or that name objects of its namespace.
pub(crate) fn assigned(group: &str, kind: &str) -> &'static [&'static [&'static str]] {
    match (group, kind) {
        ("", "Service") => &[&["spec", "clusterIP"], &["spec", "clusterIPs"], &["spec", "healthCheckNodePort"]],
        ("", "ServiceAccount") => &[&["secrets"]],
        ("", "PersistentVolumeClaim") => &[&["spec", "volumeName"]],
        _ => &[],
    }
}

fn remove(content: &mut Map<String, Value>, path: &[&str]) {
    match path {
        [] => {}
        [last] => {
            content.remove(*last);
        }
        [first, rest @ ..] => {
            if let Some(inner) = content.get_mut(*first).and_then(Value::as_object_mut) {
                remove(inner, rest);
            }
        }
    }
}

fn secret_type(rule: &Rule, body: &mut Map<String, Value>) -> Result<(), SourceRefused> {
    if let Some(wanted) = rule.transform.secret_type() {
        body.insert("type".into(), wanted.into());
        return Ok(());
    }
    never_copied(body.get("type").and_then(Value::as_str)).map_or(Ok(()), Err)
}

/// Why Secrets of that type are never copied as such, if they aren't.
pub(crate) fn never_copied(secret_type: Option<&str>) -> Option<SourceRefused> {
    match secret_type {
        Some("kubernetes.io/service-account-token") => Some(SourceRefused::ServiceAccountToken),
        Some("helm.sh/release.v1") => Some(SourceRefused::HelmRelease),
        _ => None,
    }
}

/// Puts Mimeo's marks on a copy.
fn mark(rule: &Rule, source: &SourceRef, via: Option<String>, cluster: &str, metadata: &mut Map<String, Value>) {
    let mut mark = |field: &str, key: &str, value: String| {
        if let Some(fields) = metadata.get_mut(field).and_then(Value::as_object_mut) {
            fields.insert(key.into(), value.into());
        }
    };
    mark("labels", names::MANAGED_BY, names::MANAGED_BY_VALUE.into());
    let label = match rule.id.kind {
        RuleKind::ClusterReplication => names::CLUSTER_REPLICATION,
        RuleKind::Replication => names::REPLICATION,
    };
    mark("labels", label, label_value(&rule.id));
    if rule.drift == DriftPolicy::Deny {
        mark("labels", names::DRIFT, names::DRIFT_DENY.into());
    }
    mark("annotations", names::RULE, rule.id.to_string());
    mark("annotations", names::SOURCE, source.to_string());
    mark("annotations", names::CLUSTER, cluster.into());
    if rule.strategy == Strategy::Replace {
        mark("annotations", names::STRATEGY, names::STRATEGY_REPLACE.into());
    }
    if let Some(via) = via {
        mark("annotations", names::VIA, via);
    }
    if let Some(retention) = rule.retention.annotation() {
        mark("annotations", names::RETENTION, retention);
    }
}

/// A label value has at most 63 characters, a rule's name 253: longer ones keep their beginning and end in a hash.
fn label_value(id: &RuleId) -> String {
    let name = match &id.namespace {
        None => id.name.to_string(),
        Some(namespace) => format!("{namespace}.{}", id.name),
    };
    if name.len() <= 63 {
        return name;
    }
    let beginning: String = name.chars().take(54).collect();
    format!("{beginning}-{:08x}", Checksum::of(name.as_bytes()).short() >> 32)
}
