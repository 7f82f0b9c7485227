//! The state of the cluster after everything has settled, computed from the meaning of the rules
//! and not from the engine's code.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use mimeo_model::{
    created::{CreatedCopies, CreatedCopy},
    meta::Uid,
    names,
};

use super::{
    process::CLUSTER,
    server::{COPIED, Entry, Key, Object, Res, Server},
    spec::{Clash, Hold, PICK, RuleSpec, SOURCES, To, carried, source_name},
};

/// The rule that wants a copy, and its source.
#[derive(Clone, Debug)]
pub struct Want {
    pub rule: String,
    /// The uid of the rule.
    pub uid: String,
    pub spec: Rc<RuleSpec>,
    pub source: usize,
    /// The value of the copy's label `tier`. An error means that the namespace lacks the label from
    /// which the value is taken.
    pub tier: Result<Option<String>, ()>,
    /// True if other rules want the copy, too.
    pub contested: bool,
    /// True if the object is the copy of a refused rule. The wishes of that rule are unknown, and
    /// it keeps its copies.
    pub kept: bool,
}

/// The facts of a history that the server does not hold.
#[derive(Debug, Default)]
pub struct Facts {
    /// True if there are webhook replicas.
    pub replicas: bool,
    /// Rules that were deleted with their CRD and have not been created again.
    pub lost: BTreeSet<String>,
    /// Lost rules that the present reconciler may never have seen. It then knows only the ages of
    /// their copies.
    pub unseen: BTreeSet<String>,
    /// When the CRD of rules was first installed again, in the clock's seconds.
    pub crd_again: Option<u64>,
    /// True if the CRD of rules was ever installed again. Then the loss of a rule may not count as
    /// deliberate.
    pub crd_changed: bool,
    /// For each lost source, the uid of its namespace.
    pub homes: BTreeMap<usize, String>,
    /// True if so many copies were lost at once that Mimeo may hold deletions.
    pub masses: bool,
    /// Copies that a request of a former process deleted.
    pub deleted_late: BTreeSet<Key>,
    /// Rules with selectors that the reconciler had not listed when the history ended.
    pub unlisted: BTreeSet<String>,
}

impl Facts {
    /// True if the copy of a lost rule was written after the CRD was installed again. A reconciler
    /// that never saw the rule takes it for a rule of the new CRD.
    fn is_late(&self, copy: &Object) -> bool {
        let ours = |entry: &&Entry| entry.apply && entry.manager == names::MANAGER;
        let written = copy.entries.iter().find(ours).map(|entry| entry.time);
        self.crd_again
            .is_some_and(|again| written.max(Some(copy.created)) > Some(again))
    }
}

/// Returns the copies that a rule wants in a namespace, in the rule's order.
pub fn cells_of(
    spec: &RuleSpec,
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> Vec<(Key, usize)> {
    let mut cells = Vec::new();
    let wants = |to: &&To| {
        !spec.invalid && to.matches(namespace, labels) && !spec.excludes(namespace, labels)
    };
    for to in spec.targets.iter().filter(wants) {
        for source in &spec.sources {
            let (res, home, name) = SOURCES[*source];
            let copy = to.copy_name(*source);
            let own = home == namespace && name == copy;
            if !own {
                cells.push((Key::new(res, namespace, &copy), *source));
            }
        }
    }
    cells
}

/// Returns the name in the rule annotation `ClusterReplication/<name>`.
pub fn rule_of(object: &Object) -> Option<&str> {
    object
        .annotation(names::RULE)?
        .strip_prefix("ClusterReplication/")
}

/// Returns the wanted copies of a namespace with their winners. Also returns the number of copies
/// that each rule lost to another.
pub fn wanted(
    before: &Server,
    server: &Server,
    namespace: &Object,
    facts: &Facts,
) -> (BTreeMap<Key, Want>, BTreeMap<String, usize>) {
    let mut claims: BTreeMap<Key, BTreeMap<String, Want>> = BTreeMap::new();
    for rule in server.of(Res::Rule) {
        let spec = rule.spec.as_ref().expect("a rule has a spec");
        for (key, source) in cells_of(spec, &namespace.key.name, &namespace.labels()) {
            // A source that the selector does not find is not a source.
            if spec.picks && source_for(server, spec, source).is_none() {
                continue;
            }
            let tier = spec.tier_in(&namespace.labels());
            let want = Want {
                rule: rule.key.name.clone(),
                uid: rule.uid.clone(),
                spec: spec.clone(),
                source,
                tier,
                contested: false,
                kept: false,
            };
            claims
                .entry(key)
                .or_default()
                .entry(rule.key.name.clone())
                .or_insert(want);
        }
    }
    let mut lost: BTreeMap<String, usize> = BTreeMap::new();
    let mut wants = BTreeMap::new();
    for (key, claims) in claims {
        let copy = before.get(&key).or_else(|| server.get(&key));
        let marked = copy
            .filter(|copy| copy.ours() && copy.labelled())
            .and_then(|copy| rule_of(copy));
        let rank = |name: &str| {
            let created = server
                .get(&Key::new(Res::Rule, "", name))
                .map(|rule| rule.created);
            (marked != Some(name), created, name.to_owned())
        };
        let mut winner = claims
            .keys()
            .min_by_key(|name| rank(name))
            .expect("no claim without a rule")
            .clone();
        // A rule takes the copy, and then has it, while the selectors of a rule that comes first are
        // not listed. Only the rule that the copy named is waited for.
        if facts.unlisted.contains(&winner) && marked != Some(&*winner) {
            let listed = claims.keys().filter(|name| !facts.unlisted.contains(*name));
            let next = listed.min_by_key(|name| rank(name));
            let taken = server.get(&key).filter(|copy| copy.ours());
            let taken = taken.and_then(|copy| rule_of(copy));
            winner = next
                .filter(|next| taken == Some(next))
                .unwrap_or(&winner)
                .clone();
        }
        for loser in claims.keys().filter(|name| **name != winner) {
            *lost.entry(loser.clone()).or_default() += 1;
        }
        let keeper =
            marked.and_then(|name| server.get(&Key::new(Res::Rule, "", name))?.spec.as_ref());
        let kept = keeper.is_some_and(|keeper| keeper.invalid);
        // Without Mimeo's label or entry, only a process that has seen the copy before, or reads
        // it, knows its owner. It may be a copy that another rule keeps from this one.
        let hidden = copy.filter(|copy| {
            if copy.ours() {
                !copy.labelled()
            } else {
                stripped(copy)
            }
        });
        let hidden = hidden.and_then(|copy| rule_of(copy));
        let hidden = hidden.is_some_and(|name| {
            name != winner && server.get(&Key::new(Res::Rule, "", name)).is_some()
        });
        wants.insert(
            key,
            Want {
                contested: claims.len() > 1 || hidden,
                kept,
                ..claims[&winner].clone()
            },
        );
    }
    (wants, lost)
}

/// Returns the required labels, annotations and fields of a copy.
pub fn copy_of(source: &Object, want: &Want) -> BTreeMap<String, String> {
    let mut fields: BTreeMap<String, String> = source
        .fields
        .iter()
        .filter(|(path, _)| carried(path))
        .map(|(path, value)| (path.clone(), value.clone()))
        .collect();
    let mut set = |path: String, value: &str| drop(fields.insert(path, value.to_owned()));
    if want.spec.finalizer {
        set("fin/example.com/held".into(), "");
    }
    if let Ok(Some(tier)) = &want.tier {
        set("label/tier".into(), tier);
    }
    set(
        format!("label/{}", names::MANAGED_BY),
        names::MANAGED_BY_VALUE,
    );
    set(format!("label/{}", names::CLUSTER_REPLICATION), &want.rule);
    set(
        format!("ann/{}", names::RULE),
        &format!("ClusterReplication/{}", want.rule),
    );
    set(format!("ann/{}", names::SOURCE), &source_name(want.source));
    set(format!("ann/{}", names::CLUSTER), CLUSTER);
    if want.spec.exclusive {
        set(format!("ann/{}", names::STRATEGY), names::STRATEGY_REPLACE);
    }
    if let Some(retention) = want.spec.retention(&want.uid) {
        set(format!("ann/{}", names::RETENTION), &retention);
    }
    fields
}

/// Checks that an object is the wanted copy: every field exists, and Mimeo's entry owns exactly
/// these.
fn right(object: &Object, want: &Want, source: &Object) -> Result<(), String> {
    let expected = copy_of(source, want);
    for (path, value) in &expected {
        if object.fields.get(path) != Some(value) {
            return Err(format!(
                "{path} is {:?}, not {value:?}",
                object.fields.get(path)
            ));
        }
    }
    let checksum = format!("ann/{}", names::CHECKSUM);
    let entry = object
        .entries
        .iter()
        .find(|entry| entry.apply && entry.manager == names::MANAGER)
        .ok_or("not ours")?;
    let owned: BTreeSet<&String> = entry
        .fields
        .iter()
        .filter(|path| **path != checksum)
        .collect();
    if owned != expected.keys().collect() {
        return Err(format!("our entry owns {owned:?}"));
    }
    for path in object
        .fields
        .keys()
        .filter(|path| **path != checksum && !expected.contains_key(*path))
    {
        // A client that becomes an owner of a field just before its removal keeps it.
        let mut others = object
            .entries
            .iter()
            .filter(|entry| entry.fields.contains(path));
        if want.spec.exclusive && !path.starts_with("fin/") {
            return Err(format!("{path} is others'"));
        }
        // `CreateOnce` writes once over an object that another client left without an owner. A
        // second write would remove its other fields.
        let once = |entry: &Entry| want.spec.once && entry.manager == "before-first-apply";
        if path == "ann/note" && !others.any(|entry| entry.manager == "tool" || once(entry)) {
            return Err("has kept what its source has lost".into());
        }
    }
    Ok(())
}

/// True if an object has all labels and annotations of a copy, but no field of it has an owner.
pub fn stripped(object: &Object) -> bool {
    let marks = [names::RULE, names::CHECKSUM, names::CLUSTER];
    object.entries.is_empty()
        && object.labelled()
        && marks.iter().all(|mark| object.annotation(mark).is_some())
}

/// The state of one wanted copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Synced,
    Failed,
    /// Neither of them: the source is missing, or the rule is suspended.
    Open,
    /// The state depends on whether a process has read the object. The watch does not show which
    /// rule the object's annotation names.
    Unsure,
}

/// Returns a source, if it exists.
pub fn source_of(server: &Server, index: usize) -> Option<&Rc<Object>> {
    let (res, namespace, name) = SOURCES[index];
    server.get(&Key::new(res, namespace, name))
}

/// Returns a source for a rule. A rule with a selector finds the source only by its label.
pub fn source_for<'a>(server: &'a Server, spec: &RuleSpec, index: usize) -> Option<&'a Rc<Object>> {
    let label =
        |source: &&Rc<Object>| source.field(&format!("label/{PICK}")) == Some(&index.to_string());
    source_of(server, index)
        .filter(|source| !spec.picks || (label(source) && server.served(source.key.res)))
}

/// Returns the source that a copy names in its annotation.
fn origin_of(copy: &Object) -> Option<usize> {
    let named = copy.annotation(names::SOURCE)?;
    (0..SOURCES.len()).find(|index| *named == source_name(*index))
}

/// True if a copy's rule selects its sources and does not find the source of this copy, although it
/// selects objects of that kind in that namespace.
fn unselected(server: &Server, spec: &RuleSpec, copy: &Object) -> bool {
    let Some(origin) = origin_of(copy).filter(|_| spec.picks) else {
        return false;
    };
    let home = |index: usize| (SOURCES[index].0, SOURCES[index].1);
    let found = spec.sources.contains(&origin) && source_for(server, spec, origin).is_some();
    !found
        && spec
            .sources
            .iter()
            .any(|index| home(*index) == home(origin))
}

/// Checks a copy that is lost without a read that confirms it: it is gone, or its deletion is held.
fn lost(
    before: Option<&Rc<Object>>,
    ours: &Object,
    after: Option<&Rc<Object>>,
    facts: &Facts,
    why: &str,
) -> Result<(), String> {
    let held = facts.masses && same(before, after, why).is_ok();
    if held { Ok(()) } else { gone(ours, after, why) }
}

fn same(before: Option<&Rc<Object>>, after: Option<&Rc<Object>>, why: &str) -> Result<(), String> {
    match (before, after) {
        (None, None) => Ok(()),
        (Some(before), Some(after))
            if before.uid == after.uid && before.version == after.version =>
        {
            Ok(())
        }
        _ => Err(format!(
            "should have been left alone ({why}); before: {before:?}"
        )),
    }
}

fn gone(before: &Object, after: Option<&Rc<Object>>, why: &str) -> Result<(), String> {
    match after {
        None => Ok(()),
        Some(after) if after.deleting && before.under("fin/").next().is_some() => Ok(()),
        // A client may remove the label from a copy that no rule wants. Then no watch shows the
        // copy.
        Some(after) if !before.labelled() && after.version == before.version => Ok(()),
        Some(_) => Err(format!("should be gone ({why})")),
    }
}

/// The annotation of another replicator on its copies.
pub const COPY_MARK: &str = "ann/kubed.appscode.com/origin";

/// True if the rule's `conflictPolicy` lets Mimeo make a copy with these fields of a foreign
/// object.
pub fn yields(object: &Object, clash: Clash, copy: &BTreeMap<String, String>) -> bool {
    let content = |fields: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        let plain = |path: &str| {
            !["label/", "ann/", "fin/"]
                .iter()
                .any(|prefix| path.starts_with(prefix))
        };
        fields
            .iter()
            .filter(|(path, _)| plain(path))
            .map(|(path, value)| (path.clone(), value.clone()))
            .collect()
    };
    let marked = object.annotation(names::RULE).is_some() || object.field(COPY_MARK).is_some();
    !object.deleting
        && match clash {
            Clash::Report => false,
            Clash::Adopt => marked || content(&object.fields) == content(copy),
            Clash::Overwrite => true,
        }
}

fn becomes_ours(object: &Object, server: &Server, want: &Want) -> bool {
    let Some(source) = source_for(server, &want.spec, want.source) else {
        return false;
    };
    !want.spec.suspend
        && server.served(object.key.res)
        && yields(object, want.spec.clash, &copy_of(source, want))
}

/// Checks one wanted copy.
pub fn check_wanted(
    before: &Server,
    after: &Server,
    key: &Key,
    want: &Want,
    facts: &Facts,
) -> Result<State, String> {
    let (was, is) = (before.get(key), after.get(key));
    if want.contested && was.is_some_and(|was| !was.ours() && after.ever_ours.contains(&was.uid)) {
        return Ok(State::Unsure);
    }
    if want.spec.once
        && let Some(state) = check_seed(before, after, key, want, facts)?
    {
        return Ok(state);
    }
    let ours = was.filter(|was| was.ours());
    let unset = want.tier.is_err()
        && source_for(after, &want.spec, want.source).is_some()
        && after.served(key.res);
    if unset && !(want.contested && ours.is_some_and(|ours| !ours.labelled())) {
        return same(was, is, "a label that it takes is missing").map(|()| State::Failed);
    }
    if let Some(foreign) = was.filter(|was| !was.ours() && !becomes_ours(was, after, want)) {
        // A webhook replica sees copies only in the answers to its own writes, while their
        // namespace waits. If another client takes a copy from Mimeo meanwhile, the replica may
        // write it once more.
        let taken = after.ever_ours.contains(&foreign.uid) && facts.replicas;
        // A process restores the object if it has seen that it was Mimeo's own, or finds that it
        // has the content. Another process leaves it.
        let known = after.ever_ours.contains(&foreign.uid) && !want.spec.suspend;
        if let (true, Some(is), Some(source)) =
            (known, is, source_for(after, &want.spec, want.source))
            && same(was, Some(is), "").is_err()
            && right(is, want, source).is_ok()
        {
            return Ok(if want.contested {
                State::Unsure
            } else {
                State::Synced
            });
        }
        if taken && same(was, is, "").is_err() {
            return Ok(State::Unsure);
        }
        if known
            && source_for(after, &want.spec, want.source).is_none()
            && gone(foreign, is, "").is_ok()
        {
            return Ok(State::Open);
        }
        same(was, is, "not ours")?;
        let known = source_for(after, &want.spec, want.source).is_some()
            && !want.spec.suspend
            && after.served(key.res);
        return Ok(if known { State::Failed } else { State::Open });
    }
    if want.contested && ours.is_some_and(|ours| !ours.labelled()) {
        return Ok(State::Unsure);
    }
    if ours.is_some_and(|ours| ours.deleting) {
        let known = source_for(after, &want.spec, want.source).is_some() && after.served(key.res);
        return same(was, is, "being deleted")
            .map(|()| if known { State::Failed } else { State::Open });
    }
    if want.spec.suspend {
        return same(was, is, "suspended").map(|()| State::Open);
    }
    if want.kept {
        let known = source_for(after, &want.spec, want.source).is_some() && after.served(key.res);
        return same(was, is, "kept by a rule that is refused")
            .map(|()| if known { State::Failed } else { State::Open });
    }
    let Some(source) = source_for(after, &want.spec, want.source) else {
        let Some(ours) = ours else {
            return same(was, is, "no source").map(|()| State::Open);
        };
        let of_this = ours.annotation(names::SOURCE) == Some(&source_name(want.source));
        let home = after.namespace(SOURCES[want.source].1);
        if !of_this || want.spec.keep.source || !after.served(key.res) {
            return same(was, is, "its source is missing").map(|()| State::Open);
        }
        if left_by_former(ours, &want.uid) {
            return same(was, is, "left by a former rule of the name").map(|()| State::Open);
        }
        let then = facts.homes.get(&want.source);
        if home.is_none_or(|home| home.deleting || then.is_some_and(|then| *then != home.uid)) {
            return lost(was, ours, is, facts, "its source went with its namespace")
                .map(|()| State::Open);
        }
        return gone(ours, is, "its source was deleted").map(|()| State::Open);
    };
    if source.under("data/").any(|(_, value)| value == "bad") {
        // The server decides about the ownership of the fields before it refuses the content.
        let alike =
            |was: &Rc<Object>, is: &Rc<Object>| was.uid == is.uid && was.fields == is.fields;
        let alike = was.zip(is).is_some_and(|(was, is)| alike(was, is));
        return if alike {
            Ok(())
        } else {
            same(was, is, "refused by the server")
        }
        .map(|()| State::Failed);
    }
    if was.is_none() && after.full.contains(&key.namespace) {
        return same(was, is, "no quota").map(|()| State::Failed);
    }
    let Some(is) = is else {
        return Err("is missing".into());
    };
    right(is, want, source).map(|()| State::Synced)
}

/// True if a former rule of the name retained the copy, and the rule with this uid has not written
/// it.
fn left_by_former(copy: &Object, uid: &str) -> bool {
    let retained = copy
        .annotation(names::RETENTION)
        .filter(|retention| retention.contains("rule=Retain"));
    retained.is_some_and(|retention| !retention.contains(uid))
}

/// True if the namespace records that the rule has created this copy.
pub fn remembers(namespace: &Object, rule: &str, key: &Key) -> bool {
    let rule = format!("ClusterReplication/{rule}")
        .parse()
        .expect("a rule's name");
    let uid = Uid::parse(&namespace.uid).expect("a uid");
    let seed = CreatedCopy::new(uid, &rule, &key.res.gvk().group_kind(), &key.name);
    namespace
        .annotation(names::CREATED_ONCE)
        .is_some_and(|text| CreatedCopies::parse(text).entries.contains(&seed))
}

/// Checks a copy of a `CreateOnce` rule. Returns `None` if the copy is still to be created.
fn check_seed(
    before: &Server,
    after: &Server,
    key: &Key,
    want: &Want,
    facts: &Facts,
) -> Result<Option<State>, String> {
    let (was, is) = (before.get(key), after.get(key));
    let namespaces = [before, after].map(|server| server.namespace(&key.namespace));
    let [noted_before, noted_after] = namespaces
        .map(|namespace| namespace.is_some_and(|namespace| remembers(namespace, &want.rule, key)));
    if want.contested && was.is_some_and(|was| was.ours() && !was.labelled()) {
        return Ok(Some(State::Unsure));
    }
    if noted_before {
        return same(was, is, "created once").map(|()| Some(State::Synced));
    }
    if want.spec.suspend {
        return same(was, is, "suspended").map(|()| Some(State::Open));
    }
    let removed =
        namespaces[0].is_some_and(|home| after.meddled.contains(&(home.uid.clone(), key.clone())));
    let possible = source_for(after, &want.spec, want.source).is_some()
        && after.served(key.res)
        && want.tier.is_ok();
    match was {
        Some(object)
            if !object.ours()
                && after.ever_ours.contains(&object.uid)
                && same(was, is, "").is_ok() =>
        {
            Ok(Some(State::Unsure))
        }
        // Mimeo saw another rule's copy there while this rule was active. The foreign object came
        // later.
        Some(was) if !was.ours() && noted_after && same(Some(was), is, "").is_ok() => {
            Ok(Some(State::Synced))
        }
        Some(was) if !was.ours() && (was.deleting || want.spec.clash == Clash::Overwrite) => {
            Ok(None)
        }
        // A finalizer keeps a copy that Mimeo or another client deleted before the rule wanted it.
        // It does not count as created: the rule creates its own copy once the object is gone.
        Some(was) if was.ours() && was.deleting && !noted_after => Ok(None),
        // If it counts as created, the rule wanted it earlier, and Mimeo did not delete it.
        Some(was) if was.ours() && was.deleting && !removed => {
            Err("is remembered though Mimeo deleted it".into())
        }
        Some(object) => {
            same(Some(object), is, "there already")?;
            match noted_after {
                true => Ok(Some(State::Synced)),
                // No watch shows such an object, so no process reads it.
                false if !object.labelled() && !possible => Ok(Some(State::Unsure)),
                false => Err("isn't remembered".into()),
            }
        }
        // The copy was removed before it was recorded. A process that saw the removal remembers it.
        // Another process creates the copy once more.
        None if noted_after && is.is_none() && removed => Ok(Some(State::Synced)),
        // A former process deleted the copy before the rule wanted it. The request arrived after the
        // present process had seen the copy, which takes that for a removal by its owner.
        None if noted_after && is.is_none() && facts.deleted_late.contains(key) => {
            Ok(Some(State::Synced))
        }
        None => Ok(None),
    }
}

/// Checks a former copy that no rule wants.
pub fn check_unwanted(
    before: &Server,
    after: &Server,
    key: &Key,
    settled: &BTreeMap<Key, (Want, State)>,
    facts: &Facts,
) -> Result<(), String> {
    let (was, is) = (before.get(key), after.get(key));
    let Some(ours) = was.filter(|was| was.ours()) else {
        // A process that has seen Mimeo's own copy recognizes it without its entry.
        let known = was.filter(|was| after.ever_ours.contains(&was.uid));
        let went = known.is_some_and(|was| gone(was, is, "").is_ok());
        return if went {
            Ok(())
        } else {
            same(was, is, "not ours")
        };
    };
    if ours.deleting {
        return same(was, is, "being deleted");
    }
    if ours
        .annotation(names::CLUSTER)
        .is_some_and(|cluster| cluster != CLUSTER)
    {
        return same(was, is, "another cluster's");
    }
    let Some(name) = rule_of(ours) else {
        return same(was, is, "no rule's");
    };
    // An object seen while its rule had `CreateOnce` counts, whether or not it was recorded by
    // then.
    if [before, after].iter().any(|server| {
        server
            .namespace(&key.namespace)
            .is_some_and(|home| remembers(home, name, key))
    }) {
        return same(was, is, "created once");
    }
    let Some(rule) = after.get(&Key::new(Res::Rule, "", name)) else {
        if ours
            .annotation(names::RETENTION)
            .is_some_and(|retention| retention.contains("rule=Retain"))
        {
            return same(was, is, "retained");
        }
        if facts.unseen.contains(name) && facts.is_late(ours) {
            return Ok(());
        }
        if facts.lost.contains(name) {
            return same(was, is, "its rule went with the CRD");
        }
        return if facts.crd_changed {
            Ok(())
        } else {
            gone(ours, is, "its rule was deleted")
        };
    };
    let spec = rule.spec.as_ref().expect("a rule has a spec");
    if spec.suspend || spec.invalid {
        return same(was, is, "at rest or invalid");
    }
    if left_by_former(ours, &rule.uid) {
        return same(was, is, "left by a former rule of the name");
    }
    let labels = after
        .namespace(&key.namespace)
        .map(|namespace| namespace.labels())
        .unwrap_or_default();
    if spec.matches(&key.namespace, &labels) && unselected(after, spec, ours) {
        if spec.keep.source || !after.served(key.res) {
            return same(was, is, "its source isn't selected any more");
        }
        return lost(was, ours, is, facts, "its source isn't selected any more");
    }
    if spec.keep.unmatched {
        return same(was, is, "retained");
    }
    let makes = spec.targets.iter().any(|to| {
        let mut sources = spec
            .sources
            .iter()
            .filter(|source| !spec.picks || source_for(after, spec, **source).is_some());
        sources.any(|source| SOURCES[*source].0 == key.res && to.copy_name(*source) == key.name)
    });
    if makes || !spec.matches(&key.namespace, &labels) {
        return lost(was, ours, is, facts, "unmatched");
    }
    let here = settled
        .iter()
        .filter(|(other, (want, _))| other.namespace == key.namespace && want.rule == name);
    if here.clone().any(|(_, (_, state))| *state != State::Synced) {
        return Ok(());
    }
    // Another rule, or another source of the rule, has the copy that should replace this one.
    let taken = |to: &To, origin: usize| {
        let at = Key::new(SOURCES[origin].0, &key.namespace, &to.copy_name(origin));
        let has = |want: &Want| want.rule == name && want.source == origin;
        settled.get(&at).is_some_and(|(want, _)| !has(want))
    };
    let origin = origin_of(ours).filter(|origin| spec.sources.contains(origin));
    let mut targets = spec
        .targets
        .iter()
        .filter(|to| to.matches(&key.namespace, &labels));
    if origin.is_some_and(|origin| targets.any(|to| taken(to, origin))) {
        return same(was, is, "the copy in its place is another rule's");
    }
    gone(ours, is, "superseded")
}

/// For each rule: desired, synced, failed.
pub type Counts = BTreeMap<String, [i32; 3]>;

/// Checks everything. Returns the numbers for the status of each rule: desired, synced, failed.
///
/// `None`: everything is correct, but the owner of some copy depends on when a process read it, and
/// so do the numbers.
pub fn check(before: &Server, after: &Server, facts: &Facts) -> Result<Option<Counts>, String> {
    let mut counts: Counts = after
        .of(Res::Rule)
        .map(|rule| (rule.key.name.clone(), [0; 3]))
        .collect();
    let mut unsure = false;
    for namespace in after
        .of(Res::Namespace)
        .filter(|namespace| !namespace.deleting)
    {
        let (wants, lost) = wanted(before, after, namespace, facts);
        let winners = |wants: &BTreeMap<Key, Want>| {
            wants
                .values()
                .map(|want| want.rule.clone())
                .collect::<Vec<_>>()
        };
        unsure |= winners(&wants) != winners(&wanted(after, after, namespace, facts).0);
        for (rule, cells) in lost {
            let count = counts.entry(rule).or_default();
            let cells = i32::try_from(cells).expect("few");
            count[0] += cells;
            count[2] += cells;
        }
        let mut settled = BTreeMap::new();
        for (key, want) in wants {
            let state = check_wanted(before, after, &key, &want, facts)
                .map_err(|why| format!("{key} for {}: {why}", want.rule))?;
            settled.insert(key, (want, state));
        }
        for (want, state) in settled.values() {
            let count = counts.entry(want.rule.clone()).or_default();
            count[0] += 1;
            count[1] += i32::from(*state == State::Synced);
            count[2] += i32::from(*state == State::Failed);
            unsure |= *state == State::Unsure;
        }
        let within = |key: &&Key| key.namespace == namespace.key.name && COPIED.contains(&key.res);
        let keys: BTreeSet<&Key> = before
            .objects
            .keys()
            .chain(after.objects.keys())
            .filter(within)
            .collect();
        for key in keys.into_iter().filter(|key| !settled.contains_key(*key)) {
            check_unwanted(before, after, key, &settled, facts)
                .map_err(|why| format!("{key}: {why}"))?;
            // After a restart, no program has seen the missing rule.
            let exists = |rule| after.get(&Key::new(Res::Rule, "", rule)).is_some();
            unsure |= after.get(key).is_some_and(|copy| {
                facts.is_late(copy) && rule_of(copy).is_some_and(|rule| !exists(rule))
            });
        }
        check_mark(namespace, after, &settled)?;
    }
    for object in after
        .objects
        .values()
        .filter(|object| object.ours() && object.labelled() && COPIED.contains(&object.key.res))
    {
        if !after.noted().kinds.contains(&object.key.res.gvk()) {
            return Err(format!(
                "{} is there, its kind isn't in the kinds ConfigMap",
                object.key
            ));
        }
    }
    Ok((!unsure).then_some(counts))
}

/// The pending label stays only while a required copy cannot be written, or while the rules are
/// unknown.
fn check_mark(
    namespace: &Object,
    after: &Server,
    settled: &BTreeMap<Key, (Want, State)>,
) -> Result<(), String> {
    let marked = namespace
        .field(&format!("label/{}", names::PENDING_LABEL))
        .is_some();
    let hindered = settled.values().any(|(want, state)| {
        want.spec.hold == Hold::Required && !want.spec.suspend && *state != State::Synced
    });
    // The result of the selection is unknown.
    let unknown = after
        .of(Res::Rule)
        .filter_map(|rule| rule.spec.as_ref())
        .any(|spec| {
            spec.picks
                && spec.hold == Hold::Required
                && !(spec.suspend || spec.invalid)
                && spec.matches(&namespace.key.name, &namespace.labels())
                && spec
                    .sources
                    .iter()
                    .any(|source| !after.served(SOURCES[*source].0))
        });
    if marked && !hindered && !unknown && after.served(Res::Rule) {
        return Err(format!("namespace {} is still marked", namespace.key.name));
    }
    Ok(())
}
