'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { NODE, Worker, cleanUp, invokeMeta, serving, specified } = require('./harness.js');

const HELLO = 'exports.handler = async () => "hello";';
const ENVIRONMENT = 'exports.handler = async () => process.env;';

afterEach(cleanUp);

test('a pre-warmed worker says that it waits, with its version and process', async () => {
  const worker = new Worker();
  const waiting = await worker.waiting();
  assert.strictEqual(waiting.op, 'waiting');
  assert.strictEqual(waiting.pid, worker.process.pid);
  assert.match(waiting.node, /^\d+\.\d+\.\d+$/);
  assert.strictEqual(worker.log(), '');
});

test('its two sockets are Unix sockets, which the tests get from spawn', async () => {
  const worker = new Worker();
  await worker.waiting();
  for (const fd of [3, 4]) {
    assert.match(fs.readlinkSync(`/proc/${worker.process.pid}/fd/${fd}`), /^socket:/);
  }
});

test('a pre-warmed worker ends in order when its control socket closes', async () => {
  const worker = new Worker();
  await worker.waiting();
  worker.control.destroy();
  assert.strictEqual(await worker.ended, 0);
  assert.strictEqual(worker.log(), '');
});

test('a pre-warmed worker ends in order when half a specification came', async () => {
  const worker = new Worker();
  await worker.waiting();
  worker.control.end('{"cwd": "/');
  assert.strictEqual(await worker.ended, 0);
});

test('a worker ends in order when its channel closes', async () => {
  const worker = await serving(HELLO);
  assert.strictEqual(await worker.end(), 0);
  assert.strictEqual(worker.log(), '');
});

test("a function's exit listeners run when the channel closes", async () => {
  const worker = await serving(
    'process.on("exit", (status) => console.log("bye", status)); exports.handler = async () => 1;',
  );
  worker.channel.destroy();
  assert.strictEqual(await worker.ended, 0);
  assert.match(worker.log(), /\tbye 0\n$/);
});

test('READY has the stamps of the start, in order', async () => {
  const before = process.hrtime.bigint();
  const worker = await specified(HELLO);
  const { forked_ns: forked, sandboxed_ns: sandboxed, initialised_ns: initialised } = await worker.ready();
  const now = Number(process.hrtime.bigint());
  assert.ok(Number(before) < forked && forked === sandboxed && sandboxed < initialised && initialised <= now);
});

test('the control socket is closed after the specification', async () => {
  const worker = await serving(HELLO);
  await worker.controlClosed;
  assert.strictEqual(await worker.result(null), 'hello');
});

test('an INVOKE that came before the specification is answered after READY', async () => {
  const worker = new Worker({ 'index.mjs': 'await null; export const handler = async (event) => event;' });
  await worker.waiting();
  const stream = worker.ask('early');
  worker.specify();
  await worker.ready();
  const frame = await worker.frame();
  assert.deepStrictEqual([frame.kind, frame.stream, frame.body.toString()], [wire.RESULT, stream, '"early"']);
  assert.strictEqual(await worker.result('later'), 'later');
});

test('an INVOKE larger than any buffer that came early is answered, too', async () => {
  const worker = new Worker({ 'index.mjs': 'await null; export const handler = async (event) => event.length;' });
  await worker.waiting();
  worker.ask('x'.repeat(3_000_000));
  worker.specify();
  await worker.ready();
  assert.strictEqual((await worker.frame()).body.toString(), '3000000');
});

test('the environment is exactly that of the specification', async () => {
  const environment = { LEVEL: 'info', EMPTY: '', UNICODE: 'ü=x', __proto__x: '1' };
  const worker = await serving(ENVIRONMENT, { environment });
  assert.deepStrictEqual(await worker.result(null), environment);
});

test('the environment is set before the module is loaded, and children have it', async () => {
  const code =
    'const at = process.env.A; const { execSync } = require("child_process"); ' +
    'exports.handler = async () => [at, execSync("echo $A$LEFT_OVER").toString()];';
  const worker = await serving(code, { environment: { A: 'a', PATH: process.env.PATH } });
  assert.deepStrictEqual(await worker.result(null), ['a', 'a\n']);
});

for (const [TZ, hours] of [
  ['Asia/Tokyo', 9],
  [':UTC', 0],
  ['America/Phoenix', -7],
]) {
  test(`TZ=${TZ} takes effect`, async () => {
    const code = 'const loaded = new Date(0).getTimezoneOffset(); exports.handler = async () => loaded / -60 + 0;';
    const worker = await serving(code, { environment: { TZ } });
    assert.strictEqual(await worker.result(null), hours);
  });
}

test('TZ of the pre-warmed process is gone when the specification has none', async () => {
  const code = 'exports.handler = async () => new Date(0).getTimezoneOffset() + 0;';
  const [with_, without] = [
    await serving(code, { environment: {} }, { environment: { TZ: 'Asia/Tokyo' } }),
    await serving(code, { environment: {} }),
  ];
  assert.strictEqual(await with_.result(null), await without.result(null));
});

test('the working directory is that of the specification', async () => {
  const worker = await serving('exports.handler = async () => process.cwd();');
  assert.strictEqual(await worker.result(null), worker.code);
});

test('a function sees none of our arguments, modules or warm-up', async () => {
  const code = `exports.handler = async () => {
    const left = Object.keys(require.cache).filter((file) => file.includes('warmup/'));
    return [process.argv.length, left, require.main === undefined, process.mainModule === undefined];
  };`;
  const worker = await serving(code);
  assert.deepStrictEqual(await worker.result(null), [2, [], true, true]);
});

test('NODE_PATH is honoured', async () => {
  const worker = new Worker({ 'index.js': 'exports.handler = async () => require("dependency");' });
  fs.mkdirSync(path.join(worker.folder, 'packages', 'dependency'), { recursive: true });
  fs.writeFileSync(path.join(worker.folder, 'packages', 'dependency', 'index.js'), 'module.exports = "found";');
  await worker.waiting();
  worker.specify({ environment: { NODE_PATH: path.join(worker.folder, 'packages') } });
  await worker.ready();
  assert.strictEqual(await worker.result(null), 'found');
});

test('node_modules beside the code are found, by ES modules as well', async () => {
  const worker = new Worker({
    'index.mjs': 'import found from "dependency"; export const handler = async () => found;',
  });
  fs.mkdirSync(path.join(worker.folder, 'node_modules', 'dependency'), { recursive: true });
  fs.writeFileSync(path.join(worker.folder, 'node_modules', 'dependency', 'index.js'), 'module.exports = "found";');
  await worker.waiting();
  worker.specify();
  await worker.ready();
  assert.strictEqual(await worker.result(null), 'found');
});

test('the heap grows slowly where there is little memory', async () => {
  // The live objects have 24 MiB. The rest is garbage, which a heap that is sized for the whole machine would not collect.
  const code = `
    const make = (i) => Array.from({ length: 100 }, (_, j) => ({ i, j, s: i * j + 0.5 }));
    exports.handler = async () => {
      const live = [];
      for (let i = 0; i < 4000; i += 1) live.push(make(i));
      let most = 0;
      for (let i = 0; i < 12000; i += 1) {
        live[(i * 7919) % 4000] = make(i);
        if (i % 500 === 0) most = Math.max(most, process.memoryUsage().heapTotal);
      }
      return most;
    };`;
  const most = [];
  for (const memory of [128, 100_000]) {
    const worker = await serving(code, { memory_mb: memory });
    most.push(await worker.result(null));
  }
  assert.ok(most[0] < most[1] * 0.8, `${most}`);
});

test('the compile cache is filled where this Node has one', async (t) => {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (NODE !== process.execPath || major < 22 || (major === 22 && minor < 1)) {
    t.skip('Node 22.1 or later has one');
    return;
  }
  const worker = new Worker({ 'index.js': HELLO });
  const cache = path.join(worker.folder, 'cache');
  await worker.waiting();
  worker.specify({ environment: { NODE_COMPILE_CACHE: cache } });
  await worker.ready();
  assert.strictEqual(await worker.result(null), 'hello');
  assert.strictEqual(await worker.end(), 0);
  assert.ok(fs.readdirSync(cache, { recursive: true }).length > 1);
});

test('of NODE_OPTIONS, what can be had late takes effect', async () => {
  const files = {
    'index.js':
      'exports.handler = async () => [globalThis.required, globalThis.imported, process.sourceMapsEnabled ?? true];',
    'the first.js': 'globalThis.required = true;',
    'second.mjs': 'globalThis.imported = true;',
  };
  const options = '--enable-source-maps --require "./the first.js" --import=./second.mjs';
  const worker = await serving(files, { environment: { NODE_OPTIONS: options } });
  assert.deepStrictEqual(await worker.result(null), [true, true, true]);
  assert.strictEqual(worker.log(), '');
});

test('what it was started with takes effect, and what is late as well', async () => {
  const code = `exports.handler = async () => [
    Error.stackTraceLimit, globalThis.required, process.env.NODE_OPTIONS, process.execArgv];`;
  const atStart = '--stack-trace-limit=3 --no-warnings';
  const all = `--stack-trace-limit=3 -r ./first.js --no-warnings`;
  const worker = await serving(
    { 'index.js': code, 'first.js': 'globalThis.required = true;' },
    { environment: { NODE_OPTIONS: all } },
    { environment: { NODE_OPTIONS: atStart } },
  );
  assert.deepStrictEqual(await worker.result(null), [3, true, all, []]);
  assert.strictEqual(worker.log(), '');
});

/** @type {Array<[string, number, string, boolean]>} */
const YOUNG = [
  ['may grow with the default memory', 256, '', true],
  ['keeps its size with less memory', 255, '', false],
  ['may grow if the limit of old objects is at most the memory', 128, '--max-old-space-size=110', true],
  ['keeps its size if that limit is more than the memory', 128, '--max-old-space-size=180', false],
];
for (const [name, memory_mb, NODE_OPTIONS, grows] of YOUNG) {
  test(`the space of young objects ${name}`, async () => {
    const code = `exports.handler = async () => {
      for (let i = 0; i < 40; i++) new Array(20000).fill(i).map((x) => ({ x }));
      const spaces = require('v8').getHeapSpaceStatistics();
      return spaces.find((space) => space.space_name === 'new_space').space_size / 1024 / 1024;
    };`;
    const environment = { NODE_OPTIONS };
    const worker = await serving(code, { memory_mb, environment }, { environment });
    const sizeMb = await worker.result(null);
    assert.ok(grows ? sizeMb > 8 : sizeMb <= 2, `${sizeMb} MiB`);
  });
}

/** @type {Array<[string, string, string, string | undefined]>} */
const PRELOADS = [
  ['an absolute path', '-r ./first.js', 'process.env._HANDLER = __dirname + "/wrapped.handler";', 'index.handler'],
  ['a relative path', '--require ./first.js', 'process.env._HANDLER = "wrapped.handler";', 'index.handler'],
  ['--import', '--import ./first.js', 'process.env._HANDLER = "wrapped.handler";', 'index.handler'],
  ['a variable that was not set', '-r ./first.js', 'process.env._HANDLER = "wrapped.handler";', undefined],
];
for (const [name, options, first, before] of PRELOADS) {
  test(`a module of NODE_OPTIONS may choose another handler: ${name}`, async () => {
    const files = { 'index.js': HELLO, 'wrapped.js': 'exports.handler = async () => "wrapped";', 'first.js': first };
    const environment = { NODE_OPTIONS: options, ...(before === undefined ? {} : { _HANDLER: before }) };
    const worker = await serving(files, { environment });
    assert.strictEqual(await worker.result(null), 'wrapped');
  });
}

for (const [name, environment, first] of [
  ['_HANDLER is not changed', { _HANDLER: 'other.handler' }, ''],
  ['_HANDLER is deleted', { _HANDLER: 'index.handler' }, 'delete process.env._HANDLER;'],
]) {
  test(`the handler is that of the specification: ${name}`, async () => {
    const files = { 'index.js': HELLO, 'first.js': String(first) };
    const worker = await serving(files, {
      environment: { NODE_OPTIONS: '-r ./first.js', .../** @type {object} */ (environment) },
    });
    assert.strictEqual(await worker.result(null), 'hello');
  });
}

test('a handler that a module of NODE_OPTIONS chooses and that is not there is an INIT_ERROR', async () => {
  const files = { 'index.js': HELLO, 'first.js': 'process.env._HANDLER = "gone.handler";' };
  const worker = await specified(files, { environment: { NODE_OPTIONS: '-r ./first.js' } });
  assert.match((await worker.initError()).errorMessage, /Cannot find module 'gone'/);
});

for (const [name, line, problem] of [
  ['text that is not JSON', 'nonsense', /it is not JSON/],
  ['a list', '[]', /the specification is not an object/],
  ['no handler', { handler: undefined }, /handler is missing/],
  ['a handler that is a number', { handler: 1 }, /handler is not a string/],
  ['a concurrency of 0', { concurrency: 0 }, /concurrency is less than 1/],
  ['a concurrency of one and a half', { concurrency: 1.5 }, /concurrency is not a whole number/],
  ['a variable that is a number', { environment: { A: 1 } }, /environment variable "A" cannot be set/],
  ['a variable with =', { environment: { 'A=B': '1' } }, /environment variable "A=B" cannot be set/],
  ['no environment', { environment: null }, /environment is not an object/],
  ['a log descriptor', { log_fd: 5 }, /log_fd is not null/],
]) {
  test(`a specification that cannot be meant is an INIT_ERROR: ${name}`, async () => {
    const worker = new Worker({ 'index.js': HELLO });
    await worker.waiting();
    const text = typeof line === 'string' ? line : JSON.stringify(worker.specification(/** @type {any} */ (line)));
    worker.control.write(`${text}\n`);
    const error = await worker.initError();
    assert.strictEqual(error.errorType, 'Runtime.SandboxError');
    assert.match(error.errorMessage, /** @type {RegExp} */ (problem));
    assert.ok(await worker.isClosed());
    assert.strictEqual(await worker.ended, 1);
  });
}

test('a working directory that is not there is an INIT_ERROR', async () => {
  const worker = await specified(HELLO, { cwd: '/nowhere/at/all' });
  const error = await worker.initError();
  assert.match(error.errorMessage, /ENOENT.*\/nowhere\/at\/all/);
});

test('any other role is a usage error', async () => {
  for (const args of [[], ['template'], ['prewarmed', 'more']]) {
    const worker = new Worker({}, { args });
    assert.strictEqual(await worker.ended, 2);
    assert.match(worker.log(), /^usage: /);
  }
});

for (const [name, frame, word] of [
  ['an unknown kind', '00000000000000000100000006000000', 'unknown_kind'],
  ['a meta that is too long', '01000400000000000100000001000000', 'meta_too_long'],
  ['a body that is too long', '00000000010000040100000001000000', 'body_too_long'],
  ['reserved bits', '00000000000000000100000001000100', 'reserved_not_zero'],
  ['everything wrong', 'ffffffffffffffffffffffffffffffff', 'unknown_kind'],
]) {
  test(`a broken frame ends the worker with status 1: ${name}`, async () => {
    const worker = await serving(HELLO);
    worker.channel.write(Buffer.from(frame, 'hex'));
    assert.ok(await worker.isClosed());
    assert.strictEqual(await worker.ended, 1);
    assert.match(worker.log(), new RegExp(`invalid frame: ${word}`));
  });
}

test('half a frame and then the end is a broken frame', async () => {
  const worker = await serving(HELLO);
  const frame = wire.encode(wire.INVOKE, 1, Buffer.from(JSON.stringify(invokeMeta())), Buffer.from('{}'));
  worker.channel.end(frame.subarray(0, 40));
  assert.strictEqual(await worker.ended, 1);
  assert.match(worker.log(), /invalid frame: truncated/);
});

test('a meta that is not JSON ends the worker with an error', async () => {
  const worker = await serving(HELLO);
  worker.channel.write(wire.encode(wire.INVOKE, 1, Buffer.from('nonsense'), Buffer.from('{}')));
  assert.ok(await worker.isClosed());
  assert.strictEqual(await worker.ended, 1);
});
