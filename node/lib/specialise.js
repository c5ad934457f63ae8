// Turns the pre-warmed process into one of a specification: environment, working directory, module search, memory.
//
// What Node reads only when it starts (most flags, NODE_EXTRA_CA_CERTS) the process was started with: the daemon sees
// to that. It loads no user code, but what NODE_OPTIONS asks for.
'use strict';

const Module = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');
const v8 = require('node:v8');

const output = require('./output.js');

/** @typedef {import('./spec.js').Specification} Specification */

// How much the heap may grow before it is collected, per cent of what lives: an eighth of the memory in MiB, within
// these.
const GROWTH_PERCENT_MIN = 50;
const GROWTH_PERCENT_MAX = 200;
// Up to this much memory, the space of young objects, which may come to 50 to 100 MiB, stays as small as it begins.
const SMALL_MB = 256;

/**
 * In this order: everything that user code could look at is in place before any of it runs.
 * @param {Specification} specification
 */
async function specialise(specification) {
  setEnvironment(specification.environment);
  output.configure(specification.environment);
  process.chdir(specification.cwd);
  bound(specification.memory_mb);
  // Reads NODE_PATH again. It is what `node:module` has for this; without it NODE_PATH would be that of the pre-warmed
  // process.
  /** @type {any} */ (Module)._initPaths();
  keepCompiled(specification.environment.NODE_COMPILE_CACHE);
  if (specification.environment.NODE_OPTIONS) {
    await applyOptions(specification.environment.NODE_OPTIONS, specification.cwd);
  }
}

/**
 * `process.env` becomes exactly this. Node tells the C library and ICU when TZ changes.
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
 * V8 takes its heap's limit when it starts and never again: `--max-old-space-size` does nothing here. A process that
 * was started without one sizes its heap for the whole machine, and would let garbage grow until the kernel ends it; so
 * it is made to collect sooner, the sooner the less memory there is. The limit itself is the cgroup's.
 * @param {number} memoryMb 0: unlimited
 */
function bound(memoryMb) {
  const limitMb = v8.getHeapStatistics().heap_size_limit / 1024 / 1024;
  if (memoryMb === 0 || limitMb <= memoryMb) {
    return;
  }
  const percent = Math.min(Math.max(Math.round(memoryMb / 8), GROWTH_PERCENT_MIN), GROWTH_PERCENT_MAX);
  v8.setFlagsFromString(`--heap-growing-percent=${percent}`);
  if (memoryMb <= SMALL_MB) {
    v8.setFlagsFromString('--semi-space-growth-factor=1');
  }
}

/**
 * From Node 22.1 on, what is compiled is kept in this folder for the next process, when this one ends in order.
 * @param {string | undefined} folder
 */
function keepCompiled(folder) {
  const { enableCompileCache } = /** @type {{enableCompileCache?: (folder: string) => unknown}} */ (Module);
  if (folder && enableCompileCache) {
    enableCompileCache(folder); // says in its answer when it cannot; a function is none the worse for that
  }
}

/**
 * Those of Node's options that need not be there at the start; it was started with the others.
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
 * As Node reads NODE_OPTIONS: parted by spaces, but within double quotes, where a backslash stands for the next
 * character.
 * @param {string} text
 */
function words(text) {
  const found = text.match(/(?:[^ "]|"(?:[^"\\]|\\.)*(?:"|$))+/gs) ?? [];
  const unquoted = (/** @type {string} */ _, /** @type {string} */ quoted) => quoted.replace(/\\(.)/gs, '$1');
  return found.map((word) => word.replace(/"((?:[^"\\]|\\.)*)(?:"|$)/gs, unquoted));
}

/**
 * What `--import` names, from the working directory.
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
