// The frame codec of the invocation channel: bytes to frames and back (PROTOCOL.md, section 1).
//
// It does no I/O and no JSON; `channel.js` reads and writes the bytes. The meta and body of a decoded frame are views of
// the received bytes. The reader reuses these bytes, so copy a view to keep it.
'use strict';

const INVOKE = 1;
const HTTP = 2;
const SECRETS = 3;
const CANCEL = 4;
const WINDOW = 5;
const READY = 16;
const RESULT = 17;
const ERROR = 18;
const HEAD = 19;
const CHUNK = 20;
const END = 21;
const INIT_ERROR = 22;

const HEADER_LEN = 16;
const META_LEN_MAX = 256 * 1024;
const SMALL_META_LEN_MAX = 4 * 1024;
const REQUEST_LEN_MAX = 8 * 1024 * 1024;
const RESULT_LEN_MAX = 6 * 1024 * 1024 + 100;
const PIECE_LEN_MAX = 64 * 1024;
// How much of a response is sent before `WINDOW` must come, bytes, and what a frame takes of it at least.
const WINDOW_LEN = 256 * 1024;
const WINDOW_COST_MIN = 256;

/** The peer violated the protocol. `reason` is one of the words in vectors/README.md. */
class ProtocolError extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(`invalid frame: ${reason}`);
    this.name = 'ProtocolError';
    this.reason = reason;
  }
}

/**
 * Called with each complete frame.
 * @callback OnFrame
 * @param {number} kind
 * @param {number} stream
 * @param {Buffer} meta
 * @param {Buffer} body
 * @returns {void}
 */

/** Turns received bytes into complete frames. It holds at most one incomplete frame. */
class Decoder {
  /** The first `#len` bytes are those of an incomplete frame. */
  #held = Buffer.alloc(0);
  #len = 0;

  /**
   * Calls `onFrame` for each frame that these bytes complete. An invalid header throws before its payload arrives.
   * @param {Buffer} chunk
   * @param {OnFrame} onFrame
   */
  decode(chunk, onFrame) {
    let at = this.#len > 0 ? this.#complete(chunk, onFrame) : 0;
    for (;;) {
      const len = frameLen(chunk, at, chunk.length);
      if (len === 0 || at + len > chunk.length) {
        break;
      }
      give(chunk, at, len, onFrame);
      at += len;
    }
    if (at < chunk.length) {
      this.#hold(chunk.subarray(at));
    }
  }

  /** False in the middle of a frame, where the end of the stream means that the frame is truncated. */
  isEmpty() {
    return this.#len === 0;
  }

  /**
   * Takes the missing bytes of the held frame. Returns how many bytes of `chunk` that was.
   * @param {Buffer} chunk
   * @param {OnFrame} onFrame
   */
  #complete(chunk, onFrame) {
    let at = this.#take(chunk, 0, HEADER_LEN);
    const len = frameLen(this.#held, 0, this.#len);
    if (len === 0) {
      return at;
    }
    at += this.#take(chunk, at, len);
    if (this.#len === len) {
      const frame = this.#held;
      this.#held = Buffer.alloc(0);
      this.#len = 0;
      give(frame, 0, len, onFrame);
    }
    return at;
  }

  /**
   * Copies from `chunk` until `wanted` bytes are held, or until `chunk` has no more. Returns the number of copied bytes.
   * @param {Buffer} chunk
   * @param {number} at
   * @param {number} wanted
   */
  #take(chunk, at, wanted) {
    if (this.#held.length < wanted) {
      const larger = Buffer.allocUnsafe(wanted);
      this.#held.copy(larger, 0, 0, this.#len);
      this.#held = larger;
    }
    const taken = Math.max(0, Math.min(wanted - this.#len, chunk.length - at));
    chunk.copy(this.#held, this.#len, at, at + taken);
    this.#len += taken;
    return taken;
  }

  /** @param {Buffer} bytes */
  #hold(bytes) {
    const len = frameLen(bytes, 0, bytes.length) || HEADER_LEN;
    this.#take(bytes, 0, len);
  }
}

/**
 * The frame as bytes. ProtocolError if a part is longer than the protocol allows.
 * @param {number} kind
 * @param {number} stream
 * @param {Uint8Array} meta
 * @param {Uint8Array} body
 */
function encode(kind, stream, meta, body) {
  const frame = Buffer.allocUnsafe(HEADER_LEN + meta.length + body.length);
  writeHeader(frame, kind, stream, meta.length, body.length);
  frame.set(meta, HEADER_LEN);
  frame.set(body, HEADER_LEN + meta.length);
  return frame;
}

/**
 * Writes only the header, at the beginning of `frame`. ProtocolError as in `encode`.
 * @param {Buffer} frame
 * @param {number} kind
 * @param {number} stream
 * @param {number} metaLen
 * @param {number} bodyLen
 */
function writeHeader(frame, kind, stream, metaLen, bodyLen) {
  check(metaLen, bodyLen, kind, 0, 0);
  frame.writeUInt32LE(metaLen, 0);
  frame.writeUInt32LE(bodyLen, 4);
  frame.writeUInt32LE(stream, 8);
  frame[12] = kind;
  frame[13] = 0;
  frame[14] = 0;
  frame[15] = 0;
}

/**
 * Throws ProtocolError if a field of the header is invalid. Fields are checked in the order of vectors/README.md.
 * @param {number} metaLen
 * @param {number} bodyLen
 * @param {number} kind
 * @param {number} flags
 * @param {number} reserved
 */
function check(metaLen, bodyLen, kind, flags, reserved) {
  if (kind < INVOKE || (kind > WINDOW && kind < READY) || kind > INIT_ERROR) {
    throw new ProtocolError('unknown_kind');
  }
  if (metaLen > metaLenMax(kind)) {
    throw new ProtocolError('meta_too_long');
  }
  if (bodyLen > bodyLenMax(kind)) {
    throw new ProtocolError('body_too_long');
  }
  // Of frames from the daemon: the number of descriptors. Node.js cannot take any.
  if (flags !== 0) {
    throw new ProtocolError('too_many_descriptors');
  }
  if (reserved !== 0) {
    throw new ProtocolError('reserved_not_zero');
  }
}

/**
 * The longest meta of a frame, bytes.
 * @param {number} kind
 */
function metaLenMax(kind) {
  if (kind === CANCEL || kind === WINDOW) {
    return 0;
  }
  return kind === INVOKE || kind === HTTP || kind === SECRETS || kind === HEAD ? META_LEN_MAX : SMALL_META_LEN_MAX;
}

/**
 * The longest body of a frame, bytes.
 * @param {number} kind
 */
function bodyLenMax(kind) {
  switch (kind) {
    case INVOKE:
    case HTTP:
      return REQUEST_LEN_MAX;
    case SECRETS:
    case CANCEL:
    case READY:
      return 0;
    case WINDOW:
      return 4;
    case HEAD:
    case CHUNK:
    case END:
      return PIECE_LEN_MAX;
    default:
      return RESULT_LEN_MAX;
  }
}

/**
 * The length of the frame with its header at `at`. 0 if the header is incomplete.
 * @param {Buffer} bytes
 * @param {number} at
 * @param {number} end
 */
function frameLen(bytes, at, end) {
  if (end - at < HEADER_LEN) {
    return 0;
  }
  const metaLen = bytes.readUInt32LE(at);
  const bodyLen = bytes.readUInt32LE(at + 4);
  check(metaLen, bodyLen, bytes[at + 12], bytes[at + 13], bytes.readUInt16LE(at + 14));
  return HEADER_LEN + metaLen + bodyLen;
}

/**
 * @param {Buffer} bytes
 * @param {number} at
 * @param {number} len
 * @param {OnFrame} onFrame
 */
function give(bytes, at, len, onFrame) {
  const metaAt = at + HEADER_LEN;
  const bodyAt = metaAt + bytes.readUInt32LE(at);
  onFrame(bytes[at + 12], bytes.readUInt32LE(at + 8), bytes.subarray(metaAt, bodyAt), bytes.subarray(bodyAt, at + len));
}

module.exports = {
  INVOKE,
  HTTP,
  SECRETS,
  CANCEL,
  WINDOW,
  READY,
  RESULT,
  ERROR,
  HEAD,
  CHUNK,
  END,
  INIT_ERROR,
  HEADER_LEN,
  META_LEN_MAX,
  RESULT_LEN_MAX,
  PIECE_LEN_MAX,
  WINDOW_LEN,
  WINDOW_COST_MIN,
  ProtocolError,
  Decoder,
  encode,
  writeHeader,
};
