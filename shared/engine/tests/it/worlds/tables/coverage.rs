//! Looks up rows of the tables, and counts the rows that were reached.

use std::{collections::BTreeMap, fmt::Debug};

use super::{
    CARRIED, CELL, CONSENT, COPY_MARKS, Cell, Consent, Deal, Deleting, End, Exact, FIELD, Field,
    Foreign, Found, Glob, Has, Held, LEFT_ALONE, LeftAlone, MEMBER, MINDED, Marked, Member, Minded,
    Named, Nothing, OTHERS, Others, Own, PATCHED, PLANNED, Part, Patched, Pattern, Planned,
    REFUSED, Refused, Rest, RuleDeleted, SELECTION, Same, Selection, Selector, Source,
    SourceDeleted, Superseded, Then, UNSEEN, UNWANTED, Unmatched, Unseen, Unwanted, Way, Why,
    holds,
};
use crate::worlds::spec::{
    Keep::{self, Delete, Retain},
    Policy::{self, Adopt, Overwrite, Report},
    Strategy::{self, Apply, CreateOnce, Replace},
};

fn is_selection(Selection(ways, system, out, _): &Selection, case: (Way, bool, bool)) -> bool {
    holds(ways, &case.0) && holds(system, &case.1) && holds(out, &case.2)
}

fn is_consent(
    Consent(access, ways, kind, named, _): &Consent,
    case: (bool, Way, bool, Named),
) -> bool {
    holds(access, &case.0) && holds(ways, &case.1) && holds(kind, &case.2) && holds(named, &case.3)
}

fn is_left(LeftAlone(tenants, readers, may, _): &LeftAlone, case: (bool, bool, bool)) -> bool {
    holds(tenants, &case.0) && holds(readers, &case.1) && holds(may, &case.2)
}

fn is_member(Member(labels, copy, bound, first, _): &Member, case: [bool; 4]) -> bool {
    [labels, copy, bound, first]
        .iter()
        .zip(&case)
        .all(|(these, this)| holds(these, this))
}

fn is_minded(Minded(deny, acts, wants, system, _): &Minded, case: [bool; 4]) -> bool {
    [deny, acts, wants, system]
        .iter()
        .zip(&case)
        .all(|(these, this)| holds(these, this))
}

fn is_refused(Refused(deals, minded, _): &Refused, case: (Deal, bool)) -> bool {
    holds(deals, &case.0) && holds(minded, &case.1)
}

fn is_patched(Patched(parts, secrets, _): &Patched, case: (Part, bool)) -> bool {
    holds(parts, &case.0) && holds(secrets, &case.1)
}

fn is_unseen(Unseen(watched, verified, due, _): &Unseen, case: (bool, bool, bool)) -> bool {
    holds(watched, &case.0) && holds(verified, &case.1) && holds(due, &case.2)
}

/// True if a patch may change that part.
pub fn may_patch(part: Part, secrets: bool) -> bool {
    PATCHED
        .iter()
        .find(|row| is_patched(row, (part, secrets)))
        .expect("some row holds for any case")
        .2
}

fn is_cell(
    Cell(strategies, once, found, policies, _): &Cell,
    case: (Strategy, bool, Found, Policy),
) -> bool {
    holds(strategies, &case.0)
        && holds(once, &case.1)
        && holds(found, &case.2)
        && holds(policies, &case.3)
}

fn is_unwanted(row: &Unwanted, case: (Why, bool, bool, bool, Keep)) -> bool {
    let Unwanted(whys, suspended, once, named, keep, _) = row;
    holds(whys, &case.0)
        && holds(suspended, &case.1)
        && holds(once, &case.2)
        && holds(named, &case.3)
        && holds(keep, &case.4)
}

fn is_field(Field(has, mine, theirs, rest, _): &Field, case: (Has, bool, bool, Rest)) -> bool {
    holds(has, &case.0) && holds(mine, &case.1) && holds(theirs, &case.2) && holds(rest, &case.3)
}

/// How often each row was reached, and the other cases that must be reached.
#[derive(Clone, Debug)]
pub struct Coverage {
    selection: Vec<u64>,
    consent: Vec<u64>,
    left_alone: Vec<u64>,
    member: Vec<u64>,
    minded: Vec<u64>,
    refused: Vec<u64>,
    patched: Vec<u64>,
    unseen: Vec<u64>,
    cell: Vec<u64>,
    unwanted: Vec<u64>,
    field: Vec<u64>,
    carried: Vec<u64>,
    marks: Vec<u64>,
    planned: Vec<u64>,
    pub others: BTreeMap<&'static str, u64>,
    /// The number of stories, of their steps, and of the steps that were compared.
    pub stories: u64,
    pub steps: u64,
    pub compared: u64,
    /// The stories that end because the documents are silent, by the open question.
    pub silent: BTreeMap<&'static str, u64>,
    /// The reasons of the rules' condition Ready.
    pub reasons: BTreeMap<String, u64>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            selection: vec![0; SELECTION.len()],
            consent: vec![0; CONSENT.len()],
            left_alone: vec![0; LEFT_ALONE.len()],
            member: vec![0; MEMBER.len()],
            minded: vec![0; MINDED.len()],
            refused: vec![0; REFUSED.len()],
            patched: vec![0; PATCHED.len()],
            unseen: vec![0; UNSEEN.len()],
            cell: vec![0; CELL.len()],
            unwanted: vec![0; UNWANTED.len()],
            field: vec![0; FIELD.len()],
            carried: vec![0; CARRIED.len()],
            marks: vec![0; COPY_MARKS.len()],
            planned: vec![0; PLANNED.len()],
            others: OTHERS.iter().map(|what| (*what, 0)).collect(),
            stories: 0,
            steps: 0,
            compared: 0,
            silent: BTreeMap::new(),
            reasons: BTreeMap::new(),
        }
    }
}

/// Returns the row that applies, and counts it.
fn the_one<'a, R>(rows: &'a [R], hits: &mut [u64], holds: impl Fn(&R) -> bool) -> &'a R {
    let at = rows
        .iter()
        .position(holds)
        .expect("some row holds for any case");
    hits[at] += 1;
    &rows[at]
}

impl Coverage {
    pub fn selection(&mut self, way: Way, system: bool, out: bool) -> bool {
        the_one(&SELECTION, &mut self.selection, |row| {
            is_selection(row, (way, system, out))
        })
        .3
    }

    /// True if a grant gives the access.
    pub fn grant(&mut self, access: bool, way: Way, kind: bool, named: Named) -> bool {
        the_one(&CONSENT, &mut self.consent, |row| {
            is_consent(row, (access, way, kind, named))
        })
        .4
    }

    /// True if a rule leaves another rule's source alone.
    pub fn source(&mut self, tenants: bool, readers: bool, may: bool) -> bool {
        the_one(&LEFT_ALONE, &mut self.left_alone, |row| {
            is_left(row, (tenants, readers, may))
        })
        .3
    }

    /// Returns whether an object is a source of the rule with the selector. The case: its labels
    /// match, it is a copy, its type is never copied, it is among the oldest that fit.
    pub fn member(&mut self, case: [bool; 4]) -> bool {
        the_one(&MEMBER, &mut self.member, |row| is_member(row, case)).4
    }

    /// Returns whether a rule denies other clients' changes of its copy. The case: it has
    /// `driftPolicy: Deny`, it is active, it wants the copy to stay, the namespace is one of the
    /// cluster's own.
    pub fn minded(&mut self, case: [bool; 4]) -> bool {
        the_one(&MINDED, &mut self.minded, |row| is_minded(row, case)).4
    }

    /// True if the request is refused.
    pub fn refused(&mut self, deal: Deal, minded: bool) -> bool {
        the_one(&REFUSED, &mut self.refused, |row| {
            is_refused(row, (deal, minded))
        })
        .2
    }

    /// Counts the parts that patches concern.
    pub fn patched(&mut self, part: Part, secrets: bool) {
        the_one(&PATCHED, &mut self.patched, |row| {
            is_patched(row, (part, secrets))
        });
    }

    /// True if a change that no metadata shows is undone.
    pub fn unseen(&mut self, watched: bool, verified: bool, due: bool) -> bool {
        the_one(&UNSEEN, &mut self.unseen, |row| {
            is_unseen(row, (watched, verified, due))
        })
        .3
    }

    pub fn cell(&mut self, strategy: Strategy, once: bool, found: Found, policy: Policy) -> Then {
        the_one(&CELL, &mut self.cell, |row| {
            is_cell(row, (strategy, once, found, policy))
        })
        .4
    }

    pub fn unwanted(
        &mut self,
        why: Why,
        suspended: bool,
        once: bool,
        named: bool,
        keep: Keep,
    ) -> End {
        the_one(&UNWANTED, &mut self.unwanted, |row| {
            is_unwanted(row, (why, suspended, once, named, keep))
        })
        .5
    }

    pub fn field(&mut self, has: Has, mine: bool, theirs: bool, rest: Rest) -> Held {
        the_one(&FIELD, &mut self.field, |row| {
            is_field(row, (has, mine, theirs, rest))
        })
        .4
    }

    /// True if copies get a label or annotation with this key.
    pub fn carried(&mut self, key: &str) -> bool {
        let Some(at) = CARRIED.iter().position(|(known, _)| *known == key) else {
            // Replicators' marks are not carried, and neither are Mimeo's own. Unknown keys are.
            return !COPY_MARKS.contains(&(key, true)) && !key.starts_with("mimeo.dev/");
        };
        self.carried[at] += 1;
        CARRIED[at].1
    }

    /// True if an annotation with this key is a replicator's mark on a copy.
    pub fn marks(&mut self, key: &str) -> bool {
        let Some(at) = COPY_MARKS.iter().position(|(known, _)| *known == key) else {
            return key == "mimeo.dev/rule";
        };
        self.marks[at] += 1;
        COPY_MARKS[at].1
    }

    /// Counts the planned action for a cell.
    pub fn planned(&mut self, planned: Planned) {
        the_one(&PLANNED, &mut self.planned, |row| *row == planned);
    }

    pub fn other(&mut self, what: &'static str) {
        *self.others.get_mut(what).expect("it is in OTHERS") += 1;
    }

    pub fn add(&mut self, more: &Self) {
        let pairs = [
            (&mut self.selection, &more.selection),
            (&mut self.consent, &more.consent),
            (&mut self.left_alone, &more.left_alone),
            (&mut self.member, &more.member),
            (&mut self.minded, &more.minded),
            (&mut self.refused, &more.refused),
            (&mut self.patched, &more.patched),
            (&mut self.unseen, &more.unseen),
            (&mut self.cell, &more.cell),
            (&mut self.unwanted, &more.unwanted),
            (&mut self.field, &more.field),
            (&mut self.carried, &more.carried),
            (&mut self.marks, &more.marks),
            (&mut self.planned, &more.planned),
        ];
        self.stories += more.stories;
        self.steps += more.steps;
        self.compared += more.compared;
        for (mine, theirs) in pairs {
            mine.iter_mut()
                .zip(theirs)
                .for_each(|(mine, theirs)| *mine += theirs);
        }
        more.reasons
            .iter()
            .for_each(|(reason, count)| *self.reasons.entry(reason.clone()).or_default() += count);
        for (mine, theirs) in [
            (&mut self.others, &more.others),
            (&mut self.silent, &more.silent),
        ] {
            theirs
                .iter()
                .for_each(|(what, count)| *mine.entry(what).or_default() += count);
        }
    }

    /// Returns every row, and how often it was reached.
    pub fn rows(&self) -> Vec<(String, u64)> {
        fn of<R: Debug>(rows: &[R], hits: &[u64]) -> Vec<(String, u64)> {
            rows.iter()
                .zip(hits)
                .map(|(row, hits)| (format!("{row:?}"), *hits))
                .collect()
        }
        let mut all = of(&SELECTION, &self.selection);
        all.extend(of(&CONSENT, &self.consent));
        all.extend(of(&LEFT_ALONE, &self.left_alone));
        all.extend(of(&MEMBER, &self.member));
        all.extend(of(&MINDED, &self.minded));
        all.extend(of(&REFUSED, &self.refused));
        all.extend(of(&PATCHED, &self.patched));
        all.extend(of(&UNSEEN, &self.unseen));
        all.extend(of(&CELL, &self.cell));
        all.extend(of(&UNWANTED, &self.unwanted));
        all.extend(of(&FIELD, &self.field));
        all.extend(of(&CARRIED, &self.carried));
        all.extend(of(&COPY_MARKS, &self.marks));
        all.extend(
            of(&PLANNED, &self.planned)
                .into_iter()
                .map(|(row, hits)| (format!("planned: {row}"), hits)),
        );
        all.extend(
            self.others
                .iter()
                .map(|(what, hits)| ((*what).to_owned(), *hits)),
        );
        all
    }
}

#[test]
fn of_each_table_exactly_one_row_holds_for_any_case() {
    fn one<R: Debug, C: Copy + Debug>(rows: &[R], case: C, holds: impl Fn(&R, C) -> bool) {
        let those: Vec<&R> = rows.iter().filter(|row| holds(row, case)).collect();
        assert_eq!(those.len(), 1, "{case:?}: {those:?}");
    }
    let either = [false, true];
    for way in [Way::No, Exact, Glob, Pattern, Selector] {
        for system in either {
            either
                .iter()
                .for_each(|out| one(&SELECTION, (way, system, *out), is_selection));
        }
    }
    for access in either {
        for way in [Way::No, Exact, Glob, Pattern, Selector] {
            for kind in either {
                for named in [
                    Named::Any,
                    Named::Exactly,
                    Named::ByGlob,
                    Named::Not,
                    Named::Limited,
                ] {
                    one(&CONSENT, (access, way, kind, named), is_consent);
                }
            }
        }
    }
    for tenants in either {
        for readers in either {
            either
                .iter()
                .for_each(|may| one(&LEFT_ALONE, (tenants, readers, *may), is_left));
        }
    }
    for (labels, bound) in [(false, false), (false, true), (true, false), (true, true)] {
        for copy in either {
            either
                .iter()
                .for_each(|first| one(&MEMBER, [labels, copy, bound, *first], is_member));
        }
        either
            .iter()
            .for_each(|due| one(&UNSEEN, (labels, bound, *due), is_unseen));
    }
    for bits in 0..16 {
        one(
            &MINDED,
            std::array::from_fn(|bit| bits >> bit & 1 == 1),
            is_minded,
        );
    }
    for deal in [Deal::Delete, Deal::Take, Deal::Add, Deal::Nothing] {
        either
            .iter()
            .for_each(|minded| one(&REFUSED, (deal, *minded), is_refused));
    }
    for part in [
        Part::Identity,
        Part::Type,
        Part::Mark,
        Part::Note,
        Part::Metadata,
        Part::Data,
        Part::Other,
    ] {
        either
            .iter()
            .for_each(|secrets| one(&PATCHED, (part, *secrets), is_patched));
    }
    for strategy in [Apply, Replace, CreateOnce] {
        for once in either {
            for found in [
                Nothing, Own, Others, Same, Marked, Foreign, Source, Deleting,
            ] {
                for policy in [Report, Adopt, Overwrite] {
                    one(&CELL, (strategy, once, found, policy), is_cell);
                }
            }
        }
    }
    for why in [RuleDeleted, Unmatched, Superseded, SourceDeleted] {
        for (suspended, once) in [(false, false), (false, true), (true, false), (true, true)] {
            for named in either {
                [Delete, Retain].iter().for_each(|keep| {
                    one(&UNWANTED, (why, suspended, once, named, *keep), is_unwanted);
                });
            }
        }
    }
    for has in [Has::Nothing, Has::Equal, Has::Other, Has::Unwanted] {
        for mine in either {
            for theirs in either {
                [Rest::Stays, Rest::Goes]
                    .iter()
                    .for_each(|rest| one(&FIELD, (has, mine, theirs, *rest), is_field));
            }
        }
    }
}
