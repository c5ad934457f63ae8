// Invokes functions with the AWS SDK for JavaScript. Standard input is a list of calls: {operation, input}. For each call, a line on
// standard output says what the SDK gave.
//
//     node invoke.js ENDPOINT FOLDER     FOLDER: of the package.json with which the SDK is installed
'use strict';

const crypto = require('node:crypto');
const { createRequire } = require('node:module');
const { text } = require('node:stream/consumers');

const [endpoint, folder] = process.argv.slice(2);
const sdk = createRequire(`${folder}/package.json`)('@aws-sdk/client-lambda');

const client = new sdk.LambdaClient({
  endpoint,
  region: 'us-east-1',
  credentials: { accessKeyId: 'test', secretAccessKey: 'test' },
  maxAttempts: 1,
});

async function call({ operation, input }) {
  const request = { ...input, Payload: input.Payload && Buffer.from(input.Payload) };
  const response = await client.send(new sdk[`${operation}Command`](request));
  const { StatusCode: status, ExecutedVersion: version, $metadata: metadata, FunctionError: failed } = response;
  const said = { status, version, failed, id: metadata.requestId, type: response.ResponseStreamContentType };
  if (operation === 'Invoke') {
    return { ...said, body: Buffer.from(response.Payload).toString(), log: response.LogResult };
  }
  const began = performance.now();
  const chunks = [];
  let complete;
  for await (const event of response.EventStream) {
    if (event.PayloadChunk) {
      chunks.push({ bytes: Buffer.from(event.PayloadChunk.Payload), at_ms: performance.now() - began });
    }
    complete = event.InvokeComplete ?? complete;
  }
  const body = Buffer.concat(chunks.map(({ bytes }) => bytes));
  return {
    ...said,
    body: body.length < 1000 ? body.toString() : undefined,
    length: body.length,
    sha256: crypto.createHash('sha256').update(body).digest('hex'),
    times_ms: chunks.map(({ at_ms }) => at_ms),
    complete,
  };
}

async function main() {
  for (const one of JSON.parse(await text(process.stdin))) {
    let said;
    try {
      said = await call(one);
    } catch (error) {
      said = { error: error.name, message: error.message, status: error.$metadata?.httpStatusCode };
    }
    process.stdout.write(`${JSON.stringify(said)}\n`);
  }
}

main();
