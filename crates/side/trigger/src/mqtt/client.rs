//! A session with an MQTT 5 broker that subscribes and never publishes. Packets are read and written by `rumqttc`; the connection and what
//! is acknowledged when are ours (decision 0043). Whatever a broker sends is bounded: the size of a packet, how many are under way, and
//! the time of each step.

use std::fmt;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use pilot_dial::{DialError, Security, Stream, dial};
use reqwest::Url;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Codec, ConnAck, Connect, ConnectProperties, ConnectReturnCode, Disconnect,
    DisconnectProperties, DisconnectReasonCode, Filter, Login, Packet, RetainForwardRule,
    Subscribe,
};
use tokio::time::timeout;
use tokio_util::codec::Framed;

use crate::http::chain;

/// An MQTT broker.
#[derive(Clone)]
pub struct MqttAccess {
    /// `mqtt://HOST:PORT`, or `mqtts://HOST:PORT` over TLS.
    pub url: String,
    /// The user.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// Certificates of authorities in PEM, instead of the system's.
    pub ca_pem: Option<Vec<u8>>,
}

impl fmt::Debug for MqttAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MqttAccess")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl MqttAccess {
    /// Whether this is the URL of a broker.
    ///
    /// # Errors
    /// What it must be.
    pub fn check_url(url: &str) -> Result<(), String> {
        Broker::of(url).map(drop)
    }
}

/// Where a broker is.
#[derive(Debug, PartialEq, Eq)]
struct Broker {
    host: String,
    port: u16,
    is_tls: bool,
}

impl Broker {
    fn of(url: &str) -> Result<Self, String> {
        let read = || {
            let parsed = Url::parse(url).ok()?;
            let (is_tls, port) = match parsed.scheme() {
                "mqtt" => (false, 1883),
                "mqtts" => (true, 8883),
                _ => return None,
            };
            let has_more = !parsed.username().is_empty()
                || parsed.password().is_some()
                || !matches!(parsed.path(), "" | "/")
                || parsed.query().is_some()
                || parsed.fragment().is_some();
            // An IPv6 address is in brackets.
            let host = parsed.host_str()?.trim_matches(['[', ']']);
            (!has_more && !host.is_empty()).then(|| Self {
                host: host.to_owned(),
                port: parsed.port().unwrap_or(port),
                is_tls,
            })
        };
        read().ok_or_else(|| {
            format!(
                "is \"{}\", must be mqtt://HOST:PORT or mqtts://HOST:PORT, without a user and a path",
                pilot_dial::shown_url(url)
            )
        })
    }
}

/// A connection of a session.
pub(crate) struct Session {
    packets: Framed<Box<dyn Stream>, Codec>,
    /// How often the broker wants to hear something.
    pub(crate) keep_alive: Duration,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// Connects, goes on with the session of this client or begins one, and asks for the subscription. The broker answers that with a
    /// SUBACK, among messages that waited.
    ///
    /// # Errors
    /// The broker cannot be reached, or refuses. For people.
    pub(crate) async fn begin(
        access: &MqttAccess,
        client_id: &str,
        topic: &str,
        qos: QoS,
    ) -> Result<Self, String> {
        let begun = timeout(BEGIN_MAX, Self::open(access, client_id, topic, qos)).await;
        begun.unwrap_or_else(|_| {
            let seconds = BEGIN_MAX.as_secs();
            Err(format!("{} does not answer within {seconds} s", access.url))
        })
    }

    async fn open(
        access: &MqttAccess,
        client_id: &str,
        topic: &str,
        qos: QoS,
    ) -> Result<Self, String> {
        let codec = Codec {
            max_incoming_size: Some(PACKET_BYTES_MAX),
            max_outgoing_size: None,
        };
        let mut session = Self {
            packets: Framed::new(connect(access).await?, codec),
            keep_alive: Duration::from_secs(KEEP_ALIVE_S.into()),
        };
        let hello = Connect {
            keep_alive: KEEP_ALIVE_S,
            client_id: client_id.to_owned(),
            clean_start: false,
            properties: Some(ConnectProperties {
                session_expiry_interval: Some(SESSION_S),
                receive_maximum: Some(IN_FLIGHT_MAX),
                max_packet_size: Some(PACKET_BYTES_MAX),
                ..ConnectProperties::new()
            }),
        };
        let has_login = access.user.is_some() || access.password.is_some();
        let login = has_login.then(|| Login {
            username: access.user.clone().unwrap_or_default(),
            password: access.password.clone().unwrap_or_default(),
        });
        session.write(Packet::Connect(hello, None, login)).await?;
        match session.read().await {
            Ok(Packet::ConnAck(answer)) => session.accepted(&answer)?,
            Ok(_) => return Err("the broker's first packet is not a CONNACK".to_owned()),
            Err(problem) => {
                return Err(format!(
                    "{problem}, before it accepted the connection: it must speak MQTT 5"
                ));
            }
        }
        let filter = Filter {
            path: topic.to_owned(),
            qos,
            nolocal: false,
            preserve_retain: false,
            // Not again each time that the connection was lost.
            retain_forward_rule: RetainForwardRule::OnNewSubscribe,
        };
        let mut subscribe = Subscribe::new(filter, None);
        subscribe.pkid = SUBSCRIBE_ID;
        session.write(Packet::Subscribe(subscribe)).await?;
        Ok(session)
    }

    fn accepted(&mut self, answer: &ConnAck) -> Result<(), String> {
        let said = answer.properties.as_ref();
        if answer.code == ConnectReturnCode::Success {
            if let Some(seconds) = said.and_then(|said| said.server_keep_alive) {
                // Zero: it does not care. We do.
                self.keep_alive = Duration::from_secs(match seconds {
                    0 => KEEP_ALIVE_S.into(),
                    seconds => seconds.min(KEEP_ALIVE_S).into(),
                });
            }
            return Ok(());
        }
        let reason = said.and_then(|said| said.reason_string.as_deref());
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        let hint = match answer.code {
            ConnectReturnCode::BadUserNamePassword | ConnectReturnCode::NotAuthorized => {
                ": check user and password_file of the connection"
            }
            _ => "",
        };
        Err(format!(
            "the broker refuses the connection: {:?}{reason}{hint}",
            answer.code
        ))
    }

    /// The next packet. Nothing is lost if it is cancelled.
    ///
    /// # Errors
    /// The connection is over. For people.
    pub(crate) async fn read(&mut self) -> Result<Packet, String> {
        match self.packets.next().await {
            Some(Ok(packet)) => Ok(packet),
            Some(Err(error)) => Err(format!("the broker's packet cannot be read: {error}")),
            None => Err("the broker closed the connection".to_owned()),
        }
    }

    /// Sends a packet. Must not be cancelled.
    ///
    /// # Errors
    /// The connection is over, or the broker does not read. For people.
    pub(crate) async fn write(&mut self, packet: Packet) -> Result<(), String> {
        match timeout(WRITE_MAX, self.packets.send(packet)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the broker cannot be written to: {error}")),
            Err(_) => Err("the broker does not read what it is sent".to_owned()),
        }
    }

    /// Leaves. The broker keeps the session, or ends it and forgets what waits.
    pub(crate) async fn leave(mut self, ends: Ends) {
        let mut bye = Disconnect::new(DisconnectReasonCode::NormalDisconnection);
        if ends == Ends::Session {
            bye.properties = Some(DisconnectProperties {
                session_expiry_interval: Some(0),
                reason_string: None,
                user_properties: Vec::new(),
                server_reference: None,
            });
        }
        // If it does not arrive, the broker notices the end of the connection.
        let _ = self.write(Packet::Disconnect(bye)).await;
    }
}

/// What ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Connection,
    Session,
}

async fn connect(access: &MqttAccess) -> Result<Box<dyn Stream>, String> {
    let url = &access.url;
    let broker = Broker::of(url).map_err(|problem| format!("url {problem}"))?;
    let security = match broker.is_tls {
        true => Security::Tls {
            ca_pem: access.ca_pem.clone(),
        },
        false => Security::Plain,
    };
    let dialled = dial(&broker.host, broker.port, &security).await;
    dialled.map_err(|error| match error {
        DialError::Connect(error) => format!("cannot connect to {url}: {error}"),
        DialError::Name => format!("url: the host of {url} cannot have a certificate"),
        DialError::Tls(error) => format!("TLS with {url}: {}", chain(&error)),
        DialError::Trust(problem) => problem,
    })
}

/// The packet identifier of the subscription, the only one that this client gives.
pub(crate) const SUBSCRIBE_ID: u16 = 1;
/// Messages that the broker has sent and that are not acknowledged (Receive Maximum). Their acknowledgements wait for the same commits.
pub(crate) const IN_FLIGHT_MAX: u16 = 32;
/// A broker drops larger packets (MQTT 5, section 3.1.2.11.4). A message of 1 MB, and its topic and properties.
const PACKET_BYTES_MAX: u32 = (1 << 20) + (16 << 10);
/// How long the broker keeps the session of a daemon that is away: a week.
const SESSION_S: u32 = 7 * 86_400;
const KEEP_ALIVE_S: u16 = 30;
/// From the connection's beginning to the subscription.
const BEGIN_MAX: Duration = Duration::from_secs(15);
const WRITE_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_a_host_and_perhaps_a_port() {
        let broker = |host: &str, port, is_tls| {
            Ok(Broker {
                host: host.to_owned(),
                port,
                is_tls,
            })
        };
        for (url, wanted) in [
            ("mqtt://h", broker("h", 1883, false)),
            (
                "mqtts://h.example.com/",
                broker("h.example.com", 8883, true),
            ),
            ("mqtt://[::1]:18830", broker("::1", 18830, false)),
        ] {
            assert_eq!(Broker::of(url), wanted, "{url}");
        }
        for url in [
            "",
            "h:1883",
            "tcp://h",
            "mqtt://",
            "mqtt://u@h",
            "mqtt://h/a",
            "mqtt://h?a",
            "mqtt://h#a",
        ] {
            let refused = Broker::of(url).unwrap_err();
            assert!(refused.contains("must be mqtt://HOST:PORT"), "{refused}");
        }
    }
}
