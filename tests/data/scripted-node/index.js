// Functions with an initscript in Node.js: those that ask for its messages while it runs, and one that only knows HTTP clients.
'use strict';

const http = require('node:http');
const { once } = require('node:events');

const { init } = require('pilotlight');

const told = async (promise) => {
  try {
    return await promise;
  } catch (error) {
    if ([init.NoMessage, init.NoConnection, init.NotSent].some((kind) => error instanceof kind)) return error.message;
    throw error;
  }
};
const text = async (id) => String(await init.promises.recvMsg(id));

/** What came of the messages that it waited for, after it has told a server that it runs. */
exports.early = async ({ go, ids }) => {
  if (go !== undefined) {
    const socket = await init.promises.getConn(9, go);
    socket.write('go');
    await once(socket, 'data');
    socket.destroy();
  }
  const messages = {};
  for (const id of ids) messages[id] = await told(text(id));
  return { messages, known: init.messages() };
};

/** What came of each message to the script, [id, text, count], and of those that it waited for, ids, in their order. */
exports.sends = async (event) => {
  const all = [];
  for (const one of event.do) {
    if (typeof one === 'number') {
      all.push(await told(text(one)));
    } else {
      const [id, part, count] = one;
      all.push((await told(init.promises.sendMsg(id, part.repeat(count)))) ?? 'sent');
    }
    if (event.die_after === all.length - 1) process.exit(3);
  }
  return all;
};

/** What is asked over each connection, [id, address, text, size], and the answer. */
exports.connections = async ({ ask }) => {
  const all = {};
  for (const [id, address, part, size] of ask) {
    const found = await told(init.promises.getConn(id, address));
    if (typeof found === 'string') {
      all[id] = found;
      continue;
    }
    found.write(part);
    let answer = '';
    while (answer.length < size) answer += String((await once(found, 'data'))[0]);
    found.destroy();
    all[id] = answer;
  }
  return all;
};

const byRequest = (method, url, body) =>
  new Promise((resolve, reject) => {
    const request = http.request(url, { method }, async (response) => {
      const chunks = [];
      for await (const chunk of response) chunks.push(chunk);
      resolve([response.statusCode, String(Buffer.concat(chunks)), response.headers['x-pilot-input'] ?? null]);
    });
    request.on('error', reject);
    request.end(body ?? undefined);
  });

const CLIENTS = {
  fetch: async (method, url, body) => {
    const response = await fetch(url, { method, body });
    return [response.status, await response.text(), response.headers.get('x-pilot-input')];
  },
  request: byRequest,
  axios: async (method, url, body) => {
    const { status, data, headers } = await require('axios').request({ method, url, data: body ?? undefined, responseType: 'text' });
    return [status, data, headers['x-pilot-input'] ?? null];
  },
  'node-fetch': async (method, url, body) => {
    const response = await require('node-fetch')(url, { method, body });
    return [response.status, await response.text(), response.headers.get('x-pilot-input')];
  },
  got: async (method, url, body) => {
    const { statusCode, body: answer, headers } = await require('got')(url, { method, body: body ?? undefined, retry: 0 });
    return [statusCode, answer, headers['x-pilot-input'] ?? null];
  },
  undici: async (method, url, body) => {
    const { statusCode, headers, body: answer } = await require('undici').request(url, { method, body });
    return [statusCode, await answer.text(), headers['x-pilot-input'] ?? null];
  },
  'undici-fetch': async (method, url, body) => {
    const response = await require('undici').fetch(url, { method, body });
    return [response.status, await response.text(), response.headers.get('x-pilot-input')];
  },
};

/** Asks a server as it would without an initscript. */
exports.web = async ({ client, ask }) => {
  const all = [];
  for (const one of ask) all.push(await CLIENTS[client](...one));
  return all;
};
