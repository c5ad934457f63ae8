'use strict';

const assert = require('node:assert');
const { once } = require('node:events');
const fs = require('node:fs');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { REQUEST_ID, cleanUp, patient, serving } = require('./harness.js');

afterEach(cleanUp);

/** @typedef {import('./harness.js').Worker} Worker */

/** Runs the event's text as the body of an async streaming handler. */
const RUN = `
  const AsyncFunction = (async () => {}).constructor;
  const { HttpResponseStream } = awslambda;
  const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  exports.handler = awslambda.streamifyResponse(async (event, stream, context) => {
    const run = new AsyncFunction('event', 'stream', 'context', 'HttpResponseStream', 'require', 'wait', event.run);
    return run(event, stream, context, HttpResponseStream, require, wait);
  });`;

/**
 * All frames of one streamed answer.
 * @param {Worker} worker
 * @param {string} run
 */
async function answer(worker, run) {
  const stream = worker.ask({ run });
  const frames = [];
  for (;;) {
    const frame = await worker.frame();
    assert.strictEqual(frame.stream, stream);
    frames.push(frame);
    const isWhole = frame.kind === wire.HEAD && frame.meta.finished_ns !== undefined;
    if (frame.kind === wire.END || frame.kind === wire.ERROR || isWhole) {
      break;
    }
  }
  const head = frames[0].kind === wire.HEAD ? frames[0].meta : null;
  const last = frames[frames.length - 1];
  const body = Buffer.concat(frames.filter(({ kind }) => kind !== wire.ERROR).map((frame) => frame.body)).toString();
  const error = last.kind === wire.ERROR ? JSON.parse(last.body.toString()) : null;
  return { head, body, error, last, kinds: frames.map(({ kind }) => kind) };
}

test('status, headers and cookies are the head of the response', async () => {
  const worker = await serving(RUN);
  const { head, body, kinds, last } = await answer(
    worker,
    `const http = HttpResponseStream.from(stream, {
       statusCode: 201,
       headers: { 'Content-Type': 'text/plain', 'X-Many': ['a', 'b'], 'x-n': 5 },
       cookies: ['a=1', 'b=2'],
     });
     http.write('one'); await wait(5); http.write('two'); http.end('three');`,
  );
  assert.strictEqual(head.status, 201);
  assert.deepStrictEqual(head.headers, [
    ['content-type', 'text/plain'],
    ['x-many', 'a'],
    ['x-many', 'b'],
    ['x-n', '5'],
    ['set-cookie', 'a=1'],
    ['set-cookie', 'b=2'],
  ]);
  assert.strictEqual(body, 'onetwothree');
  assert.deepStrictEqual(kinds, [wire.HEAD, wire.CHUNK, wire.END]);
  assert.ok(head.started_ns < last.meta.finished_ns && head.started_ns === last.meta.started_ns);
});

/** A handler writes the prelude by itself. */
const BY_HAND = `stream.setContentType('application/vnd.awslambda.http-integration-response');
  const prelude = {
    statusCode: 201, headers: { 'Content-Type': 'text/html', 'x-many': ['a', 'b'], 'x-n': 5 }, cookies: ['a=1', 'b=2'],
  };`;
const BY_HAND_HEADERS = [
  ['content-type', 'text/html'],
  ['x-many', 'a'],
  ['x-many', 'b'],
  ['x-n', '5'],
  ['set-cookie', 'a=1'],
  ['set-cookie', 'b=2'],
];

for (const [name, run, expected] of [
  [
    'in three writes',
    'stream.write(JSON.stringify(prelude)); stream.write(new Uint8Array(8)); stream.write("<p>"); stream.end();',
    '<p>',
  ],
  [
    'byte by byte, in a buffer that is used again',
    `const one = Buffer.alloc(1);
     for (const byte of Buffer.from(JSON.stringify(prelude) + '\\0'.repeat(8) + '<p>\\0ü')) {
       one[0] = byte;
       stream.write(one);
     }
     stream.end();`,
    '<p>\0ü',
  ],
  [
    'as long as it may be',
    'stream.write(JSON.stringify(prelude).padEnd(262_144)); stream.write(Buffer.alloc(8)); stream.end("<p>");',
    '<p>',
  ],
  ['in one write', 'stream.end(JSON.stringify(prelude) + "\\0".repeat(8) + "<p>");', '<p>'],
  ['as an object', 'stream.write(prelude); stream.write(Buffer.alloc(9)); stream.end();', '\0'],
  ['with the last NUL bytes at the end', 'stream.write(prelude); stream.write("\\0"); stream.end(Buffer.alloc(7));', ''],
  [
    'with a parameter of the content type',
    `stream.setContentType('Application/vnd.awslambda.http-integration-response; charset=utf-8');
     stream.write(prelude); stream.write(Buffer.alloc(8)); stream.end("<p>");`,
    '<p>',
  ],
]) {
  test(`a prelude that the handler writes by itself is the head: ${name}`, async () => {
    const worker = await serving(RUN);
    const { head, body, error } = await answer(worker, BY_HAND + run);
    assert.strictEqual(error, null);
    assert.deepStrictEqual([head.status, head.headers, head.prelude], [201, BY_HAND_HEADERS, true]);
    assert.strictEqual(body, expected);
  });
}

test('a prelude that the handler writes by itself may be empty, and goes out before the body', async () => {
  const worker = await serving(RUN);
  worker.ask({
    run: `${BY_HAND} stream.write({ headers: null, cookies: null }); stream.write(Buffer.alloc(8)); await wait(60_000);`,
  });
  const { kind, meta, body } = await worker.frame();
  assert.deepStrictEqual([kind, meta.status, body.length], [wire.HEAD, 200, 0]);
  assert.deepStrictEqual(meta.headers, [['content-type', 'application/octet-stream']]);
});

test('the content type of a prelude after HttpResponseStream.from changes nothing', async () => {
  const worker = await serving(RUN);
  const { head, body } = await answer(
    worker,
    `HttpResponseStream.from(stream, { statusCode: 202 }); ${BY_HAND} stream.write("{}"); stream.end();`,
  );
  assert.deepStrictEqual([head.status, head.headers], [202, [['content-type', 'application/octet-stream']]]);
  assert.strictEqual(body, '{}');
});

/** @type {Array<[string, string, RegExp]>} */
const INVALID_PRELUDES = [
  ['no NUL bytes', 'stream.write(prelude); stream.end()', /^the response ended within its prelude$/],
  ['nothing at all', 'stream.end()', /^the response ended within its prelude$/],
  ['nothing at all, and the handler goes on', 'stream.end(); await wait(30)', /^the response ended within/],
  ['too few NUL bytes', 'stream.write("{}"); stream.end(Buffer.alloc(3))', /ended within its prelude$/],
  ['a body after too few', 'stream.end("{}\\0\\0\\0x\\0\\0\\0\\0\\0")', /^the prelude ends with fewer than 8 NUL bytes$/],
  ['too long', 'stream.write(Buffer.alloc(262_145, " ")); await wait(5)', /^the prelude is longer than 262144 bytes$/],
  [
    'too long in pieces',
    'for (let i = 0; i < 5; i += 1) stream.write(" ".repeat(60_000)); stream.end()',
    /^the prelude is longer than 262144 bytes$/,
  ],
  ...[
    ['no JSON', '"{"', /^the prelude is invalid: \S/],
    ['empty JSON', '""', /^the prelude is invalid: \S/],
    ['no object', '"[1]"', /^the prelude is invalid: it is not an object$/],
    ['no UTF-8', 'Buffer.from([34, 255, 34])', /^the prelude is invalid: it is not UTF-8$/],
    ['a status that is none', '{ statusCode: 42 }', /^the prelude's statusCode is 42, must be 200 to 599$/],
    ['a status that is a text', '{ statusCode: "200" }', /: statusCode is not a whole number$/],
    ['headers that are a text', '{ headers: "a" }', /: headers is not an object$/],
    ['a header that is an object', '{ headers: { a: {} } }', /: the header "a" is neither/],
    ['cookies that are a text', '{ cookies: "a=1" }', /: cookies is not an array of strings$/],
  ].map(
    ([name, written, message]) =>
      /** @type {[string, string, RegExp]} */ ([name, `stream.write(${written}); stream.end(Buffer.alloc(8))`, message]),
  ),
];
for (const [name, run, message] of INVALID_PRELUDES) {
  test(`an invalid prelude is an error: ${name}`, async () => {
    const worker = await serving(RUN);
    const { kinds, error } = await answer(worker, `${BY_HAND} ${run};`);
    assert.deepStrictEqual(kinds, [wire.ERROR]);
    assert.strictEqual(error.errorType, 'Runtime.InvalidPrelude');
    assert.match(error.errorMessage, message);
    assert.strictEqual((await answer(worker, 'stream.end("fine")')).body, 'fine');
  });
}

test('a response without status and headers has those of Lambda', async () => {
  const worker = await serving(RUN);
  const { head, body } = await answer(worker, 'stream.write("x"); stream.end();');
  assert.deepStrictEqual([head.status, head.headers, body], [200, [['content-type', 'application/octet-stream']], 'x']);
  const typed = await answer(worker, 'stream.setContentType("text/css"); stream.end("y");');
  assert.deepStrictEqual([typed.head.headers, typed.body], [[['content-type', 'text/css']], 'y']);
});

test('a short response is one frame', async () => {
  const worker = await serving(RUN);
  for (const [run, expected] of [
    ['stream.end("all")', 'all'],
    ['stream.end()', ''],
    ['stream.end(Buffer.from("ü"))', 'ü'],
  ]) {
    const { kinds, body } = await answer(worker, run);
    assert.deepStrictEqual([kinds, body], [[wire.HEAD], expected], run);
  }
});

test('objects are written as JSON, typed arrays as they are', async () => {
  const worker = await serving(RUN);
  const run =
    'stream.write({ a: 1 }); stream.write(new Uint8Array([65, 66])); stream.write("é", "latin1"); stream.end([1])';
  const { kinds, last } = await answer(worker, run);
  assert.deepStrictEqual(kinds[0], wire.HEAD);
  assert.strictEqual(last.body.toString(), '[1]');
});

test('the first bytes go out before the handler returns', async () => {
  const worker = await serving(RUN);
  worker.ask({
    run: 'stream.write("first"); await wait(60_000);',
  });
  const { kind, body } = await worker.frame();
  assert.deepStrictEqual([kind, body.toString()], [wire.HEAD, 'first']);
});

test('a response that was ended goes out although the handler goes on', async () => {
  const worker = await serving(RUN);
  const { kinds, body, head, last } = await answer(worker, 'stream.end("all"); await wait(30);');
  assert.deepStrictEqual([kinds, body], [[wire.HEAD, wire.END], 'all']);
  assert.ok(last.meta.finished_ns - head.started_ns > 20e6);
});

test('a response may be ended after the handler has returned', async () => {
  const worker = await serving(RUN);
  const { body, error } = await answer(worker, 'setTimeout(() => stream.end("later"), 10);');
  assert.deepStrictEqual([body, error], ['later', null]);
});

test('a pipeline into the stream arrives whole', async () => {
  const worker = await serving(RUN);
  const { body, kinds } = await answer(
    worker,
    `const { pipeline } = require('node:stream/promises');
     const source = function* () { for (let i = 0; i < 500; i += 1) yield String(i % 10).repeat(1000); };
     await pipeline(source, stream);`,
  );
  assert.strictEqual(body.length, 500_000);
  assert.strictEqual(kinds[kinds.length - 1], wire.END);
});

test('a long piece is cut into frames of a MiB', async () => {
  const worker = await serving(RUN);
  const { body, kinds } = await answer(
    worker,
    'stream.write("x".repeat(5 * 1024 * 1024 + 1)); stream.end("y".repeat(2 * 1024 * 1024));',
  );
  assert.strictEqual(body.length, 7 * 1024 * 1024 + 1);
  assert.ok(kinds.length >= 8, String(kinds));
});

test('a reader that does not read makes the stream wait', async () => {
  const worker = await serving(RUN);
  const stuck = path.join(worker.folder, 'stuck');
  worker.channel.pause();
  const watcher = fs.watch(worker.folder);
  const isStuck = patient(once(watcher, 'change'), 'the stuck stream');
  const run = `
    const { once } = require('node:events');
    const piece = Buffer.alloc(64 * 1024);
    for (let i = 0, sent = 0; i < 400; i += 1) {
      sent += piece.length;
      if (stream.write(piece)) continue;
      const drained = once(stream, 'drain');
      const isStuck = await Promise.race([drained, wait(100)]) === undefined;
      if (isStuck) require('node:fs').writeFileSync(event.stuck, String(sent));
      await drained;
    }
    stream.end();`;
  worker.ask({ run, stuck });
  await isStuck;
  watcher.close();
  // The kernel buffers some hundred KiB of a socket.
  assert.ok(Number(fs.readFileSync(stuck, 'utf8')) < 4 * 1024 * 1024);
  worker.channel.resume();
  let length = 0;
  for (let kind = 0; kind !== wire.END;) {
    const frame = await worker.frame();
    kind = frame.kind;
    length += frame.body.length;
  }
  assert.strictEqual(length, 400 * 64 * 1024);
});

test('an error before the head is an ordinary error', async () => {
  const worker = await serving(RUN);
  const { kinds, error } = await answer(worker, 'throw new RangeError("early")');
  assert.deepStrictEqual(kinds, [wire.ERROR]);
  assert.deepStrictEqual([error.errorType, error.errorMessage, error.requestId], ['RangeError', 'early', REQUEST_ID]);
});

test('an error after the head breaks the response off', async () => {
  const worker = await serving(RUN);
  const { kinds, error } = await answer(worker, 'stream.write("a"); await wait(5); throw new RangeError("late")');
  assert.deepStrictEqual(kinds, [wire.HEAD, wire.ERROR]);
  assert.strictEqual(error.errorMessage, 'late');
  const again = await answer(worker, 'stream.end("fine")');
  assert.strictEqual(again.body, 'fine');
});

/** @type {Array<[string, string, string, RegExp]>} */
const BROKEN = [
  [
    'a status that is none',
    'HttpResponseStream.from(stream, { statusCode: 99 })',
    'Runtime.InvalidStreamingOperation',
    /statusCode 99/,
  ],
  [
    'a stream that is not ours',
    'HttpResponseStream.from({}, {})',
    'Runtime.InvalidStreamingOperation',
    /responseStream/,
  ],
  [
    'a late head',
    'stream.write("a"); HttpResponseStream.from(stream, {})',
    'Runtime.InvalidStreamingOperation',
    /too late/,
  ],
  [
    'a late content type',
    'stream.write("a"); stream.setContentType("a/b")',
    'Runtime.InvalidStreamingOperation',
    /too late/,
  ],
  [
    'a content type after the first byte of a prelude',
    `${BY_HAND} stream.write("{"); stream.setContentType("a/b")`,
    'Runtime.InvalidStreamingOperation',
    /too late/,
  ],
  ['a destroyed stream', 'stream.write("a"); stream.destroy(new RangeError("mine"))', 'RangeError', /^mine$/],
  ['a stream destroyed without a reason', 'stream.destroy()', 'Runtime.InvalidStreamingOperation', /destroyed before/],
  ['a write after the end', 'stream.end("a"); stream.write("b")', 'Error', /write after end/],
  ['nothing that could end it', 'stream.write("a")', 'Runtime.NodeJsExit', /never ended/],
  [
    'a promise that is never settled',
    'stream.end("a"); await new Promise(() => {})',
    'Runtime.NodeJsExit',
    /never settled/,
  ],
  [
    'a head that is too long',
    'HttpResponseStream.from(stream, { headers: { a: "x".repeat(300_000) } }); stream.write("a"); await wait(1);',
    'ProtocolError',
    /meta_too_long/,
  ],
  [
    'a header with half a character',
    'HttpResponseStream.from(stream, { headers: { a: "\\ud800" } }); stream.end("a")',
    'Function.InvalidResponse',
    /the header "a" of the response has a lone surrogate/,
  ],
  [
    'a cookie with half a character, in a stream',
    'HttpResponseStream.from(stream, { cookies: ["a=\\udc00"] }); stream.write("a"); await wait(1);',
    'Function.InvalidResponse',
    /lone surrogate/,
  ],
  [
    'a content type with half a character',
    'stream.setContentType("\\ud800"); stream.end("a")',
    'Function.InvalidResponse',
    /lone surrogate/,
  ],
  [
    'a header without a text',
    'HttpResponseStream.from(stream, { headers: { a: Object.create(null) } }); stream.end("a")',
    'TypeError',
    /primitive/,
  ],
  [
    'cookies that are no list',
    'HttpResponseStream.from(stream, { cookies: 5 }); stream.end("a")',
    'TypeError',
    /map/,
  ],
  [
    'a source that fails',
    'await require("stream").promises.pipeline(function* () { yield "a"; throw new RangeError("source"); }, stream)',
    'RangeError',
    /^source$/,
  ],
];
for (const [name, run, type, message] of BROKEN) {
  test(`a response that cannot be completed is an error: ${name}`, async () => {
    const worker = await serving(RUN);
    const { error } = await answer(worker, run);
    assert.ok(error !== null);
    assert.strictEqual(error.errorType, type);
    assert.match(error.errorMessage, message);
    assert.strictEqual((await answer(worker, 'stream.end("fine")')).body, 'fine');
  });
}

test('a status that changes after it was checked is not sent', async () => {
  const worker = await serving(RUN);
  const run =
    'const head = { statusCode: 201 }; HttpResponseStream.from(stream, head); head.statusCode = 70000; stream.end("😀");';
  const { head, body } = await answer(worker, run);
  assert.deepStrictEqual([head.status, body], [201, '😀']);
});

test('a handler that is no async function may stream, too', async () => {
  const code =
    'exports.handler = awslambda.streamifyResponse((event, stream) => { setTimeout(() => stream.end("done"), 5); });';
  const worker = await serving(code);
  assert.strictEqual((await answer(worker, '')).body, 'done');
});

test('with concurrency, streams interleave', async () => {
  const worker = await serving(RUN, { concurrency: 3 });
  const run = 'for (const part of "abc") { stream.write(event.name + part); await wait(10); } stream.end();';
  const streams = ['x', 'y', 'z'].map((name) => worker.ask({ run, name }));
  const bodies = new Map(streams.map((stream) => [stream, '']));
  /** @type {number[]} */
  const order = [];
  for (let ended = 0; ended < 3;) {
    const { kind, stream, body } = await worker.frame();
    bodies.set(stream, `${bodies.get(stream)}${body}`);
    order.push(stream);
    ended += kind === wire.END ? 1 : 0;
  }
  assert.deepStrictEqual([...bodies.values()], ['xaxbxc', 'yaybyc', 'zazbzc']);
  assert.ok(order.indexOf(Math.max(...streams)) < order.lastIndexOf(Math.min(...streams)), String(order));
});

test('the mark of a streaming handler is the one that wrappers of Lambda know', async () => {
  const code = `const mark = Symbol.for('aws.lambda.runtime.handler.streaming');
    const inner = awslambda.streamifyResponse(async (event, stream) => stream.end(inner[mark]), { highWaterMark: 5 });
    exports.handler = (...all) => inner(...all);
    for (const symbol of Object.getOwnPropertySymbols(inner)) exports.handler[symbol] = inner[symbol];`;
  const worker = await serving(code);
  assert.strictEqual((await answer(worker, '')).body, 'response');
});
