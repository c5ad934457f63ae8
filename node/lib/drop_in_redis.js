// The drop-in for node-redis (`redis`, `@redis/client` 5): GET answers from an input if it is the key of that server and database.
//
// Every command of a client, but for those of pipelines and transactions, passes `sendCommand`. GET in a pipeline or a transaction asks
// the server. So does everything after the function has written to the key with any client: what it writes is noted.
'use strict';

/** @typedef {import('./inputs.js').Input} Input */
/** @typedef {Map<string, Input[]>} Given */
/** @typedef {ReadonlyArray<string | Buffer>} Command */

const REQUEST = './lib/client';
const REQUESTED_BY = /[\\/]@redis[\\/]client[\\/]dist[\\/]index\.js$/;
// They change no string. Only the usual ones are here: any other command with the key makes the server answer from then on.
const READING = new Set([
  'GET', 'MGET', 'EXISTS', 'TTL', 'PTTL', 'TYPE', 'STRLEN', 'GETRANGE', 'SUBSTR', 'HGET', 'HGETALL', 'HMGET', 'LRANGE', 'LLEN',
  'SMEMBERS', 'SISMEMBER', 'ZRANGE', 'ZSCORE', 'SCAN', 'KEYS', 'PING', 'PUBLISH', 'WATCH', 'AUTH', 'HELLO', 'CLIENT',
]); // prettier-ignore
// They may change any key, or which database the keys are of.
const CHANGING_ALL = /^(?:EVAL|FCALL|FLUSHALL|FLUSHDB|SWAPDB|SELECT|MIGRATE|FUNCTION)/;
const BLOB_STRING = 36; // RESP_TYPES.BLOB_STRING
const DEFAULT_PORT = 6379;

/**
 * Whether a module is the client's class.
 * @param {unknown} request
 * @param {any} parent
 */
function isClient(request, parent) {
  return request === REQUEST && typeof parent?.filename === 'string' && REQUESTED_BY.test(parent.filename);
}

/**
 * The name of the value among the inputs.
 * @param {any} store `InvokeMeta.inputs[].store`
 */
function places(store) {
  return [`${server(store.host, store.port)}/${store.database} ${store.key}`];
}

/**
 * @param {string} host
 * @param {number} port
 */
function server(host, port) {
  return `redis:${host.toLowerCase()}:${port}`;
}

/**
 * @param {any} loaded the module's exports
 * @param {Given} given
 */
function patch(loaded, given) {
  const prototype = loaded?.default?.prototype;
  if (typeof prototype?.sendCommand !== 'function') {
    return; // a version that is built differently: it always asks the server
  }
  const { sendCommand } = prototype;
  prototype.sendCommand = function answerOrSend(/** @type {Command} */ args, /** @type {any} */ options, /** @type {unknown[]} */ ...rest) {
    const value = given.size === 0 ? null : answer(this, args, options, given);
    return value === null ? Reflect.apply(sendCommand, this, [args, options, ...rest]) : Promise.resolve(value);
  };
  for (const name of ['_executePipeline', '_executeMulti']) {
    const execute = prototype[name];
    if (typeof execute === 'function') {
      prototype[name] = function noteAndExecute(/** @type {{args: Command}[]} */ commands, /** @type {unknown[]} */ ...rest) {
        if (given.size > 0) {
          commands.forEach(({ args }) => note(this, args, given));
        }
        return Reflect.apply(execute, this, [commands, ...rest]);
      };
    }
  }
}

/**
 * The answer, or null if the server must be asked.
 * @param {any} client
 * @param {Command} args
 * @param {any} options
 * @param {Given} given
 */
function answer(client, args, options, given) {
  if (String(args[0]).toUpperCase() !== 'GET' || args.length !== 2) {
    note(client, args, given);
    return null;
  }
  const key = text(args[1]);
  const kind = (options?.typeMapping ?? client._commandOptions?.typeMapping)?.[BLOB_STRING] ?? String;
  if (key === null || !client.isOpen || (kind !== String && kind !== Buffer)) {
    return null;
  }
  const { host, port, database } = known(client);
  const input = given.get(`${server(host, port)}/${database} ${key}`)?.at(-1);
  if (input === undefined) {
    return null;
  }
  const bytes = input.buffer();
  // The function may write into a Buffer that it gets.
  return kind === Buffer ? Buffer.from(bytes) : bytes.toString();
}

/** @param {any} client */
function known(client) {
  const { socket, database } = client.options ?? {};
  return { host: String(socket?.host ?? 'localhost'), port: Number(socket?.port ?? DEFAULT_PORT), database: database ?? 0 };
}

/**
 * Forgets the inputs that a command may change.
 * @param {any} client
 * @param {Command} args
 * @param {Given} given
 */
function note(client, args, given) {
  const command = String(args[0]).toUpperCase();
  if (READING.has(command)) {
    return;
  }
  const { host, port, database } = known(client);
  const all = `${server(host, port)}/`;
  if (CHANGING_ALL.test(command)) {
    for (const place of [...given.keys()].filter((other) => other.startsWith(all))) {
      given.delete(place);
    }
    return;
  }
  for (const argument of args.slice(1)) {
    given.delete(`${all}${database} ${text(argument)}`);
  }
}

/**
 * A key as text. Null: its bytes are no text.
 * @param {string | Buffer | undefined} key
 */
function text(key) {
  if (!Buffer.isBuffer(key)) {
    return typeof key === 'string' ? key : null;
  }
  const found = key.toString();
  return Buffer.from(found).equals(key) ? found : null;
}

module.exports = { isClient, patch, places };
