// Recognises an image (the paper's imgrec-wasm): the decoder and the network are a module of WebAssembly, which Node.js runs. The task comes
// from a queue and names the image and the weights. With an initscript, the task is its message 0, the weights are 1 and the image is 2.
'use strict';

const fs = require('node:fs');

const { DeleteMessageCommand, ReceiveMessageCommand, SQSClient } = require('@aws-sdk/client-sqs');
const { init } = require('pilotlight');

const { clock } = require('./clock');
const { storage } = require('./storage');

const QUEUE = process.env.QUEUE;
const queue = new SQSClient({ endpoint: process.env.QUEUES });
const network = new WebAssembly.Instance(new WebAssembly.Module(fs.readFileSync(`${__dirname}/network.wasm`))).exports;

async function claim() {
  try {
    return [JSON.parse(init.recvMsg(0)), init.recvMsg(1), init.recvMsg(2), 'script'];
  } catch (error) {
    if (!(error instanceof init.NoMessage)) throw error;
  }
  const answer = await queue.send(new ReceiveMessageCommand({ QueueUrl: QUEUE, MaxNumberOfMessages: 1 }));
  const wanted = JSON.parse(answer.Messages[0].Body);
  const weights = await storage.downloadStream('photos', wanted.weights);
  return [answer, weights, await storage.downloadStream('photos', wanted.key), 'function'];
}

// Copies bytes into the module's memory.
function bring(bytes) {
  const at = network.room(bytes.length);
  new Uint8Array(network.memory.buffer, at, bytes.length).set(bytes);
  return at;
}

exports.handler = async () => {
  const lap = clock();
  const [answer, weights, image, by] = await claim();
  const download = lap();
  const result = network.infer(bring(image), image.length, bring(weights), weights.length);
  const compute = lap();
  await queue.send(new DeleteMessageCommand({ QueueUrl: QUEUE, ReceiptHandle: answer.Messages[0].ReceiptHandle }));
  const upload = lap();
  if (result < 0) throw new Error(`the network cannot read the image or the weights (${result})`);
  const measurement = { download_time: download, download_size: image.length + weights.length, upload_time: upload };
  return { result, claimed_by: by, measurement: { ...measurement, compute_time: compute } };
};
