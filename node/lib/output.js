// The output of a function. Descriptors 1 and 2 are the log. All output must be written before the answer.
//
// Node's own stdout makes a pipe non-blocking and queues what does not fit. Here, a write is complete when it returns. If
// the pipe is full, the write waits; the daemon always reads. `console` writes lines as Lambda does (time, request, level,
// text). With AWS_LAMBDA_LOG_FORMAT=JSON it writes an object per line. Lines below AWS_LAMBDA_LOG_LEVEL are left out.
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');
const { writeSync } = require('node:fs'); // before a function replaces it, as memfs does
const { Writable } = require('node:stream');
const { format } = require('node:util');

const errors = require('./errors.js');

// How long to wait before the next attempt to write to a full pipe.
const PAUSE_MS = 1;
const NO_REQUEST = '-';

/**
 * The request of a line. Used only with concurrency above 1; otherwise `current` is enough and costs nothing.
 * @type {AsyncLocalStorage<string>}
 */
const requests = new AsyncLocalStorage();
let current = NO_REQUEST;

/** Lambda's levels, the least important first. */
const LEVELS = ['TRACE', 'DEBUG', 'INFO', 'WARN', 'ERROR', 'FATAL'];
const DEFAULT_LEVEL = 'INFO';
let isJson = false;
/** The lowest level that is written. */
let lowest = 0;

/** Replaces `process.stdout`, `process.stderr` and the methods of the console. Called once, before user code. */
function prepare() {
  replaceStream('stdout', new Log(1));
  replaceStream('stderr', new Log(2));
  console.trace = (...values) => log(2, 'TRACE', values);
  console.debug = (...values) => log(1, 'DEBUG', values);
  console.info = (...values) => log(1, 'INFO', values);
  console.log = console.info;
  console.warn = (...values) => log(2, 'WARN', values);
  console.error = (...values) => log(2, 'ERROR', values);
  const more = /** @type {{fatal?: (...values: unknown[]) => void}} */ (console);
  more.fatal = (...values) => log(2, 'FATAL', values); // Lambda adds this method
}

/**
 * Sets the format and the lowest level of the lines from these variables. Without a level, everything is written as text.
 * @param {Record<string, string>} environment
 */
function configure(environment) {
  isJson = environment.AWS_LAMBDA_LOG_FORMAT?.toUpperCase() === 'JSON';
  const named = environment.AWS_LAMBDA_LOG_LEVEL?.toUpperCase() ?? '';
  lowest = LEVELS.includes(named) ? LEVELS.indexOf(named) : isJson ? LEVELS.indexOf(DEFAULT_LEVEL) : 0;
}

/**
 * Sets the request of the following lines. For one invocation at a time.
 * @param {string} requestId
 */
function setRequest(requestId) {
  current = requestId;
}

/**
 * Runs `action`. Its lines, and the lines of everything that it starts, belong to this request.
 * @param {string} requestId
 * @param {() => void} action
 */
function withRequest(requestId, action) {
  requests.run(requestId, action);
}

/** The request of the running code. */
function request() {
  return requests.getStore() ?? current;
}

/**
 * Logs an error that ends an invocation or the worker.
 * @param {string} what
 * @param {unknown} problem
 */
function error(what, problem) {
  if (isJson) {
    log(2, 'ERROR', [errors.isError(problem) ? problem : errors.fields(problem)]);
  } else {
    log(2, 'ERROR', [`${what} \t${errors.line(problem)}`]); // with Lambda's space
  }
}

/**
 * Writes everything, now. If the log cannot be written, this is not an error of the invocation.
 * @param {number} fd
 * @param {string | Uint8Array} data
 */
function write(fd, data) {
  let rest = typeof data === 'string' ? Buffer.from(data) : data;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
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
 * @param {number} fd
 * @param {string} level
 * @param {unknown[]} values
 */
function log(fd, level, values) {
  if (LEVELS.indexOf(level) >= lowest) {
    write(fd, isJson ? json(level, values) : text(level, values));
  }
}

/**
 * @param {string} level
 * @param {unknown[]} values
 */
function text(level, values) {
  const message = values.length === 0 ? format(undefined) : format(...values); // as in Lambda
  return `${new Date().toISOString()}\t${request()}\t${level}\t${message}\n`;
}

/**
 * Lambda's object. `message` is the value, if there is only one, or the text of all values. With several values, the
 * properties of the first error among them are added.
 * @param {string} level
 * @param {unknown[]} values
 */
function json(level, values) {
  const requestId = request();
  const timestamp = new Date().toISOString();
  const head = requestId === NO_REQUEST ? { timestamp, level } : { timestamp, level, requestId };
  if (values.length <= 1) {
    try {
      return `${JSON.stringify({ ...head, message: values[0] }, withErrors())}\n`;
    } catch {
      // A cycle, a BigInt, or a `toJSON` of the user.
    }
  }
  const found = values.length > 1 ? values.find(errors.isError) : undefined;
  const problem = found === undefined ? {} : errors.fields(found);
  return `${JSON.stringify({ ...head, message: format(...values), ...problem })}\n`;
}

/**
 * For JSON.stringify: an error with Lambda's properties, and with the properties that the user added. The second
 * occurrence is written without the added ones, because they may lead back to the error.
 */
function withErrors() {
  const seen = new Set();
  return (/** @type {string} */ _key, /** @type {unknown} */ value) => {
    if (!errors.isError(value)) {
      return value;
    }
    const attached = seen.has(value) ? {} : errors.attached(value);
    seen.add(value);
    return { ...errors.fields(value), ...attached };
  };
}

/** A standard stream that passes every write to the kernel before it returns. */
class Log extends Writable {
  /** @param {number} fd */
  constructor(fd) {
    super({ decodeStrings: true });
    this.fd = fd;
    this._type = 'fs'; // as in Node's own synchronous stream
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
   * In other Node processes, `process.stdout.end()` is an error. Here the descriptor is never closed.
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

module.exports = { NO_REQUEST, configure, error, prepare, request, setRequest, withRequest, write };
