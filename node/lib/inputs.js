// `context.inputs`: data that the daemon has fetched for an invocation (PROTOCOL.md, "Inputs").
//
// Node cannot receive descriptors and cannot map memory. So each input has a path, which is valid during its invocation, and
// its bytes are read when they are asked for. The drop-in (`drop_ins/`) answers from the same objects.
'use strict';

const { Input, InputError } = require('./input.js');

/** @typedef {import('./input.js').InputMeta} InputMeta */
/** @typedef {{name: string, problem: string}} FailedInputMeta */

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
  // The others are seldom needed.
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

module.exports = { Inputs };
