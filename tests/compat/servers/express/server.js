// The server under test on Express, and ws beside it: what it answers is in tests/compat/README.md.
"use strict";

const { EventEmitter, once } = require("node:events");
const net = require("node:net");
const express = require("express");
const { WebSocketServer } = require("ws");

const bell = new EventEmitter();
const app = express();
app.use(express.json());

app.get("/", (request, response) => {
  response.send(`hello ${request.query.name ?? "world"}`);
});

app.post("/json", (request, response) => {
  response.status(201).json({ got: request.body, type: request.get("content-type") });
});

app.get("/events", async (_request, response) => {
  response.type("text/event-stream");
  response.write("data: one\n\n");
  await once(bell, "released");
  response.end("data: two\n\n");
});

app.post("/release", (_request, response) => {
  bell.emit("released");
  response.send("released");
});

app.post("/watch", (request, response) => {
  const watcher = net.connect(request.body.port, "127.0.0.1", () => response.send("watched"));
  process.once("SIGTERM", () => watcher.end("SIGTERM", () => process.exit()));
});

const server = app.listen(process.env.PORT);
const sockets = new WebSocketServer({ server, path: "/chat" });
sockets.on("connection", (socket) => {
  socket.on("message", (data, binary) => socket.send(binary ? data : data.toString().toUpperCase(), { binary }));
});
