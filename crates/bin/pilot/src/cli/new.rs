//! `pilot new`: creates a function from a template, in a new folder. Overwrites nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use pilot_model::FunctionName;

use super::client::Client;
use super::connection::{Connection, DEFAULT_FUNCTIONS, command_for};
use super::failure::Failure;
use super::output::{self, DIM, GOOD};

/// The arguments of `pilot new`.
#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The function's name, or the path of the new folder, whose last part is the name; . is this folder, if it is empty
    #[arg(value_name = "NAME")]
    path: PathBuf,
    /// The template
    #[arg(short, long, default_value = "event")]
    template: Template,
    /// The template with an initscript, which runs while the function's worker starts; it needs Rust
    #[arg(long, conflicts_with = "template")]
    initscript: bool,
}

impl NewArgs {
    fn template(&self) -> Template {
        if self.initscript {
            Template::Initscript
        } else {
            self.template
        }
    }
}

/// A template of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Template {
    /// handler(event, context), standard library only
    Event,
    /// A FastAPI application
    Asgi,
    /// A Flask application
    Wsgi,
    /// Pillow: a photograph in, a thumbnail out
    Image,
    /// Node.js: handler(event, context) as an ES module
    Node,
    /// A program that polls the Lambda Runtime API, in Python
    Provided,
    /// An HTTP server of its own, in Python
    Http,
    /// A WebAssembly component in Rust (wasi:http)
    Wasm,
    /// As event, with an initscript in Rust
    Initscript,
}

impl Template {
    /// Name and text of each file.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        macro_rules! files {
            ($folder:literal, $($file:literal),*) => {
                &[$((
                    $file,
                    include_str!(concat!("../../templates/", $folder, "/", $file)),
                ),)*]
            };
        }
        match self {
            Self::Event => files!("event", "pilot.toml", "app.py", "requirements.txt"),
            Self::Asgi => files!("asgi", "pilot.toml", "app.py", "requirements.txt"),
            Self::Wsgi => files!("wsgi", "pilot.toml", "app.py", "requirements.txt"),
            Self::Image => files!("image", "pilot.toml", "app.py", "requirements.txt"),
            Self::Node => files!("node", "pilot.toml", "index.mjs", "package.json"),
            Self::Provided => files!("provided", "pilot.toml", "bootstrap.py"),
            Self::Http => files!("http", "pilot.toml", "server.py"),
            Self::Wasm => WASM,
            Self::Initscript => INITSCRIPT,
        }
    }

    /// How to call it.
    fn first_call(self, name: &FunctionName, connection: &Connection) -> String {
        let endpoint = connection.endpoint();
        let endpoint = endpoint.as_deref().map(|given| given.trim_end_matches('/'));
        let functions = || match endpoint {
            Some(endpoint) if endpoint.starts_with("http") => endpoint.to_owned(),
            // A socket is for the control API. The daemon knows where functions are called.
            _ => {
                let told = Client::new(connection).map(|client| client.told_functions_url());
                told.ok()
                    .flatten()
                    .unwrap_or_else(|| DEFAULT_FUNCTIONS.to_owned())
            }
        };
        match self {
            Self::Event | Self::Node | Self::Provided => command_for(
                endpoint,
                &format!("invoke {name} --data '{{\"name\": \"Ada\"}}'"),
            ),
            Self::Initscript => command_for(
                endpoint,
                &format!("invoke {name} --timeline --data '{{\"name\": \"Ada\"}}'"),
            ),
            Self::Asgi | Self::Wsgi | Self::Http | Self::Wasm => {
                format!("curl {}/fn/{name}/", functions())
            }
            Self::Image => {
                let functions = functions();
                format!("curl --data-binary @photo.jpg {functions}/fn/{name}/ -o small.jpg")
            }
        }
    }
}

/// Creates the folder and prints the next steps.
pub(super) fn run(connection: &Connection, args: &NewArgs) -> anyhow::Result<()> {
    let endpoint = connection.endpoint();
    let endpoint = endpoint.as_deref().map(|given| given.trim_end_matches('/'));
    let name = name_of(&args.path)?;
    let template = args.template();
    let written =
        write(&args.path, &name, template).map_err(|error| match error.is::<Failure>() {
            true => error,
            false => Failure::input(&error).into(),
        })?;
    let mut text = String::new();
    for path in written {
        text.push_str(&format!("{GOOD}+{GOOD:#} {}\n", path.display()));
    }
    let folder = typed(&args.path);
    if template == Template::Wasm {
        text.push_str(&format!(
            "\nrustup target add wasm32-wasip2    {DIM}# once, to build components{DIM:#}\n\
             sh {folder}/build    {DIM}# makes component.wasm, before each deployment{DIM:#}"
        ));
    }
    if template == Template::Initscript {
        text.push_str(&format!(
            "\nrustup target add wasm32-unknown-unknown    {DIM}# once, to build the initscript{DIM:#}"
        ));
    }
    text.push_str(&format!(
        "\npilot dev {folder}       {DIM}# serves it, and again with every edit{DIM:#}\n\
         {}    {DIM}# or into a running daemon, and then{DIM:#}\n{}\n",
        command_for(endpoint, &format!("deploy {folder}")),
        template.first_call(&name, connection)
    ));
    output::print(&text)
}

/// A path as it is typed in a shell: quoted if a shell would not read it as one word, and never an option.
fn typed(path: &Path) -> String {
    let mut text = path.display().to_string();
    if text.starts_with('-') {
        text.insert_str(0, "./");
    }
    let plain = |one: char| one.is_alphanumeric() || "/._-+,:@%".contains(one);
    if text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn name_of(path: &Path) -> Result<FunctionName, Failure> {
    // "." is an empty folder in which the user is already.
    let here = (path == Path::new(".")).then(std::env::current_dir);
    let here = here.transpose().unwrap_or_default();
    let path = here.as_deref().unwrap_or(path);
    let last = path.file_name().unwrap_or(path.as_os_str());
    let name: FunctionName = last
        .to_string_lossy()
        .parse()
        .map_err(|error: pilot_model::InvalidName| Failure::usage(error.to_string()))?;
    if name.as_str().starts_with('-') {
        // A deployed function may have such a name, as in Lambda, but each command would take it for an option.
        return Err(Failure::usage(format!(
            "'{name}' would be read as an option: choose a name that begins with another character"
        )));
    }
    Ok(name)
}

fn write(folder: &Path, name: &FunctionName, template: Template) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let problem = format!(
                    "{} already exists and is not empty: choose another name",
                    folder.display()
                );
                return Err(Failure::usage(problem).into());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot use {}", folder.display()));
        }
    }
    let files = template.files().iter().filter(|(_, text)| !text.is_empty());
    let written = files.map(|(file, text)| {
        let path = folder.join(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        fs::write(&path, text.replace(NAME, name.as_str()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    });
    written.collect()
}

/// The template of a component.
const WASM: &[(&str, &str)] = &[
    (
        "pilot.toml",
        include_str!("../../templates/wasm/pilot.toml"),
    ),
    (
        "Cargo.toml",
        include_str!("../../templates/wasm/Cargo.toml"),
    ),
    (
        "Cargo.lock",
        include_str!("../../templates/wasm/Cargo.lock"),
    ),
    (
        "src/lib.rs",
        include_str!("../../templates/wasm/src/lib.rs"),
    ),
    ("build", include_str!("../../templates/wasm/build")),
    ("README.md", include_str!("../../templates/wasm/README.md")),
    (
        ".pilotignore",
        include_str!("../../templates/wasm/.pilotignore"),
    ),
    (".gitignore", include_str!("../../templates/wasm/gitignore")),
];

/// The template with an initscript, and the library that it is written with.
const INITSCRIPT: &[(&str, &str)] = &[
    (
        "pilot.toml",
        include_str!("../../templates/initscript/pilot.toml"),
    ),
    ("app.py", include_str!("../../templates/initscript/app.py")),
    (
        "README.md",
        include_str!("../../templates/initscript/README.md"),
    ),
    (
        ".pilotignore",
        include_str!("../../templates/initscript/.pilotignore"),
    ),
    (
        ".gitignore",
        include_str!("../../templates/initscript/gitignore"),
    ),
    (
        "initscript/Cargo.toml",
        include_str!("../../templates/initscript/initscript/Cargo.toml"),
    ),
    (
        "initscript/src/lib.rs",
        include_str!("../../templates/initscript/initscript/src/lib.rs"),
    ),
    (
        "initscript/.cargo/config.toml",
        include_str!("../../../../../sdk/initscript/.cargo/config.toml"),
    ),
    (
        "initscript/sdk/Cargo.toml",
        include_str!("../../templates/initscript/initscript/sdk/Cargo.toml"),
    ),
    (
        "initscript/sdk/src/lib.rs",
        include_str!("../../../../../sdk/initscript/src/lib.rs"),
    ),
    (
        "initscript/sdk/src/host.rs",
        include_str!("../../../../../sdk/initscript/src/host.rs"),
    ),
    (
        "initscript/sdk/src/text.rs",
        include_str!("../../../../../sdk/initscript/src/text.rs"),
    ),
];

/// The placeholder of the function's name in the templates.
const NAME: &str = "__NAME__";

#[cfg(test)]
mod tests;
