// Plays the daemon: starts the real worker process and uses both of its sockets. Not a test itself.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');

const wire = require('../lib/wire.js');

/** @typedef {{kind: number, stream: number, meta: any, body: Buffer}} Frame */
/** @typedef {Record<string, string>} Files */

const WORKER = path.join(__dirname, '..', 'worker.js');
const NODE = process.env.PILOT_TEST_NODE ?? process.execPath;
const REQUEST_ID = '8f6e0a52-0d5a-4f0e-9c6b-0f9a1c2d3e4f';
const PATIENCE_MS = 15_000;
const ARN = 'arn:aws:lambda:us-east-1:000000000000:function:test';
// What Node needs to start, without the test runner's variables.
const START_ENVIRONMENT = { PATH: process.env.PATH ?? '', LEFT_OVER: 'of the pre-warmed process' };

/** @type {Worker[]} */
const started = [];

/** A worker process, and the daemon's ends of its sockets. Its output goes to a file, which can be read at any time. */
class Worker {
  #decoder = new wire.Decoder();
  /** @type {Frame[]} */
  #frames = [];
  /** @type {Array<(frame: Frame | null) => void>} */
  #readers = [];
  #isClosed = false;
  #next = 1;
  /** @type {Promise<number | string>} */
  #ended;

  /**
   * A pre-warmed process; `files` are the function's code.
   * @param {Files} files
   * @param {{args?: string[], stdout?: 'pipe', environment?: Record<string, string>}} [options]
   */
  constructor(files = {}, { args = ['prewarmed'], stdout, environment = {} } = {}) {
    this.folder = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), 'pilot-node-')));
    this.code = path.join(this.folder, 'task');
    fs.mkdirSync(this.code);
    for (const [name, text] of Object.entries(files)) {
      const file = path.join(this.code, name);
      fs.mkdirSync(path.dirname(file), { recursive: true });
      fs.writeFileSync(file, text);
    }
    this.logFile = path.join(this.folder, 'log');
    const log = fs.openSync(this.logFile, 'a');
    this.process = spawn(NODE, ['--max-semi-space-size=16', WORKER, ...args], {
      stdio: ['ignore', stdout ?? log, log, 'pipe', 'pipe'],
      env: { ...START_ENVIRONMENT, ...environment },
      cwd: '/',
    });
    fs.closeSync(log);
    this.#ended = new Promise((resolve) => {
      this.process.on('exit', (code, signal) => resolve(code ?? signal ?? ''));
    });
    this.channel = /** @type {import('node:net').Socket} */ (this.process.stdio[3]);
    this.control = /** @type {import('node:net').Socket} */ (/** @type {any} */ (this.process.stdio)[4]);
    for (const socket of [this.channel, this.control]) {
      socket.on('error', () => {}); // the worker may be gone before it is written to
    }
    const control = /** @type {Promise<any>} */ (
      new Promise((resolve, reject) => {
        let text = '';
        this.control.on('data', (chunk) => {
          text += chunk;
          if (text.endsWith('\n')) {
            resolve(JSON.parse(text));
          }
        });
        this.control.on('close', () => {
          // After a test, its folder is gone, and nobody asks.
          const log = fs.existsSync(this.logFile) ? this.log() : '';
          reject(new Error(`the worker closed its control socket: ${text}${log}`));
        });
      })
    );
    control.catch(() => {}); // not every test waits for it
    /** The message that it waits. */
    this.waiting = () => patient(control, 'the waiting line');
    /** @type {Promise<void>} */
    this.controlClosed = new Promise((resolve) => {
      this.control.on('close', () => resolve());
    });
    this.channel.on('data', (chunk) => this.#received(/** @type {any} */ (chunk)));
    this.channel.on('close', () => this.#closed());
    started.push(this);
  }

  /** The exit status, or the name of the signal. The time limit begins when it is asked for: a test may take long. */
  get ended() {
    return patient(this.#ended, 'the end of the process');
  }

  /** @param {Record<string, unknown>} [specification] */
  specify(specification = {}) {
    this.control.write(`${JSON.stringify(this.specification(specification))}\n`);
  }

  /** @param {Record<string, unknown>} [different] */
  specification(different = {}) {
    return {
      cwd: this.code,
      handler: 'index.handler',
      environment: { PATH: process.env.PATH ?? '' },
      memory_mb: 256,
      concurrency: 1,
      function: { name: 'test', version: '1', memory_mb: 256, timeout_s: 30, arn: ARN },
      log_fd: null,
      ...different,
    };
  }

  /**
   * The next frame; an error if there is none.
   * @returns {Promise<Frame>}
   */
  async frame() {
    const frame = await patient(this.#frame(), 'a frame');
    if (frame === null) {
      throw new Error(`the worker closed its channel; it printed: ${this.log()}`);
    }
    return frame;
  }

  async ready() {
    const frame = await this.frame();
    if (frame.kind !== wire.READY || frame.stream !== 0) {
      throw new Error(`not READY: ${frame.kind} ${frame.body}`);
    }
    return frame.meta;
  }

  /** The body of the INIT_ERROR. */
  async initError() {
    const frame = await this.frame();
    if (frame.kind !== wire.INIT_ERROR || frame.stream !== 0) {
      throw new Error(`not INIT_ERROR: ${frame.kind} ${frame.body}`);
    }
    return JSON.parse(frame.body.toString());
  }

  /** Whether the channel ends without another frame. */
  async isClosed() {
    return (await patient(this.#frame(), 'the end of the channel')) === null;
  }

  /**
   * @param {number} kind
   * @param {number} stream
   * @param {unknown} meta
   * @param {string | Buffer} body
   */
  send(kind, stream, meta, body) {
    this.channel.write(wire.encode(kind, stream, Buffer.from(JSON.stringify(meta)), Buffer.from(body)));
  }

  /**
   * Sends an INVOKE; returns its stream.
   * @param {unknown} event
   * @param {Record<string, unknown>} [meta]
   */
  ask(event, meta = {}) {
    const stream = this.#next;
    this.#next += 1;
    this.send(wire.INVOKE, stream, invokeMeta(meta), JSON.stringify(event));
    return stream;
  }

  /**
   * The only answer to one INVOKE.
   * @param {unknown} event
   * @param {Record<string, unknown>} [meta]
   */
  async call(event, meta) {
    const stream = this.ask(event, meta);
    const frame = await this.frame();
    if (frame.stream !== stream) {
      throw new Error(`an answer to ${frame.stream}, not to ${stream}`);
    }
    return frame;
  }

  /**
   * @param {unknown} event
   * @param {Record<string, unknown>} [meta]
   */
  async result(event, meta) {
    return value(await this.call(event, meta), wire.RESULT);
  }

  /**
   * @param {unknown} event
   * @param {Record<string, unknown>} [meta]
   */
  async error(event, meta) {
    return value(await this.call(event, meta), wire.ERROR);
  }

  /** Its output so far. */
  log() {
    return fs.readFileSync(this.logFile, 'utf8');
  }

  /** Closes the channel. Returns the worker's exit status. */
  end() {
    this.control.destroy();
    this.channel.destroy();
    return this.ended;
  }

  /** @param {Buffer} chunk */
  #received(chunk) {
    this.#decoder.decode(chunk, (kind, stream, meta, body) => {
      const text = meta.toString();
      const frame = { kind, stream, meta: text === '' ? null : JSON.parse(text), body: Buffer.from(body) };
      const reader = this.#readers.shift();
      if (reader) {
        reader(frame);
      } else {
        this.#frames.push(frame);
      }
    });
  }

  #closed() {
    this.#isClosed = true;
    for (const reader of this.#readers.splice(0)) {
      reader(null);
    }
  }

  /** @returns {Promise<Frame | null>} */
  #frame() {
    const frame = this.#frames.shift();
    if (frame !== undefined || this.#isClosed) {
      return Promise.resolve(frame ?? null);
    }
    return new Promise((resolve) => this.#readers.push(resolve));
  }
}

/**
 * A worker that has said READY.
 * @param {Files | string} code files, or the text of index.js
 * @param {Record<string, unknown>} [specification]
 * @param {ConstructorParameters<typeof Worker>[1]} [options]
 */
async function serving(code, specification, options) {
  const worker = await specified(code, specification, options);
  await worker.ready();
  return worker;
}

/**
 * A worker that has received its specification.
 * @param {Files | string} code
 * @param {Record<string, unknown>} [specification]
 * @param {ConstructorParameters<typeof Worker>[1]} [options]
 */
async function specified(code, specification, options) {
  const worker = new Worker(typeof code === 'string' ? { 'index.js': code } : code, options);
  await worker.waiting();
  worker.specify(specification);
  return worker;
}

/**
 * The body of a frame of this kind, from JSON.
 * @param {Frame} frame
 * @param {number} kind
 */
function value(frame, kind) {
  if (frame.kind !== kind) {
    throw new Error(`a frame of kind ${frame.kind}, not ${kind}: ${frame.body}`);
  }
  return JSON.parse(frame.body.toString());
}

/** @param {Record<string, unknown>} meta */
function invokeMeta(meta = {}) {
  return { id: REQUEST_ID, arn: ARN, version: '1', deadline_ms: Date.now() + 30_000, ...meta };
}

/**
 * The promise, with a time limit that only a broken worker exceeds.
 * @template T
 * @param {Promise<T>} promise
 * @param {string} what
 * @returns {Promise<T>}
 */
function patient(promise, what) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${what} did not come in ${PATIENCE_MS} ms`)), PATIENCE_MS);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** Ends what the tests left; to be called after each. */
async function cleanUp() {
  for (const worker of started.splice(0)) {
    worker.process.kill('SIGKILL');
    await worker.end();
    fs.rmSync(worker.folder, { recursive: true, force: true });
  }
}

module.exports = { ARN, NODE, REQUEST_ID, Worker, cleanUp, invokeMeta, patient, serving, specified, value };
