// Runs aws-lambda-ric: the package from the registry, of which only the network is replaced (`lambda_ric.js`). `scripts/test`
// unpacks it to target/node-tools/aws-lambda-ric, without the native client that its installation would compile. Not a test itself.
'use strict';

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const { NODE } = require('./harness.js');

const CLIENT =
  process.env.PILOT_TEST_LAMBDA_RIC ?? path.join(__dirname, '..', '..', 'target', 'node-tools', 'aws-lambda-ric');
const skip = fs.existsSync(path.join(CLIENT, 'index.mjs'))
  ? false
  : `there is no aws-lambda-ric in ${CLIENT}: scripts/test node unpacks it`;

/**
 * @param {string} code the folder of the function
 * @param {unknown[]} events
 * @param {string} [handler]
 * @param {{headers?: Record<string, string>, environment?: Record<string, string>}} [more] headers of the invocations, and variables
 */
function runLambda(code, events, handler = 'index.handler', { headers = {}, environment = {} } = {}) {
  const folder = path.dirname(code);
  const [given, posted] = [path.join(folder, 'events'), path.join(folder, 'posted')];
  fs.writeFileSync(given, JSON.stringify(events));
  // The package looks for its native module beside its own file.
  const client = path.join(folder, 'client');
  fs.mkdirSync(client, { recursive: true });
  fs.copyFileSync(path.join(CLIENT, 'index.mjs'), path.join(client, 'index.mjs'));
  fs.writeFileSync(path.join(client, 'rapid-client.node'), '');
  const ran = spawnSync(NODE, ['--require', path.join(__dirname, 'lambda_ric.js'), path.join(client, 'index.mjs')], {
    encoding: 'utf8',
    cwd: code,
    maxBuffer: 1 << 28,
    env: {
      PATH: process.env.PATH,
      AWS_LAMBDA_RUNTIME_API: 'nowhere:1',
      _HANDLER: handler,
      LAMBDA_TASK_ROOT: code,
      AWS_LAMBDA_FUNCTION_NAME: 'f',
      AWS_LAMBDA_FUNCTION_VERSION: '1',
      AWS_LAMBDA_FUNCTION_MEMORY_SIZE: '128',
      AWS_LAMBDA_LOG_GROUP_NAME: 'g',
      AWS_LAMBDA_LOG_STREAM_NAME: 's',
      RIC_EVENTS: given,
      RIC_POSTED: posted,
      RIC_HEADERS: JSON.stringify(headers),
      ...environment,
    },
  });
  return { status: ran.status, stdout: ran.stdout, stderr: ran.stderr, posted };
}

module.exports = { runLambda, skip };
