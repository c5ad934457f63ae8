//! References to container images, in the full form that is part of a runtime's key, and in the short form that messages have.
//!
//! Both are as the container engine reads them (distribution/reference, `ParseAnyReference` and "familiar" names). Why no crate does
//! this: decision 0065.

/// `qr` becomes `docker.io/library/qr:latest`. Case is kept: the engine does not change the case of a registry's host.
pub(crate) fn full(image: &str) -> String {
    if is_sha256(image) {
        return format!("sha256:{image}");
    }
    if image.strip_prefix("sha256:").is_some_and(is_sha256) {
        return image.to_owned();
    }
    let (name, rest) = match image.split_once('@') {
        // The digest identifies the image; a tag beside it has no effect.
        Some((name, digest)) => (split_tag(name).0, format!("@{digest}")),
        None => {
            let (name, tag) = split_tag(image);
            (name, format!(":{}", tag.unwrap_or("latest")))
        }
    };
    let (host, path) = match name.split_once('/') {
        Some((first, path)) if is_host(first) => (first, path),
        _ => (HUB, name),
    };
    let host = if host == HUB_BEFORE { HUB } else { host };
    let library = match host == HUB && !path.contains('/') {
        true => "library/",
        false => "",
    };
    format!("{host}/{library}{path}{rest}")
}

/// A full reference without what is implied.
#[must_use]
pub fn familiar(full: &str) -> &str {
    let short = full
        .strip_prefix("docker.io/library/")
        .or_else(|| full.strip_prefix("docker.io/"));
    short.unwrap_or(full)
}

/// Splits `qr:1`. A colon before the last `/` belongs to a port.
fn split_tag(name: &str) -> (&str, Option<&str>) {
    let last = name.rfind('/').map_or(0, |at| at + 1);
    match name[last..].split_once(':') {
        Some((path, tag)) => (&name[..last + path.len()], Some(tag)),
        None => (name, None),
    }
}

/// Whether the first part of a reference is a registry's host: names of repositories have no capital letters.
fn is_host(first: &str) -> bool {
    first.contains(['.', ':'])
        || first == "localhost"
        || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// An image's id, without the name of its algorithm.
fn is_sha256(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

const HUB: &str = "docker.io";
const HUB_BEFORE: &str = "index.docker.io";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_differs_from_its_name_in_a_registry_is_read_as_the_engine_reads_it() {
        // Not an id: too short, or not hexadecimal.
        assert_eq!(full("sha256:0123"), "docker.io/library/sha256:0123");
        // A capital letter makes it a host; the case of hosts is kept.
        assert_eq!(full("Hub/qr"), "Hub/qr:latest");
    }

    #[test]
    fn messages_leave_out_what_is_implied() {
        for (image, short) in [
            ("qr", "qr:latest"),
            ("ann/qr:1", "ann/qr:1"),
            ("localhost/qr", "localhost/qr:latest"),
        ] {
            assert_eq!(familiar(&full(image)), short);
        }
    }
}
