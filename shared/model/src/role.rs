//! The two programs that an engine can work in.

/// The task of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The reconciler. It keeps every copy in every namespace as it should be. Only one replica
    /// leads.
    Keeper,
    /// The webhook. It writes the first copies of namespaces that wait for them. Any number of
    /// replicas do this at the same time.
    Injector,
}
