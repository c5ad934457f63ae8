// Inputs of which a decoder has made a file that is easy to read (PROTOCOL.md, `Decoded`): an array, a table or JSON. Loaded only if there is
// one. `inputs.NAME` is what the file has; a path, a stream and `buffer()` are the file itself.
'use strict';

const fs = require('node:fs');

const { Input } = require('./input.js');

/**
 * @typedef {object} DecodedMeta
 * @property {string} by the decoder
 * @property {ArrayMeta} [array]
 * @property {{rows: number, columns: number}} [arrow]
 * @property {{}} [json]
 */

/** @typedef {{element: string, shape: number[], at: number}} ArrayMeta */

/** @typedef {{shape: number[], dtype: string, data: ArrayBufferView}} DecodedArray */

/** The classes of numpy's types, without the byte order, which is that of this machine. @type {Record<string, any>} */
const CLASSES = {
  b1: Uint8Array,
  i1: Int8Array,
  u1: Uint8Array,
  i2: Int16Array,
  u2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
  i8: BigInt64Array,
  u8: BigUint64Array,
  // Node.js before version 24 has none for halves: then these are their bits.
  f2: Reflect.get(globalThis, 'Float16Array') ?? Uint16Array,
  f4: Float32Array,
  f8: Float64Array,
};

/** An input that was decoded. */
class Decoded extends Input {
  #decoded;
  /** @type {unknown} */
  #value;

  /**
   * @param {import('./input.js').InputMeta} meta
   * @param {DecodedMeta} decoded
   */
  constructor(meta, decoded) {
    super(meta);
    this.#decoded = decoded;
  }

  /** An array, the value of JSON, or the bytes of a file of Arrow. Always the same. @override */
  value() {
    if (this.#value === undefined) {
      const { array, json } = this.#decoded;
      if (array !== undefined) {
        this.#value = this.#array(array);
      } else {
        this.#value = json === undefined ? this.buffer() : JSON.parse(fs.readFileSync(this.path, 'utf8'));
      }
    }
    return this.#value;
  }

  /**
   * The array, whose values are read once, to where they stay.
   * @param {ArrayMeta} layout
   * @returns {DecodedArray}
   */
  #array({ element, shape, at }) {
    const values = new Uint8Array(this.size - at);
    const file = fs.openSync(this.path, 'r');
    try {
      for (let done = 0; done < values.length; ) {
        const count = fs.readSync(file, values, done, Math.min(values.length - done, READ_LEN_MAX), at + done);
        if (count === 0) {
          throw new Error(`input '${this.name}': it is shorter than it should be`);
        }
        done += count;
      }
    } finally {
      fs.closeSync(file);
    }
    return { shape, dtype: element, data: new CLASSES[element.slice(1)](values.buffer) };
  }
}

/** One call of read(2) gives less than 2 GiB. */
const READ_LEN_MAX = 2 ** 30;

module.exports = { Decoded };
