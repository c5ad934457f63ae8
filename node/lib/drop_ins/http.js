// The drop-in for HTTP clients: a request answers from what the initscript got for the same one. Here is `fetch`: the built-in one, and
// `fetch` and `request` of the package undici. `http.request` and `https.request`, which other clients use, are in
// `http_request.js`, and the answers in `http_answers.js`.
'use strict';

const consumers = require('node:stream/consumers');

const answers = require('./http_answers.js');
const requests = require('./http_request.js');

const { WITHOUT_BODY, given, headersOf, joined, originOf, placeOf, reason, take, writtenBy } = answers;

/** @typedef {import('../input.js').Input} Input */
/** @typedef {(...values: any[]) => any} Send */

const UNDICI = 'undici';
const UNDICI_FILE = /[\\/]node_modules[\\/]undici[\\/]index\.js$/;
// Options of undici's request that change the way to the server, or the answer.
const CHANGING = ['dispatcher', 'path', 'maxRedirections', 'throwOnError', 'upgrade', 'query', 'signal', 'responseHeaders', 'onInfo'];

/** Modules that are patched. @type {WeakSet<object>} */
const patched = new WeakSet();

/** A response of a script is here: patches the modules that were loaded without `require`. */
const prepareLoaded = () => requests.patchLoaded();

/** Patches the client that is there without being loaded. */
function prepare() {
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
  if (requests.isClient(request)) {
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
      const place = placeOfFetch(resource, options);
      const answer = given.size === 0 ? undefined : fetched(place, resource, options, classes());
      return given.call(writtenBy(place), () => answer ?? fetch(...values));
    },
    'name',
    { value: 'fetch' },
  );
}

/** @param {any} resource */
const isRequestOf = (resource) => typeof resource?.url === 'string' && typeof resource.method === 'string';

/** @param {any} resource */
const urlOf = (resource) => (isRequestOf(resource) ? resource.url : String(resource));

/**
 * @param {any} resource
 * @param {any} options
 */
function placeOfFetch(resource, options) {
  return placeOf(String(options?.method ?? (isRequestOf(resource) ? resource.method : 'GET')), urlOf(resource));
}

/**
 * The response, or undefined if the server must be asked.
 * @param {string} place
 * @param {any} resource
 * @param {any} options
 * @param {any} classes
 */
function fetched(place, resource, options, { Headers, Response }) {
  const isRequest = isRequestOf(resource);
  const cache = options?.cache ?? (isRequest ? resource.cache : undefined) ?? 'default';
  if (given.of(place).length === 0 || options?.dispatcher !== undefined || options?.integrity || cache !== 'default') {
    return undefined;
  }
  // A request of its own may be aborted, and its body can be read once.
  const body = isRequest && resource.body ? null : bytesOf(options?.body);
  const isAborted = (options?.signal ?? (isRequest ? resource.signal : undefined))?.aborted === true;
  if (body === null || isAborted) {
    return undefined;
  }
  const headers = new Headers(options?.headers ?? (isRequest ? resource.headers : undefined));
  if (options?.body instanceof URLSearchParams && !headers.has('content-type')) {
    headers.set('content-type', 'application/x-www-form-urlencoded'); // as the original
  }
  const input = take(place, joined(headers), body, isDecoded);
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
  return Object.defineProperty(response, 'url', { value: urlOf(resource).replace(/#.*$/s, ''), configurable: true });
}

/**
 * `fetch` decodes bodies itself: the server is asked for encoded ones.
 * @param {Input} input
 */
const isDecoded = ({ store }) => !joined(store.headers).has('content-encoding');

/**
 * undici's `request`, with answers.
 * @param {Send} request
 */
function requesting(request) {
  return async function answerOrRequest(/** @type {any[]} */ ...values) {
    const [url, options] = values;
    const place = placeOfRequest(url, options ?? {});
    const answer = given.size === 0 || values.length > 2 ? undefined : requested(place, url, options ?? {});
    return given.call(writtenBy(place), () => answer ?? request(...values));
  };
}

/** @param {any} url */
const isText = (url) => typeof url === 'string' || url instanceof URL;

/**
 * Of which only the server is known, if the options have another path.
 * @param {any} url
 * @param {any} options
 */
function placeOfRequest(url, options) {
  const method = String(options.method ?? 'GET');
  const place = placeOf(method, String(isText(url) ? url : url?.origin));
  return isText(url) && !options.path ? place : `${method.toUpperCase()}${originOf(place)}`;
}

/**
 * @param {string} place
 * @param {any} url
 * @param {any} options
 */
function requested(place, url, options) {
  const headers = pairsOf(options.headers);
  if (!isText(url) || given.of(place).length === 0 || headers === null || CHANGING.some((key) => options[key])) {
    return undefined;
  }
  const body = bytesOf(options.body);
  const input = body === null ? undefined : take(place, joined(headers), body);
  if (input === undefined) {
    return undefined;
  }
  /** @type {Record<string, string | string[]>} */
  const told = {};
  for (const [name, value] of headersOf(input)) {
    const before = told[name];
    told[name] = before === undefined ? value : [...(Array.isArray(before) ? before : [before]), value];
  }
  const { status } = input.store;
  return { statusCode: status, statusText: reason(status), headers: told, trailers: {}, opaque: options.opaque ?? null, body: readable(input), context: {} };
}

/**
 * Headers of undici's `request`: an object, or names and values in turn. Null: others, which only undici understands.
 * @param {any} headers
 * @returns {[string, unknown][] | null}
 */
function pairsOf(headers) {
  if (Array.isArray(headers)) {
    const names = headers.filter((_, at) => at % 2 === 0);
    return names.every((name) => typeof name === 'string') ? names.map((name, at) => [name, headers[2 * at + 1]]) : null;
  }
  return typeof headers?.[Symbol.iterator] === 'function' ? null : Object.entries(headers ?? {});
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

module.exports = { given, patch, prepare, prepareLoaded };
