// The Node.js functions under load: an answer as a whole, and one with an input.
const crypto = require("crypto");

exports.echo = async (event) => ({ token: event.token, padding: "x".repeat(event.padding || 0) });

exports.digest = async (event, context) => ({
  token: event.token,
  digest: crypto.createHash("sha256").update(context.inputs.data).digest("hex"),
});
