// `context.inputs`: data that the daemon has fetched for an invocation (PROTOCOL.md, "Inputs").
//
// Node cannot receive descriptors and cannot map memory. So each input has a path, which is valid during its invocation, and
// its bytes are read when they are asked for. The drop-in (`drop_ins.js`) answers from the same objects.
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

/** @typedef {{name: string, problem: string}} FailedInputMeta */

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

/**
 * The inputs of one invocation: `inputs.NAME` is a Buffer, or what a decoder has made of it. A name that is also a method's is only for
 * `buffer(name)`.
 */
class Inputs {
  /** @type {Map<string, Input>} */
  #given = new Map();
  /** @type {Map<string, string>} */
  #failed;

  /**
   * @param {InputMeta[]} [given]
   * @param {FailedInputMeta[]} [failed]
   */
  constructor(given = [], failed = []) {
    this.#failed = new Map(failed.map(({ name, problem }) => [name, problem]));
    for (const meta of given) {
      if (meta.kind === 'progress') {
        /** @type {import('./growing.js').Growing} */ (this.#given.get(meta.name)).follow(meta.path);
      } else {
        this.#given.set(meta.name, input(meta));
      }
    }
    for (const name of [...this.#given.keys(), ...this.#failed.keys()]) {
      if (!(name in Inputs.prototype)) {
        Object.defineProperty(this, name, { enumerable: this.#given.has(name), get: () => this.#input(name).value() });
      }
    }
  }

  /**
   * The bytes of an input, copied once per invocation. If it was decoded, those of the decoder's file.
   * @param {string} name
   */
  buffer(name) {
    return this.#input(name).buffer();
  }

  /**
   * A path to read an input, also for programs that the function starts. It is valid during the invocation.
   * @param {string} name
   */
  path(name) {
    return this.#input(name).path;
  }

  /**
   * A stream of an input, which needs no memory for all of it.
   * @param {string} name
   */
  stream(name) {
    return this.#input(name).stream();
  }

  /**
   * The bytes of an input. If it still arrives, this waits for the whole, while the event loop goes on.
   * @param {string} name
   */
  async whole(name) {
    return this.#input(name).whole();
  }

  /** @param {Inputs} inputs */
  static all(inputs) {
    return [...inputs.#given.values()];
  }

  /** @param {string} name */
  #input(name) {
    const input = this.#given.get(name);
    if (input === undefined) {
      throw new InputError(`input '${name}': ${this.#failed.get(name) ?? 'the function declares none of this name'}`);
    }
    return input;
  }
}

/** @param {InputMeta} meta */
function input(meta) {
  // Others need this module, and are seldom needed.
  if (meta.kind === 'growing') {
    const { Growing } = require('./growing.js');
    return new Growing(meta);
  }
  if (meta.decoded !== undefined) {
    const { Decoded } = require('./decoded.js');
    return new Decoded(meta, meta.decoded);
  }
  return new Input(meta);
}

module.exports = { Input, InputError, Inputs };
