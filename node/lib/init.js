// `require('pilotlight').init`: what the function's initscripts have sent to an invocation (docs/initscripts.md).
//
// Messages are inputs whose names begin with `init.`. They belong to their invocation: it is found by the request of the running code, so
// handlers that run at the same time each get their own. `install` makes `require('pilotlight')` give this module.
'use strict';

const Module = require('node:module');
const net = require('node:net');

const output = require('./output.js');

/** @typedef {import('./inputs.js').Input} Input */

const PREFIX = 'init.';
const CONNECTION_PREFIX = 'init.conn.';
// The scripts themselves. Their problems explain why there is no message.
const SCRIPTS = ['init.script', 'init.shared'];

/**
 * What one invocation has.
 * @typedef {object} Sent
 * @property {Map<string, Input>} given messages, by their names
 * @property {Map<string, {path: string, address: string}>} connections those that were not taken yet, by their names
 * @property {Map<string, string>} problems
 */

/** By request id. @type {Map<string, Sent>} */
const sent = new Map();

/** The initscripts have not sent this message. The text says why, if that is known. */
class NoMessage extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'NoMessage';
  }
}

/** The initscript has not handed this connection over. The text says why, if that is known. */
class NoConnection extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'NoConnection';
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
  const given = new Map();
  const connections = new Map();
  for (const input of inputs) {
    if (input.name.startsWith(CONNECTION_PREFIX)) {
      const [name, address] = input.name.split('=', 2);
      connections.set(name, { path: input.path, address });
    } else {
      given.set(input.name, input);
    }
  }
  const problems = new Map(failed.map(({ name, problem }) => [name, problem]));
  sent.set(requestId, { given, connections, problems });
}

/** @param {string} requestId */
function end(requestId) {
  sent.delete(requestId);
}

const NO_SCRIPT = 'no initscript ran for this invocation, because it did not wait for a worker to start, or it has ended';

/**
 * Why something is not there, if that is known.
 * @param {Sent} found
 * @param {string} name
 */
function why(found, name) {
  return [name, ...SCRIPTS].map((one) => found.problems.get(one)).find((problem) => problem !== undefined);
}

/**
 * @param {number | bigint} id
 * @returns {Input}
 */
function message(id) {
  const found = sent.get(output.request());
  if (found === undefined) {
    throw new NoMessage(`message ${id}: ${NO_SCRIPT}`);
  }
  const name = `${PREFIX}${id}`;
  const input = found.given.get(name);
  if (input === undefined) {
    throw new NoMessage(`message ${id}: ${why(found, name) ?? 'the initscript did not send it'}`);
  }
  return input;
}

/**
 * The connection to `address`, `tcp://HOST:PORT`, that the script handed over as `id`. It is given once, and stays open after the
 * invocation. Throws NoConnection if there is none. As any `net.Socket`, it has connected when it says `connect`, and takes writes before.
 * @param {number | bigint} id
 * @param {string} address
 * @returns {net.Socket}
 */
function getConn(id, address) {
  const found = sent.get(output.request());
  if (found === undefined) {
    throw new NoConnection(`connection ${id}: ${NO_SCRIPT}`);
  }
  const name = `${CONNECTION_PREFIX}${id}`;
  const connection = found.connections.get(name);
  if (connection === undefined) {
    throw new NoConnection(`connection ${id}: ${why(found, name) ?? 'the initscript did not hand it over, or it was taken before'}`);
  }
  if (connection.address !== address) {
    throw new NoConnection(`connection ${id}: it leads to ${connection.address}, and not to ${address}`);
  }
  found.connections.delete(name);
  return net.connect({ path: connection.path });
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

/** The ids of the messages of this invocation. Those that no number can be are of type bigint. */
function messages() {
  const names = sent.get(output.request())?.given.keys() ?? [];
  const ids = [...names].map((name) => BigInt(name.slice(PREFIX.length)));
  ids.sort((one, other) => (one < other ? -1 : 1));
  return ids.map((id) => (id <= Number.MAX_SAFE_INTEGER ? Number(id) : id));
}

/**
 * An id that follows from the arguments of a call, so that a library and a script name its result in the same way:
 * `recvMsg(idOf('download', bucket, key))`. FNV-1a of 64 bits, of each argument's length and UTF-8.
 * @param {string[]} args
 */
function idOf(...args) {
  let total = 0xcbf29ce484222325n;
  for (const argument of args) {
    const text = Buffer.from(argument);
    const length = Buffer.alloc(8);
    length.writeUInt32LE(text.length);
    for (const byte of Buffer.concat([length, text])) {
      total = BigInt.asUintN(64, (total ^ BigInt(byte)) * 0x100000001b3n);
    }
  }
  return total;
}

/** What functions get. `recv_msg` and `get_conn` are the names in Python and in the paper. */
const INIT = { NoConnection, NoMessage, getConn, get_conn: getConn, idOf, messages, path, recvMsg, recv_msg: recvMsg, stream };
const SDK = Object.freeze({ init: Object.freeze(INIT) });

/** `require('pilotlight')` gives this module from now on. Called once, before the handler is loaded. */
function install() {
  const loader = /** @type {any} */ (Module);
  const load = loader._load;
  loader._load = function loadOurs(/** @type {unknown} */ request, /** @type {unknown[]} */ ...rest) {
    return request === 'pilotlight' ? SDK : Reflect.apply(load, this, [request, ...rest]);
  };
}

module.exports = { NoMessage, begin, end, install, isMessage };
