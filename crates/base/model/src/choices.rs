//! Settings of a function with a fixed set of values, each with the word it is written as.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            $(
                $(#[$vdoc])*
                #[serde(rename = $word)]
                // The schema's derive does not see serde's words through a macro.
                #[cfg_attr(feature = "openapi", schema(rename = $word))]
                $variant,
            )*
        }

        impl $name {
            /// Every value with the word it is written as.
            pub const ALL: &[(&str, Self)] = &[$(($word, Self::$variant),)*];

            /// The word it is written as.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// What the handler is called with.
    Interface {
        /// `handler(event, context)`.
        Event = "event",
        /// An ASGI 3 application.
        Asgi = "asgi",
        /// A WSGI application (PEP 3333).
        Wsgi = "wsgi",
        /// An HTTP server of the function's own.
        Http = "http",
    }
}
words! {
    /// How a container is spoken to.
    Contract {
        /// It serves HTTP on `$PORT`.
        Http = "http",
        /// It polls the Lambda Runtime API.
        Provided = "provided",
        /// The deployed code is loaded into a pre-warmed container of the image; per invocation its command gets the event on
        /// standard input and writes the answer to standard output.
        Shim = "shim",
    }
}
words! {
    /// What a worker can reach.
    Network {
        /// Its own loopback device.
        None = "none",
        /// Other hosts, through address translation; not this one, and nobody can call in.
        Outbound = "outbound",
        /// The host's network as it is.
        Host = "host",
    }
}
words! {
    /// Where workers come from.
    TemplateMode {
        /// Forked from a template.
        On = "on",
        /// A fresh interpreter each time.
        Off = "off",
    }
}
words! {
    /// How often a worker is used.
    Reuse {
        /// Until it has been idle for long.
        Always = "always",
        /// For one invocation.
        Once = "once",
    }
}
