// The socket over which a handler invokes other functions (PROTOCOL.md, "Calls"). `sdk.js` is what functions see.
//
// The worker connects to it when the handler first needs it. Memory for data comes as a path. Who waits for an answer keeps the event loop
// alive, and nobody polls.
'use strict';

const net = require('node:net');

const output = require('./output.js');

/** @typedef {import('./input.js').Input} Input */
/** @typedef {{id: number, end: 'done' | 'function_error' | 'refused', path?: string, reason: string, problem: string}} Meta */
/** @typedef {{meta: Meta, body: Buffer}} Answer */
/** @typedef {{isCall: boolean, resolve: (answer: Answer) => void, reject: (error: Error) => void}} Waiter */

const NAME = ':calls';
const CALLS_MAX = 16; // as many as the daemon runs at a time for one invocation
const HEADER_LEN = 8;

/** Of invocations that run, by request id. @type {Map<string, Calls>} */
const open = new Map();

/** The daemon has closed the socket: the invocation is over. */
class Closed extends Error {}

/** The calls of one invocation. */
class Calls {
  /** The inputs of the invocation, by name. @type {Map<string, Input>} */
  given;
  /** Buffers to be released with the next request. @type {number[]} */
  dropped = [];
  /** Open files of buffers. @type {Set<{close(): void}>} */
  files = new Set();
  #path;
  /** @type {net.Socket | null} */
  #socket = null;
  #isClosed = false;
  #next = 1;
  /** By the id of their request. @type {Map<number, Waiter>} */
  #waiting = new Map();
  /** Calls without an answer. */
  #running = 0;
  /** Those that wait until fewer calls run. @type {Array<() => void>} */
  #queue = [];
  /** Parts of a message. @type {Buffer[]} */
  #parts = [];
  #partsLen = 0;
  /** So many bytes have to be there until there is something to read. */
  #wanted = HEADER_LEN;

  /**
   * @param {string} path where to connect to
   * @param {Map<string, Input>} given
   */
  constructor(path, given) {
    this.#path = path;
    this.given = given;
  }

  /**
   * Sends a request and waits for its answer.
   * @param {Record<string, unknown>} ask
   * @returns {Promise<Answer & {id: number}>}
   */
  async request(ask) {
    for (const buffer of this.dropped.splice(0)) {
      this.tell({ op: 'release', buffer });
    }
    return this.#ask(ask, Buffer.alloc(0), false).answer;
  }

  /**
   * Begins a call of a function, when fewer than CALLS_MAX calls run. Returns what waits for its answer.
   * @param {Record<string, unknown>} ask
   * @param {Uint8Array} body
   */
  async call(ask, body) {
    while (this.#running >= CALLS_MAX && !this.#isClosed) {
      await new Promise((resolve) => this.#queue.push(() => resolve(undefined)));
    }
    return this.#ask({ ...ask, op: 'call' }, body, true);
  }

  /**
   * Sends a request that has no answer.
   * @param {Record<string, unknown>} ask
   */
  tell(ask) {
    this.#send(ask, Buffer.alloc(0));
  }

  /** The invocation has ended. */
  close() {
    this.#over();
    this.#socket?.destroy();
    for (const file of this.files) {
      file.close();
    }
  }

  /**
   * @param {Record<string, unknown>} ask
   * @param {Uint8Array} body
   * @param {boolean} isCall
   * @returns {{id: number, answer: Promise<Answer & {id: number}>}}
   */
  #ask(ask, body, isCall) {
    const id = this.#next;
    this.#next += 1;
    const answer = new Promise((/** @type {(answer: Answer & {id: number}) => void} */ resolve, reject) => {
      if (this.#isClosed) {
        reject(new Closed());
        return;
      }
      this.#waiting.set(id, { isCall, resolve: (given) => resolve({ ...given, id }), reject });
      this.#running += isCall ? 1 : 0;
      this.#send({ ...ask, id }, body);
      this.#socket?.ref();
    });
    answer.catch(() => {}); // it is told to who waits
    return { id, answer };
  }

  /**
   * @param {Record<string, unknown>} ask
   * @param {Uint8Array} body
   */
  #send(ask, body) {
    if (this.#isClosed) {
      return;
    }
    const meta = Buffer.from(JSON.stringify(ask));
    const header = Buffer.alloc(HEADER_LEN);
    header.writeUInt32LE(meta.length);
    header.writeUInt32LE(body.length, 4);
    const socket = this.#connected();
    socket.write(Buffer.concat([header, meta]));
    if (body.length > 0) {
      socket.write(body);
    }
  }

  #connected() {
    if (this.#socket === null) {
      const socket = net.connect({ path: this.#path });
      socket.unref();
      socket.on('data', (part) => this.#hear(part));
      // What the daemon said before is lost, if it has closed the socket.
      socket.on('error', () => {});
      socket.on('close', () => this.#over());
      this.#socket = socket;
    }
    return this.#socket;
  }

  /** @param {Buffer} part */
  #hear(part) {
    this.#parts.push(part);
    this.#partsLen += part.length;
    while (this.#partsLen >= this.#wanted) {
      const held = this.#parts.length === 1 ? this.#parts[0] : Buffer.concat(this.#parts, this.#partsLen);
      this.#parts = [held];
      const bodyAt = HEADER_LEN + held.readUInt32LE();
      const end = bodyAt + held.readUInt32LE(4);
      if (held.length < end) {
        this.#wanted = end;
        return;
      }
      this.#answered(JSON.parse(held.toString('utf8', HEADER_LEN, bodyAt)), held.subarray(bodyAt, end));
      this.#parts = [held.subarray(end)];
      this.#partsLen = held.length - end;
      this.#wanted = HEADER_LEN;
    }
  }

  /**
   * @param {Meta} meta
   * @param {Buffer} body
   */
  #answered(meta, body) {
    const waiter = this.#waiting.get(meta.id);
    this.#waiting.delete(meta.id);
    if (waiter?.isCall) {
      this.#running -= 1;
      this.#queue.shift()?.();
    }
    waiter?.resolve({ meta, body });
    if (this.#waiting.size === 0) {
      this.#socket?.unref(); // what nobody waits for does not keep the event loop alive
    }
  }

  #over() {
    this.#isClosed = true;
    for (const waiter of this.#waiting.values()) {
      waiter.reject(new Closed());
    }
    this.#waiting.clear();
    for (const next of this.#queue.splice(0)) {
      next();
    }
  }
}

/** @param {string} name */
function isCalls(name) {
  return name === NAME;
}

/**
 * An invocation begins that may invoke functions.
 * @param {string} requestId
 * @param {string} path
 * @param {Input[]} inputs
 */
function begin(requestId, path, inputs) {
  open.set(requestId, new Calls(path, new Map(inputs.map((input) => [input.name, input]))));
}

/** @param {string} requestId */
function end(requestId) {
  open.get(requestId)?.close();
  open.delete(requestId);
}

/** The calls of the invocation that the running code belongs to. */
function current() {
  return open.get(output.request());
}

module.exports = { Calls, Closed, begin, current, end, isCalls };
