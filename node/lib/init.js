// `require('pilotlight').init`: what the function's initscripts have sent to an invocation (docs/initscripts.md).
//
// Messages are inputs whose names begin with `init.`. They belong to their invocation: it is found by the request of the running code, so
// handlers that run at the same time each get their own. `install` makes `require('pilotlight')` give this module.
'use strict';

const Module = require('node:module');

const output = require('./output.js');

/** @typedef {import('./inputs.js').Input} Input */

const PREFIX = 'init.';
// The scripts themselves. Their problems explain why there is no message.
const SCRIPTS = ['init.script', 'init.shared'];

/** By request id. @type {Map<string, {given: Map<string, Input>, problems: Map<string, string>}>} */
const sent = new Map();

/** The initscripts have not sent this message. The text says why, if that is known. */
class NoMessage extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'NoMessage';
  }
}

/** @param {string} name */
function isMessage(name) {
  return name.startsWith(PREFIX);
}

/**
 * An invocation begins that has messages, or whose initscript has failed.
 * @param {string} requestId
 * @param {Input[]} inputs
 * @param {import('./inputs.js').FailedInputMeta[]} failed
 */
function begin(requestId, inputs, failed) {
  const given = new Map(inputs.map((input) => [input.name, input]));
  const problems = new Map(failed.map(({ name, problem }) => [name, problem]));
  sent.set(requestId, { given, problems });
}

/** @param {string} requestId */
function end(requestId) {
  sent.delete(requestId);
}

/**
 * @param {number | bigint} id
 * @returns {Input}
 */
function message(id) {
  const found = sent.get(output.request());
  if (found === undefined) {
    throw new NoMessage(
      `message ${id}: no initscript ran for this invocation, because it did not wait for a worker to start, or it has ended`,
    );
  }
  const name = `${PREFIX}${id}`;
  const input = found.given.get(name);
  if (input === undefined) {
    const known = [name, ...SCRIPTS].map((one) => found.problems.get(one)).find((problem) => problem !== undefined);
    throw new NoMessage(`message ${id}: ${known ?? 'the initscript did not send it'}`);
  }
  return input;
}

/**
 * The bytes of a message, copied once per invocation. Throws NoMessage if there is none.
 * @param {number | bigint} id
 */
const recvMsg = (id) => message(id).buffer();

/**
 * A path to read a message, also for programs that the function starts. It is valid during the invocation.
 * @param {number | bigint} id
 */
const path = (id) => message(id).path;

/**
 * A stream of a message, which needs no memory for all of it.
 * @param {number | bigint} id
 */
const stream = (id) => message(id).stream();

/** The ids of the messages of this invocation. */
function messages() {
  const names = sent.get(output.request())?.given.keys() ?? [];
  return [...names].map((name) => Number(name.slice(PREFIX.length))).sort((one, other) => one - other);
}

/** What functions get. `recv_msg` is the name in Python and in the paper. */
const SDK = Object.freeze({ init: Object.freeze({ NoMessage, messages, path, recvMsg, recv_msg: recvMsg, stream }) });

/** `require('pilotlight')` gives this module from now on. Called once, before the handler is loaded. */
function install() {
  const loader = /** @type {any} */ (Module);
  const load = loader._load;
  loader._load = function loadOurs(/** @type {unknown} */ request, /** @type {unknown[]} */ ...rest) {
    return request === 'pilotlight' ? SDK : Reflect.apply(load, this, [request, ...rest]);
  };
}

module.exports = { NoMessage, begin, end, install, isMessage };
