// The warm-up of a pre-warmed process: before it reports that it waits, it executes a start and some invocations. V8 compiles
// code, and Node loads modules, when they are first used. After the warm-up, a function's first request need not wait for that.
//
// It has no visible effect: the answers are encoded and dropped, and the module is removed from the cache.
'use strict';

const path = require('node:path');
const { pathToFileURL } = require('node:url');

const { Invocations } = require('./events.js');
const handler = require('./handler.js');
const invokeStore = require('./invoke_store.js');
const output = require('./output.js');
const { Specification } = require('./spec.js');
const { specialise } = require('./specialise.js');
const wire = require('./wire.js');

/** @typedef {import('./channel.js').Sink} Sink */

const FOLDER = path.join(path.dirname(__dirname), 'warmup');
const ROUNDS = 8;
const META = {
  id: '00000000-0000-0000-0000-000000000000',
  arn: 'arn:aws:lambda:us-east-1:000000000000:function:warmup',
  version: '1',
  deadline_ms: 0,
};
const EVENT = { key: 'value', list: [1, 2.5, true, null], text: 'é' };

/** @type {Sink} */
const NOWHERE = {
  send(kind, stream, meta, body) {
    wire.encode(kind, stream, Buffer.from(meta), Buffer.from(body));
    return true;
  },
  whenSent: (action) => action(),
  ref() {},
  unref() {},
};

/** Leaves the environment and the working directory as they were. */
async function warmUp() {
  const cwd = process.cwd();
  const file = path.join(FOLDER, 'index.js');
  const document = {
    cwd: FOLDER,
    handler: 'index.handler',
    environment: { ...process.env },
    memory_mb: 0,
    concurrency: 1,
    function: { name: 'warmup', version: 1, memory_mb: 0, timeout_s: 1, arn: META.arn },
  };
  const specification = new Specification(JSON.parse(JSON.stringify(document)));
  await specialise(specification);
  const store = invokeStore.make(specification.concurrency);
  const invocations = new Invocations(await handler.load(specification), specification, NOWHERE, store);
  const frame = wire.encode(wire.INVOKE, 1, Buffer.from(JSON.stringify(META)), Buffer.from(JSON.stringify(EVENT)));
  const decoder = new wire.Decoder();
  for (let round = 0; round < ROUNDS; round += 1) {
    decoder.decode(frame, (kind, stream, meta, body) => invocations.accept(kind, stream, meta, body));
    await null; // lets the handler's promise settle
  }
  // Before Node 22 this starts libuv's threads, which read the file. It halves the start of a function that is an ES
  // module.
  await import(pathToFileURL(path.join(FOLDER, 'module.mjs')).href);
  process.chdir(cwd);
  output.setRequest(output.NO_REQUEST);
  delete require.cache[file];
  // The first iteration of the loop does the rest of Node's own start.
  await new Promise((resolve) => setImmediate(resolve));
}

module.exports = { warmUp };
