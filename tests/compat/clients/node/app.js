// The function under test on aws-lambda-ric: what it does is in tests/compat/README.md.
"use strict";

const fs = require("node:fs");
const { setTimeout: pause } = require("node:timers/promises");

class OutOfStock extends Error {
  name = "OutOfStock";
}

async function handler(event, context) {
  const { do: what, value } = event.queryStringParameters ?? event;
  switch (what) {
    case "echo":
      return value;
    case "raise":
      throw new OutOfStock("no pears left");
    case "print":
      console.log(value);
      return "printed";
    case "sleep":
      await pause(value * 1000);
      return "awake";
    case "exit":
      process.exit(value);
    case "context":
      return {
        request_id: context.awsRequestId,
        arn: context.invokedFunctionArn,
        deadline_ms: Date.now() + context.getRemainingTimeInMillis(),
        name: context.functionName,
        memory: context.memoryLimitInMB,
        custom: context.clientContext?.custom,
      };
    case "meet":
      return meet(context.awsRequestId, value);
    default:
      throw new Error(`there is no ${what}`);
  }
}

/** Waits until as many invocations are here. */
async function meet(request, many) {
  fs.mkdirSync("/tmp/meeting", { recursive: true });
  fs.writeFileSync(`/tmp/meeting/${request}`, "");
  for (;;) {
    const here = fs.readdirSync("/tmp/meeting").length;
    if (here >= many) return here;
    await pause(5);
  }
}

/** Answers "one" and, once it has been released, "two"; who asks to release it gets "released". */
async function streamed(event, stream) {
  const answer = awslambda.HttpResponseStream.from(stream, { statusCode: 201, headers: { "x-made": "here" } });
  if ((event.queryStringParameters ?? event).do === "release") {
    fs.writeFileSync("/tmp/released", "");
    answer.write("released");
  } else {
    answer.write("one\n");
    while (!fs.existsSync("/tmp/released")) await pause(5);
    answer.write("two\n");
  }
  answer.end();
}

exports.handler = handler;
exports.streamed = awslambda.streamifyResponse(streamed);
