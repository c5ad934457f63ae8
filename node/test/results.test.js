// Results and errors, side by side with aws-lambda-ric (`ric_client.js`).
//
// `LISTED` is what differs. Each entry has its reason, which docs/runtimes.md also gives. An entry that no longer differs
// fails.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { cleanUp, serving, specified } = require('./harness.js');
const { runLambda, skip } = require('./ric_client.js');

/** @typedef {{kind: 'result' | 'error', body: string}} Answer */

afterEach(cleanUp);

/** One thing each. `PLACES` puts it into every place of a result. */
const SCALARS = String.raw`
undefined
null
true
false
0
-0
1
-1.5
0.1
1 / 3
2 ** 31
2 ** 53
2 ** 53 + 1
2 ** 64
1e15
1e20
1e21
1e22
1e100
1e-5
1e-6
1e-7
5e-324
Number.MAX_VALUE
NaN
Infinity
-Infinity
1n
10n ** 40n
Object(1n)
""
"a"
"with \"quotes\" and \\ and /"
"\n\r\t\b\f\v"
"\x00\x01\x1f\x7f"
"\x80\xa0\xad\xff"
"grüße"
"日本語"
"🎈"
"\u2028\u2029"
"\ufeff"
"\uffff"
"\ud800"
"\udc00"
"a\udfffb"
"\udc00\ud800"
"</script>"
new String("boxed")
new Number(5)
new Number(NaN)
new Boolean(false)
Symbol("s")
Object(Symbol("s"))
() => 1
function named() {}
class A {}
Math
JSON
globalThis.Intl
new Date(0)
new Date(2024, 1, 29)
new Date(NaN)
/regexp/g
new Error("returned")
new RangeError("returned", { cause: 1 })
new Map([[1, 2]])
new Set([1])
new WeakMap()
new Uint8Array([1, 2])
new Float64Array([0.1, NaN])
new BigInt64Array(1)
new ArrayBuffer(2)
new DataView(new ArrayBuffer(1))
Buffer.from("bytes")
Buffer.alloc(0)
new URL("https://example.org/a?b=c")
new URLSearchParams("a=1")
new Headers({ a: "1" })
new Response("x")
new Blob(["a"])
new AbortController()
Promise.resolve(1)
(function* () { yield 1; })()
[1].values()
[]
[[]]
[1, , 3]
[undefined, null, () => 1, Symbol("s")]
Object.assign([1, 2], { extra: 3 })
new Array(3)
{}
{ a: undefined, b: null, c: () => 1, [Symbol("s")]: 1 }
{ b: 1, a: 2, 1: 3, 0: 4 }
{ "": 1, "ü": 2, "\ud800": 3, "\"": 4 }
{ __proto__: { inherited: 1 }, own: 2 }
{ ["__proto__"]: 1 }
Object.create(null)
Object.create({ inherited: 1 })
Object.create({}, { hidden: { value: 1 }, seen: { value: 2, enumerable: true } })
{ get a() { return 1; } }
{ get a() { throw new Error("getter"); } }
{ toJSON() { return { made: [1] }; } }
{ toJSON(key) { return key; } }
{ toJSON() { return undefined; } }
{ toJSON() { return 1n; } }
{ toJSON() { throw new RangeError("mine"); } }
{ toJSON: 5 }
new (class A { x = 1; #y = 2; static z = 3; })()
new (class A extends Array {})(1, 2, 3)
new (class A extends Map { toJSON() { return [...this]; } })([[1, 2]])
new Proxy({ a: 1 }, {})
new Proxy([1], {})
new Proxy({}, { ownKeys() { throw new Error("trap"); } })
process.memoryUsage
Object.freeze({ a: 1 })
JSON.rawJSON?.("1.10")
(() => { const a = {}; a.a = a; return a; })()
(() => { const a = []; a.push([a]); return a; })()
(() => { const a = { x: 1 }; return [a, a]; })()
(() => { let a = 1; for (let i = 0; i < 100; i++) a = [a]; return a; })()
(() => { let a = 1; for (let i = 0; i < 1000; i++) a = { a }; return a; })()
(() => { let a = 1; for (let i = 0; i < 100000; i++) a = [a]; return a; })()
"x".repeat(100000)
"ü".repeat(100000)
Array.from({ length: 1000 }, (_, n) => ({ n, text: String(n), half: n / 2 }))
{ statusCode: 200, headers: { "content-type": "application/json" }, body: JSON.stringify({ a: 1 }), isBase64Encoded: false }
`
  .trim()
  .split('\n');

const PLACES = ['return @', 'return [@]', 'return { k: @ }', 'return { toJSON: () => [1, @] }'];

/** @type {string[]} bodies of an async function */
const RESULTS = SCALARS.flatMap((value) => {
  // A function's value would be the handler's error otherwise: a statement cannot begin with these.
  const expression = /^(?:\{|function|class)/.test(value) ? `(${value})` : value;
  return PLACES.map((place) => place.replace('@', () => (value === '[1, , 3]' ? value : expression)));
}).concat(
  String.raw`

return
await 1; return 2
return new Promise((resolve) => setTimeout(resolve, 1, { late: true }))
return { then(resolve) { resolve("thenable"); } }
return Promise.resolve(Promise.resolve([1]))
return event
return [event, event.run.length]
`
    .split('\n')
    .slice(1, -1),
);

/** Frames of aws-lambda-ric, and of Node below it. */
const OF_A_RUNTIME = /^ +at .*(?:\/client\/index\.mjs:|node:internal\/(?:modules|process|vm)\b)/;

/** Bodies of an async function that fails. */
const ERRORS = String.raw`
throw new Error("plain")
throw new Error()
throw new Error("")
throw new Error("grüße 🎈")
throw new Error("two\nlines")
throw new Error("    at somewhere (file.js:1:1)\nlast")
throw new Error("control \x00\x1f\x7f\x80")
throw new Error("\ud800")
throw new TypeError("type")
throw new RangeError("range")
throw new SyntaxError("syntax")
throw new EvalError("eval")
throw new URIError("uri")
throw new AggregateError([new Error("a"), new Error("b")], "several")
throw new DOMException("dom", "AbortError")
throw new Error("with cause", { cause: new Error("root") })
throw new (require("node:assert").AssertionError)({ message: "assertion" })
require("node:assert").strictEqual(1, 2)
require("node:fs").readFileSync("/nowhere/at/all")
await require("node:fs").promises.readFile("/nowhere/at/all")
require("nothing-of-this-name")
await import("nothing-of-this-name")
await import("node:nothing")
JSON.parse("{")
null.property
undefinedName
(5)()
new Array(-1)
(1).toFixed(1000)
decodeURIComponent("%")
BigInt(1.5)
1n + 1
Symbol() + ""
await Promise.reject(new Error("rejected"))
await Promise.reject("rejected text")
await Promise.reject()
await Promise.any([Promise.reject(new Error("one"))])
await new Promise((_, reject) => setTimeout(() => reject(new Error("late")), 1))
return Promise.reject(new Error("returned"))
return { then(_, reject) { reject(new Error("thenable")); } }
return { then() { throw new Error("then"); } }
return { get then() { throw new Error("getter"); } }
lib.deep(3)
lib.deep(30)
await lib.later(3)
lib.endless()
lib.method()
throw new lib.OwnError("own", 7)
throw new lib.NamedError("named")
throw new lib.FieldError("field")
throw new lib.StaticError("static")
throw lib.made
throw "text"
throw "text \x7f"
throw ""
throw 5
throw -0
throw NaN
throw 5n
throw true
throw null
throw undefined
throw Symbol("s")
throw { a: 1 }
throw { message: "like an error", name: "Like", stack: "Like: x\n    at y" }
throw { toString() { return "own text"; } }
throw [1, 2]
throw () => 1
throw class A {}
throw new Map()
throw new Date(0)
throw new Proxy(new Error("proxy"), {})
throw Object.create(Error.prototype)
throw Object.create(new Error("inherited"))
throw Object.assign(new Error("x"), { name: "Renamed" })
throw Object.assign(new Error("x"), { name: "" })
throw Object.assign(new Error("x"), { name: "\x7f" })
throw Object.assign(new Error("x"), { name: undefined })
throw Object.assign(new Error("x"), { name: null })
throw Object.assign(new Error("x"), { name: 5 })
throw Object.assign(new Error("x"), { message: "later" })
throw Object.assign(new Error("x"), { message: undefined })
throw Object.assign(new Error("x"), { message: 5 })
throw Object.assign(new Error("x"), { message: { a: 1 } })
throw Object.assign(new Error("x"), { stack: undefined })
throw Object.assign(new Error("x"), { stack: "" })
throw Object.assign(new Error("x"), { stack: "a text" })
throw Object.assign(new Error("x"), { stack: "a\nb\x7f\n    at c" })
throw Object.assign(new Error("x"), { stack: ["a"] })
throw Object.assign(new Error("x"), { stack: null })
throw Object.assign(new Error("x"), { code: "E_CODE", statusCode: 404, self: event })
throw Object.defineProperty(new Error("x"), "name", { get() { throw new Error("getter"); } })
throw Object.defineProperty(new Error("x"), "message", { get() { throw new Error("getter"); } })
throw Object.defineProperty(new Error("x"), "stack", { get() { throw new Error("getter"); } })
throw Object.defineProperty(new Error("x"), "message", { get() { return "got"; } })
throw Object.freeze(new Error("frozen"))
const error = new Error("x"); error.name = "Late"; throw error
const error = new Error("x"); Error.captureStackTrace(error); throw error
const error = new Error("x"); delete error.message; throw error
const error = new Error("x"); delete error.stack; throw error
lib.withLimit(0, () => { throw new Error("x"); })
lib.withLimit(50, () => lib.deep(40))
throw new Error("x".repeat(100_000))
`
  .trim()
  .split('\n');

/** What the bodies call. */
const LIB = `
exports.deep = function deep(depth) {
  if (depth === 0) throw new Error('deep');
  return deep(depth - 1);
};
exports.later = async function later(depth) {
  await null;
  if (depth === 0) throw new Error('later');
  return await later(depth - 1);
};
exports.endless = function endless() { return endless() + 1; };
exports.method = () => new (class Shop { sell() { throw new RangeError('sold out'); } })().sell();
exports.OwnError = class OwnError extends Error {
  constructor(message, code) { super(message); this.name = 'OwnError'; this.code = code; }
};
exports.NamedError = class NamedError extends Error {};
exports.FieldError = class extends Error { name = 'FieldError'; };
exports.StaticError = class extends Error { get name() { return 'StaticError'; } };
exports.withLimit = (limit, action) => {
  const before = Error.stackTraceLimit;
  Error.stackTraceLimit = limit;
  try { action(); } finally { Error.stackTraceLimit = before; }
};
exports.made = new Error('made at the start');
`;
const FILES = {
  'index.js': `
    const lib = require('./lib.js');
    const AsyncFunction = (async () => {}).constructor;
    exports.handler = async (event, context) =>
      new AsyncFunction('event', 'context', 'require', 'lib', event.run)(event, context, require, lib);`,
  'lib.js': LIB,
};

const NOT_JSON =
  'A function or a symbol has no JSON. The native client of aws-lambda-ric says "Wrong arguments". Ours writes null.';
const OTHER_REALM = 'aws-lambda-ric does not know errors of another realm (node:vm). Ours treats them as errors.';
const LONG = 'Ours cuts the message after 200,000 characters. Lambda cuts the whole error at 6 MB.';
/** @type {Array<[string, string]>} bodies, and the reason */
const LISTED = [
  ['return Symbol("s")', NOT_JSON],
  ['return process.memoryUsage', NOT_JSON],
  ['return () => 1', NOT_JSON],
  ['return (function named() {})', NOT_JSON],
  ['return (class A {})', NOT_JSON],
  ['return ({ toJSON() { return undefined; } })', NOT_JSON],
  ['throw require("vm").runInNewContext("new TypeError(\'realm\')")', OTHER_REALM],
  ['throw new Error("x".repeat(1_000_000))', LONG],
];

/** Errors that end the process of aws-lambda-ric, because `String(error)` raises where it writes the log. Ours answers. */
const ENDING = [
  'throw { toString() { throw new Error("no text"); } }',
  'throw { toString: 5, valueOf: 5 }',
  'throw Object.create(null)',
];

const MISSING = 'Runtime.ImportModuleError: Error: Cannot find ';
const SYNTAX = 'Runtime.UserCodeSyntaxError: SyntaxError: ';
const NOT_FOUND = 'Runtime.HandlerNotFound: index.';
/**
 * Handlers that cannot be loaded. The fourth column is what both errors contain if they differ: ours then says more, for example
 * where a module was searched, what it exports, or the line of a syntax error. For ES modules that are missing, aws-lambda-ric
 * gives Node's `Error`; ours gives Lambda's type as for CommonJS.
 * @type {Array<[string, string, Record<string, string>, string?]>}
 */
const UNLOADABLE = [
  ['an error of the module', 'index.handler', { 'index.js': 'function f() { throw new RangeError("far"); }\nf();' }],
  ['an error of an ES module', 'index.handler', { 'index.mjs': 'function f() { throw new RangeError("far"); }\nf();' }],
  ['a named error', 'index.handler', { 'index.js': 'throw Object.assign(new Error("x"), { name: "Mine" });' }],
  ['an error of a required module', 'index.handler', { 'index.js': 'require("./other.js");', 'other.js': 'null.x;' }],
  ['a text that is thrown', 'index.handler', { 'index.js': 'throw "text";' }],
  ['a rejected await', 'index.handler', { 'index.mjs': 'await Promise.reject(new RangeError("x"));' }],
  ['no such module', 'nowhere.handler', { 'index.js': '' }, `${MISSING}module 'nowhere'`],
  ['no such module in a folder', 'a/b.handler', { 'index.js': '' }, `${MISSING}module '`],
  ['a missing required module', 'index.handler', { 'index.js': 'require("./other.js");' }, `${MISSING}module './other.js'`],
  ['a missing required package', 'index.handler', { 'index.js': 'require("nothing");' }, `${MISSING}module 'nothing'`],
  ['a missing imported file', 'index.handler', { 'index.mjs': 'import "./other.mjs";' }, 'Error: Cannot find module '],
  ['a missing imported package', 'index.handler', { 'index.mjs': 'import "nothing";' }, 'Error: Cannot find package '],
  ['a missing imported name', 'index.handler', { 'index.mjs': 'import { nothing } from "node:fs";' }, SYNTAX],
  ['a syntax error', 'index.handler', { 'index.js': 'exports.handler = (;' }, `${SYNTAX}Unexpected token ';'`],
  ['a syntax error of an ES module', 'index.handler', { 'index.mjs': 'export const a = (;' }, `${SYNTAX}Unexpected token ';'`],
  ['a syntax error of a required module', 'index.handler', { 'index.js': 'require("./b.js");', 'b.js': 'a b' }, SYNTAX],
  ['no such export', 'index.handler', { 'index.js': 'exports.other = 1;' }, `${NOT_FOUND}handler is undefined or not`],
  ['no such nested export', 'index.a.b', { 'index.js': 'exports.a = {};' }, `${NOT_FOUND}a.b is undefined or not exported`],
  ['an export that is null', 'index.handler', { 'index.js': 'exports.handler = null;' }, `${NOT_FOUND}handler is undefined`],
  ['an export that is 0', 'index.handler', { 'index.js': 'exports.handler = 0;' }, `${NOT_FOUND}handler is undefined`],
  ['an export that is not a function', 'index.handler', { 'index.js': 'exports.handler = 5;' }],
  ['no dot', 'index', { 'index.js': '' }, 'Runtime.MalformedHandlerName: Bad handler'],
  ['two dots', '../index.handler', { 'index.js': '' }, "'../index.handler' is not a valid handler name"],
];

/** Handlers that both find. @type {Array<[string, Record<string, string>]>} */
const LOADABLE = [
  ['index.handler', { 'index.mjs': 'export default { handler: async (event) => event };' }],
  ['index.a.b', { 'index.mjs': 'export default { a: { b: async (event) => event } };' }],
  ['index.default', { 'index.mjs': 'export default async (event) => event;' }],
  ['index.handler', { 'index.js': 'module.exports = { ...{ handler: async (event) => event } };' }],
  ['index.handler', { 'index.cjs': 'exports.handler = (event) => event;' }],
];

/**
 * What aws-lambda-ric posts for each event.
 * @param {string} code the folder of the function
 * @param {unknown[]} events
 * @returns {Answer[]}
 */
function ofLambda(code, events) {
  const { status, stderr, posted } = runLambda(code, events);
  assert.strictEqual(status, 0, stderr.slice(-2000));
  return JSON.parse(fs.readFileSync(posted, 'utf8'));
}

/**
 * What our worker answers.
 * @param {import('./harness.js').Worker} worker
 * @param {unknown[]} events
 * @returns {Promise<Answer[]>}
 */
async function ofOurs(worker, events) {
  const answers = [];
  for (const event of events) {
    const { kind, body } = await worker.call(event);
    answers.push(/** @type {Answer} */ ({ kind: kind === wire.RESULT ? 'result' : 'error', body: body.toString() }));
  }
  return answers;
}

/**
 * What is compared. Of an error: type, message, and the trace without the frames of the runtimes.
 * @param {Answer} answer
 * @returns {unknown}
 */
function comparable({ kind, body }) {
  if (kind === 'result') {
    return { kind, body };
  }
  const { errorType, errorMessage, trace } = JSON.parse(body);
  if (errorType === 'Runtime.JSONStringifyError') {
    // Ours also says why. The trace has the user's frames, and none of the client's.
    assert.ok(errorMessage.startsWith('Unable to stringify response body'));
    return { kind, errorType };
  }
  const users = trace.filter((/** @type {string} */ line) => !OF_A_RUNTIME.test(line));
  return { kind, errorType, errorMessage, trace: users };
}

/**
 * @param {string[]} bodies
 * @returns {Promise<Array<{run: string, theirs: Answer, ours: Answer}>>}
 */
async function compare(bodies) {
  const worker = await serving(FILES);
  const events = bodies.map((run) => ({ run }));
  const theirs = ofLambda(worker.code, events);
  const ours = await ofOurs(worker, events);
  assert.strictEqual(theirs.length, bodies.length);
  return bodies.map((run, at) => ({ run, theirs: theirs[at], ours: ours[at] }));
}

test('results are those of aws-lambda-ric, byte for byte', { skip }, async () => {
  const listed = new Set(LISTED.map(([run]) => run));
  const rows = (await compare(RESULTS)).filter(({ run }) => !listed.has(run));
  assert.ok(rows.length > 400, `${rows.length} results`);
  const different = rows.filter(({ theirs, ours }) => !same(theirs, ours));
  assert.deepStrictEqual(different.map(abridged), []);
});

test('errors have the shape that aws-lambda-ric gives them', { skip }, async () => {
  const rows = await compare(ERRORS);
  assert.ok(rows.length > 100, `${rows.length} errors`);
  assert.ok(rows.every(({ ours }) => ours.kind === 'error'));
  const different = rows.filter(({ theirs, ours }) => !same(theirs, ours));
  assert.deepStrictEqual(different.map(abridged), []);
});

test('what is listed as different is different', { skip }, async () => {
  for (const { run, theirs, ours } of await compare(LISTED.map(([run]) => run))) {
    assert.ok(!same(theirs, ours), run);
  }
});

test('an error that ends the process of aws-lambda-ric is an answer', { skip }, async () => {
  const worker = await serving(FILES);
  for (const run of ENDING) {
    assert.notStrictEqual(runLambda(worker.code, [{ run }]).status, 0, run);
    assert.strictEqual((await worker.error({ run })).errorType, 'handled');
  }
});

for (const [handler, files] of LOADABLE) {
  test(`a handler that aws-lambda-ric finds is found: ${handler} of ${JSON.stringify(files)}`, { skip }, async () => {
    const worker = await serving(files, { handler });
    const { posted } = runLambda(worker.code, [{ a: 1 }], handler);
    assert.deepStrictEqual(await ofOurs(worker, [{ a: 1 }]), JSON.parse(fs.readFileSync(posted, 'utf8')));
  });
}

for (const [name, handler, files, listed] of UNLOADABLE) {
  test(`a handler that cannot be loaded is the error of aws-lambda-ric: ${name}`, { skip }, async () => {
    const worker = await specified(files, { handler });
    const ours = { kind: /** @type {const} */ ('error'), body: JSON.stringify(await worker.initError()) };
    await worker.controlClosed; // before the call that blocks
    const { status, posted } = runLambda(worker.code, [], handler);
    assert.notStrictEqual(status, 0);
    const [theirs] = JSON.parse(fs.readFileSync(posted, 'utf8'));
    if (listed === undefined) {
      assert.deepStrictEqual(comparable(ours), comparable(theirs));
      return;
    }
    assert.ok(!same(theirs, ours), 'no longer different');
    for (const answer of [theirs, ours]) {
      const { errorType, errorMessage } = JSON.parse(answer.body);
      assert.ok(`${errorType}: ${errorMessage}`.includes(listed), `${errorType}: ${errorMessage}`);
    }
  });
}

/**
 * @param {Answer} theirs
 * @param {Answer} ours
 */
function same(theirs, ours) {
  return JSON.stringify(comparable(theirs)) === JSON.stringify(comparable(ours));
}

/** @param {{run: string, theirs: Answer, ours: Answer}} row */
function abridged({ run, theirs, ours }) {
  const text = (/** @type {Answer} */ answer) => JSON.stringify(comparable(answer)).slice(0, 600);
  return [run.slice(0, 100), text(theirs), text(ours)];
}
