//! The host's functions, version 1 (`initscript.wit`). A text is a place in the script's memory and its length.

mod raw {
    #[link(wasm_import_module = "pilotlight_v1")]
    unsafe extern "C" {
        pub fn connect(at: *const u8, len: usize) -> i32;
        pub fn send_rpc(connection: u32, id: u64, at: *const u8, len: usize) -> i32;
        pub fn recv_rpc_reply(connection: u32, id: u64) -> i32;
        pub fn reply_len(reply: u32) -> i64;
        pub fn reply_status(reply: u32) -> i32;
        pub fn reply_read(reply: u32, from: u64, at: *mut u8, len: usize) -> i32;
        pub fn send_msg(id: u64, at: *const u8, len: usize) -> i32;
        pub fn send_reply(message: u64, connection: u32, id: u64) -> i32;
        pub fn transfer_conn(id: u64, at: *const u8, len: usize, connection: u32) -> i32;
        pub fn recv_msg(id: u64, from: u32, at: *mut u8, len: usize) -> i32;
        pub fn exit(status: i32);
        pub fn event_read(from: u32, at: *mut u8, len: usize) -> i32;
        pub fn event_value(path: *const u8, path_len: usize, at: *mut u8, len: usize) -> i32;
        pub fn reply_value(
            reply: u32,
            path: *const u8,
            path_len: usize,
            at: *mut u8,
            len: usize,
        ) -> i32;
        pub fn json_value(
            json: *const u8,
            json_len: usize,
            path: *const u8,
            path_len: usize,
            at: *mut u8,
            len: usize,
        ) -> i32;
        pub fn input_read(from: u32, at: *mut u8, len: usize) -> i32;
        pub fn error_read(at: *mut u8, len: usize) -> i32;
        pub fn log(at: *const u8, len: usize);
    }
}

// SAFETY, for all of these: the host reads or writes at most the length of the slice, and only during the call.

pub(crate) fn connect(place: &[u8]) -> i32 {
    unsafe { raw::connect(place.as_ptr(), place.len()) }
}

pub(crate) fn send_rpc(connection: u32, id: u64, text: &[u8]) -> i32 {
    unsafe { raw::send_rpc(connection, id, text.as_ptr(), text.len()) }
}

pub(crate) fn recv_rpc_reply(connection: u32, id: u64) -> i32 {
    unsafe { raw::recv_rpc_reply(connection, id) }
}

pub(crate) fn reply_len(reply: u32) -> i64 {
    unsafe { raw::reply_len(reply) }
}

pub(crate) fn reply_status(reply: u32) -> i32 {
    unsafe { raw::reply_status(reply) }
}

pub(crate) fn reply_read(reply: u32, from: u64, into: &mut [u8]) -> i32 {
    unsafe { raw::reply_read(reply, from, into.as_mut_ptr(), into.len()) }
}

pub(crate) fn send_msg(id: u64, bytes: &[u8]) -> i32 {
    unsafe { raw::send_msg(id, bytes.as_ptr(), bytes.len()) }
}

pub(crate) fn send_reply(message: u64, connection: u32, id: u64) -> i32 {
    unsafe { raw::send_reply(message, connection, id) }
}

pub(crate) fn transfer_conn(id: u64, address: &[u8], connection: u32) -> i32 {
    unsafe { raw::transfer_conn(id, address.as_ptr(), address.len(), connection) }
}

pub(crate) fn recv_msg(id: u64, from: u32, into: &mut [u8]) -> i32 {
    unsafe { raw::recv_msg(id, from, into.as_mut_ptr(), into.len()) }
}

pub(crate) fn exit(status: i32) {
    unsafe { raw::exit(status) }
}

pub(crate) fn event_read(from: u32, into: &mut [u8]) -> i32 {
    unsafe { raw::event_read(from, into.as_mut_ptr(), into.len()) }
}

pub(crate) fn event_value(path: &[u8], into: &mut [u8]) -> i32 {
    unsafe { raw::event_value(path.as_ptr(), path.len(), into.as_mut_ptr(), into.len()) }
}

pub(crate) fn reply_value(reply: u32, path: &[u8], into: &mut [u8]) -> i32 {
    let (at, len) = (into.as_mut_ptr(), into.len());
    unsafe { raw::reply_value(reply, path.as_ptr(), path.len(), at, len) }
}

pub(crate) fn json_value(json: &[u8], path: &[u8], into: &mut [u8]) -> i32 {
    let (at, len) = (into.as_mut_ptr(), into.len());
    unsafe {
        raw::json_value(
            json.as_ptr(),
            json.len(),
            path.as_ptr(),
            path.len(),
            at,
            len,
        )
    }
}

pub(crate) fn input_read(from: u32, into: &mut [u8]) -> i32 {
    unsafe { raw::input_read(from, into.as_mut_ptr(), into.len()) }
}

pub(crate) fn error_read(into: &mut [u8]) -> i32 {
    unsafe { raw::error_read(into.as_mut_ptr(), into.len()) }
}

pub(crate) fn log(text: &[u8]) {
    unsafe { raw::log(text.as_ptr(), text.len()) }
}
