//! The known word that the user probably meant. Every message about a wrong key or name suggests it.

/// Serde's "unknown field `x`, expected one of `a`, `b`" with the nearest of the expected ones put first.
#[must_use]
pub fn with_nearest_key(message: &str) -> String {
    let Some(rest) = message.strip_prefix("unknown field `") else {
        return message.to_owned();
    };
    let mut quoted = rest.split('`');
    let Some(unknown) = quoted.next() else {
        return message.to_owned();
    };
    // Between two quoted words is ", " or " expected …", so every second piece is a name.
    let known = quoted.skip(1).step_by(2);
    let known: Vec<&str> = known.filter(|key| !FORMER_KEYS.contains(key)).collect();
    let hint = nearest(unknown, known.iter().copied())
        .map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
    format!(
        "unknown key '{unknown}'{hint} (known: {})",
        known.join(", ")
    )
}

/// Keys that were renamed: still accepted for one release, but never suggested.
const FORMER_KEYS: [&str; 1] = ["parked"];

/// The known word that is most similar to `word`, if it is similar enough to be a typing error.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
