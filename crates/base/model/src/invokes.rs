//! Which functions a function may invoke: the key `invokes`. By default none.

use serde::{Deserialize, Serialize};

use crate::ids::FunctionName;

/// The functions that a function may invoke.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Invokes {
    /// Names, or the beginning of names and `*`.
    pub names: Vec<String>,
    /// Only functions of the same owner: it was deployed with a token that is for one owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_only: bool,
}

impl Invokes {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether one of the entries names this function.
    #[must_use]
    pub fn names(&self, function: &str) -> bool {
        is_named(&self.names, function)
    }
}

/// Whether one of the entries is this function's name, or the beginning of it and `*`.
#[must_use]
pub fn is_named(entries: &[String], function: &str) -> bool {
    entries.iter().any(|entry| match entry.strip_suffix('*') {
        Some(beginning) => function.starts_with(beginning),
        None => function == entry,
    })
}

/// Refuses what [`is_named`] would take for the name of no function.
///
/// # Errors
/// Which entry, and what it must be.
pub fn check_entries(entries: &[String]) -> Result<(), String> {
    for entry in entries {
        let beginning = entry.strip_suffix('*');
        let is_all = beginning == Some("");
        if !is_all && beginning.unwrap_or(entry).parse::<FunctionName>().is_err() {
            return Err(format!(
                "has '{}': an entry is a function's name, or the beginning of names and *",
                entry.escape_debug().take(100).collect::<String>()
            ));
        }
    }
    Ok(())
}

/// The message for a function that is not in the list.
#[must_use]
pub fn not_named(caller: &FunctionName, target: &str) -> String {
    let target: String = target.escape_debug().take(100).collect();
    format!(
        "function '{caller}' may not invoke '{target}': add it to invokes of [functions.{caller}] in pilot.toml and deploy again"
    )
}

/// Checks the list. `can_invoke`: the runtime and the interface have a way to invoke.
pub(crate) fn check(names: &[String], own_only: bool, can_invoke: bool) -> Result<Invokes, String> {
    if names.is_empty() {
        return Ok(Invokes::default());
    }
    if !can_invoke {
        return Err(
            "needs interface = \"event\", and runtime = \"python\" or \"node\": no other function can invoke others yet"
                .to_owned(),
        );
    }
    if names.len() > NAMES_MAX {
        return Err(format!(
            "has {} entries, may have at most {NAMES_MAX}",
            names.len()
        ));
    }
    check_entries(names)?;
    Ok(Invokes {
        names: names.to_vec(),
        own_only,
    })
}

/// Checks whether data goes to other functions by reference.
pub(crate) fn check_by_reference(
    by_reference: Option<bool>,
    invokes: &Invokes,
) -> Result<bool, String> {
    if by_reference.is_some() && invokes.is_empty() {
        return Err("says how data goes to other functions, and invokes names none: leave it out, or add invokes".to_owned());
    }
    Ok(by_reference.unwrap_or(true))
}

/// Maximum number of entries.
const NAMES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use crate::config::FunctionConfig;
    use crate::spec::FunctionSpec;

    fn config(name: &str, toml: &str) -> Result<FunctionConfig, String> {
        let toml = format!("handler = \"a.b\"\n{toml}");
        let spec: FunctionSpec = toml::from_str(&toml).map_err(|error| error.to_string())?;
        let config = spec.check(&name.parse().unwrap());
        config.map_err(|error| error.to_string())
    }

    #[test]
    fn a_function_invokes_what_it_names_and_by_default_nothing() {
        let named = config("first", "invokes = [\"next\", \"team-*\"]").unwrap();
        let none = config("first", "").unwrap();
        for (target, may) in [
            ("next", true),
            ("team-a", true),
            ("next2", false),
            ("tea", false),
        ] {
            let target = config(target, "").unwrap();
            assert_eq!(named.may_invoke(&target).is_ok(), may, "{}", target.name);
            let problem = none.may_invoke(&target).unwrap_err();
            assert!(
                problem.contains("add it to invokes of [functions.first]"),
                "{problem}"
            );
        }
        let all = config("first", "runtime = \"node\"\ninvokes = [\"*\"]").unwrap();
        assert!(all.may_invoke(&none).is_ok());
    }

    #[test]
    fn a_token_for_one_owner_stays_with_its_owner() {
        let mut caller = config("first", "invokes = [\"*\"]\nowner = \"us\"").unwrap();
        let ours = config("ours", "owner = \"us\"").unwrap();
        let theirs = config("theirs", "owner = \"them\"").unwrap();
        assert!(caller.may_invoke(&theirs).is_ok());
        caller.invokes.own_only = true;
        assert!(caller.may_invoke(&ours).is_ok());
        let problem = caller.may_invoke(&theirs).unwrap_err();
        assert!(problem.contains("for the owner 'us'"), "{problem}");
    }

    #[test]
    fn data_goes_by_reference_unless_that_is_switched_off() {
        for (toml, by_reference) in [
            ("", true),
            ("invokes = [\"next\"]", true),
            ("invokes = [\"next\"]\nby_reference = true", true),
            ("invokes = [\"next\"]\nby_reference = false", false),
        ] {
            assert_eq!(config("first", toml).unwrap().by_reference, by_reference);
        }
        let found = config("first", "by_reference = false").unwrap_err();
        assert!(
            found.contains("functions.first.by_reference: ")
                && found.contains("invokes names none"),
            "{found}"
        );
    }

    #[test]
    fn a_bad_entry_names_itself() {
        for (toml, problem) in [
            ("invokes = [\"a b\"]", "functions.first.invokes: has 'a b'"),
            ("invokes = [\"a*b\"]", "has 'a*b'"),
            ("invokes = [\"\"]", "has ''"),
            (
                "invokes = [\"x\"]\ninterface = \"wsgi\"",
                "needs interface = \"event\", and runtime = \"python\" or \"node\"",
            ),
            (
                "invokes = [\"x\"]\nruntime = \"provided\"",
                "needs interface = \"event\", and runtime = \"python\" or \"node\"",
            ),
        ] {
            let found = config("first", toml).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
