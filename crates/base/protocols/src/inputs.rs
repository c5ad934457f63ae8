//! Inputs of workers that cannot receive descriptors: headers or variables with the paths of files.

use std::collections::BTreeMap;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use pilot_model::FailedInput;
use pilot_model::initscript::MESSAGE_PREFIX;
use pilot_model::ports::{Input, InputKind};

/// `Pilot-Input-NAME`: the path of an input.
const INPUT: &str = "pilot-input-";
/// `Pilot-Decoded-Input-NAME`: the media type of an input that was decoded.
const DECODED_INPUT: &str = "pilot-decoded-input-";
/// `Pilot-Failed-Input-NAME`: why an optional input could not be fetched.
const FAILED_INPUT: &str = "pilot-failed-input-";
/// `Pilot-Init-7`: the path of message 7 of an initscript. `Pilot-Init-Script`: the path to connect to, if the script goes on.
const MESSAGE: &str = "pilot-init-";
/// `Pilot-Init-Conn-3`: the path to connect to for connection 3, a space, and where it leads.
/// `Pilot-Failed-Init-7`: why it is not there. `Pilot-Failed-Init-Script`, `-Shared`: why the script failed.
const FAILED_MESSAGE: &str = "pilot-failed-init-";

/// Sets the headers of a call's inputs. `paths` are in the order of `inputs`.
///
/// # Errors
/// A name or path that is no part of a header. Functions cannot declare such names.
pub(crate) fn input_headers(
    inputs: &[Input],
    paths: &[String],
    failed: &[FailedInput],
    headers: &mut HeaderMap,
) -> Result<(), String> {
    let given = inputs.iter().zip(paths);
    let given = given.map(|(input, path)| {
        let (prefix, name) = given_name(input, INPUT, MESSAGE);
        let (name, value) = with_address(name, path);
        (prefix, name.replace('.', "-"), value)
    });
    let decoded = inputs.iter().filter_map(|input| {
        let value = media_type(input)?;
        Some((DECODED_INPUT, input.name.clone(), value))
    });
    let failed = failed.iter().map(|failed| {
        // The problem is a text of the store.
        let visible = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
        let problem = failed.problem.chars().map(visible).collect();
        let (prefix, name) = named(&failed.name, FAILED_INPUT, FAILED_MESSAGE);
        (prefix, name.replace('.', "-"), problem)
    });
    for (prefix, name, value) in given.chain(decoded).chain(failed) {
        let header = HeaderName::try_from(format!("{prefix}{name}"));
        let (Ok(header), Ok(value)) = (header, HeaderValue::try_from(value)) else {
            return Err(format!("input {name:?} cannot be named in a header"));
        };
        headers.insert(header, value);
    }
    Ok(())
}

/// What a decoder has made of an input.
fn media_type(input: &Input) -> Option<String> {
    input.decoded.as_ref()?.layout.media_type()
}

/// The name of an input, and its path. Where a connection leads is a part of its name (`connection_name` of the model).
fn with_address<'a>(name: &'a str, path: &str) -> (&'a str, String) {
    match name.split_once('=') {
        Some((name, address)) => (name, format!("{path} {address}")),
        None => (name, path.to_owned()),
    }
}

/// As below, or the way to a script that goes on.
fn given_name<'a>(
    input: &'a Input,
    of_input: &'static str,
    of_message: &'static str,
) -> (&'static str, &'a str) {
    match input.kind {
        InputKind::Script => (of_message, "script"),
        _ => named(&input.name, of_input, of_message),
    }
}

/// An input, or a message of an initscript: the beginning of its name, and the rest.
fn named<'a>(
    name: &'a str,
    of_input: &'static str,
    of_message: &'static str,
) -> (&'static str, &'a str) {
    match name.strip_prefix(MESSAGE_PREFIX) {
        Some(id) => (of_message, id),
        None => (of_input, name),
    }
}

/// The variables of a program that runs once per call: `PILOT_INPUT_NAME` is the path of an input, `PILOT_DECODED_INPUT_NAME` the
/// media type of one that was decoded, and `PILOT_FAILED_INPUT_NAME` says why an optional one could not be fetched. The name is in
/// capital letters, with `_` for `-`; names that are equal then cannot be declared. Messages of initscripts have `PILOT_INIT_ID`
/// and `PILOT_FAILED_INIT_ID`; `PILOT_INIT_SCRIPT` is the path to connect to, if the script goes on. `paths` are in the order of
/// `inputs`.
#[must_use]
pub fn input_variables(
    inputs: &[Input],
    paths: &[String],
    failed: &[FailedInput],
) -> BTreeMap<String, String> {
    let variable = |prefix: &str, name: &str| {
        let name = name.replace(['-', '.'], "_").to_ascii_uppercase();
        format!("{prefix}{name}")
    };
    let given = inputs.iter().zip(paths);
    let given = given.map(|(input, path)| {
        let (prefix, name) = given_name(input, "PILOT_INPUT_", "PILOT_INIT_");
        let (name, value) = with_address(name, path);
        (variable(prefix, name), value)
    });
    let decoded = inputs.iter().filter_map(|input| {
        let value = media_type(input)?;
        Some((variable("PILOT_DECODED_INPUT_", &input.name), value))
    });
    let failed = failed.iter().map(|failed| {
        // The problem is a text of the store. No variable can have a NUL.
        let problem = failed.problem.replace('\0', "?");
        let (prefix, name) = named(&failed.name, "PILOT_FAILED_INPUT_", "PILOT_FAILED_INIT_");
        (variable(prefix, name), problem)
    });
    given.chain(decoded).chain(failed).collect()
}

/// Removes headers that a client has sent in place of these.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let ours = [INPUT, DECODED_INPUT, FAILED_INPUT, MESSAGE, FAILED_MESSAGE];
    let is_ours = |name: &&HeaderName| ours.iter().any(|prefix| name.as_str().starts_with(prefix));
    let ours: Vec<HeaderName> = headers.keys().filter(is_ours).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::inputs::decoded::{Decoded, Decoder, Element, Layout};

    use super::*;

    #[test]
    fn a_variable_says_why_there_is_no_input() {
        let failed = FailedInput {
            name: "the-mask".to_owned(),
            problem: "no\0thing".to_owned(),
        };
        let script = FailedInput {
            name: "init.script".to_owned(),
            problem: "it trapped".to_owned(),
        };
        let variables = input_variables(&[], &[], &[failed, script]);
        assert_eq!(variables["PILOT_FAILED_INPUT_THE_MASK"], "no?thing");
        assert_eq!(variables["PILOT_FAILED_INIT_SCRIPT"], "it trapped");
    }

    #[test]
    fn the_way_to_a_script_that_goes_on_has_a_name_of_its_own() {
        let input = Input {
            name: ":init".to_owned(),
            kind: InputKind::Script,
            descriptor: std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            object: None,
            decoded: None,
        };
        let paths = ["/proc/7/fd/9".to_owned()];
        let mut headers = HeaderMap::new();
        input_headers(std::slice::from_ref(&input), &paths, &[], &mut headers).unwrap();
        assert_eq!(headers["pilot-init-script"], "/proc/7/fd/9");
        let variables = input_variables(&[input], &paths, &[]);
        assert_eq!(variables["PILOT_INIT_SCRIPT"], "/proc/7/fd/9");
    }

    #[test]
    fn a_connection_is_named_with_its_address() {
        let input = Input {
            name: pilot_model::initscript::connection_name(3, Some("tcp://db:5432")),
            kind: pilot_model::ports::InputKind::Socket,
            descriptor: std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            object: None,
            decoded: None,
        };
        let failed = FailedInput {
            name: pilot_model::initscript::connection_name(4, None),
            problem: "refused".to_owned(),
        };
        let (inputs, paths, failed) = ([input], ["/proc/7/fd/9".to_owned()], [failed]);
        let mut headers = HeaderMap::new();
        input_headers(&inputs, &paths, &failed, &mut headers).unwrap();
        assert_eq!(headers["pilot-init-conn-3"], "/proc/7/fd/9 tcp://db:5432");
        assert_eq!(headers["pilot-failed-init-conn-4"], "refused");
        let variables = input_variables(&inputs, &paths, &failed);
        assert_eq!(variables["PILOT_INIT_CONN_3"], "/proc/7/fd/9 tcp://db:5432");
        assert_eq!(variables["PILOT_FAILED_INIT_CONN_4"], "refused");
    }

    #[test]
    fn a_decoded_input_is_named_with_its_media_type() {
        let input = Input {
            name: "the-photo".to_owned(),
            kind: pilot_model::ports::InputKind::Memory { len: 134 },
            descriptor: std::sync::Arc::new(std::fs::File::open("/dev/null").unwrap().into()),
            object: None,
            decoded: Some(std::sync::Arc::new(Decoded {
                by: Decoder::Image,
                layout: Layout::Array {
                    element: Element::U8,
                    shape: vec![1, 2, 3],
                    at: 128,
                },
            })),
        };
        let (inputs, paths) = ([input], ["/proc/7/fd/9".to_owned()]);
        let mut headers = HeaderMap::new();
        input_headers(&inputs, &paths, &[], &mut headers).unwrap();
        let said = "application/x-npy; dtype=\"|u1\"; shape=\"1,2,3\"";
        assert_eq!(headers["pilot-input-the-photo"], "/proc/7/fd/9");
        assert_eq!(headers["pilot-decoded-input-the-photo"], said);
        let variables = input_variables(&inputs, &paths, &[]);
        assert_eq!(variables["PILOT_DECODED_INPUT_THE_PHOTO"], said);
    }

    #[test]
    fn a_problem_in_another_language_is_still_a_header() {
        let failed = FailedInput {
            name: "mask".to_owned(),
            problem: "kein Schlüssel\r\nx: y".to_owned(),
        };
        let mut headers = HeaderMap::new();
        input_headers(&[], &[], &[failed], &mut headers).unwrap();
        assert_eq!(headers["pilot-failed-input-mask"], "kein Schl?ssel??x: y");
        headers.insert("pilot-input-image", HeaderValue::from_static("/etc/passwd"));
        headers.insert(
            "pilot-decoded-input-image",
            HeaderValue::from_static("text/plain"),
        );
        headers.insert("pilot-init-0", HeaderValue::from_static("/etc/passwd"));
        headers.insert("pilot-failed-init-0", HeaderValue::from_static("x"));
        headers.insert("pilot-inputs", HeaderValue::from_static("x"));
        strip(&mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["pilot-inputs"]
        );
    }
}
