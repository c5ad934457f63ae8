// The invocation channel: frames over a connected stream socket (PROTOCOL.md, section 1).
//
// The event loop reads into one buffer, which is reused. A frame is written at once, with one call for header, meta and
// body. Only bytes that the kernel does not take wait in the socket's own queue. This file decides nothing: `events.js`
// handles frames, and `worker.js` handles the end of the channel.
'use strict';

const { writeSync, writevSync } = require('node:fs'); // before a function replaces them, as memfs does
const net = require('node:net');

const wire = require('./wire.js');

/** @typedef {import('./wire.js').OnFrame} OnFrame */

/**
 * Where answers are sent: the channel, or its replacement during the warm-up.
 * @typedef {object} Sink
 * @property {(kind: number, stream: number, meta: string, body: string | Uint8Array) => boolean} send sends one frame;
 *   false if a part of it must wait. ProtocolError if a part is longer than the protocol allows
 * @property {(action: () => void) => void} whenSent runs `action` once the kernel has everything sent so far
 * @property {() => void} ref the channel keeps the process alive
 * @property {() => void} unref the channel no longer keeps the process alive
 */

// Large enough to read an ordinary event with one call.
const READ_LEN = 64 * 1024;
// Answers up to this length (in the worst case of their encoding) are built without allocating.
const SMALL_LEN = 16 * 1024;

/** @implements {Sink} */
class Channel {
  #fd;
  #socket;
  #decoder = new wire.Decoder();
  #small = Buffer.allocUnsafeSlow(SMALL_LEN);
  /** The number of writes in the socket's queue. While there are any, later frames must queue behind them. */
  #waiting = 0;
  /** @type {Array<() => void>} */
  #whenSent = [];
  /** Bytes that arrived before `start`. @type {Buffer[]} */
  #early = [];
  /** @type {OnFrame | null} */
  #onFrame = null;
  /** @type {(error: Error | null) => void} */
  #onClosed = () => process.exit(0);

  /**
   * Takes ownership of the descriptor of a connected stream socket. Nothing is read before `start`.
   * @param {number} fd
   */
  constructor(fd) {
    this.#fd = fd;
    const onread = {
      buffer: Buffer.allocUnsafeSlow(READ_LEN),
      callback: (/** @type {number} */ len, /** @type {Uint8Array} */ buffer) => this.#received(len, buffer),
    };
    // Both functions have the option `onread`, but the types contain only that of `connect`.
    const options = /** @type {net.SocketConstructorOpts} */ ({ fd, readable: true, writable: true, onread });
    this.#socket = new net.Socket(options);
    this.#socket.on('end', () => this.#end(null));
    this.#socket.on('error', (error) => this.#end(error));
  }

  /**
   * Begins to read. `onClosed` is called once: with null if the daemon has closed the channel between two frames,
   * otherwise with the error.
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
   * Writes one piece. The caller may reuse it.
   * @param {Buffer} frame
   */
  #write(frame) {
    const written = this.#waiting > 0 ? 0 : this.#taken(() => writeSync(this.#fd, frame, 0, frame.length));
    if (written === frame.length) {
      return true;
    }
    this.#queue(Buffer.from(frame.subarray(written)));
    return false;
  }

  /**
   * Writes two pieces with one call, without copying them.
   * @param {Buffer} head
   * @param {Uint8Array} body
   */
  #writeTwo(head, body) {
    const written = this.#waiting > 0 ? 0 : this.#taken(() => writevSync(this.#fd, [head, body]));
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
   * Returns how many bytes the kernel took. If the daemon has closed its end, the error is ignored, because the end of the
   * socket is reported soon.
   * @param {() => number} write
   */
  #taken(write) {
    try {
      return write();
    } catch (error) {
      const { code } = /** @type {NodeJS.ErrnoException} */ (error);
      if (code === 'EAGAIN' || code === 'EINTR' || code === 'EPIPE' || code === 'ECONNRESET') {
        return 0; // the socket's own queue tries again, and reports a final error
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
   * Handles bytes. Returns whether to continue reading.
   * @param {number} len
   * @param {Uint8Array} buffer
   */
  #received(len, buffer) {
    const chunk = Buffer.from(buffer.buffer, buffer.byteOffset, len);
    if (this.#onFrame === null) {
      this.#early.push(Buffer.from(chunk)); // at most one chunk, because reading stops here
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
