// Functions in Node.js that read an input while it arrives.
'use strict';

const { execFileSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const { once } = require('node:events');
const fs = require('node:fs');
const net = require('node:net');

const described = (bytes) => ({ sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length });

exports.first = async (event, { inputs }) => {
  for await (const part of inputs.stream('video')) {
    return { bytes: part.length };
  }
};

exports.use = async ({ how, tell }, { inputs }) => {
  if (tell) {
    // Says that it was called, at this port of the host.
    const told = net.connect(tell, '127.0.0.1');
    await once(told, 'connect');
    told.destroy();
  }
  try {
    if (how === 'stream') {
      const parts = [];
      for await (const part of inputs.stream('video')) {
        parts.push(part);
      }
      return described(Buffer.concat(parts));
    }
    if (how === 'whole') {
      return described(await inputs.whole('video'));
    }
    if (how === 'path') {
      return { sha256: execFileSync('sha256sum', [inputs.path('video')]).toString().split(' ')[0] };
    }
    return described(inputs.video);
  } catch (error) {
    return [error.name, error.message];
  }
};

// What a function could try with the files that it reads from.
exports.hostile = async (event, { inputs }) => {
  const stream = inputs.stream('video');
  await new Promise((resolve) => stream.once('data', resolve));
  stream.destroy();
  const [holder] = fs.readdirSync('/proc').filter((pid) => {
    try {
      return fs.readlinkSync(`/proc/${pid}/exe`).startsWith('/memfd:');
    } catch {
      return false;
    }
  });
  const folder = `/proc/${holder}/fd`;
  const tried = fs.readdirSync(folder).filter((number) => number >= 32);
  return tried.map((number) => {
    try {
      fs.closeSync(fs.openSync(`${folder}/${number}`, fs.constants.O_WRONLY | fs.constants.O_NONBLOCK));
      return 'opened';
    } catch (error) {
      return error.code;
    }
  });
};

// Responds until its client leaves, except to the path /short.
exports.responds = awslambda.streamifyResponse(async (event, stream) => {
  stream.on('error', () => {});
  do {
    stream.write('more\n');
    await new Promise((resolve) => setTimeout(resolve, 20));
  } while (event.rawPath !== '/short' && !stream.destroyed);
  stream.end();
});
