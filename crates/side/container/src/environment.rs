//! The environment variables of a container's programs: the image's, then Lambda's, then the function's, and last those that
//! the protocol needs, which cannot be overridden. As in a sandbox, and in AWS's Runtime Interface Emulator, a function may
//! override Lambda's (`AWS_LAMBDA_FUNCTION_NAME`).

use std::collections::BTreeMap;

use pilot_model::Version;

use crate::folder::{CODE_INSIDE, VOLUME_INSIDE};
use crate::image::Image;
use crate::shim::User;

type Variables = BTreeMap<String, String>;

/// For the function's own HTTP server: Knative's container runtime contract.
pub(crate) fn of_server(version: &Version, image: &Image, user: &User, port: u16) -> Variables {
    let name = version.config.name.as_str();
    let mut variables = of_image(image, user);
    add_own(version, &mut variables);
    variables.extend(owned([
        ("PORT", port.to_string()),
        ("K_SERVICE", name.to_owned()),
        ("K_CONFIGURATION", name.to_owned()),
        ("K_REVISION", format!("{name}-{:05}", version.number)),
    ]));
    variables
}

/// For a client of the Lambda Runtime API: AWS Lambda's "defined runtime environment variables".
pub(crate) fn of_lambda(version: &Version, image: &Image, user: &User, port: u16) -> Variables {
    let config = &version.config;
    let name = config.name.as_str();
    let mut variables = owned([
        ("AWS_DEFAULT_REGION", version.region().to_owned()),
        ("AWS_REGION", version.region().to_owned()),
        ("LAMBDA_RUNTIME_DIR", "/var/runtime".to_owned()),
        ("LAMBDA_TASK_ROOT", "/var/task".to_owned()),
        ("TZ", ":UTC".to_owned()),
    ]);
    variables.extend(of_image(image, user));
    variables.extend(of_function(version));
    variables.extend(owned([
        ("AWS_EXECUTION_ENV", "AWS_Lambda_Image".to_owned()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{name}")),
        (
            "AWS_LAMBDA_LOG_STREAM_NAME",
            format!("{name}/[{}]", version.number),
        ),
    ]));
    if config.concurrency > 1 {
        // As on Lambda's managed instances: AWS's Runtime API clients run this many polls.
        variables
            .entry("AWS_LAMBDA_MAX_CONCURRENCY".to_owned())
            .or_insert_with(|| config.concurrency.to_string());
    }
    add_own(version, &mut variables);
    let api = ("AWS_LAMBDA_RUNTIME_API", format!("127.0.0.1:{port}"));
    variables.extend(owned([api]));
    variables
}

/// For a program that runs once per invocation.
pub(crate) fn of_program(version: &Version, image: &Image, user: &User) -> Variables {
    let mut variables = of_image(image, user);
    variables.extend(of_function(version));
    variables.extend(owned([("LAMBDA_TASK_ROOT", CODE_INSIDE.to_owned())]));
    add_own(version, &mut variables);
    variables
}

/// Lambda's description of the function.
fn of_function(version: &Version) -> Variables {
    let config = &version.config;
    owned([
        (
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
            (config.memory_bytes >> 20).to_string(),
        ),
        ("AWS_LAMBDA_FUNCTION_NAME", config.name.to_string()),
        ("AWS_LAMBDA_FUNCTION_VERSION", version.number.to_string()),
        ("_HANDLER", config.handler.clone()),
    ])
}

/// For every program: the same as an engine would set.
fn of_image(image: &Image, user: &User) -> Variables {
    let mut variables = owned([
        // Without this, Python writes compiled files next to its modules, into the image's layer, and such a container cannot
        // be reused.
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("HOME", user.home.clone()),
        (
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ),
    ]);
    variables.extend(image.environment.iter().cloned());
    variables
}

/// The function's own variables, and the path of its volume.
fn add_own(version: &Version, variables: &mut Variables) {
    variables.extend(version.config.environment.clone());
    variables.insert("PILOT_VOLUME".to_owned(), VOLUME_INSIDE.to_owned());
}

fn owned<const N: usize>(variables: [(&str, String); N]) -> Variables {
    variables.map(|(key, value)| (key.to_owned(), value)).into()
}

#[cfg(test)]
mod tests {
    use bollard::models::{ImageConfig, ImageInspect};
    use pilot_testkit::version_with;

    use super::*;

    fn image(environment: &[&str]) -> Image {
        let env = environment.iter().map(|line| (*line).to_owned()).collect();
        Image::new(ImageInspect {
            config: Some(ImageConfig {
                env: Some(env),
                ..ImageConfig::default()
            }),
            ..ImageInspect::default()
        })
    }

    fn user() -> User {
        User {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            home: "/root".to_owned(),
        }
    }

    #[test]
    fn the_function_has_the_last_word_but_for_how_it_is_spoken_to() {
        let version = version_with("shop", 7, |config| {
            for name in [
                "AWS_LAMBDA_FUNCTION_NAME",
                "AWS_LAMBDA_RUNTIME_API",
                "AWS_REGION",
                "K_SERVICE",
                "OWN",
                "PILOT_VOLUME",
            ] {
                let value = "the function's".to_owned();
                config.environment.insert(name.to_owned(), value);
            }
        });
        let image = image(&[
            "AWS_LAMBDA_FUNCTION_NAME=the image's",
            "AWS_LAMBDA_FUNCTION_VERSION=the image's",
            "LAMBDA_TASK_ROOT=/app",
            "OWN=the image's",
        ]);
        let own = Some("the function's");
        let lambda = of_lambda(&version, &image, &user(), 9001);
        let program = of_program(&version, &image, &user());
        let server = of_server(&version, &image, &user(), 8080);
        let of = |variables: &Variables, name: &str| variables.get(name).cloned();
        for name in ["AWS_LAMBDA_FUNCTION_NAME", "OWN"] {
            assert_eq!(of(&lambda, name).as_deref(), own);
            assert_eq!(of(&program, name).as_deref(), own);
        }
        assert_eq!(of(&lambda, "AWS_REGION").as_deref(), own);
        assert_eq!(of(&server, "OWN").as_deref(), own);
        for (name, value) in [
            ("AWS_LAMBDA_FUNCTION_VERSION", "7"),
            ("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001"),
            ("LAMBDA_TASK_ROOT", "/app"),
        ] {
            assert_eq!(of(&lambda, name).as_deref(), Some(value));
        }
        assert_eq!(of(&server, "K_SERVICE").as_deref(), Some("shop"));
        for variables in [&lambda, &program, &server] {
            let volume = of(variables, "PILOT_VOLUME");
            assert_eq!(volume.as_deref(), Some(VOLUME_INSIDE));
        }
    }
}
