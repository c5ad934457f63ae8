// Errors in AWS Lambda's form: `ErrorBody` for the caller, and the same as text for the log.
//
// Lambda's Node runtime has `trace` (the stack with its first line), PROTOCOL.md has `stackTrace` (the frames alone),
// so an error has both. Frames of this package and of Node's module loader are left out: the user did not write them.
'use strict';

const path = require('node:path');
const { types } = require('node:util');

// An ErrorBody is for people; what is longer than this is a result that went the wrong way. In UTF-16 units.
const MESSAGE_LEN_MAX = 200_000;
// A stack has ten frames unless `Error.stackTraceLimit` says more.
const TRACE_LINES_MAX = 200;
// How many causes of causes are logged.
const CAUSES_MAX = 8;

const OWN_FOLDER = path.dirname(__dirname) + path.sep;
const HIDDEN = [
  OWN_FOLDER,
  'node:internal/modules/',
  'node:internal/process/',
  'node:internal/vm',
  'node:diagnostics_channel:',
  'AsyncResource.runInAsyncScope (node:',
  'AsyncLocalStorage.run (node:',
];

/** An error that the runtime itself finds, with Lambda's name for it (`Runtime.ImportModuleError` and so on). */
class Fault extends Error {
  /**
   * @param {string} kind
   * @param {string} message
   * @param {string[]} [frames] of the user's error that it stands for
   */
  constructor(kind, message, frames = []) {
    super(message);
    this.name = kind;
    this.frames = frames;
  }
}

/**
 * What Lambda reports of an error.
 * @typedef {{errorType: string, errorMessage: string, frames: string[]}} Description
 */

/**
 * Whatever was thrown: anything can be, and its getters may do anything.
 * @param {unknown} error
 * @returns {Description}
 */
function describe(error) {
  try {
    if (error instanceof Fault) {
      return { errorType: error.name, errorMessage: cut(error.message), frames: error.frames };
    }
    if (isError(error)) {
      return { errorType: String(error.name), errorMessage: cut(String(error.message)), frames: frames(error) };
    }
    return { errorType: typeof error, errorMessage: cut(String(error)), frames: [] };
  } catch {
    const errorMessage = 'an error was thrown whose name, message or stack cannot be read';
    return { errorType: 'handled', errorMessage, frames: [] };
  }
}

/**
 * `ErrorBody` as JSON.
 * @param {unknown} error
 * @param {string} requestId
 */
function body(error, requestId) {
  const { errorType, errorMessage, frames } = describe(error);
  const trace = frames.length > 0 ? [heading(errorType, errorMessage), ...frames] : [];
  return JSON.stringify({ errorType, errorMessage, requestId, trace, stackTrace: frames.map((frame) => frame.trim()) });
}

/**
 * One line for the log, as Lambda writes it: JSON with whatever the user attached to the error.
 * @param {unknown} error
 */
function line(error) {
  const { errorType, errorMessage, frames } = describe(error);
  const stack = [heading(errorType, errorMessage), ...frames];
  try {
    const { code } = /** @type {{code?: unknown}} */ (isError(error) ? error : {});
    return JSON.stringify({ errorType, errorMessage, code, ...attached(error), stack, cause: causes(error) });
  } catch {
    return JSON.stringify({ errorType, errorMessage, stack }); // what was attached cannot be written as JSON
  }
}

/**
 * The same for a line that is an object: the stack with its first line.
 * @param {unknown} error
 */
function fields(error) {
  const { errorType, errorMessage, frames } = describe(error);
  return { errorType, errorMessage, stackTrace: [heading(errorType, errorMessage), ...frames] };
}

/**
 * What the user attached to an error. Its getters may throw.
 * @param {unknown} error
 * @returns {Record<string, unknown>}
 */
function attached(error) {
  return isError(error) && !(error instanceof Fault) ? { ...error } : {};
}

/**
 * Lambda's error for a promise that was rejected while nobody listened.
 * @param {unknown} reason
 */
function unhandledRejection(reason) {
  const { errorType, errorMessage, frames } = describe(reason);
  const message = isError(reason) ? heading(errorType, errorMessage) : errorMessage;
  return new Fault('Runtime.UnhandledPromiseRejection', message, frames);
}

/**
 * The user's frames.
 * @param {{stack?: unknown}} error
 */
function frames(error) {
  const stack = typeof error.stack === 'string' ? error.stack : '';
  const lines = stack.split('\n').filter((text) => /^\s+at /.test(text));
  return lines.filter((text) => !HIDDEN.some((hidden) => text.includes(hidden))).slice(0, TRACE_LINES_MAX);
}

/**
 * Errors of other realms (node:vm) too.
 * @param {unknown} value
 * @returns {value is Error}
 */
function isError(value) {
  return value instanceof Error || types.isNativeError(value);
}

/**
 * @param {string} kind
 * @param {string} message
 */
function heading(kind, message) {
  return message === '' ? kind : `${kind}: ${message}`;
}

/** @param {string} message */
function cut(message) {
  return message.slice(0, MESSAGE_LEN_MAX);
}

/** @param {unknown} error */
function causes(error) {
  const lines = [];
  let cause = isError(error) ? error.cause : undefined;
  while (isError(cause) && lines.length < CAUSES_MAX) {
    const { errorType, errorMessage, frames } = describe(cause);
    lines.push([heading(errorType, errorMessage), ...frames]);
    cause = cause.cause;
  }
  return lines.length > 0 ? lines : undefined;
}

module.exports = { Fault, attached, body, describe, fields, frames, isError, line, unhandledRejection };
