// The invocation channel: frames over a connected stream socket (PROTOCOL.md, section 1).
//
// Reading goes through the event loop into one buffer that is used again and again. Writing is tried at once, with one
// call for header, meta and body; only what the kernel does not take waits, in the socket's own queue. It decides
// nothing: what a frame means is for `events.js`, what an end means for `worker.js`.
'use strict';

const fs = require('node:fs');
const net = require('node:net');

const wire = require('./wire.js');

/** @typedef {import('./wire.js').OnFrame} OnFrame */

/**
 * What answers are given to: the channel, and its stand-in during the warm-up.
 * @typedef {object} Sink
 * @property {(kind: number, stream: number, meta: string, body: string | Uint8Array) => boolean} send sends one frame;
 *   false when a part of it has to wait. ProtocolError when a part is longer than the protocol allows
 * @property {(action: () => void) => void} whenSent runs `action` once the kernel has everything sent so far
 * @property {() => void} ref the channel alone keeps the process alive
 * @property {() => void} unref it does not
 */

// Room for an ordinary event, so that it is read with one call.
const READ_LEN = 64 * 1024;
// Answers up to this length, in the worst case of their encoding, are put together without allocating.
const SMALL_LEN = 16 * 1024;

/** @implements {Sink} */
class Channel {
  #fd;
  #socket;
  #decoder = new wire.Decoder();
  #small = Buffer.allocUnsafeSlow(SMALL_LEN);
  /** How many writes the socket still has. While there are any, later frames must queue behind them. */
  #waiting = 0;
  /** @type {Array<() => void>} */
  #whenSent = [];
  /** What came before `start`. @type {Buffer[]} */
  #early = [];
  /** @type {OnFrame | null} */
  #onFrame = null;
  /** @type {(error: Error | null) => void} */
  #onClosed = () => process.exit(0);

  /**
   * Owns the descriptor of a connected stream socket. Nothing is read before `start`.
   * @param {number} fd
   */
  constructor(fd) {
    this.#fd = fd;
    const onread = {
      buffer: Buffer.allocUnsafeSlow(READ_LEN),
      callback: (/** @type {number} */ len, /** @type {Uint8Array} */ buffer) => this.#received(len, buffer),
    };
    // `onread` is an option of both; only that of `connect` is in the types.
    const options = /** @type {net.SocketConstructorOpts} */ ({ fd, readable: true, writable: true, onread });
    this.#socket = new net.Socket(options);
    this.#socket.on('end', () => this.#end(null));
    this.#socket.on('error', (error) => this.#end(error));
  }

  /**
   * Begins to read. `onClosed` is called once: with null when the daemon has closed the channel between two frames,
   * otherwise with what was wrong.
   * @param {OnFrame} onFrame
   * @param {(error: Error | null) => void} onClosed
   */
  start(onFrame, onClosed) {
    this.#onFrame = onFrame;
    this.#onClosed = onClosed;
    for (const chunk of this.#early.splice(0)) {
      this.#decode(chunk);
    }
    this.#socket.resume();
  }

  /**
   * @param {number} kind
   * @param {number} stream
   * @param {string} meta
   * @param {string | Uint8Array} body
   */
  send(kind, stream, meta, body) {
    if (typeof body === 'string' && (meta.length + body.length) * 3 + wire.HEADER_LEN <= SMALL_LEN) {
      const frame = this.#small;
      const metaLen = frame.write(meta, wire.HEADER_LEN);
      const bodyLen = frame.write(body, wire.HEADER_LEN + metaLen);
      wire.writeHeader(frame, kind, stream, metaLen, bodyLen);
      return this.#write(frame.subarray(0, wire.HEADER_LEN + metaLen + bodyLen));
    }
    const bytes = typeof body === 'string' ? Buffer.from(body) : body;
    const metaLen = Buffer.byteLength(meta);
    const head = Buffer.allocUnsafe(wire.HEADER_LEN + metaLen);
    wire.writeHeader(head, kind, stream, metaLen, bytes.length);
    head.write(meta, wire.HEADER_LEN);
    return this.#writeTwo(head, bytes);
  }

  /** @param {() => void} action */
  whenSent(action) {
    if (this.#waiting === 0) {
      action();
    } else {
      this.#whenSent.push(action);
    }
  }

  ref() {
    this.#socket.ref();
  }

  unref() {
    this.#socket.unref();
  }

  /**
   * One piece; it may be used again by the caller.
   * @param {Buffer} frame
   */
  #write(frame) {
    const written = this.#waiting > 0 ? 0 : this.#taken(() => fs.writeSync(this.#fd, frame, 0, frame.length));
    if (written === frame.length) {
      return true;
    }
    this.#queue(Buffer.from(frame.subarray(written)));
    return false;
  }

  /**
   * Two pieces with one call; neither is copied.
   * @param {Buffer} head
   * @param {Uint8Array} body
   */
  #writeTwo(head, body) {
    const written = this.#waiting > 0 ? 0 : this.#taken(() => fs.writevSync(this.#fd, [head, body]));
    if (written === head.length + body.length) {
      return true;
    }
    if (written < head.length) {
      this.#queue(head.subarray(written));
    }
    this.#queue(body.subarray(Math.max(0, written - head.length)));
    return false;
  }

  /**
   * How many bytes the kernel took. When the daemon has gone there is nobody to tell, and the socket's end is heard
   * soon.
   * @param {() => number} write
   */
  #taken(write) {
    try {
      return write();
    } catch (error) {
      const { code } = /** @type {NodeJS.ErrnoException} */ (error);
      if (code === 'EAGAIN' || code === 'EINTR' || code === 'EPIPE' || code === 'ECONNRESET') {
        return 0; // the socket's own queue tries again, and reports what is final
      }
      throw error;
    }
  }

  /** @param {Uint8Array} bytes */
  #queue(bytes) {
    this.#waiting += 1;
    this.#socket.write(bytes, () => {
      this.#waiting -= 1;
      if (this.#waiting === 0) {
        for (const action of this.#whenSent.splice(0)) {
          action();
        }
      }
    });
  }

  /**
   * Whether to read on.
   * @param {number} len
   * @param {Uint8Array} buffer
   */
  #received(len, buffer) {
    const chunk = Buffer.from(buffer.buffer, buffer.byteOffset, len);
    if (this.#onFrame === null) {
      this.#early.push(Buffer.from(chunk)); // at most one: reading stops here
      return false;
    }
    this.#decode(chunk);
    return true;
  }

  /** @param {Buffer} chunk */
  #decode(chunk) {
    try {
      this.#decoder.decode(chunk, /** @type {OnFrame} */ (this.#onFrame));
    } catch (error) {
      this.#end(/** @type {Error} */ (error));
    }
  }

  /** @param {Error | null} error */
  #end(error) {
    const { code } = /** @type {NodeJS.ErrnoException} */ (error ?? {});
    const isClosed = error === null || code === 'EPIPE' || code === 'ECONNRESET';
    const onClosed = this.#onClosed;
    this.#onClosed = () => {};
    if (isClosed) {
      onClosed(this.#decoder.isEmpty() ? null : new wire.ProtocolError('truncated'));
    } else {
      onClosed(error);
    }
  }
}

module.exports = { Channel };
