// `awslambda.InvokeStore`: the invocation that the running code belongs to, as aws-lambda-ric provides it. The package
// `@aws/lambda-invoke-store`, which the AWS SDK and Powertools for AWS Lambda use, takes it from there.
//
// With one invocation at a time there is one context, which stays until the next invocation begins. With more, each asynchronous flow
// has its own. A program may keep values of its own in the context.
'use strict';

const { AsyncLocalStorage } = require('node:async_hooks');

/** @typedef {Record<string | symbol, unknown>} InvokeContext */

const KEYS = {
  REQUEST_ID: Symbol.for('_AWS_LAMBDA_REQUEST_ID'),
  X_RAY_TRACE_ID: Symbol.for('_AWS_LAMBDA_X_RAY_TRACE_ID'),
  TENANT_ID: Symbol.for('_AWS_LAMBDA_TENANT_ID'),
};
const NO_REQUEST = '-';

class InvokeStore {
  static PROTECTED_KEYS = KEYS;

  /** @returns {InvokeContext | undefined} */
  getContext() {
    return undefined;
  }

  hasContext() {
    return this.getContext() !== undefined;
  }

  /** @param {string | symbol} key */
  get(key) {
    return this.getContext()?.[key];
  }

  /**
   * @param {string | symbol} key
   * @param {unknown} value
   */
  set(key, value) {
    if (this.isProtectedKey(key)) {
      throw new Error(`Cannot modify protected Lambda context field: ${String(key)}`);
    }
    this.mustHaveContext()[key] = value;
  }

  /** @param {string | symbol} key */
  isProtectedKey(key) {
    return Object.values(KEYS).includes(/** @type {symbol} */ (key));
  }

  getRequestId() {
    return this.get(KEYS.REQUEST_ID) ?? NO_REQUEST;
  }

  getXRayTraceId() {
    return this.get(KEYS.X_RAY_TRACE_ID);
  }

  /** Always undefined: Pilotlight has no tenants. */
  getTenantId() {
    return this.get(KEYS.TENANT_ID);
  }

  /** @returns {InvokeContext} */
  mustHaveContext() {
    throw new Error('No context available');
  }
}

class OneInvocation extends InvokeStore {
  /** @type {InvokeContext | undefined} */
  #current;

  /** @override */
  getContext() {
    return this.#current;
  }

  /**
   * @template T
   * @param {InvokeContext} context
   * @param {() => T} action
   * @returns {T}
   */
  run(context, action) {
    this.#current = context;
    return action();
  }

  /** @override */
  mustHaveContext() {
    this.#current ??= {};
    return this.#current;
  }
}

class ManyInvocations extends InvokeStore {
  /** @type {AsyncLocalStorage<InvokeContext>} */
  #contexts = new AsyncLocalStorage();

  /** @override */
  getContext() {
    return this.#contexts.getStore();
  }

  /**
   * @template T
   * @param {InvokeContext} context
   * @param {() => T} action
   * @returns {T}
   */
  run(context, action) {
    return this.#contexts.run(context, action);
  }

  /** @override */
  mustHaveContext() {
    return this.getContext() ?? super.mustHaveContext();
  }
}

/**
 * @param {number} concurrency of the worker
 * @returns {OneInvocation | ManyInvocations}
 */
function make(concurrency) {
  return concurrency === 1 ? new OneInvocation() : new ManyInvocations();
}

/**
 * What an invocation begins with.
 * @param {string} requestId
 * @param {string | undefined} trace
 * @returns {InvokeContext}
 */
function contextOf(requestId, trace) {
  return { [KEYS.REQUEST_ID]: requestId, [KEYS.X_RAY_TRACE_ID]: trace };
}

module.exports = { contextOf, make };
