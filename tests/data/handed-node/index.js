// Functions in Node.js that hand data to other functions, and that get some.
'use strict';

const { createHash, randomBytes } = require('node:crypto');
const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const { pipeline } = require('node:stream/promises');

const pilotlight = require('pilotlight');

const digest = (data) => createHash('sha256').update(data).digest('hex');
const told = async (promise) => {
  try {
    return await promise;
  } catch (error) {
    return { name: error.name, reason: error.reason ?? error.errorType, message: error.message };
  }
};

const ways = {
  async bytes({ to, size, times = 1, keep }) {
    const data = randomBytes(size);
    const answers = await pilotlight.map(to, Array.from({ length: times }, () => ({ keep })), { data });
    return { sent: digest(data), answers };
  },
  async inPlace({ to, size }) {
    const buffer = await pilotlight.buffer(size);
    const data = randomBytes(size - 10);
    await pipeline([data.subarray(5)], buffer.stream(5));
    await buffer.write(data.subarray(0, 5));
    const answers = [await pilotlight.invoke(to, { data: buffer }), await pilotlight.invoke(to, { data: buffer })];
    buffer.release();
    return { sent: digest(Buffer.concat([data, Buffer.alloc(10)])), answers };
  },
  async program({ to, size }) {
    const buffer = await pilotlight.buffer(size);
    execFileSync('/bin/dd', ['if=/dev/zero', `of=${buffer.path}`, 'bs=64k', `count=${size / 65536}`, 'conv=notrunc', 'status=none']);
    return { sent: digest(Buffer.alloc(size)), answers: [await pilotlight.invoke(to, { data: buffer })] };
  },
  async parts({ to, size }) {
    const sum = createHash('sha256');
    async function* parts() {
      for (let left = size; left > 0; left -= 1 << 20) {
        const part = randomBytes(Math.min(left, 1 << 20));
        sum.update(part);
        yield part;
      }
    }
    const answer = await pilotlight.invoke(to, { data: parts(), size });
    return { sent: sum.digest('hex'), answers: [answer] };
  },
  async late({ to, size }) {
    // What was written is sealed, whatever the function keeps open.
    const buffer = await pilotlight.buffer(size);
    const fd = fs.openSync(buffer.path, 'r+');
    fs.writeSync(fd, Buffer.alloc(size, 7), 0, size, 0);
    const path = buffer.path;
    const answer = await pilotlight.invoke(to, { data: buffer });
    const codes = [() => fs.writeSync(fd, 'x', 0), () => fs.ftruncateSync(fd, 0), () => fs.openSync(path, 'r+')].map((action) => {
      try {
        action();
        return 'done';
      } catch (error) {
        return error.code;
      }
    });
    fs.closeSync(fd);
    return { sent: digest(Buffer.alloc(size, 7)), answers: [answer], codes };
  },
  refused({ to, payload, size }) {
    return told(pilotlight.invoke(to, { payload, data: size === undefined ? undefined : Buffer.alloc(size) }));
  },
  largePayload({ to }) {
    return told(pilotlight.invoke(to, { payload: 'x'.repeat(9 << 20) }));
  },
  async many() {
    const kept = [];
    let said;
    try {
      for (;;) {
        kept.push(await pilotlight.buffer(1));
      }
    } catch (error) {
      said = error.reason;
    }
    const count = kept.length;
    kept.forEach((buffer) => buffer.release());
    return [count, said, (await pilotlight.buffer(1)).size];
  },
  async leaves({ size }) {
    const buffer = await pilotlight.buffer(size);
    await buffer.write(Buffer.alloc(size));
    return buffer.size;
  },
};

exports.hands = async (event) => ways[event.how](event);

exports.handsOn = async (event, context) => {
  const answers = await pilotlight.map('takes', [{}, {}], { data: pilotlight.input('body') });
  answers.push(await pilotlight.invoke('node-takes', { data: pilotlight.input('body') }));
  return { sent: digest(context.inputs.body), memory: fs.statSync(context.inputs.path('body')).ino, answers };
};

exports.takes = async (event, context) => {
  const { data } = context.inputs;
  const path = context.inputs.path('data');
  let isReadOnly = false;
  try {
    fs.openSync(path, 'r+');
  } catch (error) {
    isReadOnly = error.code === 'EACCES';
  }
  return { got: digest(data), bytes: data.length, memory: fs.statSync(path).ino, read_only: isReadOnly };
};

exports.raises = async () => {
  throw new RangeError('as was asked for');
};

exports.asked = async (event, { inputs }) => Object.fromEntries(Object.keys(inputs).map((name) => [name, String(inputs[name])]));
