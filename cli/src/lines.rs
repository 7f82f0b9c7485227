//! A unified diff of two texts.

use std::{fmt::Write as _, ops::Range};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// The largest table for the common lines. Larger texts count as changed as a whole.
const LARGEST: usize = 16_000_000;

/// A line, by its index in the old text, in the new one, or in both.
#[derive(Clone, Copy)]
enum Line {
    Same(usize, usize),
    Old(usize),
    New(usize),
}

/// The hunks of the diff, without the header that names the files. Empty if the texts are equal.
pub(crate) fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let lines = compare(&old, &new);
    let mut text = String::new();
    for hunk in hunks(&lines) {
        write_hunk(&mut text, &lines, hunk, (&old, &new));
    }
    text
}

fn compare(old: &[&str], new: &[&str]) -> Vec<Line> {
    let start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = (&old[start..], &new[start..]);
    let ends = rest.0.iter().rev().zip(rest.1.iter().rev());
    let end = ends.take_while(|(a, b)| a == b).count();
    let (a, b) = (&rest.0[..rest.0.len() - end], &rest.1[..rest.1.len() - end]);
    let mut lines: Vec<Line> = (0..start).map(|i| Line::Same(i, i)).collect();
    lines.extend(between(a, b).into_iter().map(|line| match line {
        Line::Same(i, j) => Line::Same(start + i, start + j),
        Line::Old(i) => Line::Old(start + i),
        Line::New(j) => Line::New(start + j),
    }));
    lines.extend((0..end).map(|i| Line::Same(old.len() - end + i, new.len() - end + i)));
    lines
}

/// Compares two texts by their longest common subsequence of lines.
fn between(a: &[&str], b: &[&str]) -> Vec<Line> {
    if a.len() * b.len() > LARGEST {
        return (0..a.len())
            .map(Line::Old)
            .chain((0..b.len()).map(Line::New))
            .collect();
    }
    // common[i * width + j]: the number of common lines of a[i..] and b[j..].
    let width = b.len() + 1;
    let mut common = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = if a[i] == b[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        let skips_old = |i: usize, j: usize| {
            j == b.len() || common[(i + 1) * width + j] >= common[i * width + j + 1]
        };
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push(Line::Same(i, j));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && skips_old(i, j) {
            lines.push(Line::Old(i));
            i += 1;
        } else {
            lines.push(Line::New(j));
            j += 1;
        }
    }
    lines
}

/// The ranges of lines to print: the changes with their context.
fn hunks(lines: &[Line]) -> Vec<Range<usize>> {
    let mut hunks: Vec<Range<usize>> = Vec::new();
    let changed = lines.iter().enumerate();
    for (at, _) in changed.filter(|(_, line)| !matches!(line, Line::Same(..))) {
        let (from, to) = (
            at.saturating_sub(CONTEXT),
            (at + CONTEXT + 1).min(lines.len()),
        );
        match hunks.last_mut() {
            Some(last) if last.end >= from => last.end = to,
            _ => hunks.push(from..to),
        }
    }
    hunks
}

fn write_hunk(text: &mut String, lines: &[Line], hunk: Range<usize>, texts: (&[&str], &[&str])) {
    let count =
        |range: &[Line], is: fn(&Line) -> bool| range.iter().filter(|line| is(line)).count();
    let is_old = |line: &Line| !matches!(line, Line::New(_));
    let is_new = |line: &Line| !matches!(line, Line::Old(_));
    let (before, lines) = (&lines[..hunk.start], &lines[hunk]);
    let position = |is: fn(&Line) -> bool| {
        let length = count(lines, is);
        // An empty range begins behind the line before it.
        let first = count(before, is) + usize::from(length > 0);
        format!("{first},{length}")
    };
    // Writing to a String never fails.
    _ = writeln!(text, "@@ -{} +{} @@", position(is_old), position(is_new));
    for line in lines {
        _ = match *line {
            Line::Same(i, _) => writeln!(text, " {}", texts.0[i]),
            Line::Old(i) => writeln!(text, "-{}", texts.0[i]),
            Line::New(j) => writeln!(text, "+{}", texts.1[j]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_no_hunks() {
        assert_eq!(unified("a\nb\n", "a\nb\n"), "");
        assert_eq!(unified("", ""), "");
    }

    #[test]
    fn a_change_is_shown_with_three_lines_around_it() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        let hunk = "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n";
        assert_eq!(unified(old, new), hunk);
    }

    #[test]
    fn distant_changes_are_apart_and_near_ones_together() {
        let numbers: Vec<String> = (0..30).map(|i| i.to_string()).collect();
        let old = numbers.join("\n") + "\n";
        let new = old.replace("\n1\n", "\n").replace("\n25\n", "\n25\nnew\n");
        let text = unified(&old, &new);
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(text.starts_with("@@ -1,5 +1,4 @@\n 0\n-1\n 2\n"), "{text}");
        assert!(text.contains("@@ -24,6 +23,7 @@\n"), "{text}");
    }

    #[test]
    fn a_new_and_a_removed_text_are_one_hunk() {
        assert_eq!(unified("", "a\nb\n"), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        assert_eq!(unified("a\n", ""), "@@ -1,1 +0,0 @@\n-a\n");
    }
}
