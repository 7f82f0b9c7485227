//! Which of the two programs an engine works in.

/// The task of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Keeps every copy of every namespace as it should be; the one reconciler that leads.
    Keeper,
    /// Writes the first copies of namespaces that wait for them; any number of webhook replicas,
    /// side by side.
    Injector,
}
