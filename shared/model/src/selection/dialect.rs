//! The common part of two dialects of regular expressions: Mimeo's and the API servers'.
//!
//! Mimeo parses an expression by Rust's dialect, API servers by RE2's. Most syntax of only one
//! dialect is refused by the other parser. This module refuses syntax that both accept but read
//! differently. Otherwise the policy that guards labels would select other namespaces than Mimeo.

use regex_syntax::ast::{
    self, Ast, ClassSetBinaryOp, ClassSetItem, Flag, Flags, FlagsItemKind, GroupKind, Literal,
    LiteralKind, RepetitionOp, Visitor,
};

/// Checks an expression that was parsed from `text`.
///
/// # Errors
/// The first part that RE2 reads differently.
pub(super) fn check(text: &str, expression: &Ast) -> Result<(), &'static str> {
    ast::visit(expression, Check { text })
}

struct Check<'a> {
    text: &'a str,
}

impl Visitor for Check<'_> {
    type Output = ();
    type Err = &'static str;

    fn finish(self) -> Result<(), &'static str> {
        Ok(())
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), &'static str> {
        match part {
            Ast::Flags(set) => flags(&set.flags),
            Ast::Group(group) => match &group.kind {
                GroupKind::NonCapturing(set) => flags(set),
                GroupKind::CaptureIndex(_) | GroupKind::CaptureName { .. } => Ok(()),
            },
            Ast::Assertion(assertion) => edge(&assertion.kind),
            Ast::Repetition(repetition) => self.count(&repetition.op),
            Ast::Empty(_)
            | Ast::Literal(_)
            | Ast::Dot(_)
            | Ast::ClassUnicode(_)
            | Ast::ClassPerl(_)
            | Ast::ClassBracketed(_)
            | Ast::Alternation(_)
            | Ast::Concat(_) => Ok(()),
        }
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), &'static str> {
        match item {
            ClassSetItem::Bracketed(_) => {
                Err("a [ in a class is no class of its own there, write \\[")
            }
            ClassSetItem::Union(union) if union.items.windows(3).any(is_range_to_others) => {
                Err("a class that begins with ]- or -- is a range there, write \\] or \\-")
            }
            ClassSetItem::Empty(_)
            | ClassSetItem::Literal(_)
            | ClassSetItem::Range(_)
            | ClassSetItem::Ascii(_)
            | ClassSetItem::Unicode(_)
            | ClassSetItem::Perl(_)
            | ClassSetItem::Union(_) => Ok(()),
        }
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), &'static str> {
        Err("&&, -- and ~~ in a class are plain characters there, escape them")
    }
}

impl Check<'_> {
    fn count(&self, op: &RepetitionOp) -> Result<(), &'static str> {
        let text = &self.text[op.span.start.offset..op.span.end.offset];
        if text.contains(char::is_whitespace) {
            Err("a count with a space in it is plain text there")
        } else {
            Ok(())
        }
    }
}

fn flags(flags: &Flags) -> Result<(), &'static str> {
    let known = |item: &ast::FlagsItem| match &item.kind {
        FlagsItemKind::Negation => true,
        FlagsItemKind::Flag(flag) => match flag {
            Flag::CaseInsensitive | Flag::MultiLine | Flag::DotMatchesNewLine | Flag::SwapGreed => {
                true
            }
            Flag::Unicode | Flag::CRLF | Flag::IgnoreWhitespace => false,
        },
    };
    if flags.items.iter().all(known) {
        Ok(())
    } else {
        Err("it has no flags but i, m, s and U")
    }
}

fn edge(kind: &ast::AssertionKind) -> Result<(), &'static str> {
    use ast::AssertionKind as Edge;
    match kind {
        Edge::StartLine
        | Edge::EndLine
        | Edge::StartText
        | Edge::EndText
        | Edge::WordBoundary
        | Edge::NotWordBoundary => Ok(()),
        Edge::WordBoundaryStart
        | Edge::WordBoundaryEnd
        | Edge::WordBoundaryStartAngle
        | Edge::WordBoundaryEndAngle
        | Edge::WordBoundaryStartHalf
        | Edge::WordBoundaryEndHalf => Err("\\<, \\> and \\b{...} are no edges of words there"),
    }
}

/// At the beginning of a class, Rust reads these three characters as themselves. RE2 reads them as
/// the range from the first to the last.
fn is_range_to_others(items: &[ClassSetItem]) -> bool {
    let hyphen = |literal: &Literal| literal.c == '-' && literal.kind == LiteralKind::Verbatim;
    matches!(items, [ClassSetItem::Literal(_), ClassSetItem::Literal(second), _] if hyphen(second))
}

#[cfg(test)]
mod tests {
    use regex_syntax::ast::parse::Parser;

    use super::*;

    #[track_caller]
    fn checked(text: &str) -> Result<(), &'static str> {
        check(text, &Parser::new().parse(text).expect("both take it"))
    }

    /// API servers accept each of these expressions, or some expressions of the same sort.
    #[test]
    fn what_others_read_otherwise_is_refused() {
        for (text, why) in [
            ("[a-z&&[^x]]+", "&&"),
            ("[a&&b]", "&&"),
            ("[!--b]", "--"),
            ("[a-z~~b]", "~~"),
            ("[[a-z]0-9]", "no class of its own"),
            ("x[^a[:b:]]", "no class of its own"),
            ("[--a]", "begins with"),
            ("[^--a]", "begins with"),
            ("[]-a]", "begins with"),
            (r"\<a", "edges"),
            (r"(a|b\>)", "edges"),
            (r"\b{start}a", "edges"),
            (r"a\b{end-half}", "edges"),
            ("a{ 2 }", "a count"),
            ("a{2, 3}", "a count"),
            ("(?x)a", "flags"),
            ("(?iR:a)", "flags"),
            ("a(?-u:b)", "flags"),
        ] {
            let refused = checked(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn what_both_read_alike_is_taken() {
        for text in [
            "[[:alpha:]]+[[:^digit:]-]?",
            "[a-z&~-]+",
            "[-a-z]",
            "[]a-]",
            "[a-c-e]",
            r"[\--a]",
            r"[\[\]]",
            "(?i)a(?s-mU:b)(?P<n>c)(?<m>d)",
            r"^\ba\B\A\z$",
            "a{2}b{1,2}?c{3,}d*?",
            "a b",
        ] {
            assert_eq!(checked(text), Ok(()), "{text}");
        }
    }
}
