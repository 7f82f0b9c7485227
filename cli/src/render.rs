//! `kubectl mimeo render -f ...`: the copies that Mimeo would create, from files alone.
//!
//! No cluster is asked. The engine is the reconciler's own, and `offline` answers its questions
//! from the files.

pub(crate) mod offline;

use anyhow::Result;
use clap::Args;

use self::offline::{Copy, Rendered};
use crate::{
    files::{FileArgs, Files},
    manifest::mask,
    output::{self, Cell, Format, manifests, table, write},
};

#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Print the length of each value in a Secret in place of the value
    #[arg(long)]
    mask: bool,
}

/// The explanation under `--help`.
pub(crate) const HELP: &str = "\
The files hold ClusterReplications, Replications, ReplicationGrants, the objects that these copy,
and Namespaces with their labels. A namespace counts as existing if any object of the files is in
it. Each rule is checked and completed as the API server does it, but for the labels and
annotations of embedded objects. No copies exist yet.

The output leaves out all values that depend on a cluster: the annotations mimeo.dev/checksum and
mimeo.dev/cluster, and the fields that the API server adds. Permissions and quotas are not
checked. If two rules want the same copy, the rule whose name comes first counts as older. Every
kind counts as served and namespaced.

Exit code 0: each rule makes all its copies. 1: a rule fails. 2: an error in a file.";

pub(crate) fn run(args: &RenderArgs, namespace: Option<&str>, format: Format) -> Result<u8> {
    let files = Files::read(&args.files, namespace)?;
    let mut rendered = offline::render(&files);
    if args.mask {
        for copy in &mut rendered.copies {
            mask(&mut copy.object);
        }
    }
    print(&rendered.copies, format)?;
    tell(&rendered);
    Ok(u8::from(!rendered.problems.is_empty()))
}

/// Prints notes and problems to standard error.
pub(crate) fn tell(rendered: &Rendered) {
    for note in &rendered.notes {
        output::tell(&format!("note: {note}"));
    }
    for problem in &rendered.problems {
        output::tell(&format!("error: {problem}"));
    }
}

fn print(copies: &[Copy], format: Format) -> Result<()> {
    let objects = copies.iter().map(|copy| &copy.object);
    write(&match format {
        Format::Table => text(copies),
        Format::Json | Format::Yaml => manifests(objects, format)?,
    })
}

fn text(copies: &[Copy]) -> String {
    let row = |copy: &Copy| {
        let Copy {
            key, rule, source, ..
        } = copy;
        let cells = [&key.namespace, &key.kind, &key.name, rule, source];
        cells.into_iter().map(Cell::from).collect()
    };
    let headers = ["NAMESPACE", "KIND", "NAME", "RULE", "SOURCE"];
    table(&headers, copies.iter().map(row).collect())
}
