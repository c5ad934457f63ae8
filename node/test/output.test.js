'use strict';

const assert = require('node:assert');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { REQUEST_ID, cleanUp, serving, value } = require('./harness.js');

afterEach(cleanUp);

const RUN = `
  const AsyncFunction = (async () => {}).constructor;
  exports.handler = async (event) => new AsyncFunction('event', 'require', event.run)(event, require);`;
const TIME = '\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{3}Z';

test("the console writes Lambda's lines, and they are written before the answer", async () => {
  const worker = await serving(RUN);
  await worker.result({
    run: `console.log("a %s", "b", { c: 1 }); console.info("i"); console.warn("w"); console.error("e");
      console.debug("d"); console.trace("t"); console.log();`,
  });
  const expected = [
    ['INFO', 'a b { c: 1 }'],
    ['INFO', 'i'],
    ['WARN', 'w'],
    ['ERROR', 'e'],
    ['DEBUG', 'd'],
    ['TRACE', 't'],
    ['INFO', 'undefined'],
  ];
  const pattern = expected.map(([level, text]) => `${TIME}\t${REQUEST_ID}\t${level}\t${text}\n`).join('');
  assert.match(worker.log(), new RegExp(`^${pattern}$`));
});

test('what is printed while the module is loaded is of no request', async () => {
  const worker = await serving('console.log("loading"); exports.handler = async () => 1;');
  assert.match(worker.log(), new RegExp(`^${TIME}\t-\tINFO\tloading\n$`));
});

test('standard output and error are written as they are, in order with the console', async () => {
  const worker = await serving(RUN);
  await worker.result({
    run: `process.stdout.write("one\\n"); console.log("two"); process.stderr.write("three");
      await new Promise((r) => process.stdout.write(Buffer.from("four\\n"), r));`,
  });
  assert.match(worker.log(), /^one\n.*\ttwo\nthreefour\n$/);
});

test('console.table and console.dir are written, too', async () => {
  const worker = await serving(RUN);
  await worker.result({
    run: 'console.table([{ a: 1 }]); console.dir({ b: 2 }); console.group("g"); console.groupEnd();',
  });
  assert.match(worker.log(), /│[^]*\{ b: 2 \}[^]*\tg\n$/);
});

test('more than a pipe holds is all written before the answer, even where the descriptor does not block', async () => {
  for (const first of ['', 'new (require("net").Socket)({ fd: 1 }).unref();']) {
    const worker = await serving(RUN, {}, { stdout: 'pipe' });
    let length = 0;
    worker.process.stdout?.on('data', (chunk) => {
      length += chunk.length;
    });
    const printed = 4_000_000;
    const answer = worker.result({ run: `${first} process.stdout.write("x".repeat(${printed})); return 1;` });
    assert.strictEqual(await answer, 1);
    // Only the bytes in the kernel's buffer may still be unread.
    assert.ok(length > printed - 1_000_000, `${length} ${first}`);
  }
});

test('a log that nobody reads any more is no error', async () => {
  const worker = await serving(RUN, {}, { stdout: 'pipe' });
  worker.process.stdout?.destroy();
  assert.strictEqual(
    await worker.result({ run: 'for (let i = 0; i < 100; i += 1) console.log("into the void"); return 1;' }),
    1,
  );
});

/** @param {Record<string, string>} environment */
const inJson = (environment = {}) => serving(RUN, { environment: { AWS_LAMBDA_LOG_FORMAT: 'JSON', ...environment } });

/** @param {{log: () => string}} worker */
function lines(worker) {
  const texts = worker.log().split('\n');
  assert.strictEqual(texts.pop(), '');
  return texts.map((text) => {
    const { timestamp, ...line } = JSON.parse(text);
    assert.match(timestamp, new RegExp(`^${TIME}$`));
    return line;
  });
}

test("with AWS_LAMBDA_LOG_FORMAT=JSON the console writes Lambda's objects, from INFO on", async () => {
  const worker = await inJson();
  await worker.result({
    run: `console.log("a %s", "b", 3); console.info({ c: [1] }); console.warn("one\\ntwo"); console.error(5n);
      console.debug("d"); console.trace("t"); console.fatal("f"); console.log(); console.log(null);`,
  });
  const expected = [
    ['INFO', 'a b 3'],
    ['INFO', { c: [1] }],
    ['WARN', 'one\ntwo'],
    ['ERROR', '5n'],
    ['FATAL', 'f'],
    ['INFO'],
    ['INFO', null],
  ];
  assert.deepStrictEqual(
    lines(worker),
    expected.map(([level, ...message]) => ({ level, requestId: REQUEST_ID, ...(message.length > 0 ? { message: message[0] } : {}) })),
  );
});

for (const [level, written] of /** @type {Array<[string, string]>} */ ([
  ['TRACE', 'tdiwef'],
  ['debug', 'diwef'],
  ['WARN', 'wef'],
  ['ERROR', 'ef'],
  ['FATAL', 'f'],
  ['LOUD', 'iwef'],
])) {
  test(`AWS_LAMBDA_LOG_LEVEL=${level} leaves out what is less`, async () => {
    const worker = await inJson({ AWS_LAMBDA_LOG_LEVEL: level });
    const run = `for (const how of ["trace", "debug", "info", "warn", "error", "fatal"]) console[how](how[0]);
      process.stdout.write(JSON.stringify({ timestamp: new Date(), message: "-" }) + "\\n");`;
    await worker.result({ run });
    const messages = lines(worker).map(({ message }) => message);
    assert.strictEqual(messages.join(''), `${written}-`);
  });
}

test('AWS_LAMBDA_LOG_LEVEL has the same effect on text', async () => {
  const worker = await serving(RUN, { environment: { AWS_LAMBDA_LOG_LEVEL: 'ERROR' } });
  await worker.result({ run: 'console.error("e"); console.warn("w"); console.log("l");' });
  assert.match(worker.log(), /^[^\n]*\tERROR\te\n$/);
});

test("in JSON an error is an object, alone and within; beside other values its fields are the line's", async () => {
  const worker = await inJson();
  await worker.result({
    run: `const e = new RangeError("far"); e.code = "E_FAR"; e.self = e;
      console.error(e); console.log({ e }); console.log("it was", new TypeError("type"), new Error("second"));`,
  });
  const [alone, within, beside] = lines(worker);
  const { stackTrace, self, ...rest } = alone.message;
  assert.deepStrictEqual(rest, { errorType: 'RangeError', errorMessage: 'far', code: 'E_FAR' });
  assert.match(stackTrace.join('\n'), /^RangeError: far\n    at /);
  assert.strictEqual(self.errorMessage, 'far');
  assert.deepStrictEqual(within.message.e.stackTrace, stackTrace);
  assert.match(beside.message, /^it was TypeError: type\n/);
  assert.deepStrictEqual([beside.errorType, beside.errorMessage], ['TypeError', 'type']);
  assert.strictEqual(beside.stackTrace[0], 'TypeError: type');
});

test('in JSON what ends an invocation or the worker is an object; before a request it is of none', async () => {
  const worker = await inJson();
  await worker.error({ run: 'throw new RangeError("far")' });
  await worker.error({ run: 'throw "text"' });
  await worker.error({ run: 'Promise.reject(new RangeError("lost")); await new Promise(() => {})' });
  const told = lines(worker).map(({ level, message }) => [level, message.errorType, message.errorMessage]);
  assert.deepStrictEqual(told, [
    ['ERROR', 'RangeError', 'far'],
    ['ERROR', 'Error', 'text'],
    ['ERROR', 'Runtime.UnhandledPromiseRejection', 'RangeError: lost'],
  ]);
  const early = await serving('console.log("loading"); exports.handler = async () => 1;', {
    environment: { AWS_LAMBDA_LOG_FORMAT: 'json' },
  });
  assert.deepStrictEqual(lines(early), [{ level: 'INFO', message: 'loading' }]);
});

test('an error has what Lambda says of it and what the protocol asks for', async () => {
  const code =
    'exports.handler = async () => {\n  const error = new RangeError("too far");\n  error.code = "E_FAR";\n' +
    '  error.cause = new TypeError("root");\n  throw error;\n};';
  const worker = await serving(code);
  const error = await worker.error(null);
  const place = `at exports.handler (${worker.code}/index.js:2:17)`;
  assert.deepStrictEqual(error, {
    errorType: 'RangeError',
    errorMessage: 'too far',
    requestId: REQUEST_ID,
    trace: ['RangeError: too far', `    ${place}`],
    stackTrace: [place],
  });
  const [, json] = worker.log().split('\tERROR\tInvoke Error \t');
  const logged = JSON.parse(json);
  assert.deepStrictEqual([logged.errorType, logged.errorMessage, logged.code], ['RangeError', 'too far', 'E_FAR']);
  assert.deepStrictEqual(logged.stack, error.trace);
  assert.strictEqual(logged.cause[0][0], 'TypeError: root');
});

/** @type {Array<[string, string, string]>} */
const THROWN = [
  ['throw "text"', 'string', 'text'],
  ['throw 5', 'number', '5'],
  ['throw undefined', 'undefined', 'undefined'],
  ['throw null', 'object', 'null'],
  ['throw { a: 1 }', 'object', '[object Object]'],
  ['class MyError extends Error { name = "MyError" } throw new MyError("m")', 'MyError', 'm'],
  ['throw new Error("")', 'Error', ''],
  ['const e = new Error("x"); e.stack = undefined; throw e', 'Error', 'x'],
  ['throw Object.create(null)', 'handled', 'callback called with Error argument, but there was a problem'],
  ['throw require("vm").runInNewContext("new TypeError(\'realm\')")', 'TypeError', 'realm'],
  ['const e = new Error("big"); e.self = e; e.n = 1n; throw e', 'Error', 'big'],
  ['JSON.parse("{")', 'SyntaxError', ''],
];
test('whatever is thrown is an error', async () => {
  const worker = await serving(RUN);
  for (const [run, type, message] of THROWN) {
    const error = await worker.error({ run });
    assert.strictEqual(error.errorType, type, run);
    assert.ok(error.errorMessage.startsWith(message), run);
    assert.ok(Array.isArray(error.trace) && Array.isArray(error.stackTrace));
  }
  const { errorMessage } = await worker.error({ run: 'throw new Error("x".repeat(1_000_000))' });
  assert.strictEqual(errorMessage.length, 200_000);
});

/** @type {Array<[string, string, string, number]>} */
const FATAL = [
  [
    'Promise.reject(new RangeError("lost")); await new Promise(() => {})',
    'Runtime.UnhandledPromiseRejection',
    'RangeError: lost',
    128,
  ],
  ['Promise.reject("text"); await new Promise(() => {})', 'Runtime.UnhandledPromiseRejection', 'text', 128],
  ['setTimeout(() => { throw new RangeError("lost"); }, 1); await new Promise(() => {})', 'RangeError', 'lost', 129],
];
for (const [run, type, message, status] of FATAL) {
  test(`an error that nobody catches is the answer and the end of the worker: ${run}`, async () => {
    const worker = await serving(RUN);
    const error = await worker.error({ run });
    assert.deepStrictEqual([error.errorType, error.errorMessage], [type, message]);
    assert.ok(await worker.isClosed());
    assert.strictEqual(await worker.ended, status);
    assert.match(worker.log(), /\tERROR\t(?:Uncaught Exception|Unhandled Promise Rejection) \t\{/);
  });
}

test('an error that nobody catches ends all streams of the worker', async () => {
  const code = `exports.handler = (event) => new Promise(() => {
    if (event) setTimeout(() => { throw new RangeError("lost"); }, 5);
  });`;
  const worker = await serving(code, { concurrency: 3 });
  const streams = [worker.ask(false), worker.ask(false), worker.ask(true)];
  for (const stream of streams) {
    const frame = await worker.frame();
    assert.strictEqual(frame.stream, stream);
    assert.strictEqual(value(frame, wire.ERROR).errorMessage, 'lost');
  }
  assert.strictEqual(await worker.ended, 129);
});

for (const listen of [
  'process.on("unhandledRejection", (reason) => { global.seen = reason.message; });',
  'process.on("uncaughtException", (error, origin) => { global.seen = error.message + " " + origin; });',
]) {
  test(`an error for which the function has a listener of its own ends nothing: ${listen}`, async () => {
    const worker = await serving(`${listen} exports.handler = async (run) => {
      await eval(run);
      await new Promise((resolve) => setTimeout(resolve, 20));
      return global.seen;
    };`);
    const isRejection = listen.includes('unhandledRejection"');
    assert.strictEqual(await worker.result('Promise.reject(new Error("lost")); 0'), isRejection ? 'lost' : 'lost unhandledRejection');
    if (!isRejection) {
      assert.strictEqual(await worker.result('setImmediate(() => { throw new Error("gone"); })'), 'gone uncaughtException');
    }
    assert.strictEqual(await worker.end(), 0);
  });
}

test('a function may replace what Node writes with', async () => {
  const worker = await serving(`const fs = require('fs');
    for (const name of ['writeSync', 'writevSync', 'readSync']) fs[name] = () => { throw new Error(name); };
    exports.handler = async (event) => { console.log('printed'); return event; };`);
  assert.strictEqual(await worker.result('x'.repeat(100_000)), 'x'.repeat(100_000));
  assert.strictEqual(await worker.result(1), 1);
  assert.match(worker.log(), /printed/);
});

test('an error between invocations ends the worker without a word on the channel', async () => {
  const worker = await serving(RUN);
  await worker.result({ run: 'setTimeout(() => { throw new RangeError("late"); }, 20);' });
  assert.ok(await worker.isClosed());
  assert.strictEqual(await worker.ended, 129);
  assert.match(worker.log(), /Uncaught Exception \t\{"errorType":"RangeError"/);
});

for (const [run, status] of /** @type {Array<[string, number | string]>} */ ([
  ['process.exit(3)', 3],
  ['process.exit()', 0],
  ['process.kill(process.pid, "SIGKILL"); await new Promise((r) => setTimeout(r, 10_000))', 'SIGKILL'],
])) {
  test(`a handler that ends the process gives no answer: ${run}`, async () => {
    const worker = await serving(RUN);
    worker.ask({ run: `console.log("last words"); ${run}` });
    assert.ok(await worker.isClosed());
    assert.strictEqual(await worker.ended, status);
    assert.match(worker.log(), /last words/);
  });
}
