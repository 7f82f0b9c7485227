//! Whether a rule has the permissions and the consent that it needs.
//!
//! - `authorized`: missing grants of the rule, and missing permissions of Mimeo itself
//! - `consent`: the grants of namespaces to rules of other namespaces
//! - `grants`: which of these grants count
//! - `missing_grants`: the missing grants of a rule
//! - `usage`: how many rules use each grant

pub(crate) mod authorized;
pub(crate) mod consent;
pub(crate) mod grants;
pub(crate) mod missing_grants;
pub(crate) mod usage;
