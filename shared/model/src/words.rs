//! Words that programs and people's scripts wait for: those of conditions, failures and Events. A
//! message may change, a word does not.

/// An enum whose variants read as they are written.
#[macro_export]
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $word:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$meaning])* $word,)*
        }

        impl $name {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$word,)*];

            /// The word as it is written.
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
