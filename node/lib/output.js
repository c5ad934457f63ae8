// What a function prints: descriptors 1 and 2 are the log, and nothing printed may come after the answer.
//
// Node's own stdout on a pipe sets it non-blocking and queues what does not fit. Here every write is done when it
// returns, and a full pipe is waited for: the daemon always reads. `console` writes Lambda's lines (time, request,
// level, text).
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');
const fs = require('node:fs');
const { Writable } = require('node:stream');
const { format } = require('node:util');

const errors = require('./errors.js');

// How long a full pipe is left alone.
const PAUSE_MS = 1;
const NO_REQUEST = '-';

/**
 * With concurrency, whose line it is; without, `current` is enough and costs nothing.
 * @type {AsyncLocalStorage<string>}
 */
const requests = new AsyncLocalStorage();
let current = NO_REQUEST;

/** Replaces `process.stdout`, `process.stderr` and the console's methods; once, before user code. */
function prepare() {
  replaceStream('stdout', new Log(1));
  replaceStream('stderr', new Log(2));
  console.trace = (...values) => write(2, entry('TRACE', values));
  console.debug = (...values) => write(1, entry('DEBUG', values));
  console.info = (...values) => write(1, entry('INFO', values));
  console.log = console.info;
  console.warn = (...values) => write(2, entry('WARN', values));
  console.error = (...values) => write(2, entry('ERROR', values));
  const more = /** @type {{fatal?: (...values: unknown[]) => void}} */ (console);
  more.fatal = (...values) => write(2, entry('FATAL', values)); // Lambda's own addition
}

/**
 * Whose lines follow. For one invocation at a time.
 * @param {string} requestId
 */
function setRequest(requestId) {
  current = requestId;
}

/**
 * Runs `action`; its lines, and those of what it starts, are this request's.
 * @param {string} requestId
 * @param {() => void} action
 */
function withRequest(requestId, action) {
  requests.run(requestId, action);
}

/**
 * An error that ends an invocation or the worker.
 * @param {string} what
 * @param {unknown} problem
 */
function error(what, problem) {
  write(2, entry('ERROR', [`${what}\t${errors.line(problem)}`]));
}

/**
 * All of it, now. A log that cannot be written is never the invocation's fault.
 * @param {number} fd
 * @param {string | Uint8Array} data
 */
function write(fd, data) {
  let rest = typeof data === 'string' ? Buffer.from(data) : data;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(fs.writeSync(fd, rest));
    } catch (failure) {
      const { code } = /** @type {NodeJS.ErrnoException} */ (failure);
      if (code === 'EAGAIN') {
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, PAUSE_MS);
      } else if (code !== 'EINTR') {
        return;
      }
    }
  }
}

/**
 * @param {string} level
 * @param {unknown[]} values
 */
function entry(level, values) {
  return `${new Date().toISOString()}\t${requests.getStore() ?? current}\t${level}\t${format(...values)}\n`;
}

/** A standard stream that is never ahead of the kernel. */
class Log extends Writable {
  /** @param {number} fd */
  constructor(fd) {
    super({ decodeStrings: true });
    this.fd = fd;
    this._type = 'fs'; // as Node's own synchronous stream says
    this._isStdio = true;
  }

  /**
   * @override
   * @param {Buffer} chunk
   * @param {string} _encoding
   * @param {(error?: Error | null) => void} done
   */
  _write(chunk, _encoding, done) {
    write(this.fd, chunk);
    done();
  }

  /**
   * `process.stdout.end()` is an error elsewhere; the descriptor is never closed.
   * @override
   * @param {Error | null} error
   * @param {(error?: Error | null) => void} done
   */
  _destroy(error, done) {
    done(error);
  }
}

/**
 * @param {'stdout' | 'stderr'} name
 * @param {Log} stream
 */
function replaceStream(name, stream) {
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
}

module.exports = { NO_REQUEST, error, prepare, setRequest, withRequest, write };
