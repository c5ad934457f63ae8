// Errors in AWS Lambda's form: `ErrorBody` for the caller, and the same information as text for the log.
//
// Type, message and `trace` (the stack as V8 wrote it) are those of aws-lambda-ric. PROTOCOL.md uses `stackTrace` (only
// the frames). An error contains both. Frames of this package and of Node's module loader are left out: the user did not
// write them.
'use strict';

const path = require('node:path');
const { types } = require('node:util');

// People read an ErrorBody; a longer text is probably a result by mistake. In UTF-16 units.
const MESSAGE_LEN_MAX = 200_000;
const TYPE_LEN_MAX = 1_000;
/** In UTF-16 units; one becomes at most 3 bytes of an ERROR frame, which has at most 6 MiB. */
const BODY_LEN_MAX = 2_000_000;
// A stack has ten frames unless `Error.stackTraceLimit` says more.
const TRACE_LINES_MAX = 200;
// How many levels of `cause` are logged.
const CAUSES_MAX = 8;

// Lambda's words for an error whose properties cannot be read.
const UNREADABLE =
  'callback called with Error argument, but there was a problem while retrieving one or more of its message, name, and stack';

const OWN_FOLDER = path.dirname(__dirname) + path.sep;
const OWN_REQUIRE = new RegExp(`\\n- ${OWN_FOLDER.replace(/[^\w/]/g, '\\$&')}.*`, 'g');
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
 * What Lambda reports about an error. An error without a name or a message has no type or no message.
 * @typedef {object} Description
 * @property {string | undefined} errorType
 * @property {string | undefined} errorMessage
 * @property {string[]} trace the lines of the stack: its heading and the user's frames
 * @property {string[]} frames the user's frames
 */

/**
 * Describes a thrown value. It can be of any type, and its getters may throw.
 * @param {unknown} error
 * @returns {Description}
 */
function describe(error) {
  try {
    if (error instanceof Fault) {
      const { name, message, frames } = error;
      const errorMessage = cut(message);
      return { errorType: name, errorMessage, trace: [...heading(name, errorMessage).split('\n'), ...frames], frames };
    }
    if (isError(error)) {
      const errorType = text(error.name);
      const errorMessage = cut(text(error.message));
      return { errorType, errorMessage, ...linesOf(text(error.stack), heading(errorType, errorMessage)) };
    }
    return { errorType: typeof error, errorMessage: cut(String(error)), trace: [], frames: [] };
  } catch {
    return { errorType: 'handled', errorMessage: UNREADABLE, trace: [], frames: [] };
  }
}

/**
 * A text of an error. As in Lambda, DEL is escaped, because HTTP headers cannot contain it. The files of this package are
 * removed from a "Require stack".
 * @param {string | undefined} value undefined or null if it was deleted; throws for other types
 */
function text(value) {
  return value?.replaceAll('\x7F', '%7F').replaceAll(OWN_REQUIRE, '');
}

/**
 * @param {string | undefined} stack
 * @param {string} heading for a stack whose own heading is too long
 */
function linesOf(stack, heading) {
  if (stack === undefined || stack === null) {
    return { trace: [], frames: [] };
  }
  const trace = stack.split('\n').filter((line) => !isHidden(line));
  const frames = trace.filter(isFrame).slice(0, TRACE_LINES_MAX);
  const isLong = stack.length > MESSAGE_LEN_MAX || trace.length > TRACE_LINES_MAX;
  return { trace: isLong ? [heading, ...frames] : trace, frames };
}

/**
 * `ErrorBody` as JSON.
 * @param {unknown} error
 * @param {string} requestId
 */
function body(error, requestId) {
  const { errorType, errorMessage, trace, frames } = describe(error);
  const stackTrace = frames.map((frame) => frame.trim());
  const json = JSON.stringify({ errorType, errorMessage, requestId, trace, stackTrace });
  if (json.length <= BODY_LEN_MAX) {
    return json;
  }
  // a stack with very long lines, or a type with a very long name
  return JSON.stringify({ errorType: errorType?.slice(0, TYPE_LEN_MAX), errorMessage, requestId, trace: [], stackTrace: [] });
}

/**
 * One line for the log, as Lambda writes it: JSON with the properties that the user added to the error.
 * @param {unknown} error
 */
function line(error) {
  const description = forLog(error);
  const { errorType, errorMessage } = description;
  const stack = stackOf(description);
  try {
    const { code } = /** @type {{code?: unknown}} */ (isError(error) ? error : {});
    return JSON.stringify({ errorType, errorMessage, code, ...attached(error), stack, cause: causes(error) });
  } catch {
    return JSON.stringify({ errorType, errorMessage, trace: stack }); // an added property cannot be written as JSON
  }
}

/**
 * The same for a log line in JSON: the stack with its first line. As in Lambda, the type is there the name of the class.
 * @param {unknown} error
 */
function fields(error) {
  const description = forLog(error);
  const { errorMessage } = description;
  const errorType = isError(error) && !(error instanceof Fault) ? className(error) : description.errorType;
  return { errorType, errorMessage, stackTrace: stackOf(description) };
}

/**
 * In its logs, Lambda makes an error of a thrown value that is none.
 * @param {unknown} error
 */
function forLog(error) {
  const description = describe(error);
  return isError(error) ? description : { ...description, errorType: 'Error' };
}

/** @param {Error} error */
function className(error) {
  try {
    return String(error.constructor?.name ?? 'UnknownError');
  } catch {
    return 'UnknownError';
  }
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
  const message = isError(reason) ? heading(errorType, errorMessage) : String(errorMessage);
  return new Fault('Runtime.UnhandledPromiseRejection', message, frames);
}

/**
 * The user's frames.
 * @param {{stack?: unknown}} error
 */
function frames(error) {
  return typeof error.stack === 'string' ? linesOf(error.stack, '').frames : [];
}

/** @param {string} line */
function isFrame(line) {
  return /^\s+at /.test(line);
}

/** @param {string} line */
function isHidden(line) {
  return isFrame(line) && HIDDEN.some((hidden) => line.includes(hidden));
}

/**
 * The stack for the log, which has a heading in any case.
 * @param {Description} description
 */
function stackOf({ errorType, errorMessage, trace }) {
  return trace.length > 0 ? trace : [heading(errorType, errorMessage)];
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
 * @param {string | undefined} kind
 * @param {string | undefined} message
 */
function heading(kind = 'Error', message = '') {
  return message === '' ? kind : `${kind}: ${message}`;
}

/**
 * @template {string | undefined} T
 * @param {T} message
 * @returns {T}
 */
function cut(message) {
  return /** @type {T} */ (message?.slice(0, MESSAGE_LEN_MAX));
}

/** @param {unknown} error */
function causes(error) {
  const lines = [];
  let cause = isError(error) ? error.cause : undefined;
  while (isError(cause) && lines.length < CAUSES_MAX) {
    lines.push(stackOf(describe(cause)));
    cause = cause.cause;
  }
  return lines.length > 0 ? lines : undefined;
}

module.exports = { Fault, attached, body, describe, fields, frames, isError, line, unhandledRejection };
