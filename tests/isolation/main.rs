//! Escape attempts. Hostile functions are deployed on the real daemon and try to see, touch, outgrow or end what is not
//! theirs; each attempt is printed as PASS (held), FAIL (got out) or SKIP (with the reason, loudly).
//!
//! The last line is `N passed, N failed, N skipped`; the exit status is 1 when anything failed. Without root there are
//! no namespaces and cgroups of their own, so everything is skipped. An argument runs only the attempts whose name holds
//! it. The attempts themselves are in `hostile.py`.

#![expect(
    clippy::unwrap_used,
    reason = "test code: a panic is caught and printed as a failed attempt"
)]

mod calls;
mod files;
mod ground;
mod import;
mod limits;
mod others;
mod privileges;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use ground::Ground;

/// How an attempt ended.
enum Verdict {
    /// Isolation held; what was seen.
    Pass(String),
    /// It did not; what got out.
    Fail(String),
    /// It could not be tried here, and why.
    Skip(String),
}

/// One attempt, named by what must not be possible.
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
    // What `cargo nextest list` and `cargo test -- --list` ask a target for.
    if arguments.iter().any(|argument| argument == "--list") {
        println!("isolation: test");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-') && *argument != "isolation")
        .collect();
    let attempts: Vec<Attempt> = [
        privileges::attempts(),
        calls::attempts(),
        files::attempts(),
        others::attempts(),
        limits::attempts(),
        import::attempts(),
    ]
    .into_iter()
    .flatten()
    .filter(|attempt| wanted.is_empty() || wanted.iter().any(|word| attempt.name.contains(*word)))
    .collect();

    if !pilot_harness::is_root() {
        for attempt in &attempts {
            println!("SKIP  {} (needs root: namespaces, cgroups)", attempt.name);
        }
        println!("\n*** NOTHING WAS TRIED: the isolation suite needs root ***");
        println!("0 passed, 0 failed, {} skipped", attempts.len());
        return ExitCode::SUCCESS;
    }
    tally(&attempts)
}

fn tally(attempts: &[Attempt]) -> ExitCode {
    // A panic is a failed attempt, printed as one; its backtrace would only hide the list.
    std::panic::set_hook(Box::new(|_| {}));
    let ground = match catch_unwind(Ground::prepare) {
        Ok(ground) => ground,
        Err(panic) => {
            println!(
                "FAIL  the hostile functions could not be deployed: {}",
                message(&*panic)
            );
            println!("0 passed, 1 failed, {} skipped", attempts.len());
            return ExitCode::FAILURE;
        }
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for attempt in attempts {
        let verdict = catch_unwind(AssertUnwindSafe(|| (attempt.run)(&ground)))
            .unwrap_or_else(|panic| Verdict::Fail(message(&*panic)));
        match verdict {
            Verdict::Pass(seen) => {
                passed += 1;
                println!("PASS  {}{}", attempt.name, bracketed(&seen));
            }
            Verdict::Fail(seen) => {
                failed += 1;
                println!("FAIL  {}{}", attempt.name, bracketed(&seen));
            }
            Verdict::Skip(reason) => {
                skipped += 1;
                println!("SKIP  {}{}", attempt.name, bracketed(&reason));
            }
        }
    }
    if skipped > 0 {
        println!("\n*** {skipped} attempts were SKIPPED; what they would show is not known ***");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    drop(ground);
    if failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
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
