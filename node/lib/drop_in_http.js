// The drop-in for HTTP clients: a request answers from what the initscript got for the same one. Here are the answers, and `fetch`: the
// built-in one, and `fetch` and `request` of the package undici. `http.request` and `https.request`, which other clients use, are in
// `drop_in_http_request.js`.
//
// The same means the method, the whole URL, the body, and all headers that may decide the answer. A response answers one request: the next
// equal one gets the script's next equal response, or asks the server. Whatever is in doubt goes to the server: a response that a client may
// follow or retry, and what the function may have changed by a request of its own.
'use strict';

const { createHash } = require('node:crypto');
const consumers = require('node:stream/consumers');

/** @typedef {import('./input.js').Input} Input */
/** @typedef {(...values: any[]) => any} Send */

const UNDICI = 'undici';
const UNDICI_FILE = /[\\/]node_modules[\\/]undici[\\/]index\.js$/;
// Clients, proxies and tracers add them, and no answer depends on them, unless it says so (`Vary`). All others decide.
const HARMLESS = new Set([
  'accept-encoding', 'baggage', 'connection', 'content-length', 'host', 'keep-alive', 'sec-fetch-mode', 'sentry-trace', 'traceparent',
  'tracestate', 'user-agent', 'x-amzn-trace-id',
]); // prettier-ignore
// A header that is missing means this.
const MEANT = /** @type {Record<string, string>} */ ({ accept: '*/*', 'accept-language': '*', 'content-type': 'text/plain' });
// What axios says if nobody has said anything. Not where the response varies by it.
const ANYTHING = 'application/json, text/plain, */*';
const SAFE = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);
// A client may repeat the request, as after 3xx and 5xx.
const REPEATED = new Set([408, 413, 425, 429]);
const DEFAULT_PORTS = /** @type {Record<string, string>} */ ({ 'http:': ':80', 'https:': ':443' });
const WITHOUT_BODY = new Set([204, 205, 304]);
// Options of undici's request that change the way to the server, or the answer.
const CHANGING = ['dispatcher', 'path', 'maxRedirections', 'throwOnError', 'upgrade', 'query', 'signal', 'responseHeaders', 'onInfo'];

/** The responses to the scripts of the running invocations, by method and URL. The oldest is first. @type {Map<string, Input[]>} */
const given = new Map();

/** Modules that are patched. @type {WeakSet<object>} */
const patched = new WeakSet();

/** @param {Input} input */
function add(input) {
  requests?.patchLoaded();
  const { method, url } = input.store;
  if (!isAnswer(input.store)) {
    return;
  }
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
 * Headers by lower-case name. Several of one name are one value (RFC 9110, section 5.3).
 * @param {Iterable<[string, unknown]>} pairs
 */
function joined(pairs) {
  /** @type {Map<string, string>} */
  const headers = new Map();
  for (const [name, value] of pairs) {
    const key = String(name).toLowerCase();
    const text = String(Array.isArray(value) ? value.join(', ') : value).trim();
    headers.set(key, headers.has(key) ? `${headers.get(key)}, ${text}` : text);
  }
  return headers;
}

/** @param {Map<string, string>} headers */
const varying = (headers) => (headers.get('vary') ?? '').split(',').map((name) => name.trim().toLowerCase());

/**
 * A redirect, an error of the server, and what asks for patience are no answers: clients follow and retry at the server.
 * @param {any} store
 */
function isAnswer({ status, headers }) {
  if (!(status >= 200 && status < 300) && (!(status >= 400 && status < 500) || REPEATED.has(status))) {
    return false;
  }
  const all = joined(headers);
  return !all.has('retry-after') && !varying(all).includes('*');
}

/**
 * Whether the script has sent these headers, as far as an answer may depend on them.
 * @param {Map<string, string>} asked
 * @param {any} store
 * @param {boolean} hasBody
 */
function isSame(asked, store, hasBody) {
  const sent = joined(store.request_headers ?? []);
  const varied = varying(joined(store.headers));
  const meant = (/** @type {Map<string, string>} */ headers, /** @type {string} */ name) => {
    const value = headers.get(name) || MEANT[name];
    if (name === 'accept' && value === ANYTHING && !varied.includes(name)) {
      return MEANT[name];
    }
    return name === 'content-type' ? value?.toLowerCase().replace(/ |;\s*charset=utf-8/g, '') : value;
  };
  const deciding = [...asked.keys(), ...sent.keys()].filter((name) => !HARMLESS.has(name) && (hasBody || name !== 'content-type'));
  if (deciding.some((name) => meant(asked, name) !== meant(sent, name))) {
    return false;
  }
  // A client may add them later. The script asks for no encoding, which every client understands.
  const unknown = varied.filter((name) => HARMLESS.has(name) && name !== 'accept-encoding');
  return unknown.every((name) => asked.has(name) && asked.get(name) === sent.get(name));
}

/**
 * The function makes a request: if it may change something, the server says from now on what is at, above and below its URL.
 * @param {string} place
 */
function forgetChanged(place) {
  const [method, url] = parts(place);
  if (SAFE.has(method)) {
    return;
  }
  for (const other of [...given.keys()]) {
    const [reading, read] = parts(other);
    if (SAFE.has(reading) && (read.startsWith(url) || url.startsWith(read))) {
      given.delete(other);
    }
  }
}

/**
 * The method and the URL without its query, as a folder.
 * @param {string} place
 */
function parts(place) {
  const at = place.indexOf(' ');
  return [place.slice(0, at), `${place.slice(at + 1).replace(/\?.*$/s, '').replace(/\/+$/, '')}/`];
}

/**
 * Scheme, host and port.
 * @param {string} place
 */
const originOf = (place) => placeOf('', place.replace(/^\S* (.*?:\/\/[^/?#]*).*$/s, '$1'));

/**
 * The answer to a request, once, or undefined. One that `fits` not is left.
 * @param {string} place
 * @param {Map<string, string>} asked the headers
 * @param {Uint8Array} body
 * @param {(input: Input) => boolean} [fits]
 */
function take(place, asked, body, fits = () => true) {
  const host = asked.get('host');
  if (host !== undefined && originOf(`${place.replace(/:\/\/.*$/s, '://')}${host}`) !== originOf(place)) {
    return undefined; // another one than that of the URL
  }
  const hash = body.length === 0 ? '' : createHash('sha256').update(body).digest('hex');
  const isIt = (/** @type {Input} */ input) => (input.store.body_sha256 ?? '') === hash && isSame(asked, input.store, body.length > 0);
  const found = given.get(place)?.find((input) => isIt(input) && fits(input));
  if (found !== undefined) {
    remove(found);
  }
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
  forgetChanged(place);
  const cache = options?.cache ?? (isRequest ? resource.cache : undefined) ?? 'default';
  if (!given.has(place) || options?.dispatcher !== undefined || options?.integrity || cache !== 'default') {
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
  return Object.defineProperty(response, 'url', { value: url.replace(/#.*$/s, ''), configurable: true });
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
  const method = String(options.method ?? 'GET');
  const place = placeOf(method, String(isText ? url : url?.origin));
  forgetChanged(isText && !options.path ? place : `${method.toUpperCase()}${originOf(place)}`);
  const headers = pairsOf(options.headers);
  if (!isText || !given.has(place) || headers === null || CHANGING.some((key) => options[key])) {
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

module.exports = { add, forgetChanged, given, headersOf, joined, patch, placeOf, prepare, reason, remove, take };
