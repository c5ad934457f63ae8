'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const { test } = require('node:test');

const wire = require('../lib/wire.js');

/** @typedef {{kind: number, stream: number, meta: string, body: string}} Text */

const FILE = path.join(__dirname, '../../crates/path/wire/vectors/frames.json');
const vectors = JSON.parse(fs.readFileSync(FILE, 'utf8'));
const kinds = /** @type {Record<string, any>} */ (wire);

/**
 * @param {Buffer} bytes
 * @param {number} pieceLen how many bytes arrive at a time
 */
function decode(bytes, pieceLen) {
  const decoder = new wire.Decoder();
  /** @type {Text[]} */
  const frames = [];
  for (let at = 0; at < bytes.length; at += pieceLen) {
    decoder.decode(bytes.subarray(at, at + pieceLen), (kind, stream, meta, body) => {
      frames.push({ kind, stream, meta: meta.toString(), body: body.toString() });
    });
  }
  return { frames, isEmpty: decoder.isEmpty() };
}

for (const { name, hex, kind, stream, meta, body } of vectors.valid) {
  test(`valid frame: ${name}`, () => {
    const bytes = Buffer.from(hex, 'hex');
    for (const pieceLen of [1, 7, 15, 16, 17, bytes.length]) {
      const { frames, isEmpty } = decode(bytes, pieceLen);
      assert.strictEqual(frames.length, 1);
      assert.ok(isEmpty);
      assert.deepStrictEqual([frames[0].kind, frames[0].stream, frames[0].body], [kinds[kind], stream, body]);
      const text = frames[0].meta;
      // Times in the vectors exceed the precision of a double, so the meta is compared as JavaScript parses it.
      assert.deepStrictEqual(text === '' ? null : JSON.parse(text), meta);
      assert.strictEqual(wire.encode(kinds[kind], stream, Buffer.from(text), Buffer.from(body)).toString('hex'), hex);
    }
  });
}

for (const { name, hex, error } of vectors.invalid) {
  test(`invalid frame: ${name}`, () => {
    const bytes = Buffer.from(hex, 'hex');
    for (const pieceLen of [1, 5, 16, 64]) {
      if (error === 'truncated') {
        const { frames, isEmpty } = decode(bytes, pieceLen);
        assert.deepStrictEqual([frames, isEmpty], [[], bytes.length === 0]);
      } else {
        assert.throws(() => decode(bytes, pieceLen), { name: 'ProtocolError', reason: error });
      }
    }
  });
}

for (const { name, hex } of vectors.with_inputs) {
  test(`a frame with descriptors is refused: ${name}`, () => {
    assert.throws(() => decode(Buffer.from(hex, 'hex'), 16), { name: 'ProtocolError', reason: 'too_many_descriptors' });
  });
}

for (const { name, hex, stream, meta } of vectors.with_paths) {
  test(`a frame whose inputs have paths needs no descriptors: ${name}`, () => {
    const { frames } = decode(Buffer.from(hex, 'hex'), 16);
    assert.strictEqual(frames[0].stream, stream);
    assert.deepStrictEqual(JSON.parse(frames[0].meta), meta);
  });
}

for (const { name, hex, frames } of vectors.sequences) {
  test(`sequence: ${name}`, () => {
    const bytes = Buffer.from(hex, 'hex');
    for (let pieceLen = 1; pieceLen <= bytes.length; pieceLen += 1) {
      const decoded = decode(bytes, pieceLen);
      assert.ok(decoded.isEmpty);
      const found = decoded.frames.map(({ kind, stream, body }) => [kind, stream, body]);
      assert.deepStrictEqual(
        found,
        frames.map((/** @type {any[]} */ [kind, ...rest]) => [kinds[kind], ...rest]),
      );
    }
  });
}

test('a part that is too long is not encoded', () => {
  const long = { meta: Buffer.alloc(wire.META_LEN_MAX + 1), body: Buffer.alloc(wire.RESULT_LEN_MAX + 1) };
  const none = Buffer.alloc(0);
  assert.throws(() => wire.encode(wire.RESULT, 1, long.meta, none), { reason: 'meta_too_long' });
  assert.throws(() => wire.encode(wire.RESULT, 1, none, long.body), { reason: 'body_too_long' });
});

test('frames of random lengths survive any cut', () => {
  let seed = 20;
  const random = (/** @type {number} */ below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  for (let round = 0; round < 200; round += 1) {
    const sent = Array.from({ length: 1 + random(5) }, (_, index) => ({
      kind: wire.CHUNK,
      stream: index,
      meta: 'm'.repeat(random(40)),
      body: 'b'.repeat(random(60)),
    }));
    const bytes = Buffer.concat(
      sent.map(({ kind, stream, meta, body }) => wire.encode(kind, stream, Buffer.from(meta), Buffer.from(body))),
    );
    assert.deepStrictEqual(decode(bytes, 1 + random(bytes.length)), { frames: sent, isEmpty: true });
  }
});
