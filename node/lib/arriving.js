// What an initscript sends while the handler runs, and what the handler sends to the script (PROTOCOL.md, "Initscripts that go on"). Loaded
// only if an invocation has such a script.
//
// The worker connects to a socket of its invocation. Each message of the script comes with a path, as an input does. Who waits for one keeps
// the event loop alive, and nobody polls. The daemon ends a script at its time, so a wait ends too.
'use strict';

const net = require('node:net');

const { Input } = require('./input.js');

/** @typedef {{path: string, address: string}} Connection */
/** @typedef {{isHere: () => boolean, resolve: () => void}} Waiter */
/**
 * @typedef {object} Note
 * @property {'message' | 'connection' | 'end'} op
 * @property {string} id
 * @property {number} len
 * @property {string} path
 * @property {string} address
 * @property {string} [problem]
 * @property {any} [store]
 */

const LENGTH_LEN = 4;
const HEADER_LEN = 12; // of a message to the script
const SENT_LEN_MAX = 1 << 20;
const SENT_MAX = 16;
const SENT_TOTAL_MAX = 4 << 20;
const INTERRUPTED = 'the invocation ended before the initscript';

/** The rest of what the script of one invocation sends. */
class Arriving {
  #socket;
  #prefix;
  #onMessage;
  /** A part of a note. */
  #unread = Buffer.alloc(0);
  /** By their names. @type {Map<string, Input>} */
  #given = new Map();
  /** Why a message will not come, by its name. @type {Map<string, string>} */
  #failed = new Map();
  /** By their ids. A text: why there is none. @type {Map<string, Connection | string>} */
  #connections = new Map();
  #hasEnded = false;
  #problem = '';
  /** @type {Waiter[]} */
  #waiters = [];
  /** Ids of what was sent to the script. @type {Set<bigint>} */
  #sent = new Set();
  #sentLen = 0;

  /**
   * Connects at once, so that what comes is there when it is asked for.
   * @param {string} path
   * @param {string} prefix what the names of messages begin with
   * @param {(input: Input) => void} onMessage is called for each message
   */
  constructor(path, prefix, onMessage) {
    this.#prefix = prefix;
    this.#onMessage = onMessage;
    this.#socket = net.connect({ path });
    this.#socket.unref();
    this.#socket.on('data', (chunk) => this.#hear(chunk));
    // An error is also that the daemon reads no more, because the script has ended. What it says of the end has come before, or is lost.
    this.#socket.on('error', () => {});
    this.#socket.on('close', () => this.#over(INTERRUPTED));
  }

  /** Nothing else will come. */
  get hasEnded() {
    return this.#hasEnded;
  }

  /**
   * A message that is here.
   * @param {string} name
   */
  given(name) {
    return this.#given.get(name);
  }

  /** The messages that are here. */
  inputs() {
    return [...this.#given.values()];
  }

  /**
   * Why there is no such message, if that is known by now.
   * @param {string} name
   */
  why(name) {
    return this.#failed.get(name) ?? (this.#problem === '' ? undefined : this.#problem);
  }

  /**
   * Waits for a message, or for the end of the script.
   * @param {string} name
   */
  async message(name) {
    await this.#wait(() => this.#given.has(name) || this.#failed.has(name));
  }

  /**
   * Waits for a connection, or for the end of the script. The connection, which is the caller's from then on, or why there is none, if that is
   * known. One that leads elsewhere stays.
   * @param {number | bigint} id
   * @param {string} address
   * @returns {Promise<Connection | string | undefined>}
   */
  async connection(id, address) {
    const key = String(id);
    await this.#wait(() => this.#connections.has(key));
    const found = this.#connections.get(key) ?? (this.#problem === '' ? undefined : this.#problem);
    if (typeof found === 'object' && found.address === address) {
      this.#connections.set(key, 'it was taken before');
    }
    return found;
  }

  /**
   * Sends a message to the script. Waits until the kernel has it: if the daemon has no memory for it, at most until the script ends. Returns why
   * it was not sent, or null.
   * @param {bigint} id
   * @param {Buffer} data
   * @returns {Promise<string | null>}
   */
  async send(id, data) {
    // What is here already is read first: it may be the script's end.
    await new Promise((resolve) => setImmediate(resolve));
    const problem = this.#whyNot(id, data.length);
    if (problem !== null) {
      return problem;
    }
    this.#sent.add(id);
    this.#sentLen += data.length;
    const header = Buffer.alloc(HEADER_LEN);
    header.writeBigUInt64LE(id);
    header.writeUInt32LE(data.length, 8);
    return new Promise((resolve) => {
      // A copy: the caller may write into its Buffer when this has returned.
      this.#socket.write(Buffer.concat([header, data]), (error) => resolve(error ? this.#endOfScript() : null));
    });
  }

  /** The invocation has ended. */
  close() {
    this.#over(INTERRUPTED);
    this.#socket.destroy();
    for (const input of this.#given.values()) {
      input.end();
    }
  }

  /**
   * @param {bigint} id
   * @param {number} len
   */
  #whyNot(id, len) {
    if (this.#hasEnded) {
      return this.#endOfScript();
    }
    if (len > SENT_LEN_MAX) {
      return `it has ${len} bytes, and a message to the initscript has at most ${SENT_LEN_MAX}`;
    }
    if (this.#sent.has(id)) {
      return 'a message with this id was sent before';
    }
    if (this.#sent.size >= SENT_MAX || this.#sentLen + len > SENT_TOTAL_MAX) {
      return `the initscript is full: it gets at most ${SENT_MAX} messages, of ${SENT_TOTAL_MAX} bytes in all`;
    }
    return null;
  }

  #endOfScript() {
    return `the initscript has ended${this.#problem === '' ? '' : `: ${this.#problem}`}`;
  }

  /** @param {() => boolean} isHere */
  async #wait(isHere) {
    if (isHere() || this.#hasEnded) {
      return;
    }
    await new Promise((resolve) => {
      this.#waiters.push({ isHere, resolve: () => resolve(undefined) });
      this.#socket.ref();
    });
  }

  /** @param {Buffer} news */
  #hear(news) {
    let unread = this.#unread.length === 0 ? news : Buffer.concat([this.#unread, news]);
    while (unread.length >= LENGTH_LEN) {
      const end = LENGTH_LEN + unread.readUInt32LE();
      if (unread.length < end) {
        break;
      }
      this.#note(JSON.parse(unread.toString('utf8', LENGTH_LEN, end)));
      unread = unread.subarray(end);
    }
    this.#unread = Buffer.from(unread);
    this.#tell();
  }

  /** @param {Note} note */
  #note({ op, id, len, path, address, problem, store }) {
    if (op === 'end') {
      this.#over(problem ?? '');
    } else if (op === 'connection') {
      this.#connections.set(id, problem ?? { path, address });
    } else if (problem !== undefined) {
      this.#failed.set(this.#prefix + id, problem);
    } else {
      const input = new Input({ name: this.#prefix + id, kind: 'memory', len, path, store });
      this.#given.set(input.name, input);
      this.#onMessage(input);
    }
  }

  /**
   * Nothing else will come.
   * @param {string} problem
   */
  #over(problem) {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      this.#problem = problem;
    }
    this.#tell();
  }

  #tell() {
    const waiters = this.#waiters;
    this.#waiters = waiters.filter(({ isHere }) => !this.#hasEnded && !isHere());
    for (const waiter of waiters) {
      if (!this.#waiters.includes(waiter)) {
        waiter.resolve();
      }
    }
    if (this.#waiters.length === 0) {
      this.#socket.unref(); // what nobody waits for does not keep the event loop alive
    }
  }
}

module.exports = { Arriving };
