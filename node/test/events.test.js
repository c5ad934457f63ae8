'use strict';

const assert = require('node:assert');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { ARN, REQUEST_ID, cleanUp, invokeMeta, serving, value } = require('./harness.js');

afterEach(cleanUp);

/** Runs the event's text as the body of an async function. */
const RUN = `
  const AsyncFunction = (async () => {}).constructor;
  exports.handler = async (event, context) =>
    new AsyncFunction('event', 'context', 'require', event.run)(event, context, require);`;
/** The same as a function that calls back. */
const CALL_BACK = `
  exports.handler = (event, context, callback) =>
    new Function('event', 'context', 'callback', event.run)(event, context, callback);`;

test('results of every kind are JSON, undefined is null', async () => {
  const worker = await serving(RUN);
  for (const [run, expected] of /** @type {Array<[string, unknown]>} */ ([
    ['return event.list', [1, 'ü🔥', null]],
    ['', null],
    ['return undefined', null],
    ['return () => 1', null],
    ['return Symbol("s")', null],
    ['return null', null],
    ['return 0', 0],
    ['return ""', ''],
    ['return NaN', null],
    ['return new Date(0)', '1970-01-01T00:00:00.000Z'],
    ['return { a: undefined, b: 1 }', { b: 1 }],
    ['return "\\ud800"', '\ud800'],
    ['return new Promise((resolve) => setTimeout(resolve, 5, "later"))', 'later'],
    ['return { then(resolve) { resolve("thenable"); } }', 'thenable'],
  ])) {
    assert.deepStrictEqual(await worker.result({ run, list: [1, 'ü🔥', null] }), expected, run);
  }
});

test('the stamps are around the handler', async () => {
  const worker = await serving(RUN);
  const before = Number(process.hrtime.bigint());
  const { meta } = await worker.call({ run: 'await new Promise((r) => setTimeout(r, 20))' });
  assert.ok(before < meta.started_ns && meta.finished_ns < Number(process.hrtime.bigint()));
  assert.ok(meta.finished_ns - meta.started_ns > 15e6);
});

test('results that have no JSON are errors of a clear type', async () => {
  const worker = await serving(RUN);
  for (const [run, message] of /** @type {Array<[string, RegExp]>} */ ([
    ['return 1n', /^Unable to stringify response body: .*BigInt/],
    ['const a = {}; a.a = a; return a', /^Unable to stringify response body: .*circular/],
    ['return { toJSON() { throw new Error("mine"); } }', /^Unable to stringify response body: mine/],
  ])) {
    const error = await worker.error({ run });
    assert.strictEqual(error.errorType, 'Runtime.JSONStringifyError', run);
    assert.match(error.errorMessage, message);
  }
  assert.strictEqual(await worker.result({ run: 'return 1' }), 1);
});

test('a result that is too long is an error, the longest is not', async () => {
  const worker = await serving(RUN);
  const error = await worker.error({ run: 'return "x".repeat(6 * 1024 * 1024 + 99)' });
  assert.strictEqual(error.errorType, 'Function.ResponseSizeTooLarge');
  const { kind, body } = await worker.call({ run: 'return "x".repeat(6 * 1024 * 1024 + 98)' });
  assert.deepStrictEqual([kind, body.length], [wire.RESULT, 6 * 1024 * 1024 + 100]);
});

test('results around the lengths of our buffers come whole', async () => {
  const worker = await serving(RUN);
  for (const length of [5_000, 5_400, 5_500, 16_384, 65_536, 300_000, 3_000_000]) {
    assert.strictEqual(await worker.result({ run: `return "ü".repeat(${length})` }), 'ü'.repeat(length));
  }
});

test('events of every length arrive', async () => {
  const worker = await serving('exports.handler = async (event) => [event.length, event.at(-1)];');
  for (const length of [1, 60_000, 65_000, 65_536, 66_000, 1_000_000, 6_000_000]) {
    assert.deepStrictEqual(await worker.result('x'.repeat(length - 1) + 'é'), [length, 'é']);
  }
});

test('an event that is not JSON is an error of that invocation alone', async () => {
  const worker = await serving(RUN);
  for (const body of ['', '{', 'nonsense', Buffer.from([0x22, 0xff, 0x22])]) {
    worker.send(wire.INVOKE, 9, invokeMeta(), body);
    const error = value(await worker.frame(), wire.ERROR);
    assert.strictEqual(error.errorType, 'Runtime.UnmarshalError');
    assert.match(error.errorMessage, /^Unable to unmarshal input: /);
  }
  assert.strictEqual(await worker.result({ run: 'return 1' }), 1);
});

test('a frame that an event handler cannot answer is an error of that invocation alone', async () => {
  const worker = await serving(RUN);
  for (const kind of [wire.HTTP, wire.READY, wire.CHUNK]) {
    worker.send(kind, 3, invokeMeta(), kind === wire.READY ? '' : '{}');
    const error = value(await worker.frame(), wire.ERROR);
    assert.deepStrictEqual(error.errorType, 'Runtime.BadRequest');
    assert.match(error.errorMessage, new RegExp(`kind ${kind}$`));
  }
  assert.strictEqual(await worker.result({ run: 'return 1' }), 1);
});

test('a context has what a context in Lambda has', async () => {
  const environment = {
    AWS_LAMBDA_FUNCTION_NAME: 'thumbnail',
    AWS_LAMBDA_FUNCTION_VERSION: '7',
    AWS_LAMBDA_FUNCTION_MEMORY_SIZE: '256',
    AWS_LAMBDA_LOG_GROUP_NAME: '/aws/lambda/thumbnail',
    AWS_LAMBDA_LOG_STREAM_NAME: 'stream',
  };
  const code = `exports.handler = async (event, context) => {
    const { getRemainingTimeInMillis } = context;
    const functions = Object.keys(context).filter((key) => typeof context[key] === 'function').sort();
    return { ...context, functions, left: getRemainingTimeInMillis(), keys: Object.keys(context).length };
  };`;
  const worker = await serving(code, { environment });
  const trace = 'Root=1-5';
  const meta = { client_context: '{"custom": {"a": 1}}', deadline_ms: Date.now() + 30_000, version: '8', trace };
  const { left, ...context } = await worker.result(null, meta);
  assert.ok(left > 10_000 && left <= 30_000, left);
  assert.deepStrictEqual(context, {
    callbackWaitsForEmptyEventLoop: true,
    functionName: 'thumbnail',
    functionVersion: '8',
    memoryLimitInMB: '256',
    logGroupName: '/aws/lambda/thumbnail',
    logStreamName: 'stream',
    clientContext: { custom: { a: 1 } },
    invokedFunctionArn: ARN,
    awsRequestId: REQUEST_ID,
    xRayTraceId: 'Root=1-5',
    functions: ['done', 'fail', 'getRemainingTimeInMillis', 'succeed'],
    keys: 16,
  });
});

test('a context does without what is absent', async () => {
  const code =
    'exports.handler = async (event, c) => [c.functionName, c.functionVersion, c.memoryLimitInMB, ' +
    'c.clientContext === undefined, c.identity === undefined, c.getRemainingTimeInMillis() < 0, c.invokedFunctionArn];';
  const worker = await serving(code);
  const expected = ['test', '1', '256', true, true, true, ARN];
  assert.deepStrictEqual(await worker.result(null, { deadline_ms: 0, arn: undefined, version: undefined }), expected);
  assert.deepStrictEqual(await worker.result(null, { deadline_ms: 0, client_context: 'nonsense' }), expected);
});

test('the trace is in the environment of the invocation that has one', async () => {
  const worker = await serving('exports.handler = async () => process.env._X_AMZN_TRACE_ID ?? null;');
  assert.strictEqual(await worker.result(null, { trace: 'Root=1-5' }), 'Root=1-5');
  assert.strictEqual(await worker.result(null), null);
});

test('a recorded trace is told in the form of W3C, too', async () => {
  const names = "['TRACEPARENT', 'TRACESTATE']";
  const code = `exports.handler = async (event, c) =>
    [c.traceparent, c.tracestate, ...${names}.map((name) => process.env[name])].map((text) => text ?? null);`;
  const worker = await serving(code);
  const trace = 'Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1';
  const parent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  const none = [null, null, null, null];
  assert.deepStrictEqual(await worker.result(null, { trace, trace_state: 'a=1' }), [parent, 'a=1', parent, 'a=1']);
  assert.deepStrictEqual(await worker.result(null, { trace }), [parent, null, parent, null]);
  assert.deepStrictEqual(await worker.result(null, { trace: trace.replace('Sampled=1', 'Sampled=0') }), none);
  assert.deepStrictEqual(await worker.result(null, { trace: 'Root=1-2-3;Parent=4;Sampled=1' }), none);
  assert.deepStrictEqual(await worker.result(null), none);
});

test('a handler may answer by what it returns', async () => {
  const worker = await serving('exports.handler = (event) => event;');
  assert.deepStrictEqual(await worker.result({ a: 1 }), { a: 1 });
  assert.strictEqual(await worker.result(0), 0);
});

test('a handler may answer by its callback, or by none', async () => {
  const worker = await serving(CALL_BACK);
  for (const [run, expected] of /** @type {Array<[string, unknown]>} */ ([
    ['callback(null, 1)', 1],
    ['callback(undefined, { a: 2 })', { a: 2 }],
    ['callback()', null],
    ['setTimeout(callback, 5, null, "later")', 'later'],
    ['callback(null, "first"); callback(null, "second"); context.succeed("third")', 'first'],
    ['callback(null, "first"); return Promise.resolve("second")', 'first'],
    ['return Promise.resolve("promise")', 'promise'],
    ['setTimeout(callback, 5, null, "called back"); return { what: "the last call gave" }', 'called back'],
    ['context.succeed(3)', 3],
    ['context.done(null, 4)', 4],
    ['setImmediate(() => context.succeed(5))', 5],
    ['', null],
    ['setTimeout(() => {}, 5)', null],
  ])) {
    assert.deepStrictEqual(await worker.result({ run }), expected, run);
  }
});

test('errors by callback and context are errors', async () => {
  const worker = await serving(CALL_BACK);
  for (const [run, type, message] of [
    ['callback(new RangeError("far"))', 'RangeError', 'far'],
    ['callback("text")', 'string', 'text'],
    ['context.fail(new TypeError("t"))', 'TypeError', 't'],
    ['context.done("text")', 'string', 'text'],
    ['throw new SyntaxError("now")', 'SyntaxError', 'now'],
    ['callback(new Error("first")); callback(null, 1)', 'Error', 'first'],
  ]) {
    const error = await worker.error({ run });
    assert.deepStrictEqual([error.errorType, error.errorMessage], [type, message], run);
  }
});

test('a callback waits for the loop to empty, unless it is told not to', async () => {
  const worker = await serving(CALL_BACK);
  await worker.result({ run: 'setTimeout(() => { globalThis.done = true; }, 30); callback(null, 1);' });
  assert.strictEqual(
    await worker.result({ run: 'callback(null, globalThis.done === true); globalThis.done = false;' }),
    true,
  );
  // Longer than the test waits for an answer.
  const never = 'setTimeout(() => { globalThis.done = true; }, 600_000);';
  await worker.result({ run: `context.callbackWaitsForEmptyEventLoop = false; ${never} callback(null, 1);` });
  const run = 'context.callbackWaitsForEmptyEventLoop = false; callback(null, globalThis.done);';
  assert.strictEqual(await worker.result({ run }), false);
});

test("a callback whose loop never empties is answered when the function's own error ends it", async () => {
  const worker = await serving(CALL_BACK);
  const run = 'callback(null, 1); setTimeout(() => { throw new Error("after"); }, 10);';
  assert.strictEqual((await worker.error({ run })).errorMessage, 'after');
  assert.strictEqual(await worker.ended, 129);
});

test('a promise that is never settled is an error once nothing is left to wait for', async () => {
  const worker = await serving(RUN);
  const error = await worker.error({ run: 'await new Promise((resolve) => setTimeout(() => {}, 5));' });
  assert.strictEqual(error.errorType, 'Runtime.NodeJsExit');
  assert.match(error.errorMessage, /never settled/);
  assert.strictEqual(await worker.result({ run: 'return 1' }), 1);
});

test('timers and sockets of one invocation go on in the next', async () => {
  const worker = await serving(RUN);
  await worker.result({ run: 'globalThis.ticks = 0; setInterval(() => { globalThis.ticks += 1; }, 1).unref();' });
  const run = `const { ticks } = globalThis;
    while (globalThis.ticks <= ticks) await new Promise((r) => setTimeout(r, 1));
    return true;`;
  assert.strictEqual(await worker.result({ run }), true);
});

test('with concurrency, invocations are under way at the same time', async () => {
  const code = `
    const waiting = [];
    exports.handler = async (event) => {
      if (event === 'go') { for (const resolve of waiting.splice(0)) resolve(); return 'went'; }
      await new Promise((resolve) => waiting.push(resolve));
      return event;
    };`;
  const worker = await serving(code, { concurrency: 4 });
  const streams = [worker.ask('a'), worker.ask('b'), worker.ask('c')];
  const last = worker.ask('go');
  const answers = new Map();
  for (let i = 0; i < 4; i += 1) {
    const frame = await worker.frame();
    answers.set(frame.stream, value(frame, wire.RESULT));
  }
  assert.deepStrictEqual(
    [...streams, last].map((stream) => answers.get(stream)),
    ['a', 'b', 'c', 'went'],
  );
});

test('with concurrency, long answers that have to wait come whole, one after the other', async () => {
  const code = 'exports.handler = async (event) => event.repeat(event === "s" ? 1 : 3_000_000);';
  const worker = await serving(code, { concurrency: 8 });
  worker.channel.pause();
  const streams = new Map([...'asbscs'].map((name) => [worker.ask(name), name]));
  worker.channel.resume();
  for (let answers = 0; answers < 6; answers += 1) {
    const frame = await worker.frame();
    const name = streams.get(frame.stream) ?? '';
    assert.strictEqual(value(frame, wire.RESULT), name.repeat(name === 's' ? 1 : 3_000_000));
    streams.delete(frame.stream);
  }
});

test('with concurrency, a handler without promise and callback is answered at once', async () => {
  const worker = await serving('exports.handler = (event) => { if (event) return event; };', { concurrency: 2 });
  assert.strictEqual(await worker.result('a'), 'a');
  assert.strictEqual(await worker.result(null), null);
});

test('with concurrency, each line of the log says whose it is', async () => {
  // The first one goes on when the second has printed.
  const code = `let goOn;
    exports.handler = async (text) => {
      if (text === 'one') await new Promise((resolve) => { goOn = resolve; });
      console.log(text);
      goOn();
    };`;
  const worker = await serving(code, { concurrency: 2 });
  worker.ask('one', { id: 'id-1' });
  worker.ask('two', { id: 'id-2' });
  await worker.frame();
  await worker.frame();
  assert.match(worker.log(), /\tid-2\tINFO\ttwo\n.*\tid-1\tINFO\tone\n/);
});

test('what a handler stores in its asynchronous context ends with the invocation', async () => {
  const code = `
    const { AsyncLocalStorage } = require('node:async_hooks');
    const storage = new AsyncLocalStorage();
    exports.handler = async (event) => {
      const found = storage.getStore() ?? null;
      storage.enterWith(event);
      return found;
    };`;
  const worker = await serving(code);
  assert.strictEqual(await worker.result('first'), null);
  assert.strictEqual(await worker.result('second'), null);
});

test('ten thousand invocations leave no memory behind', async () => {
  const code = `
    require('v8').setFlagsFromString('--expose-gc');
    const gc = require('vm').runInNewContext('gc');
    exports.handler = async (event) => {
      if (event === 'gc') gc();
      return process.memoryUsage().heapUsed;
    };`;
  const worker = await serving(code);
  const used = async () => {
    await worker.result('gc');
    return worker.result('gc');
  };
  for (let i = 0; i < 1_000; i += 1) {
    await worker.result(null);
  }
  const before = await used();
  for (let i = 0; i < 10_000; i += 1) {
    await worker.result(null);
  }
  const after = await used();
  assert.ok(after - before < 500_000, `${before} ${after}`);
});
