//! `kubectl mimeo`: a person's view of Mimeo.
//!
//! The program has the permissions of its user, and names the objects that these don't cover. It
//! prints no data of a Secret of the cluster, and only `confirm` and `copy` change anything. Its
//! answers come from the reconciler's own engine (`picture`).

mod call;
mod check;
mod completion;
mod connect;
mod copy;
mod diff;
mod feeds;
mod files;
mod grant;
mod held;
mod installation;
mod kinds;
mod manifest;
mod names;
mod output;
mod permissions;
mod picture;
mod read;
#[cfg(test)]
mod reference;
mod render;
mod state;
mod status;
mod test;
mod ui;
mod why;
mod write;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

use self::{
    connect::{ClusterFlags, Connection},
    output::Format,
};

/// Explains why a copy exists or is missing, and how to fix it
#[derive(Debug, Parser)]
#[command(
    name = "kubectl mimeo",
    bin_name = "kubectl mimeo",
    version,
    max_term_width = 100
)]
struct Flags {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
    /// Form of the output. Default: table; of render: yaml
    #[arg(long, short = 'o', global = true, value_enum)]
    output: Option<Format>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check whether Mimeo is installed and works. Exit code 0: no check failed, 1: one failed,
    /// 2: nothing could be checked
    Check(check::CheckArgs),
    /// Confirm a held deletion: the copies that a rule has lost are deleted. Exit code 0: Mimeo has
    /// begun to delete them, 2: nothing is confirmed, or whether Mimeo has begun is unknown
    Confirm(held::ConfirmArgs),
    /// Copy an object once, by hand. No rule maintains the copies. Exit code 0: all are copied, 1:
    /// one could not be copied
    Copy(copy::CopyArgs),
    /// Show the changes of copies that applying files would lead to. Exit code 0: none, 1: there
    /// are some, or a rule fails
    #[command(after_help = diff::HELP)]
    Diff(diff::DiffArgs),
    /// Print the missing grants of a Replication, for the owners of the other namespaces. Exit code
    /// 0: they are printed, or none is missing, 1: no grant would be enough
    Grant(grant::GrantArgs),
    /// List the deletions that wait for a person, and their copies. Exit code 0: they are listed, or
    /// none waits, 1: not everything could be read
    Held(held::HeldArgs),
    /// Print the copies that Mimeo would create from the rules and sources of files, without a
    /// cluster
    #[command(after_help = render::HELP)]
    Render(render::RenderArgs),
    /// Show the state of the rules, and every copy that is not synced. Exit code 0: all are synced, 1:
    /// one is not, or not everything could be read
    Status(status::StatusArgs),
    /// Compare the copies that files make with the expected ones, without a cluster
    #[command(after_help = test::HELP)]
    Test(test::TestArgs),
    /// Forward a port to the leading reconciler and open its page. Exit code 1: the forwarding broke
    Ui(ui::UiArgs),
    /// List the copies of a source, and say how its deletion would change them. Exit code 0: a
    /// rule has it, 1: none has it
    Where(feeds::WhereArgs),
    /// Explain why an object is a copy, or why a copy or a pod is missing. Exit code 0: it is a
    /// correct copy, or pods don't wait, 1: otherwise, or that is unknown
    Why(why::WhyArgs),
    /// Print the program kubectl_complete-mimeo, through which kubectl completes this command
    #[command(after_help = completion::HELP)]
    Completion,
    #[command(name = "__complete", hide = true)]
    Complete { words: Vec<OsString> },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let cluster = ClusterFlags::new(&flags.connection);
    match Box::pin(run(flags)).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::tell(&cluster.in_commands(&format!("error: {error:#}")));
            ExitCode::from(2)
        }
    }
}

async fn run(flags: Flags) -> anyhow::Result<u8> {
    let Flags {
        command,
        connection,
        output,
    } = flags;
    let format = output.unwrap_or_default();
    let cluster = connection.connect();
    match command {
        Command::Check(args) => check::run(args, &cluster.await?, format).await,
        Command::Complete { words } => completion::run(words).await,
        Command::Completion => {
            output::write(completion::SCRIPT)?;
            Ok(0)
        }
        Command::Confirm(args) => held::confirm(args, &cluster.await?, format).await,
        Command::Copy(args) => copy::run(&args, &cluster.await?, format).await,
        Command::Diff(args) => diff::run(args, &cluster.await?, format).await,
        Command::Grant(args) => grant::run(&args, &cluster.await?, format).await,
        Command::Held(args) => held::run(args, &cluster.await?, format).await,
        Command::Render(args) => {
            let format = output.unwrap_or(Format::Yaml);
            render::run(&args, connection.namespace(), format)
        }
        Command::Status(args) => status::run(args, &cluster.await?, format).await,
        Command::Test(args) => test::run(&args, connection.namespace(), format),
        Command::Ui(args) => ui::run(&args, &connection, &cluster.await?).await,
        Command::Where(args) => feeds::run(args, &cluster.await?, format).await,
        Command::Why(args) => why::run(args, &cluster.await?, format).await,
    }
}
