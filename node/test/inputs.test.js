'use strict';

const assert = require('node:assert');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { afterEach, test } = require('node:test');

const dropIns = require('../lib/drop_ins/index.js');
const output = require('../lib/output.js');
const { Inputs } = require('../lib/inputs.js');
const { cleanUp, serving } = require('./harness.js');

afterEach(cleanUp);

/**
 * The meta of an input whose file is in the worker's folder.
 * @param {import('./harness.js').Worker} worker
 * @param {string} name
 * @param {string} text
 */
function given(worker, name, text) {
  const file = path.join(worker.folder, name);
  fs.writeFileSync(file, text);
  return { name, kind: 'memory', len: text.length, path: file };
}

test('an input is a buffer, a path, a stream or an error', async () => {
  const worker = await serving(`
    exports.handler = async (event, { inputs }) => {
      const chunks = [];
      for await (const chunk of inputs.stream('photo')) chunks.push(chunk);
      let problems = [];
      for (const name of ['mask', 'unknown']) {
        try { inputs.buffer(name); } catch (error) { problems.push(error.message); }
      }
      return [inputs.photo.toString(), String(Buffer.concat(chunks)), inputs.path('photo') !== '', Object.keys(inputs), problems];
    };`);
  const failed_inputs = [{ name: 'mask', problem: 'there is no such object' }];
  const seen = await worker.result({}, { inputs: [given(worker, 'photo', 'pixels')], failed_inputs });
  const problems = ["input 'mask': there is no such object", "input 'unknown': the function declares none of this name"];
  assert.deepStrictEqual(seen, ['pixels', 'pixels', true, ['photo'], problems]);
});

test('an input with the name of a method is there by the method', async () => {
  const worker = await serving('exports.handler = async (event, { inputs }) => inputs.buffer("path").toString();');
  assert.strictEqual(await worker.result({}, { inputs: [given(worker, 'path', 'x')] }), 'x');
});

test('inputs belong to their invocation alone, and a function without any has an empty object', async () => {
  const worker = await serving('exports.handler = async (event, { inputs }) => Object.keys(inputs);');
  assert.deepStrictEqual(await worker.result({}, { inputs: [given(worker, 'a', '1')] }), ['a']);
  assert.deepStrictEqual(await worker.result({}), []);
});

test('an input that was decoded is an array, a table or a value, and a file for others', async () => {
  const worker = await serving(`
    exports.handler = async (event, { inputs }) => {
      const { array, halves, table, value } = inputs;
      const shown = ({ shape, dtype, data }) => [shape, dtype, data.constructor.name, Array.from(data, Number), data.byteOffset];
      return [
        shown(array), shown(halves).slice(0, 2), String(table), value,
        array === inputs.array && table === inputs.table && value === inputs.value,
        [inputs.buffer('array').length, String(await inputs.whole('value'))],
      ];
    };`);
  const decoded = [
    { ...given(worker, 'array', 'headhead\u0001\0\u0002\0\u0003\0'), decoded: { by: 'npy', array: { element: '<u2', shape: [1, 3], at: 8 } } },
    { ...given(worker, 'halves', 'headhead\0\0'), decoded: { by: 'npy', array: { element: '<f2', shape: [], at: 8 } } },
    { ...given(worker, 'table', 'ARROW1'), decoded: { by: 'arrow', arrow: { rows: 0, columns: 0 } } },
    { ...given(worker, 'value', '{"a":[1]}'), decoded: { by: 'json', json: {} } },
  ];
  assert.deepStrictEqual(await worker.result({}, { inputs: decoded }), [
    [[1, 3], '<u2', 'Uint16Array', [1, 2, 3], 0],
    [[], '<f2'],
    'ARROW1',
    { a: [1] },
    true,
    [14, '{"a":[1]}'],
  ]);
});

test('an array whose file is too short is an error', async () => {
  const worker = await serving('exports.handler = async (event, { inputs }) => inputs.array;');
  const decoded = { by: 'npy', array: { element: '|u1', shape: [9], at: 8 } };
  const short = { ...given(worker, 'array', 'headhead1'), len: 17, decoded };
  const error = await worker.error({}, { inputs: [short] });
  assert.strictEqual(error.errorMessage, "input 'array': it is shorter than it should be");
});

/**
 * An input that still arrives, and what the daemon does with it. Its pipe has a name here.
 * @param {import('./harness.js').Worker} worker
 * @param {number} [len]
 */
function arriving(worker, len) {
  const [file, pipe] = ['video', 'progress'].map((name) => path.join(worker.folder, name));
  fs.writeFileSync(file, '');
  execFileSync('mkfifo', [pipe]);
  const fd = fs.openSync(pipe, 'r+');
  /** @param {number} kind @param {number} value */
  const tell = (kind, value, text = '') => {
    const message = Buffer.alloc(9);
    message[0] = kind;
    message.writeBigUInt64LE(BigInt(value), 1);
    fs.writeSync(fd, Buffer.concat([message, Buffer.from(text)]));
  };
  const inputs = [
    { name: 'video', kind: 'growing', path: file, ...(len === undefined ? {} : { len }) },
    { name: 'video', kind: 'progress', path: pipe },
  ];
  return {
    inputs,
    /** @param {string} text @param {number} kind */
    add(text, kind) {
      fs.appendFileSync(file, text);
      tell(kind, fs.statSync(file).size);
    },
    /** @param {string} problem */
    fail: (problem) => tell(2, Buffer.byteLength(problem), problem),
    close: () => fs.closeSync(fd),
  };
}

const READS = `
    exports.handler = async ({ how }, { inputs }) => {
      const read = async () => {
        let text = '';
        for await (const part of inputs.stream('video')) { text += part; console.log('read ' + text); }
        return text;
      };
      try {
        if (how === 'stream') return await read();
        if (how === 'two') return await Promise.all([read(), read()]);
        if (how === 'whole') return String(await inputs.whole('video'));
        if (how === 'path') return require('fs').readFileSync(inputs.path('video'), 'utf8');
        return String(inputs.video);
      } catch (error) {
        return [error.name, error.message];
      }
    };`;

for (const how of ['stream', 'two', 'whole', 'path', 'buffer']) {
  test(`an input that still arrives is read by ${how}`, async () => {
    const worker = await serving(READS);
    const video = arriving(worker, 9);
    const result = worker.result({ how }, { inputs: video.inputs });
    video.add('one', 0);
    video.add('two', 0);
    video.add('end', 1);
    const text = 'onetwoend';
    assert.deepStrictEqual(await result, how === 'two' ? [text, text] : text);
    video.close();
  });
}

for (const how of ['stream', 'whole', 'path', 'buffer']) {
  test(`an input that breaks off is an error of ${how}`, async () => {
    const worker = await serving(READS);
    const video = arriving(worker);
    const result = worker.result({ how }, { inputs: video.inputs });
    video.add('one', 0);
    video.fail('the store answers 503 – später');
    assert.deepStrictEqual(await result, ['BrokenInput', "input 'video': the store answers 503 – später"]);
    video.close();
  });
}

test('an input that nobody waits for keeps no invocation from ending', async () => {
  const worker = await serving(`
    exports.handler = (event, { inputs }, callback) => {
      const stream = inputs.stream('video');
      stream.once('data', (part) => { stream.destroy(); callback(null, String(part)); });
    };`);
  const video = arriving(worker, 100);
  const result = worker.result({}, { inputs: video.inputs });
  video.add('one', 0);
  assert.strictEqual(await result, 'one');
  video.close();
});

const MESSAGES = `
    const { init } = require('pilotlight');
    const all = (ids) => ids.map((id) => {
      try { return init.recvMsg(id).toString(); } catch (error) { return error instanceof init.NoMessage ? error.message : error; }
    });`;
const NONE = 'no initscript ran for this invocation, because it did not wait for a worker to start, or it has ended';

test('messages of the initscript are those of the invocation that has them, and no inputs', async () => {
  const worker = await serving(`${MESSAGES}
    exports.handler = async (event, { inputs }) => [all([0, 3]), init.messages(), Object.keys(inputs), init.messages().map(init.path)];`);
  const sent = given(worker, 'init.3', 'pixels');
  const inputs = [sent, given(worker, 'photo', 'x')];
  const missing = 'message 0: the initscript did not send it';
  assert.deepStrictEqual(await worker.result({}, { inputs }), [[missing, 'pixels'], [3], ['photo'], [sent.path]]);
  const gone = [`message 0: ${NONE}`, `message 3: ${NONE}`];
  assert.deepStrictEqual(await worker.result({}), [gone, [], [], []]);
});

test('a connection of the initscript is given once, and by its address', async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'pilot-node-'));
  const place = path.join(folder, 'connection');
  const server = net.createServer((socket) => socket.on('data', (data) => socket.end(`${data}!`.toUpperCase())));
  await new Promise((resolve) => server.listen(place, () => resolve(undefined)));
  const worker = await serving(`
    const { once } = require('node:events');
    const { init } = require('pilotlight');
    exports.handler = async (event) => {
      const told = [];
      for (const [id, address] of event) {
        try {
          const socket = init.getConn(id, address);
          socket.write('hello');
          told.push((await once(socket, 'data'))[0].toString());
        } catch (error) {
          told.push(error instanceof init.NoConnection ? error.message : String(error));
        }
      }
      return [told, init.messages()];
    };`);
  const inputs = [{ name: 'init.conn.3=tcp://db:5432', kind: 'socket', path: place }];
  const failed = [{ name: 'init.conn.4', problem: 'refused' }];
  const ask = [[3, 'tcp://db:1'], [3, 'tcp://db:5432'], [3, 'tcp://db:5432'], [4, 'tcp://db:5432']];
  assert.deepStrictEqual(await worker.result(ask, { inputs, failed_inputs: failed }), [
    [
      'connection 3: it leads to tcp://db:5432, and not to tcp://db:1',
      'HELLO!',
      'connection 3: the initscript did not hand it over, or it was taken before',
      'connection 4: refused',
    ],
    [],
  ]);
  assert.deepStrictEqual(await worker.result([[3, 'tcp://db:5432']]), [[`connection 3: ${NONE}`], []]);
  server.close();
  fs.rmSync(folder, { recursive: true });
});

test('a script that failed says why there is no message', async () => {
  const worker = await serving(`${MESSAGES} exports.handler = async () => all([1, 2]);`);
  for (const script of ['init.script', 'init.shared']) {
    const failed_inputs = [
      { name: 'init.1', problem: 'there is no such object' },
      { name: script, problem: 'it exited with status 1' },
    ];
    const seen = await worker.result({}, { failed_inputs });
    assert.deepStrictEqual(seen, ['message 1: there is no such object', 'message 2: it exited with status 1']);
  }
});

/** A stand-in for the SDK: what the drop-in needs of it. */
class S3Client {
  /** @type {any} */
  middleware = null;
  middlewareStack = { add: (/** @type {any} */ middleware) => (this.middleware = middleware) };

  /** @param {any} command */
  async send({ commandName, ...request }) {
    const { response } = await this.middleware(async () => ({ response: 'of the store' }), { commandName })({ request });
    return response;
  }
}

test('requests are recognised by their URL in every form, and by nothing else', async () => {
  const Module = /** @type {any} */ (require('node:module'));
  const load = Module._load;
  try {
    Module._load = () => ({ S3Client });
    dropIns.prepare(['s3']);
    Module._load('@aws-sdk/client-s3');
  } finally {
    Module._load = load;
  }
  const stores = [
    { kind: 's3', endpoint: 'http://Store.local:9000', bucket: 'photos', key: "a b/(c)'.png", headers: [['etag', '"1"']] },
    { kind: 's3', bucket: 'photos', key: 'x', headers: [] },
  ];
  const file = path.join(fs.mkdtempSync('/tmp/pilot-node-'), 'x');
  fs.writeFileSync(file, 'pixels');
  const metas = stores.map((store, at) => ({ name: `i${at}`, kind: 'memory', len: 6, path: file, store }));
  const inputs = Inputs.all(new Inputs(metas));
  const client = new S3Client();
  const get = { commandName: 'GetObjectCommand', protocol: 'http:', port: 9000, headers: {}, query: { 'x-id': 'GetObject' } };
  const local = { ...get, hostname: 'store.local', path: '/photos/a%20b/%28c%29%27.png' };
  const amazon = { ...get, protocol: 'https:', port: undefined, path: '/x' };
  /** @param {any} request */
  const input = async (request) => {
    const response = await client.send(request);
    response.body?.destroy();
    return response.headers?.['x-pilot-input'] ?? null;
  };
  assert.strictEqual(await input(local), null, 'no invocation runs');
  dropIns.begin(inputs, output.request());
  for (const [request, expected] of /** @type {[any, string | null][]} */ ([
    [local, 'i0'],
    [{ ...local, hostname: 'photos.store.local', path: '/a%20b/%28c%29%27.png' }, 'i0'],
    [{ ...local, headers: { 'If-Match': '"1"', Range: 'bytes=1-2' } }, 'i0'],
    [{ ...local, headers: { 'If-Match': '"2"' } }, null],
    [{ ...local, headers: { 'x-amz-server-side-encryption-customer-key': 'x' } }, null],
    [{ ...local, query: { 'x-id': 'GetObject', versionId: '1' } }, null],
    [{ ...local, port: 9001 }, null],
    [{ ...local, protocol: 'https:' }, null],
    [{ ...local, path: '/photos/a%20b' }, null],
    [{ ...amazon, hostname: 'photos.s3.eu-west-1.amazonaws.com' }, 'i1'],
    [{ ...amazon, hostname: 's3.dualstack.us-east-1.amazonaws.com', path: '/photos/x', port: 443 }, 'i1'],
    [{ ...amazon, hostname: 'photos.s3-accesspoint.us-east-1.amazonaws.com' }, null],
    [{ ...amazon, hostname: 'photos.s3.amazonaws.com.example.org' }, null],
    [{ ...amazon, hostname: 'other.s3.amazonaws.com' }, null],
  ])) {
    assert.strictEqual(await input(request), expected, JSON.stringify(request));
  }
  await client.send({ ...local, commandName: 'DeleteObjectsCommand', path: '/photos', query: { delete: '' } });
  assert.strictEqual(await input(local), null, 'the function may have deleted it');
  dropIns.end(inputs);
  assert.strictEqual(await input({ ...amazon, hostname: 'photos.s3.amazonaws.com' }), null);
  fs.rmSync(path.dirname(file), { recursive: true });
});
