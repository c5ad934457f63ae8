//! What a script can call: version 1 of the host's interface, the imports of the module `pilotlight_v1`. `docs/initscripts.md` and
//! `sdk/initscript/initscript.wit` describe it; a test compares the names.
//!
//! A text is a place in the script's memory and its length. A call that fails returns a negative number ([`Code`]); `error_read` gives the
//! reason in words. A place outside of the script's memory ends the script.

use std::ops::Range;

use pilot_model::inputs::value_at;
use wasmtime::{Caller, Engine, Extern, Linker, Memory};

use crate::errors::Code;
use crate::script::{SAID_LEN_MAX, Said, Script, Stop, check_json, no_value};

/// The module of the imports.
pub(crate) const MODULE: &str = "pilotlight_v1";
/// The longest path of a value in the event, bytes. What follows is not looked at.
const PATH_LEN_MAX: usize = 1024;

type Guest<'a> = Caller<'a, Script>;
type Host<T> = wasmtime::Result<T>;

/// All functions.
///
/// # Errors
/// Never, unless two have one name.
pub(crate) fn linker(engine: &Engine) -> Host<Linker<Script>> {
    let mut linker = Linker::new(engine);
    requests(&mut linker)?;
    messages(&mut linker)?;
    texts(&mut linker)?;
    values(&mut linker)?;
    Ok(linker)
}

/// Connections, requests and replies.
fn requests(linker: &mut Linker<Script>) -> Host<()> {
    linker.func_wrap(
        MODULE,
        "connect",
        |mut guest: Guest<'_>, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "connect", at, len)?;
            let said = script.connect(bytes);
            Ok(small(script.answer(said)))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "send_rpc",
        |mut guest: Guest<'_>, connection: u32, id: u64, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "send_rpc", at, len)?;
            let said = script.send_rpc(connection, id, bytes);
            Ok(small(script.answer(said)))
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "recv_rpc_reply",
        |mut guest: Guest<'_>, (connection, id): (u32, u64)| {
            Box::new(async move {
                let script = guest.data_mut();
                script.called()?;
                let said = script.recv_rpc_reply(connection, id).await;
                Host::Ok(small(script.answer(said)))
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "reply_len",
        |mut guest: Guest<'_>, reply: u32| -> Host<i64> {
            let script = guest.data_mut();
            script.called()?;
            let len = script.reply(reply).map(|reply| reply.memory.bytes());
            let len = len.map(|len| i64::try_from(len).unwrap_or(i64::MAX));
            Ok(script.answer(len))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "reply_status",
        |mut guest: Guest<'_>, reply: u32| -> Host<i32> {
            let script = guest.data_mut();
            script.called()?;
            let status = script.reply(reply).map(|reply| reply.status);
            Ok(small(script.answer(status)))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "reply_read",
        |mut guest: Guest<'_>, reply: u32, from: u64, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "reply_read", at, len)?;
            let said = script.read_reply(reply, from, bytes);
            Ok(small(script.answer(said)))
        },
    )?;
    Ok(())
}

/// What goes to the function and comes from it, and the end.
fn messages(linker: &mut Linker<Script>) -> Host<()> {
    linker.func_wrap_async(
        MODULE,
        "send_msg",
        |mut guest: Guest<'_>, (id, at, len): (u64, u32, u32)| {
            Box::new(async move {
                let (bytes, _) = begin(&mut guest, "send_msg", at, len)?;
                let bytes = bytes.to_vec();
                let script = guest.data_mut();
                let said = script.send_msg(id, bytes).await;
                Host::Ok(small(script.answer(said)))
            })
        },
    )?;
    linker.func_wrap(
        MODULE,
        "send_reply",
        |mut guest: Guest<'_>, message: u64, connection: u32, id: u64| -> Host<i32> {
            let script = guest.data_mut();
            script.called()?;
            let said = script.send_reply(message, connection, id);
            Ok(small(script.answer(said)))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "transfer_conn",
        |mut guest: Guest<'_>, id: u64, at: u32, len: u32, connection: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "transfer_conn", at, len)?;
            let said = script.transfer_conn(id, bytes, connection);
            Ok(small(script.answer(said)))
        },
    )?;
    linker.func_wrap_async(
        MODULE,
        "recv_msg",
        |mut guest: Guest<'_>, (id, from, at, len): (u64, u32, u32, u32)| {
            Box::new(async move {
                let name = "recv_msg";
                // Looks at the place before it waits, so that a wrong one ends the script at once.
                let (_, script) = begin(&mut guest, name, at, len)?;
                match script.recv_msg(id).await {
                    Ok(message) => {
                        let (bytes, _) = place(&mut guest, name, at, len)?;
                        Host::Ok(copied(&message, from, bytes))
                    }
                    Err(failed) => Ok(failure(&mut guest, failed)),
                }
            })
        },
    )?;
    linker.func_wrap(MODULE, "exit", |status: i32| -> Host<()> {
        Err(Stop::Exit(status).into())
    })?;
    Ok(())
}

/// Texts for the script and from it.
fn texts(linker: &mut Linker<Script>) -> Host<()> {
    linker.func_wrap(
        MODULE,
        "event_read",
        |mut guest: Guest<'_>, from: u32, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "event_read", at, len)?;
            Ok(copied(&script.event, from, bytes))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "input_read",
        |mut guest: Guest<'_>, from: u32, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "input_read", at, len)?;
            Ok(copied(script.input().as_bytes(), from, bytes))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "error_read",
        |mut guest: Guest<'_>, at: u32, len: u32| -> Host<i32> {
            let (bytes, script) = begin(&mut guest, "error_read", at, len)?;
            Ok(copied(script.last_error().as_bytes(), 0, bytes))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "log",
        |mut guest: Guest<'_>, at: u32, len: u32| -> Host<()> {
            let (bytes, script) = begin(&mut guest, "log", at, len)?;
            let bytes = bytes.get(..SAID_LEN_MAX).unwrap_or(bytes);
            let text = String::from_utf8_lossy(bytes).into_owned();
            script.say(&text);
            Ok(())
        },
    )?;
    Ok(())
}

/// Values of JSON, by their paths.
fn values(linker: &mut Linker<Script>) -> Host<()> {
    linker.func_wrap(
        MODULE,
        "event_value",
        |mut guest: Guest<'_>, path: u32, path_len: u32, at: u32, len: u32| -> Host<i32> {
            let name = "event_value";
            let path = path_of(begin(&mut guest, name, path, path_len)?.0);
            let value = value_at(&guest.data().event, &path).ok_or_else(|| no_value("the event"));
            give(&mut guest, name, value, at, len)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "reply_value",
        |mut guest: Guest<'_>,
         reply: u32,
         path: u32,
         path_len: u32,
         at: u32,
         len: u32|
         -> Host<i32> {
            let name = "reply_value";
            let path = path_of(begin(&mut guest, name, path, path_len)?.0);
            let value = guest.data_mut().value_of_reply(reply, &path);
            give(&mut guest, name, value, at, len)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "json_value",
        |mut guest: Guest<'_>,
         json: u32,
         json_len: u32,
         path: u32,
         path_len: u32,
         at: u32,
         len: u32|
         -> Host<i32> {
            let name = "json_value";
            let path = path_of(begin(&mut guest, name, path, path_len)?.0);
            let (json, _) = place(&mut guest, name, json, json_len)?;
            let value = check_json(json.len())
                .and_then(|()| value_at(json, &path).ok_or_else(|| no_value("the text")));
            give(&mut guest, name, value, at, len)
        },
    )?;
    Ok(())
}

/// A path in JSON. One that is no text leads nowhere.
fn path_of(bytes: &[u8]) -> String {
    let bytes = bytes.get(..PATH_LEN_MAX).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Copies a value into the script's memory, as far as it fits. Returns its length, or a code.
fn give(
    guest: &mut Guest<'_>,
    name: &'static str,
    value: Said<String>,
    at: u32,
    len: u32,
) -> Host<i32> {
    match value {
        Ok(value) => {
            let (bytes, _) = place(guest, name, at, len)?;
            Ok(copied(value.as_bytes(), 0, bytes))
        }
        Err(failed) => Ok(failure(guest, failed)),
    }
}

/// The code of a failure.
fn failure(guest: &mut Guest<'_>, failed: (Code, String)) -> i32 {
    let failed: Said<u32> = Err(failed);
    small(guest.data_mut().answer(failed))
}

/// Counts the call, and gives a part of the script's memory and its state.
fn begin<'a>(
    guest: &'a mut Guest<'_>,
    name: &'static str,
    at: u32,
    len: u32,
) -> Host<(&'a mut [u8], &'a mut Script)> {
    guest.data_mut().called()?;
    place(guest, name, at, len)
}

fn place<'a>(
    guest: &'a mut Guest<'_>,
    name: &'static str,
    at: u32,
    len: u32,
) -> Host<(&'a mut [u8], &'a mut Script)> {
    let memory = memory(guest).ok_or(Stop::Memory { name })?;
    let (all, script) = memory.data_and_store_mut(guest);
    let part = all.get_mut(range(at, len)).ok_or(Stop::Memory { name })?;
    Ok((part, script))
}

fn memory(guest: &mut Guest<'_>) -> Option<Memory> {
    match guest.get_export("memory") {
        Some(Extern::Memory(memory)) => Some(memory),
        _ => None,
    }
}

fn range(at: u32, len: u32) -> Range<usize> {
    let at = at as usize;
    at..at.saturating_add(len as usize)
}

/// Copies what follows `from`, as far as it fits. Returns how much there was.
fn copied(text: &[u8], from: u32, into: &mut [u8]) -> i32 {
    let rest = text.get(from as usize..).unwrap_or_default();
    let len = rest.len().min(into.len());
    if let (Some(into), Some(from)) = (into.get_mut(..len), rest.get(..len)) {
        into.copy_from_slice(from);
    }
    i32::try_from(rest.len()).unwrap_or(i32::MAX)
}

fn small(answer: i64) -> i32 {
    i32::try_from(answer).unwrap_or(i32::MAX)
}
