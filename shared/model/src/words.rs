//! Words for conditions, failures and Events that programs and scripts wait for. A message may
//! change, but a word does not.

/// Defines an enum with variants that print as they are spelled.
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $word:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$meaning])* $word,)*
        }

        impl $name {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$word,)*];

            /// The word as it is spelled.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
