// The drop-in for HTTP clients: a request answers from what the initscript got for the same one. Here are the answers, and `fetch`: the
// built-in one, and `fetch` and `request` of the package undici. `http.request` and `https.request`, which other clients use, are in
// `drop_in_http_request.js`.
//
// The same means the method, the whole URL and the body. A response answers one request: the next equal one gets the script's next equal
// response, or asks the server. A request that asks for a part or for a newer version, or that has credentials, goes to the server.
'use strict';

const { createHash } = require('node:crypto');
const consumers = require('node:stream/consumers');

/** @typedef {import('./inputs.js').Input} Input */
/** @typedef {(...values: any[]) => any} Send */

const UNDICI = 'undici';
const UNDICI_FILE = /[\\/]node_modules[\\/]undici[\\/]index\.js$/;
// The answer depends on them, and the script does not have them.
const DECIDING = new Set([
  'authorization', 'cookie', 'range', 'if-match', 'if-none-match', 'if-modified-since', 'if-unmodified-since', 'if-range',
]); // prettier-ignore
const DEFAULT_PORTS = /** @type {Record<string, string>} */ ({ 'http:': ':80', 'https:': ':443' });
const WITHOUT_BODY = new Set([204, 205, 304]);
// Options of undici's request that change the way to the server, or the answer.
const CHANGING = ['dispatcher', 'maxRedirections', 'throwOnError', 'upgrade', 'query', 'signal', 'responseHeaders', 'onInfo'];

/** The responses to the scripts of the running invocations, by method and URL. The oldest is first. @type {Map<string, Input[]>} */
const given = new Map();

/** Modules that are patched. @type {WeakSet<object>} */
const patched = new WeakSet();

/** @param {Input} input */
function add(input) {
  requests?.patchLoaded();
  const { method, url } = input.store;
  const place = placeOf(method, url);
  given.set(place, [...(given.get(place) ?? []), input]);
}

/** @param {Input} input */
function remove(input) {
  const { method, url } = input.store;
  const place = placeOf(method, url);
  const others = (given.get(place) ?? []).filter((other) => other !== input);
  if (others.length > 0) {
    given.set(place, others);
  } else {
    given.delete(place);
  }
}

/**
 * A URL without what makes no difference: the case of the host, a default port, and a fragment.
 * @param {string} method
 * @param {string} url
 */
function placeOf(method, url) {
  const match = /^([^:/?#]+:)\/\/([^/?#]*)([^#]*)/.exec(url);
  if (match === null) {
    return '';
  }
  const [, scheme, host, target] = match;
  const protocol = scheme.toLowerCase();
  const port = DEFAULT_PORTS[protocol];
  let name = host.toLowerCase();
  if (port !== undefined && name.endsWith(port)) {
    name = name.slice(0, -port.length);
  }
  return `${method.toUpperCase()} ${protocol}//${name}${target.startsWith('/') ? target : `/${target}`}`;
}

/**
 * Whether a header makes the server answer.
 * @param {string} name
 */
const isDeciding = (name) => DECIDING.has(name.toLowerCase());

/**
 * The answer to a request, once, or undefined. One that `fits` not is left.
 * @param {string} place
 * @param {Uint8Array} body
 * @param {(input: Input) => boolean} [fits]
 */
function take(place, body, fits = () => true) {
  const hash = body.length === 0 ? '' : createHash('sha256').update(body).digest('hex');
  const found = given.get(place)?.find(({ store }) => (store.body_sha256 ?? '') === hash);
  if (found === undefined || !fits(found)) {
    return undefined;
  }
  remove(found);
  return found;
}

/**
 * The headers of an answer.
 * @param {Input} input
 * @returns {[string, string][]}
 */
function headersOf(input) {
  const { method, status, headers } = input.store;
  const hasBody = method.toUpperCase() !== 'HEAD' && !WITHOUT_BODY.has(status);
  return [...headers, ...(hasBody ? [['content-length', String(input.size)]] : []), ['x-pilot-input', input.name]];
}

/** It needs this module, so it is loaded later. @type {typeof import('./drop_in_http_request.js') | null} */
let requests = null;

/**
 * The text that goes with a status.
 * @param {number} status
 * @returns {string}
 */
const reason = (status) => require('node:http').STATUS_CODES[status] ?? '';

/** Patches the client that is there without being loaded. */
function prepare() {
  requests = require('./drop_in_http_request.js');
  const { fetch } = globalThis;
  if (typeof fetch === 'function') {
    globalThis.fetch = answering(fetch, () => globalThis);
  }
}

/**
 * Patches a module that has been loaded, if it is a client.
 * @param {unknown} request how it was asked for
 * @param {any} loaded its exports
 */
function patch(request, loaded) {
  if (requests?.isClient(request)) {
    requests.patch(loaded);
  } else if (typeof request === 'string' && (request === UNDICI || UNDICI_FILE.test(request)) && !patched.has(loaded)) {
    patched.add(loaded);
    patchUndici(loaded);
  }
}

/** @param {any} undici the module's exports */
function patchUndici(undici) {
  if (typeof undici?.fetch === 'function' && typeof undici.Response === 'function') {
    undici.fetch = answering(undici.fetch, () => undici);
  }
  if (typeof undici?.request === 'function') {
    undici.request = requesting(undici.request);
  }
}

/**
 * `fetch`, with answers.
 * @param {Send} fetch
 * @param {() => any} classes where its classes are
 */
function answering(fetch, classes) {
  return Object.defineProperty(
    async function answerOrFetch(/** @type {unknown[]} */ ...values) {
      const [resource, options] = values;
      const answer = given.size === 0 ? undefined : fetched(resource, options, classes());
      return answer ?? fetch(...values);
    },
    'name',
    { value: 'fetch' },
  );
}

/**
 * The response, or undefined if the server must be asked.
 * @param {any} resource
 * @param {any} options
 * @param {any} classes
 */
function fetched(resource, options, { Headers, Response }) {
  const isRequest = typeof resource?.url === 'string' && typeof resource.method === 'string';
  const method = options?.method ?? (isRequest ? resource.method : 'GET');
  const url = isRequest ? resource.url : String(resource);
  const place = placeOf(String(method), url);
  if (!given.has(place) || options?.dispatcher !== undefined || options?.integrity) {
    return undefined;
  }
  // A request of its own may be aborted, and its body can be read once.
  const body = isRequest && resource.body ? null : bytesOf(options?.body);
  const isAborted = (options?.signal ?? (isRequest ? resource.signal : undefined))?.aborted === true;
  if (body === null || isAborted) {
    return undefined;
  }
  const headers = new Headers(options?.headers ?? (isRequest ? resource.headers : undefined));
  if ([...headers.keys()].some(isDeciding)) {
    return undefined;
  }
  const input = take(place, body, isAnswerOfFetch);
  if (input === undefined) {
    return undefined;
  }
  const { status } = input.store;
  const isEmpty = WITHOUT_BODY.has(status) || input.store.method.toUpperCase() === 'HEAD';
  const response = new Response(isEmpty ? null : input.buffer(), {
    status,
    statusText: reason(status),
    headers: headersOf(input),
  });
  return Object.defineProperty(response, 'url', { value: url.replace(/#.*$/s, ''), configurable: true });
}

/**
 * `fetch` follows redirects and decodes bodies itself: the server is asked for these.
 * @param {Input} input
 */
function isAnswerOfFetch({ store }) {
  const names = store.headers.map((/** @type {[string, string]} */ [name]) => name.toLowerCase());
  const isRedirect = store.status >= 300 && store.status < 400 && names.includes('location');
  return store.status >= 200 && !isRedirect && !names.includes('content-encoding');
}

/**
 * undici's `request`, with answers.
 * @param {Send} request
 */
function requesting(request) {
  return async function answerOrRequest(/** @type {any[]} */ ...values) {
    const [url, options] = values;
    const answer = given.size === 0 || values.length > 2 ? undefined : requested(url, options ?? {});
    return answer ?? request(...values);
  };
}

/**
 * @param {any} url
 * @param {any} options
 */
function requested(url, options) {
  const isText = typeof url === 'string' || url instanceof URL;
  const place = isText ? placeOf(String(options.method ?? 'GET'), String(url)) : '';
  const names = Array.isArray(options.headers)
    ? options.headers.filter((/** @type {unknown} */ _, /** @type {number} */ at) => at % 2 === 0)
    : Object.keys(options.headers ?? {});
  const isKnown = CHANGING.every((key) => !options[key]) && typeof options.headers?.[Symbol.iterator] !== 'function';
  if (!given.has(place) || !(isKnown || Array.isArray(options.headers)) || names.some(isDeciding)) {
    return undefined;
  }
  const body = bytesOf(options.body);
  const input = body === null ? undefined : take(place, body);
  if (input === undefined) {
    return undefined;
  }
  /** @type {Record<string, string | string[]>} */
  const headers = {};
  for (const [name, value] of headersOf(input)) {
    const before = headers[name];
    headers[name] = before === undefined ? value : [...(Array.isArray(before) ? before : [before]), value];
  }
  const { status } = input.store;
  return { statusCode: status, statusText: reason(status), headers, trailers: {}, opaque: options.opaque ?? null, body: readable(input), context: {} };
}

/**
 * A stream with the methods of undici's.
 * @param {Input} input
 */
function readable(input) {
  const stream = /** @type {any} */ (input.stream());
  for (const [name, consume] of Object.entries({
    arrayBuffer: consumers.arrayBuffer,
    blob: consumers.blob,
    bytes: async (/** @type {any} */ from) => new Uint8Array(await consumers.arrayBuffer(from)),
    json: consumers.json,
    text: consumers.text,
    dump: async (/** @type {any} */ from) => void from.resume(),
  })) {
    Object.defineProperty(stream, name, { value: () => consume(stream) });
  }
  return stream;
}

/**
 * A body that is here. Null: it is made while it is sent.
 * @param {unknown} body
 * @returns {Uint8Array | null}
 */
function bytesOf(body) {
  if (body === undefined || body === null) {
    return Buffer.alloc(0);
  }
  if (typeof body === 'string' || body instanceof URLSearchParams) {
    return Buffer.from(String(body));
  }
  if (body instanceof ArrayBuffer) {
    return Buffer.from(body);
  }
  return ArrayBuffer.isView(body) ? Buffer.from(body.buffer, body.byteOffset, body.byteLength) : null;
}

module.exports = { add, given, headersOf, isDeciding, patch, placeOf, prepare, reason, remove, take };
