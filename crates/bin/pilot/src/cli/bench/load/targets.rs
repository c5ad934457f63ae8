//! The target of each function of a profile: the `--target` argument with its placeholders filled in.

use std::time::Duration;

use pilot_loadgen::request::Site;
use pilot_loadgen::stream::Peer;
use pilot_model::FunctionName;
use pilot_workload::Profile;

use super::super::super::client::Client;
use super::super::super::connection::Connection;
use super::super::super::failure::Failure;
use super::super::super::output;
use super::super::target::{Call, CallArgs, Subject, peer_of};
use super::tally::Tag;

/// A call for each function of a profile, all on the same server.
#[derive(Debug)]
pub(super) struct Targets {
    calls: Vec<(String, Prepared)>,
    peer: Peer,
}

#[derive(Debug)]
enum Prepared {
    /// Always the same bytes.
    Fixed(Vec<u8>),
    /// The body has placeholders for the duration of each arrival.
    Timed { call: Call, body: Vec<u8> },
}

impl Targets {
    /// Fills in the target of each function, and checks with the daemon that these functions exist.
    pub(super) fn new(
        client: &Client,
        connection: &Connection,
        args: &CallArgs,
        target: &str,
        body: Option<Vec<u8>>,
        profile: &Profile,
    ) -> anyhow::Result<Self> {
        let functions = profile.functions();
        let many = target.contains("{index}") || target.contains("{name}");
        if functions.len() > 1 && !many {
            output::note(&format!(
                "all {} functions of the trace go to {target}; {{index}} or {{name}} in --target tells them apart",
                functions.len()
            ));
        }
        let mut calls: Vec<(String, Prepared)> = Vec::with_capacity(functions.len());
        let mut site: Option<Site> = None;
        for (index, function) in functions.iter().enumerate() {
            let filled = target
                .replace("{index}", &index.to_string())
                .replace("{name}", &function.name);
            let call = match calls.first() {
                // Checked once if it is the same for all.
                Some((_, first)) if !many => {
                    let same = first.again();
                    calls.push((filled, same));
                    continue;
                }
                _ => call(client, connection, args, &filled)?,
            };
            let site = site.get_or_insert_with(|| call.site.clone());
            if *site != call.site {
                return Err(Failure::usage(
                    "{index} and {name} can stand in a URL's path, not in its host",
                )
                .into());
            }
            calls.push((filled, Prepared::new(call, body.as_deref())));
        }
        let timed = matches!(calls.first(), Some((_, Prepared::Timed { .. })));
        if timed
            && !profile
                .arrivals()
                .take(1)
                .all(|arrival| arrival.service.is_some())
        {
            let problem =
                "{service_ms} in the body: this profile does not say how long its requests take";
            return Err(Failure::usage(problem).into());
        }
        let site = site.ok_or_else(|| Failure::usage("the profile has no function"))?;
        let peer = peer_of(&site, connection)?;
        Ok(Self { calls, peer })
    }

    /// The server.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The target of the n-th function.
    pub(super) fn target(&self, function: usize) -> &str {
        self.calls.get(function).map_or("", |(target, _)| target)
    }

    /// Writes the bytes of a request.
    pub(super) fn fill(&self, tag: Tag, bytes: &mut Vec<u8>) {
        match &self.calls[tag.function as usize].1 {
            Prepared::Fixed(request) => bytes.extend_from_slice(request),
            Prepared::Timed { call, body } => {
                let body = timed(body, tag.service.unwrap_or_default());
                bytes.extend_from_slice(&call.request(Some(&body)));
            }
        }
    }
}

impl Prepared {
    fn new(call: Call, body: Option<&[u8]>) -> Self {
        match body {
            Some(body) if place(body).is_some() => Self::Timed {
                call,
                body: body.to_owned(),
            },
            body => Self::Fixed(call.request(body)),
        }
    }

    fn again(&self) -> Self {
        match self {
            Self::Fixed(request) => Self::Fixed(request.clone()),
            Self::Timed { call, body } => Self::Timed {
                call: call.clone(),
                body: body.clone(),
            },
        }
    }
}

fn call(
    client: &Client,
    connection: &Connection,
    args: &CallArgs,
    target: &str,
) -> anyhow::Result<Call> {
    if target.contains("://") {
        return args.site(client, connection, Subject::Url(target));
    }
    let name: FunctionName = target
        .parse()
        .map_err(|error: pilot_model::InvalidName| Failure::usage(format!("--target: {error}")))?;
    args.site(client, connection, Subject::Function(&name))
}

fn place(body: &[u8]) -> Option<usize> {
    body.windows(SERVICE.len())
        .position(|window| window == SERVICE)
}

/// The body with the duration in its placeholders, ms.
fn timed(body: &[u8], service: Duration) -> Vec<u8> {
    let mut filled = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = place(rest) {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(format!("{:.3}", service.as_secs_f64() * 1e3).as_bytes());
        rest = &rest[at + SERVICE.len()..];
    }
    filled.extend_from_slice(rest);
    filled
}

const SERVICE: &[u8] = b"{service_ms}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_stands_wherever_the_body_has_a_place_for_it() {
        let body = br#"{"sleep_ms": {service_ms}, "again": {service_ms}}"#;
        assert_eq!(
            timed(body, Duration::from_micros(1_500)),
            br#"{"sleep_ms": 1.500, "again": 1.500}"#
        );
        assert_eq!(place(b"{service_s}"), None);
    }
}
