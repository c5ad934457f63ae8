'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const { NODE, Worker, cleanUp, serving, specified } = require('./harness.js');

afterEach(cleanUp);

const ES_MODULE = 'export const handler = async () => import.meta.url.split("/").pop();';
const COMMON_JS = 'exports.handler = async () => __filename.split("/").pop();';

/** @type {Array<[string, string, import('./harness.js').Files, string]>} */
const FOUND = [
  ['CommonJS by default', 'index.handler', { 'index.js': COMMON_JS }, 'index.js'],
  ['a file in a folder', 'src/app.handler', { 'src/app.js': COMMON_JS }, 'app.js'],
  ['.mjs', 'index.handler', { 'index.mjs': ES_MODULE }, 'index.mjs'],
  ['.cjs', 'index.handler', { 'index.cjs': COMMON_JS }, 'index.cjs'],
  ['.js before .mjs', 'index.handler', { 'index.mjs': ES_MODULE, 'index.js': COMMON_JS }, 'index.js'],
  ['a file without extension', 'app.handler', { app: COMMON_JS }, 'app'],
  ['type module', 'index.handler', { 'index.js': ES_MODULE, 'package.json': '{"type": "module"}' }, 'index.js'],
  [
    'type module of the folder above',
    'a/index.handler',
    { 'a/index.js': ES_MODULE, 'package.json': '{"type":"module"}' },
    'index.js',
  ],
  ['type commonjs', 'index.handler', { 'index.js': COMMON_JS, 'package.json': '{"type": "commonjs"}' }, 'index.js'],
  [
    'the nearest package.json',
    'a/index.handler',
    { 'a/index.js': COMMON_JS, 'a/package.json': '{}', 'package.json': '{"type": "module"}' },
    'index.js',
  ],
  [
    'a nested export',
    'index.api.v1.get',
    { 'index.js': 'exports.api = { v1: { get: async () => "nested" } };' },
    'nested',
  ],
  ['a package', 'tool.handler', { 'node_modules/tool/index.js': COMMON_JS }, 'index.js'],
  [
    'top-level await',
    'index.handler',
    { 'index.mjs': 'const a = await 7; export const handler = async () => a;' },
    '7',
  ],
  [
    'a class method',
    'index.handler',
    { 'index.js': 'class A { async handler() { return "a"; } } module.exports = new A();' },
    'a',
  ],
];
for (const [name, handler, files, expected] of FOUND) {
  test(`a handler is found: ${name}`, async () => {
    const worker = await serving(files, { handler });
    assert.strictEqual(String(await worker.result(null)), expected);
  });
}

/**
 * The files of a package beside the code, where the daemon shows what it has installed.
 * @param {Worker} worker
 * @param {string} folder
 * @param {Record<string, string>} files
 */
function install(worker, folder, files) {
  for (const [name, text] of Object.entries(files)) {
    const file = path.join(worker.folder, folder, name);
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, text);
  }
}

/** @type {Array<[string, string, Record<string, string>, string]>} */
const IN_PACKAGES = [
  ['CommonJS', 'node_modules/tool/dist/main.handler', { 'tool/dist/main.js': COMMON_JS }, 'main.js'],
  ['.mjs', 'node_modules/tool/dist/main.handler', { 'tool/dist/main.mjs': ES_MODULE }, 'main.mjs'],
  [
    'a file that the package does not export',
    'node_modules/@own/tool/main.handler',
    { '@own/tool/main.cjs': COMMON_JS, '@own/tool/package.json': '{"exports": {}}' },
    'main.cjs',
  ],
  [
    'type module of the package',
    'node_modules/tool/main.handler',
    { 'tool/main.js': ES_MODULE, 'tool/package.json': '{"type": "module"}' },
    'main.js',
  ],
];
for (const [name, handler, files, expected] of IN_PACKAGES) {
  for (const [where, folder, isOnPath] of /** @type {Array<[string, string, boolean]>} */ ([
    ['beside the code', 'node_modules', false],
    ['on NODE_PATH', 'packages', true],
  ])) {
    test(`a handler in an installed package is found ${where}: ${name}`, async () => {
      const worker = new Worker({ 'index.js': '' });
      install(worker, folder, files);
      await worker.waiting();
      worker.specify({ handler, environment: isOnPath ? { NODE_PATH: path.join(worker.folder, folder) } : {} });
      await worker.ready();
      assert.strictEqual(await worker.result(null), expected);
    });
  }
}

test('node_modules in the code are searched before installed packages', async () => {
  const worker = new Worker({ 'node_modules/tool/main.js': 'exports.handler = async () => "of the code";' });
  install(worker, 'node_modules', { 'tool/main.js': COMMON_JS });
  await worker.waiting();
  worker.specify({ handler: 'node_modules/tool/main.handler' });
  await worker.ready();
  assert.strictEqual(await worker.result(null), 'of the code');
});

test('an error about a handler in a package says what the package has', async () => {
  const worker = new Worker({ 'index.js': '' });
  install(worker, 'node_modules', { 'tool/main.js': COMMON_JS });
  await worker.waiting();
  worker.specify({ handler: 'node_modules/tool/gone.handler' });
  const { errorType, errorMessage } = await worker.initError();
  assert.strictEqual(errorType, 'Runtime.ImportModuleError');
  assert.match(errorMessage, /^Error: Cannot find module 'node_modules\/tool\/gone': /);
  assert.ok(errorMessage.includes(`${worker.folder}/node_modules/tool has none of gone.js`), errorMessage);
  assert.match(errorMessage, /; it has main\.js$/);
});

test('a module may wait for more than promises at its top level', async () => {
  const code =
    'import { setTimeout } from "node:timers/promises"; ' +
    'const value = await setTimeout(20, "waited"); export const handler = async () => value;';
  const worker = await serving({ 'index.mjs': code });
  assert.strictEqual(await worker.result(null), 'waited');
});

/** @type {Array<[string, string, import('./harness.js').Files, string, RegExp]>} */
const REFUSED = [
  [
    'the file is not there',
    'index.handler',
    { 'app.js': '', 'package.json': '{}' },
    'Runtime.ImportModuleError',
    /^Error: Cannot find module 'index': \S*\/task has none of index\.js, index\.mjs, index\.cjs.*; it has app.js, package.json$/,
  ],
  [
    'the folder is not there',
    'src/index.handler',
    {},
    'Runtime.ImportModuleError',
    /src has none of .*; there is no such folder$/,
  ],
  ['there is nothing', 'index.handler', {}, 'Runtime.ImportModuleError', /it has nothing$/],
  [
    'a dependency is not there',
    'index.handler',
    { 'index.js': 'require("left-pad");' },
    'Runtime.ImportModuleError',
    /^Error: Cannot find module 'left-pad'\nRequire stack:\n- \S*\/task\/index\.js$/,
  ],
  [
    'a dependency of an ES module is not there',
    'index.handler',
    { 'index.mjs': 'import "left-pad";' },
    'Runtime.ImportModuleError',
    /^Error: Cannot find package 'left-pad' imported from \S*\/task\/index\.mjs/,
  ],
  [
    'a syntax error',
    'index.handler',
    { 'index.js': '// one\nexports.handler = async () => {\n  return 1 +;\n};' },
    'Runtime.UserCodeSyntaxError',
    /^SyntaxError: Unexpected token ';' \(\S*\/task\/index\.js:3\)$/,
  ],
  [
    'a syntax error in an ES module',
    'index.handler',
    { 'index.mjs': '\nexport const handler = ;' },
    'Runtime.UserCodeSyntaxError',
    /^SyntaxError: Unexpected token ';' \(\S*\/task\/index\.mjs:2\)$/,
  ],
  [
    'a syntax error in what it requires',
    'index.handler',
    { 'index.js': 'require("./lib")', 'lib.js': 'let let = 1;' },
    'Runtime.UserCodeSyntaxError',
    /\(\S*\/task\/lib\.js:1\)$/,
  ],
  [
    'an export that is not there',
    'index.handler',
    { 'index.js': 'exports.main = 1; exports.other = 2;' },
    'Runtime.HandlerNotFound',
    /^index\.handler is undefined or not exported; index exports main, other$/,
  ],
  [
    'an export of an ES module that is not there',
    'index.a.b',
    { 'index.mjs': 'export const c = 1;' },
    'Runtime.HandlerNotFound',
    /^index\.a\.b is undefined or not exported; index exports c$/,
  ],
  ['no exports', 'index.handler', { 'index.js': '' }, 'Runtime.HandlerNotFound', /exports nothing$/],
  [
    'no function',
    'index.handler',
    { 'index.js': 'exports.handler = 5;' },
    'Runtime.HandlerNotFound',
    /^index\.handler is not a function$/,
  ],
  ['no export named', 'index', {}, 'Runtime.MalformedHandlerName', /^Bad handler 'index'/],
  ['nothing after the dot', 'index.', {}, 'Runtime.MalformedHandlerName', /^Bad handler 'index\.'/],
  ['nothing before the dot', 'src/.handler', {}, 'Runtime.MalformedHandlerName', /^Bad handler/],
  ['a way out', '../index.handler', {}, 'Runtime.MalformedHandlerName', /without "\.\."$/],
  [
    'a package.json that is not JSON',
    'index.handler',
    { 'index.js': '', 'package.json': '{' },
    'Runtime.ImportModuleError',
    /package\.json is not JSON/,
  ],
  [
    'an error of its own',
    'index.handler',
    { 'index.js': 'throw new RangeError("too far");' },
    'RangeError',
    /^too far$/,
  ],
  [
    'a rejected await',
    'index.handler',
    { 'index.mjs': 'await Promise.reject(new RangeError("x"));' },
    'RangeError',
    /^x$/,
  ],
  ['a text that is thrown', 'index.handler', { 'index.js': 'throw "text";' }, 'string', /^text$/],
  [
    'an await that never ends',
    'index.handler',
    { 'index.mjs': 'await new Promise(() => {}); export const handler = async () => 1;' },
    'Runtime.NodeJsExit',
    /top-level await/,
  ],
  [
    'an exception beside it',
    'index.handler',
    { 'index.mjs': 'setImmediate(() => { throw new RangeError("late"); }); await new Promise(() => {});' },
    'RangeError',
    /^late$/,
  ],
  [
    'a rejection beside it',
    'index.handler',
    { 'index.mjs': 'setImmediate(() => Promise.reject(new RangeError("late"))); await new Promise(() => {});' },
    'Runtime.UnhandledPromiseRejection',
    /^RangeError: late$/,
  ],
];
for (const [name, handler, files, errorType, message] of REFUSED) {
  test(`a handler that cannot be had is an INIT_ERROR: ${name}`, async () => {
    const worker = await specified(files, { handler });
    const error = await worker.initError();
    assert.strictEqual(error.errorType, errorType);
    assert.match(error.errorMessage, message);
    assert.strictEqual(error.requestId, '');
    assert.ok(
      !JSON.stringify(error).includes('pilot-worker') && !JSON.stringify(error).includes('/node/lib/'),
      JSON.stringify(error),
    );
    assert.ok(await worker.isClosed());
    assert.strictEqual(await worker.ended, 1);
    assert.match(worker.log(), /\tERROR\t/);
  });
}

test('a module that ends the process says nothing', async () => {
  const worker = await specified('process.exit(7);');
  assert.ok(await worker.isClosed());
  assert.strictEqual(await worker.ended, 7);
});

test('an ES module in a .js file without a type is loaded where this Node can', async (t) => {
  const [major] = process.versions.node.split('.').map(Number);
  if (NODE !== process.execPath || major < 22) {
    t.skip('Node 22 or later can');
    return;
  }
  const worker = await serving({ 'index.js': ES_MODULE });
  assert.strictEqual(await worker.result(null), 'index.js');
});

test('TypeScript is loaded where this Node strips types', async (t) => {
  if (NODE !== process.execPath || !(/** @type {any} */ (process.features).typescript)) {
    t.skip('this Node does not');
    return;
  }
  const worker = await serving({ 'index.ts': 'export const handler = async (n: number): Promise<number> => n + 1;' });
  assert.strictEqual(await worker.result(1), 2);
});
