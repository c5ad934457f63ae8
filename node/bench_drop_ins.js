// What the drop-ins for HTTP clients cost a request that is no answer: `node bench_drop_ins.js`. The clients are replaced by functions that do
// nothing, so only the drop-in is measured. Rounds alternate, and the fastest one of each kind counts, because noise only makes them longer.
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');

const CALLS = 100_000;
const ROUNDS = 30;
const URL_ASKED = 'http://service.example.com:8080/v1/items?limit=10';
const OPTIONS = { method: 'GET', headers: { accept: 'application/json', 'user-agent': 'bench' } };

const nothing = () => undefined;
globalThis.fetch = /** @type {any} */ (nothing);
http.request = /** @type {any} */ (nothing);
const requests = require('./lib/drop_ins/http_request.js');
const web = require('./lib/drop_ins/http.js');
const { Input } = require('./lib/input.js');

web.prepare();
requests.patch(http);
const file = path.join(os.tmpdir(), `pilot-bench-${process.pid}`);
fs.writeFileSync(file, 'x');
const store = { kind: 'http', method: 'GET', url: 'http://service.example.com:8080/other', status: 200, headers: [] };
const other = new Input({ name: 'init.1', kind: 'memory', len: 1, path: file, store });

/** @type {Record<string, {call: (...values: any[]) => any, answers: boolean}>} */
const KINDS = {
  'nothing is called': { call: nothing, answers: false },
  'fetch, no answers': { call: globalThis.fetch, answers: false },
  'fetch, answers for another URL': { call: globalThis.fetch, answers: true },
  'http.request, no answers': { call: http.request, answers: false },
  'http.request, answers for another URL': { call: http.request, answers: true },
};
const best = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, Infinity]));
for (let round = 0; round < ROUNDS; round += 1) {
  for (const [kind, { call, answers }] of Object.entries(KINDS)) {
    if (answers) {
      web.add(other);
    }
    const began = process.hrtime.bigint();
    for (let at = 0; at < CALLS; at += 1) {
      call(URL_ASKED, OPTIONS);
    }
    best[kind] = Math.min(best[kind], Number(process.hrtime.bigint() - began) / CALLS);
    if (answers) {
      web.remove(other);
    }
  }
}
fs.rmSync(file);
for (const [kind, ns] of Object.entries(best)) {
  console.log(`${kind}: ${(ns / 1000).toFixed(2)} µs`);
}
