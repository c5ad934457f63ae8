// Functions with inputs: those that know of them, and those that only know the AWS SDK.
'use strict';

const { execFileSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');

const { GetObjectCommand, HeadObjectCommand, PutObjectCommand, S3, S3Client } = require('@aws-sdk/client-s3');

const sha256 = (bytes) => createHash('sha256').update(bytes).digest('hex');
const client = new S3Client({});
const keptPaths = [];

exports.inputs = async (event, context) => {
  const { inputs } = context;
  const chunks = [];
  for await (const chunk of inputs.stream('image')) {
    chunks.push(chunk);
  }
  let mask = 'here';
  try {
    inputs.mask;
  } catch (error) {
    mask = `${error.name}: ${error.message}`;
  }
  let written = 'written';
  try {
    fs.writeFileSync(inputs.path('image'), 'x');
  } catch (error) {
    written = error.code;
  }
  const earlier = keptPaths.map((path) => fs.existsSync(path));
  keptPaths.push(inputs.path('image'));
  return {
    bytes: inputs.image.length,
    sha256: sha256(inputs.image),
    stream: sha256(Buffer.concat(chunks)),
    program: execFileSync('sha256sum', [inputs.path('image')]).toString().split(' ')[0],
    same: inputs.image === inputs.image,
    mask,
    written,
    earlier,
    names: Object.keys(inputs),
    own: Object.keys(context).includes('inputs'),
  };
};

async function told(output) {
  const body = output.Body ? await output.Body.transformToByteArray() : new Uint8Array();
  const { ContentLength, ContentType, ContentRange, ETag, LastModified, Metadata, AcceptRanges } = output;
  const status = output.$metadata.httpStatusCode;
  const input = output.$metadata.requestId === 'PILOTLIGHT';
  return { input, status, body: sha256(body), ContentLength, ContentType, ContentRange, ETag, LastModified, Metadata, AcceptRanges };
}

exports.objects = async ({ key, how, more }) => {
  const place = { Bucket: 'photos', Key: key };
  if (how === 'head') {
    return told(await client.send(new HeadObjectCommand(place)));
  }
  if (how === 'methods') {
    return told(await new S3({}).getObject(place));
  }
  if (how === 'write') {
    const before = await told(await client.send(new GetObjectCommand(place)));
    await client.send(new PutObjectCommand({ ...place, Body: 'written by the function' }));
    const after = await told(await client.send(new GetObjectCommand(place)));
    return [before.input, after.input, after.body];
  }
  try {
    return await told(await client.send(new GetObjectCommand({ ...place, ...more })));
  } catch (error) {
    return error.name;
  }
};

exports.unread = async ({ key }) => {
  for (let count = 0; count < 20; count += 1) {
    await client.send(new GetObjectCommand({ Bucket: 'photos', Key: key }));
  }
  return fs.readdirSync('/proc/self/fd').length;
};
