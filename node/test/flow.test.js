// Streamed responses of a worker that serves several invocations at once: their windows, and clients that hang up.
'use strict';

const assert = require('node:assert');
const { afterEach, test } = require('node:test');

const wire = require('../lib/wire.js');
const { cleanUp, serving, value } = require('./harness.js');

afterEach(cleanUp);

/** @typedef {import('./harness.js').Worker} Worker */

const PIECE = wire.PIECE_LEN_MAX;
const CODE = `
  const { setTimeout: wait } = require('node:timers/promises');
  const { Readable } = require('node:stream');
  const { pipeline } = require('node:stream/promises');
  const { once } = require('node:events');
  const seen = {};
  exports.handler = awslambda.streamifyResponse(async ({ how, pieces }, stream) => {
    if (how === 'seen') {
      stream.end(JSON.stringify(seen));
      return;
    }
    try {
      if (how === 'large') {
        stream.end(Buffer.alloc(pieces * ${PIECE}, 'x'));
        await once(stream, 'finish');
      } else if (how === 'pipeline') {
        await pipeline(Readable.from(Array(pieces).fill('x'.repeat(${PIECE}))), stream);
      } else {
        for (let i = 0; i < pieces && !stream.destroyed; i += 1) {
          if (!stream.write('x'.repeat(${PIECE}))) await Promise.race([once(stream, 'drain'), once(stream, 'close')]);
        }
        stream.end();
      }
      seen[how] = 'ended';
    } catch (error) {
      seen[how] = error.code;
      if (how === 'other') throw new TypeError('mine');
      throw error;
    }
  });`;

/**
 * @param {Worker} worker
 * @param {number} stream
 * @param {number} length
 */
function makeRoom(worker, stream, length) {
  const body = Buffer.alloc(4);
  body.writeUInt32LE(length);
  worker.channel.write(wire.encode(wire.WINDOW, stream, Buffer.alloc(0), body));
}

/**
 * @param {Worker} worker
 * @param {number} stream
 */
function cancel(worker, stream) {
  worker.channel.write(wire.encode(wire.CANCEL, stream, Buffer.alloc(0), Buffer.alloc(0)));
}

/**
 * @param {Worker} worker
 * @param {number} stream
 * @param {number} pieces
 */
async function take(worker, stream, pieces) {
  for (let i = 0; i < pieces; i += 1) {
    const frame = await worker.frame();
    assert.ok([wire.HEAD, wire.CHUNK].includes(frame.kind), `${frame.kind}`);
    assert.deepStrictEqual([frame.stream, frame.body.length], [stream, PIECE]);
  }
}

/**
 * What has become of the others.
 * @param {Worker} worker
 */
async function seen(worker) {
  const stream = worker.ask({ how: 'seen' });
  const frame = await worker.frame();
  assert.strictEqual(frame.stream, stream);
  return JSON.parse(frame.body.toString());
}

for (const how of ['large', 'pipeline', 'writes']) {
  test(`a response waits for room and holds up no other one: ${how}`, async () => {
    const worker = await serving(CODE, { concurrency: 4 });
    const fits = wire.WINDOW_LEN / PIECE;
    const stream = worker.ask({ how, pieces: 3 * fits });
    await take(worker, stream, fits);
    assert.deepStrictEqual(await seen(worker), {}); // the next frame is not of the first response
    makeRoom(worker, stream, wire.WINDOW_LEN);
    makeRoom(worker, stream + 100, 1); // a response that is over
    await take(worker, stream, fits);
    assert.deepStrictEqual(await seen(worker), {});
    makeRoom(worker, stream, wire.WINDOW_LEN);
    let length = 0;
    let frame;
    do {
      frame = await worker.frame();
      assert.strictEqual(frame.stream, stream);
      length += frame.body.length;
    } while (frame.kind === wire.CHUNK);
    assert.deepStrictEqual([frame.kind, length], [wire.END, fits * PIECE]);
    assert.deepStrictEqual(await seen(worker), { [how]: 'ended' });
  });
}

for (const [how, what] of [
  ['large', 'ECONNRESET'],
  ['pipeline', 'ECONNRESET'],
  ['writes', 'ECONNRESET'],
]) {
  test(`a handler sees that its client has gone: ${how}`, async () => {
    const worker = await serving(CODE, { concurrency: 4 });
    const stream = worker.ask({ how, pieces: 1000 });
    await take(worker, stream, wire.WINDOW_LEN / PIECE);
    cancel(worker, stream);
    const { kind, stream: ended } = await worker.frame();
    assert.deepStrictEqual([kind, ended], [wire.END, stream]);
    cancel(worker, stream); // the daemon may not know yet that it is over
    assert.deepStrictEqual(await seen(worker), { [how]: what });
    assert.doesNotMatch(worker.log(), /ERROR/);
  });
}

test('an error of the handler is logged although its client has gone', async () => {
  const code = CODE.replace("how === 'pipeline'", "how === 'other'");
  const worker = await serving(code, { concurrency: 4 });
  const stream = worker.ask({ how: 'other', pieces: 1000 });
  await take(worker, stream, wire.WINDOW_LEN / PIECE);
  cancel(worker, stream);
  assert.strictEqual((await worker.frame()).kind, wire.ERROR);
  assert.match(worker.log(), /TypeError/);
});

test('a handler without a stream is not told that its client has gone', async () => {
  const code = 'exports.handler = async (event) => { await new Promise((r) => setTimeout(r, 100)); return event; };';
  const worker = await serving(code, { concurrency: 2 });
  const stream = worker.ask(5);
  cancel(worker, stream);
  const frame = await worker.frame();
  assert.deepStrictEqual([frame.stream, value(frame, wire.RESULT)], [stream, 5]);
  assert.strictEqual(await worker.result(6), 6);
});
