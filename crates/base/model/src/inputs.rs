//! Inputs: data that a function declares in `[functions.NAME.inputs]` and that is fetched while its worker starts. Here: what was
//! declared. The fetching is behind the port [`InputSource`](crate::ports::InputSource).

pub mod decoded;
mod location;
mod pick;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use pick::pick;

pub use decoded::{Decoded, Decoder, Form};
pub use location::{Location, Missing, Scheme, Values, check_key, keys};

/// Maximum number of inputs that a function declares. A call carries more descriptors than that:
/// [`INPUTS_MAX`](crate::ports::INPUTS_MAX).
pub const DECLARED_MAX: usize = 32;

/// Maximum number of inputs that a function reads while they arrive. Each takes one more descriptor of a call.
pub const STREAMED_MAX: usize = 8;

/// Maximum number of inputs of a function that are decoded. Their layouts are sent to the worker with each call.
pub const DECODED_MAX: usize = 8;

/// An input as the user wrote it: its location alone, or a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(
    untagged,
    expecting = "an input is a location such as \"s3://STORE/KEY\", or a table with `from` and perhaps `optional`, `stream` or `decode`"
)]
pub enum InputSpec {
    /// Its location.
    From(String),
    /// Its location and what else is known.
    Table(InputTable),
}

/// The table form of an [`InputSpec`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct InputTable {
    /// Its location.
    pub from: String,
    /// Whether the handler is called without it, and gets the error when it asks for the input.
    #[serde(default)]
    pub optional: bool,
    /// Whether the handler is called as soon as the store has answered, and reads the input while it arrives.
    #[serde(default)]
    pub stream: bool,
    /// What decodes the input before the handler gets it, while its worker starts: a [`Decoder`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<String>,
}

/// A checked input. Its name is the key of the map that it is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InputConfig {
    /// Where it is.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub from: Location,
    /// See [`InputTable::optional`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// See [`InputTable::stream`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// See [`InputTable::decode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Decoder>,
}

/// How the workers of a runtime take inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Takes {
    /// As descriptors. Otherwise their names become names of headers or variables.
    pub(crate) descriptors: bool,
    /// Also while they arrive.
    pub(crate) streams: bool,
    /// Whether it is invoked by triggers, too.
    pub(crate) has_triggers: bool,
}

/// Checks the inputs of a function. `refusal`: why its workers cannot have any.
pub(crate) fn check(
    declared: &BTreeMap<String, InputSpec>,
    refusal: Option<String>,
    takes: Takes,
) -> Result<BTreeMap<String, InputConfig>, String> {
    if declared.is_empty() {
        return Ok(BTreeMap::new());
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    if declared.len() > DECLARED_MAX {
        return Err(format!(
            "has {} entries, may have at most {DECLARED_MAX}",
            declared.len()
        ));
    }
    let mut names = BTreeSet::new();
    let twice = |name: &&String| !names.insert(name_of_header(name));
    if let (false, Some(name)) = (takes.descriptors, declared.keys().find(twice)) {
        return Err(format!(
            "has the input \"{name}\", whose name differs from another one only in the case of letters, or in - and _: rename one of them"
        ));
    }
    let checked = declared.iter().map(|(name, input)| {
        let fail =
            |problem: String| format!("has the input \"{}\": {problem}", name.escape_default());
        check_name(name).map_err(fail)?;
        let input = InputConfig::of(input).map_err(fail)?;
        if input.stream {
            check_stream(&input, takes.streams).map_err(fail)?;
        }
        Ok((name.clone(), input))
    });
    let checked: BTreeMap<_, _> = checked.collect::<Result<_, String>>()?;
    check_body(&checked, takes.has_triggers)?;
    let streamed = checked.values().filter(|input| input.stream).count();
    if streamed > STREAMED_MAX {
        return Err(format!(
            "has {streamed} entries with `stream`, may have at most {STREAMED_MAX}"
        ));
    }
    let decoded = checked.values().filter(|input| input.decode.is_some());
    if decoded.count() > DECODED_MAX {
        return Err(format!(
            "may have at most {DECODED_MAX} entries with `decode`"
        ));
    }
    Ok(checked)
}

/// What remains of an input's name where it becomes that of a header or a variable.
#[must_use]
pub fn name_of_header(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

impl InputConfig {
    /// Whether it is the body of the request.
    #[must_use]
    pub fn is_body(&self) -> bool {
        self.from.scheme() == Scheme::Direct
    }

    fn of(spec: &InputSpec) -> Result<Self, String> {
        Ok(match spec {
            InputSpec::From(from) => Self {
                from: from.parse()?,
                optional: false,
                stream: false,
                decode: None,
            },
            InputSpec::Table(table) => Self {
                from: table.from.parse()?,
                optional: table.optional,
                stream: table.stream,
                decode: table.decode.as_deref().map(str::parse).transpose()?,
            },
        })
    }
}

/// A body comes once, and only with a request.
fn check_body(checked: &BTreeMap<String, InputConfig>, has_triggers: bool) -> Result<(), String> {
    let mut bodies = checked.iter().filter(|(_, input)| input.is_body());
    let Some((name, body)) = bodies.next() else {
        return Ok(());
    };
    let from = Location::BODY;
    if let Some((other, _)) = bodies.next() {
        return Err(format!(
            "has the inputs \"{name}\" and \"{other}\" from \"{from}\", which comes once: leave one of them out"
        ));
    }
    if has_triggers && !body.optional {
        return Err(format!(
            "has the input \"{name}\" from \"{from}\", which invocations by triggers do not have: \
             write {name} = {{ from = \"{from}\", optional = true }}"
        ));
    }
    Ok(())
}

/// Whether an input can be read while it arrives.
fn check_stream(input: &InputConfig, can_stream: bool) -> Result<(), String> {
    if !can_stream {
        return Err(
            "stream needs runtime = \"python\" or \"node\": other runtimes get whole inputs; leave stream out"
                .to_owned(),
        );
    }
    if input.decode.is_some() {
        let problem = "stream is not for an input with decode: the handler gets the result as a whole; leave one of the two out";
        return Err(problem.to_owned());
    }
    match input.from.scheme() {
        Scheme::Redis | Scheme::Rediss => Err(
            "stream is not for Redis: only at its end is it known whether a value has changed while it was read; leave stream out"
                .to_owned(),
        ),
        // Others than the last one are no stores.
        Scheme::S3
        | Scheme::Http
        | Scheme::Https
        | Scheme::File
        | Scheme::Sqs
        | Scheme::Grpc
        | Scheme::Grpcs
        | Scheme::Tcp
        | Scheme::Direct => Ok(()),
    }
}

/// The string, number or boolean at a path of an event (`Records.0.key`), as text. `None`: there is nothing of the kind.
#[must_use]
pub fn value_at(event: &[u8], path: &str) -> Option<String> {
    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
    pick(event, &[&path]).into_iter().next().flatten()
}

/// The inputs that a header names: `NAME=SCHEME://STORE/KEY`, and more of them after commas, because whatever is between a client and the
/// daemon may put several headers of a name into one (RFC 9110, section 5.3). A comma that no `NAME=SCHEME://` follows is part of the key.
pub fn requested_of(header: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(header);
    std::iter::from_fn(move || {
        let all = rest?;
        let mut commas = all.match_indices(',').map(|(at, _)| at);
        let end = commas.find(|at| begins_input(all.get(at + 1..).unwrap_or_default()));
        rest = end.and_then(|at| all.get(at + 1..));
        Some(end.map_or(all, |at| all.get(..at).unwrap_or(all)))
    })
}

fn begins_input(text: &str) -> bool {
    let Some(at) = text.find(['=', ',']) else {
        return false;
    };
    let (name, from) = text.split_at(at);
    let from = from.strip_prefix('=').unwrap_or_default().trim_start();
    let is_end = |char: char| !char.is_ascii_alphanumeric();
    let (scheme, rest) = from.split_at(from.find(is_end).unwrap_or(from.len()));
    rest.starts_with("://") && Scheme::named(scheme).is_some() && check_name(name.trim()).is_ok()
}

/// Reads `NAME=SCHEME://STORE/KEY`, by which a request names an input. The key is taken as it is.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn requested(text: &str) -> Result<(String, InputConfig), String> {
    let (name, from) = text
        .split_once('=')
        .ok_or("write NAME=SCHEME://STORE/KEY, for example image=s3://photos/cat.jpg")?;
    let name = name.trim();
    check_name(name)?;
    let from = Location::literal(from.trim())?;
    let input = InputConfig {
        from,
        optional: false,
        stream: false,
        decode: None,
    };
    Ok((name.to_owned(), input))
}

/// Checks whether requests may name inputs of a function. `can_take`: its runtime and interface can take inputs.
pub(crate) fn check_by_request(by_request: Option<bool>, can_take: bool) -> Result<bool, String> {
    if by_request == Some(true) && !can_take {
        return Err(TAKES_NONE.to_owned());
    }
    Ok(by_request == Some(true))
}

/// The name is part of a `Server-Timing` entry (a token of RFC 9110) and of messages.
fn check_name(name: &str) -> Result<(), String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if fits {
        Ok(())
    } else {
        Err(format!(
            "a name has 1 to {NAME_BYTES_MAX} letters, digits, - or _"
        ))
    }
}

const NAME_BYTES_MAX: usize = 64;
const TAKES_NONE: &str = "needs interface = \"event\" and a runtime that takes inputs: requests cannot name inputs of other functions";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FunctionName;
    use crate::spec::FunctionSpec;

    fn checked(toml: &str) -> Result<BTreeMap<String, InputConfig>, String> {
        let spec: FunctionSpec = toml::from_str(toml).map_err(|error| error.to_string())?;
        let name: FunctionName = "resize".parse().unwrap();
        let config = spec.check(&name).map_err(|error| error.to_string())?;
        Ok(config.inputs)
    }

    #[test]
    fn an_input_is_a_location_or_a_table() {
        let inputs = checked(
            "handler = \"app.handler\"\n[inputs]\nimage = \"s3://photos/{event.key}\"\n\
             mask = { from = \"s3://photos/mask.png\", optional = true }",
        )
        .unwrap();
        assert_eq!(inputs["image"].from.to_string(), "s3://photos/{event.key}");
        assert!(!inputs["image"].optional && inputs["mask"].optional);
    }

    #[test]
    fn an_input_is_streamed_where_that_is_safe() {
        let table = |from: &str| format!("{{ from = \"{from}\", stream = true }}");
        let one = |beginning: &str, from: &str| {
            checked(&format!("{beginning}\n[inputs]\nvideo = {}", table(from)))
        };
        let inputs = one("handler = \"a.b\"", "https://site/{event.key}").unwrap();
        assert!(inputs["video"].stream && !inputs["video"].optional);
        one("runtime = \"node\"\nhandler = \"a.b\"", "https://site/x").unwrap();
        for (beginning, from, problem) in [
            (
                "handler = \"a.b\"",
                "redis://cache/x",
                "stream is not for Redis",
            ),
            (
                "runtime = \"provided\"",
                "s3://photos/x",
                "stream needs runtime = \"python\" or \"node\"",
            ),
        ] {
            let found = one(beginning, from).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
        let many = (0..=STREAMED_MAX).map(|n| format!("i{n} = {}", table("s3://photos/x")));
        let many: Vec<String> = many.collect();
        let found = checked(&format!("handler = \"a.b\"\n[inputs]\n{}", many.join("\n")));
        assert!(found.unwrap_err().contains("may have at most 8"));
    }

    #[test]
    fn the_body_of_the_request_is_one_input() {
        let inputs = checked(
            "handler = \"a.b\"\n[inputs]\nfile = { from = \"direct://request/body\", stream = true }",
        )
        .unwrap();
        assert!(inputs["file"].is_body() && inputs["file"].stream);
        let trigger = "[[triggers]]\ntype = \"schedule\"\ncron = \"0 3 * * *\"\n";
        let found = checked(&format!(
            "handler = \"a.b\"\n{trigger}[inputs]\nfile = \"direct://request/body\""
        ));
        assert!(found.unwrap_err().contains("by triggers do not have"));
        checked(&format!(
            "handler = \"a.b\"\n{trigger}[inputs]\nfile = {{ from = \"direct://request/body\", optional = true }}"
        ))
        .unwrap();
        let found = checked(
            "handler = \"a.b\"\n[inputs]\na = \"direct://request/body\"\nb = \"direct://request/body\"",
        );
        assert!(found.unwrap_err().contains("comes once"));
    }

    #[test]
    fn an_input_names_its_decoder() {
        let one = |beginning: &str, table: &str| {
            checked(&format!(
                "{beginning}\n[inputs]\nphoto = {{ from = \"s3://photos/x\", {table} }}"
            ))
        };
        let python = "handler = \"a.b\"";
        let inputs = one(python, "decode = \"image\"").unwrap();
        assert_eq!(inputs["photo"].decode, Some(Decoder::Image));
        for (beginning, table, problem) in [
            (
                python,
                "decode = \"jpeg\"",
                "has the input \"photo\": decode is \"jpeg\"",
            ),
            (
                python,
                "decode = \"npy\", stream = true",
                "leave one of the two out",
            ),
        ] {
            let found = one(beginning, table).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
        for runtime in [
            python,
            "runtime = \"node\"\nhandler = \"a.b\"",
            "runtime = \"provided\"",
            "runtime = \"http\"\ncommand = [\"a\"]",
            "runtime = \"container\"\nimage = \"a\"",
        ] {
            for decoder in ["image", "npy", "parquet", "arrow", "json"] {
                one(runtime, &format!("decode = \"{decoder}\"")).unwrap();
            }
        }
    }

    #[test]
    fn a_header_may_name_several_inputs_and_a_comma_may_be_part_of_a_key() {
        let of = |header| requested_of(header).map(str::trim).collect::<Vec<_>>();
        assert_eq!(of("a=s3://p/x"), ["a=s3://p/x"]);
        assert_eq!(
            of("a=s3://p/x, b=s3://p/y,c = redis://q/z"),
            ["a=s3://p/x", "b=s3://p/y", "c = redis://q/z"]
        );
        for one in [
            "a=s3://p/x, y.jpg",
            "a=s3://p/x,b=y",
            "a=s3://p/x,b=c://y",
            "a=s3://p/x, a b=s3://p/y",
            "a=s3://p/x,",
            "",
        ] {
            assert_eq!(of(one), [one]);
        }
        assert_eq!(
            of("a=s3://p/x, y, b=s3://p/z"),
            ["a=s3://p/x, y", "b=s3://p/z"]
        );
    }

    #[test]
    fn a_request_names_an_input_by_its_name_and_location() {
        let (name, input) = requested("image = s3://photos/a={b}.png").unwrap();
        assert_eq!((name.as_str(), input.from.store()), ("image", "photos"));
        for (text, problem) in [
            ("s3://photos/x", "write NAME=SCHEME"),
            ("a b=s3://photos/x", "letters, digits, - or _"),
            ("image", "write NAME=SCHEME"),
            ("image=photos/x", "is not a location"),
            ("=s3://photos/x", "a name has"),
        ] {
            let found = requested(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }

    #[test]
    fn a_bad_input_names_itself_and_what_to_write() {
        for (toml, problem) in [
            (
                "handler = \"a.b\"\n[inputs]\n\"a b\" = \"s3://x/y\"",
                "functions.resize.inputs: has the input \"a b\": a name has",
            ),
            (
                "handler = \"a.b\"\n[inputs]\nimage = \"photos/x\"",
                "functions.resize.inputs: has the input \"image\": ",
            ),
            (
                "runtime = \"node\"\nhandler = \"a.b\"\n[inputs]\na = \"s3://photos/x\"\nA = \"s3://photos/y\"",
                "differs from another one only in the case",
            ),
            (
                "runtime = \"container\"\nimage = \"a\"\n[inputs]\na-b = \"s3://photos/x\"\na_b = \"s3://photos/y\"",
                "differs from another one only in the case",
            ),
            (
                "handler = \"a.b\"\n[inputs]\nimage = 3",
                "an input is a location",
            ),
        ] {
            let found = checked(toml).unwrap_err();
            assert!(found.contains(problem), "{found}");
        }
    }
}
