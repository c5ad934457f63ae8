// Functions in Node.js that have the body of their requests as an input.
'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');

const said = (event, digest, bytes) => ({ bytes, digest: digest.digest('hex'), body: event.body ?? null });

exports.handler = async (event, { inputs }) => {
  const byPath = fs.readFileSync(inputs.path('file'));
  if (!byPath.equals(inputs.file)) {
    throw new Error('the path has other bytes');
  }
  return said(event, createHash('sha256').update(inputs.file), inputs.file.length);
};

exports.parts = async (event, { inputs }) => {
  const digest = createHash('sha256');
  let bytes = 0;
  for await (const part of inputs.stream('file')) {
    digest.update(part);
    bytes += part.length;
  }
  return said(event, digest, bytes);
};
