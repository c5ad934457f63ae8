'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { after, afterEach, before, test } = require('node:test');

const { Given, WRITES_MAX, Written } = require('../lib/drop_ins/given.js');
const answers = require('../lib/drop_ins/http_answers.js');
const output = require('../lib/output.js');
const { cleanUp, serving } = require('./harness.js');

/** @typedef {import('../lib/input.js').Input} Input */
/** @typedef {import('./harness.js').Worker} Worker */

const server = http.createServer((_, response) => response.end('server'));
let site = '';

before(async () => {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
  site = `http://127.0.0.1:${/** @type {import('node:net').AddressInfo} */ (server.address()).port}`;
});
after(() => server.close());
afterEach(cleanUp);

const now = () => process.hrtime.bigint();

/**
 * @param {string} key
 * @param {{asked?: bigint, invocation?: string}} [more]
 */
function input(key, { asked, invocation = output.NO_REQUEST } = {}) {
  const store = { key, ...(asked === undefined ? {} : { asked_ns: Number(asked) }) };
  return /** @type {Input} */ (/** @type {unknown} */ ({ store, invocation }));
}

const keys = () => new Given(({ key }) => [...key], (place) => [place]);

test('what was read before a write is no answer, for a later invocation either', () => {
  const given = keys();
  const early = input('k', { asked: now() });
  given.add(early);
  assert.strictEqual(given.newest('k'), early);
  given.wrote(['k']);
  assert.strictEqual(given.newest('k'), undefined);
  given.add(early);
  assert.strictEqual(given.newest('k'), undefined);
  for (const late of [input('k', { asked: now() + 1n }), input('k')]) {
    given.add(late);
    assert.strictEqual(given.newest('k'), late);
  }
});

test('two names of an object are overwritten together', () => {
  const given = keys();
  given.add(input('ab', { asked: 0n }));
  given.wrote(['a']);
  assert.strictEqual(given.size, 0);
  given.add(input('ab', { asked: 0n }));
  assert.strictEqual(given.size, 0);
});

for (const ends of ['well', 'badly']) {
  test(`a write that runs and ends ${ends} is noted at its end too`, async () => {
    const given = keys();
    let settle = (/** @type {boolean} */ _) => {};
    const sent = given.call(['k'], () => new Promise((resolve, reject) => { settle = (isGood) => (isGood ? resolve(1) : reject(new Error('reset'))); }));
    // It may be the object before the write, or after it.
    const during = input('k', { asked: now() });
    given.add(during);
    assert.strictEqual(given.newest('k'), during);
    if (ends === 'well') {
      settle(true);
      await sent;
    } else {
      settle(false);
      await assert.rejects(sent, /reset/);
    }
    assert.strictEqual(given.newest('k'), undefined);
  });
}

test('each invocation has its own answers', () => {
  const given = keys();
  const [one, two] = ['one', 'two'].map((invocation) => input('k', { invocation }));
  given.add(one);
  given.add(two);
  assert.strictEqual(given.newest('k'), undefined);
  output.withRequest('one', () => assert.strictEqual(given.newest('k'), one));
  output.withRequest('two', () => assert.strictEqual(given.newest('k'), two));
});

test('of many writes the oldest are forgotten, and what was read before them is no answer', () => {
  const written = new Written();
  for (let at = 0; at <= WRITES_MAX; at += 1) {
    written.note([String(at)], BigInt(100 + at));
  }
  assert.deepStrictEqual([written.hasAnySince(['other'], 100), written.hasAnySince(['other'], 101)], [true, false]);
  assert.deepStrictEqual([written.hasAnySince(['1'], 101), written.hasAnySince(['1'], 102)], [true, false]);
  // What is written again is the newest.
  written.note(['1'], 5000n);
  written.note(['new'], 5001n);
  assert.strictEqual(written.hasAnySince(['1'], 5000), true);
});

test('a request changes what is at, above and below its URL', () => {
  answers.given.clear();
  for (const [method, url, isChanged] of /** @type {[string, string, boolean][]} */ ([
    ['POST', 'http://s', true],
    ['put', 'http://s/a/b/c?d', true],
    ['DELETE', 'http://S:80/a', true],
    ['GET', 'http://s/a/b', false],
    ['PUT', 'http://s/a/bb', false],
    ['PUT', 'http://s/c', false],
    ['PUT', 'https://s/a/b', false],
  ])) {
    const store = { kind: 'http', method: 'GET', url: 'http://s/a/b?c', status: 200, headers: [], asked_ns: Number(now()) };
    const page = /** @type {Input} */ (/** @type {unknown} */ ({ store, invocation: output.NO_REQUEST }));
    answers.given.add(page);
    answers.given.wrote(answers.writtenBy(answers.placeOf(method, url)));
    assert.strictEqual(answers.given.size, isChanged ? 0 : 1, `${method} ${url}`);
    answers.given.clear();
  }
});

const CALLS = `
  const http = require('node:http');
  const ways = {
    fetch: async (method, url) => (await fetch(url, { method })).text(),
    request: (method, url) => new Promise((resolve, reject) => {
      const request = http.request(url, { method }, (response) => {
        let text = '';
        response.on('data', (part) => { text += part; });
        response.on('end', () => resolve(text));
      });
      request.on('error', reject);
      request.end();
    }),
  };`;

/**
 * @param {Worker} worker
 * @param {bigint} asked
 */
function page(worker, asked) {
  const file = path.join(worker.folder, 'page');
  fs.writeFileSync(file, 'input');
  const store = { kind: 'http', method: 'GET', url: `${site}/page`, status: 200, headers: [], asked_ns: Number(asked) };
  return { name: 'init.0', kind: 'memory', len: 5, path: file, store };
}

for (const way of ['fetch', 'request']) {
  test(`by ${way}, what an invocation writes is no answer for the next one if it was read before`, async () => {
    const worker = await serving(`${CALLS} exports.handler = ([way, method, url]) => ways[way](method, url);`, { drop_ins: ['http'] });
    const get = async (/** @type {bigint} */ asked) => worker.result([way, 'GET', `${site}/page`], { inputs: [page(worker, asked)] });
    // The initscript of the next invocation has its answer already.
    const early = now();
    assert.strictEqual(await get(early), 'input');
    assert.strictEqual(await worker.result([way, 'PUT', `${site}/other`]), 'server');
    assert.strictEqual(await get(early), 'input');
    assert.strictEqual(await worker.result([way, 'PUT', `${site}/page`]), 'server');
    assert.strictEqual(await get(early), 'server');
    assert.strictEqual(await get(now()), 'input');
  });

  test(`by ${way}, an invocation is not answered from the input of another one`, async () => {
    const code = `${CALLS}
      let hasAsked;
      exports.handler = async ([way, isOther, url]) => {
        const other = new Promise((resolve) => { if (!isOther) hasAsked = resolve; else resolve(); });
        if (!isOther) await other;
        const told = await ways[way]('GET', url);
        if (isOther) hasAsked();
        return told;
      };`;
    const worker = await serving(code, { drop_ins: ['http'], concurrency: 2 });
    const own = worker.ask([way, false, `${site}/page`], { id: 'one', inputs: [page(worker, now())] });
    const other = worker.ask([way, true, `${site}/page`], { id: 'two' });
    const told = [await worker.frame(), await worker.frame()].map(({ stream, body }) => [stream, JSON.parse(body.toString())]);
    assert.deepStrictEqual(Object.fromEntries(told), { [own]: 'input', [other]: 'server' });
  });
}
