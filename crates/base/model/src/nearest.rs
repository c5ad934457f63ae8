//! The known word that the user probably meant. Every message about a wrong key or name suggests it.

/// Serde's "unknown field `x`, expected one of `a`, `b`" with the nearest of the expected ones put first.
#[must_use]
pub fn with_nearest_key(message: &str) -> String {
    let Some((unknown, known)) = unknown_key(message) else {
        return message.to_owned();
    };
    let hint = nearest(unknown, known.iter().copied())
        .map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
    format!(
        "unknown key '{unknown}'{hint} (known: {})",
        known.join(", ")
    )
}

/// The unknown key of such a message, and the known ones, without those that were renamed.
pub(crate) fn unknown_key(message: &str) -> Option<(&str, Vec<&str>)> {
    let mut quoted = message.strip_prefix("unknown field `")?.split('`');
    let unknown = quoted.next()?;
    // Between two quoted words is ", " or " expected …", so every second piece is a name.
    let known = quoted.skip(1).step_by(2);
    Some((
        unknown,
        known.filter(|key| !FORMER_KEYS.contains(key)).collect(),
    ))
}

/// Keys that were renamed: still accepted for one release, but never suggested.
const FORMER_KEYS: [&str; 1] = ["parked"];

/// The known word that `word` probably stands for: at most a third of its characters are wrong, missing, added or exchanged.
/// Upper and lower case are the same. `None`: no word is so near.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    known
        .filter_map(|candidate| {
            let lower = candidate.to_lowercase();
            let mistakes = strsim::damerau_levenshtein(&word, &lower);
            let length = word.chars().count().max(lower.chars().count());
            // One mistake in a short word, if it begins alike.
            let slip = mistakes == 1 && word.chars().next() == lower.chars().next();
            (mistakes <= length / 3 || slip).then(|| {
                // Of words that are equally near, the one that begins alike.
                (
                    mistakes,
                    1.0 - strsim::jaro_winkler(&word, &lower),
                    candidate,
                )
            })
        })
        .min_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)))
        .map(|(_, _, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
        nearest(word, known.iter().copied())
    }

    #[test]
    fn only_a_word_that_is_near_is_suggested() {
        assert_eq!(near("nothere", &["nser", "hello"]), None);
        assert_eq!(near("a", &["b", "c"]), None);
        assert_eq!(near("", &["b", "cd"]), None);
        assert_eq!(near("hh", &["k", "h"]), Some("h"));
        assert_eq!(near("greet", &["great", "meet", "grid"]), Some("great"));
        for (word, meant) in [
            ("invrt", "invert"),
            ("labb", "lab"),
            ("lap", "lab"),
            ("memroy_mb", "memory_mb"),
            ("memory", "memory_mb"),
            ("Handler", "handler"),
            ("cusmu", "cusum"),
            ("smoothing_markov", "smoothing-markov"),
        ] {
            assert_eq!(near(word, &["unlike", meant]), Some(meant), "{word}");
        }
    }

    #[test]
    fn a_long_word_costs_little_time() {
        let long = "x".repeat(100);
        assert_eq!(near(&long, &["handler", "memory_mb"]), None);
    }
}
