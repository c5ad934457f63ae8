'use strict';

const assert = require('node:assert');
const { beforeEach, test } = require('node:test');

const redis = require('../lib/drop_ins/redis.js');
const { NO_REQUEST } = require('../lib/output.js');

/** @typedef {import('../lib/input.js').Input} Input */

const STORE = { host: 'localhost', port: 6379, database: 0, key: 'state' };
const NUMBER = { ...STORE, key: '5' };
const OTHER = { ...STORE, host: 'other' };

/** What the server was asked. @type {any[]} */
let asked = [];
const { given } = redis;

/** What the drop-in uses of node-redis's client. */
class Client {
  isOpen = true;
  _self = this;
  /** @param {object} options */
  constructor(options = {}) {
    this.options = options;
  }
  /** @param {any[]} args */
  async sendCommand(args) {
    asked.push(args);
    return 'server';
  }
  /** @param {{args: any[]}[]} commands */
  async _executeMulti(commands) {
    asked.push(...commands.map(({ args }) => args));
  }
}
redis.patch({ default: Client });

beforeEach(() => {
  asked = [];
  begin();
});

/** An invocation begins with these inputs, and the one before has ended. */
function begin() {
  given.clear();
  for (const store of [STORE, NUMBER, OTHER]) {
    const input = { store, invocation: NO_REQUEST, buffer: () => Buffer.from('input') };
    given.add(/** @type {Input} */ (/** @type {unknown} */ (input)));
  }
}

/** @param {Client} client */
const get = (client, key = 'state') => client.sendCommand(['GET', key]);

test('after SELECT, the server answers, in later invocations too', async () => {
  for (const select of [
    (/** @type {Client} */ client) => client.sendCommand(['SELECT', '1']),
    (/** @type {Client} */ client) => client._executeMulti([{ args: ['select', '1'] }]),
    (/** @type {Client} */ client) => Object.create(client).sendCommand(['SELECT', '1']),
    (/** @type {Client} */ client) => client.sendCommand(['RESET']),
  ]) {
    const client = new Client();
    const other = new Client();
    assert.strictEqual(await get(client), 'input');
    given.clear();
    await select(client);
    begin();
    assert.deepStrictEqual([await get(client), await get(Object.create(client)), await get(other)], ['server', 'server', 'input']);
  }
});

test('a client with a Unix socket asks its server, and what it writes is noted', async () => {
  const client = new Client({ socket: { path: '/run/redis' } });
  const local = new Client();
  assert.deepStrictEqual([await get(client), await get(local)], ['server', 'input']);
  await client.sendCommand(['SET', 'state', 'new']);
  assert.deepStrictEqual([await get(local), await get(local, '5')], ['server', 'input']);
});

test('a key is forgotten in all databases of the server that a command may write to', async () => {
  const local = new Client();
  await new Client({ database: 1 }).sendCommand(['COPY', 'x', 'state', 'DB', '0']);
  assert.deepStrictEqual([await get(local), await get(local, '5')], ['server', 'input']);
  assert.strictEqual(await get(new Client({ socket: { host: 'OTHER' } })), 'input');
});

test('a command with an argument of another type may write to any key of its server', async () => {
  const local = new Client();
  await local.sendCommand(['SET', Buffer.from('5'), 'new']);
  assert.deepStrictEqual([await get(local, '5'), await get(local)], ['server', 'input']);
  begin();
  await local.sendCommand(['SET', 5, 'new']);
  assert.deepStrictEqual([await get(local, '5'), await get(local)], ['server', 'server']);
  assert.strictEqual(await get(new Client({ socket: { host: 'other' } })), 'input');
});
