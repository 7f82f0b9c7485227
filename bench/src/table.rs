//! The results: one row per figure, printed as a table and written as JSON.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde::Serialize;

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    /// The name of the figure.
    pub(crate) figure: String,
    /// The measured value with its unit.
    pub(crate) measured: String,
    /// The floor of this run that the value is compared with.
    pub(crate) floor: String,
    /// The quotient of the two, or the number itself if it is a count.
    pub(crate) value: f64,
    /// The limit for `value`.
    pub(crate) bound: f64,
}

impl Row {
    fn holds(&self) -> &'static str {
        match self {
            Self { bound, .. } if bound.is_infinite() => "",
            Self { value, bound, .. } if value <= bound => "yes",
            _ => "NO",
        }
    }
}

/// All figures of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Results {
    rows: Vec<Row>,
}

const HEAD: [&str; 6] = ["figure", "measured", "floor", "value", "bound", "holds"];
const BEGIN: &str = "<!-- bench -->";
const END: &str = "<!-- /bench -->";

impl Results {
    /// Adds a figure and prints it at once, because a run takes minutes.
    pub(crate) fn add(
        &mut self,
        figure: &str,
        measured: String,
        floor: String,
        value: f64,
        bound: f64,
    ) {
        let row = Row {
            figure: figure.to_owned(),
            measured,
            floor,
            value,
            bound,
        };
        eprintln!(
            "{}: {} ({:.2}, bound {:.2})",
            row.figure, row.measured, row.value, row.bound
        );
        self.rows.push(row);
    }

    fn cells(&self) -> Vec<[String; 6]> {
        let rows = self.rows.iter().map(|row| {
            let number = |number: f64| {
                if number.is_finite() {
                    format!("{number:.2}")
                } else {
                    String::new()
                }
            };
            let [value, bound] = [row.value, row.bound].map(number);
            [
                row.figure.clone(),
                row.measured.clone(),
                row.floor.clone(),
                value,
                bound,
                row.holds().to_owned(),
            ]
        });
        std::iter::once(HEAD.map(str::to_owned))
            .chain(rows)
            .collect()
    }

    /// Names of the figures that exceed their bounds.
    pub(crate) fn over(&self) -> Vec<&str> {
        self.rows
            .iter()
            .filter(|row| row.holds() == "NO")
            .map(|row| row.figure.as_str())
            .collect()
    }

    /// Prints the table to standard output.
    #[allow(clippy::print_stdout)] // The purpose of the program.
    pub(crate) fn print(&self) {
        println!("{}", self.markdown());
    }

    fn markdown(&self) -> String {
        let cells = self.cells();
        let width = |column: usize| {
            cells
                .iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let line = |row: &[String; 6]| {
            let padded: Vec<String> = (0..6)
                .map(|column| format!("{:1$}", row[column], width(column)))
                .collect();
            format!("| {} |", padded.join(" | "))
        };
        let rule: Vec<String> = (0..6).map(|column| "-".repeat(width(column))).collect();
        let mut lines: Vec<String> = cells.iter().map(line).collect();
        lines.insert(1, format!("| {} |", rule.join(" | ")));
        lines.join("\n")
    }

    /// Writes all rows as one JSON object.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        fs::write(path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Puts the table between the two markers of a Markdown file.
    pub(crate) fn write_markdown(&self, path: &Path) -> Result<()> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let (before, rest) = text.split_once(BEGIN).context("no begin marker")?;
        let (_, after) = rest.split_once(END).context("no end marker")?;
        fs::write(
            path,
            format!("{before}{BEGIN}\n{}\n{END}{after}", self.markdown()),
        )
        .context("writing the table")
    }
}
