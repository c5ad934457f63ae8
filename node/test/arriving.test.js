'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const { cleanUp, patient, serving } = require('./harness.js');

afterEach(cleanUp);

/** A script that goes on, as the daemon plays it for one invocation. */
class Script {
  #server;
  /** @type {Promise<net.Socket>} */
  #connected;
  /** What the worker has sent. */
  heard = Buffer.alloc(0);
  /** @type {Array<() => void>} */
  #onHeard = [];

  /** @param {import('./harness.js').Worker} worker */
  constructor(worker) {
    this.folder = worker.folder;
    this.path = path.join(worker.folder, `script-${Math.random()}`);
    this.#server = net.createServer({ allowHalfOpen: true });
    this.#connected = new Promise((resolve) => {
      this.#server.once('connection', (socket) => {
        this.#server.close();
        socket.on('error', () => {});
        socket.on('data', (/** @type {Buffer} */ chunk) => {
          this.heard = Buffer.concat([this.heard, chunk]);
          this.#onHeard.splice(0).forEach((resolved) => resolved());
        });
        resolve(socket);
      });
    });
  }

  /** The input that leads to it. @returns {Promise<{name: string, kind: string, path: string}>} */
  async input() {
    await new Promise((resolve) => this.#server.listen(this.path, () => resolve(undefined)));
    return { name: ':init', kind: 'script', path: this.path };
  }

  /** @param {Record<string, unknown>[]} notes */
  async say(...notes) {
    const parts = notes.flatMap((note) => {
      const json = Buffer.from(JSON.stringify(note));
      const length = Buffer.alloc(4);
      length.writeUInt32LE(json.length);
      return [length, json];
    });
    (await patient(this.#connected, 'the connection of the worker')).write(Buffer.concat(parts));
  }

  /** A message, whose file is in the worker's folder. @param {number} id @param {string} text */
  message(id, text) {
    const file = path.join(this.folder, `message-${id}`);
    fs.writeFileSync(file, text);
    return { op: 'message', id: String(id), len: text.length, path: file };
  }

  /** Waits for so many bytes of the worker. @param {number} len */
  async hears(len) {
    while (this.heard.length < len) {
      await patient(new Promise((resolve) => this.#onHeard.push(() => resolve(undefined))), 'a message of the worker');
    }
    return this.heard;
  }

  async close() {
    (await this.#connected).destroy();
  }
}

const FUNCTION = `
  const { init } = require('pilotlight');
  const told = async (promise) => {
    try { return String(await promise); } catch (error) { return error.name + ': ' + error.message; }
  };`;

test('a handler waits for a message, and the script may be before or behind it', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const first = await told(init.promises.recvMsg(0));
      // It is here, so it need not be waited for.
      const again = init.recvMsg(0).toString();
      const path = await init.promises.path(0);
      const chunks = [];
      for await (const chunk of await init.promises.stream(1)) chunks.push(chunk);
      return [first, again, path !== '', String(Buffer.concat(chunks)), init.messages()];
    };`);
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  await script.say(script.message(0, 'early'));
  await script.say(script.message(1, 'late'));
  assert.deepStrictEqual(await answer, ['early', 'early', true, 'late', [0, 1]]);
  await script.close();
});

test('several wait at the same time, and what is not waited for says that it has not come', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const now = await told((async () => init.recvMsg(7))());
      const connection = await told((async () => init.getConn(3, 'tcp://db:1'))());
      return [now, connection, ...(await Promise.all([told(init.promises.recvMsg(7)), told(init.promises.recvMsg(7)), told(init.promises.recvMsg(8))]))];
    };`);
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  await script.say({ op: 'message', id: '8', problem: 'there is no such object' }, script.message(7, 'x'));
  const notYet = 'it has not come yet: wait for it with init.promises';
  assert.deepStrictEqual(await answer, [
    `NoMessage: message 7: ${notYet}`,
    `NoConnection: connection 3: ${notYet}`,
    'x',
    'x',
    'NoMessage: message 8: there is no such object',
  ]);
  await script.close();
});

test('the end of the script ends the wait and says why', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => [
      await told(init.promises.recvMsg(0)), await told(init.promises.getConn(1, 'tcp://db:1')), await told(init.promises.sendMsg(2, 'x')),
    ];`);
  for (const [problem, reason, end] of [
    ['it exited with status 7', 'it exited with status 7', ': it exited with status 7'],
    [undefined, 'the initscript did not send it', ''],
  ]) {
    const script = new Script(worker);
    const answer = worker.result({}, { inputs: [await script.input()] });
    await script.say({ op: 'end', problem });
    assert.deepStrictEqual(await answer, [
      `NoMessage: message 0: ${reason}`,
      `NoConnection: connection 1: ${problem ?? 'the initscript did not hand it over'}`,
      `NotSent: message 2: the initscript has ended${end}`,
    ]);
    await script.close();
  }
});

test('a daemon that closes the socket ends the wait', async () => {
  const worker = await serving(`${FUNCTION} exports.handler = async () => told(init.promises.recvMsg(0));`);
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  await script.close();
  assert.strictEqual(await answer, 'NoMessage: message 0: the invocation ended before the initscript');
});

test('a connection that comes later is given once, and by its address', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const elsewhere = await told(init.promises.getConn(3, 'tcp://other:1'));
      const socket = await init.promises.getConn(3, 'tcp://db:1');
      const [chunk] = await require('node:events').once(socket, 'data');
      socket.destroy();
      return [elsewhere, String(chunk), await told(init.promises.getConn(3, 'tcp://db:1'))];
    };`);
  const place = path.join(worker.folder, 'db');
  const server = net.createServer((socket) => socket.end('hello'));
  await new Promise((resolve) => server.listen(place, () => resolve(undefined)));
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  await script.say({ op: 'connection', id: '3', address: 'tcp://db:1', path: place });
  assert.deepStrictEqual(await answer, [
    'NoConnection: connection 3: it leads to tcp://db:1, and not to tcp://other:1',
    'hello',
    'NoConnection: connection 3: it was taken before',
  ]);
  await script.close();
  server.close();
});

test('a handler sends messages to its script, and what the script cannot get is not sent', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => {
      const data = new Uint8Array([1, 2, 3, 4]);
      return [
        await told(init.promises.sendMsg(5, data.subarray(1, 3))),
        await told(init.promises.sendMsg(5, 'again')),
        await told(init.promises.sendMsg(6, Buffer.alloc((1 << 20) + 1))),
        await told(init.promises.sendMsg(-1, 'x')),
      ];
    };`);
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  assert.deepStrictEqual(await script.hears(14), Buffer.from([5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 3]));
  assert.deepStrictEqual(await answer, [
    'undefined',
    'NotSent: message 5: a message with this id was sent before',
    'NotSent: message 6: it has 1048577 bytes, and a message to the initscript has at most 1048576',
    'RangeError: an id is a number from 0 to 18446744073709551615, and not -1',
  ]);
  assert.strictEqual(script.heard.length, 14);
  await script.close();
});

test('all messages of a handler have a limit', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async ({ count, len }) => {
      const all = [];
      for (let id = 0; id < count; id += 1) all.push(await told(init.promises.sendMsg(id, Buffer.alloc(len))));
      return all.filter((one) => one !== 'undefined');
    };`);
  for (const [count, len] of [[17, 0], [5, 1 << 20]]) {
    const script = new Script(worker);
    const answer = await worker.result({ count, len }, { inputs: [await script.input()] });
    const full = 'the initscript is full: it gets at most 16 messages, of 4194304 bytes in all';
    assert.deepStrictEqual(answer, [`NotSent: message ${count - 1}: ${full}`]);
    await script.close();
  }
});

test('a handler without a script beside it waits for nothing and cannot send', async () => {
  const worker = await serving(`${FUNCTION}
    exports.handler = async () => [await told(init.promises.recvMsg(0)), await told(init.promises.sendMsg(0, 'x'))];`);
  const [message, sent] = await worker.result({});
  assert.match(message, /^NoMessage: message 0: no initscript ran for this invocation/);
  assert.match(sent, /^NotSent: message 0: no initscript runs beside the handler/);
});

test('a script that goes on keeps no handler from its end', async () => {
  const worker = await serving('exports.handler = (event, context, callback) => { callback(null, "done"); };');
  const script = new Script(worker);
  assert.strictEqual(await worker.result({}, { inputs: [await script.input()] }), 'done');
  await script.close();
});

test('the client of a store answers from a message that comes during the call', async () => {
  const worker = await serving(
    {
      'index.js': `${FUNCTION}
        const client = require('@redis/client');
        exports.handler = async () => { await init.promises.recvMsg(0); return client.get('k'); };`,
      'node_modules/@redis/client/dist/index.js': `
        const { default: Client } = require('./lib/client');
        exports.get = (key) => new Client().sendCommand(['GET', key]);`,
      'node_modules/@redis/client/dist/lib/client/index.js': `
        exports.default = class Client {
          isOpen = true; options = { socket: { host: 'cache', port: 6379 } };
          async sendCommand() { return 'from the server'; }
        };`,
      'node_modules/@redis/client/package.json': '{"main": "dist/index.js"}',
    },
    { drop_ins: ['redis'] },
  );
  const script = new Script(worker);
  const answer = worker.result({}, { inputs: [await script.input()] });
  await script.say({ ...script.message(0, 'v'), store: { kind: 'redis', host: 'cache', port: 6379, database: 0, key: 'k' } });
  assert.strictEqual(await answer, 'v');
  await script.close();
});
