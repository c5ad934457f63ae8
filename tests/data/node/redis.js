// A function that reads with node-redis, and knows nothing of inputs.
'use strict';

const fs = require('node:fs');

const { createClient, RESP_TYPES } = require('redis');

let client;

// How often the server was asked for a string.
async function asked() {
  const stats = await client.info('commandstats');
  return Number(/cmdstat_get:calls=(\d+)/.exec(stats)?.[1] ?? 0);
}

exports.handler = async ({ key, how }) => {
  client ??= await createClient({
    url: `rediss://localhost:${process.env.REDIS_PORT}`,
    password: process.env.REDIS_PASSWORD,
    socket: { ca: fs.readFileSync(`${process.env.LAMBDA_TASK_ROOT}/ca.pem`) },
  }).connect();
  const before = await asked();
  let value;
  if (how === 'bytes') {
    const bytes = await client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer }).get(key);
    value = bytes.toString('hex');
  } else if (how === 'write') {
    await client.set(key, 'written by the function');
    value = await client.get(key);
  } else if (how === 'pipeline') {
    value = (await client.multi().set(key, 'written in a transaction').get(key).exec())[1];
    value = [value, await client.get(key)];
  } else if (how === 'other') {
    value = await client.get('another key');
  } else {
    value = await client.get(key);
  }
  return { input: (await asked()) === before, value };
};
