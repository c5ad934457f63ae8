// The drop-in for `@aws-sdk/client-sqs`: a call answers from what the initscript got for the same one, once.
//
// The same means the action, the URL of the queue, and all arguments. An answer is one once, however many calls ask for it: what a script
// has received is received, and what it has sent is sent. What deletes or returns a message goes to the server, and so does all else.
'use strict';

const { createHash } = require('node:crypto');
const { Readable } = require('node:stream');

const { Given } = require('./given.js');

/** @typedef {Record<string, any>} Arguments */

const CLIENT = '@aws-sdk/client-sqs';
const CLIENT_FILE = /[\\/]@aws-sdk[\\/]client-sqs[\\/]dist-cjs[\\/]index\.js$/;
const ANSWERED = new Set(['ReceiveMessage', 'SendMessage', 'SendMessageBatch', 'GetQueueAttributes']);
const READING = /^(?:Get|List)/;
const EMPTYING = new Set(['PurgeQueue', 'DeleteQueue']);

/** The answers to the scripts of the running invocations, by action and queue. The oldest is first. */
const given = new Given(({ action, url }) => [placeOf(action, url)], (place) => [place]);

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
  const action = actionOf(command);
  const asked = argumentsOf(request);
  if (asked === null) {
    return null; // it is about no queue, or in the older protocol
  }
  const { QueueUrl: queue, ...others } = asked;
  const server = `${request.protocol}//${request.hostname}${request.port ? `:${request.port}` : ''}`;
  const place = placeOf(action, queue);
  // The queue of another server may have the same URL: some servers do not look at its host.
  const isThere = ANSWERED.has(action) && parsed(server).origin === parsed(queue).origin;
  const there = isThere ? given.of(place) : [];
  const wanted = there.length > 0 ? digestOf(others) : '';
  const found = there.find((input) => input.store.arguments_sha256 === wanted);
  if (found === undefined) {
    return null;
  }
  given.remove(found);
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
 * What a call changes of a queue: from then on, the server says it.
 * @param {string} command
 * @param {{body?: unknown}} request
 */
function writtenBy(command, request) {
  const action = actionOf(command);
  const queue = READING.test(action) ? undefined : argumentsOf(request)?.QueueUrl;
  if (queue === undefined) {
    return [];
  }
  return (EMPTYING.has(action) ? [...ANSWERED] : ['GetQueueAttributes']).map((changed) => placeOf(changed, queue));
}

/** @param {string} command */
const actionOf = (command) => command.replace(/Command$/, '');

module.exports = { isClient, answer, given, writtenBy };
