'use strict';

const assert = require('node:assert');
const { execFileSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const path = require('node:path');
const { after, afterEach, before, test } = require('node:test');

const { cleanUp, serving } = require('./harness.js');

/** What the server was asked: method, target, body. @type {string[]} */
let asked = [];
const server = http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString();
  asked.push(`${request.method} ${request.url} ${body}`);
  response.setHeader('x-from', 'server');
  response.end(`server ${body}`);
});
let site = '';

before(async () => {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
  site = `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (server.address()).port}`;
});
after(() => server.close());
afterEach(async () => {
  asked = [];
  await cleanUp();
});

/**
 * The response to a script's request.
 * @param {import('./harness.js').Worker} worker
 * @param {number} id
 * @param {string} method
 * @param {string} target
 * @param {string} text
 * @param {{body?: string, status?: number, headers?: [string, string][]}} [more]
 */
function got(worker, id, method, target, text, { body = '', status = 200, headers = [['content-type', 'text/plain'], ['x-from', 'script']] } = {}) {
  const file = path.join(worker.folder, `message-${id}`);
  fs.writeFileSync(file, text);
  const body_sha256 = body === '' ? '' : createHash('sha256').update(body).digest('hex');
  const store = { kind: 'http', method, url: `${site}${target}`, body_sha256, status, headers };
  return { name: `init.${id}`, kind: 'memory', len: text.length, path: file, store };
}

const CLIENTS = `
  const http = require('node:http');
  const byFetch = async ([method, url, body, headers]) => {
    const response = await fetch(url, { method, body, headers });
    return [response.status, await response.text(), response.headers.get('x-pilot-input'), response.url === url];
  };
  const byRequest = ([method, url, body, headers]) => new Promise((resolve, reject) => {
    const request = http.request(url, { method, headers }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('end', () => resolve([response.statusCode, String(Buffer.concat(chunks)), response.headers['x-pilot-input'] ?? null, true]));
    });
    request.on('error', reject);
    request.end(body);
  });
  const byGet = ([, url]) => new Promise((resolve, reject) => {
    http.get(url, async (response) => {
      const chunks = [];
      for await (const chunk of response) chunks.push(chunk);
      resolve([response.statusCode, String(Buffer.concat(chunks)), response.headers['x-pilot-input'] ?? null, true]);
    }).on('error', reject);
  });
  const clients = { byFetch, byRequest, byGet };
  exports.handler = async ({ client, ask }) => {
    const told = [];
    for (const one of ask) told.push(await clients[client](one));
    return told;
  };`;

const specification = { drop_ins: ['http'] };

for (const client of ['byFetch', 'byRequest']) {
  test(`a request answers once from what the script got: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    const inputs = [got(worker, 1, 'GET', '/a?x=1', 'first'), got(worker, 2, 'GET', '/a?x=1', 'second'), got(worker, 3, 'POST', '/b', 'third', { body: 'task' })];
    const ask = [
      ['GET', `${site}/a?x=1`],
      ['POST', `${site}/b`, 'task'],
      ['GET', `${site}/a?x=1`],
      ['GET', `${site}/a?x=1`],
      ['POST', `${site}/b`, 'task'],
    ];
    assert.deepStrictEqual(await worker.result({ client, ask }, { inputs }), [
      [200, 'first', 'init.1', true],
      [200, 'third', 'init.3', true],
      [200, 'second', 'init.2', true],
      [200, 'server ', null, true],
      [200, 'server task', null, true],
    ]);
    assert.deepStrictEqual(asked, ['GET /a?x=1 ', 'POST /b task']);
    // They belong to their invocation.
    assert.deepStrictEqual(await worker.result({ client, ask: ask.slice(0, 1) }), [[200, 'server ', null, true]]);
  });

  test(`what is not the same goes to the server: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    const inputs = [got(worker, 1, 'GET', '/a', 'mine'), got(worker, 2, 'POST', '/b', 'mine', { body: 'task' })];
    const ask = [
      ['GET', `${site}/other`],
      ['POST', `${site}/a`],
      ['POST', `${site}/b`, 'another task'],
      ['GET', `${site}/a`, undefined, { Authorization: 'Bearer x' }],
      ['GET', `${site}/a`, undefined, { range: 'bytes=0-1' }],
    ];
    const told = await worker.result({ client, ask }, { inputs });
    assert.deepStrictEqual(told.map((/** @type {any[]} */ [, , input]) => input), [null, null, null, null, null]);
    assert.deepStrictEqual(told[2].slice(0, 2), [200, 'server another task']);
    assert.strictEqual(asked.length, ask.length);
  });
}

test('http.get answers, and a long body passes whole', async () => {
  const worker = await serving(CLIENTS, specification);
  const long = 'x'.repeat(1_000_000);
  const told = await worker.result({ client: 'byGet', ask: [['GET', `${site}/long`]] }, { inputs: [got(worker, 1, 'GET', '/long', long)] });
  assert.deepStrictEqual(told, [[200, long, 'init.1', true]]);
});

test('a redirect is answered for http and followed by fetch at the server', async () => {
  const worker = await serving(CLIENTS, specification);
  const moved = { status: 302, headers: /** @type {[string, string][]} */ ([['location', '/new']]) };
  for (const [client, status, input] of [['byRequest', 302, 'init.1'], ['byFetch', 200, null]]) {
    const told = await worker.result({ client, ask: [['GET', `${site}/old`]] }, { inputs: [got(worker, 1, 'GET', '/old', 'moved', moved)] });
    assert.deepStrictEqual([told[0][0], told[0][2]], [status, input]);
  }
});

test('a body that is made while it is sent, an agent and a connection of their own go to the server', async () => {
  const worker = await serving(`
    const http = require('node:http');
    const net = require('node:net');
    const send = (url, options, parts) => new Promise((resolve, reject) => {
      const request = http.request(url, { method: 'POST', ...options }, (response) => {
        response.resume();
        response.on('end', () => resolve(response.headers['x-pilot-input'] ?? null));
      });
      request.on('error', reject);
      parts.forEach((part) => request.write(part));
      request.end();
    });
    class Other extends http.Agent {}
    exports.handler = async (url) => [
      await send(url, {}, ['ta', 'sk']),
      await send(url, { agent: new Other() }, ['task']),
      await send(url, { createConnection: ({ port, host }) => net.connect({ port, host }), headers: { 'content-length': 4 } }, ['task']),
      await send(url, { agent: new http.Agent({ keepAlive: true }), headers: { 'content-length': 4 } }, ['ta', 'sk']),
    ];`, specification);
  const inputs = [got(worker, 1, 'POST', '/b', 'mine', { body: 'task' })];
  assert.deepStrictEqual(await worker.result(`${site}/b`, { inputs }), [null, null, null, 'init.1']);
  assert.deepStrictEqual(asked, ['POST /b task', 'POST /b task', 'POST /b task']);
});

test('a request over TLS that is another one after all goes to the server', async () => {
  const worker = await serving(
    CLIENTS.replace("require('node:http')", "require('node:https')").replace('{ method, headers }', '{ method, headers, rejectUnauthorized: false }'),
    specification,
  );
  const [key, certificate] = ['key', 'certificate'].map((name) => path.join(worker.folder, name));
  const names = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-subj', '/CN=localhost'];
  execFileSync('openssl', ['req', '-x509', ...names, '-keyout', key, '-out', certificate], { stdio: 'ignore' });
  const secure = https.createServer({ key: fs.readFileSync(key), cert: fs.readFileSync(certificate) }, (request, response) => {
    request.on('data', (chunk) => response.write(`server ${chunk}`));
    request.on('end', () => response.end());
  });
  await new Promise((resolve) => secure.listen(0, '127.0.0.1', () => resolve(undefined)));
  const url = `https://localhost:${/** @type {import('node:net').AddressInfo} */ (secure.address()).port}/b`;
  const answer = got(worker, 1, 'POST', '/b', 'mine', { body: 'task' });
  answer.store.url = url;
  try {
    const ask = [['POST', url, 'another task'], ['POST', url, 'task']];
    assert.deepStrictEqual(await worker.result({ client: 'byRequest', ask }, { inputs: [answer] }), [
      [200, 'server another task', null, true],
      [200, 'mine', 'init.1', true],
    ]);
  } finally {
    secure.close();
  }
});

test('those who import the functions by name get answers, too', async () => {
  const worker = await serving(
    {
      'index.mjs': `
        import { get } from 'node:http';
        export const handler = (url) => new Promise((resolve, reject) => {
          get(url, (response) => { response.resume(); resolve(response.headers['x-pilot-input'] ?? null); }).on('error', reject);
        });`,
    },
    specification,
  );
  assert.strictEqual(await worker.result(`${site}/a`, { inputs: [got(worker, 1, 'GET', '/a', 'mine')] }), 'init.1');
});

test('a function without answers has the clients as they are', async () => {
  const worker = await serving('exports.handler = async () => [fetch.name, String(fetch).includes("answerOrFetch"), require("http").get.name];');
  const [name, isPatched, get] = await worker.result({});
  assert.deepStrictEqual([name, isPatched, get], ['fetch', false, 'get']);
});
