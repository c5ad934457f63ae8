// Streaming functions that clients invoke.
'use strict';

const { HttpResponseStream, streamifyResponse } = awslambda;

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

class OutOfStock extends Error {
  constructor(article) {
    super(`no ${article} left`);
    this.name = 'OutOfStock';
  }
}

/** Pieces, of which each is written `pause_ms` after the one before. */
exports.pieces = streamifyResponse(async (event, stream) => {
  for (const piece of event.pieces) {
    stream.write(piece);
    await wait(event.pause_ms ?? 0);
  }
  console.log('all pieces are written');
  stream.end();
});

exports.withPrelude = streamifyResponse(async (event, stream) => {
  const head = { statusCode: 201, headers: { 'content-type': 'text/plain', 'x-own': 'yes' }, cookies: ['a=1'] };
  const http = HttpResponseStream.from(stream, head);
  http.write('grüße ');
  http.end('🎈');
});

exports.failsEarly = streamifyResponse(async (event) => {
  throw new OutOfStock(event.article);
});

exports.failsLate = streamifyResponse(async (event, stream) => {
  stream.write('begun');
  await wait(50);
  throw new OutOfStock(event.article);
});

exports.exitsLate = streamifyResponse(async (event, stream) => {
  stream.write('begun');
  await wait(50);
  process.exit(3);
});

exports.timesOutLate = streamifyResponse(async (event, stream) => {
  stream.write('begun');
  await wait(60_000);
});

/** `count` bytes: 0 to 250, again and again. */
exports.manyBytes = streamifyResponse(async (event, stream) => {
  const block = Buffer.from(Array.from({ length: 251 * 400 }, (_, at) => at % 251));
  for (let left = event.count; left > 0; left -= block.length) {
    if (!stream.write(block.subarray(0, left))) {
      await new Promise((resolve) => stream.once('drain', resolve));
    }
  }
  stream.end();
});

exports.nothing = streamifyResponse(async (event, stream) => {
  stream.end();
});

exports.told = streamifyResponse(async (event, stream, context) => {
  stream.end(JSON.stringify({ event, id: context.awsRequestId, client: context.clientContext }));
});
