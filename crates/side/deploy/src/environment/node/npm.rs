//! npm: the command that installs a set, the lines of its output that show progress, and the cause of a failure in its output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use pilot_model::ports::BuildCommand;

use super::super::config::SourceBuilds;
use super::super::error::InstallFailure;

/// An installation.
#[derive(Debug)]
pub(super) struct Installation<'a> {
    pub(super) npm: &'a Path,
    /// The folder of its Node.js.
    pub(super) node_dir: &'a Path,
    /// The PATH of other programs that install scripts need.
    pub(super) search_path: &'a OsString,
    /// The folder with the `package.json`, in which npm creates `node_modules`.
    pub(super) folder: &'a Path,
    pub(super) versions: Versions,
    /// Whether install scripts may run.
    pub(super) source_builds: SourceBuilds,
}

/// What decides the versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Versions {
    /// A lockfile.
    Locked,
    /// The registry: the newest versions that fit.
    Open,
}

impl Installation<'_> {
    /// The command. It uses the operator's configuration (`~/.npmrc`, `npm_config_*`).
    pub(super) fn command(&self) -> BuildCommand {
        let mut arguments = vec![match self.versions {
            Versions::Locked => "ci",
            Versions::Open => "install",
        }];
        arguments.extend(["--omit=dev", "--no-audit", "--no-fund", "--no-progress"]);
        arguments.extend(["--no-update-notifier", "--loglevel=http"]);
        if self.source_builds == SourceBuilds::Refused {
            arguments.push("--ignore-scripts");
        }
        let own = [self.node_dir.to_owned()];
        let path = std::env::join_paths(
            own.into_iter()
                .chain(std::env::split_paths(self.search_path)),
        );
        // The first line of the npm script names `node`, which must be the one that was found.
        let path = path.unwrap_or_else(|_| self.search_path.clone());
        BuildCommand {
            program: self.npm.to_owned(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            environment: vec![("PATH".to_owned(), path.to_string_lossy().into_owned())],
            cwd: self.folder.to_owned(),
        }
    }
}

/// A line of npm's output that shows progress, as text for people.
pub(super) fn progress(line: &str) -> Option<String> {
    let line = line.trim();
    if ["added ", "changed ", "up to date"]
        .iter()
        .any(|start| line.starts_with(start))
    {
        return Some(line.to_owned());
    }
    let mut words = line.strip_prefix("npm http fetch GET 200 ")?.split(' ');
    let url = words.next()?;
    let (_, path) = url.split_once("://")?.1.split_once('/')?;
    Some(match path.rsplit_once("/-/") {
        Some((_, file)) => {
            let file = file.split(['?', '#']).next().unwrap_or(file);
            format!("Downloaded {}", file.trim_end_matches(".tgz"))
        }
        None => {
            let name = path.replace("%2f", "/").replace("%2F", "/");
            format!("Resolving {name}")
        }
    })
}

/// The part of npm's output that explains a failure: without fetches, the usage text, and the path of its log.
pub(super) fn telling(output: &str) -> String {
    let mut text = String::new();
    for line in output.lines() {
        let bare = bare(line);
        if bare == "Usage:" || bare.starts_with("Clean install a project") {
            break;
        }
        let noise = line.starts_with("npm http ")
            || line.starts_with("npm warn Unknown ")
            || bare.starts_with("A complete log of this run");
        if !noise {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Finds the cause in a failed npm's output.
pub(super) fn failure(output: &str, declared: &BTreeMap<String, String>) -> InstallFailure {
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| is_error(line))
        .map(bare)
        .filter(|line| !line.is_empty())
        .collect();
    let code = lines
        .iter()
        .find_map(|line| line.strip_prefix("code "))
        .unwrap_or("");
    let told = lines
        .iter()
        .copied()
        .filter(|line| !META.iter().any(|start| line.starts_with(start)));
    let first = told.clone().next().unwrap_or("it said nothing");
    let reason = match code {
        "E404" => "the registry has no such package (404)".to_owned(),
        "ETARGET" | "ENOVERSIONS" => containing(&lines, "No matching version found for")
            .map_or(first, |line| line.trim_end_matches('.'))
            .to_owned(),
        "EUSAGE" => match told.clone().find(|line| is_difference(line)) {
            Some(difference) => format!(
                "package.json and the lockfile do not agree ({difference}); run `npm install` and deploy again"
            ),
            None => first.to_owned(),
        },
        "ERESOLVE" => {
            let conflict = containing(&lines, "Could not resolve dependency")
                .and_then(|at| lines.iter().skip_while(|line| **line != at).nth(1));
            format!(
                "packages want versions that exclude one another ({})",
                conflict.map_or(first, |line| line)
            )
        }
        _ if NETWORK.contains(&code) => {
            let said = containing(&lines, "reason: ")
                .and_then(|line| line.split_once("reason: "))
                .map_or(first, |(_, reason)| reason);
            format!("the registry could not be reached ({said})")
        }
        _ if containing(&lines, "command failed").is_some() => {
            let ran = lines
                .iter()
                .find_map(|line| line.strip_prefix("command sh -c "));
            format!("its install script failed ({})", ran.unwrap_or(code))
        }
        "" => first.to_owned(),
        _ => format!("{first} ({code})"),
    };
    // In these cases no dependency is at fault.
    let of_no_package = code == "EUSAGE" || NETWORK.contains(&code);
    InstallFailure {
        at_fault: (!of_no_package)
            .then(|| at_fault(&lines, declared))
            .flatten()
            .map(|name| match declared.get(&name) {
                Some(wanted) if !wanted.is_empty() => format!("{name}@{wanted}"),
                _ => name,
            }),
        reason,
    }
}

/// The declared package that a line names with a version, or without one; otherwise the package whose folder a line names.
fn at_fault(lines: &[&str], declared: &BTreeMap<String, String>) -> Option<String> {
    let mut names: Vec<(bool, &str)> = Vec::new();
    for line in lines {
        let words = line
            .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '(' | ')' | ','));
        for word in words.filter(|word| !word.is_empty()) {
            // `@scope/name@1.2`: the version begins at the first @ that is not the first character.
            let version = word.char_indices().skip(1).find(|(_, c)| *c == '@');
            let end = version.map_or(word.len(), |(at, _)| at);
            names.push((version.is_none(), &word[..end]));
        }
    }
    // The sort is stable and keeps the order of the text within each kind.
    names.sort_by_key(|(bare, _)| *bare);
    let named = names
        .iter()
        .find(|(_, name)| declared.contains_key(*name))
        .map(|(_, name)| (*name).to_owned());
    let folder = || {
        let path = lines.iter().find_map(|line| line.strip_prefix("path "))?;
        let (_, name) = path.rsplit_once("node_modules/")?;
        Some(name.to_owned())
    };
    named.or_else(folder)
}

fn containing<'a>(lines: &[&'a str], words: &str) -> Option<&'a str> {
    lines.iter().copied().find(|line| line.contains(words))
}

fn is_difference(line: &str) -> bool {
    line.starts_with("Missing: ") || line.starts_with("Invalid: ")
}

fn is_error(line: &str) -> bool {
    MARKS.iter().any(|mark| line.starts_with(mark))
}

/// A line without npm's prefix, and without the label of some messages.
fn bare(line: &str) -> &str {
    let mut line = line.trim();
    for mark in MARKS {
        line = line.strip_prefix(mark).unwrap_or(line).trim();
    }
    for label in ["404", "notarget", "network", "notsup", "ERESOLVE"] {
        if let Some(rest) = line.strip_prefix(label)
            && (rest.is_empty() || rest.starts_with(' '))
        {
            line = rest.trim();
        }
    }
    line
}

/// The prefixes; `npm ERR!` is that of npm up to version 10.
const MARKS: [&str; 2] = ["npm error", "npm ERR!"];
/// Labels of lines that add values to the message.
const META: [&str; 9] = [
    "code ",
    "errno ",
    "syscall ",
    "path ",
    "dest ",
    "command ",
    "A complete log",
    "at ",
    "code:",
];
const NETWORK: [&str; 11] = [
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "EHOSTUNREACH",
    "ERR_SOCKET_TIMEOUT",
    "ERR_INVALID_URL",
    "CERT_HAS_EXPIRED",
    "SELF_SIGNED_CERT_IN_CHAIN",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, wanted)| ((*name).to_owned(), (*wanted).to_owned()))
            .collect()
    }

    fn told(output: &str, pairs: &[(&str, &str)]) -> (Option<String>, String) {
        let failure = failure(output, &declared(pairs));
        (failure.at_fault, failure.reason)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_package_that_does_not_exist_is_named() {
        for mark in MARKS {
            let output = format!(
                "npm http fetch GET 404 https://registry.example/left-padd 300ms\n\
                 {mark} code E404\n{mark} 404 Not Found - GET https://registry.example/left-padd\n{mark} 404\n\
                 {mark} 404  The requested resource 'left-padd@^1' could not be found or you do not have permission to access it.\n\
                 {mark} 404\n{mark} 404 Note that you can also install from a\n{mark} 404 tarball, folder, http url, or git url.\n"
            );
            assert_eq!(
                told(&output, &[("express", "5"), ("left-padd", "^1")]),
                (
                    some("left-padd@^1"),
                    "the registry has no such package (404)".to_owned()
                )
            );
        }
    }

    #[test]
    fn a_version_that_does_not_exist_is_named() {
        let output = "npm error code ETARGET\nnpm error notarget No matching version found for @scope/is-number@99.0.0.\n\
            npm error notarget In most cases you or one of your dependencies are requesting a package version that doesn't exist.\n\
            npm error A complete log of this run can be found in: /root/.npm/_logs/x.log\n";
        assert_eq!(
            told(
                output,
                &[("@scope/is-number", "99.0.0"), ("is-number", "1")]
            ),
            (
                some("@scope/is-number@99.0.0"),
                "No matching version found for @scope/is-number@99.0.0".to_owned()
            )
        );
    }

    #[test]
    fn a_lockfile_that_does_not_agree_says_what_to_run() {
        let output = "npm error code EUSAGE\nnpm error\n\
            npm error `npm ci` can only install packages when your package.json and package-lock.json or npm-shrinkwrap.json are in sync.\n\
            npm error\nnpm error Invalid: lock file's is-number@7.0.0 does not satisfy is-number@6.0.0\n\
            npm error Missing: is-odd@3.0.1 from lock file\nnpm error\nnpm error Clean install a project\nnpm error\nnpm error Usage:\n\
            npm error npm ci\n";
        let (at_fault, reason) = told(output, &[("is-number", "6.0.0"), ("is-odd", "3.0.1")]);
        assert_eq!(at_fault, None);
        assert_eq!(
            reason,
            "package.json and the lockfile do not agree (Invalid: lock file's is-number@7.0.0 does not satisfy \
             is-number@6.0.0); run `npm install` and deploy again"
        );
        let tail = telling(output);
        assert!(
            tail.ends_with("is-odd@3.0.1 from lock file\nnpm error\n"),
            "{tail}"
        );
    }

    #[test]
    fn a_registry_out_of_reach_is_nobodys_fault() {
        for (output, wanted) in [
            (
                "npm error code ECONNREFUSED\nnpm error syscall connect\nnpm error errno ECONNREFUSED\n\
                 npm error FetchError: request to http://127.0.0.1:9/is-number failed, reason: connect ECONNREFUSED 127.0.0.1:9\n\
                 npm error     at ClientRequest.<anonymous> (x.js:130:14)\n",
                "the registry could not be reached (connect ECONNREFUSED 127.0.0.1:9)",
            ),
            (
                "npm ERR! code ENOTFOUND\nnpm ERR! syscall getaddrinfo\nnpm ERR! errno ENOTFOUND\n\
                 npm ERR! network request to https://registry.example/is-number failed, reason: getaddrinfo ENOTFOUND registry.example\n\
                 npm ERR! network This is a problem related to network connectivity.\n",
                "the registry could not be reached (getaddrinfo ENOTFOUND registry.example)",
            ),
        ] {
            assert_eq!(
                told(output, &[("is-number", "7")]),
                (None, wanted.to_owned())
            );
        }
    }

    #[test]
    fn an_install_script_that_fails_names_its_package() {
        let output = "npm error code 3\nnpm error path /stage/work/node_modules/@scope/bad\nnpm error command failed\n\
            npm error command sh -c node-gyp rebuild\nnpm error gyp ERR! not ok\n";
        assert_eq!(
            told(output, &[("express", "5")]),
            (
                some("@scope/bad"),
                "its install script failed (node-gyp rebuild)".to_owned()
            )
        );
    }

    #[test]
    fn versions_that_exclude_one_another_are_quoted() {
        let output = "npm error code ERESOLVE\nnpm error ERESOLVE unable to resolve dependency tree\nnpm error\n\
            npm error While resolving: undefined@undefined\nnpm error Found: react@18.3.1\nnpm error node_modules/react\n\
            npm error Could not resolve dependency:\nnpm error peer react@\"^17\" from old-widget@1.0.0\n";
        let (at_fault, reason) = told(output, &[("react", "18"), ("old-widget", "1")]);
        assert_eq!(at_fault, some("react@18"));
        assert_eq!(
            reason,
            "packages want versions that exclude one another (peer react@\"^17\" from old-widget@1.0.0)"
        );
    }

    #[test]
    fn what_is_not_known_is_told_with_its_code() {
        let output = "npm error code EINVALIDTAGNAME\nnpm error Invalid tag name \"@@@\" of package \"is-number@@@@\": Tags may not.\n";
        assert_eq!(
            told(output, &[("is-number", "@@@")]),
            (
                some("is-number@@@@"),
                "Invalid tag name \"@@@\" of package \"is-number@@@@\": Tags may not. (EINVALIDTAGNAME)".to_owned()
            )
        );
        assert_eq!(told("", &[]), (None, "it said nothing".to_owned()));
    }

    #[test]
    fn what_is_fetched_is_shown_by_name() {
        let shown = |line| progress(line).unwrap_or_default();
        assert_eq!(
            shown(
                "npm http fetch GET 200 https://registry.example/@scope%2fname 419ms (cache miss)"
            ),
            "Resolving @scope/name"
        );
        assert_eq!(
            shown("npm http fetch GET 200 https://registry.example/a/-/a-7.0.0.tgz 84ms"),
            "Downloaded a-7.0.0"
        );
        assert_eq!(shown("added 1 package in 1s"), "added 1 package in 1s");
        for silent in [
            "",
            "npm http cache is-number@x 0ms (cache hit)",
            "npm http fetch GET 404 https://x/y 1ms",
            "npm warn deprecated x",
        ] {
            assert_eq!(progress(silent), None, "{silent}");
        }
    }

    #[test]
    fn the_command_installs_what_runs_and_nothing_else() {
        let mut what = Installation {
            npm: Path::new("/opt/bin/npm"),
            node_dir: Path::new("/opt/node/bin"),
            search_path: &"/usr/bin:/bin".into(),
            folder: Path::new("/stage"),
            versions: Versions::Locked,
            source_builds: SourceBuilds::Allowed,
        };
        let words = |what: &Installation<'_>| what.command().arguments;
        let locked = words(&what);
        assert_eq!(
            locked[..5],
            [
                "ci",
                "--omit=dev",
                "--no-audit",
                "--no-fund",
                "--no-progress"
            ]
        );
        assert!(!locked.contains(&"--ignore-scripts".to_owned()));
        (what.versions, what.source_builds) = (Versions::Open, SourceBuilds::Refused);
        let open = words(&what);
        assert_eq!(
            (open[0].as_str(), open.last().map(String::as_str)),
            ("install", Some("--ignore-scripts"))
        );
        let path = ("PATH".to_owned(), "/opt/node/bin:/usr/bin:/bin".to_owned());
        assert_eq!(what.command().environment, [path]);
    }
}
