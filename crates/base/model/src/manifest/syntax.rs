//! What is wrong with a text that is not TOML, in the words of somebody who does not know TOML's. Values are not repeated: the daemon's
//! configuration may have tokens.

use std::ops::Range;

/// What is wrong with a text that is not TOML.
#[must_use]
pub fn syntax_in_words(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let Some(span) = error.span() else {
        return message.to_owned();
    };
    // The words of `toml` do not name a key that is there twice.
    if message == "duplicate key"
        && let Some(key) = text.get(span.clone())
    {
        return format!("the key {key} is there twice");
    }
    let is_of_a_value = OF_A_VALUE.iter().any(|start| message.starts_with(start));
    let problem = is_of_a_value.then(|| of_a_value(text, &span)).flatten();
    problem.unwrap_or_else(|| match message.starts_with(UNQUOTED) {
        true => "a text needs quotes, for example \"a\"".to_owned(),
        false => message.to_owned(),
    })
}

/// What is wrong with the value in the line of the error. `None`: it has quotes or brackets, or there is none.
fn of_a_value(text: &str, span: &Range<usize>) -> Option<String> {
    let before = text.get(..span.start)?;
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text.get(begin..)?.lines().next()?;
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next()?.trim());
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if key.is_empty() || !key.bytes().all(is_key) {
        return None;
    }
    Some(match value.chars().next() {
        None => format!("{key} has no value"),
        Some('"' | '\'' | '[' | '{') => return None,
        Some('“' | '”' | '„' | '‘' | '’') => {
            format!("{key}: a text needs straight quotes: {key} = \"…\"")
        }
        _ if value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false") => {
            format!("{key}: true and false have small letters")
        }
        _ if is_number_with_unit(value) => format!("{key}: a number has no unit{}", unit_of(key)),
        _ => format!("{key}: a text needs quotes: {key} = \"…\""),
    })
}

/// Whether it is like `256MB`, `1.5 s` and `80%`.
pub(super) fn is_number_with_unit(value: &str) -> bool {
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '_');
    let number = &value[..value.len() - unit.len()];
    let unit = unit.trim_start();
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.parse::<f64>().is_ok()
        && !unit.is_empty()
        && unit.chars().all(|c| c.is_ascii_alphabetic() || c == '%')
}

/// The unit of a key's value, with a comma before it. Empty: unknown.
pub(super) fn unit_of(key: &str) -> &'static str {
    let units = [
        ("_mb", ", it is in MB"),
        ("_ms", ", it is in milliseconds"),
        ("_us", ", it is in microseconds"),
        ("_s", ", it is in seconds"),
        ("_percent", ", it is in per cent"),
    ];
    units
        .iter()
        .find(|(end, _)| key.ends_with(end))
        .map_or("", |(_, unit)| unit)
}

/// How the messages of `toml` begin where a value is neither of the kinds that have no quotes nor quoted.
const OF_A_VALUE: [&str; 5] = [
    UNQUOTED,
    "invalid float",
    "invalid boolean",
    "invalid mantissa",
    "invalid datetime",
];
const UNQUOTED: &str = "string values must be quoted";

#[cfg(test)]
mod tests {
    use super::super::Manifest;

    fn problem_of(text: &str) -> String {
        Manifest::parse(text, "pilot.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_value_without_quotes_and_a_number_with_a_unit_are_said_in_plain_words() {
        for (line, wanted) in [
            (
                "network = none",
                "network: a text needs quotes: network = \"…\"",
            ),
            (
                "listen = 127.0.0.1:8080",
                "listen: a text needs quotes: listen = \"…\"",
            ),
            ("level = info", "level: a text needs quotes: level = \"…\""),
            (
                "path = ./x # here",
                "path: a text needs quotes: path = \"…\"",
            ),
            (
                "handler = “app.run”",
                "handler: a text needs straight quotes: handler = \"…\"",
            ),
            (
                "by_reference = True",
                "by_reference: true and false have small letters",
            ),
            (
                "memory_mb = 256MB",
                "memory_mb: a number has no unit, it is in MB",
            ),
            (
                "timeout_s = 1.5 s",
                "timeout_s: a number has no unit, it is in seconds",
            ),
            ("timeout_s =", "timeout_s has no value"),
            ("layers = [a, b]", "a text needs quotes, for example \"a\""),
            (
                "memory_mb = \"256MB\"",
                "functions.a.memory_mb: is \"256MB\", must be a whole number, not below 0; without quotes and without a unit, it is in MB",
            ),
            (
                "timeout_s = \"30\"",
                "functions.a.timeout_s: is \"30\", must be a number; without quotes",
            ),
            (
                "timeout_s = \"long\"",
                "functions.a.timeout_s: is \"long\", must be a number",
            ),
        ] {
            let problem = problem_of(&format!("[functions.a]\n{line}\n"));
            assert_eq!(problem, format!("pilot.toml:2: {wanted}"), "{line}");
        }
    }
}
