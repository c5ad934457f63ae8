// What a handler sees of Lambda, side by side with aws-lambda-ric (`ric_client.js`): its context, the global `awslambda`, and what
// becomes of its output. Each body runs in both.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const { afterEach, test } = require('node:test');

const { ARN, REQUEST_ID, cleanUp, serving } = require('./harness.js');
const { runLambda, skip } = require('./ric_client.js');

afterEach(cleanUp);

const FILES = {
  'index.js': `
    const AsyncFunction = (async () => {}).constructor;
    exports.handler = async (event, context) =>
      new AsyncFunction('event', 'context', 'require', event.run)(event, context, require);`,
};
const TRACE = 'Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1';
const DEADLINE_MS = Date.now() + 60_000;
const HEADERS = {
  'lambda-runtime-invoked-function-arn': ARN,
  'lambda-runtime-aws-request-id': REQUEST_ID,
  'lambda-runtime-deadline-ms': String(DEADLINE_MS),
  'lambda-runtime-client-context': '{"custom":{"a":1}}',
  'lambda-runtime-trace-id': TRACE,
};
const META = { trace: TRACE, client_context: '{"custom":{"a":1}}', deadline_ms: DEADLINE_MS };
const VARIABLES = {
  AWS_LAMBDA_FUNCTION_NAME: 'f',
  AWS_LAMBDA_FUNCTION_VERSION: '1',
  AWS_LAMBDA_FUNCTION_MEMORY_SIZE: '128',
  AWS_LAMBDA_LOG_GROUP_NAME: 'g',
  AWS_LAMBDA_LOG_STREAM_NAME: 's',
};

/** Of the context of a handler with a callback, which aws-lambda-ric 4 no longer calls. */
const OF_CALLBACKS = "['callbackWaitsForEmptyEventLoop', 'done', 'fail', 'succeed']";

/** Bodies whose results are the same. */
const SAME = [
  `return Object.keys(context).filter((key) => !${OF_CALLBACKS}.includes(key)).sort()`,
  'return Object.entries(context).map(([key, value]) => [key, typeof value]).filter(([, type]) => type !== "function" && type !== "boolean").sort()',
  `for (const name of ${OF_CALLBACKS}) delete context[name]; return context`,
  'return context.constructor === Object && context instanceof Object',
  'return require("util").inspect(context).slice(0, 1)',
  'return [context.xRayTraceId, process.env._X_AMZN_TRACE_ID, context.tenantId === undefined, "tenantId" in context]',
  'const { getRemainingTimeInMillis: left } = context; return Math.abs(left() - (context.deadline ?? 60_000)) < 60_000',
  'context.own = 1; return { ...context }.own',
  'return Object.keys(awslambda).sort()',
  'const s = awslambda.InvokeStore; return [s.getRequestId(), s.getXRayTraceId(), s.getTenantId() === undefined, s.hasContext()]',
  'const s = awslambda.InvokeStore; s.set("mine", 7); await new Promise((r) => setTimeout(r, 1)); return [s.get("mine"), s.getContext().mine]',
  'return [Symbol.for("_AWS_LAMBDA_REQUEST_ID"), Symbol.for("_AWS_LAMBDA_X_RAY_TRACE_ID")].map((key) => awslambda.InvokeStore.get(key))',
  'return awslambda.InvokeStore.get("nothing") === undefined',
  'try { awslambda.InvokeStore.set(Symbol.for("_AWS_LAMBDA_REQUEST_ID"), 1); } catch (error) { return error.message; }',
  'const { PROTECTED_KEYS } = awslambda.InvokeStore.constructor; return Object.values(PROTECTED_KEYS).map(String)',
  'return awslambda.InvokeStore.run({ a: 1 }, () => awslambda.InvokeStore.get("a"))',
];

test('the context and the global are those of aws-lambda-ric', { skip }, async () => {
  const worker = await serving(FILES, { environment: { PATH: process.env.PATH, ...VARIABLES } });
  const events = SAME.map((run) => ({ run }));
  const { status, stderr, posted } = runLambda(worker.code, events, 'index.handler', { headers: HEADERS });
  assert.strictEqual(status, 0, stderr);
  const theirs = JSON.parse(fs.readFileSync(posted, 'utf8'));
  for (const [at, run] of SAME.entries()) {
    const ours = await worker.result({ run }, META);
    assert.strictEqual(theirs[at].kind, 'result', theirs[at].body);
    assert.deepStrictEqual(ours, JSON.parse(theirs[at].body), run);
  }
});

test('a function may do without the global', { skip }, async () => {
  const environment = { AWS_LAMBDA_NODEJS_NO_GLOBAL_AWSLAMBDA: '1' };
  const worker = await serving(FILES, { environment: { PATH: process.env.PATH ?? '', ...environment } });
  const run = 'return typeof globalThis.awslambda';
  const { posted } = runLambda(worker.code, [{ run }], 'index.handler', { environment });
  const [theirs] = JSON.parse(fs.readFileSync(posted, 'utf8'));
  assert.deepStrictEqual([await worker.result({ run }), JSON.parse(theirs.body)], ['undefined', 'undefined']);
});

test('with concurrency, each invocation finds its own context', async () => {
  const code = `exports.handler = async (event, context) => {
    const store = awslambda.InvokeStore;
    store.set('name', event);
    await new Promise((resolve) => setTimeout(resolve, 20));
    return [store.get('name'), store.getRequestId() === context.awsRequestId, store.getXRayTraceId()];
  };
  try { awslambda.InvokeStore.set('a', 1); } catch (error) { console.log(error.message); }`;
  const worker = await serving(code, { concurrency: 3 });
  const names = ['a', 'b', 'c'];
  for (const name of names) {
    worker.ask(name, { id: name, trace: `Root=${name}` });
  }
  const answers = [];
  for (const _ of names) {
    answers.push(JSON.parse((await worker.frame()).body.toString()));
  }
  assert.deepStrictEqual(
    answers.sort(),
    names.map((name) => [name, true, `Root=${name}`]),
  );
  assert.match(worker.log(), /No context available/);
});

/** Bodies whose lines are the same. */
const LINES = [
  'console.log("a %s %d", "b", 1, { c: 1 })',
  'console.log()',
  'console.log(undefined)',
  'console.log(null); console.log(""); console.log(0); console.log(5n); console.log(Symbol("s"))',
  'console.log({ a: { b: { c: { d: 1 } } } }, [1, [2, [3, [4, [5]]]]])',
  'console.log("%o %O %j %c %%", { a: 1 }, { b: 2 }, { c: 3 }, "css")',
  'console.trace("t"); console.debug("d"); console.info("i"); console.warn("w"); console.error("e"); console.fatal("f")',
  'console.log("two\\nlines")',
  'console.log(new Map([[1, { a: 2 }]]), new Set([1]), new Date(0), /r/g, () => 1, class A {})',
  'console.log({ toJSON() { return { made: 1 }; } })',
  'const a = {}; a.a = a; console.log(a)',
  'console.log([1, undefined, () => 1])',
  'console.error(Object.assign(new RangeError("far"), { code: "E", more: { a: 1 } }))',
  'class Own extends Error {}; console.error(new Own("own"))',
  'console.error(Object.assign(new Error("x"), { name: "Renamed" }))',
  'class Own extends Error {}; console.error("it was", new Own("own"), new TypeError("second"))',
  'console.log({ in: new TypeError("type") })',
  'console.log("a", new AggregateError([new Error("b")], "several"))',
  'throw new RangeError("thrown")',
  'class Own extends Error { constructor() { super("own"); this.name = "Mine"; this.code = 7; } }; throw new Own()',
  'throw "text"',
  'throw 5',
  'throw undefined',
  'throw Object.assign(new Error("big"), { n: 1n })',
];
const TIME = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g;
const OF_A_RUNTIME = /"? +at [^"\n]*(?:\/client\/index\.mjs|node:internal|node:async_hooks|node:diagnostics|\/node\/(?:lib|worker)|lambda_ric\.js)[^"\n]*(?:",?)?\n?/g;

/**
 * Without what is different in each run, and without the frames of the runtimes.
 * @param {string} log
 */
function comparable(log) {
  return log.replaceAll('\r', '\n').replaceAll(TIME, 'TIME').replaceAll(OF_A_RUNTIME, '').replaceAll(',]', ']').trim();
}

for (const format of ['Text', 'JSON']) {
  for (const level of ['', 'ERROR', 'TRACE']) {
    test(`the lines of the console are those of aws-lambda-ric: ${format} ${level}`, { skip }, async () => {
      // Lambda sets the level, if the format is JSON.
      const environment = { AWS_LAMBDA_LOG_FORMAT: format, ...(level || format === 'JSON' ? { AWS_LAMBDA_LOG_LEVEL: level || 'INFO' } : {}) };
      const worker = await serving(FILES, { environment: { PATH: process.env.PATH ?? '', ...environment } });
      const events = LINES.map((run, at) => ({ run: `process.stdout.write("\\n## ${at}\\n"); ${run}` }));
      for (const event of events) {
        await worker.call(event);
      }
      const { stdout, stderr } = runLambda(worker.code, events, 'index.handler', { headers: HEADERS, environment });
      assert.strictEqual(stderr, '');
      const [theirs, ours] = [stdout, worker.log()].map((log) => log.split(/^## \d+$/m).map(comparable));
      assert.strictEqual(theirs.length, LINES.length + 1);
      const different = LINES.map((run, at) => ({ run, theirs: theirs[at + 1], ours: ours[at + 1] })).filter(
        (row) => row.theirs !== row.ours,
      );
      assert.deepStrictEqual(different, []);
    });
  }
}
