//! The content of a copy: the source's content after the rule's transform, with Mimeo's labels and
//! annotations.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    model::Silence,
    patch,
    select::{Labels, glob},
    server::{Key, Res},
    spec::{
        Data, Keep, Keys, Operation, Piece, Policy, Retention, RuleSpec, Strategy, Target, Text,
        Worth,
    },
    tables::Coverage,
};

pub type Content = BTreeMap<String, String>;

/// A value in a form that only Mimeo defines.
pub const OPAQUE: &str = "(whatever Mimeo writes)";

/// A value that differs by namespace.
const ANY: &str = "(any)";

/// Why a source gives no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// A variable takes a label that the namespace doesn't have.
    Unset,
    /// Mimeo does not copy sources of this sort.
    Refused,
    /// The result of the rule's transform can't be a copy.
    Unfit,
    /// The documents don't define the content of the copy.
    Untold(&'static str),
}

/// The place of a copy, as variables see it.
pub struct Place<'a> {
    pub source: &'a Key,
    pub namespace: &'a str,
    pub labels: &'a Labels,
}

/// The text with its variables filled in.
pub fn fill(text: &Text, place: &Place<'_>) -> Result<String, Withheld> {
    let piece = |piece: &Piece| {
        Ok(match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::SourceName => place.source.name.clone(),
            Piece::SourceNamespace => place.source.namespace.clone(),
            Piece::NamespaceName => place.namespace.to_owned(),
            Piece::NamespaceLabel(key) => place.labels.get(*key).cloned().ok_or(Withheld::Unset)?,
            Piece::Literal(text) | Piece::Unknown(text) => format!("$({text})"),
        })
    };
    text.0.iter().map(piece).collect()
}

/// True if the whole rule is refused. The causes: an unknown variable; labels of the namespace in
/// names while foreign objects are overwritten; a patch of a part that no rule may change. A
/// `Replication` may use no labels in names. Only in its own namespace may it use labels in values,
/// overwrite foreign objects, or deny changes of its copies.
pub fn refused(rule: &Key, spec: &RuleSpec) -> bool {
    let secrets = kinds(spec).any(|kind| kind == Res::Secret);
    if spec
        .transform
        .patch
        .iter()
        .any(|operation| patch::refused(operation, secrets))
    {
        return true;
    }
    let has = |text: &Text, what: fn(&Piece) -> bool| text.0.iter().any(what);
    let sets = spec
        .transform
        .labels
        .set
        .iter()
        .chain(&spec.transform.annotations.set)
        .map(|(_, text)| text);
    let mut names = spec
        .targets
        .iter()
        .filter_map(|target| target.name.as_ref());
    let texts = spec.inline.values().flatten().map(|(_, text)| text);
    // An inline source has no namespace.
    let worths = spec
        .transform
        .patch
        .iter()
        .filter_map(Operation::worth)
        .flat_map(Worth::texts);
    let mut all = sets
        .clone()
        .chain(names.clone())
        .chain(texts.clone())
        .chain(worths.clone());
    if !spec.inline.is_empty()
        && all.any(|text| has(text, |piece| *piece == Piece::SourceNamespace))
    {
        return true;
    }
    // A tenant may not learn the labels of another tenant's namespace.
    let by_labels = sets
        .clone()
        .chain(worths)
        .any(|text| has(text, |piece| matches!(piece, Piece::NamespaceLabel(_))));
    sets.chain(names.clone())
        .chain(texts)
        .any(|text| has(text, |piece| matches!(piece, Piece::Unknown(_))))
        || (spec.conflict == Policy::Overwrite || rule.res == Res::Replication)
            && names.any(|name| has(name, |piece| matches!(piece, Piece::NamespaceLabel(_))))
        || (spec.conflict != Policy::Report || spec.denies() || by_labels)
            && rule.res == Res::Replication
            && spec
                .targets
                .iter()
                .any(|target| target.by.exact().iter().any(|name| *name != rule.namespace))
        || rule.res == Res::Replication && copies_itself_alone(spec)
}

/// True if each copy of a tenant's rule would be its own source.
fn copies_itself_alone(spec: &RuleSpec) -> bool {
    let labels = Labels::new();
    let places = || {
        spec.targets
            .iter()
            .flat_map(|target| target.by.exact().iter().map(move |name| (target, *name)))
    };
    let is_itself = |target: &Target, namespace: &str, source: &Key| {
        let place = Place {
            source,
            namespace,
            labels: &labels,
        };
        let name = target
            .name
            .as_ref()
            .map_or_else(|| Ok(source.name.clone()), |name| fill(name, &place));
        source.namespace == namespace && name.as_ref() == Ok(&source.name)
    };
    // Whatever a selector finds has some name.
    let found = spec
        .selected
        .iter()
        .map(|selected| Key::new(selected.res, selected.namespace, "x"));
    let sources: Vec<Key> = spec.sources.iter().cloned().chain(found).collect();
    places().all(|(target, name)| sources.iter().all(|source| is_itself(target, name, source)))
}

/// The kinds that a rule copies.
pub fn kinds(spec: &RuleSpec) -> impl Iterator<Item = Res> {
    spec.sources
        .iter()
        .map(|source| source.res)
        .chain(spec.selected.iter().map(|selected| selected.res))
}

/// Returns the content of a source here. The variables of an inline source are filled in.
pub fn filled(spec: &RuleSpec, source: &Content, place: &Place<'_>) -> Result<Content, Withheld> {
    match spec.inline.get(place.source) {
        None => Ok(source.clone()),
        Some(fields) => fields
            .iter()
            .map(|(path, text)| Ok((path.clone(), fill(text, place)?)))
            .collect(),
    }
}

/// True if a key is included and not excluded. Without `include` every key is included.
fn kept(include: Option<&Vec<&str>>, exclude: &[&str], key: &str) -> bool {
    include.is_none_or(|globs| globs.iter().any(|one| glob(one, key)))
        && !exclude.iter().any(|one| glob(one, key))
}

fn keys(
    copy: &mut Content,
    part: &str,
    keys: &Keys,
    source: &Content,
    place: &Place<'_>,
    coverage: &mut Coverage,
) -> Result<(), Withheld> {
    for (path, value) in source {
        let Some(key) = path.strip_prefix(part) else {
            continue;
        };
        if coverage.carried(key) && kept(keys.include.as_ref(), &keys.exclude, key) {
            copy.insert(path.clone(), value.clone());
        }
    }
    for (key, value) in &keys.set {
        copy.insert(format!("{part}{key}"), fill(value, place)?);
    }
    Ok(())
}

fn type_of(spec: &RuleSpec, secret: &Content) -> String {
    let own = || {
        secret
            .get("type")
            .map_or_else(|| "Opaque".to_owned(), Clone::clone)
    };
    spec.transform.type_.map_or_else(own, str::to_owned)
}

/// Whether a Secret belongs to one namespace, unless its type is transformed.
pub fn bound(spec: &RuleSpec, kind: Res, source: &Content) -> bool {
    let type_ = type_of(spec, source);
    kind == Res::Secret
        && (type_ == "kubernetes.io/service-account-token" || type_.starts_with("helm.sh/release"))
}

/// Returns why a source gives no copy: its type belongs to one namespace, two keys lead to the same
/// name, or the patch fails. A failing patch fails for every namespace.
pub fn uncopied(
    spec: &RuleSpec,
    source: &Key,
    content: &Content,
) -> Result<Option<Withheld>, Silence> {
    let mut names = BTreeSet::new();
    let keys = content.keys().filter_map(|path| {
        path.strip_prefix("data/")
            .or(path.strip_prefix("binaryData/"))
    });
    let mut named = keys.filter_map(|key| new_name(spec, key));
    if bound(spec, source.res, content) {
        return Ok(Some(Withheld::Refused));
    }
    if named.any(|name| !names.insert(name.to_owned())) {
        return Ok(Some(Withheld::Unfit));
    }
    if spec.transform.patch.is_empty() && !source.namespace.is_empty() {
        return Ok(None);
    }
    let anything = || ANY.to_owned();
    let labels = ["team", "tier"]
        .map(|key| (key.to_owned(), anything()))
        .into();
    let anywhere = Place {
        source,
        namespace: ANY,
        labels: &labels,
    };
    match transformed(spec, content, &anywhere, &mut Coverage::default()) {
        Ok(_) => Ok(None),
        Err(unfit @ (Withheld::Refused | Withheld::Unfit)) => Ok(Some(unfit)),
        Err(Withheld::Untold(silence)) => Err(silence),
        Err(Withheld::Unset) => Err("a variable of no label that there is"),
    }
}

/// True if the copy has nothing of some parts of the source.
pub fn left_empty(spec: &RuleSpec, source: &Content) -> bool {
    ["data/", "binaryData/"].iter().any(|part| {
        let mut keys = source
            .keys()
            .filter_map(|path| path.strip_prefix(part))
            .peekable();
        keys.peek().is_some() && keys.all(|key| new_name(spec, key).is_none())
    })
}

/// Returns the name of a data key in the copy, if the key is kept.
fn new_name<'a>(spec: &'a RuleSpec, key: &'a str) -> Option<&'a str> {
    let Data {
        include,
        exclude,
        rename,
    } = &spec.transform.data;
    let renamed = || {
        rename
            .iter()
            .find(|(old, _)| *old == key)
            .map_or(key, |(_, new)| new)
    };
    kept(include.as_ref(), exclude, key).then(renamed)
}

/// Returns the copy of a source, without Mimeo's labels and annotations.
fn transformed(
    spec: &RuleSpec,
    source: &Content,
    place: &Place<'_>,
    coverage: &mut Coverage,
) -> Result<Content, Withheld> {
    let mut copy = Content::new();
    let transform = &spec.transform;
    let source = &filled(spec, source, place)?;
    if place.source.res == Res::Secret {
        copy.insert("type".to_owned(), type_of(spec, source));
    }
    keys(
        &mut copy,
        "label/",
        &transform.labels,
        source,
        place,
        coverage,
    )?;
    keys(
        &mut copy,
        "ann/",
        &transform.annotations,
        source,
        place,
        coverage,
    )?;
    for (path, value) in source {
        if path.starts_with("spec/") || path == "immutable" {
            copy.insert(path.clone(), value.clone());
        }
        for part in ["data/", "binaryData/"] {
            let Some(key) = path.strip_prefix(part) else {
                continue;
            };
            if let Some(name) = new_name(spec, key) {
                copy.insert(format!("{part}{name}"), value.clone());
            }
        }
    }
    patch::patched(&transform.patch, place.source.res, source, copy, place)
}

/// Returns the copy of a source, with Mimeo's labels and annotations.
pub fn copy(
    rule: &Key,
    spec: &RuleSpec,
    source: &Content,
    place: &Place<'_>,
    cluster: &str,
    coverage: &mut Coverage,
) -> Result<Content, Withheld> {
    match uncopied(spec, place.source, source) {
        Ok(None) => {}
        Ok(Some(why)) => {
            if why == Withheld::Unfit && !spec.transform.patch.is_empty() {
                coverage.other("can't be patched");
            }
            return Err(why);
        }
        Err(silence) => return Err(Withheld::Untold(silence)),
    }
    let mut copy = match transformed(spec, source, place, coverage) {
        Err(Withheld::Unfit) => {
            return Err(Withheld::Untold("a test of what differs by namespace"));
        }
        other => other?,
    };
    if !spec.transform.patch.is_empty() {
        coverage.other("patched");
    }
    let mut mark = |path: &str, value: &str| drop(copy.insert(path.to_owned(), value.to_owned()));
    mark("label/app.kubernetes.io/managed-by", "mimeo");
    let Key {
        namespace: home,
        name,
        ..
    } = rule;
    if rule.res == Res::Rule {
        mark("label/mimeo.dev/cluster-replication", name);
        mark("ann/mimeo.dev/rule", &format!("ClusterReplication/{name}"));
    } else {
        mark("label/mimeo.dev/replication", &format!("{home}.{name}"));
        mark("ann/mimeo.dev/rule", &format!("Replication/{home}/{name}"));
    }
    mark("ann/mimeo.dev/source", &origin(place.source));
    mark("ann/mimeo.dev/cluster", cluster);
    mark("ann/mimeo.dev/checksum", OPAQUE);
    if spec.denies() {
        mark("label/mimeo.dev/drift", "deny");
    }
    if spec.strategy == Strategy::Replace {
        mark("ann/mimeo.dev/strategy", OPAQUE);
    }
    if let Some(retention) = retention_mark(spec) {
        mark("ann/mimeo.dev/retention", &retention);
    }
    Ok(copy)
}

/// Returns a copy's reference to its source.
pub fn origin(
    Key {
        res,
        namespace,
        name,
    }: &Key,
) -> String {
    if namespace.is_empty() {
        format!("inline/{}/{name}", res.gvk())
    } else {
        format!("{}/{namespace}/{name}", res.gvk())
    }
}

/// The annotation for a retention policy that isn't Delete everywhere. Only Mimeo defines its text.
/// Here it states the meaning.
pub fn retention_mark(spec: &RuleSpec) -> Option<String> {
    let keep = Keep::Retain;
    let all = Retention {
        rule_deleted: keep,
        unmatched: keep,
        source_deleted: keep,
    };
    let retention = if spec.strategy == Strategy::CreateOnce {
        all
    } else {
        spec.retention
    };
    (retention != Retention::default()).then(|| format!("{retention:?}"))
}
