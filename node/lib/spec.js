// The checked form of the specification: what a pre-warmed worker should become (PROTOCOL.md, section 4).
//
// This file only reads the document. `specialise.js` and `handler.js` apply it.
'use strict';

/** The daemon sent an invalid specification. The message names the key. */
class SpecError extends Error {}

/** The checked form. A key that the document does not contain has its default value. */
class Specification {
  /** @param {unknown} document */
  constructor(document) {
    const keys = object(document, 'the specification');
    this.cwd = string(keys, 'cwd');
    this.handler = string(keys, 'handler');
    this.environment = environment(keys);
    this.memory_mb = natural(keys, 'memory_mb', 0);
    this.concurrency = natural(keys, 'concurrency', 1);
    this.drop_ins = strings(keys, 'drop_ins');
    if (this.concurrency < 1) {
      throw new SpecError('concurrency is less than 1');
    }
    /** @type {Record<string, unknown>} */
    this.function = keys.function === undefined || keys.function === null ? {} : object(keys.function, 'function');
    if (keys.log_fd !== undefined && keys.log_fd !== null) {
      throw new SpecError(
        'log_fd is not null: Node cannot replace its descriptors 1 and 2, they are given at the start',
      );
    }
  }
}

/**
 * @param {string} line
 * @throws {SpecError}
 */
function parse(line) {
  let document;
  try {
    document = JSON.parse(line);
  } catch (error) {
    throw new SpecError(`it is not JSON: ${/** @type {Error} */ (error).message}`);
  }
  return new Specification(document);
}

/**
 * @param {unknown} value
 * @param {string} name
 */
function object(value, name) {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new SpecError(`${name} is not an object`);
  }
  return /** @type {Record<string, unknown>} */ (value);
}

/**
 * @param {Record<string, unknown>} keys
 * @param {string} key
 */
function string(keys, key) {
  const value = keys[key];
  if (typeof value !== 'string' || value.includes('\0')) {
    throw new SpecError(`${key} is ${value === undefined ? 'missing' : 'not a string'}`);
  }
  return value;
}

/**
 * @param {Record<string, unknown>} keys
 * @param {string} key
 * @param {number} absent
 */
function natural(keys, key, absent) {
  const value = keys[key] ?? absent;
  if (!Number.isSafeInteger(value) || Number(value) < 0) {
    throw new SpecError(`${key} is not a whole number`);
  }
  return Number(value);
}

/**
 * @param {Record<string, unknown>} keys
 * @param {string} key
 * @returns {string[]}
 */
function strings(keys, key) {
  const value = keys[key] ?? [];
  if (!Array.isArray(value) || !value.every((one) => typeof one === 'string')) {
    throw new SpecError(`${key} is not a list of strings`);
  }
  return value;
}

/** @param {Record<string, unknown>} keys */
function environment(keys) {
  const variables = object(keys.environment, 'environment');
  for (const [name, value] of Object.entries(variables)) {
    const isPossible = typeof value === 'string' && !value.includes('\0') && name !== '' && !/[=\0]/.test(name);
    if (!isPossible) {
      throw new SpecError(`environment variable ${JSON.stringify(name)} cannot be set`);
    }
  }
  return /** @type {Record<string, string>} */ (variables);
}

module.exports = { SpecError, Specification, parse };
