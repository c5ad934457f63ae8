// `require('pilotlight').init`: what the function's initscripts have sent to an invocation (docs/initscripts.md).
//
// Messages are inputs whose names begin with `init.`. They belong to their invocation: it is found by the request of the running code, so
// handlers that run at the same time each get their own. If the script still runs (`during = "invocation"`), `init.promises` waits for what
// has not come (`arriving.js`). `sdk.js` makes it a part of `require('pilotlight')`.
'use strict';

const net = require('node:net');

const output = require('./output.js');

/** @typedef {import('./input.js').Input} Input */

const PREFIX = 'init.';
const CONNECTION_PREFIX = 'init.conn.';
// The socket of a script that goes on, which is no input of the handler.
const SCRIPT_NAME = ':init';
// The scripts themselves. Their problems explain why there is no message.
const SCRIPTS = ['init.script', 'init.shared'];

/**
 * What one invocation has.
 * @typedef {object} Sent
 * @property {Map<string, Input>} given messages, by their names
 * @property {Map<string, {path: string, address: string}>} connections those that were not taken yet, by their names
 * @property {Map<string, string>} problems
 * @property {import('./arriving.js').Arriving | null} arriving what still comes
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

/** The message was not sent to the initscript. The text says why. */
class NotSent extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = 'NotSent';
  }
}

/** @param {string} name */
function isMessage(name) {
  return name.startsWith(PREFIX);
}

/** @param {string} name */
function isScript(name) {
  return name === SCRIPT_NAME;
}

/**
 * The script of an invocation goes on.
 * @param {string} path where to connect to
 * @param {(input: Input) => void} onMessage is called for each message that comes
 */
function follow(path, onMessage) {
  const { Arriving } = require('./arriving.js'); // seldom needed
  return new Arriving(path, PREFIX, onMessage);
}

/**
 * An invocation begins that has messages, or whose initscript has failed or goes on.
 * @param {string} requestId
 * @param {Input[]} inputs
 * @param {import('./inputs.js').FailedInputMeta[]} failed
 * @param {import('./arriving.js').Arriving | null} arriving
 */
function begin(requestId, inputs, failed, arriving) {
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
  sent.set(requestId, { given, connections, problems, arriving });
}

/** @param {string} requestId */
function end(requestId) {
  sent.delete(requestId);
}

const NOT_YET = 'it has not come yet: wait for it with init.promises';
const NO_SCRIPT_NOW =
  'no initscript runs beside the handler: one does if the invocation waited for a worker to start, and initscript.during is ' +
  '"invocation" in pilot.toml';
const ID_MAX = (1n << 64n) - 1n;
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
 * Why a message is not there.
 * @param {Sent} found
 * @param {string} name
 */
function whyNoMessage(found, name) {
  const reason = found.arriving?.why(name) ?? why(found, name);
  return reason ?? (found.arriving?.hasEnded === false ? NOT_YET : 'the initscript did not send it');
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
  const input = found.given.get(name) ?? found.arriving?.given(name);
  if (input === undefined) {
    throw new NoMessage(`message ${id}: ${whyNoMessage(found, name)}`);
  }
  return input;
}

/**
 * As `message`, and waits for it while the script runs.
 * @param {number | bigint} id
 * @returns {Promise<Input>}
 */
async function messageLater(id) {
  const found = sent.get(output.request());
  const name = `${PREFIX}${id}`;
  if (found?.arriving && !found.given.has(name)) {
    await found.arriving.message(name);
  }
  return message(id);
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
  if (connection === undefined && found.arriving !== null) {
    throw new NoConnection(`connection ${id}: ${NOT_YET}`);
  }
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
 * As `getConn`, and waits for the connection while the script runs.
 * @param {number | bigint} id
 * @param {string} address
 */
async function getConnLater(id, address) {
  const found = sent.get(output.request());
  if (!found?.arriving) {
    return getConn(id, address);
  }
  const connection = await found.arriving.connection(id, address);
  if (typeof connection !== 'object') {
    throw new NoConnection(`connection ${id}: ${connection ?? why(found, '') ?? 'the initscript did not hand it over'}`);
  }
  if (connection.address !== address) {
    throw new NoConnection(`connection ${id}: it leads to ${connection.address}, and not to ${address}`);
  }
  return net.connect({ path: connection.path });
}

/**
 * Sends bytes to the script that runs beside the handler, as message `id`. The script may be waiting for it. A message has at most 1 MiB. A
 * script gets at most 16, of 4 MiB in all, each with an id of its own. Rejects with NotSent if the script cannot get it. This does not wait for
 * the script, so a script that ends may not have received it.
 * @param {number | bigint} id
 * @param {string | Uint8Array} data a text is sent as UTF-8
 */
async function sendMsg(id, data) {
  const key = BigInt(id);
  if (key < 0n || key > ID_MAX) {
    throw new RangeError(`an id is a number from 0 to ${ID_MAX}, and not ${id}`);
  }
  const bytes = typeof data === 'string' ? Buffer.from(data) : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  const arriving = sent.get(output.request())?.arriving;
  const problem = arriving ? await arriving.send(key, bytes) : NO_SCRIPT_NOW;
  if (problem !== null) {
    throw new NotSent(`message ${id}: ${problem}`);
  }
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

/** As the functions of these names, and they wait for what has not come while the script runs. */
const promises = Object.freeze({
  getConn: getConnLater,
  path: async (/** @type {number | bigint} */ id) => (await messageLater(id)).path,
  recvMsg: async (/** @type {number | bigint} */ id) => (await messageLater(id)).whole(),
  sendMsg,
  stream: async (/** @type {number | bigint} */ id) => (await messageLater(id)).stream(),
});

/** The ids of the messages of this invocation. If the script still runs: of those that have come so far. Those that no number can be are of type bigint. */
function messages() {
  const found = sent.get(output.request());
  const names = [...(found?.given.keys() ?? []), ...(found?.arriving?.inputs() ?? []).map(({ name }) => name)];
  const ids = [...new Set(names)].map((name) => BigInt(name.slice(PREFIX.length)));
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
const INIT = {
  NoConnection, NoMessage, NotSent, getConn, get_conn: getConn, idOf, messages, path, promises, recvMsg, recv_msg: recvMsg, stream,
}; // prettier-ignore

module.exports = { INIT: Object.freeze(INIT), NoMessage, begin, end, follow, isMessage, isScript };
