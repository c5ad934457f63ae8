//! Inputs that a request names by the header `X-Pilot-Input: NAME=SCHEME://STORE/KEY`, which may be repeated, and may
//! have more of them after commas.
//!
//! A caller chooses here what a function reads, so the function must have allowed it. Which stores it may use is checked where they
//! are.

use std::collections::BTreeMap;

use http::HeaderMap;
use pilot_model::FunctionConfig;
use pilot_model::inputs::{DECLARED_MAX, InputConfig, name_of_header, requested, requested_of};

use crate::errors::RequestError;
use crate::headers;

/// The inputs that a request names.
///
/// # Errors
/// [`RequestError::Input`]: the function takes none, or which one is wrong, and what to do.
pub(crate) fn of(
    headers: &HeaderMap,
    config: &FunctionConfig,
) -> Result<BTreeMap<String, InputConfig>, RequestError> {
    let mut inputs = BTreeMap::new();
    for value in headers.get_all(headers::PILOT_INPUT) {
        let refused = |problem: String| RequestError::Input { problem };
        if !config.inputs_by_request {
            return Err(refused(format!(
                "requests may not name inputs of function '{}': set inputs_by_request = true in its pilot.toml and deploy it, or \
                 leave the header out",
                config.name
            )));
        }
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| refused("it must be UTF-8".to_owned()))?;
        for text in requested_of(text) {
            let (name, input) = requested(text).map_err(refused)?;
            // Where it becomes a part of a header's or a variable's name, its case does not count.
            let is_it = |other: &String| match config.runtime.forks() {
                true => *other == name,
                false => name_of_header(other) == name_of_header(&name),
            };
            if let Some(other) = config.inputs.keys().find(|other| is_it(other)) {
                return Err(refused(format!(
                    "the function declares the input \"{other}\" itself: use another name"
                )));
            }
            if inputs.keys().any(is_it) {
                return Err(refused(format!("the input \"{name}\" is there twice")));
            }
            inputs.insert(name, input);
            if config.inputs.len() + inputs.len() > DECLARED_MAX {
                return Err(refused(format!(
                    "an invocation has at most {DECLARED_MAX} inputs"
                )));
            }
        }
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use pilot_model::Runtime;
    use pilot_model::runtime::node::NodeRuntime;

    use super::*;

    fn read(
        values: &[&[u8]],
        config: &FunctionConfig,
    ) -> Result<BTreeMap<String, InputConfig>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                headers::PILOT_INPUT,
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        of(&headers, config).map_err(|error| error.to_string())
    }

    #[test]
    fn where_names_become_headers_their_case_does_not_count() {
        let mut config = pilot_testkit::config("f");
        config.inputs_by_request = true;
        let names: [&[u8]; 2] = [b"an_image=s3://p/x", b"An-Image=s3://p/y"];
        assert_eq!(read(&names, &config).unwrap().len(), 2);
        config.runtime = Runtime::Node(NodeRuntime { major: None });
        assert!(
            read(&names, &config)
                .unwrap_err()
                .contains("is there twice")
        );
        let (_, input) = requested("mask=s3://p/x").unwrap();
        config.inputs.insert("mask".to_owned(), input);
        let refused = read(&[b"MASK=s3://p/y"], &config).unwrap_err();
        assert!(refused.contains("declares the input \"mask\""), "{refused}");
    }

    #[test]
    fn a_request_names_inputs_only_where_the_function_allows_it() {
        let mut config = pilot_testkit::config("f");
        assert!(read(&[], &config).unwrap().is_empty());
        let refused = read(&[b"a=s3://photos/x"], &config).unwrap_err();
        assert!(refused.contains("inputs_by_request = true"), "{refused}");
        config.inputs_by_request = true;
        let inputs = read(
            &[b"a=s3://photos/x", "b=s3://photos/\u{e4}".as_bytes()],
            &config,
        )
        .unwrap();
        assert_eq!(inputs.keys().collect::<Vec<_>>(), ["a", "b"]);
        let listed = read(
            &[b"a=s3://photos/x, b=s3://photos/y", b"c=s3://photos/z, 2"],
            &config,
        )
        .unwrap();
        let listed: Vec<String> = listed
            .values()
            .map(|input| input.from.to_string())
            .collect();
        assert_eq!(
            listed,
            ["s3://photos/x", "s3://photos/y", "s3://photos/z, 2"]
        );
        config
            .inputs
            .insert("image".to_owned(), inputs["a"].clone());
        for (values, problem) in [
            (vec![&b"a=s3://p/x"[..], b"a=s3://p/y"], "is there twice"),
            (vec![&b"a=s3://p/x, a=s3://p/y"[..]], "is there twice"),
            (vec![&b"image=s3://p/x"[..]], "declares the input"),
            (vec![&b"image"[..]], "write NAME=SCHEME"),
            (vec![&b"a=s3://p/\xff"[..]], "must be UTF-8"),
        ] {
            let refused = read(&values, &config).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
        let many: Vec<String> = (0..DECLARED_MAX)
            .map(|number| format!("n{number}=s3://p/x"))
            .collect();
        let many: Vec<&[u8]> = many.iter().map(String::as_bytes).collect();
        assert!(read(&many, &config).unwrap_err().contains("at most 32"));
    }
}
