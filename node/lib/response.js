// A streamed response as frames: `HEAD`, `CHUNK`, `END` (`awslambda.streamifyResponse`).
//
// The stream is an ordinary Writable. A slow reader fills the channel. Then this stream's buffer fills, and `write`
// returns false. `events.js` sends the last frame, when the handler has returned too.
'use strict';

const { Writable } = require('node:stream');

const { Fault } = require('./errors.js');
const { PreludeReader, endedWithin, namesPrelude } = require('./prelude.js');
const wire = require('./wire.js');

/** @typedef {import('./channel.js').Sink} Sink */
/** @typedef {import('./prelude.js').Prelude} Prelude */

/** A surrogate that is not one of a pair: JSON for JavaScript, but not for the daemon. */
const LONE_SURROGATE = /\p{Surrogate}/u;
const DEFAULT_CONTENT_TYPE = 'application/octet-stream'; // Lambda's

class ResponseStream extends Writable {
  #sink;
  #stream;
  /** How much more the client has room for, bytes. */
  #room;
  /** Sends on when there is room. @type {(() => void) | null} */
  #sendOn = null;
  #startedNs;
  #contentType = DEFAULT_CONTENT_TYPE;
  /** @type {Prelude | undefined} */
  #prelude;
  /** The content type says that the handler writes the prelude by itself. @type {PreludeReader | null} */
  #reader = null;
  #isHeadSent = false;
  /** `end` has been called, so the current write is the last one. */
  #isEnding = false;
  /** Bytes to send with the last frame. */
  #last = Buffer.alloc(0);
  /** Why the response broke off. @type {Error | null} */
  failure = null;

  /**
   * @param {Sink} sink
   * @param {number} stream
   * @param {bigint} startedNs
   * @param {number | undefined} highWaterMark
   * @param {boolean} isAlone the daemon takes one response at a time, and does not say how much room there is
   */
  constructor(sink, stream, startedNs, highWaterMark, isAlone) {
    super({ highWaterMark });
    this.#room = isAlone ? Infinity : wire.WINDOW_LEN;
    this.#sink = sink;
    this.#stream = stream;
    this.#startedNs = startedNs;
    // Without a listener, an error would end the process. With it, the error ends only the invocation.
    this.on('error', (error) => {
      this.failure ??= error;
    });
  }

  /**
   * Sets the content type, as in Lambda, for responses without `HttpResponseStream`.
   * @param {string} contentType
   */
  setContentType(contentType) {
    this.#mustBeEarly('the content type');
    const isPrelude = namesPrelude(String(contentType));
    this.#reader = isPrelude && this.#prelude === undefined ? new PreludeReader() : null;
    this.#contentType = isPrelude ? DEFAULT_CONTENT_TYPE : String(contentType); // the prelude's own headers may name another
  }

  /**
   * Sets status, headers and cookies. Called before the first byte.
   * @param {Prelude} prelude
   */
  setPrelude(prelude) {
    this.#mustBeEarly('status and headers');
    const { statusCode = 200 } = prelude;
    if (!Number.isInteger(statusCode) || statusCode < 200 || statusCode > 599) {
      throw new Fault('Runtime.InvalidStreamingOperation', `statusCode ${statusCode} is not one of 200 to 599`);
    }
    this.#prelude = { statusCode, headers: prelude.headers, cookies: prelude.cookies }; // the caller may change its own
    this.#reader = null;
  }

  /**
   * Objects become JSON, as in Lambda's stream.
   * @override
   * @param {unknown} chunk
   * @param {any} [encoding]
   * @param {any} [callback]
   */
  write(chunk, encoding, callback) {
    return super.write(bytesOrText(chunk), encoding, callback);
  }

  /**
   * @override
   * @param {any} [chunk]
   * @param {any} [encoding]
   * @param {any} [callback]
   */
  end(chunk, encoding, callback) {
    this.#isEnding = true;
    const isChunk = chunk !== undefined && chunk !== null && typeof chunk !== 'function';
    return super.end(isChunk ? bytesOrText(chunk) : chunk, encoding, callback);
  }

  /**
   * @override
   * @param {Buffer} chunk
   * @param {string} _encoding
   * @param {(error?: Error | null) => void} done
   */
  _write(chunk, _encoding, done) {
    try {
      const bytes = this.#withoutPrelude(chunk);
      if (bytes === null) {
        done();
        return;
      }
      if (this.#isEnding && this.writableLength === chunk.length && bytes.length <= wire.PIECE_LEN_MAX) {
        this.#last = Buffer.from(bytes); // sent in one frame with the end; copied, because the caller may reuse its bytes
        done();
        return;
      }
      this.#sendPieces(bytes, 0, done);
    } catch (error) {
      done(/** @type {Error} */ (error)); // the head is too long, or the prelude is invalid
    }
  }

  /**
   * The daemon says that there is room for more.
   * @param {number} length
   */
  hasRoom(length) {
    this.#room += length;
    const sendOn = this.#sendOn;
    this.#sendOn = null;
    sendOn?.();
  }

  /** The client has hung up: what reads or writes the stream fails. */
  clientHasGone() {
    if (!this.writableFinished) {
      this.destroy(Object.assign(new Error('the client has hung up'), { code: 'ECONNRESET' }));
    }
  }

  /** Sends status, headers and held bytes now: the handler has ended the response, but still runs. */
  flush() {
    if (this.writableFinished && !this.#isHeadSent) {
      this.#mustHavePrelude();
      const last = this.#last;
      this.#last = Buffer.alloc(0);
      this.#sendPieces(last, 0, () => {});
    }
  }

  /**
   * Sends the last frame. Must be called when the stream has finished.
   * @param {bigint} finishedNs
   */
  complete(finishedNs) {
    this.#mustHavePrelude();
    if (this.#isHeadSent) {
      const meta = `{"started_ns":${this.#startedNs},"finished_ns":${finishedNs}}`;
      this.#sink.send(wire.END, this.#stream, meta, this.#last);
    } else {
      this.#sink.send(wire.HEAD, this.#stream, this.#headMeta(`,"finished_ns":${finishedNs}`), this.#last);
    }
  }

  /**
   * The bytes of the body. Null while the prelude, which the handler writes by itself, is incomplete.
   * @param {Buffer} chunk
   */
  #withoutPrelude(chunk) {
    if (this.#reader === null) {
      return chunk;
    }
    const found = this.#reader.feed(chunk);
    if (found === null) {
      return null;
    }
    this.#prelude = found.prelude;
    this.#reader = null;
    return found.body;
  }

  #mustHavePrelude() {
    if (this.#reader !== null) {
      throw endedWithin();
    }
  }

  /**
   * Sends the bytes from `at` on, as far as the client has room for them, and the others when it has. `done` is called when the kernel has
   * all of them.
   * @param {Buffer} bytes
   * @param {number} at
   * @param {() => void} done
   */
  #sendPieces(bytes, at, done) {
    while (at < bytes.length || !this.#isHeadSent) {
      if (this.#room <= 0) {
        this.#sendOn = () => this.#sendPieces(bytes, at, done);
        return;
      }
      const piece = bytes.subarray(at, at + wire.PIECE_LEN_MAX);
      if (this.#isHeadSent) {
        this.#sink.send(wire.CHUNK, this.#stream, '', piece);
      } else {
        this.#sink.send(wire.HEAD, this.#stream, this.#headMeta(''), piece);
        this.#isHeadSent = true;
      }
      this.#room -= Math.max(piece.length, wire.WINDOW_COST_MIN);
      at += wire.PIECE_LEN_MAX;
    }
    this.#sink.whenSent(done);
  }

  /** @param {string} more */
  #headMeta(more) {
    const { statusCode = 200, headers = {}, cookies = [] } = this.#prelude ?? {};
    const pairs = Object.entries(headers ?? {}).flatMap(([name, value]) => {
      const values = Array.isArray(value) ? value : [value];
      return values.map((one) => [name.toLowerCase(), String(one)]);
    });
    if (!pairs.some(([name]) => name === 'content-type')) {
      pairs.unshift(['content-type', this.#contentType]);
    }
    pairs.push(...(cookies ?? []).map((cookie) => ['set-cookie', String(cookie)]));
    const invalid = pairs.find((pair) => LONE_SURROGATE.test(pair[0]) || LONE_SURROGATE.test(pair[1]));
    if (invalid !== undefined) {
      const problem = `the header ${JSON.stringify(invalid[0])} of the response has a lone surrogate`;
      throw new Fault('Function.InvalidResponse', problem);
    }
    const prelude = this.#prelude === undefined ? '' : '"prelude":true,';
    return `{"status":${statusCode},"headers":${JSON.stringify(pairs)},${prelude}"started_ns":${this.#startedNs}${more}}`;
  }

  /** @param {string} what */
  #mustBeEarly(what) {
    if (this.#isHeadSent || this.writableEnded || this.#reader?.isEmpty() === false) {
      throw new Fault('Runtime.InvalidStreamingOperation', `Cannot set ${what}, too late: the response has begun.`);
    }
  }
}

/** `awslambda.HttpResponseStream`. */
class HttpResponseStream {
  /**
   * @param {unknown} stream the stream of the handler
   * @param {Prelude} prelude
   */
  static from(stream, prelude) {
    if (!(stream instanceof ResponseStream)) {
      const problem = 'HttpResponseStream.from takes the responseStream that the handler was called with';
      throw new Fault('Runtime.InvalidStreamingOperation', problem);
    }
    stream.setPrelude(prelude ?? {});
    return stream;
  }
}

/** @param {unknown} chunk */
function bytesOrText(chunk) {
  return typeof chunk === 'string' || chunk instanceof Uint8Array ? chunk : JSON.stringify(chunk);
}

module.exports = { HttpResponseStream, ResponseStream };
