//! The structure of the code: inside a crate no two top-level modules use each other, directly or
//! through other modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

/// The crates with modules in layers, below the workspace.
const CRATES: [&str; 6] = [
    "shared/api",
    "shared/model",
    "shared/engine",
    "shared/runtime",
    "webhook",
    "reconciler",
];

/// Each module, and the modules of the same crate that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_modules_use_each_other_in_a_circle() -> Result<()> {
    let root = crate::repository::workspace();
    for name in CRATES {
        let uses = uses(&root.join(name).join("src"))?;
        ensure!(!uses.is_empty(), "{name} has no modules");
        let circle = circle(&uses);
        ensure!(
            circle.is_empty(),
            "modules of {name} use each other in a circle: {}",
            circle.join(", ")
        );
    }
    Ok(())
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let uses = |modules: &[(&str, &str)]| -> Uses {
        modules
            .iter()
            .map(|(name, code)| ((*name).to_owned(), used(code)))
            .collect()
    };
    let layers = uses(&[
        ("a", "use crate::{b, c::D};"),
        ("b", "use crate::c;"),
        ("c", "// use crate::a;\n"),
    ]);
    assert!(circle(&layers).is_empty());
    for code in [
        "use crate::a;",
        "pub use crate::{x::{y, a}, a::b};",
        "fn f() { crate::a::g(); }",
        "use crate::{\n    // Why.\n    a::{self, B},\n};",
    ] {
        assert_eq!(
            circle(&uses(&[("a", "use crate::b;"), ("b", code)])),
            ["a", "b"],
            "{code}"
        );
    }
    // A use in unit tests does not count.
    let tests = "use std::fmt;\n#[cfg(test)]\n#[allow(clippy::unwrap_used)] // Why.\npub(crate) mod tests {\n    use crate::a;\n}\n";
    assert!(circle(&uses(&[("a", "use crate::b;"), ("b", tests)])).is_empty());
}

/// Returns the modules of the circles, and the modules between two circles.
fn circle(uses: &Uses) -> Vec<String> {
    let mut left: Uses = uses.clone();
    loop {
        let modules: BTreeSet<String> = left.keys().cloned().collect();
        left.iter_mut().for_each(|(module, used)| {
            used.retain(|used| used != module && modules.contains(used));
        });
        let needed: BTreeSet<String> = left.values().flatten().cloned().collect();
        // Removes the modules below all others, and those above all others.
        left.retain(|module, used| !used.is_empty() && needed.contains(module));
        if left.len() == modules.len() {
            return left.into_keys().collect();
        }
    }
}

fn uses(source: &Path) -> Result<Uses> {
    let mut uses = Uses::new();
    let mut files = Vec::new();
    crate::repository::files(source, "rs", &mut files)?;
    for file in files {
        let path = file.strip_prefix(source)?;
        let first = path
            .iter()
            .next()
            .and_then(|part| part.to_str())
            .context("a name in UTF-8")?;
        let module = first.trim_end_matches(".rs");
        let is_test = path.iter().any(|part| {
            part == "tests" || part == "tests.rs" || part == "testing" || part == "testing.rs"
        });
        if !is_test && !["lib", "main"].contains(&module) {
            uses.entry(module.to_owned())
                .or_default()
                .extend(used(&fs::read_to_string(&file)?));
        }
    }
    Ok(uses)
}

/// Returns the top-level modules that the code names. Comments and unit tests do not count.
fn used(code: &str) -> BTreeSet<String> {
    // Other attributes may stand in between.
    let tests = code
        .find("mod tests {")
        .and_then(|module| code[..module].rfind("#[cfg(test)]"));
    let code = &code[..tests.unwrap_or(code.len())];
    let code: String = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    code.split("crate::")
        .skip(1)
        .flat_map(first_names)
        .collect()
}

/// Returns the first name of each path at the start of the text: `a` for `a::b`, and `a` and `c`
/// for `{a::b, c}`.
fn first_names(path: &str) -> Vec<String> {
    let Some(list) = path.strip_prefix('{') else {
        return name(path).into_iter().collect();
    };
    let (mut names, mut depth, mut begins) = (Vec::new(), 1, true);
    for (at, char) in list.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => begins = true,
            _ if begins && depth == 1 && !char.is_whitespace() => {
                names.extend(name(&list[at..]));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn name(path: &str) -> Option<String> {
    let end = path
        .find(|char: char| !char.is_alphanumeric() && char != '_')
        .unwrap_or(path.len());
    (end > 0).then(|| path[..end].to_owned())
}
