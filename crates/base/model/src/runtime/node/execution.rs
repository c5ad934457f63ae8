//! Node's execution options: the environment variables that a Node.js reads only when it starts. A pre-warmed process has read
//! them before its function is known, so they are settings of the runtime
//! ([`RuntimeSpec::execution`](crate::runtime_key::RuntimeSpec::execution)), and it is started with them.
//!
//! Variables and options that the worker can apply later to a running process are not included (`node/lib/specialise.js`: `TZ`,
//! `NODE_PATH`, `NODE_COMPILE_CACHE`, and the options in [`LATE`]). Functions that differ only in those share pre-warmed
//! processes.

use std::collections::BTreeMap;

use super::LANG;

/// Variables that are read at the start: by Node ("Environment variables" in its command line documentation), libuv, OpenSSL,
/// ICU, the C library and the dynamic linker.
const READ_AT_START: [&str; 22] = [
    "GLIBC_TUNABLES",
    "LANG",
    "LC_ALL",
    "LC_MESSAGES",
    "NODE_DEBUG",
    "NODE_DEBUG_NATIVE",
    "NODE_EXTRA_CA_CERTS",
    "NODE_ICU_DATA",
    "NODE_NO_WARNINGS",
    "NODE_PENDING_DEPRECATION",
    "NODE_PRESERVE_SYMLINKS",
    "NODE_PRESERVE_SYMLINKS_MAIN",
    "NODE_REDIRECT_WARNINGS",
    USE_PROXY,
    "NODE_USE_SYSTEM_CA",
    "NODE_V8_COVERAGE",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "UV_THREADPOOL_SIZE",
    "UV_USE_IO_URING",
];

/// Prefixes of more such variables: of the dynamic linker, the C library's allocator and others.
const READ_AT_START_ALL: [&str; 2] = ["LD_", "MALLOC_"];

/// Its value is also read at the start, except for the options in [`LATE`].
const OPTIONS: &str = "NODE_OPTIONS";

/// Options that are applied late. One with an argument takes the next word, unless it has a `=`.
const LATE: [(&str, Argument); 4] = [
    ("--enable-source-maps", Argument::None),
    ("--import", Argument::One),
    ("--require", Argument::One),
    ("-r", Argument::One),
];

/// If this variable or its option is set, `fetch` and `http` read the proxy variables at the start.
const USE_PROXY: &str = "NODE_USE_ENV_PROXY";
const USE_PROXY_OPTION: &str = "--use-env-proxy";
const PROXIES: [&str; 3] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    None,
    One,
}

/// The variables with which a Node.js must be started, in addition to the usual ones. An empty value has no effect and is left
/// out.
pub(super) fn of_node(environment: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let options = environment.get(OPTIONS).map(|text| at_start(text));
    let options = options.filter(|options| !options.is_empty());
    let uses_proxy = environment.get(USE_PROXY).is_some_and(|value| value == "1")
        || options.as_ref().is_some_and(|options| {
            words(options)
                .iter()
                .any(|word| word.text == USE_PROXY_OPTION)
        });
    let set = environment.iter();
    let set =
        set.filter(|(name, value)| !value.is_empty() && (name.as_str(), value.as_str()) != LANG);
    let mut execution: Vec<_> = set
        .filter(|(name, _)| {
            let is_prefixed = READ_AT_START_ALL
                .iter()
                .any(|prefix| name.starts_with(prefix));
            let is_proxy = || PROXIES.iter().any(|proxy| name.eq_ignore_ascii_case(proxy));
            READ_AT_START.contains(&name.as_str()) || is_prefixed || (uses_proxy && is_proxy())
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    execution.extend(options.map(|options| (OPTIONS.to_owned(), options)));
    execution
}

/// These options without the late ones, spelled as they were.
fn at_start(options: &str) -> String {
    let mut kept = Vec::new();
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        let (name, has_argument) = match word.text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.text.as_str(), false),
        };
        match LATE.iter().find(|(late, _)| *late == name) {
            Some((_, Argument::One)) if !has_argument => drop(words.next()),
            Some(_) => {}
            None => kept.push(word.written),
        }
    }
    kept.join(" ")
}

/// A word of `NODE_OPTIONS`.
struct Word<'a> {
    /// Its value.
    text: String,
    /// Its spelling.
    written: &'a str,
}

/// Splits as Node does: at spaces outside of double quotes; inside quotes, a backslash escapes the next character. Unclosed
/// quotes are left for Node to report.
fn words(options: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut begin = None;
    let mut text = String::new();
    let mut is_quoted = false;
    let mut letters = options.char_indices();
    while let Some((at, letter)) = letters.next() {
        if letter == ' ' && !is_quoted {
            if let Some(begin) = begin.take() {
                words.push(Word {
                    text: std::mem::take(&mut text),
                    written: &options[begin..at],
                });
            }
            continue;
        }
        begin.get_or_insert(at);
        match letter {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => text.extend(letters.next().map(|(_, escaped)| escaped)),
            _ => text.push(letter),
        }
    }
    if let Some(begin) = begin {
        words.push(Word {
            text,
            written: &options[begin..],
        });
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        of_node(&owned.collect())
    }

    fn options(text: &str) -> Option<String> {
        let mut execution = execution(&[("NODE_OPTIONS", text)]);
        assert!(execution.len() < 2);
        execution.pop().map(|(_, value)| value)
    }

    #[test]
    fn what_node_reads_at_its_start_is_an_execution_option_and_nothing_else_is() {
        let variables = [
            ("AWS_LAMBDA_LOG_FORMAT", "JSON"),
            ("HTTP_PROXY", "http://proxy:1"),
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "de_DE.UTF-8"),
            ("LD_PRELOAD", "/var/task/lib.so"),
            ("MALLOC_ARENA_MAX", "2"),
            ("NODE_EXTRA_CA_CERTS", "/var/task/ca.pem"),
            ("NODE_ICU_DATA", ""),
            ("NODE_PATH", "/var/task/lib"),
            ("TABLE", "orders"),
            ("TZ", "Asia/Tokyo"),
            ("UV_THREADPOOL_SIZE", "8"),
        ];
        let execution = execution(&variables);
        let names: Vec<_> = execution.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "LC_ALL",
                "LD_PRELOAD",
                "MALLOC_ARENA_MAX",
                "NODE_EXTRA_CA_CERTS",
                "UV_THREADPOOL_SIZE"
            ]
        );
        assert_eq!(execution[4].1, "8");
    }

    #[test]
    fn options_that_are_applied_late_are_not_among_them() {
        assert_eq!(options(""), None);
        assert_eq!(options("  "), None);
        assert_eq!(
            options(
                "--enable-source-maps --require ./a.js -r \"./b c.js\" --import=./d.mjs --require=e"
            ),
            None
        );
        assert_eq!(
            options(
                " --max-old-space-size=100 -r ./a.js --title \"a \\\" b\"  --enable-source-maps --no-warnings"
            )
            .as_deref(),
            Some("--max-old-space-size=100 --title \"a \\\" b\" --no-warnings")
        );
        // Unclosed quotes stay as they are.
        assert_eq!(options("--title \"a b").as_deref(), Some("--title \"a b"));
        // Quotes are not part of a name.
        assert_eq!(options("\"--require\" ./a.js"), None);
    }

    #[test]
    fn proxies_are_read_at_the_start_where_node_is_to_use_them() {
        let proxies = [("HTTPS_PROXY", "http://proxy:1"), ("no_proxy", "localhost")];
        assert!(execution(&proxies).is_empty());
        for switch in [
            ("NODE_USE_ENV_PROXY", "1"),
            ("NODE_OPTIONS", "--use-env-proxy"),
        ] {
            let execution = execution(&[proxies[0], proxies[1], switch]);
            assert_eq!(execution.len(), 3, "{execution:?}");
        }
    }
}
