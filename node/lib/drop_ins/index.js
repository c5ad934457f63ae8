// Drop-ins: clients of stores answer from the inputs of the running invocations. Here is the one for `@aws-sdk/client-s3`: GetObject and
// HeadObject answer from an input if it is the object that was asked for. The one for node-redis is in `redis.js`. Those
// for HTTP clients and for `@aws-sdk/client-sqs`, which answer from what an initscript got, are in `http.js` and `sqs.js`.
//
// `prepare` is called before the handler is loaded, and patches the client when it is loaded, by `require` or by `import`. A
// client then has one more middleware, directly before the network. The response is decoded by the SDK itself. Ranges and
// If-Match are answered. A request with a version, or with anything else that this file does not know, goes to the store. So does
// a request for an object that the function has written itself since the store was asked (`given.js`).
'use strict';

const Module = require('node:module');
const { Readable } = require('node:stream');

const { Given } = require('./given.js');
const redis = require('./redis.js');

/** Loaded if a function has an initscript that asks HTTP servers. @type {typeof import('./http.js') | null} */
let web = null;

/** Loaded if a function has an initscript that asks queues. @type {typeof import('./sqs.js') | null} */
let sqs = null;

/** @typedef {import('../input.js').Input} Input */

/**
 * What the SDK is about to send.
 * @typedef {{method: string, protocol: string, hostname: string, port?: number, path: string,
 *   query?: Record<string, unknown>, headers: Record<string, string>, body?: unknown}} Request
 */

/**
 * A client of the AWS SDK.
 * @typedef {object} Client
 * @property {Given} given
 * @property {(command: string, request: Request) => object | null} answer the response, or null if the server must be asked
 * @property {(command: string, request: Request) => readonly string[]} writtenBy what a request may change
 */

const CLIENT = '@aws-sdk/client-s3';
const CLIENT_FILE = /[\\/]@aws-sdk[\\/]client-s3[\\/]dist-cjs[\\/]index\.js$/;
// What does not change which bytes are the answer.
const HARMLESS_HEADERS = new Set([
  'accept-encoding', 'amz-sdk-invocation-id', 'amz-sdk-request', 'authorization', 'content-length', 'content-type', 'host',
  'user-agent', 'x-amz-checksum-mode', 'x-amz-content-sha256', 'x-amz-date', 'x-amz-request-payer', 'x-amz-security-token',
  'x-amz-user-agent', 'x-amzn-trace-id',
]); // prettier-ignore
const READING = /^(?:Get|Head|List|Select)/;
// All names of Amazon's S3 are one store, because the names of buckets are unique there. Access points have other names.
const AMAZON = /^(?:(.+)\.)?s3(?:-fips|-accelerate)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-\d)?\.amazonaws\.com$/;
const DEFAULT_PORTS = /** @type {Record<string, string>} */ ({ 'http:': ':80', 'https:': ':443' });

/** Objects of S3. */
const given = new Given(places, writes);
/** Clients that have the middleware. @type {WeakSet<object>} */
const hooked = new WeakSet();
/** Kinds of stores. @type {Set<string>} */
const prepared = new Set();

/**
 * Installs the drop-ins for these kinds of stores.
 * @param {string[]} kinds
 */
function prepare(kinds) {
  const wanted = kinds.filter((kind) => ['s3', 'redis', 'http', 'sqs'].includes(kind) && !prepared.has(kind));
  if (wanted.length === 0) {
    return;
  }
  wanted.forEach((kind) => prepared.add(kind));
  if (wanted.includes('http')) {
    web = require('./http.js');
    web.prepare();
  }
  if (wanted.includes('sqs')) {
    sqs = require('./sqs.js');
  }
  const loader = /** @type {any} */ (Module);
  const load = loader._load;
  loader._load = function loadAndPatch(/** @type {unknown} */ request, /** @type {unknown[]} */ ...rest) {
    const loaded = Reflect.apply(load, this, [request, ...rest]);
    if (wanted.includes('s3') && typeof request === 'string' && (request === CLIENT || CLIENT_FILE.test(request))) {
      patch(loaded?.S3Client?.prototype, { given, answer, writtenBy });
    }
    if (wanted.includes('sqs') && sqs?.isClient(request)) {
      patch(loaded?.SQSClient?.prototype, sqs);
    }
    if (wanted.includes('redis') && redis.isClient(request, rest[0]) && !hooked.has(loaded)) {
      hooked.add(loaded);
      redis.patch(loaded);
    }
    if (wanted.includes('http')) {
      web?.patch(request, loaded);
    }
    return loaded;
  };
}

/**
 * An invocation begins: its inputs are answers from now on.
 * @param {Input[]} inputs
 * @param {string} requestId
 */
function begin(inputs, requestId) {
  for (const input of inputs) {
    input.invocation = requestId;
    if (input.store?.kind === 'http') {
      web?.prepareLoaded();
    }
    givenOf(input.store)?.add(input);
  }
}

/**
 * The invocation has ended.
 * @param {Input[]} inputs
 */
function end(inputs) {
  for (const input of inputs) {
    givenOf(input.store)?.remove(input);
  }
}

/** @param {any} store `InvokeMeta.inputs[].store` */
function givenOf(store) {
  const all = { s3: given, redis: redis.given, http: web?.given, sqs: sqs?.given };
  return prepared.has(store?.kind) ? all[/** @type {keyof typeof all} */ (store.kind)] : undefined;
}

/**
 * All names of an object: the URLs with the bucket in the path and in the host's name.
 * @param {any} store
 */
function places(store) {
  const { protocol, host, pathname } = new URL(store.endpoint ?? 'https://s3.amazonaws.com');
  const folder = pathname.replace(/\/$/, '');
  const path = encoded(store.key);
  const { bucket } = store;
  const inPath = plain(protocol, host, `${folder}/${bucket}/${path}`);
  const inHost = plain(protocol, `${bucket}.${host}`, `${folder}/${path}`);
  return [...new Set([inPath, inHost])];
}

/**
 * The object, and what is above it: a request for a bucket may delete any of its objects.
 * @param {string} place
 */
function writes(place) {
  const found = [place];
  for (let at = place.indexOf('/', place.indexOf('://') + 3); at >= 0; at = place.indexOf('/', at + 1)) {
    found.push(place.slice(0, at));
  }
  return found;
}

/**
 * A URL without what makes no difference: the case of the host, a default port, and which of Amazon's names it is.
 * @param {string} protocol
 * @param {string} host with its port
 * @param {string} path
 */
function plain(protocol, host, path) {
  const port = DEFAULT_PORTS[protocol];
  let name = host.toLowerCase();
  if (port !== undefined && name.endsWith(port)) {
    name = name.slice(0, -port.length);
  }
  const amazon = AMAZON.exec(name);
  if (amazon !== null) {
    return `${protocol}//s3.amazonaws.com${amazon[1] === undefined ? '' : `/${amazon[1]}`}${path}`;
  }
  return `${protocol}//${name}${path}`;
}

/**
 * As the SDK encodes a key (RFC 3986).
 * @param {string} key
 */
function encoded(key) {
  const byte = (/** @type {string} */ char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`;
  return key.split('/').map((part) => encodeURIComponent(part).replace(/[!'()*]/g, byte)).join('/');
}

/**
 * Gives each client of the AWS SDK a middleware.
 * @param {any} prototype of its class
 * @param {Client} client
 */
function patch(prototype, client) {
  if (typeof prototype?.send !== 'function' || hooked.has(prototype)) {
    return;
  }
  hooked.add(prototype);
  const { send } = prototype;
  prototype.send = function hookAndSend(/** @type {unknown[]} */ ...values) {
    if (!hooked.has(this)) {
      hooked.add(this);
      const options = { step: 'deserialize', priority: 'low', name: 'pilotInputs', override: true };
      this.middlewareStack.add(middleware(client), options);
    }
    return Reflect.apply(send, this, values);
  };
}

/** @param {Client} client */
function middleware({ given: answers, answer: answerOf, writtenBy: writesOf }) {
  return (/** @type {(args: any) => Promise<unknown>} */ next, /** @type {{commandName?: string}} */ { commandName = '' }) =>
    async (/** @type {{request: Request}} */ args) => {
      const response = answers.size === 0 ? null : answerOf(commandName, args.request);
      return answers.call(writesOf(commandName, args.request), () => (response === null ? next(args) : { response }));
    };
}

/**
 * The response, or null if the store must be asked.
 * @param {string} command
 * @param {Request} request
 */
function answer(command, request) {
  const isAnswered = command === 'GetObjectCommand' || command === 'HeadObjectCommand';
  const input = isAnswered ? given.newest(placeOf(request)) : undefined;
  const isKnown = Object.keys(request.query ?? {}).every((key) => key === 'x-id');
  if (input === undefined || !isKnown) {
    return null;
  }
  const wanted = span(request.headers, input);
  if (wanted === null) {
    return null;
  }
  const [first, last, isPart] = wanted;
  /** @type {Record<string, string>} */
  const headers = Object.fromEntries(input.store.headers);
  headers['content-type'] ??= 'binary/octet-stream';
  headers['content-length'] = String(last - first);
  headers['accept-ranges'] = 'bytes';
  headers['x-amz-request-id'] = 'PILOTLIGHT';
  headers['x-pilot-input'] = input.name;
  if (isPart) {
    headers['content-range'] = `bytes ${first}-${last - 1}/${input.size}`;
  }
  const body = command === 'GetObjectCommand' ? input.stream(first, last) : Readable.from([]);
  return { statusCode: isPart ? 206 : 200, reason: isPart ? 'Partial Content' : 'OK', headers, body };
}

/**
 * The first byte, the end, and whether a range was asked for. Null if the request asks for something that only the store knows.
 * @param {Record<string, string>} asked
 * @param {Input} input
 * @returns {[number, number, boolean] | null}
 */
function span(asked, input) {
  const { size } = input;
  /** @type {[number, number, boolean]} */
  let found = [0, size, false];
  for (const [header, value] of Object.entries(asked)) {
    const name = header.toLowerCase();
    if (HARMLESS_HEADERS.has(name)) {
      continue;
    }
    if (name === 'range') {
      const match = /^bytes=(\d*)-(\d*)$/.exec(value.trim());
      if (match === null || (match[1] === '' && match[2] === '')) {
        return null;
      }
      const [, begin, last] = match;
      found =
        begin === ''
          ? [Math.max(size - Number(last), 0), size, true]
          : [Number(begin), last === '' ? size : Math.min(Number(last) + 1, size), true];
      if (found[0] >= found[1]) {
        return null; // the store refuses it
      }
    } else if (name !== 'if-match' || !isTag(value, input)) {
      return null;
    }
  }
  return found;
}

/**
 * @param {string} value
 * @param {Input} input
 */
function isTag(value, input) {
  const bare = (/** @type {string} */ tag) => tag.replace(/^"|"$/g, '');
  const [, tag] = input.store.headers.find((/** @type {[string, string]} */ [name]) => name === 'etag') ?? [];
  return tag !== undefined && bare(tag) === bare(value);
}

/**
 * An object, or a bucket.
 * @param {string} command
 * @param {Request} request
 */
function writtenBy(command, request) {
  return READING.test(command) ? [] : [placeOf(request).replace(/\/+$/, '')];
}

/** @param {Request} request */
function placeOf({ protocol, hostname, port, path }) {
  return plain(protocol, port ? `${hostname}:${port}` : hostname, path);
}

module.exports = { prepare, begin, end };
