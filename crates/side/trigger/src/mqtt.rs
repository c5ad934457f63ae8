//! A subscription at an MQTT broker. A message is put into the durable queue, and acknowledged (PUBACK, PUBREC) when its invocation is on
//! the disk. The session is persistent, so the broker keeps what arrives while the daemon is away, and sends again what was not
//! acknowledged. So each message with QoS 1 or 2 is run at least once. While the queue is full, messages wait here, as many as the
//! broker sends without an acknowledgement. One with QoS 0 is lost if the connection ends before it is stored.

pub(crate) mod client;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use pilot_model::ports::NotAccepted;
use pilot_model::trigger::MqttConfig;
use pilot_protocols::Pace;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Packet, PingReq, PubAck, PubComp, PubRec, Publish, SubAck, SubscribeReasonCode,
};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use uuid::Uuid;

use crate::context::Context;
use crate::status::now_ms;
use client::{Ends, IN_FLIGHT_MAX, MqttAccess, SUBSCRIBE_ID, Session};

/// Receives until the trigger is stopped.
pub(crate) async fn run(mut context: Context, config: MqttConfig) {
    let connections = Arc::clone(&context.shared.connections);
    let access = match connections.mqtt(context.function.as_str(), &config.connection) {
        Ok(access) => access.clone(),
        Err(problem) => {
            context.status.refused(&problem);
            return context.stopped().await;
        }
    };
    // At most 23 letters and digits, which every broker accepts (MQTT 5, section 3.1.3.1).
    let fresh = format!("pilot{:.16}", Uuid::new_v4().simple().to_string());
    let Some(client_id) = context.name(CLIENT_ID, fresh).await else {
        return;
    };
    loop {
        match listen(&mut context, &access, &client_id, &config).await {
            Ok(()) => return,
            Err(problem) => {
                if !context.back_off(&problem).await {
                    return;
                }
            }
        }
    }
}

/// Messages that are being stored, oldest first: they are acknowledged in the order of their arrival (MQTT 5, section 4.6). Each one
/// becomes its acknowledgement, if it wants one.
type Storing = FuturesOrdered<BoxFuture<'static, Result<Option<Packet>, String>>>;

/// Listens until something fails. `Ok`: the task must end.
async fn listen(
    context: &mut Context,
    access: &MqttAccess,
    client_id: &str,
    config: &MqttConfig,
) -> Result<(), String> {
    let qos = match config.qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    };
    let begun = tokio::select! {
        () = context.stopped() => return Ok(()),
        begun = Session::begin(access, client_id, &config.topic, qos) => begun,
    };
    let mut session = begun?;
    let mut storing = Storing::new();
    let mut pings = interval_at(Instant::now() + session.keep_alive, session.keep_alive);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard_at = Instant::now();
    // A broker that accepts a connection and then ends it is not one that works.
    let settled = sleep(SETTLED_AFTER);
    tokio::pin!(settled);
    let mut is_settled = false;
    // Of packets that are no messages: a broker has little to say besides, and each message pays for its own.
    let others = Pace::default();
    loop {
        let has_place = storing.len() < usize::from(IN_FLIGHT_MAX);
        tokio::select! {
            () = context.stopped() => break,
            packet = session.read(), if has_place => {
                heard_at = Instant::now();
                match packet? {
                    Packet::Publish(message) => {
                        others.allow_more();
                        storing.push_back(store(context, &config.connection, &message));
                    }
                    Packet::SubAck(answer) if answer.pkid == SUBSCRIBE_ID => {
                        subscribed(context, config, &answer)?;
                        others.wait().await;
                    }
                    // What it releases is stored since PUBREC, perhaps by an earlier connection.
                    Packet::PubRel(released) => {
                        session.write(Packet::PubComp(PubComp::new(released.pkid, None))).await?;
                        others.wait().await;
                    }
                    Packet::PingResp(_) => others.wait().await,
                    Packet::Disconnect(bye) => {
                        let reason = bye.properties.and_then(|said| said.reason_string).unwrap_or_default();
                        return Err(format!("the broker ends the connection: {:?} {reason}", bye.reason_code));
                    }
                    other => {
                        let name = format!("{other:?}").chars().take_while(char::is_ascii_alphanumeric).collect::<String>();
                        return Err(format!("the broker sent a packet of the wrong kind: {name}"));
                    }
                }
            }
            Some(stored) = storing.next() => acknowledge(context, &mut session, stored).await?,
            _ = pings.tick() => {
                if has_place && heard_at.elapsed() > 2 * session.keep_alive {
                    return Err("the broker is silent".to_owned());
                }
                session.write(Packet::PingReq(PingReq)).await?;
            }
            () = &mut settled, if !is_settled => {
                is_settled = true;
                context.works();
            }
        }
    }
    // What has arrived is acknowledged: otherwise the next daemon would run it again.
    let last = async {
        while let Some(stored) = storing.next().await {
            acknowledge(context, &mut session, stored).await?;
        }
        Ok::<(), String>(())
    };
    let _ = timeout(LAST_MAX, last).await;
    let ends = if context.is_gone() {
        Ends::Session
    } else {
        Ends::Connection
    };
    session.leave(ends).await;
    Ok(())
}

fn subscribed(context: &Context, config: &MqttConfig, answer: &SubAck) -> Result<(), String> {
    match answer.return_codes.as_slice() {
        [SubscribeReasonCode::Success(granted)] => {
            context.status.active();
            if (*granted as u8) < config.qos {
                let granted = *granted as u8;
                let asked = config.qos;
                context.status.failed(&format!(
                    "the broker grants QoS {granted} instead of {asked}: messages can be lost"
                ));
            }
            Ok(())
        }
        [refusal] => Err(format!(
            "the broker refuses the subscription to {}: {refusal:?}",
            config.topic
        )),
        _ => Err("the broker's SUBACK is not for one subscription".to_owned()),
    }
}

/// Puts a message into the durable queue, as soon as that takes it: a new connection would bring the stored ones again that are not yet
/// acknowledged. Resolves with its acknowledgement.
fn store(
    context: &Context,
    connection: &str,
    message: &Publish,
) -> BoxFuture<'static, Result<Option<Packet>, String>> {
    context.status.received(1);
    let id = Uuid::new_v4().to_string();
    let request = context.request(&id, event(connection, message, now_ms()));
    let (queue, status) = (
        Arc::clone(&context.shared.store),
        Arc::clone(&context.status),
    );
    let acknowledgement = match message.qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(Packet::PubAck(PubAck::new(message.pkid, None))),
        QoS::ExactlyOnce => Some(Packet::PubRec(PubRec::new(message.pkid, None))),
    };
    Box::pin(async move {
        loop {
            match queue.accept_marked(request.clone(), None).await {
                Ok(()) => return Ok(acknowledgement),
                Err(refusal @ (NotAccepted::Full { .. } | NotAccepted::Disk { .. })) => {
                    status.failed(&refusal.to_string());
                    sleep(STORE_AGAIN).await;
                }
                // The broker sends it again after the next connection.
                Err(refusal) => return Err(refusal.to_string()),
            }
        }
    })
}

async fn acknowledge(
    context: &Context,
    session: &mut Session,
    stored: Result<Option<Packet>, String>,
) -> Result<(), String> {
    let acknowledgement = stored?;
    context.status.ran();
    match acknowledgement {
        Some(packet) => session.write(packet).await,
        None => Ok(()),
    }
}

/// The event: the message's payload as JSON where it is JSON, otherwise in base64, and what AWS IoT's rules know of a message.
fn event(connection: &str, message: &Publish, now_ms: i64) -> String {
    // A text in quotes cannot end early.
    let quoted = |text: &str| Value::from(text).to_string();
    let mut event = String::with_capacity(message.payload.len() * 4 / 3 + EVENT_BYTES);
    // Writing to a string does not fail.
    let _ = write!(
        event,
        "{{\"eventSource\":\"pilotlight:mqtt\",\"connection\":{},\"topic\":{},\"qos\":{},\"retain\":{},\"dup\":{},\"timestamp\":{now_ms},",
        quoted(connection),
        quoted(&String::from_utf8_lossy(&message.topic)),
        message.qos as u8,
        message.retain,
        message.dup,
    );
    // Read, so that nothing nests deeper than functions can read; passed on as it is, so that numbers keep their digits.
    let is_json = serde_json::from_slice::<Value>(&message.payload).is_ok();
    match std::str::from_utf8(&message.payload) {
        Ok(text) if is_json => _ = write!(event, "\"payload\":{text}}}"),
        _ => {
            let encoded = STANDARD.encode(&message.payload);
            _ = write!(event, "\"payloadBase64\":\"{encoded}\"}}");
        }
    }
    event
}

/// The key of the mark with the client's id at the broker.
const CLIENT_ID: &str = "client";
/// A connection that lasts so long ends a row of failures.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// How long messages under way may take when the trigger is stopped.
const LAST_MAX: Duration = Duration::from_secs(5);
/// From one attempt to store a message to the next one.
const STORE_AGAIN: Duration = Duration::from_secs(1);
/// About what an event takes besides its payload.
const EVENT_BYTES: usize = 512;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event_of(payload: &[u8]) -> Value {
        let message = Publish {
            qos: QoS::AtLeastOnce,
            pkid: 7,
            ..Publish::new("a/\"b\"", QoS::AtLeastOnce, payload.to_vec(), None)
        };
        serde_json::from_str(&event("main", &message, 5)).unwrap()
    }

    #[test]
    fn a_payload_is_passed_on_as_json_or_in_base64() {
        let read = event_of(br#"{"t": 21.5}"#);
        assert_eq!(
            read,
            json!({
                "eventSource": "pilotlight:mqtt", "connection": "main", "topic": "a/\"b\"", "qos": 1, "retain": false, "dup": false,
                "timestamp": 5, "payload": {"t": 21.5},
            })
        );
        assert_eq!(event_of(b"21.5")["payload"], json!(21.5));
        for (payload, encoded) in [
            (&b"on"[..], "b24="),
            (b"", ""),
            (b"\xff", "/w=="),
            // Two values, which would end the event early.
            (b"1},{\"x\":2", "MX0seyJ4Ijoy"),
        ] {
            let read = event_of(payload);
            assert_eq!(read["payloadBase64"], encoded, "{read}");
            assert_eq!(read.get("payload"), None, "{read}");
        }
        let deep = "[".repeat(100_000);
        assert!(event_of(deep.as_bytes()).get("payload").is_none());
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        assert!(event_of(deep.as_bytes()).get("payload").is_none());
    }

    #[test]
    fn numbers_keep_their_digits() {
        let message = Publish::new("t", QoS::AtMostOnce, "12345678901234567890123.10", None);
        let event = event("main", &message, 5);
        assert!(
            event.ends_with("\"payload\":12345678901234567890123.10}"),
            "{event}"
        );
    }
}
