//! Whether a rule may do what it says.
//!
//! - `authorized`: by its author, and by what Mimeo itself may do
//! - `consent`: what namespaces grant each other's rules
//! - `grants`: which of these grants count
//! - `lacks`: what of that a rule isn't granted

pub(in crate::engine) mod authorized;
pub(in crate::engine) mod consent;
pub(in crate::engine) mod grants;
pub(in crate::engine) mod lacks;
