//! The environment variables of what is run in a container: the image's, then the function's, then those of the contract, which
//! nobody may set otherwise.

use std::collections::BTreeMap;

use pilot_model::Version;

use crate::folder::{CODE_INSIDE, VOLUME_INSIDE};
use crate::image::Image;
use crate::shim::User;

type Variables = BTreeMap<String, String>;

/// Of the function's own HTTP server: Knative's container runtime contract.
pub(crate) fn of_server(version: &Version, image: &Image, user: &User, port: u16) -> Variables {
    let name = version.config.name.as_str();
    let mut variables = of_all(version, image, user);
    variables.extend(owned([
        ("PORT", port.to_string()),
        ("K_SERVICE", name.to_owned()),
        ("K_CONFIGURATION", name.to_owned()),
        ("K_REVISION", format!("{name}-{:05}", version.number)),
    ]));
    variables
}

/// Of a client of the Lambda Runtime API: what AWS Lambda's documentation calls "defined runtime environment variables".
pub(crate) fn of_lambda(version: &Version, image: &Image, user: &User, port: u16) -> Variables {
    let config = &version.config;
    let name = config.name.as_str();
    let mut variables = owned([
        ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("LAMBDA_RUNTIME_DIR", "/var/runtime".to_owned()),
        ("LAMBDA_TASK_ROOT", "/var/task".to_owned()),
        ("TZ", ":UTC".to_owned()),
    ]);
    variables.extend(of_all(version, image, user));
    variables.extend(owned([
        ("AWS_EXECUTION_ENV", "AWS_Lambda_Image".to_owned()),
        (
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
            (config.memory_bytes >> 20).to_string(),
        ),
        ("AWS_LAMBDA_FUNCTION_NAME", name.to_owned()),
        ("AWS_LAMBDA_FUNCTION_VERSION", version.number.to_string()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{name}")),
        (
            "AWS_LAMBDA_LOG_STREAM_NAME",
            format!("{name}/[{}]", version.number),
        ),
        ("AWS_LAMBDA_RUNTIME_API", format!("127.0.0.1:{port}")),
        ("_HANDLER", config.handler.clone()),
    ]));
    if config.concurrency > 1 {
        // As on Lambda's managed instances: AWS's Runtime API clients poll for as many invocations.
        variables
            .entry("AWS_LAMBDA_MAX_CONCURRENCY".to_owned())
            .or_insert_with(|| config.concurrency.to_string());
    }
    variables
}

/// Of a program that is run per invocation.
pub(crate) fn of_program(version: &Version, image: &Image, user: &User) -> Variables {
    let config = &version.config;
    let mut variables = of_all(version, image, user);
    variables.extend(owned([
        (
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
            (config.memory_bytes >> 20).to_string(),
        ),
        ("AWS_LAMBDA_FUNCTION_NAME", config.name.to_string()),
        ("AWS_LAMBDA_FUNCTION_VERSION", version.number.to_string()),
        ("LAMBDA_TASK_ROOT", CODE_INSIDE.to_owned()),
        ("_HANDLER", config.handler.clone()),
    ]));
    variables
}

/// Of everything: as an engine would set them.
fn of_all(version: &Version, image: &Image, user: &User) -> Variables {
    let mut variables = owned([
        // Python writes what it compiles beside its modules, into the image: a container of which that is true is not reused.
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("HOME", user.home.clone()),
        (
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ),
    ]);
    variables.extend(image.environment.iter().cloned());
    variables.extend(version.config.environment.clone());
    variables.insert("PILOT_VOLUME".to_owned(), VOLUME_INSIDE.to_owned());
    variables
}

fn owned<const N: usize>(variables: [(&str, String); N]) -> Variables {
    variables.map(|(key, value)| (key.to_owned(), value)).into()
}
