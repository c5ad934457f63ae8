// One input of an invocation. `inputs.js` makes it; `growing.js` and `decoded.js` have other kinds of it.
'use strict';

const fs = require('node:fs');

/**
 * @typedef {object} InputMeta
 * @property {string} name
 * @property {string} kind `memory`, or `growing` and then `progress` with the same name
 * @property {number} [len] bytes; absent: not announced, or `progress`
 * @property {string} path
 * @property {any} [store] what clients of its store call it
 * @property {import('./decoded.js').DecodedMeta} [decoded] what a decoder has made of it
 */

/** An optional input that could not be fetched, or a name that the function has not declared. */
class InputError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'InputError';
  }
}

/** One input of an invocation. */
class Input {
  /** @type {Buffer | null} */
  #buffer = null;
  #size;
  #path;
  /** Streams that were made of it. @type {import('node:stream').Readable[]} */
  #streams = [];

  /** @param {InputMeta} meta */
  constructor({ name, len, path, store }) {
    this.name = name;
    this.store = store;
    /** The id of the request that has it, for drop-ins. */
    this.invocation = '';
    this.#size = len;
    this.#path = path;
  }

  /** Its length. @returns {number} */
  get size() {
    return /** @type {number} */ (this.#size);
  }

  /** @returns {string} */
  get path() {
    return this.#path;
  }

  /** Its bytes, read at the first call. Always the same Buffer. */
  buffer() {
    this.#buffer ??= fs.readFileSync(this.path);
    return this.#buffer;
  }

  /** Waits until it is whole. */
  async arrived() {}

  /** What `inputs.NAME` is. @returns {unknown} */
  value() {
    return this.buffer();
  }

  /** Its bytes, when all are there. */
  async whole() {
    return this.buffer();
  }

  /**
   * A stream of its bytes from `start` to before `end`. It is opened at once, so it can be read on after the invocation.
   * @param {number} [start]
   * @param {number} [end]
   * @returns {import('node:stream').Readable}
   */
  stream(start = 0, end = this.size) {
    const fd = fs.openSync(this.path, 'r');
    // The last byte is part of the range, so a range cannot be empty. The stream of an empty one begins at the end of the file.
    const range = start < end ? { start, end: end - 1 } : { start: this.size };
    return this.track(fs.createReadStream('', { fd, ...range }));
  }

  /**
   * Closes the stream with the invocation, if nobody has begun to read it by then.
   * @template {import('node:stream').Readable} S
   * @param {S} stream
   */
  track(stream) {
    this.#streams.push(stream);
    return stream;
  }

  /** Its invocation has ended: closes what nobody has begun to read. */
  end() {
    for (const stream of this.#streams.splice(0)) {
      if (stream.readableFlowing === null && !stream.readableDidRead) {
        stream.destroy();
      }
    }
  }
}

module.exports = { Input, InputError };
