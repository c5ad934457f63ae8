// The drop-in for `@aws-sdk/client-sqs`: a call answers from what the initscript got for the same one, once.
//
// The same means the action, the URL of the queue, and all arguments. An answer is one once, however many calls ask for it: what a script
// has received is received, and what it has sent is sent. What deletes or returns a message goes to the server, and so does all else.
'use strict';

const { createHash } = require('node:crypto');
const { Readable } = require('node:stream');

/** @typedef {import('../input.js').Input} Input */
/** @typedef {Record<string, any>} Arguments */

const CLIENT = '@aws-sdk/client-sqs';
const CLIENT_FILE = /[\\/]@aws-sdk[\\/]client-sqs[\\/]dist-cjs[\\/]index\.js$/;
const ANSWERED = new Set(['ReceiveMessage', 'SendMessage', 'SendMessageBatch', 'GetQueueAttributes']);
const READING = /^(?:Get|List)/;
const EMPTYING = new Set(['PurgeQueue', 'DeleteQueue']);

/** The answers to the scripts of the running invocations, by action and queue. The oldest is first. @type {Map<string, Input[]>} */
const given = new Map();

/** @param {Input} input */
function add(input) {
  const place = placeOf(input.store.action, input.store.url);
  given.set(place, [...(given.get(place) ?? []), input]);
}

/** @param {Input} input */
function remove(input) {
  const place = placeOf(input.store.action, input.store.url);
  const others = (given.get(place) ?? []).filter((other) => other !== input);
  if (others.length > 0) {
    given.set(place, others);
  } else {
    given.delete(place);
  }
}

/**
 * @param {string} action
 * @param {string} queue its URL
 */
function placeOf(action, queue) {
  const { origin, pathname } = parsed(queue);
  return `${action} ${origin}${pathname.replace(/\/+$/, '')}`;
}

/**
 * A URL without what makes no difference: the case of the host, and a default port.
 * @param {string} url
 */
function parsed(url) {
  try {
    return new URL(url);
  } catch {
    return { origin: '', pathname: url };
  }
}

/** @param {unknown} request what was loaded */
const isClient = (request) => typeof request === 'string' && (request === CLIENT || CLIENT_FILE.test(request));

/**
 * The response, or null if the server must be asked.
 * @param {string} command
 * @param {{protocol: string, hostname: string, port?: number, headers: Record<string, string>, body?: unknown}} request
 */
function answer(command, request) {
  const action = command.replace(/Command$/, '');
  const asked = argumentsOf(request);
  if (asked === null) {
    return null; // it is about no queue, or in the older protocol
  }
  const { QueueUrl: queue, ...others } = asked;
  const server = `${request.protocol}//${request.hostname}${request.port ? `:${request.port}` : ''}`;
  const place = placeOf(action, queue);
  // The queue of another server may have the same URL: some servers do not look at its host.
  const isThere = ANSWERED.has(action) && parsed(server).origin === parsed(queue).origin;
  const there = isThere ? given.get(place) : undefined;
  const wanted = there && digestOf(others);
  const found = there?.find((input) => input.store.arguments_sha256 === wanted);
  if (found !== undefined) {
    remove(found);
  }
  if (!READING.test(action)) {
    forget(action, queue);
  }
  if (found === undefined) {
    return null;
  }
  const headers = {
    'content-type': 'application/x-amz-json-1.0',
    'content-length': String(found.size),
    'x-amzn-requestid': 'PILOTLIGHT',
    'x-pilot-input': found.name,
  };
  return { statusCode: 200, reason: 'OK', headers, body: Readable.from([found.buffer()]) };
}

/**
 * @param {{body?: unknown}} request
 * @returns {Arguments | null} with the queue's URL
 */
function argumentsOf({ body }) {
  if (typeof body !== 'string' && !(body instanceof Uint8Array)) {
    return null;
  }
  try {
    const asked = JSON.parse(typeof body === 'string' ? body : Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString());
    return typeof asked?.QueueUrl === 'string' ? asked : null;
  } catch {
    return null;
  }
}

/**
 * As the daemon has it.
 * @param {Arguments} asked
 */
function digestOf(asked) {
  return createHash('sha256').update(JSON.stringify(sorted(asked))).digest('hex');
}

/**
 * With the keys of all objects in order.
 * @param {unknown} value
 * @returns {unknown}
 */
function sorted(value) {
  if (Array.isArray(value)) {
    return value.map(sorted);
  }
  if (typeof value !== 'object' || value === null) {
    return value;
  }
  const pairs = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
  return Object.fromEntries(pairs.map(([name, one]) => [name, sorted(one)]));
}

/**
 * The function changes the queue: from now on, the server says what is true of it.
 * @param {string} action
 * @param {string} queue
 */
function forget(action, queue) {
  given.delete(placeOf('GetQueueAttributes', queue));
  if (EMPTYING.has(action)) {
    ANSWERED.forEach((answered) => given.delete(placeOf(answered, queue)));
  }
}

module.exports = { add, remove, isClient, answer, given };
