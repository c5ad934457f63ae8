// Errors in AWS Lambda's form: `ErrorBody` for the caller, and the same information as text for the log.
//
// Lambda's Node runtime uses `trace` (the stack with its first line). PROTOCOL.md uses `stackTrace` (only the frames). An
// error contains both. Frames of this package and of Node's module loader are left out: the user did not write them.
'use strict';

const path = require('node:path');
const { types } = require('node:util');

// People read an ErrorBody; a longer text is probably a result by mistake. In UTF-16 units.
const MESSAGE_LEN_MAX = 200_000;
// A stack has ten frames unless `Error.stackTraceLimit` says more.
const TRACE_LINES_MAX = 200;
// How many levels of `cause` are logged.
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

/** An error that the runtime itself detects, with Lambda's name (`Runtime.ImportModuleError` and so on). */
class Fault extends Error {
  /**
   * @param {string} kind
   * @param {string} message
   * @param {string[]} [frames] of the user's error that this error replaces
   */
  constructor(kind, message, frames = []) {
    super(message);
    this.name = kind;
    this.frames = frames;
  }
}

/**
 * What Lambda reports about an error.
 * @typedef {{errorType: string, errorMessage: string, frames: string[]}} Description
 */

/**
 * Describes a thrown value. It can be of any type, and its getters may throw.
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
 * One line for the log, as Lambda writes it: JSON with the properties that the user added to the error.
 * @param {unknown} error
 */
function line(error) {
  const { errorType, errorMessage, frames } = describe(error);
  const stack = [heading(errorType, errorMessage), ...frames];
  try {
    const { code } = /** @type {{code?: unknown}} */ (isError(error) ? error : {});
    return JSON.stringify({ errorType, errorMessage, code, ...attached(error), stack, cause: causes(error) });
  } catch {
    return JSON.stringify({ errorType, errorMessage, stack }); // an added property cannot be written as JSON
  }
}

/**
 * The same for a log line in JSON: the stack with its first line.
 * @param {unknown} error
 */
function fields(error) {
  const { errorType, errorMessage, frames } = describe(error);
  return { errorType, errorMessage, stackTrace: [heading(errorType, errorMessage), ...frames] };
}

/**
 * The properties that the user added to an error. Their getters may throw.
 * @param {unknown} error
 * @returns {Record<string, unknown>}
 */
function attached(error) {
  return isError(error) && !(error instanceof Fault) ? { ...error } : {};
}

/**
 * Lambda's error for a rejected promise without a handler.
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
 * True also for errors of other realms (node:vm).
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
