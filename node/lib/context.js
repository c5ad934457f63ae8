// The `context` argument of a Lambda handler, with the same names as AWS's.
//
// Values that do not change between invocations are read once per worker.
'use strict';

/** @typedef {import('./inputs.js').Inputs} Inputs */
/** @typedef {import('./spec.js').Specification} Specification */

/**
 * What the daemon sends about an invocation (PROTOCOL.md, `InvokeMeta`).
 * @typedef {object} InvokeMeta
 * @property {string} id
 * @property {string} [arn]
 * @property {string} [version]
 * @property {number} deadline_ms Unix time
 * @property {string} [client_context]
 * @property {string} [trace]
 * @property {string} [trace_state]
 * @property {import('./input.js').InputMeta[]} [inputs]
 * @property {import('./inputs.js').FailedInputMeta[]} [failed_inputs]
 */

/**
 * Functions that end an invocation without a promise.
 * @typedef {object} Ending
 * @property {(error?: unknown, result?: unknown) => void} done
 * @property {(result?: unknown) => void} succeed
 * @property {(error?: unknown) => void} fail
 */

/** The part of a context that all invocations of a worker share. */
class FunctionInfo {
  /** @param {Specification} specification */
  constructor({ function: info }) {
    const { env } = process;
    this.name = env.AWS_LAMBDA_FUNCTION_NAME || text(info.name);
    this.version = env.AWS_LAMBDA_FUNCTION_VERSION || text(info.version) || '$LATEST';
    this.memoryMb = env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE || text(info.memory_mb); // in Lambda this is a string too
    this.arn = text(info.arn);
    this.logGroup = env.AWS_LAMBDA_LOG_GROUP_NAME;
    this.logStream = env.AWS_LAMBDA_LOG_STREAM_NAME;
  }
}

/** The second argument of a handler. As in Lambda, its functions work without `this`. */
class Context {
  #inputs;
  #trace;
  #traceState;

  /**
   * @param {FunctionInfo} info
   * @param {InvokeMeta} meta
   * @param {Ending} ending
   * @param {Inputs} inputs
   */
  constructor(info, meta, ending, inputs) {
    this.#inputs = inputs;
    this.#trace = meta.trace;
    this.#traceState = meta.trace_state;
    this.callbackWaitsForEmptyEventLoop = true;
    this.succeed = ending.succeed;
    this.fail = ending.fail;
    this.done = ending.done;
    this.functionVersion = meta.version || info.version;
    this.functionName = info.name;
    this.memoryLimitInMB = info.memoryMb;
    this.logGroupName = info.logGroup;
    this.logStreamName = info.logStream;
    this.clientContext = parsed(meta.client_context);
    /** Always absent: Pilotlight has no Cognito. */
    this.identity = undefined;
    this.invokedFunctionArn = meta.arn || info.arn;
    this.awsRequestId = meta.id;
    /** Always absent: Pilotlight has no tenants. */
    this.tenantId = undefined;
    this.xRayTraceId = meta.trace;
    const { deadline_ms: deadlineMs } = meta;
    this.getRemainingTimeInMillis = () => deadlineMs - Date.now();
  }

  /** W3C's header for the function's own spans. Undefined if the invocation is not recorded. */
  get traceparent() {
    return traceparent(this.#trace);
  }

  /** W3C's header as the caller sent it. */
  get tracestate() {
    return this.#traceState;
  }

  /** The inputs of this invocation by name; empty if it has none. Not a key of its own, because Lambda's context has none. */
  get inputs() {
    return this.#inputs;
  }
}

// In Lambda a context is a plain object. Code that prints or copies it, or asks whether it is one, sees that here too.
Object.defineProperty(Context.prototype, 'constructor', { value: Object });

/**
 * The caller's context object. Undefined if the caller sent none, or something that is not JSON.
 * @param {string | undefined} json
 * @returns {unknown}
 */
function parsed(json) {
  if (!json) {
    return undefined;
  }
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}

/**
 * W3C's form of AWS X-Ray's header. Undefined if nobody records the trace.
 * @param {string | undefined} header
 */
function traceparent(header) {
  if (!header?.includes('Sampled=1')) {
    return undefined;
  }
  const root = /(?:^|;)\s*Root=1-([0-9a-f]{8})-([0-9a-f]{24})\s*(?:;|$)/.exec(header);
  const parent = /(?:^|;)\s*Parent=([0-9a-f]{16})\s*(?:;|$)/.exec(header);
  return root && parent ? `00-${root[1]}${root[2]}-${parent[1]}-01` : undefined;
}

/** @param {unknown} value */
function text(value) {
  return value === undefined || value === null ? undefined : String(value);
}

module.exports = { Context, FunctionInfo, traceparent };
