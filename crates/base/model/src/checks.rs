//! Checks of single values of a function's keys. An error says what is wrong and what to write instead; the caller adds the key.
//! Only [`check_handler`] changes the value: it converts one of the two spellings to the other.

use crate::choices::Interface;
use crate::nearest::nearest;

/// A key, and what is wrong with its value.
pub type KeyProblem = (&'static str, String);

pub(crate) fn in_range<T: PartialOrd + std::fmt::Display>(
    value: T,
    least: T,
    most: T,
) -> Result<T, String> {
    // A comparison with NaN is false, so NaN is out of range.
    if value >= least && value <= most {
        Ok(value)
    } else {
        Err(format!("is {value}, must be from {least} to {most}"))
    }
}

pub(crate) fn one_of<T: Copy>(
    word: Option<&str>,
    default: T,
    all: &[(&str, T)],
) -> Result<T, String> {
    let Some(word) = word else { return Ok(default) };
    if let Some((_, value)) = all.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let hint = nearest(word, names.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Err(format!(
        "is \"{}\", must be one of {}{hint}",
        word.escape_default(),
        names.join(", ")
    ))
}

/// `module.attribute` or `module:attribute`, where the module may contain dots or slashes, as in Lambda.
pub(crate) fn check_handler(handler: &str, example: &str) -> Result<String, String> {
    let dotted = handler.replacen(':', ".", 1);
    let fits = dotted.len() <= HANDLER_BYTES_MAX
        && !dotted.starts_with(['/', '.'])
        && !dotted.contains("..")
        && dotted
            .rsplit_once('.')
            .is_some_and(|(module, attribute)| !module.is_empty() && !attribute.is_empty())
        && dotted
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
    if fits {
        Ok(dotted)
    } else {
        Err(format!(
            "is \"{}\", must be MODULE.FUNCTION (or MODULE:APP), for example \"{example}\"",
            handler.escape_default()
        ))
    }
}

/// A handler that only the function's own program understands.
pub(crate) fn check_label(handler: &str) -> Result<String, String> {
    if handler.len() <= HANDLER_BYTES_MAX && !handler.contains(char::is_control) {
        Ok(handler.to_owned())
    } else {
        Err(format!(
            "is \"{}\", must be one line of at most {HANDLER_BYTES_MAX} bytes",
            handler.escape_default()
        ))
    }
}

pub(crate) fn check_variable(key: &str, value: &str) -> Result<(), String> {
    let mut chars = key.chars();
    let fits = chars
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        return Err(format!(
            "has the variable \"{}\": a name is a letter or _ and then letters, digits or _",
            key.escape_default()
        ));
    }
    if value.contains('\0') {
        return Err(format!("has a NUL byte in the variable {key}"));
    }
    Ok(())
}

/// A path prefix that an application is given: empty, or `/a/b` as it is in a URL.
pub(crate) fn check_root_path(
    path: Option<&str>,
    interface: Interface,
) -> Result<Option<String>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    if !matches!(interface, Interface::Asgi | Interface::Wsgi) {
        return Err(format!(
            "is for interface = \"asgi\" and \"wsgi\", and this is \"{}\": leave it out",
            interface.as_str()
        ));
    }
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"?#\\\"".contains(&byte);
    let is_path = path.starts_with('/') && !path.ends_with('/') && !path.contains("//");
    let fits = path.is_empty() || is_path && path.bytes().all(is_plain);
    if fits && path.len() <= ROOT_PATH_LEN_MAX {
        return Ok(Some(path.to_owned()));
    }
    Err(format!(
        "is \"{}\", must be \"\", which removes /fn/NAME from the path, or begin with / and not end with it, for example \"/shop\" (at most \
         {ROOT_PATH_LEN_MAX} characters)",
        path.escape_default()
    ))
}

const ROOT_PATH_LEN_MAX: usize = 200;

pub(crate) fn check_command(command: Option<&[String]>) -> Result<Option<Vec<String>>, KeyProblem> {
    let Some(command) = command else {
        return Ok(None);
    };
    let fail = |problem| Err(("command", problem));
    if command.first().is_none_or(String::is_empty) {
        return fail(
            "is empty, must be a program and its arguments, for example [\"./bootstrap\"]"
                .to_owned(),
        );
    }
    if let Some(word) = command.iter().find(|word| word.contains('\0')) {
        return fail(format!("has a NUL byte in \"{}\"", word.escape_default()));
    }
    let bytes: usize = command.iter().map(|word| word.len() + 1).sum();
    if bytes > COMMAND_BYTES_MAX {
        return fail(format!(
            "has {bytes} bytes, must have at most {COMMAND_BYTES_MAX}; put what is long into a file"
        ));
    }
    Ok(Some(command.to_vec()))
}

pub(crate) fn check_ready(path: Option<&str>) -> Result<Option<String>, KeyProblem> {
    let Some(path) = path else { return Ok(None) };
    let fits = path.starts_with('/')
        && path.len() <= READY_BYTES_MAX
        && path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if fits {
        Ok(Some(path.to_owned()))
    } else {
        let problem = format!(
            "is \"{}\", must be a path of the function's server, for example \"/healthz\"",
            path.escape_default()
        );
        Err(("ready", problem))
    }
}

/// A component is a file below the function's folder.
pub(crate) fn check_component(path: Option<&str>) -> Result<String, KeyProblem> {
    let Some(path) = path else {
        let missing = "is missing: runtime = \"wasm\" needs the component, a file of the function's folder, for example \"hello.wasm\"";
        return Err(("component", missing.to_owned()));
    };
    let is_odd = |part: &str| matches!(part, "" | "." | "..");
    let fits = path.len() <= COMPONENT_BYTES_MAX
        && !path.split('/').any(is_odd)
        && !path.contains(char::is_control);
    if fits {
        return Ok(path.to_owned());
    }
    let problem = format!(
        "is \"{}\", must be the path of a file below the function's folder, for example \"hello.wasm\"",
        path.escape_default()
    );
    Err(("component", problem))
}

/// As the engine accepts it; only the engine knows its meaning.
pub(crate) fn check_image(image: &str) -> Result<String, String> {
    let fits = image.len() <= IMAGE_BYTES_MAX
        && image.starts_with(|c: char| c.is_ascii_alphanumeric())
        && image
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte));
    match (image, fits) {
        ("", _) => Err(
            "is missing: runtime = \"container\" needs an image, for example \"qr:1\"".to_owned(),
        ),
        (_, true) => Ok(image.to_owned()),
        (_, false) => Err(format!(
            "is \"{}\", must be an image's reference, for example \"qr:1\"",
            image.escape_default()
        )),
    }
}

/// An owner as it may be written.
///
/// # Errors
/// What is wrong.
pub fn check_owner(owner: &str) -> Result<String, String> {
    let fits = (1..=OWNER_BYTES_MAX).contains(&owner.len())
        && owner
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if fits {
        Ok(owner.to_owned())
    } else {
        Err(format!(
            "is \"{}\", must be 1 to {OWNER_BYTES_MAX} letters, digits, - or _",
            owner.escape_default()
        ))
    }
}

/// Lambda's limit.
const HANDLER_BYTES_MAX: usize = 128;
/// Well below the limit of one exec (`ARG_MAX`, execve(2)).
const COMMAND_BYTES_MAX: usize = 64 << 10;
const COMPONENT_BYTES_MAX: usize = 512;
const READY_BYTES_MAX: usize = 1024;
const IMAGE_BYTES_MAX: usize = 512;
/// The limit of a function's name, which is the default owner.
const OWNER_BYTES_MAX: usize = 64;
