// HotC's web function (Fig. 9): ?url=… or {"url": …} becomes a QR code, as SVG. `SCALE` is its configuration.
"use strict";

const qrcode = require("qrcode");

const scale = Number(process.env.SCALE ?? 4);

exports.handler = async (event) => {
  const url = event.queryStringParameters?.url ?? event.url ?? "https://example.org/";
  const body = await qrcode.toString(url, { type: "svg", errorCorrectionLevel: "L", scale });
  return { statusCode: 200, headers: { "content-type": "image/svg+xml" }, body };
};
