// Functions in Node.js that read and write tables with the library of Arrow.
'use strict';

const { tableFromArrays, tableFromIPC, tableToIPC } = require('apache-arrow');

const plain = (value) => (typeof value === 'bigint' ? Number(value) : value);

exports.look = async (event, { inputs }) => {
  const table = tableFromIPC(inputs.x);
  const columns = table.schema.fields.map(({ name, type }) => [name, String(type)]);
  const rows = table.toArray().map((row) => columns.map(([name]) => plain(row[name])));
  return { isBuffer: Buffer.isBuffer(inputs.x), columns, rows };
};

/** A table in one of Arrow's formats, base64. */
exports.make = async ({ format }) => {
  const table = tableFromArrays({ n: Int32Array.of(1, 2, 3), price: [0.5, null, -1], city: ['Köln', '', null] });
  return Buffer.from(tableToIPC(table, format)).toString('base64');
};
