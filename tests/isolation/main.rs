//! Escape attempts. Hostile functions run on the real daemon and try to read, change or end what is not theirs, or to exceed their
//! limits. Each attempt is printed as PASS (isolation held), FAIL (the attempt succeeded) or SKIP (with the reason).
//!
//! The last line is `N passed, N failed, N skipped`. The exit status is 1 if an attempt failed. As root, all attempts run against a
//! daemon that is root, and those that need no limits also against one that is not. As another user, all attempts are skipped,
//! because only root can set up their environment. With an argument, only attempts whose name contains it run. The attempts are in
//! `hostile/`.

#![expect(
    clippy::unwrap_used,
    reason = "test code: a panic is caught and printed as a failed attempt"
)]

mod builds;
mod calls;
mod files;
mod ground;
mod hostile;
mod import;
mod limits;
mod loopback;
mod others;
mod privileges;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use ground::Ground;
use pilot_harness::Machine;

/// The result of an attempt.
enum Verdict {
    /// Isolation held, with what the attempt saw.
    Pass(String),
    /// The attempt succeeded, with what it got.
    Fail(String),
    /// It could not be tried, with the reason.
    Skip(String),
}

/// One attempt. Its name is what must not be possible.
struct Attempt {
    name: String,
    run: Box<dyn Fn(&Ground) -> Verdict>,
}

impl Attempt {
    fn new(name: impl Into<String>, run: impl Fn(&Ground) -> Verdict + 'static) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Used by `cargo nextest list` and `cargo test -- --list`.
    if arguments.iter().any(|argument| argument == "--list") {
        println!("isolation: test");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-') && *argument != "isolation")
        .collect();
    let chosen = |attempts: Vec<Attempt>| -> Vec<Attempt> {
        let is_wanted = |attempt: &Attempt| {
            wanted.is_empty() || wanted.iter().any(|word| attempt.name.contains(*word))
        };
        attempts.into_iter().filter(is_wanted).collect()
    };
    let grounds = [
        (Machine::AsItIs, chosen(as_root())),
        (Machine::WithoutRoot, chosen(without_root())),
    ];

    let mut tally = Tally::default();
    if !pilot_harness::is_root() {
        for attempt in grounds.iter().flat_map(|(_, attempts)| attempts) {
            tally.count(
                &attempt.name,
                &Verdict::Skip("needs root: namespaces, cgroups".to_owned()),
            );
        }
        println!("\n*** NOTHING WAS TRIED: the isolation suite needs root ***");
        return tally.close();
    }
    // A panic is printed as a failed attempt; backtraces would only hide the list.
    std::panic::set_hook(Box::new(|_| {}));
    for (machine, attempts) in &grounds {
        if !attempts.is_empty() {
            attack(*machine, attempts, &mut tally);
        }
    }
    tally.close()
}

fn as_root() -> Vec<Attempt> {
    [
        privileges::attempts(),
        calls::attempts(),
        files::attempts(),
        others::attempts(),
        loopback::attempts(),
        limits::attempts(),
        import::attempts(),
        builds::attempts(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The attempts that must also fail against a daemon that is not root. Such a daemon has no limits and no separate users.
fn without_root() -> Vec<Attempt> {
    let needs_users = |attempt: &Attempt| OF_USERS.iter().any(|part| attempt.name.contains(part));
    [
        privileges::attempts(),
        calls::attempts(),
        files::attempts(),
        others::attempts(),
        import::attempts(),
        builds::attempts(),
    ]
    .into_iter()
    .flatten()
    .filter(|attempt| !needs_users(attempt))
    .map(|Attempt { name, run }| Attempt::new(format!("without root: {name}"), run))
    .collect()
}

/// Attempts that the sandbox's own user prevents. Without root there is only the daemon's user, which is 0 inside.
const OF_USERS: [&str; 5] = [
    "only maps",
    "neither root nor in a group of the host",
    "cannot change user by",
    "at import: as root",
    "(limit)",
];

fn attack(machine: Machine, attempts: &[Attempt], tally: &mut Tally) {
    let ground = match catch_unwind(|| Ground::prepare(machine)) {
        Ok(ground) => ground,
        Err(panic) => {
            let problem = format!("{machine:?}: the hostile functions could not be deployed");
            tally.count(&problem, &Verdict::Fail(message(&*panic)));
            return;
        }
    };
    for attempt in attempts {
        let verdict = catch_unwind(AssertUnwindSafe(|| (attempt.run)(&ground)))
            .unwrap_or_else(|panic| Verdict::Fail(message(&*panic)));
        tally.count(&attempt.name, &verdict);
    }
}

/// Numbers of attempts by result.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Tally {
    fn count(&mut self, name: &str, verdict: &Verdict) {
        let (count, word, text) = match verdict {
            Verdict::Pass(seen) => (&mut self.passed, "PASS", seen),
            Verdict::Fail(seen) => (&mut self.failed, "FAIL", seen),
            Verdict::Skip(reason) => (&mut self.skipped, "SKIP", reason),
        };
        *count += 1;
        println!("{word}  {name}{}", bracketed(text));
    }

    fn close(&self) -> ExitCode {
        let Self {
            passed,
            failed,
            skipped,
        } = *self;
        if skipped > 0 {
            println!(
                "\n*** {skipped} attempts were SKIPPED; what they would show is not known ***"
            );
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed > 0 {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

fn bracketed(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let cut: String = text.chars().take(600).collect();
    format!("  [{}]", cut.replace('\n', " "))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}
