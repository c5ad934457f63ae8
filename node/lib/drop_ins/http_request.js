// The drop-in for `http.request`, `http.get` and those of `https`: axios, node-fetch, got and others use them.
//
// A request for which there may be an answer gets a connection of ours. The client writes its request to it, and reads the response from it
// with its own parser, as from a server. When the whole request is there, it is compared. If it is another one, the connection leads to the
// server after all, and what was written goes there. All other requests are made without this file.
'use strict';

const Module = require('node:module');
const { Duplex } = require('node:stream');

const output = require('../output.js');
const answers = require('./http_answers.js');

/** @typedef {import('../input.js').Input} Input */
/** @typedef {import('node:net').Socket} Socket */
/** @typedef {(...values: any[]) => any} Send */

// A script has at most so many bytes of requests.
const BODY_LEN_MAX = 1 << 20;
const HEAD_LEN_MAX = 64 * 1024;
// Options that change where a request to a URL goes.
const MOVING = ['host', 'hostname', 'port', 'path', 'protocol'];
const END_OF_HEAD = '\r\n\r\n';

/** Modules that are patched. @type {Set<unknown>} */
const patched = new Set();

/**
 * Whether a module is one of Node's two. Loading them takes milliseconds, so they are patched when somebody else loads them.
 * @param {unknown} request
 */
const isClient = (request) => typeof request === 'string' && /^(?:node:)?https?$/.test(request);

/** Patches the modules that were loaded without `require`, by `import`. */
function patchLoaded() {
  const loaded = /** @type {any} */ (process).moduleLoadList;
  for (const name of ['http', 'https']) {
    if (!Array.isArray(loaded) || loaded.includes(`NativeModule ${name}`)) {
      patch(require(`node:${name}`));
    }
  }
}

/**
 * Patches one of the modules, also for those who have imported its functions by name.
 * @param {any} module
 */
function patch(module) {
  if (patched.has(module)) {
    return;
  }
  patched.add(module);
  const protocol = module.globalAgent.protocol;
  const { request } = module;
  module.request = function answerOrRequest(/** @type {unknown[]} */ ...values) {
    const [wanted, written] = wired(values, module, protocol);
    answers.given.wrote(written);
    const made = Reflect.apply(request, this, wanted);
    if (written.length > 0) {
      made.once('close', () => answers.given.wrote(written)); // its response is there
    }
    return made;
  };
  // As the original, which does not call what the module exports.
  module.get = function answerOrGet(/** @type {unknown[]} */ ...values) {
    const made = module.request(...values);
    made.end();
    return made;
  };
  Module.syncBuiltinESMExports();
}

/**
 * The arguments of a request: with a connection of ours if there may be an answer, and otherwise as they are. And what it may change.
 * @param {any[]} values
 * @param {any} module
 * @param {string} protocol
 * @returns {[any[], readonly string[]]}
 */
function wired(values, module, protocol) {
  const [first, second] = values;
  const isUrl = typeof first === 'string' || first instanceof URL;
  const given = (isUrl ? second : first) ?? {};
  // Most requests are no candidates: nothing is parsed for them.
  const isPlace = isUrl && !MOVING.some((key) => given[key]);
  const method = String(given.method ?? 'GET');
  const isNone = answers.given.size === 0 && answers.SAFE.has(method.toUpperCase());
  if (isNone || (isPlace && method === 'GET' && answers.given.of(answers.placeOf(method, String(first))).length === 0)) {
    return [values, []];
  }
  let options;
  try {
    options = { ...(isUrl ? urlOptions(new URL(first)) : {}), ...(typeof given === 'object' ? given : {}) };
  } catch {
    return [values, []]; // the original says what is wrong
  }
  const agent = options.agent ?? module.globalAgent; // false: one of its own
  const isPlain = agent === false || Object.getPrototypeOf(agent) === module.Agent.prototype;
  const isOurs = isPlain && !options.createConnection && !options.socketPath && (options.protocol ?? protocol) === protocol;
  const asked = placeOf(options, options.protocol ?? protocol);
  const written = answers.writtenBy(asked);
  if (!isOurs || answers.given.of(asked).length === 0) {
    return [values, written];
  }
  const connect = (/** @type {any} */ wanted) =>
    (agent === false ? new module.Agent() : agent).createConnection({ ...wanted, servername: wanted.servername ?? nameOf(wanted) });
  const requestId = output.request(); // a connection may be made, and written to, when another one runs
  const createConnection = (/** @type {any} */ wanted) =>
    new Line(asked, requestId, () => connect({ ...wanted, agent, createConnection: undefined }));
  const callback = values.slice(1).find((value) => typeof value === 'function');
  return [[{ ...options, agent: undefined, createConnection }, ...(callback === undefined ? [] : [callback])], written];
}

/** @param {URL} url */
function urlOptions(url) {
  const { protocol, hostname, port, pathname, search, username, password } = url;
  return {
    protocol,
    hostname: hostname.replace(/^\[(.*)\]$/, '$1'),
    path: `${pathname}${search}`,
    ...(port === '' ? {} : { port: Number(port) }),
    ...(username || password ? { auth: `${decodeURIComponent(username)}:${decodeURIComponent(password)}` } : {}),
  };
}

/**
 * @param {any} options
 * @param {string} protocol
 */
function placeOf({ method, hostname, host, port, defaultPort, path }, protocol) {
  const name = String(hostname ?? host ?? 'localhost');
  const shown = name.includes(':') && !name.startsWith('[') ? `[${name}]` : name;
  const number = port ?? defaultPort;
  return answers.placeOf(String(method ?? 'GET'), `${protocol}//${shown}${number ? `:${number}` : ''}${path ?? '/'}`);
}

/** @param {any} options */
function nameOf({ hostname, host }) {
  const name = String(hostname ?? host ?? 'localhost');
  return require('node:net').isIP(name) === 0 ? name : '';
}

/** The connection of one request: what a server would answer, or the server's own. */
class Line extends Duplex {
  /** As a socket says it. */
  connecting = false;
  #place;
  #requestId;
  #connect;
  /** What the client has written so far. @type {Buffer[]} */
  #written = [];
  #isDecided = false;
  /** @type {Socket | null} */
  #server = null;
  /** @type {import('node:stream').Readable | null} */
  #body = null;
  #timeoutMs = 0;

  /**
   * @param {string} place
   * @param {string} requestId of the invocation
   * @param {() => Socket} connect to the server
   */
  constructor(place, requestId, connect) {
    super();
    this.#place = place;
    this.#requestId = requestId;
    this.#connect = connect;
  }

  /** @param {Buffer} chunk @param {string} _ @param {(error?: Error | null) => void} done @override */
  _write(chunk, _, done) {
    if (this.#server !== null) {
      this.#server.write(chunk, () => done());
      return;
    }
    if (!this.#isDecided) {
      this.#written.push(Buffer.from(chunk));
      this.#decide();
    }
    done();
  }

  /** @param {(error?: Error | null) => void} done @override */
  _final(done) {
    this.#server?.end();
    done();
  }

  /** @override */
  _read() {
    this.#server?.resume();
    this.#body?.resume();
  }

  /** @param {Error | null} error @param {(error?: Error | null) => void} done @override */
  _destroy(error, done) {
    this.#server?.destroy();
    this.#body?.destroy();
    done(error);
  }

  /** @param {number} ms @param {() => void} [callback] */
  setTimeout(ms, callback) {
    this.#timeoutMs = ms;
    this.#server?.setTimeout(ms);
    if (callback !== undefined) {
      this.once('timeout', callback);
    }
    return this;
  }

  setNoDelay() {
    return this;
  }

  setKeepAlive() {
    return this;
  }

  ref() {
    this.#server?.ref();
    return this;
  }

  unref() {
    this.#server?.unref();
    return this;
  }

  /** Answers, or connects, as soon as it is clear which. */
  #decide() {
    const written = Buffer.concat(this.#written);
    const end = written.indexOf(END_OF_HEAD);
    if (end < 0) {
      if (written.length > HEAD_LEN_MAX) {
        this.#ask();
      }
      return;
    }
    const body = written.subarray(end + END_OF_HEAD.length);
    const headers = headersOf(written.toString('latin1', 0, end));
    const len = bodyLen(headers);
    if (len === null) {
      this.#ask();
    } else if (body.length >= len) {
      const input = answers.take(this.#place, headers, body.subarray(0, len), undefined, this.#requestId);
      if (input === undefined) {
        this.#ask();
      } else {
        this.#answer(input);
      }
    }
  }

  /** @param {Input} input */
  #answer(input) {
    this.#isDecided = true;
    const { method, status } = input.store;
    const lines = answers.headersOf(input).map(([name, value]) => `${name}: ${value}\r\n`);
    const head = `HTTP/1.1 ${status} ${answers.reason(status)}\r\n${lines.join('')}connection: close\r\n\r\n`;
    this.push(Buffer.from(head, 'latin1'));
    if (input.size === 0 || method.toUpperCase() === 'HEAD') {
      this.push(null);
      return;
    }
    const stream = input.stream();
    this.#body = stream;
    stream.on('data', (chunk) => {
      if (!this.push(chunk)) {
        stream.pause();
      }
    });
    stream.on('end', () => this.push(null));
    stream.on('error', (error) => this.destroy(error));
  }

  #ask() {
    this.#isDecided = true;
    const server = this.#connect();
    this.#server = server;
    server.setTimeout(this.#timeoutMs);
    server.on('timeout', () => this.emit('timeout'));
    server.on('data', (chunk) => {
      if (!this.push(chunk)) {
        server.pause();
      }
    });
    server.on('end', () => this.push(null));
    server.on('error', (error) => this.destroy(error));
    server.write(Buffer.concat(this.#written));
    this.#written = [];
  }
}

/** @param {string} head */
function headersOf(head) {
  const lines = head.split('\r\n').slice(1);
  return answers.joined(lines.map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1)]));
}

/**
 * The length of a request's body. Null: the server must be asked.
 * @param {Map<string, string>} headers
 */
function bodyLen(headers) {
  if (['transfer-encoding', 'expect', 'upgrade'].some((name) => headers.has(name))) {
    return null;
  }
  const len = Number(headers.get('content-length') ?? 0);
  return len <= BODY_LEN_MAX ? len : null;
}

module.exports = { isClient, patch, patchLoaded };
