//! Writes `docs/reference/kubectl-mimeo.md` from the flags, so that the page can't be out of date.
//! `make golden` rewrites the page.

use std::fmt::Write as _;

use clap::{Arg, Command, CommandFactory as _};

use crate::Flags;

const HEAD: &str = "# kubectl mimeo

The plugin has the permissions of its user, and says which facts it could not read. It prints no data of a Secret of the cluster. Only `confirm` and
`copy` change anything. Its answers are the decisions of the reconciler's own engine about what the cluster shows.

The exit code is 2 after an error, unless a command says otherwise. `-o json` and `-o yaml` give every answer to programs.
";

const FLAGS: &str = "\n## Flags of every command\n\n";

#[test]
fn the_page_says_what_the_flags_say() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/reference/kubectl-mimeo.md"
    );
    let page = page();
    if std::env::var_os("MIMEO_UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &page).expect("the page is written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "run `make golden`: {page}");
}

fn page() -> String {
    let mut command = Flags::command();
    command.build();
    let mut page = HEAD.to_owned();
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
    {
        describe(sub, &mut page);
    }
    page += FLAGS;
    for arg in command.get_arguments() {
        item(arg, &mut page);
    }
    page
}

fn describe(command: &Command, page: &mut String) {
    let about = command.get_about().map(ToString::to_string);
    let positionals = command.get_positionals().map(|arg| {
        let name = value(arg).unwrap_or_else(|| arg.get_id().to_string());
        if arg.is_required_set() {
            format!(" {name}")
        } else {
            format!(" [{name}]")
        }
    });
    let usage: String = positionals.collect();
    // Writing to a String never fails.
    _ = write!(
        page,
        "\n## `{}{usage}`\n\n{}.\n",
        command.get_name(),
        about.unwrap_or_default()
    );
    let own: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_global_set() && !["help", "version"].contains(&arg.get_id().as_str()))
        .collect();
    if !own.is_empty() {
        page.push('\n');
    }
    for arg in own {
        item(arg, page);
    }
    let help = command.get_after_help().map(ToString::to_string);
    for paragraph in help.iter().flat_map(|help| help.split("\n\n")) {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).collect();
        // Commands are indented.
        _ = if paragraph.starts_with("  ") {
            write!(page, "\n```sh\n{}\n```\n", lines.join("\n"))
        } else {
            write!(page, "\n{}\n", lines.join(" "))
        };
    }
}

fn value(arg: &Arg) -> Option<String> {
    let names = arg.get_value_names()?;
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    Some(names.join(" "))
}

/// One line of a list: the flag or argument, its default, and its help.
fn item(arg: &Arg, page: &mut String) {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("`--{long}`, `-{short}`"),
        (Some(long), None) => format!("`--{long}`"),
        _ => format!("`{}`", value(arg).unwrap_or_default()),
    };
    let takes_value = arg.get_action().takes_values();
    let defaults = arg.get_default_values();
    let defaults: Vec<_> = defaults
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let default = if takes_value && !defaults.is_empty() {
        format!(" (default: `{}`)", defaults.join(","))
    } else {
        String::new()
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    _ = writeln!(page, "- {name}{default}: {help}");
}
