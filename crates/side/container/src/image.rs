//! An image, as far as its containers need it, and what was learnt from them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::models::ImageInspect;
use parking_lot::Mutex;
use pilot_model::log_line::one_line;

use crate::folder::OURS_INSIDE;

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

    /// Why no container of the image can work, and what to change.
    pub(crate) fn unusable(&self) -> Option<String> {
        if self.volumes.len() > VOLUMES_MAX {
            let many = self.volumes.len();
            return Some(format!(
                "it has {many} VOLUMEs, at most {VOLUMES_MAX} can be emptied: build the image with fewer"
            ));
        }
        let lengths = self.environment.iter();
        let bytes: usize = lengths
            .map(|(key, value)| key.len() + value.len() + 2)
            .sum();
        let many = self.environment.len();
        if bytes > ENV_BYTES_MAX || many > ENV_MAX {
            return Some(format!(
                "its ENV has {many} variables with {bytes} bytes, at most {ENV_MAX} with {ENV_BYTES_MAX}: build the image with \
                 fewer, or put them into a file"
            ));
        }
        let hides = |volume: &&String| {
            let path = cleaned(volume);
            path == "/" || path == "/dev" || is_in(&path, "/proc") || is_in(&path, OURS_INSIDE)
        };
        let volume = self.volumes.iter().find(hides)?;
        Some(format!(
            "its VOLUME {} would hide what every container needs: build the image without it",
            one_line(volume, VOLUME_CHARS_MAX)
        ))
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

/// A path as engines understand it: absolute, without `.` and `..`.
fn cleaned(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The shim empties 32 folders (`PLACES_MAX`), of which some are in every container.
const VOLUMES_MAX: usize = 26;

/// The shim takes messages of 64 KiB and 4,096 words. The command and the function's own variables have the rest.
const ENV_BYTES_MAX: usize = 60 << 10;
const ENV_MAX: usize = 4000;

/// Most characters of a volume's path in a message.
const VOLUME_CHARS_MAX: usize = 100;

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
    fn a_volume_that_would_hide_what_a_container_needs_is_refused() {
        let refused = |volume: &str| {
            let config = ImageConfig {
                volumes: Some(vec![volume.to_owned()]),
                ..Default::default()
            };
            let image = Image::new(ImageInspect {
                config: Some(config),
                ..Default::default()
            });
            image.unusable()
        };
        for volume in [
            "/",
            "",
            "/proc",
            "/proc/sys",
            "/tmp/../proc/",
            "/dev",
            "/.pilot",
            "/.pilot/code",
            "//.pilot/./secrets",
        ] {
            assert!(refused(volume).is_some(), "{volume}");
        }
        for volume in [
            "/data",
            "/process",
            "/dev/shm",
            "/sys",
            "/tmp",
            "/mnt/volume",
            "/.pilots",
        ] {
            assert_eq!(refused(volume), None, "{volume}");
        }
        let told = refused("/proc/\u{1b}[2J").unwrap();
        assert!(!told.contains('\u{1b}'), "{told}");
    }

    #[test]
    fn an_image_with_more_than_a_container_can_have_is_refused() {
        let with = |env: Vec<String>, volumes: Vec<String>| {
            let config = ImageConfig {
                env: Some(env),
                volumes: Some(volumes),
                ..Default::default()
            };
            Image::new(ImageInspect {
                config: Some(config),
                ..Default::default()
            })
            .unusable()
        };
        let numbered = |count: usize| (0..count).map(|number| format!("/v={number}")).collect();
        assert_eq!(with(numbered(1000), numbered(VOLUMES_MAX)), None);
        let told = with(numbered(1), numbered(VOLUMES_MAX + 1)).unwrap();
        assert!(told.contains("27 VOLUMEs"), "{told}");
        let told = with(numbered(5000), Vec::new()).unwrap();
        assert!(told.contains("5000 variables"), "{told}");
        let told = with(vec![format!("A={}", "x".repeat(100_000))], Vec::new()).unwrap();
        assert!(told.contains("100003 bytes"), "{told}");
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
