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
 * @param {{body?: string, status?: number, sent?: Record<string, string>, headers?: [string, string][]}} [more] `sent`: the script's headers
 */
function got(worker, id, method, target, text, { body = '', status = 200, sent = {}, headers = [['content-type', 'text/plain'], ['x-from', 'script']] } = {}) {
  const file = path.join(worker.folder, `message-${id}`);
  fs.writeFileSync(file, text);
  const body_sha256 = body === '' ? '' : createHash('sha256').update(body).digest('hex');
  const store = { kind: 'http', method, url: `${site}${target}`, body_sha256, request_headers: Object.entries(sent), status, headers };
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
      ['POST', `${site}/b`, 'another task'],
      ['GET', `${site}/a`, undefined, { Authorization: 'Bearer x' }],
      ['GET', `${site}/a`, undefined, { range: 'bytes=0-1' }],
      ['POST', `${site}/a`],
    ];
    const told = await worker.result({ client, ask }, { inputs });
    assert.deepStrictEqual(told.map((/** @type {any[]} */ [, , input]) => input), [null, null, null, null, null]);
    assert.deepStrictEqual(told[1].slice(0, 2), [200, 'server another task']);
    assert.strictEqual(asked.length, ask.length);
  });

  test(`headers that may decide are compared: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    // The client's, the script's, those of the response; and whether the script's response is the answer.
    /** @type {[Record<string, string>, Record<string, string>, Record<string, string>, boolean][]} */
    const cases = [
      [{ 'X-Api-Key': 'k1' }, {}, {}, false],
      [{ 'X-Api-Key': 'k1' }, { 'x-api-key': 'k1' }, {}, true],
      [{ 'X-Api-Key': 'k1' }, { 'x-api-key': 'k2' }, {}, false],
      [{}, { 'x-api-key': 'k1' }, {}, false],
      [{ Authorization: 'Bearer x' }, { authorization: 'Bearer x' }, {}, true],
      [{ Accept: 'application/xml' }, {}, {}, false],
      [{ Accept: '*/*', 'User-Agent': 'me', 'Accept-Encoding': 'gzip', traceparent: '00' }, {}, {}, true],
      [{ Accept: 'application/json, text/plain, */*' }, {}, {}, true],
      [{ Accept: 'application/json, text/plain, */*' }, {}, { vary: 'Origin, Accept' }, false],
      [{}, { accept: 'application/xml' }, {}, false],
      [{ 'Cache-Control': 'no-cache' }, {}, {}, false],
      [{ 'Cache-Control': 'no-store' }, {}, {}, false],
      [{ Pragma: 'no-cache' }, {}, {}, false],
      [{ Cookie: 'a=b' }, {}, {}, false],
      [{ 'Content-Type': 'text/csv' }, {}, {}, true],
      [{}, {}, { vary: '*' }, false],
      [{}, {}, { vary: 'User-Agent' }, false],
      [{ 'User-Agent': 'me' }, { 'user-agent': 'me' }, { vary: 'User-Agent' }, true],
      [{ 'Accept-Encoding': 'gzip' }, {}, { vary: 'Accept-Encoding, Origin' }, true],
    ];
    for (const [headers, sent, told, isAnswer] of cases) {
      const answer = got(worker, 1, 'GET', '/a', 'mine', { sent, headers: Object.entries(told) });
      const [[, , input]] = await worker.result({ client, ask: [['GET', `${site}/a`, undefined, headers]] }, { inputs: [answer] });
      assert.strictEqual(input, isAnswer ? 'init.1' : null, JSON.stringify([headers, sent, told]));
    }
  });

  test(`the type of a body is compared: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    /** @type {[string, string | undefined, boolean][]} */
    const cases = [
      ['', undefined, true],
      ['text/plain', undefined, true],
      ['application/json', 'application/json; charset=UTF-8', true],
      ['', 'application/json', false],
      ['application/json', undefined, false],
    ];
    for (const [sent, type, isAnswer] of cases) {
      const answer = got(worker, 1, 'POST', '/a', 'mine', { body: '{}', sent: sent === '' ? {} : { 'content-type': sent } });
      const headers = type === undefined ? {} : { 'content-type': type };
      const [[, , input]] = await worker.result({ client, ask: [['POST', `${site}/a`, '{}', headers]] }, { inputs: [answer] });
      assert.strictEqual(input, isAnswer ? 'init.1' : null, `${sent} ${type}`);
    }
  });

  test(`redirects and failures are no answers: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    for (const status of [302, 304, 408, 413, 425, 429, 500, 503]) {
      // The script's own second attempt is one.
      const inputs = [got(worker, 1, 'GET', '/a', 'no', { status }), got(worker, 2, 'GET', '/a', 'mine')];
      const told = await worker.result({ client, ask: [['GET', `${site}/a`], ['GET', `${site}/a`]] }, { inputs });
      assert.deepStrictEqual(told.map((/** @type {any[]} */ [, , input]) => input), ['init.2', null], String(status));
    }
    const later = got(worker, 1, 'GET', '/a', 'no', { status: 404, headers: [['retry-after', '1']] });
    const [[, text]] = await worker.result({ client, ask: [['GET', `${site}/a`]] }, { inputs: [later] });
    assert.strictEqual(text, 'server ');
  });

  test(`what the function has written is asked of the server: ${client}`, async () => {
    const worker = await serving(CLIENTS, specification);
    for (const [written, read] of [['/item', '/item'], ['/item?x=1', '/item?y=2'], ['/items/1', '/items'], ['/items', '/items/1?x'], ['/items/1', '/']]) {
      for (const method of ['PUT', 'POST', 'PATCH', 'DELETE']) {
        const ask = [[method, site + written, 'new'], ['GET', site + read]];
        const told = await worker.result({ client, ask }, { inputs: [got(worker, 1, 'GET', read, 'old')] });
        assert.deepStrictEqual(told.map((/** @type {any[]} */ [, , input]) => input), [null, null], `${method} ${written} ${read}`);
      }
    }
    // Something else, and what is the effect of a script's own request, stay.
    const inputs = [got(worker, 1, 'GET', '/item', 'mine'), got(worker, 2, 'POST', '/items', 'mine', { body: 'task' })];
    const ask = [['POST', `${site}/items`, 'another'], ['GET', `${site}/item`], ['POST', `${site}/items`, 'task']];
    const told = await worker.result({ client, ask }, { inputs });
    assert.deepStrictEqual(told.map((/** @type {any[]} */ [, , input]) => input), [null, 'init.1', 'init.2']);
  });

  test(`an answer to HEAD has the length that the server said: ${client}`, async () => {
    const worker = await serving(CLIENTS.replaceAll("headers.get('x-pilot-input')", "headers.get('content-length')").replaceAll("headers['x-pilot-input']", "headers['content-length']"), specification);
    const answer = got(worker, 1, 'HEAD', '/a', '', { headers: [['content-length', '1234']] });
    const told = await worker.result({ client, ask: [['HEAD', `${site}/a`]] }, { inputs: [answer] });
    assert.deepStrictEqual(told, [[200, '', '1234', true]]);
  });
}

test('http.get answers, and a long body passes whole', async () => {
  const worker = await serving(CLIENTS, specification);
  const long = 'x'.repeat(1_000_000);
  const told = await worker.result({ client: 'byGet', ask: [['GET', `${site}/long`]] }, { inputs: [got(worker, 1, 'GET', '/long', long)] });
  assert.deepStrictEqual(told, [[200, long, 'init.1', true]]);
});

test('another host than that of the URL, and fetch without a cache, go to the server', async () => {
  const worker = await serving(
    CLIENTS.replace('{ method, body, headers }', "{ method, body, headers, cache: 'no-store' }"),
    specification,
  );
  const host = { host: 'another.example' };
  for (const [client, headers] of [['byRequest', host], ['byFetch', {}]]) {
    const told = await worker.result({ client, ask: [['GET', `${site}/a`, undefined, headers]] }, { inputs: [got(worker, 1, 'GET', '/a', 'mine')] });
    assert.strictEqual(told[0][2], null, String(client));
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
