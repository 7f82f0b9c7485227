//! `kubectl mimeo`: a person's view of Mimeo.
//!
//! The program has the permissions of its user, and names the objects that these don't cover. It
//! changes nothing and prints no data of a Secret. Its answers come from the reconciler's own engine
//! (`picture`).

mod check;
mod connect;
mod copy;
mod grant;
mod installation;
mod kinds;
mod names;
mod output;
mod picture;
mod read;
mod state;
mod status;
mod ui;
mod why;
mod write;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::{connect::Connection, output::Format};

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
    /// Form of the output
    #[arg(long, short = 'o', global = true, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check whether Mimeo is installed and works. Exit code 0: no check failed, 1: one failed,
    /// 2: nothing could be checked
    Check(check::CheckArgs),
    /// Copy an object once, by hand. No rule maintains the copies. Exit code 0: all are copied, 1:
    /// one could not be copied
    Copy(copy::CopyArgs),
    /// Print the grants that a Replication lacks, for the owners of the other namespaces. Exit code
    /// 0: they are printed, or none is missing
    Grant(grant::GrantArgs),
    /// Show the state of the rules, and every copy that is not synced. Exit code 0: all are synced
    Status(status::StatusArgs),
    /// Forward a port to the leading reconciler and open its page. Exit code 1: the forwarding broke
    Ui(ui::UiArgs),
    /// Explain why an object is a copy, or why a copy is missing. Exit code 0: it is a correct copy
    Why(why::WhyArgs),
    /// Print a completion script for a shell
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    match run(flags).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
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
    match command {
        Command::Check(args) => check::run(args, &connection.connect().await?, output).await,
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Flags::command(), "kubectl-mimeo", &mut script);
            output::write(&String::from_utf8_lossy(&script))?;
            Ok(0)
        }
        Command::Copy(args) => copy::run(&args, &connection.connect().await?, output).await,
        Command::Grant(args) => grant::run(&args, &connection.connect().await?, output).await,
        Command::Status(args) => status::run(args, &connection.connect().await?, output).await,
        Command::Ui(args) => ui::run(&args, &connection, &connection.connect().await?).await,
        Command::Why(args) => why::run(args, &connection.connect().await?, output).await,
    }
}
