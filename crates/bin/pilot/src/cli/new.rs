//! `pilot new`: writes a function into a folder of its own, from a template. Overwrites nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use pilot_model::FunctionName;

use super::failure::Failure;
use super::output::{self, DIM, GOOD};

/// What `pilot new` takes.
#[derive(Debug, Args)]
pub(super) struct NewArgs {
    /// The function's name, and the folder to write; a path's last part is the name
    #[arg(value_name = "NAME")]
    path: PathBuf,
    /// What to begin with
    #[arg(short, long, default_value = "event")]
    template: Template,
}

/// What a new function begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Template {
    /// handler(event, context), the standard library alone
    Event,
    /// A FastAPI application
    Asgi,
    /// A Flask application
    Wsgi,
    /// Pillow: a photograph in, a thumbnail out
    Image,
}

impl Template {
    /// Name and text of each file.
    fn files(self) -> &'static [(&'static str, &'static str)] {
        macro_rules! files {
            ($folder:literal) => {
                &[
                    (
                        "pilot.toml",
                        include_str!(concat!("../../templates/", $folder, "/pilot.toml")),
                    ),
                    (
                        "app.py",
                        include_str!(concat!("../../templates/", $folder, "/app.py")),
                    ),
                    (
                        "requirements.txt",
                        include_str!(concat!("../../templates/", $folder, "/requirements.txt")),
                    ),
                ]
            };
        }
        match self {
            Self::Event => files!("event"),
            Self::Asgi => files!("asgi"),
            Self::Wsgi => files!("wsgi"),
            Self::Image => files!("image"),
        }
    }

    /// How to call it.
    fn first_call(self, name: &FunctionName) -> String {
        match self {
            Self::Event => format!("pilot invoke {name} --data '{{\"name\": \"Ada\"}}'"),
            Self::Asgi | Self::Wsgi => format!("curl http://127.0.0.1:8080/fn/{name}/"),
            Self::Image => {
                format!(
                    "curl --data-binary @photo.jpg http://127.0.0.1:8080/fn/{name}/ -o small.jpg"
                )
            }
        }
    }
}

/// Writes the folder and says what can be done with it.
pub(super) fn run(args: &NewArgs) -> anyhow::Result<()> {
    let name = name_of(&args.path)?;
    let written = write(&args.path, &name, args.template)?;
    let mut text = String::new();
    for path in written {
        text.push_str(&format!("{GOOD}+{GOOD:#} {}\n", path.display()));
    }
    let folder = args.path.display();
    text.push_str(&format!(
        "\npilot dev {folder}       {DIM}# serves it, and again with every edit{DIM:#}\n\
         pilot deploy {folder}    {DIM}# or into a running daemon, and then{DIM:#}\n{}\n",
        args.template.first_call(&name)
    ));
    output::print(&text)
}

fn name_of(path: &Path) -> Result<FunctionName, Failure> {
    let last = path.file_name().unwrap_or_default().to_string_lossy();
    last.parse()
        .map_err(|error: pilot_model::InvalidName| Failure::usage(error.to_string()))
}

fn write(folder: &Path, name: &FunctionName, template: Template) -> anyhow::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                let problem = format!(
                    "{} is there already and not empty: choose another name",
                    folder.display()
                );
                return Err(Failure::usage(problem).into());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    }
    let files = template.files().iter().filter(|(_, text)| !text.is_empty());
    let written = files.map(|(file, text)| {
        let path = folder.join(file);
        fs::write(&path, text.replace(NAME, name.as_str()))
            .with_context(|| path.display().to_string())?;
        Ok(path)
    });
    written.collect()
}

/// What stands for the function's name in the templates.
const NAME: &str = "__NAME__";

#[cfg(test)]
mod tests {
    use pilot_model::manifest::Manifest;

    use super::*;

    #[test]
    fn every_template_is_a_function_that_can_be_deployed() {
        for template in Template::value_variants() {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path().join("thing");
            let name: FunctionName = "thing".parse().unwrap();
            write(&folder, &name, *template).unwrap();
            let text = fs::read_to_string(folder.join("pilot.toml")).unwrap();
            let manifest = Manifest::parse(&text, "pilot.toml").unwrap();
            assert!(manifest.functions.contains_key(&name), "{template:?}");
            let code = fs::read_to_string(folder.join("app.py")).unwrap();
            assert!(!code.contains(NAME) && !text.contains(NAME), "{template:?}");
        }
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let name: FunctionName = "thing".parse().unwrap();
        fs::write(folder.path().join("app.py"), "mine").unwrap();
        let problem = write(folder.path(), &name, Template::Event)
            .unwrap_err()
            .to_string();
        assert!(problem.contains("not empty"), "{problem}");
        assert_eq!(
            fs::read_to_string(folder.path().join("app.py")).unwrap(),
            "mine"
        );
    }

    #[test]
    fn a_name_that_is_none_is_refused() {
        assert!(name_of(Path::new("functions/ok-1")).is_ok());
        for wrong in ["..", "a b", "/", "ä"] {
            assert!(name_of(Path::new(wrong)).is_err(), "{wrong}");
        }
    }
}
