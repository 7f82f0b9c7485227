//! Whether a rule may do what it says.
//!
//! - `authorized`: by its author, and by what Mimeo itself may do
//! - `consent`: what namespaces grant each other's rules
//! - `grants`: which of these grants count
//! - `lacks`: what of that a rule isn't granted
//! - `usage`: how many rules use each grant

pub(crate) mod authorized;
pub(crate) mod consent;
pub(crate) mod grants;
pub(crate) mod lacks;
pub(crate) mod usage;
