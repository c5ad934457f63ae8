// The Node worker: a pre-warmed process that starts before any function needs it. When it gets a specification, it becomes
// the worker of one function, and serves it until the daemon closes the channel.
//
//     node [flags] worker.js prewarmed      descriptor 3: the invocation channel, descriptor 4: the control socket
//
// This file contains the life of the process, and what ends it. PROTOCOL.md, sections 1 and 4, defines the protocol.
'use strict';

const fs = require('node:fs');

const { Channel } = require('./lib/channel.js');
const dropIns = require('./lib/drop_ins/index.js');
const errors = require('./lib/errors.js');
const { Invocations } = require('./lib/events.js');
const handler = require('./lib/handler.js');
const invokeStore = require('./lib/invoke_store.js');
const output = require('./lib/output.js');
const { warmUp } = require('./lib/warmup.js');
const { HttpResponseStream } = require('./lib/response.js');
const sdk = require('./lib/sdk.js');
const spec = require('./lib/spec.js');
const { specialise } = require('./lib/specialise.js');
const wire = require('./lib/wire.js');

const CHANNEL_FD = 3;
const CONTROL_FD = 4;
// The longest specification. It consists mostly of environment variables.
const SPECIFICATION_LEN_MAX = 1024 * 1024;
const READ_LEN = 64 * 1024;

const USAGE = 'usage: node [flags] worker.js prewarmed   (started by the daemon; see PROTOCOL.md)\n';
const NEVER_LOADED =
  'the module has not finished loading and nothing is left that it could wait for: a top-level await of a ' +
  'promise that is never settled';

// Exit statuses of Lambda's runtime.
const STATUS_REJECTION = 128;
const STATUS_EXCEPTION = 129;

/**
 * What an uncaught error means, and what an empty event loop means. Both depend on the phase of the worker.
 * @typedef {object} Phase
 * @property {(what: string, error: unknown, status: number) => void} fail
 * @property {() => void} idle
 */

/** @type {Phase} */
let phase = {
  fail(what, error) {
    output.error(what, error);
    process.exit(1);
  },
  idle() {},
};

/** @param {string[]} args */
async function main(args) {
  if (args.length !== 1 || args[0] !== 'prewarmed') {
    output.write(2, USAGE);
    process.exit(2);
  }
  // Functions, and the processes that they start, do not see our arguments.
  process.argv.length = 2;
  process.execArgv.length = 0;
  process.mainModule = undefined; // nor us as `require.main`, which Lambda's functions do not have
  output.prepare();
  watch();
  const channel = new Channel(CHANNEL_FD);
  await warmUp();
  // From here to READY, do nothing that could have been done earlier.
  output.write(CONTROL_FD, `${JSON.stringify({ op: 'waiting', node: process.versions.node, pid: process.pid })}\n`);
  const line = readLine(CONTROL_FD);
  const specifiedNs = process.hrtime.bigint();
  fs.closeSync(CONTROL_FD);
  if (line === null) {
    process.exit(0);
  }
  await become(channel, line, specifiedNs);
}

/** As in any Node process, and in Lambda, an error for which the function has a listener of its own is the function's affair. */
function watch() {
  process.on('uncaughtException', (error) => {
    if (!isListenedTo('uncaughtException')) {
      phase.fail('Uncaught Exception', error, STATUS_EXCEPTION);
    }
  });
  process.on('unhandledRejection', (reason) => {
    if (isListenedTo('unhandledRejection')) {
      return;
    }
    if (isListenedTo('uncaughtException')) {
      // Node raises a rejection that nobody listens to as an exception.
      /** @type {NodeJS.EventEmitter} */ (process).emit('uncaughtException', reason, 'unhandledRejection');
      return;
    }
    phase.fail('Unhandled Promise Rejection', errors.unhandledRejection(reason), STATUS_REJECTION);
  });
  process.on('beforeExit', () => phase.idle());
}

/**
 * Whether there is a listener besides ours.
 * @param {'uncaughtException' | 'unhandledRejection'} event
 */
function isListenedTo(event) {
  return process.listenerCount(event) > 1;
}

/**
 * One line without its line break. Null if the socket closed before there was a line. It blocks, because a pre-warmed
 * process has nothing else to do until it gets its specification.
 * @param {number} fd
 */
function readLine(fd) {
  const chunk = Buffer.allocUnsafe(READ_LEN);
  let text = Buffer.alloc(0);
  for (;;) {
    const len = readSome(fd, chunk);
    if (len === 0) {
      return null;
    }
    const end = chunk.subarray(0, len).indexOf(10);
    text = Buffer.concat([text, chunk.subarray(0, end < 0 ? len : end)]);
    if (end >= 0) {
      return text.toString();
    }
    if (text.length > SPECIFICATION_LEN_MAX) {
      throw new Error(`the specification is longer than ${SPECIFICATION_LEN_MAX} bytes`);
    }
  }
}

/**
 * @param {number} fd
 * @param {Buffer} chunk
 */
function readSome(fd, chunk) {
  for (;;) {
    try {
      return fs.readSync(fd, chunk);
    } catch (error) {
      const { code } = /** @type {NodeJS.ErrnoException} */ (error);
      if (code === 'ECONNRESET') {
        return 0;
      }
      if (code !== 'EINTR') {
        throw error; // also EAGAIN: the descriptor must be blocking
      }
    }
  }
}

/**
 * Specialises, loads the handler and serves. Sends `INIT_ERROR` and ends if that fails.
 * @param {Channel} channel
 * @param {string} line
 * @param {bigint} specifiedNs
 */
async function become(channel, line, specifiedNs) {
  phase = {
    fail: (what, error) => refuse(channel, what, error),
    idle: () => refuse(channel, 'Init Error', new errors.Fault('Runtime.NodeJsExit', NEVER_LOADED)),
  };
  channel.unref(); // while the module loads, only the module itself keeps the process alive
  let invocations;
  try {
    const specification = specificationOf(line);
    const store = invokeStore.make(specification.concurrency);
    setGlobal(specification, store);
    await specialise(specification);
    dropIns.prepare(specification.drop_ins);
    sdk.install();
    const named = { cwd: specification.cwd, handler: handlerOf(specification) };
    invocations = new Invocations(await handler.load(named), specification, channel, store);
  } catch (error) {
    refuse(channel, 'Init Error', error);
    return;
  }
  serve(channel, invocations);
  channel.ref();
  const stamps = `"forked_ns":${specifiedNs},"sandboxed_ns":${specifiedNs},"initialised_ns":${process.hrtime.bigint()},"window":${wire.WINDOW_LEN}`;
  channel.send(wire.READY, 0, `{${stamps}}`, '');
  channel.start((kind, stream, meta, body) => invocations.accept(kind, stream, meta, body), closed);
}

/**
 * Sets `awslambda`, unless the function does not want it.
 * @param {spec.Specification} specification
 * @param {ReturnType<typeof invokeStore.make>} store
 */
function setGlobal({ environment }, store) {
  if (!['1', 'true'].includes(environment.AWS_LAMBDA_NODEJS_NO_GLOBAL_AWSLAMBDA ?? '')) {
    const { streamifyResponse } = handler;
    Object.assign(globalThis, { awslambda: { streamifyResponse, HttpResponseStream, InvokeStore: store } });
  }
}

/**
 * The name of the handler. As in Lambda, a module that NODE_OPTIONS names may have replaced it (libraries wrap handlers so).
 * @param {spec.Specification} specification
 */
function handlerOf({ handler: specified, environment }) {
  const { _HANDLER: current } = process.env;
  return current && current !== environment._HANDLER ? current : specified;
}

/** @param {string} line */
function specificationOf(line) {
  try {
    return spec.parse(line);
  } catch (error) {
    if (error instanceof spec.SpecError) {
      throw new errors.Fault('Runtime.SandboxError', `the daemon's specification: ${error.message}`);
    }
    throw error;
  }
}

/**
 * Sends `INIT_ERROR` and ends the process.
 * @param {Channel} channel
 * @param {string} what
 * @param {unknown} error
 */
function refuse(channel, what, error) {
  output.error(what, error);
  channel.send(wire.INIT_ERROR, 0, '', errors.body(error, ''));
  channel.whenSent(() => process.exit(1));
}

/**
 * @param {Channel} channel
 * @param {Invocations} invocations
 */
function serve(channel, invocations) {
  phase = {
    fail(what, error, status) {
      output.error(what, error);
      invocations.breakOff(error);
      channel.whenSent(() => process.exit(status));
    },
    idle: () => invocations.whenNothingIsLeft(),
  };
}

/**
 * The daemon closed the channel or violated the protocol.
 * @param {Error | null} error
 */
function closed(error) {
  if (error !== null) {
    output.error('Channel', error);
  }
  process.exit(error === null ? 0 : 1);
}

main(process.argv.slice(2));
