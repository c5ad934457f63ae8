// The inputs from which the drop-ins of one kind of store answer, and what the function has written there.
//
// A client is answered from the inputs of the invocation that calls it, and of no other one. What an invocation of this worker writes is
// no answer for any of them, until the daemon has read it again.
'use strict';

const output = require('../output.js');

/** @typedef {import('../input.js').Input} Input */
/** @typedef {readonly string[]} Writes */

// The worker is the function's, so this bounds only what a long life costs.
const WRITES_MAX = 1000;

/**
 * The last writes of a worker, of all its invocations. Times are of CLOCK_MONOTONIC, as the daemon's. The oldest writes are forgotten.
 * Whatever was read before one of those counts as written.
 */
class Written {
  /** The newest is last. @type {Map<string, bigint>} */
  #when = new Map();
  #forgottenNs = -1n;

  /**
   * @param {Writes} writes
   * @param {bigint} nowNs
   */
  note(writes, nowNs) {
    for (const write of writes) {
      this.#when.delete(write);
      this.#when.set(write, nowNs);
    }
    for (const [write, ns] of this.#when) {
      if (this.#when.size <= WRITES_MAX) {
        break;
      }
      this.#when.delete(write);
      this.#forgottenNs = ns;
    }
  }

  /**
   * Whether one of these writes was noted at this time or later.
   * @param {Writes} writes
   * @param {number} askedNs
   */
  hasAnySince(writes, askedNs) {
    return this.#forgottenNs >= askedNs || writes.some((write) => (this.#when.get(write) ?? -1n) >= askedNs);
  }
}

/** One kind of store has one of these. */
class Given {
  /** Several invocations may have the same object. The newest is last. @type {Map<string, Input[]>} */
  #byPlace = new Map();
  #written = new Written();
  #places;
  #writes;

  /**
   * @param {(store: any) => readonly string[]} places all names of an object, from `InvokeMeta.inputs[].store`
   * @param {(place: string) => Writes} writes of a place: all writes that change what is there
   */
  constructor(places, writes) {
    this.#places = places;
    this.#writes = writes;
  }

  get size() {
    return this.#byPlace.size;
  }

  /** @param {Input} input */
  add(input) {
    const { asked_ns: asked } = input.store;
    const places = this.#places(input.store);
    if (asked !== undefined && places.some((place) => this.#written.hasAnySince(this.#writes(place), asked))) {
      return;
    }
    for (const place of places) {
      this.#byPlace.set(place, [...(this.#byPlace.get(place) ?? []), input]);
    }
  }

  /**
   * It has answered, or its invocation has ended.
   * @param {Input} input
   */
  remove(input) {
    for (const place of this.#places(input.store)) {
      const others = (this.#byPlace.get(place) ?? []).filter((other) => other !== input);
      if (others.length > 0) {
        this.#byPlace.set(place, others);
      } else {
        this.#byPlace.delete(place);
      }
    }
  }

  /** Without what was written. */
  clear() {
    this.#byPlace.clear();
  }

  /** @param {string} place */
  newest(place) {
    return this.of(place).at(-1);
  }

  /**
   * What an invocation has there, the oldest first. With a concurrency above 1, code may run of which nobody knows whose it is: it has nothing.
   * @param {string} place
   * @param {string} [requestId] that of the running code
   */
  of(place, requestId = output.request()) {
    return (this.#byPlace.get(place) ?? []).filter(({ invocation }) => invocation === requestId);
  }

  /**
   * The function writes now: what was read before is no answer any more.
   * @param {Writes} writes
   */
  wrote(writes) {
    if (writes.length === 0) {
      return;
    }
    this.#written.note(writes, process.hrtime.bigint());
    const changing = new Set(writes);
    for (const [place, inputs] of [...this.#byPlace]) {
      if (this.#writes(place).some((write) => changing.has(write))) {
        inputs.forEach((input) => this.remove(input));
      }
    }
  }

  /**
   * Sends what may write. Its end is noted too: the daemon may have read the object before the store had changed it.
   * @template T
   * @param {Writes} writes
   * @param {() => T} send
   */
  call(writes, send) {
    this.wrote(writes);
    const sent = send();
    if (writes.length > 0) {
      const noted = () => this.wrote(writes);
      Promise.resolve(sent).then(noted, noted);
    }
    return sent;
  }
}

module.exports = { Given, WRITES_MAX, Written };
