//! Settings of a function with a fixed set of values, each with its word in `pilot.toml`.

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
                // The derive of the schema cannot see serde's attributes through a macro.
                #[cfg_attr(feature = "openapi", schema(rename = $word))]
                $variant,
            )*
        }

        impl $name {
            /// Every value with its word.
            pub const ALL: &[(&str, Self)] = &[$(($word, Self::$variant),)*];

            /// Its word.
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
        /// The function's own HTTP server.
        Http = "http",
    }
}
words! {
    /// How the daemon talks to a container.
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
    /// What a function may do with the root file system of its container.
    RootAccess {
        /// It may write anywhere. The container is then not reused.
        Writable = "writable",
        /// It may write only to the folders that are emptied.
        ReadOnly = "read-only",
    }
}
words! {
    /// What a worker can connect to.
    Network {
        /// Only its own loopback device.
        None = "none",
        /// Other hosts, through address translation. It cannot connect to this host, and nobody can connect to it.
        Outbound = "outbound",
        /// The host's network.
        Host = "host",
    }
}
words! {
    /// How workers are started.
    TemplateMode {
        /// Forked from a template.
        On = "on",
        /// A fresh interpreter for each worker.
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
