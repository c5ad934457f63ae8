//! An image, as far as its containers need it, and what was learnt from them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::models::ImageInspect;
use parking_lot::Mutex;

/// An image as the engine described it. Immutable except for what is learnt.
#[derive(Debug)]
pub(crate) struct Image {
    /// `sha256:…`.
    pub(crate) id: String,
    /// `USER`, as written.
    pub(crate) user: String,
    /// `ENV`.
    pub(crate) environment: Vec<(String, String)>,
    /// `ENTRYPOINT` and `CMD`.
    pub(crate) command: Vec<String>,
    /// `WORKDIR`; `/` by default.
    pub(crate) working_dir: String,
    /// `VOLUME`s.
    pub(crate) volumes: Vec<String>,
    /// Bytes on disk.
    pub(crate) size: u64,
    /// What its programs were built for, as engines name it (`amd64`, `arm64` …).
    architecture: Option<String>,
    /// Its reference now means another image.
    replaced: AtomicBool,
    learnt: Mutex<Learnt>,
}

/// For the report of a deployment. The lock guards only this.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learnt {
    /// How long the last container took to start.
    pub(crate) start: Option<Duration>,
    /// Why a container could not be cleaned; the last reason.
    pub(crate) not_reused: Option<String>,
}

impl Image {
    pub(crate) fn new(found: ImageInspect) -> Self {
        let config = found.config.unwrap_or_default();
        let entrypoint = config.entrypoint.unwrap_or_default();
        Self {
            id: found.id.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            environment: config
                .env
                .unwrap_or_default()
                .iter()
                .filter_map(|line| line.split_once('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            command: entrypoint
                .into_iter()
                .chain(config.cmd.unwrap_or_default())
                .collect(),
            working_dir: config
                .working_dir
                .filter(|dir| !dir.is_empty())
                .unwrap_or_else(|| "/".to_owned()),
            volumes: config.volumes.unwrap_or_default(),
            size: found
                .size
                .and_then(|size| u64::try_from(size).ok())
                .unwrap_or(0),
            architecture: found.architecture.filter(|name| !name.is_empty()),
            replaced: AtomicBool::new(false),
            learnt: Mutex::default(),
        }
    }

    /// Why its programs may not run here: it is for another architecture. No error by itself, because a machine can run foreign
    /// programs with an emulator (`binfmt_misc`).
    pub(crate) fn foreign(&self) -> Option<String> {
        let built_for = engine_name(self.architecture.as_deref()?);
        let own = engine_name(std::env::consts::ARCH);
        (built_for != own).then(|| {
            format!(
                "the image is for {built_for}, and this machine is {own}: pull or build it with `--platform linux/{own}`"
            )
        })
    }

    /// The first twelve digits, as engines print them.
    pub(crate) fn short_id(&self) -> &str {
        let digits = self.id.strip_prefix("sha256:").unwrap_or(&self.id);
        digits.get(..12).unwrap_or(digits)
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Relaxed)
    }

    pub(crate) fn replace(&self) {
        self.replaced.store(true, Ordering::Relaxed);
    }

    pub(crate) fn learnt(&self) -> Learnt {
        self.learnt.lock().clone()
    }

    pub(crate) fn started_in(&self, took: Duration) {
        self.learnt.lock().start = Some(took);
    }

    /// Returns true the first time for this reason.
    pub(crate) fn cannot_reuse(&self, reason: &str) -> bool {
        let mut learnt = self.learnt.lock();
        let is_new = learnt.not_reused.as_deref() != Some(reason);
        learnt.not_reused = Some(reason.to_owned());
        is_new
    }
}

/// An architecture in the words of engines, which are Go's.
fn engine_name(architecture: &str) -> &str {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ImageConfig;

    use super::*;

    #[test]
    fn an_image_without_a_configuration_has_the_engines_defaults() {
        let image = Image::new(ImageInspect {
            id: Some("sha256:0123456789abcdef".to_owned()),
            ..Default::default()
        });
        assert_eq!(image.working_dir, "/");
        assert_eq!(image.short_id(), "0123456789ab");
        assert!(image.command.is_empty() && image.user.is_empty());
    }

    #[test]
    fn entrypoint_and_cmd_are_one_command() {
        let image = Image::new(ImageInspect {
            config: Some(ImageConfig {
                entrypoint: Some(vec!["python3".to_owned()]),
                cmd: Some(vec!["app.py".to_owned()]),
                env: Some(vec!["A=b=c".to_owned()]),
                ..Default::default()
            }),
            ..Default::default()
        });
        assert_eq!(image.command, ["python3", "app.py"]);
        assert_eq!(image.environment, [("A".to_owned(), "b=c".to_owned())]);
    }

    #[test]
    fn an_image_for_another_architecture_says_so() {
        let image = |architecture: Option<&str>| {
            Image::new(ImageInspect {
                architecture: architecture.map(str::to_owned),
                ..Default::default()
            })
        };
        let own = engine_name(std::env::consts::ARCH);
        for of_this_machine in [None, Some(""), Some(own), Some(std::env::consts::ARCH)] {
            assert_eq!(
                image(of_this_machine).foreign(),
                None,
                "{of_this_machine:?}"
            );
        }
        let told = image(Some("s390x")).foreign().unwrap();
        assert!(
            told.starts_with("the image is for s390x, and this machine is "),
            "{told}"
        );
        assert!(
            told.ends_with(&format!("`--platform linux/{own}`")),
            "{told}"
        );
    }
}
