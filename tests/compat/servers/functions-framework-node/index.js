// The server under test on functions-framework for Node.js: what it answers is in tests/compat/README.md.
"use strict";

const { EventEmitter, once } = require("node:events");
const net = require("node:net");
const functions = require("@google-cloud/functions-framework");

const bell = new EventEmitter();

functions.http("hello", async (request, response) => {
  switch (`${request.method} ${request.path}`) {
    case "GET /":
      return response.send(`hello ${request.query.name ?? "world"}`);
    case "POST /json":
      return response.status(201).json({ got: request.body, type: request.get("content-type") });
    case "GET /events":
      response.type("text/event-stream");
      response.write("data: one\n\n");
      await once(bell, "released");
      return response.end("data: two\n\n");
    case "POST /release":
      bell.emit("released");
      return response.send("released");
    case "POST /watch": {
      const watcher = net.connect(request.body.port, "127.0.0.1", () => response.send("watched"));
      // Before the framework's own listener, which ends the process.
      return process.prependOnceListener("SIGTERM", () => watcher.write("SIGTERM"));
    }
    default:
      return response.status(404).send("nothing here");
  }
});
