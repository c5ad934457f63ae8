// The drop-in for node-redis (`redis`, `@redis/client` 5): GET answers from an input if it is the key of that server and database.
//
// Every command of a client, but for those of pipelines and transactions, passes `sendCommand`. GET in a pipeline or a transaction asks
// the server. So does everything after the function has written to the key with any client: what it writes is noted. A client with a
// Unix socket, and one that has had a SELECT, asks the server.
'use strict';

const { Given } = require('./given.js');

/** @typedef {ReadonlyArray<string | Buffer>} Command */

const REQUEST = './lib/client';
const REQUESTED_BY = /[\\/]@redis[\\/]client[\\/]dist[\\/]index\.js$/;
// They change no string. Only the usual ones are here: any other command with the key makes the server answer from then on.
const READING = new Set([
  'GET', 'MGET', 'EXISTS', 'TTL', 'PTTL', 'TYPE', 'STRLEN', 'GETRANGE', 'SUBSTR', 'HGET', 'HGETALL', 'HMGET', 'LRANGE', 'LLEN',
  'SMEMBERS', 'SISMEMBER', 'ZRANGE', 'ZSCORE', 'SCAN', 'KEYS', 'PING', 'PUBLISH', 'WATCH', 'AUTH', 'HELLO', 'CLIENT',
]); // prettier-ignore
// They may change any key.
const CHANGING_ALL = /^(?:EVAL|FCALL|FLUSHALL|FLUSHDB|SWAPDB|MIGRATE|FUNCTION)/;
// From then on, the connection has another database than the client's options.
const SELECTING = new Set(['SELECT', 'RESET']);
const BLOB_STRING = 36; // RESP_TYPES.BLOB_STRING
const DEFAULT_PORT = 6379;
const KEY_LEN_MAX = 1024; // bytes of the key of an input
const ANY = 'any';

const given = new Given(places, writes);
/** Clients that have had such a command. @type {WeakSet<object>} */
const selected = new WeakSet();

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
 * A server and a key, or any of them. In all databases, because COPY and MOVE write to another one.
 * @param {string} place
 */
function writes(place) {
  const at = place.indexOf(' ');
  const [of, key] = [place.slice(0, place.lastIndexOf('/', at)), place.slice(at)];
  return [`${of}${key}`, of, `${ANY}${key}`, ANY];
}

/**
 * @param {string} host
 * @param {number} port
 */
function server(host, port) {
  return `redis:${host.toLowerCase()}:${port}`;
}

/** @param {any} loaded the module's exports */
function patch(loaded) {
  const prototype = loaded?.default?.prototype;
  if (typeof prototype?.sendCommand !== 'function') {
    return; // a version that is built differently: it always asks the server
  }
  const { sendCommand } = prototype;
  prototype.sendCommand = function answerOrSend(/** @type {Command} */ args, /** @type {any} */ options, /** @type {unknown[]} */ ...rest) {
    noteSelect(this, args);
    const value = given.size === 0 ? null : answer(this, args, options);
    const send = () => Reflect.apply(sendCommand, this, [args, options, ...rest]);
    return value === null ? given.call(writtenBy(this, args), send) : Promise.resolve(value);
  };
  for (const name of ['_executePipeline', '_executeMulti']) {
    const execute = prototype[name];
    if (typeof execute === 'function') {
      prototype[name] = function noteAndExecute(/** @type {{args: Command}[]} */ commands, /** @type {unknown[]} */ ...rest) {
        commands.forEach(({ args }) => noteSelect(this, args));
        const written = commands.flatMap(({ args }) => writtenBy(this, args));
        return given.call(written, () => Reflect.apply(execute, this, [commands, ...rest]));
      };
    }
  }
}

/**
 * The answer, or null if the server must be asked.
 * @param {any} client
 * @param {Command} args
 * @param {any} options
 */
function answer(client, args, options) {
  if (String(args[0]).toUpperCase() !== 'GET' || args.length !== 2) {
    return null;
  }
  const key = text(args[1]);
  const kind = (options?.typeMapping ?? client._commandOptions?.typeMapping)?.[BLOB_STRING] ?? String;
  if (key === null || !client.isOpen || (kind !== String && kind !== Buffer)) {
    return null;
  }
  const place = known(client);
  const input = place === null ? undefined : given.newest(`${place.server}/${place.database} ${key}`);
  if (input === undefined) {
    return null;
  }
  const bytes = input.buffer();
  // The function may write into a Buffer that it gets.
  return kind === Buffer ? Buffer.from(bytes) : bytes.toString();
}

/**
 * The server and the database of the client's connection. Null: they are not known, so the server must be asked.
 * @param {any} client
 */
function known(client) {
  const { socket, database } = client.options ?? {};
  if (socket?.path || selected.has(itself(client))) {
    return null;
  }
  const host = String(socket?.host ?? 'localhost');
  return { server: server(host, Number(socket?.port ?? DEFAULT_PORT)), database: database ?? 0 };
}

/**
 * The client that has the connection. `withTypeMapping` and the like make objects that inherit from it.
 * @param {any} client
 */
function itself(client) {
  return client._self ?? client;
}

/**
 * @param {any} client
 * @param {Command} args
 */
function noteSelect(client, args) {
  if (SELECTING.has(String(args[0]).toUpperCase())) {
    selected.add(itself(client));
  }
}

/**
 * What a command may change. A client whose server is not known may write to any.
 * @param {any} client
 * @param {Command} args
 */
function writtenBy(client, args) {
  const command = String(args[0]).toUpperCase();
  if (READING.has(command) || SELECTING.has(command)) {
    return [];
  }
  const of = known(client)?.server ?? ANY;
  // An argument that is neither a text nor a Buffer may be any key.
  const isKnown = args.every((argument) => typeof argument === 'string' || Buffer.isBuffer(argument));
  if (CHANGING_ALL.test(command) || !isKnown) {
    return [of];
  }
  // A value may be long. A character has a byte at least.
  const words = args.slice(1).filter(({ length }) => length <= KEY_LEN_MAX);
  return words.map(text).flatMap((key) => (key === null ? [] : [`${of} ${key}`]));
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

module.exports = { given, isClient, patch };
