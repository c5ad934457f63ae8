// Turns the pre-warmed process into one of a specification: environment, working directory, module search, memory.
//
// Node reads some settings only when it starts (most flags, NODE_EXTRA_CA_CERTS). The daemon has started the process with
// them. This file loads no user code, except what NODE_OPTIONS names.
'use strict';

const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const v8 = require('node:v8');

const output = require('./output.js');

/** @typedef {import('./spec.js').Specification} Specification */

// How much the heap may grow before it is collected, in per cent of the live objects: an eighth of the memory in MiB,
// within these limits.
const GROWTH_PERCENT_MIN = 50;
const GROWTH_PERCENT_MAX = 200;
// With less memory, the space of young objects keeps its initial size (2 MiB) instead of growing to the limit that the daemon sets
// (32 MiB). Then objects that live for a moment are moved to the old space, which is collected all the time: with Node 20, code that
// makes many takes 4 times as much CPU time (140 ms instead of 33), and JSON 1.7 times (180 ms, 105). It takes 20 to 25 MiB less, which a
// small function needs more: with 128 MB and 60 MiB of live objects, no call of four ended for lack of memory, and one or two do if the
// space may grow to 16 or 32 MiB. With 256 MB and 135 MiB, none does.
const SMALL_MB = 256;
// By this much the limit of the heap is more than `--max-old-space-size`: three times the limit of half the space of young objects.
const YOUNG_MB = 48;

/**
 * The order matters: everything that user code can see is set before user code runs.
 * @param {Specification} specification
 */
async function specialise(specification) {
  setEnvironment(specification.environment);
  output.configure(specification.environment);
  process.chdir(specification.cwd);
  bound(specification.memory_mb);
  // Reads NODE_PATH again. `node:module` has this function for it. Otherwise the NODE_PATH of the pre-warmed process
  // would stay in use.
  /** @type {any} */ (Module)._initPaths();
  keepCompiled(specification.environment.NODE_COMPILE_CACHE);
  if (specification.environment.NODE_OPTIONS) {
    await applyOptions(specification.environment.NODE_OPTIONS, specification.cwd);
  }
}

/**
 * Replaces `process.env`. Node informs the C library and ICU when TZ changes.
 * @param {Record<string, string>} environment
 */
function setEnvironment(environment) {
  for (const name of Object.keys(process.env)) {
    if (environment[name] === undefined) {
      delete process.env[name];
    }
  }
  for (const [name, value] of Object.entries(environment)) {
    if (process.env[name] !== value) {
      process.env[name] = value;
    }
  }
}

/**
 * V8 reads the limit of its heap only when it starts, so `--max-old-space-size` has no effect here. A process that was
 * started without it sizes its heap for the whole machine. Its garbage could grow until the kernel ends the process.
 * Therefore it must collect garbage earlier, depending on the memory of the function. The cgroup enforces the limit.
 * @param {number} memoryMb 0: unlimited
 */
function bound(memoryMb) {
  const limitMb = v8.getHeapStatistics().heap_size_limit / 1024 / 1024;
  if (memoryMb === 0 || limitMb - YOUNG_MB <= memoryMb) {
    return;
  }
  const percent = Math.min(Math.max(Math.round(memoryMb / 8), GROWTH_PERCENT_MIN), GROWTH_PERCENT_MAX);
  v8.setFlagsFromString(`--heap-growing-percent=${percent}`);
  if (memoryMb < SMALL_MB) {
    v8.setFlagsFromString('--semi-space-growth-factor=1');
  }
}

/**
 * From Node 22.1 on, compiled code is kept in this folder for the next process, if this process ends normally.
 * @param {string | undefined} folder
 */
function keepCompiled(folder) {
  const { enableCompileCache } = /** @type {{enableCompileCache?: (folder: string) => unknown}} */ (Module);
  if (folder && enableCompileCache) {
    enableCompileCache(folder); // its result says if it fails; the function works without the cache
  }
}

/**
 * Applies the options that Node need not read at its start. The process was started with the others.
 * @param {string} text
 * @param {string} cwd
 */
async function applyOptions(text, cwd) {
  const rest = words(text);
  const require = Module.createRequire(path.join(cwd, 'noop.js'));
  for (let word = rest.shift(); word !== undefined; word = rest.shift()) {
    const [name, inline] = word.split(/=(.*)/s, 2);
    if (name === '--enable-source-maps') {
      process.setSourceMapsEnabled(true);
    } else if (name === '--require' || name === '-r') {
      require(inline ?? rest.shift() ?? '');
    } else if (name === '--import') {
      await import(specifier(inline ?? rest.shift() ?? '', require));
    }
  }
}

/**
 * Splits NODE_OPTIONS as Node does: at spaces, except in double quotes. In double quotes, a backslash escapes the next
 * character.
 * @param {string} text
 */
function words(text) {
  const found = text.match(/(?:[^ "]|"(?:[^"\\]|\\.)*(?:"|$))+/gs) ?? [];
  const unquoted = (/** @type {string} */ _, /** @type {string} */ quoted) => quoted.replace(/\\(.)/gs, '$1');
  return found.map((word) => word.replace(/"((?:[^"\\]|\\.)*)(?:"|$)/gs, unquoted));
}

/**
 * Resolves the argument of `--import` from the working directory.
 * @param {string} name
 * @param {NodeJS.Require} require
 */
function specifier(name, require) {
  if (/^(?:node|data|file):/.test(name)) {
    return name;
  }
  return pathToFileURL(require.resolve(name)).href;
}

module.exports = { specialise };
