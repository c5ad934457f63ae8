'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const { REQUEST_ID, cleanUp, patient, serving } = require('./harness.js');

afterEach(cleanUp);

const OTHER_ID = '11111111-0d5a-4f0e-9c6b-0f9a1c2d3e4f';

/** The daemon's end of the socket of one invocation. Buffers are files of the worker's folder. */
class Daemon {
  #server = net.createServer();
  /** @type {net.Socket | null} */
  #socket = null;
  #unread = Buffer.alloc(0);
  /** @type {Array<{ask: any, body: Buffer}>} */
  #asked = [];
  /** @type {Array<(asked: {ask: any, body: Buffer}) => void>} */
  #readers = [];
  connections = 0;

  /** @param {import('./harness.js').Worker} worker */
  constructor(worker) {
    this.folder = worker.folder;
    this.path = path.join(worker.folder, `calls-${Math.random()}`);
    /** @type {Promise<void>} */
    this.closed = new Promise((resolve) => {
      this.#server.on('connection', (socket) => {
        this.connections += 1;
        this.#socket = socket;
        socket.on('error', () => {});
        socket.on('data', (chunk) => this.#hear(/** @type {Buffer} */ (chunk)));
        socket.on('close', () => resolve());
      });
    });
  }

  /** The input that leads to it. @returns {Promise<{name: string, kind: string, path: string}>} */
  async input() {
    await new Promise((resolve) => this.#server.listen(this.path, () => resolve(undefined)));
    return { name: ':calls', kind: 'calls', path: this.path };
  }

  /** The next request. @returns {Promise<{ask: any, body: Buffer}>} */
  async asked() {
    const next = this.#asked.shift();
    return next ?? patient(new Promise((resolve) => this.#readers.push(resolve)), 'a request');
  }

  /**
   * @param {number} id
   * @param {string | Buffer} [body]
   * @param {Record<string, unknown>} [how]
   */
  answer(id, body = '', how = { end: 'done' }) {
    const meta = Buffer.from(JSON.stringify({ id, ...how }));
    const bytes = Buffer.from(body);
    const header = Buffer.alloc(8);
    header.writeUInt32LE(meta.length);
    header.writeUInt32LE(bytes.length, 4);
    this.#socket?.write(Buffer.concat([header, meta, bytes]));
  }

  /** Answers a request for memory. Returns the file. @param {any} ask @param {boolean} [isWhole] */
  give(ask, isWhole = true) {
    assert.strictEqual(ask.op, 'buffer');
    const file = path.join(this.folder, `buffer-${ask.id}`);
    fs.writeFileSync(file, isWhole ? Buffer.alloc(ask.len) : '');
    fs.truncateSync(file, ask.len);
    this.answer(ask.id, '', { end: 'done', path: file });
    return file;
  }

  close() {
    this.#socket?.destroy();
    this.#server.close();
  }

  /** @param {Buffer} chunk */
  #hear(chunk) {
    this.#unread = Buffer.concat([this.#unread, chunk]);
    while (this.#unread.length >= 8) {
      const bodyAt = 8 + this.#unread.readUInt32LE();
      const end = bodyAt + this.#unread.readUInt32LE(4);
      if (this.#unread.length < end) {
        return;
      }
      const asked = { ask: JSON.parse(this.#unread.toString('utf8', 8, bodyAt)), body: this.#unread.subarray(bodyAt, end) };
      this.#unread = this.#unread.subarray(end);
      const reader = this.#readers.shift();
      if (reader === undefined) {
        this.#asked.push(asked);
      } else {
        reader(asked);
      }
    }
  }
}

/** @type {Daemon[]} */
const daemons = [];
afterEach(() => daemons.splice(0).forEach((daemon) => daemon.close()));

/**
 * @param {import('./harness.js').Worker} worker
 * @param {unknown} event
 * @param {Record<string, unknown>} [meta]
 */
async function invoked(worker, event, meta = {}) {
  const daemon = new Daemon(worker);
  daemons.push(daemon);
  const { inputs = [], ...rest } = /** @type {any} */ (meta);
  const answer = worker.result(event, { ...rest, inputs: [await daemon.input(), ...inputs] });
  answer.catch(() => {}); // the test may look at the worker's end
  return { daemon, answer };
}

const FUNCTION = `
  const fs = require('node:fs');
  const pilotlight = require('pilotlight');
  const told = async (promise) => {
    try { return await promise; } catch (error) {
      return [error.name, error.reason ?? error.errorType ?? null, error.message, error instanceof pilotlight.InvokeError];
    }
  };`;

test('an answer is a value or an exception', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => [
      await pilotlight.invoke('next'),
      await pilotlight.invoke('next', { payload: { n: 1 } }),
      await pilotlight.invoke('next', { payload: Buffer.from('[2]') }),
      await told(pilotlight.invoke('next', { payload: null })),
      await told(pilotlight.invoke('next')),
    ];`);
  const { daemon, answer } = await invoked(worker, {});
  for (const body of ['{}', '{"n":1}', '[2]']) {
    const given = await daemon.asked();
    assert.deepStrictEqual([given.ask.op, given.ask.function, String(given.body)], ['call', 'next', body]);
    daemon.answer(given.ask.id, body);
  }
  let { ask, body } = await daemon.asked();
  assert.strictEqual(String(body), 'null');
  daemon.answer(ask.id, '{"errorType": "ValueError", "errorMessage": "no", "stackTrace": ["x"]}', { end: 'function_error' });
  ({ ask, body } = await daemon.asked());
  daemon.answer(ask.id, '', { end: 'refused', reason: 'Throttled', problem: 'too many' });
  assert.deepStrictEqual(await answer, [
    {},
    { n: 1 },
    [2],
    ['FunctionError', 'ValueError', "function 'next' failed: ValueError: no", true],
    ['Refused', 'Throttled', 'Throttled: too many', true],
  ]);
});

test('bytes are copied after the call has begun', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => pilotlight.invoke('next', { payload: 1, data: new Uint16Array([1, 2, 3]).subarray(1) });`);
  const { daemon, answer } = await invoked(worker, {});
  const made = await daemon.asked();
  assert.strictEqual(made.ask.len, 4);
  const file = daemon.give(made.ask);
  const call = await daemon.asked();
  assert.deepStrictEqual([call.ask.op, call.ask.buffer], ['call', made.ask.id]);
  const seal = await daemon.asked();
  assert.deepStrictEqual([seal.ask.op, seal.ask.buffer], ['seal', made.ask.id]);
  assert.deepStrictEqual([...fs.readFileSync(file)], [2, 0, 3, 0]);
  daemon.answer(seal.ask.id);
  daemon.answer(call.ask.id, '"done"');
  assert.strictEqual(await answer, 'done');
  assert.deepStrictEqual((await daemon.asked()).ask, { op: 'release', buffer: made.ask.id });
});

test('a map keeps the order, runs sixteen at a time, and has one copy of the data', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => pilotlight.map('part', Array.from({ length: 20 }, (_, n) => ({ n })), { data: Buffer.from('all') });`);
  const { daemon, answer } = await invoked(worker, {});
  const made = await daemon.asked();
  daemon.give(made.ask);
  // The data is copied beside the calls, so its end comes before, among or after them.
  let sealed = false;
  const nextCall = async () => {
    for (;;) {
      const one = await daemon.asked();
      if (one.ask.op !== 'seal') {
        assert.deepStrictEqual([one.ask.op, one.ask.buffer], ['call', made.ask.id]);
        return one;
      }
      assert.ok(!sealed, 'one copy');
      sealed = true;
      daemon.answer(one.ask.id);
    }
  };
  const calls = [];
  while (calls.length < 16) {
    calls.push(await nextCall());
  }
  // The rest comes only when some have answered.
  let early = true;
  const seventeenth = nextCall().finally(() => assert.ok(!early, 'sixteen at a time'));
  await new Promise((resolve) => setTimeout(resolve, 50));
  early = false;
  for (const { ask, body } of calls.reverse()) {
    daemon.answer(ask.id, body);
  }
  for (const one of [seventeenth, nextCall(), nextCall(), nextCall()]) {
    const { ask, body } = await one;
    daemon.answer(ask.id, body);
  }
  if (!sealed) {
    const { ask } = await daemon.asked();
    assert.strictEqual(ask.op, 'seal');
    daemon.answer(ask.id);
  }
  assert.deepStrictEqual(await answer, Array.from({ length: 20 }, (_, n) => ({ n })));
});

test('items of a map that fail are told when all have ended', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async ({ returnErrors }) => {
      try {
        return (await pilotlight.map('part', [1, 2, 3], { returnErrors })).map((one) => one.message ?? one);
      } catch (error) {
        return [error.name, error.message, error.results.map((one) => one.reason ?? one), [...error.errors.keys()]];
      }
    };`);
  for (const returnErrors of [false, true]) {
    const { daemon, answer } = await invoked(worker, { returnErrors });
    const calls = [await daemon.asked(), await daemon.asked(), await daemon.asked()];
    daemon.answer(calls[1].ask.id, '', { end: 'refused', reason: 'TooDeep', problem: 'no end' });
    daemon.answer(calls[2].ask.id, '3');
    daemon.answer(calls[0].ask.id, '1');
    const said = "1 of 3 calls of 'part' failed; number 1: TooDeep: no end";
    assert.deepStrictEqual(await answer, returnErrors ? [1, 'TooDeep: no end', 3] : ['MapError', said, [1, 'TooDeep', 3], [1]]);
  }
});

test('a buffer is filled in place, by a stream and by another program, and its holes become zeros', async () => {
  const worker = await serving(`${FUNCTION}
    const { pipeline } = require('node:stream/promises');
    const { execFileSync } = require('node:child_process');
    exports.handler = async () => {
      const buffer = await pilotlight.buffer(1 << 20);
      await buffer.write(Buffer.from('abc'));
      await pipeline(async function* () { yield Buffer.from('12'); yield Buffer.from('3'); }, buffer.stream(3));
      execFileSync('/bin/sh', ['-c', 'printf xyz | dd of=' + buffer.path + ' bs=1 seek=6 conv=notrunc 2>&1']);
      const wrong = [await told(buffer.write(Buffer.alloc(2), (1 << 20) - 1)), await told(buffer.write('text'))];
      const open = buffer.stream();
      const inUse = await told(pilotlight.invoke('next', { data: buffer }));
      await new Promise((resolve) => open.end(resolve));
      const [first, second] = await Promise.all([1, 2].map((payload) => pilotlight.invoke('next', { payload, data: buffer })));
      const late = [await told(buffer.write(Buffer.from('x'))), await told((async () => buffer.path)())];
      buffer.release();
      return [wrong, inUse, first, second, late, await told(pilotlight.invoke('next', { data: buffer }))].flat(2).map(String);
    };`);
  const { daemon, answer } = await invoked(worker, {});
  const made = await daemon.asked();
  const file = daemon.give(made.ask, false);
  const refused = await daemon.asked();
  assert.deepStrictEqual([refused.ask.op, refused.ask.buffer], ['call', made.ask.id]);
  const call = await daemon.asked();
  let again = await daemon.asked();
  let seal = await daemon.asked();
  if (again.ask.op === 'seal') {
    [again, seal] = [seal, again];
  }
  assert.deepStrictEqual([seal.ask.op, again.ask.op], ['seal', 'call']);
  assert.strictEqual(fs.readFileSync(file, 'utf8').slice(0, 10), 'abc123xyz\0');
  assert.ok(fs.statSync(file).blocks * 512 >= 1 << 20, 'all of it is there');
  daemon.answer(seal.ask.id);
  daemon.answer(call.ask.id, '1');
  assert.deepStrictEqual([call.ask.buffer, again.ask.buffer], [made.ask.id, made.ask.id]);
  daemon.answer(again.ask.id, '2');
  const said = await answer;
  for (const text of ['do not fit into a buffer', 'bytes are a Buffer', 'something still writes to the buffer', 'was handed over', 'the buffer was released']) {
    assert.ok(said.some((/** @type {string} */ one) => one.includes(text)), `${text}: ${said}`);
  }
});

test('parts are told as they come, and those that do not fit give the call up', async () => {
  const worker = await serving(`${FUNCTION}
    async function* parts(count) { for (let n = 0; n < count; n += 1) yield Buffer.alloc(1 << 20, n); }
    exports.handler = async ({ count, size }) => told(pilotlight.invoke('next', { data: parts(count), size }));`);
  const { daemon, answer } = await invoked(worker, { count: 3, size: 3 << 20 });
  const made = await daemon.asked();
  const file = daemon.give(made.ask);
  const seen = [];
  for (;;) {
    const { ask } = await daemon.asked();
    seen.push([ask.op, ask.len]);
    if (ask.op === 'seal') {
      daemon.answer(ask.id);
      break;
    }
  }
  assert.deepStrictEqual(seen, [['call', undefined], ['filled', 1 << 20], ['filled', 2 << 20], ['filled', 3 << 20], ['seal', undefined]]);
  assert.strictEqual(fs.readFileSync(file)[(2 << 20) + 1], 2);
  daemon.answer(made.ask.id + 1, '7');
  assert.strictEqual(await answer, 7);
  for (const [count, size, text] of [[2, 5, 'more than the 5 bytes'], [1, 3 << 20, 'data has 1048576 bytes, and size says']]) {
    const one = await invoked(worker, { count, size });
    one.daemon.give((await one.daemon.asked()).ask);
    const [name, , message] = await one.answer;
    assert.deepStrictEqual([name, message.includes(text)], ['RangeError', true], message);
    const ops = [];
    for (let op = ''; op !== 'release'; ops.push(op)) {
      op = (await one.daemon.asked()).ask.op;
    }
    assert.ok(!ops.includes('seal'), String(ops));
  }
});

test('an input is handed on by its name, without being read', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const given = await pilotlight.invoke('next', { data: pilotlight.input('photo') });
      return [given, await told(pilotlight.invoke('next', { data: pilotlight.input('none') }))];
    };`);
  const inputs = [{ name: 'photo', kind: 'memory', len: 3, path: '/nowhere' }];
  const { daemon, answer } = await invoked(worker, {}, { inputs });
  const first = await daemon.asked();
  assert.deepStrictEqual([first.ask.op, first.ask.input, first.ask.buffer], ['call', 'photo', undefined]);
  daemon.answer(first.ask.id, '1');
  const second = await daemon.asked();
  daemon.answer(second.ask.id, '', { end: 'refused', reason: 'NotFound', problem: 'this invocation has no such input' });
  assert.deepStrictEqual((await answer)[1].slice(0, 2), ['Refused', 'NotFound']);
});

test('a wrong argument ends no other call', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const wrong = [
        pilotlight.buffer(-1), pilotlight.buffer(1.5), pilotlight.buffer('1'), pilotlight.invoke(5), pilotlight.invoke('t\\ud800'),
        pilotlight.invoke('next', { data: 'text' }), pilotlight.invoke('next', { data: 5 }), pilotlight.invoke('next', { data: 5, size: 5 }),
        pilotlight.invoke('next', { payload: () => {} }), pilotlight.invoke('next', { payload: 'x'.repeat(8 << 20) }),
        pilotlight.invoke('x'.repeat(5000)),
      ];
      const names = [];
      for (const one of wrong) names.push((await told(one)).slice(0, 2).filter((word) => word !== null).join(' '));
      return [names, await pilotlight.invoke('next')];
    };`);
  const { daemon, answer } = await invoked(worker, {});
  const { ask } = await daemon.asked();
  daemon.answer(ask.id, '7');
  const kinds = ['RangeError', 'RangeError', 'RangeError', 'TypeError', 'TypeError', 'TypeError', 'TypeError', 'TypeError', 'TypeError'];
  assert.deepStrictEqual(await answer, [[...kinds, 'Refused TooLarge', 'Refused NotFound'], 7]);
});

test('without invokes it says what to do, and nobody connects who does not call', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async (event) => event.call ? told(pilotlight.invoke('next')) : 1;`);
  const [name, , message] = await worker.result({ call: true });
  assert.deepStrictEqual([name, message.includes('invokes = ')], ['InvokeError', true]);
  const { daemon, answer } = await invoked(worker, {});
  assert.strictEqual(await answer, 1);
  assert.strictEqual(daemon.connections, 0);
});

test('the end of the invocation ends its calls, closes its files, and is told to who waits', async () => {
  const worker = await serving(`${FUNCTION}
    let left = null;
    exports.handler = async (event) => {
      if (event.leave) {
        const buffer = await pilotlight.buffer(5);
        left = [told(pilotlight.invoke('next')), buffer];
        return fs.readdirSync('/proc/self/fd').length;
      }
      const [ended, buffer] = left;
      return [await ended, await told(buffer.write(Buffer.from('x'))), fs.readdirSync('/proc/self/fd').length];
    };`);
  const { daemon, answer } = await invoked(worker, { leave: true });
  daemon.give((await daemon.asked()).ask);
  const open = await answer;
  await patient(daemon.closed, 'the end of the connection');
  const [ended, write, count] = await worker.result({});
  assert.deepStrictEqual(ended, ['InvokeError', null, 'the invocation is over, and its calls ended with it', true]);
  assert.ok(write[2].includes('handed over or released'), write[2]);
  assert.ok(count < open, `${count} of ${open}`);
});

test('a call that the handler does not wait for does not end the worker', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async (event) => {
      if (event.left) {
        pilotlight.invoke('next');
        pilotlight.map('next', [1, 2]);
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
      return event.left;
    };`);
  const { answer } = await invoked(worker, { left: true });
  assert.strictEqual(await answer, true);
  assert.strictEqual(await worker.result({ left: false }), false);
});

test('a handler that waits for an answer keeps its process, and one that waits for nothing has none', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => { await pilotlight.invoke('next'); await new Promise(() => {}); };`);
  const daemon = new Daemon(worker);
  daemons.push(daemon);
  const error = worker.error({}, { inputs: [await daemon.input()] });
  const { ask } = await daemon.asked();
  daemon.answer(ask.id, '1');
  assert.strictEqual((await error).errorType, 'Runtime.NodeJsExit');
});

test('invocations at the same time have calls of their own', async () => {
  const worker = await serving(
    `${FUNCTION}
    exports.handler = async (event) => pilotlight.invoke(event.to);`,
    { concurrency: 2 },
  );
  const one = new Daemon(worker);
  const other = new Daemon(worker);
  daemons.push(one, other);
  worker.ask({ to: 'a' }, { id: REQUEST_ID, inputs: [await one.input()] });
  worker.ask({ to: 'b' }, { id: OTHER_ID, inputs: [await other.input()] });
  const [a, b] = [await one.asked(), await other.asked()];
  assert.deepStrictEqual([a.ask.function, b.ask.function], ['a', 'b']);
  other.answer(b.ask.id, '"b"');
  assert.strictEqual(String((await worker.frame()).body), '"b"');
  one.answer(a.ask.id, '"a"');
  assert.strictEqual(String((await worker.frame()).body), '"a"');
});
