//! The statements of the documents, as tables. In each table exactly one row applies to any case. A
//! row that no world reaches fails the test.

mod coverage;

pub use self::coverage::{Coverage, may_patch};
use super::spec::{
    Keep::{self, Delete, Retain},
    Policy::{self, Adopt, Overwrite, Report},
    Strategy::{self, Apply, CreateOnce, Replace},
};

/// One condition of a row: it is one of these. None: whatever it is.
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

/// How it is found · one of the three system namespaces · excluded · whether it is selected.
#[derive(Debug)]
pub struct Selection(In<Way>, In<bool>, In<bool>, bool);

pub const SELECTION: [Selection; 13] = [
    Selection(&[Way::No], &[], &[], false),
    // What is excluded is out, whatever else selects it.
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

// ---- who may ----

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

/// Whether the grant is for reading where the rule would read, and for writing where it would write
/// · how it finds the rule's namespace · whether it is about the object's kind · how it names the
/// object · whether the rule may. A selector asks for any.
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
    // Whatever it finds, who has the copies learns which there are.
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

/// The rule that finds a source of another rule's in its way is a namespace's own · the other one
/// is · the other one may read it · whether it is left alone as a source.
#[derive(Debug)]
pub struct LeftAlone(In<bool>, In<bool>, In<bool>, bool);

pub const LEFT_ALONE: [LeftAlone; 4] = [
    LeftAlone(&[], NO, &[], true),
    // Else a tenant could keep the platform's copy away by naming its place.
    LeftAlone(NO, YES, &[], false),
    LeftAlone(YES, YES, YES, true),
    // Else he could so do with anybody's.
    LeftAlone(YES, YES, NO, false),
];

// ---- what a selector finds ----

/// Whether it has the labels · is a copy, by its mark or its entry in `managedFields` · belongs to
/// its namespace, by its type · is among the first that a rule may have · whether it is a source.
#[derive(Debug)]
pub struct Member(In<bool>, In<bool>, In<bool>, In<bool>, bool);

pub const MEMBER: [Member; 5] = [
    Member(NO, &[], &[], &[], false),
    Member(YES, YES, &[], &[], false),
    Member(YES, NO, YES, &[], false),
    Member(YES, NO, NO, YES, true),
    Member(YES, NO, NO, NO, false),
];

// ---- who may change a copy ----

/// What a request of somebody else's would do to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deal {
    Delete,
    /// Change what Mimeo keeps in it, its marks and its entry in `managedFields` included.
    Take,
    /// Change anything else, or what of it is whose.
    Add,
    Nothing,
}

/// Its rule says that nobody else is to change it · acts · wants it, where neither it nor its
/// namespace is being deleted · the namespace is one of the cluster's own · whether the rule is
/// minded.
#[derive(Debug)]
pub struct Minded(In<bool>, In<bool>, In<bool>, In<bool>, bool);

pub const MINDED: [Minded; 5] = [
    Minded(NO, &[], &[], &[], false),
    // Suspended, for instance.
    Minded(YES, NO, &[], &[], false),
    // Else neither the namespace could go, nor the finalizers of what goes.
    Minded(YES, YES, NO, &[], false),
    Minded(YES, YES, YES, YES, false),
    Minded(YES, YES, YES, NO, true),
];

/// What it would do · whether the rule is minded · whether it is refused.
#[derive(Debug)]
pub struct Refused(In<Deal>, In<bool>, bool);

pub const REFUSED: [Refused; 5] = [
    Refused(&[], NO, false),
    Refused(&[Deal::Delete], YES, true),
    Refused(&[Deal::Take], YES, true),
    Refused(&[Deal::Add], YES, true),
    Refused(&[Deal::Nothing], YES, false),
];

// ---- what a patch may touch ----

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Identity,
    /// And `stringData`.
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

/// What is to be patched · whether there are Secrets among the copies · whether it may be.
#[derive(Debug)]
pub struct Patched(In<Part>, In<bool>, bool);

pub const PATCHED: [Patched; 7] = [
    Patched(&[Part::Identity], &[], false),
    Patched(&[Part::Metadata], &[], false),
    Patched(&[Part::Mark], &[], false),
    Patched(&[Part::Type], YES, false),
    // Another kind's type is a field like others.
    Patched(&[Part::Type], NO, true),
    Patched(&[Part::Note], &[], true),
    Patched(&[Part::Data, Part::Other], &[], true),
];

// ---- what nothing shows ----

/// A copy whose content was changed, and `managedFields` to what they were: whether that was done
/// while somebody watched · whether its rule has copies verified on a period · whether the copy is
/// to be written anyway · whether it is put right.
#[derive(Debug)]
pub struct Unseen(In<bool>, In<bool>, In<bool>, bool);

pub const UNSEEN: [Unseen; 5] = [
    // That somebody wrote to it is seen.
    Unseen(YES, NO, &[], true),
    Unseen(YES, YES, &[], true),
    Unseen(NO, YES, &[], true),
    Unseen(NO, NO, YES, true),
    Unseen(NO, NO, NO, false),
];

// ---- a cell that a rule wants ----

/// What is in the cell before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// A copy of this rule's.
    Own,
    /// A copy of another rule's, or of this one's former self.
    Others,
    /// Not Mimeo's, with the content that the copy has.
    Same,
    /// Not Mimeo's, but with the mark that a replicator leaves on copies, and another content.
    Marked,
    /// Not Mimeo's, and nothing of that.
    Foreign,
    /// Not Mimeo's, and named by a rule as its source.
    Source,
    /// With a deletionTimestamp.
    Deleting,
}
use Found::{Deleting, Foreign, Marked, Nothing, Others, Own, Same, Source};

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It becomes the copy.
    Write,
    /// It stays as it is, and that is a conflict.
    Conflict,
    /// It stays as it is, and that is all right: it counts as created.
    Created,
    /// The documents don't say how it is counted.
    Silent,
}
use Then::{Conflict, Created, Write};

/// Strategy · remembered as created once · what is there · conflictPolicy · what becomes of it.
#[derive(Debug)]
pub struct Cell(In<Strategy>, In<bool>, In<Found>, In<Policy>, Then);

pub const CELL: [Cell; 29] = [
    Cell(&[Apply], &[], &[Nothing], &[], Write),
    Cell(&[Replace], &[], &[Nothing], &[], Write),
    Cell(&[Apply], &[], &[Own], &[], Write),
    Cell(&[Replace], &[], &[Own], &[], Write),
    // What a rule no longer wants is taken over in place.
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
    // Never updated, restored or deleted after it was created.
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
    // What is there already counts as created, unless conflictPolicy is Overwrite.
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

/// By what a rule has a cell that others want, too; what keeps a copy from being made; and what is
/// said of a rule.
pub const OTHERS: [&str; 41] = [
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
    "patched to what is no base64",
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
    /// Its namespace is selected, but the rule wants another name or another source there, and has
    /// that.
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

/// Why · suspended · created once · named by a rule as its source · the policy for this · what
/// becomes of it.
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
    // Not deleted for having been a copy.
    Unwanted(&[RuleDeleted], NO, NO, YES, &[], Stays),
    Unwanted(&[Unmatched, Superseded], NO, NO, YES, &[], Stays),
    // No deletes.
    Unwanted(&[], YES, &[], &[], &[], Stays),
];

// ---- what a plan says of a cell ----

/// What lifting `suspend` does there.
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

/// What the field has, to what the copy is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    Nothing,
    Equal,
    Other,
    /// The copy isn't to have it.
    Unwanted,
}

/// Who owns the field afterwards, with which value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The copy's value, by Mimeo alone.
    Mine,
    /// The copy's value, by Mimeo and those who own it already.
    Shared,
    /// As it is, by the others.
    Theirs,
    Gone,
}

/// Whose fields others' are, in the copy as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// With `strategy: Apply`.
    Stays,
    /// With `strategy: Replace`, or because nobody can tell any more whose it is.
    Goes,
}

/// What it has · owned by Mimeo · owned by others · whether others' fields stay · what becomes of
/// it.
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
    // Also where somebody else came to own it by writing an equal value.
    Field(&[Has::Unwanted], YES, YES, &[], Held::Gone),
    Field(&[Has::Unwanted], NO, &[], &[Rest::Stays], Held::Theirs),
    Field(&[Has::Unwanted], NO, &[], &[Rest::Goes], Held::Gone),
];

// ---- what is carried ----

/// Keys of labels and annotations by which tools know their objects, and others; whether copies get
/// them from the source.
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

/// Labels or annotations of objects that aren't Mimeo's: whether they are a mark that replicators
/// leave on copies, and on nothing else.
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
