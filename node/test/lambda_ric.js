// Preloaded into a process that runs aws-lambda-ric. Not a test itself.
//
// The package posts through a native module, `rapid-client.node`, which its installation compiles. This file takes the
// module's place: `next` gives the events of $RIC_EVENTS with the headers of $RIC_HEADERS, and `done` and `error` keep what is posted. After the last event,
// the posts are written to $RIC_POSTED. An error of the initialisation is posted with `http.request`, which is replaced too.
'use strict';

const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const Module = require('node:module');

/** @typedef {{kind: 'result' | 'error', body: string}} Posted */

const { RIC_EVENTS = '', RIC_POSTED = '', RIC_HEADERS = '{}' } = process.env;
/** @type {unknown[]} */
const events = JSON.parse(fs.readFileSync(RIC_EVENTS, 'utf8'));
/** @type {Posted[]} */
const posted = [];
let given = 0;

/**
 * @param {Posted['kind']} kind
 * @param {unknown[]} values the arguments of the native function, all of which it expects to be strings
 */
function post(kind, ...values) {
  if (!values.every((value) => typeof value === 'string')) {
    throw new TypeError('Wrong arguments');
  }
  posted.push({ kind, body: /** @type {string} */ (values[1]) });
}

const client = {
  initializeClient() {},
  /** @returns {Promise<{bodyJson: string, headers: Record<string, string>}>} */
  async next() {
    if (given === events.length) {
      fs.writeFileSync(RIC_POSTED, JSON.stringify(posted));
      process.exit(0);
    }
    const headers = {
      'lambda-runtime-invoked-function-arn': 'arn',
      'lambda-runtime-aws-request-id': String(given),
      'lambda-runtime-deadline-ms': String(Date.now() + 30_000),
      ...JSON.parse(RIC_HEADERS),
    };
    given += 1;
    return { bodyJson: JSON.stringify(events[given - 1]), headers };
  },
  done: (/** @type {unknown[]} */ ...values) => post('result', ...values),
  error: (/** @type {unknown[]} */ ...values) => post('error', ...values),
};

/**
 * @param {unknown} _options
 * @param {(response: EventEmitter) => void} callback
 */
function request(_options, callback) {
  const made = new EventEmitter();
  return Object.assign(made, {
    end(/** @type {string} */ body) {
      fs.writeFileSync(RIC_POSTED, JSON.stringify([{ kind: 'error', body }]));
      const response = new EventEmitter();
      callback(response);
      response.emit('end');
    },
  });
}
/** @type {any} */ (http).request = request;

const { _extensions: extensions } = /** @type {any} */ (Module);
extensions['.node'] = (/** @type {{exports: unknown}} */ module) => {
  module.exports = client;
};
