//! Mimeo's measurements, most of them as ratios to the floor. The floor is the time of a plain
//! client that sends the same writes to the same API server in the same run. Machines differ and
//! drift; ratios stay comparable.

mod admission;
mod floor;
mod seen;
mod size;
mod story;
mod table;

use std::path::PathBuf;

use clap::Parser;

/// Measures Mimeo on a control plane of its own and prints a table
#[derive(Debug, Parser)]
#[command(name = "mimeo-bench", version)]
struct Flags {
    /// Number of namespaces for the copies
    #[arg(long, default_value_t = 1000)]
    namespaces: usize,
    /// Size of the copied Secret in bytes
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Number of new namespaces, created one after another, to time their copies
    #[arg(long, default_value_t = 200)]
    arrivals: usize,
    /// Number of namespaces that the last rules fill, to measure the memory of a copy; 0 leaves it
    /// out
    #[arg(long, default_value_t = 10_000)]
    many_namespaces: usize,
    /// Number of rules that fill them, with one Secret each
    #[arg(long, default_value_t = 10)]
    many_rules: usize,
    /// File for the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// File for the table, which replaces the part between `<!-- bench -->` and `<!-- /bench -->`
    #[arg(long)]
    markdown: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let results = story::run(&flags).await?;
    results.print();
    if let Some(path) = &flags.json {
        results.write_json(path)?;
    }
    if let Some(path) = &flags.markdown {
        results.write_markdown(path)?;
    }
    let over = results.over();
    anyhow::ensure!(over.is_empty(), "over their bounds: {}", over.join("; "));
    Ok(())
}
