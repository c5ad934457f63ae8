// The prelude that a handler writes by itself: with the content type `application/vnd.awslambda.http-integration-response`,
// a stream begins with a JSON object (status, headers, cookies) and eight NUL bytes. They may be split into writes anywhere.
//
// Limits and errors are those of `provided/prelude.rs`, which reads the same format from runtimes. `response.js` uses the
// result as if the handler had called `HttpResponseStream.from`.
'use strict';

const buffer = require('node:buffer');

const { Fault } = require('./errors.js');

/**
 * Status, headers and cookies of a response: the argument of `HttpResponseStream.from`.
 * @typedef {object} Prelude
 * @property {number} [statusCode]
 * @property {Record<string, unknown> | null} [headers] an array repeats a header
 * @property {string[] | null} [cookies]
 */

const CONTENT_TYPE = 'application/vnd.awslambda.http-integration-response';
/** Longest JSON of a prelude, bytes. */
const PRELUDE_LEN_MAX = 256 * 1024;
/** NUL bytes between prelude and body. */
const DELIMITER_LEN = 8;

/** A prelude that is being written. */
class PreludeReader {
  /** All bytes so far. @type {Buffer[]} */
  #pieces = [];
  #len = 0;
  /** Where the JSON ends; -1 if not yet known. */
  #end = -1;

  /** Nothing has been written. */
  isEmpty() {
    return this.#len === 0;
  }

  /**
   * Takes a chunk, which the caller may reuse. Returns null if more must follow, otherwise the prelude and the beginning of
   * the body. Throws Fault if it is invalid.
   * @param {Buffer} chunk
   */
  feed(chunk) {
    if (chunk.length === 0) {
      return null;
    }
    if (this.#end < 0) {
      // JSON contains no NUL, so the first one ends it.
      const at = chunk.indexOf(0);
      this.#end = at < 0 ? -1 : this.#len + at;
    }
    this.#len += chunk.length;
    if ((this.#end < 0 ? this.#len : this.#end) > PRELUDE_LEN_MAX) {
      throw invalid(`the prelude is longer than ${PRELUDE_LEN_MAX} bytes`);
    }
    this.#pieces.push(Buffer.from(chunk));
    return this.#end < 0 ? null : this.#split(Buffer.concat(this.#pieces));
  }

  /**
   * @param {Buffer} bytes
   * @returns {{prelude: Prelude, body: Buffer} | null}
   */
  #split(bytes) {
    const bodyAt = this.#end + DELIMITER_LEN;
    const delimiter = bytes.subarray(this.#end, bodyAt);
    if (delimiter.some((byte) => byte !== 0)) {
      throw invalid(`the prelude ends with fewer than ${DELIMITER_LEN} NUL bytes`);
    }
    if (delimiter.length < DELIMITER_LEN) {
      return null;
    }
    return { prelude: parse(bytes.subarray(0, this.#end)), body: bytes.subarray(bodyAt) };
  }
}

/** The error of a response without a complete prelude. */
function endedWithin() {
  return invalid('the response ended within its prelude');
}

/**
 * Whether a response of this content type begins with a prelude.
 * @param {string} contentType
 */
function namesPrelude(contentType) {
  return contentType.split(';', 1)[0].trim().toLowerCase() === CONTENT_TYPE;
}

/**
 * @param {Buffer} json
 * @returns {Prelude}
 */
function parse(json) {
  if (!buffer.isUtf8(json)) {
    throw invalid('the prelude is invalid: it is not UTF-8');
  }
  let written;
  try {
    written = JSON.parse(json.toString());
  } catch (error) {
    throw invalid(`the prelude is invalid: ${/** @type {Error} */ (error).message}`);
  }
  const problem = problemOf(written);
  if (problem !== null) {
    throw invalid(`the prelude is invalid: ${problem}`);
  }
  const { statusCode = 200 } = written;
  if (statusCode < 200 || statusCode > 599) {
    throw invalid(`the prelude's statusCode is ${statusCode}, must be 200 to 599`);
  }
  return written;
}

/**
 * What is wrong with the types of a prelude, or null.
 * @param {any} written
 */
function problemOf(written) {
  if (!isObject(written)) {
    return 'it is not an object';
  }
  const { statusCode = 200, headers, cookies } = written;
  if (!Number.isInteger(statusCode)) {
    return 'statusCode is not a whole number';
  }
  if (!isNothing(headers) && !isObject(headers)) {
    return 'headers is not an object';
  }
  for (const [name, value] of Object.entries(headers ?? {})) {
    if (![value].flat().every(isHeaderValue)) {
      return `the header ${JSON.stringify(name)} is neither a string, a number, a boolean nor an array of them`;
    }
  }
  if (!isNothing(cookies) && !(Array.isArray(cookies) && cookies.every((cookie) => typeof cookie === 'string'))) {
    return 'cookies is not an array of strings';
  }
  return null;
}

/** @param {unknown} value */
function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** @param {unknown} value */
function isNothing(value) {
  return value === undefined || value === null;
}

/** @param {unknown} value */
function isHeaderValue(value) {
  return typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean';
}

/** @param {string} problem */
function invalid(problem) {
  return new Fault('Runtime.InvalidPrelude', problem);
}

module.exports = { PreludeReader, endedWithin, namesPrelude };
