//! The statements of the documents, as tables. In each table exactly one row applies to any case. A
//! row that no world reaches fails the test.

mod coverage;

pub use self::coverage::{Coverage, may_patch};
use super::spec::{
    Keep::{self, Delete, Retain},
    Policy::{self, Adopt, Overwrite, Report},
    Strategy::{self, Apply, CreateOnce, Replace},
};

/// One condition of a row: the case has one of these values. An empty list allows any value.
type In<T> = &'static [T];

fn holds<T: PartialEq>(these: In<T>, this: &T) -> bool {
    these.is_empty() || these.contains(this)
}

const YES: In<bool> = &[true];
const NO: In<bool> = &[false];

// ---- which namespaces ----

/// How a target's selection finds a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    No,
    Exact,
    Glob,
    Pattern,
    Selector,
}
use Way::{Exact, Glob, Pattern, Selector};

/// The selection of the target · one of the three system namespaces · excluded · whether the
/// namespace is selected.
#[derive(Debug)]
pub struct Selection(In<Way>, In<bool>, In<bool>, bool);

pub const SELECTION: [Selection; 13] = [
    Selection(&[Way::No], &[], &[], false),
    // An excluded namespace is out, even if another condition selects it.
    Selection(&[Exact], NO, YES, false),
    Selection(&[Exact], YES, YES, false),
    Selection(&[Glob], &[], YES, false),
    Selection(&[Pattern], &[], YES, false),
    Selection(&[Selector], &[], YES, false),
    // System namespaces only by their exact names.
    Selection(&[Exact], NO, NO, true),
    Selection(&[Exact], YES, NO, true),
    Selection(&[Glob], NO, NO, true),
    Selection(&[Glob], YES, NO, false),
    Selection(&[Pattern], NO, NO, true),
    Selection(&[Selector], NO, NO, true),
    Selection(&[Pattern, Selector], YES, NO, false),
];

// ---- access by grants ----

/// How a grant names an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Any,
    Exactly,
    ByGlob,
    Not,
    /// By names or globs, where a selector asks.
    Limited,
}

/// Whether the grant is for this access, read or write · how it finds the rule's namespace ·
/// whether it covers the object's kind · how it names the object · whether the rule has the access.
/// A selector asks for objects of any name.
#[derive(Debug)]
pub struct Consent(In<bool>, In<Way>, In<bool>, In<Named>, bool);

pub const CONSENT: [Consent; 9] = [
    Consent(NO, &[], &[], &[], false),
    Consent(YES, &[Way::No], &[], &[], false),
    Consent(YES, &[Exact, Glob, Pattern, Selector], NO, &[], false),
    Consent(
        YES,
        &[Exact, Glob, Pattern, Selector],
        YES,
        &[Named::Not],
        false,
    ),
    // Even a limited finding would reveal to the owner of the copies which objects exist.
    Consent(
        YES,
        &[Exact, Glob, Pattern, Selector],
        YES,
        &[Named::Limited],
        false,
    ),
    Consent(
        YES,
        &[Exact],
        YES,
        &[Named::Any, Named::Exactly, Named::ByGlob],
        true,
    ),
    Consent(
        YES,
        &[Glob],
        YES,
        &[Named::Any, Named::Exactly, Named::ByGlob],
        true,
    ),
    Consent(
        YES,
        &[Pattern],
        YES,
        &[Named::Any, Named::Exactly, Named::ByGlob],
        true,
    ),
    Consent(
        YES,
        &[Selector],
        YES,
        &[Named::Any, Named::Exactly, Named::ByGlob],
        true,
    ),
];

/// The rule that wants the place of another rule's source is a `Replication` · the other rule is
/// one · the other rule may read the source · whether the source is left alone.
#[derive(Debug)]
pub struct LeftAlone(In<bool>, In<bool>, In<bool>, bool);

pub const LEFT_ALONE: [LeftAlone; 4] = [
    LeftAlone(&[], NO, &[], true),
    // Otherwise a tenant could keep a `ClusterReplication`'s copy away by naming its place.
    LeftAlone(NO, YES, &[], false),
    LeftAlone(YES, YES, YES, true),
    // Otherwise a tenant could do so with any other tenant's copy.
    LeftAlone(YES, YES, NO, false),
];

// ---- the objects that a selector finds ----

/// Whether the object has the labels · is a copy, by its label or its entry in `managedFields` ·
/// has a type that belongs to its namespace · is among the first that a rule may have · whether it
/// is a source.
#[derive(Debug)]
pub struct Member(In<bool>, In<bool>, In<bool>, In<bool>, bool);

pub const MEMBER: [Member; 5] = [
    Member(NO, &[], &[], &[], false),
    Member(YES, YES, &[], &[], false),
    Member(YES, NO, YES, &[], false),
    Member(YES, NO, NO, YES, true),
    Member(YES, NO, NO, NO, false),
];

// ---- changes of a copy by other clients ----

/// The effect of another client's request on a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    Delete,
    /// It changes a part that Mimeo keeps up to date, including Mimeo's labels and annotations and
    /// its entry in `managedFields`.
    Take,
    /// It changes any other part, or only the owners of fields.
    Add,
    Nothing,
}

/// The rule has `driftPolicy: Deny` · is active · wants the copy, and neither the copy nor its
/// namespace is being deleted · the namespace is one of the cluster's own · whether the rule denies
/// changes.
#[derive(Debug)]
pub struct Minded(In<bool>, In<bool>, In<bool>, In<bool>, bool);

pub const MINDED: [Minded; 5] = [
    Minded(NO, &[], &[], &[], false),
    // Suspended, for instance.
    Minded(YES, NO, &[], &[], false),
    // Otherwise the namespace could not be deleted, nor could finalizers be removed.
    Minded(YES, YES, NO, &[], false),
    Minded(YES, YES, YES, YES, false),
    Minded(YES, YES, YES, NO, true),
];

/// The effect of the request · whether the rule denies changes · whether the request is refused.
#[derive(Debug)]
pub struct Refused(In<Deal>, In<bool>, bool);

pub const REFUSED: [Refused; 5] = [
    Refused(&[], NO, false),
    Refused(&[Deal::Delete], YES, true),
    Refused(&[Deal::Take], YES, true),
    Refused(&[Deal::Add], YES, true),
    Refused(&[Deal::Nothing], YES, false),
];

// ---- the parts that a patch may change ----

/// The part of an object that a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Identity,
    /// The type, and `stringData`.
    Type,
    /// A label or an annotation of Mimeo's.
    Mark,
    /// Another label or annotation.
    Note,
    /// Anything else of the metadata.
    Metadata,
    Data,
    Other,
}

/// The part to be patched · whether there are Secrets among the copies · whether the patch may
/// change it.
#[derive(Debug)]
pub struct Patched(In<Part>, In<bool>, bool);

pub const PATCHED: [Patched; 7] = [
    Patched(&[Part::Identity], &[], false),
    Patched(&[Part::Metadata], &[], false),
    Patched(&[Part::Mark], &[], false),
    Patched(&[Part::Type], YES, false),
    // For another kind, `type` is a field like any other.
    Patched(&[Part::Type], NO, true),
    Patched(&[Part::Note], &[], true),
    Patched(&[Part::Data, Part::Other], &[], true),
];

// ---- changes that no metadata shows ----

/// A copy whose content was changed, with its former `managedFields` restored: whether a process
/// watched the change · whether its rule verifies copies on a period · whether the copy is to be
/// written anyway · whether it is restored.
#[derive(Debug)]
pub struct Unseen(In<bool>, In<bool>, In<bool>, bool);

pub const UNSEEN: [Unseen; 5] = [
    // The watch shows that the copy was written.
    Unseen(YES, NO, &[], true),
    Unseen(YES, YES, &[], true),
    Unseen(NO, YES, &[], true),
    Unseen(NO, NO, YES, true),
    Unseen(NO, NO, NO, false),
];

// ---- a cell that a rule wants ----

/// The content of the cell before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// A copy of this rule.
    Own,
    /// A copy of another rule, or of a former rule with the same name.
    Others,
    /// Not Mimeo's, with the content that the copy has.
    Same,
    /// Not Mimeo's, with another content, but with the mark that a replicator leaves on copies.
    Marked,
    /// Not Mimeo's, and none of these cases.
    Foreign,
    /// Not Mimeo's, and named by a rule as its source.
    Source,
    /// With a deletionTimestamp.
    Deleting,
}
use Found::{Deleting, Foreign, Marked, Nothing, Others, Own, Same, Source};

/// The result for the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It becomes the copy.
    Write,
    /// It stays as it is, and that is a conflict.
    Conflict,
    /// It stays as it is, and counts as created. That is no failure.
    Created,
    /// The documents don't say how it counts.
    Silent,
}
use Then::{Conflict, Created, Write};

/// Strategy · recorded as created once · the content of the cell · conflictPolicy · the result.
#[derive(Debug)]
pub struct Cell(In<Strategy>, In<bool>, In<Found>, In<Policy>, Then);

pub const CELL: [Cell; 29] = [
    Cell(&[Apply], &[], &[Nothing], &[], Write),
    Cell(&[Replace], &[], &[Nothing], &[], Write),
    Cell(&[Apply], &[], &[Own], &[], Write),
    Cell(&[Replace], &[], &[Own], &[], Write),
    // A copy that another rule no longer wants is taken over in place.
    Cell(&[Apply, Replace], &[], &[Others], &[], Write),
    Cell(&[Apply, Replace], &[], &[Deleting], &[], Conflict),
    // An object that any rule names as its source is always left alone.
    Cell(
        &[Apply, Replace],
        &[],
        &[Source],
        &[Report, Adopt],
        Conflict,
    ),
    Cell(&[Apply, Replace], &[], &[Source], &[Overwrite], Conflict),
    Cell(&[Apply, Replace], &[], &[Same], &[Report], Conflict),
    Cell(&[Apply, Replace], &[], &[Marked], &[Report], Conflict),
    Cell(&[Apply, Replace], &[], &[Foreign], &[Report], Conflict),
    Cell(&[Apply, Replace], &[], &[Same], &[Adopt], Write),
    Cell(&[Apply, Replace], &[], &[Marked], &[Adopt], Write),
    Cell(&[Apply, Replace], &[], &[Foreign], &[Adopt], Conflict),
    Cell(&[Apply, Replace], &[], &[Same], &[Overwrite], Write),
    Cell(&[Apply, Replace], &[], &[Marked], &[Overwrite], Write),
    Cell(&[Apply, Replace], &[], &[Foreign], &[Overwrite], Write),
    // The copy is never updated, restored or deleted after it was created.
    Cell(&[CreateOnce], YES, &[Nothing], &[], Created),
    Cell(&[CreateOnce], YES, &[Own], &[], Created),
    Cell(
        &[CreateOnce],
        YES,
        &[Others, Same, Marked, Foreign, Source, Deleting],
        &[],
        Created,
    ),
    Cell(&[CreateOnce], NO, &[Nothing], &[], Write),
    // An existing object counts as created, unless conflictPolicy is Overwrite.
    Cell(&[CreateOnce], NO, &[Own], &[], Created),
    Cell(&[CreateOnce], NO, &[Others], &[], Created),
    Cell(
        &[CreateOnce],
        NO,
        &[Same, Marked],
        &[Report, Adopt],
        Created,
    ),
    Cell(&[CreateOnce], NO, &[Foreign], &[Report, Adopt], Created),
    Cell(&[CreateOnce], NO, &[Source], &[Report, Adopt], Created),
    Cell(
        &[CreateOnce],
        NO,
        &[Same, Marked, Foreign],
        &[Overwrite],
        Write,
    ),
    Cell(&[CreateOnce], NO, &[Source], &[Overwrite], Then::Silent),
    Cell(&[CreateOnce], NO, &[Deleting], &[], Then::Silent),
];

/// Cases without a table: why a rule gets a cell that others want, too; why no copy can be made;
/// and the statements about a rule.
pub const OTHERS: [&str; 40] = [
    "won by the platform",
    "passed on to a tenant",
    "kept from a tenant by a rule that rests",
    "kept by a rule that is refused",
    "granted no more",
    "won by mark",
    "won by age",
    "won by name",
    "a source's own cell",
    "a chain of rules",
    "named by a rule of a higher rank",
    "what stands in the rule",
    "selected no more",
    "a selector finds nothing",
    "more than a rule may have",
    "patched",
    "can't be patched",
    "made into what is no copy",
    "applied anew for a variable in a list",
    "a terminating namespace",
    "suspended",
    "plan told",
    "plan left open",
    "lifted as planned",
    "source missing",
    "source refused",
    "variable unset in content",
    "variable unset in name",
    "rule refused",
    "replaced for its type",
    "replaced, being immutable",
    "not adopted for its type",
    "not adopted, being immutable",
    "waits for a finalizer",
    "left by a former rule of the name",
    "goes though its label is gone",
    "restart",
    "taken back by its uid",
    "taken back by its content",
    "not taken back",
];

// ---- a copy that is no longer wanted ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    RuleDeleted,
    /// Its namespace is no longer selected.
    Unmatched,
    /// Its namespace is still selected, but the rule wants another name or another source there,
    /// and has that copy.
    Superseded,
    SourceDeleted,
}
use Why::{RuleDeleted, SourceDeleted, Superseded, Unmatched};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Goes,
    Stays,
    Silent,
}
use End::{Goes, Stays};

/// The cause · suspended · created once · named by a rule as its source · the policy for this cause
/// · the result.
#[derive(Debug)]
pub struct Unwanted(In<Why>, In<bool>, In<bool>, In<bool>, In<Keep>, End);

pub const UNWANTED: [Unwanted; 15] = [
    Unwanted(&[RuleDeleted], NO, NO, NO, &[Delete], Goes),
    Unwanted(&[RuleDeleted], NO, NO, NO, &[Retain], Stays),
    Unwanted(&[Unmatched], NO, NO, NO, &[Delete], Goes),
    Unwanted(&[Unmatched], NO, NO, NO, &[Retain], Stays),
    // Along a chain, too.
    Unwanted(&[SourceDeleted], NO, NO, NO, &[Delete], Goes),
    Unwanted(&[SourceDeleted], NO, NO, YES, &[Delete], Goes),
    Unwanted(&[SourceDeleted], NO, NO, &[], &[Retain], Stays),
    Unwanted(&[Superseded], NO, NO, NO, &[Delete], Goes),
    Unwanted(&[Superseded], NO, NO, NO, &[Retain], End::Silent),
    // CreateOnce always retains.
    Unwanted(&[RuleDeleted], NO, YES, &[], &[], Stays),
    Unwanted(&[Unmatched, Superseded], NO, YES, &[], &[], Stays),
    Unwanted(&[SourceDeleted], NO, YES, &[], &[], Stays),
    // A source is not deleted because it was once a copy.
    Unwanted(&[RuleDeleted], NO, NO, YES, &[], Stays),
    Unwanted(&[Unmatched, Superseded], NO, NO, YES, &[], Stays),
    // No deletes.
    Unwanted(&[], YES, &[], &[], &[], Stays),
];

// ---- the plan for a cell ----

/// The effect of the end of `suspend` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    Create,
    Update,
    Delete,
    Conflict,
}

pub const PLANNED: [Planned; 4] = [
    Planned::Create,
    Planned::Update,
    Planned::Delete,
    Planned::Conflict,
];

// ---- a field of a copy that is applied ----

/// The value of the field, compared with the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    Nothing,
    Equal,
    Other,
    /// The copy does not have the field.
    Unwanted,
}

/// The owners of the field afterwards, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The copy's value, by Mimeo alone.
    Mine,
    /// The copy's value, owned by Mimeo and by its former owners.
    Shared,
    /// The former value, owned by the others.
    Theirs,
    Gone,
}

/// Whether fields of other owners stay in the copy as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// With `strategy: Apply`.
    Stays,
    /// With `strategy: Replace`, or because the owner of the field is no longer known.
    Goes,
}

/// The value · owned by Mimeo · owned by others · whether others' fields stay · the result.
#[derive(Debug)]
pub struct Field(In<Has>, In<bool>, In<bool>, In<Rest>, Held);

pub const FIELD: [Field; 11] = [
    Field(&[Has::Nothing], &[], &[], &[], Held::Mine),
    Field(&[Has::Equal], YES, NO, &[], Held::Mine),
    Field(&[Has::Equal], YES, YES, &[], Held::Shared),
    Field(&[Has::Equal], NO, &[], &[], Held::Shared),
    Field(&[Has::Other], YES, NO, &[], Held::Mine),
    Field(&[Has::Other], YES, YES, &[], Held::Mine),
    Field(&[Has::Other], NO, &[], &[], Held::Mine),
    Field(&[Has::Unwanted], YES, NO, &[], Held::Gone),
    // Also if another client became an owner by writing an equal value.
    Field(&[Has::Unwanted], YES, YES, &[], Held::Gone),
    Field(&[Has::Unwanted], NO, &[], &[Rest::Stays], Held::Theirs),
    Field(&[Has::Unwanted], NO, &[], &[Rest::Goes], Held::Gone),
];

// ---- the labels and annotations that copies get from their source ----

/// Keys of labels and annotations, some of them used by tools to identify their objects. The flag
/// says whether copies get them from the source.
pub const CARRIED: [(&str, bool); 20] = [
    ("app", true),
    ("example.com/owner", true),
    ("app.kubernetes.io/name", true),
    ("note", true),
    ("app.kubernetes.io/managed-by", false),
    ("kubectl.kubernetes.io/last-applied-configuration", false),
    ("meta.helm.sh/release-name", false),
    ("helm.sh/chart", false),
    ("argocd.argoproj.io/instance", false),
    ("argocd.argoproj.io/tracking-id", false),
    ("kustomize.toolkit.fluxcd.io/name", false),
    ("helm.toolkit.fluxcd.io/namespace", false),
    ("reflector.v1.k8s.emberstack.com/reflection-allowed", false),
    ("replicator.v1.mittwald.de/replicate-to", false),
    ("kubed.appscode.com/sync", false),
    ("clustersecret.io/created-by", false),
    ("generate.kyverno.io/policy-name", false),
    ("mimeo.dev/rule", false),
    ("mimeo.dev/cluster-replication", false),
    ("mimeo.dev/anything", false),
];

/// Labels or annotations of foreign objects. The flag says whether only replicators set them, and
/// only on copies.
pub const COPY_MARKS: [(&str, bool); 9] = [
    ("generate.kyverno.io/policy-name", true),
    ("kubed.appscode.com/origin", true),
    ("reflector.v1.k8s.emberstack.com/reflected-version", true),
    ("replicator.v1.mittwald.de/replicated-from-version", true),
    ("clustersecret.io/created-by", true),
    ("kubed.appscode.com/sync", false),
    ("reflector.v1.k8s.emberstack.com/reflection-allowed", false),
    ("replicator.v1.mittwald.de/replicate-to", false),
    ("note", false),
];
