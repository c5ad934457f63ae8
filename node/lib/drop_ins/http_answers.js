// The responses that initscripts got for HTTP requests, as answers to the same requests of the functions.
//
// The same means the method, the whole URL, the body, and all headers that may decide the answer. A response answers one request: the next
// equal one gets the script's next equal response, or asks the server. Whatever is in doubt goes to the server: a response that a client may
// follow or retry, and what the function may have changed by a request of its own.
'use strict';

const { createHash } = require('node:crypto');

const { Given } = require('./given.js');

/** @typedef {import('../input.js').Input} Input */

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

/** The responses to the scripts of the running invocations, by method and URL. The oldest is first. */
const given = new Given((store) => (isAnswer(store) ? [placeOf(store.method, store.url)] : []), writes);

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

/** @param {string} place */
function writes(place) {
  const [method, folders] = parts(place);
  return SAFE.has(method) ? [`below ${folders.at(-1)}`, ...folders.map((folder) => `at ${folder}`)] : [];
}

/**
 * What a request may change: what is at, above and below its URL.
 * @param {string} place
 */
function writtenBy(place) {
  const [method, folders] = parts(place);
  return SAFE.has(method) || folders.length === 0 ? [] : [`at ${folders.at(-1)}`, ...folders.map((folder) => `below ${folder}`)];
}

/**
 * The method, and the URL without its query as a folder, after what is above it.
 * @param {string} place
 * @returns {[string, string[]]}
 */
function parts(place) {
  const at = place.indexOf(' ');
  const folder = `${place.slice(at + 1).replace(/\?.*$/s, '').replace(/\/+$/, '')}/`;
  const folders = [];
  for (let end = folder.indexOf('/', folder.indexOf('://') + 3); end >= 0; end = folder.indexOf('/', end + 1)) {
    folders.push(folder.slice(0, end + 1));
  }
  return [place.slice(0, at), folders];
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
 * @param {string} [requestId] that of the invocation
 */
function take(place, asked, body, fits = () => true, requestId = undefined) {
  const host = asked.get('host');
  if (host !== undefined && originOf(`${place.replace(/:\/\/.*$/s, '://')}${host}`) !== originOf(place)) {
    return undefined; // another one than that of the URL
  }
  const hash = body.length === 0 ? '' : createHash('sha256').update(body).digest('hex');
  const isIt = (/** @type {Input} */ input) => (input.store.body_sha256 ?? '') === hash && isSame(asked, input.store, body.length > 0);
  const found = given.of(place, requestId).find((input) => isIt(input) && fits(input));
  if (found !== undefined) {
    given.remove(found);
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

/**
 * The text that goes with a status.
 * @param {number} status
 * @returns {string}
 */
const reason = (status) => require('node:http').STATUS_CODES[status] ?? '';

module.exports = { SAFE, WITHOUT_BODY, given, headersOf, joined, originOf, placeOf, reason, take, writtenBy };
