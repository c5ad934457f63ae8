"use strict";

const QRCode = require("qrcode");

exports.handler = async (event) => QRCode.toString(event.text, { type: "svg" });
