// `require('pilotlight')`: invokes other functions and hands data to them by reference, and has what initscripts have sent (`init.js`).
//
//     const answer = await pilotlight.invoke('next', { payload: { width: 100 }, data: image });
//     const answers = await pilotlight.map('part', [{ n: 1 }, { n: 2 }], { data: image });
//
// Nothing has to be installed. A handler may only invoke functions that `invokes` in its pilot.toml names.
'use strict';

const Module = require('node:module');

const calls = require('./calls.js');
const { HandedBuffer, bytesOf } = require('./handed.js');
const init = require('./init.js');
const errors = require('./invoke_errors.js');

const { BufferInUse, FunctionError, InvokeError, MapError, OVER, Refused } = errors;

/** @typedef {import('./calls.js').Calls} Calls */
/** @typedef {import('./calls.js').Answer} Answer */

/**
 * What goes along with a call. With `size`, `data` are parts that have `size` bytes together.
 * @typedef {object} Handing
 * @property {unknown} [data] bytes, a buffer, an input, or parts
 * @property {number} [size]
 */

const PAYLOAD_LEN_MAX = 8 << 20; // of a message
const NAME_LEN_MAX = 1000; // no function has such a name, and a message has room for it
const NO_CALLS =
  'there is no invocation that may invoke others: call this from the handler of a function with invokes = ["NAME", …] in its pilot.toml';

/** An input of the invocation, to be handed on without a copy. Made by `input(name)`. */
class HandedInput {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    Object.freeze(this);
  }
}

/**
 * Invokes a function and gives what its handler returned. Rejects with Refused or FunctionError if there is no answer.
 *
 * `data` is a buffer or an input of this invocation (`buffer`, `input`; both without a copy), or bytes, which are copied once and must not be
 * changed until they are. The function has it as its input `data`. It starts while the bytes are copied. The call ends with this
 * invocation, at the latest.
 * @param {string} name
 * @param {Handing & {payload?: unknown}} [options] `payload` is the event. A Uint8Array is JSON already
 */
function invoke(name, options = {}) {
  return unlessLeft(async () => {
    const [result] = await run(name, [options.payload], options);
    if (result instanceof InvokeError) {
      throw result;
    }
    return result;
  });
}

/**
 * Invokes a function once for each payload, up to 16 at a time. Gives the results in order. All get the same `data`, which is that of `invoke`.
 *
 * If some fail, the others are finished. Then this rejects with MapError, which has all results; or, with `returnErrors`, the errors are in the
 * list.
 * @param {string} name
 * @param {Iterable<unknown> | AsyncIterable<unknown>} payloads
 * @param {Handing & {returnErrors?: boolean}} [options]
 */
function map(name, payloads, options = {}) {
  return unlessLeft(async () => {
    const results = await run(name, payloads, options);
    if (!options.returnErrors && results.some((result) => result instanceof InvokeError)) {
      throw new MapError(name, results);
    }
    return results;
  });
}

/**
 * If a handler has not waited for a call, its end with the invocation is no rejection that nobody handles: this would end the worker, and the
 * invocation after it.
 * @template T
 * @param {() => Promise<T>} call
 * @returns {Promise<T>}
 */
function unlessLeft(call) {
  /** @type {Promise<T>} */
  const result = new Promise((resolve, reject) => {
    call().then(resolve, (error) => {
      if (error instanceof InvokeError && error.message === OVER) {
        result.catch(() => {}); // who waits still gets it
      }
      reject(error);
    });
  });
  return result;
}

/**
 * Memory of `size` bytes, zero at first. It counts as memory of this function (`memory_mb`) as it is written.
 * @param {number} size
 */
async function buffer(size) {
  return HandedBuffer.make(connection(), size);
}

/**
 * An input of this invocation, as `data` for other functions. It is not read here.
 * @param {string} name
 */
function input(name) {
  return new HandedInput(String(name));
}

/**
 * @param {string} name
 * @param {Iterable<unknown> | AsyncIterable<unknown>} payloads
 * @param {Handing} handing
 */
async function run(name, payloads, handing) {
  if (typeof name !== 'string') {
    throw new TypeError(`a function is named by a string, and not by ${name === null ? 'null' : typeof name}`);
  }
  const connected = connection();
  if (Buffer.from(name).toString() !== name) {
    throw new TypeError('a function is named by a text: what is no Unicode is none');
  }
  if (name.length > NAME_LEN_MAX) {
    throw new Refused('NotFound', 'no function has such a name: it has 1 to 64 of a-z A-Z 0-9 - _');
  }
  const { ask, fill, made } = await prepared(connected, handing);
  /** @type {unknown[]} */
  const results = [];
  /** @type {Array<Promise<void>>} */
  const running = [];
  /** @type {Promise<void> | null} */
  let filling = null;
  try {
    for await (const payload of payloads) {
      const at = results.push(undefined) - 1;
      const { answer } = await connected.call({ ...ask, function: name }, encoded(payload));
      running.push(answer.then((given) => void (results[at] = resultOf(name, given))));
      running[at].catch(() => {}); // it is told below
      if (fill !== null && filling === null) {
        filling = fill(); // after the first call, whose worker starts meanwhile
        filling.catch(() => {});
      }
    }
    await filling;
    await Promise.all(running);
  } catch (error) {
    throw error instanceof calls.Closed ? new InvokeError(OVER) : error;
  } finally {
    made?.release();
  }
  return results;
}

/**
 * What goes along with each call, what fills it, and what is to be released.
 * @param {Calls} connected
 * @param {Handing} handing
 * @returns {Promise<{ask: Record<string, unknown>, fill: (() => Promise<void>) | null, made?: HandedBuffer}>}
 */
async function prepared(connected, { data, size }) {
  if (size !== undefined) {
    const parts = partsOf(data);
    const made = await HandedBuffer.make(connected, size);
    return { ask: { buffer: HandedBuffer.number(made, connected) }, fill: () => HandedBuffer.fillWith(made, parts), made };
  }
  if (data === undefined || data === null) {
    return { ask: {}, fill: null };
  }
  if (data instanceof HandedInput) {
    await connected.given.get(data.name)?.arrived();
    return { ask: { input: data.name }, fill: null };
  }
  if (data instanceof HandedBuffer) {
    return { ask: { buffer: HandedBuffer.number(data, connected) }, fill: () => data.seal() };
  }
  const bytes = bytesToHand(data);
  const made = await HandedBuffer.make(connected, bytes.length);
  return { ask: { buffer: HandedBuffer.number(made, connected) }, fill: () => HandedBuffer.fill(made, bytes), made };
}

/** @param {unknown} data */
function bytesToHand(data) {
  try {
    return bytesOf(data);
  } catch {
    const found = data === null ? 'null' : typeof data;
    throw new TypeError(`data is bytes (a Buffer or a Uint8Array), a buffer, an input, or with size its parts, and not ${found}`);
  }
}

/**
 * @param {unknown} data
 * @returns {Iterable<unknown> | AsyncIterable<unknown>}
 */
function partsOf(data) {
  const parts = /** @type {any} */ (data);
  if (ArrayBuffer.isView(data) || typeof data === 'string') {
    return [data];
  }
  if (typeof parts?.[Symbol.asyncIterator] === 'function' || typeof parts?.[Symbol.iterator] === 'function') {
    return parts;
  }
  throw new TypeError('with size, data is an iterable of parts, such as a readable stream');
}

/**
 * @param {unknown} payload
 * @returns {Uint8Array}
 */
function encoded(payload) {
  if (payload === undefined) {
    return Buffer.from('{}');
  }
  const bytes = payload instanceof Uint8Array ? payload : textOf(payload);
  if (bytes.length > PAYLOAD_LEN_MAX) {
    throw new Refused('TooLarge', `the event has ${bytes.length} bytes, and may have ${PAYLOAD_LEN_MAX}: hand it over as data`);
  }
  return bytes;
}

/** @param {unknown} payload */
function textOf(payload) {
  const text = JSON.stringify(payload);
  if (text === undefined) {
    throw new TypeError(`a payload is what JSON can say, and not ${typeof payload}`);
  }
  return Buffer.from(text);
}

/**
 * @param {string} name
 * @param {Answer} answer
 */
function resultOf(name, { meta, body }) {
  if (meta.end === 'refused') {
    return new Refused(meta.reason, meta.problem);
  }
  const value = body.length === 0 ? null : JSON.parse(body.toString());
  return meta.end === 'done' ? value : new FunctionError(name, value);
}

function connection() {
  const connected = calls.current();
  if (connected === undefined) {
    throw new InvokeError(NO_CALLS);
  }
  return connected;
}

/** What functions get. */
const SDK = Object.freeze({
  BufferInUse, FunctionError, InvokeError, MapError, Refused, buffer, init: init.INIT, input, invoke, map,
}); // prettier-ignore

/** `require('pilotlight')` gives this module from now on. Called once, before the handler is loaded. */
function install() {
  const loader = /** @type {any} */ (Module);
  const load = loader._load;
  loader._load = function loadOurs(/** @type {unknown} */ request, /** @type {unknown[]} */ ...rest) {
    return request === 'pilotlight' ? SDK : Reflect.apply(load, this, [request, ...rest]);
  };
}

module.exports = { install };
