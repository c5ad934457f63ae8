// Finds the handler that a specification names, with AWS Lambda's rules and error messages.
//
// `file.handler`, `folder/file.nested.handler`: searches a file with exactly this name, then with .js, .mjs, .cjs (and
// TypeScript, if this Node runs it), and finally a package. Packages are not always in the code: a file
// `node_modules/PACKAGE/file` is also searched where they are installed. It does not call handlers; `events.js` does.
'use strict';

const fs = require('node:fs');
const { createRequire } = require('node:module');
const path = require('node:path');
const { pathToFileURL } = require('node:url');

const errors = require('./errors.js');
const { Fault } = errors;

/**
 * @typedef {object} Handler
 * @property {(...values: any[]) => unknown} target
 * @property {boolean} isStreaming it was given to `awslambda.streamifyResponse`
 * @property {number | undefined} highWaterMark of its stream, bytes
 */

/** @typedef {{name: string, isModule: boolean}} File a module's, and whether it is loaded as an ES module */

// Lambda's own markers. Wrappers around handlers copy them.
const STREAMING = Symbol.for('aws.lambda.runtime.handler.streaming');
const HIGH_WATER_MARK = Symbol.for('aws.lambda.runtime.handler.streaming.highWaterMark');

const IN_PACKAGES = 'node_modules/';

const CHECK_MS_MAX = 5_000;
// How many names of a folder or module an error message lists.
const NAMES_MAX = 20;

/**
 * Loads the module and looks up the handler. Throws Fault, or what the module threw.
 * @param {{cwd: string, handler: string}} specification
 * @returns {Promise<Handler>}
 */
async function load({ cwd, handler }) {
  const [module, attributes] = split(handler);
  const file = find(cwd, module);
  let exported;
  try {
    exported = file.isModule ? await import(pathToFileURL(file.name).href) : require(file.name);
  } catch (error) {
    throw inLambdasWords(error, file);
  }
  const target = attribute(exported, attributes) || attribute(exported?.default, attributes);
  if (!target) {
    const problem = `${handler} is undefined or not exported; ${module} exports ${list(Object.keys(exported ?? {}))}`;
    throw new Fault('Runtime.HandlerNotFound', problem);
  }
  if (typeof target !== 'function') {
    throw new Fault('Runtime.HandlerNotFound', `${handler} is not a function`);
  }
  const highWaterMark = Number.parseInt(target[HIGH_WATER_MARK], 10);
  return {
    target,
    isStreaming: target[STREAMING] === 'response',
    highWaterMark: highWaterMark > 0 ? highWaterMark : undefined,
  };
}

/**
 * @param {any} exported
 * @param {string} attributes
 */
function attribute(exported, attributes) {
  return attributes.split('.').reduce((value, key) => value?.[key], exported);
}

/**
 * `awslambda.streamifyResponse`.
 * @template {(...values: any[]) => unknown} T
 * @param {T} handler `(event, responseStream, context)`
 * @param {{highWaterMark?: number}} [options]
 * @returns {T}
 */
function streamifyResponse(handler, options) {
  const marked = /** @type {any} */ (handler);
  marked[STREAMING] = 'response';
  if (typeof options?.highWaterMark === 'number') {
    marked[HIGH_WATER_MARK] = Math.trunc(options.highWaterMark);
  }
  return handler;
}

/**
 * The module's path and the handler's path within it: `a/b.c.d` is `a/b` and `c.d`.
 * @param {string} handler
 * @returns {[string, string]}
 */
function split(handler) {
  if (handler.split('/').includes('..')) {
    const hint = 'name the file from the root of the code, without ".."';
    throw new Fault('Runtime.MalformedHandlerName', `'${handler}' is not a valid handler name; ${hint}`);
  }
  const at = handler.indexOf('.', handler.lastIndexOf('/') + 1);
  const [module, attributes] = [handler.slice(0, at), handler.slice(at + 1)];
  if (at < 0 || attributes === '' || module === '' || module.endsWith('/')) {
    throw new Fault(
      'Runtime.MalformedHandlerName',
      `Bad handler '${handler}': it has to be FILE.EXPORT, like index.handler`,
    );
  }
  return [module, attributes];
}

/**
 * @param {string} cwd
 * @param {string} module
 * @returns {File}
 */
function find(cwd, module) {
  const stems = [path.resolve(cwd, module), ...installed(cwd, module)];
  for (const stem of stems) {
    const file = fileOf(stem);
    if (file !== null) {
      return file;
    }
  }
  try {
    return { name: require.resolve(module, { paths: [cwd] }), isModule: false };
  } catch {
    const nearest = stems.find((stem) => fs.existsSync(path.dirname(stem))) ?? stems[0];
    throw new Fault('Runtime.ImportModuleError', missing(module, nearest));
  }
}

/**
 * @param {string} stem
 * @returns {File | null}
 */
function fileOf(stem) {
  if (fs.statSync(stem, { throwIfNoEntry: false })?.isFile()) {
    return { name: stem, isModule: false };
  }
  for (const extension of extensions()) {
    const name = stem + extension;
    if (fs.existsSync(name)) {
      return { name, isModule: isModule(name, extension) };
    }
  }
  return null;
}

/**
 * Where `node_modules/PACKAGE/file` may be outside the code: in the folders in which Node searches packages. In Lambda,
 * packages are part of the code.
 * @param {string} cwd
 * @param {string} module
 */
function installed(cwd, module) {
  if (!module.startsWith(IN_PACKAGES)) {
    return [];
  }
  const inPackages = module.slice(IN_PACKAGES.length);
  const folders = createRequire(path.join(cwd, 'noop.js')).resolve.paths('package') ?? []; // the same for all packages
  return folders.map((folder) => path.join(folder, inPackages));
}

function extensions() {
  const { typescript } = /** @type {{typescript?: unknown}} */ (process.features);
  return typescript ? ['.js', '.mjs', '.cjs', '.ts', '.mts', '.cts'] : ['.js', '.mjs', '.cjs'];
}

/**
 * Whether the file is an ES module by Node's rules: its extension decides, else `type` of the nearest package.json.
 * @param {string} file
 * @param {string} extension
 */
function isModule(file, extension) {
  if (extension !== '.js' && extension !== '.ts') {
    return extension.startsWith('.m');
  }
  for (let folder = path.dirname(file); path.basename(folder) !== 'node_modules'; folder = path.dirname(folder)) {
    const type = typeOfPackage(path.join(folder, 'package.json'));
    if (type !== null) {
      return type === 'module';
    }
    if (folder === path.dirname(folder)) {
      break;
    }
  }
  return false;
}

/**
 * `type` of a package.json. Null if there is no such file.
 * @param {string} file
 * @returns {unknown}
 */
function typeOfPackage(file) {
  let text;
  try {
    text = fs.readFileSync(file, 'utf8');
  } catch {
    return null;
  }
  try {
    return JSON.parse(text)?.type;
  } catch (error) {
    throw new Fault('Runtime.ImportModuleError', `${file} is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * @param {string} module
 * @param {string} stem
 */
function missing(module, stem) {
  const folder = path.dirname(stem);
  const tried = extensions().map((extension) => path.basename(stem) + extension);
  return `Error: Cannot find module '${module}': ${folder} has none of ${tried.join(', ')}; ${contents(folder)}`;
}

/** @param {string} folder */
function contents(folder) {
  try {
    return `it has ${list(fs.readdirSync(folder).sort())}`;
  } catch {
    return 'there is no such folder';
  }
}

/** @param {string[]} names */
function list(names) {
  if (names.length === 0) {
    return 'nothing';
  }
  const more = names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : '';
  return names.slice(0, NAMES_MAX).join(', ') + more;
}

/**
 * @param {unknown} error
 * @param {File} file
 */
function inLambdasWords(error, file) {
  if (error instanceof Fault || !(error instanceof Error)) {
    return error;
  }
  const { code } = /** @type {NodeJS.ErrnoException} */ (error);
  if (code === 'MODULE_NOT_FOUND' || code === 'ERR_MODULE_NOT_FOUND') {
    return new Fault('Runtime.ImportModuleError', `Error: ${withoutOwnFiles(error.message)}`, errors.frames(error));
  }
  if (error instanceof SyntaxError) {
    const frames = errors.frames(error);
    const place = placeIn(error.stack ?? '') ?? (file.isModule && frames.length === 0 ? placeByCheck(file.name) : null);
    if (place === null) {
      return new Fault('Runtime.UserCodeSyntaxError', `SyntaxError: ${error.message}`, frames);
    }
    return new Fault('Runtime.UserCodeSyntaxError', `SyntaxError: ${error.message} (${place})`, [`    at ${place}`]);
  }
  return error;
}

/**
 * Node writes `FILE:LINE` before the error of code that could not be compiled.
 * @param {string} text
 */
function placeIn(text) {
  const found = /^(?:file:\/\/)?(\/[^\n]*:\d+)\n/.exec(text);
  return found ? found[1] : null;
}

/**
 * For an ES module, Node reveals the place only when it prints the error. So another Node process is started to print it.
 * @param {string} file
 */
function placeByCheck(file) {
  const { spawnSync } = require('node:child_process');
  const checked = spawnSync(process.execPath, ['--check', file], { encoding: 'utf8', timeout: CHECK_MS_MAX });
  return placeIn(checked.stderr ?? '');
}

/**
 * A "Require stack" ends with the file that loaded the handler, which is this file.
 * @param {string} message
 */
function withoutOwnFiles(message) {
  const lines = message.split('\n').filter((text) => !text.includes(path.dirname(__dirname) + path.sep));
  const text = lines.join('\n').replace(/\nRequire stack:$/, '');
  return text.replace(/ imported from .*$/, (from) => (from.includes(__dirname) ? '' : from));
}

module.exports = { load, streamifyResponse };
