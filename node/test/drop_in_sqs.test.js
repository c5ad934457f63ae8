'use strict';

const assert = require('node:assert');
const { createHash } = require('node:crypto');
const { beforeEach, test } = require('node:test');
const { text } = require('node:stream/consumers');

const sqs = require('../lib/drop_ins/sqs.js');
const { NO_REQUEST } = require('../lib/output.js');

/** @typedef {import('../lib/input.js').Input} Input */

const HOST = 'queues.example';
const QUEUE = `http://${HOST}:9324/1/tasks`;

beforeEach(() => sqs.given.clear());

/**
 * What a script got that has asked for messages.
 * @param {string[]} receipts
 * @param {object} [asked] the arguments
 */
function received(receipts, asked = {}) {
  const answer = { Messages: receipts.map((ReceiptHandle) => ({ ReceiptHandle })) };
  return added({ action: 'ReceiveMessage', arguments_sha256: digest(JSON.stringify(asked)) }, answer);
}

/** @param {string} json the arguments, with their names in order */
const digest = (json) => createHash('sha256').update(json).digest('hex');

/**
 * @param {object} store
 * @param {unknown} answer
 */
function added(store, answer) {
  const bytes = Buffer.from(JSON.stringify(answer));
  const input = { name: 'init.0', invocation: NO_REQUEST, size: bytes.length, store: { kind: 'sqs', url: QUEUE, ...store }, buffer: () => bytes };
  sqs.given.add(/** @type {Input} */ (/** @type {unknown} */ (input)));
  return /** @type {Input} */ (/** @type {unknown} */ (input));
}

/**
 * Receipts, an answer of another kind, or `server`.
 * @param {string} action
 * @param {object} [asked]
 * @param {{queue?: string, hostname?: string}} [where]
 * @returns {Promise<any>}
 */
async function ask(action, asked = {}, { queue = QUEUE, hostname = HOST } = {}) {
  const body = JSON.stringify({ QueueUrl: queue, ...asked });
  const request = { protocol: 'http:', hostname, port: 9324, headers: {}, body };
  const response = sqs.given.call(sqs.writtenBy(`${action}Command`, request), () => sqs.answer(`${action}Command`, request));
  if (response === null) {
    return 'server';
  }
  const { Messages: messages, ...rest } = JSON.parse(await text(/** @type {any} */ (response).body));
  return messages?.map((/** @type {{ReceiptHandle: string}} */ one) => one.ReceiptHandle) ?? rest;
}

test('a message is an answer once, and not after its invocation', async () => {
  received(['one']);
  received(['two']);
  assert.deepStrictEqual([await ask('ReceiveMessage'), await ask('ReceiveMessage')], [['one'], ['two']]);
  assert.strictEqual(await ask('ReceiveMessage'), 'server');
  sqs.given.remove(received(['three']));
  assert.strictEqual(await ask('ReceiveMessage'), 'server');
});

test('a call that differs goes to the queue', async () => {
  const same = { MaxNumberOfMessages: 2, MessageAttributeNames: ['a', 'b'], WaitTimeSeconds: 1 };
  received(['one', 'two'], same);
  for (const change of [
    { MaxNumberOfMessages: 1 },
    { MaxNumberOfMessages: 10 },
    { MaxNumberOfMessages: undefined },
    { WaitTimeSeconds: 2 },
    { VisibilityTimeout: 60 },
    { MessageAttributeNames: ['a'] },
    { ReceiveRequestAttemptId: '1' },
  ]) {
    assert.strictEqual(await ask('ReceiveMessage', { ...same, ...change }), 'server', JSON.stringify(change));
  }
  assert.strictEqual(await ask('ReceiveMessage', same, { queue: `${QUEUE}2` }), 'server');
  assert.strictEqual(await ask('ReceiveMessage', same, { hostname: 'other.example' }), 'server');
  const otherwise = { WaitTimeSeconds: 1, MaxNumberOfMessages: 2, MessageAttributeNames: ['a', 'b'] };
  assert.deepStrictEqual(await ask('ReceiveMessage', otherwise), ['one', 'two']);
});

test('that there was no message is an answer once', async () => {
  received([]);
  assert.deepStrictEqual([await ask('ReceiveMessage'), await ask('ReceiveMessage')], [[], 'server']);
});

test('what a script has sent is not sent again, and what it has deleted is', async () => {
  const json = '{"MessageAttributes":{"b":{"DataType":"String","StringValue":"1"}},"MessageBody":"a \\"task\\"\\n\\u0001 ä"}';
  const sent = { MessageBody: 'a "task"\n\u0001 ä', MessageAttributes: { b: { StringValue: '1', DataType: 'String' } } };
  const arguments_sha256 = digest(json);
  added({ action: 'SendMessage', arguments_sha256 }, { MessageId: '1' });
  added({ action: 'DeleteMessage', arguments_sha256 }, {});
  assert.strictEqual(await ask('SendMessage', { ...sent, MessageBody: 'another' }), 'server');
  assert.deepStrictEqual(await ask('SendMessage', sent), { MessageId: '1' });
  assert.deepStrictEqual([await ask('SendMessage', sent), await ask('DeleteMessage', sent)], ['server', 'server']);
});

test('what the function has changed is asked of the queue', async () => {
  const arguments_sha256 = digest('{}');
  const attributes = () => added({ action: 'GetQueueAttributes', arguments_sha256 }, { Attributes: {} });
  attributes();
  assert.deepStrictEqual(await ask('GetQueueAttributes'), { Attributes: {} });
  attributes();
  received(['one']);
  await ask('DeleteMessage');
  assert.deepStrictEqual([await ask('GetQueueAttributes'), await ask('ReceiveMessage')], ['server', ['one']]);
  received(['two']);
  await ask('PurgeQueue', {}, { queue: `${QUEUE}2` });
  await ask('PurgeQueue');
  assert.strictEqual(await ask('ReceiveMessage'), 'server');
});
