// Calls the handler: an `INVOKE` frame in, one `RESULT` or `ERROR` frame out, or the frames of a streamed response.
//
// A handler answers with its promise, its return value, `callback` or `context.done`. The first answer counts.
// This file uses no sockets: answers go to a `Sink`.
'use strict';

const { AsyncResource } = require('node:async_hooks');
const buffer = require('node:buffer');

const calls = require('./calls.js');
const { Context, FunctionInfo, traceparent } = require('./context.js');
const dropIns = require('./drop_ins/index.js');
const errors = require('./errors.js');
const init = require('./init.js');
const { Input } = require('./input.js');
const { Inputs } = require('./inputs.js');
const invokeStore = require('./invoke_store.js');
const output = require('./output.js');
const { ResponseStream } = require('./response.js');
const wire = require('./wire.js');

const { Fault } = errors;

/** @typedef {import('./channel.js').Sink} Sink */
/** @typedef {import('./context.js').InvokeMeta} InvokeMeta */
/** @typedef {import('./handler.js').Handler} Handler */
/** @typedef {import('./spec.js').Specification} Specification */

const NEVER_SETTLED =
  'the handler has not answered and nothing is left that it could wait for: a promise that is never settled, ' +
  'or a callback that is never called';
const NEVER_ENDED = 'the handler has returned and nothing is left to run, but its response stream was never ended';

const NO_INPUTS = new Inputs();
Object.freeze(NO_INPUTS); // all invocations without inputs share it

/** The invocations of one worker. */
class Invocations {
  #handler;
  #info;
  #sink;
  #isAlone;
  /** Invocations without an answer. The daemon sends at most `concurrency`. @type {Set<Invocation>} */
  #open = new Set();
  #isTraced = false;
  #isRecorded = false;
  #store;

  /**
   * @param {Handler} handler
   * @param {Specification} specification
   * @param {Sink} sink
   * @param {ReturnType<typeof invokeStore.make>} store
   */
  constructor(handler, specification, sink, store) {
    this.#store = store;
    this.#handler = handler;
    this.#info = new FunctionInfo(specification);
    this.#sink = sink;
    this.#isAlone = specification.concurrency === 1;
  }

  /**
   * Answers one frame. It throws only if the meta is not JSON.
   * @param {number} kind
   * @param {number} stream
   * @param {Buffer} metaBytes
   * @param {Buffer} body
   */
  accept(kind, stream, metaBytes, body) {
    if (kind === wire.CANCEL || kind === wire.WINDOW) {
      this.#tell(kind, stream, body);
      return;
    }
    /** @type {InvokeMeta} */
    const meta = JSON.parse(metaBytes.toString());
    const invocation = new Invocation(this, this.#sink, stream, meta.id);
    if (meta.inputs !== undefined || meta.failed_inputs !== undefined) {
      invocation.take(meta);
    }
    this.#open.add(invocation);
    if (this.#isAlone) {
      // From now on, only the handler keeps the process alive. If the loop is empty, the handler waits for nothing more.
      this.#sink.unref();
      this.#trace(meta);
      output.setRequest(meta.id);
    }
    // A separate scope, so that what a handler stores in it (AsyncLocalStorage.enterWith) ends with the invocation.
    const scope = new AsyncResource('Invocation');
    const context = invokeStore.contextOf(meta.id, meta.trace);
    const begin = () => this.#store.run(context, () => this.#begin(invocation, kind, meta, body));
    scope.runInAsyncScope(this.#isAlone ? begin : () => output.withRequest(meta.id, begin));
  }

  /**
   * A frame about a response, which may be over.
   * @param {number} kind
   * @param {number} stream
   * @param {Buffer} body
   */
  #tell(kind, stream, body) {
    const invocation = [...this.#open].find((one) => one.stream === stream);
    if (kind === wire.CANCEL) {
      invocation?.clientHasGone();
    } else if (body.length === 4) {
      invocation?.hasRoom(body.readUInt32LE());
    }
  }

  /** The loop is empty. Answers the invocations that wait for this; the others can no longer answer by themselves. */
  whenNothingIsLeft() {
    for (const invocation of [...this.#open]) {
      invocation.whenNothingIsLeft();
    }
  }

  /**
   * Ends all open invocations with an error that has been logged. The worker is about to end.
   * @param {unknown} error
   */
  breakOff(error) {
    for (const invocation of [...this.#open]) {
      invocation.breakOff(error, true);
    }
  }

  /** @param {Invocation} invocation */
  ended(invocation) {
    this.#open.delete(invocation);
    invocation.giveUp();
    if (this.#isAlone) {
      this.#sink.ref();
    }
  }

  /**
   * @param {Invocation} invocation
   * @param {number} kind
   * @param {InvokeMeta} meta
   * @param {Buffer} body
   */
  #begin(invocation, kind, meta, body) {
    try {
      const event = decodeEvent(kind, body);
      const context = new Context(this.#info, meta, invocation, invocation.inputs);
      if (this.#handler.isStreaming) {
        this.#stream(invocation, event, context);
      } else {
        this.#call(invocation, event, context);
      }
    } catch (error) {
      invocation.fail(error); // any value
    }
  }

  /**
   * @param {Invocation} invocation
   * @param {unknown} event
   * @param {Context} context
   */
  #call(invocation, event, context) {
    const { target } = this.#handler;
    const callback = (/** @type {unknown} */ error, /** @type {unknown} */ result) => {
      if (this.#isAlone && context.callbackWaitsForEmptyEventLoop && isNothing(error)) {
        invocation.succeedLater(result);
      } else {
        invocation.done(error, result);
      }
    };
    invocation.started();
    const returned = target(event, context, callback);
    if (isThenable(returned)) {
      returned.then(invocation.succeed, invocation.fail);
    } else if (target.length < 3 && (returned !== undefined || !this.#isAlone)) {
      // A handler with three parameters answers with the callback. Its return value has no meaning.
      invocation.succeed(returned);
    } else {
      invocation.mayCallBack();
    }
  }

  /**
   * @param {Invocation} invocation
   * @param {unknown} event
   * @param {Context} context
   */
  #stream(invocation, event, context) {
    const { target, highWaterMark } = this.#handler;
    const response = new ResponseStream(this.#sink, invocation.stream, invocation.started(), highWaterMark, this.#isAlone);
    invocation.streams(response);
    const returned = target(event, response, context);
    if (isThenable(returned)) {
      returned.then(() => invocation.returned(response), invocation.fail);
    } else {
      invocation.returned(response);
    }
  }

  /**
   * `_X_AMZN_TRACE_ID`, set for an invocation that has one. Not with concurrency above 1: there is only one process.env. If the trace is
   * recorded, `TRACEPARENT` and `TRACESTATE` say the same in W3C's form.
   * @param {InvokeMeta} meta
   */
  #trace({ trace, trace_state: state }) {
    if (trace !== undefined) {
      process.env._X_AMZN_TRACE_ID = trace;
      this.#isTraced = true;
    } else if (this.#isTraced) {
      delete process.env._X_AMZN_TRACE_ID;
      this.#isTraced = false;
    }
    const parent = traceparent(trace);
    if (parent !== undefined || this.#isRecorded) {
      this.#isRecorded = parent !== undefined;
      setOrDelete('TRACEPARENT', parent);
      setOrDelete('TRACESTATE', parent && state);
    }
  }
}

/** One invocation. Its functions work without `this`. After the first call, further calls do nothing. */
class Invocation {
  inputs = NO_INPUTS;
  /** What its initscripts have sent. @type {Input[]} */
  #messages = [];
  /** What still comes of its initscript. @type {import('./arriving.js').Arriving | null} */
  #arriving = null;
  #invocations;
  #sink;
  #requestId;
  #startedNs = process.hrtime.bigint();
  /** The answer is known. It may not have been sent yet. */
  #isDecided = false;
  /** The result to send when the loop is empty. @type {{result: unknown} | null} */
  #later = null;
  /** The handler did not return a promise. As in Lambda, an empty loop then means the result null. */
  #mayCallBack = false;
  /** @type {ResponseStream | null} */
  #response = null;
  #hasReturned = false;
  #hasClientGone = false;

  /**
   * @param {Invocations} invocations
   * @param {Sink} sink
   * @param {number} stream
   * @param {string} requestId
   */
  constructor(invocations, sink, stream, requestId) {
    this.#invocations = invocations;
    this.#sink = sink;
    this.stream = stream;
    this.#requestId = requestId;
  }

  /**
   * Its inputs, and what its initscripts have sent.
   * @param {InvokeMeta} meta
   */
  take({ inputs = [], failed_inputs: failed = [] }) {
    const isOther = (/** @type {string} */ name) => init.isMessage(name) || init.isScript(name) || calls.isCalls(name);
    const isInput = (/** @type {{name: string}} */ { name }) => !isOther(name);
    const isMessage = (/** @type {{name: string}} */ { name }) => init.isMessage(name);
    this.inputs = new Inputs(inputs.filter(isInput), failed.filter(isInput));
    this.#messages = inputs.filter(isMessage).map((one) => new Input(one));
    const problems = failed.filter(isMessage);
    const script = inputs.find(({ name }) => init.isScript(name));
    if (script !== undefined) {
      this.#arriving = init.follow(script.path, (input) => dropIns.begin([input], this.#requestId));
    }
    if (this.#messages.length > 0 || problems.length > 0 || this.#arriving !== null) {
      init.begin(this.#requestId, this.#messages, problems, this.#arriving);
    }
    const invoking = inputs.find(({ name }) => calls.isCalls(name));
    if (invoking !== undefined) {
      calls.begin(this.#requestId, invoking.path, Inputs.all(this.inputs));
    }
    dropIns.begin([...Inputs.all(this.inputs), ...this.#messages], this.#requestId);
  }

  /** The invocation has ended: its inputs and messages are gone. */
  giveUp() {
    if (this.inputs === NO_INPUTS) {
      return;
    }
    init.end(this.#requestId);
    calls.end(this.#requestId);
    const all = [...Inputs.all(this.inputs), ...this.#messages, ...(this.#arriving?.inputs() ?? [])];
    dropIns.end(all);
    for (const input of all) {
      input.end();
    }
    this.#arriving?.close();
  }

  /** A handler that answers with a stream sees the end of it. Another one runs to its end. */
  clientHasGone() {
    this.#hasClientGone = true;
    this.#response?.clientHasGone();
  }

  /** @param {number} length */
  hasRoom(length) {
    this.#response?.hasRoom(length);
  }

  /** The handler begins now. Returns the time. */
  started() {
    this.#startedNs = process.hrtime.bigint();
    return this.#startedNs;
  }

  succeed = (/** @type {unknown} */ result) => {
    if (this.#isDecided) {
      return;
    }
    if (this.#response !== null) {
      this.returned(this.#response);
      return;
    }
    this.#isDecided = true;
    this.#answer(result);
  };

  fail = (/** @type {unknown} */ error) => {
    if (!this.#isDecided && this.#hasClientGone && isOfGoneClient(error)) {
      this.#isDecided = true;
      this.#end(wire.END, process.hrtime.bigint(), ''); // nobody reads it
    } else if (!this.#isDecided) {
      this.#isDecided = true;
      output.error('Invoke Error', error);
      this.breakOff(error);
    }
  };

  done = (/** @type {unknown} */ error, /** @type {unknown} */ result) => {
    if (isNothing(error)) {
      this.succeed(result);
    } else {
      this.fail(error);
    }
  };

  /**
   * Succeeds when the loop is empty.
   * @param {unknown} result
   */
  succeedLater(result) {
    if (!this.#isDecided) {
      this.#isDecided = true;
      this.#later = { result };
    }
  }

  /** The handler has returned nothing: it will call the callback, or it is finished. */
  mayCallBack() {
    this.#mayCallBack = true;
  }

  whenNothingIsLeft() {
    if (this.#later !== null) {
      this.#answer(this.#later.result);
    } else if (this.#mayCallBack) {
      this.succeed(undefined);
    } else {
      this.fail(new Fault('Runtime.NodeJsExit', this.#hasReturned ? NEVER_ENDED : NEVER_SETTLED));
    }
  }

  /**
   * Answers with an error that has been logged, even if another answer was chosen.
   * @param {unknown} error
   * @param {boolean} [isLast] the process ends now
   */
  breakOff(error, isLast = false) {
    this.#isDecided = true;
    this.#end(wire.ERROR, process.hrtime.bigint(), errors.body(error, this.#requestId), isLast);
    this.#response?.destroy();
  }

  /**
   * Answers with a stream.
   * @param {ResponseStream} response
   */
  streams(response) {
    this.#response = response;
    // 'close' always comes last, whether the stream finished or broke off.
    response.once('close', () => this.#completeStream(response));
    response.once('finish', () => setImmediate(() => this.#flush(response)));
  }

  /**
   * The handler of a streamed response has returned.
   * @param {ResponseStream} response
   */
  returned(response) {
    this.#hasReturned = true;
    this.#completeStream(response);
  }

  /** @param {ResponseStream} response */
  #completeStream(response) {
    if (this.#isDecided || !this.#hasReturned) {
      return;
    }
    if (response.writableFinished) {
      try {
        response.complete(process.hrtime.bigint());
      } catch (error) {
        this.fail(error); // the head is too long
        return;
      }
      this.#isDecided = true;
      this.#invocations.ended(this);
    } else if (response.destroyed) {
      const problem = 'the response stream was destroyed before it was ended';
      this.fail(response.failure ?? new Fault('Runtime.InvalidStreamingOperation', problem));
    }
  }

  /** @param {ResponseStream} response */
  #flush(response) {
    if (this.#isDecided) {
      return;
    }
    try {
      response.flush();
    } catch (error) {
      this.fail(error);
    }
  }

  /** @param {unknown} result */
  #answer(result) {
    const finishedNs = process.hrtime.bigint();
    let json;
    try {
      json = encodeResult(result);
    } catch (error) {
      output.error('Invoke Error', error);
      this.breakOff(error);
      return;
    }
    this.#end(wire.RESULT, finishedNs, json);
  }

  /**
   * @param {number} kind
   * @param {bigint} finishedNs
   * @param {string} body
   * @param {boolean} [isLast] the process ends now
   */
  #end(kind, finishedNs, body, isLast = false) {
    const last = isLast ? ',"last":true' : '';
    this.#sink.send(kind, this.stream, `{"started_ns":${this.#startedNs},"finished_ns":${finishedNs}${last}}`, body);
    this.#invocations.ended(this);
  }
}

/**
 * @param {number} kind
 * @param {Buffer} body
 * @returns {unknown}
 */
function decodeEvent(kind, body) {
  if (kind !== wire.INVOKE) {
    throw new Fault('Runtime.BadRequest', `an event handler cannot answer a frame of kind ${kind}`);
  }
  try {
    if (!buffer.isUtf8(body)) {
      throw new SyntaxError('it is not UTF-8');
    }
    return JSON.parse(body.toString());
  } catch (error) {
    throw new Fault('Runtime.UnmarshalError', `Unable to unmarshal input: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * Encodes as JSON. A value without JSON form (undefined, a function) is null.
 * @param {unknown} result
 */
function encodeResult(result) {
  let json;
  try {
    json = JSON.stringify(result) ?? 'null';
  } catch (error) {
    // a BigInt, a cycle, or a `toJSON` of the user
    const { errorMessage, frames } = errors.describe(error);
    throw new Fault('Runtime.JSONStringifyError', `Unable to stringify response body: ${errorMessage}`, frames);
  }
  const most = json.length * 3; // at most 3 bytes of UTF-8 per UTF-16 unit
  if (most > wire.RESULT_LEN_MAX && Buffer.byteLength(json) > wire.RESULT_LEN_MAX) {
    const problem = `Response payload size exceeded maximum allowed payload size (${wire.RESULT_LEN_MAX} bytes).`;
    throw new Fault('Function.ResponseSizeTooLarge', problem);
  }
  return json;
}

/**
 * @param {unknown} value
 * @returns {value is PromiseLike<unknown>}
 */
function isThenable(value) {
  return typeof (/** @type {any} */ (value)?.then) === 'function';
}

/**
 * @param {string} name
 * @param {string | undefined} value
 */
function setOrDelete(name, value) {
  if (value === undefined) {
    delete process.env[name];
  } else {
    process.env[name] = value;
  }
}

/**
 * Whether it comes from writing a stream, or waiting for one, whose client has gone.
 * @param {unknown} error
 */
function isOfGoneClient(error) {
  const { code } = /** @type {{code?: unknown}} */ (error ?? {});
  return ['ECONNRESET', 'ERR_STREAM_DESTROYED', 'ERR_STREAM_PREMATURE_CLOSE', 'ERR_STREAM_UNABLE_TO_PIPE'].includes(String(code));
}

/** @param {unknown} error */
function isNothing(error) {
  return error === undefined || error === null;
}

module.exports = { Invocations };
