// SeBS's storage API over the AWS SDK for JavaScript: `download_stream`, `upload_stream`.
'use strict';

const { randomUUID } = require('node:crypto');
const path = require('node:path');

const { GetObjectCommand, PutObjectCommand, S3Client } = require('@aws-sdk/client-s3');

const client = new S3Client({ forcePathStyle: true });

function uniqueName(name) {
  const { ext, name: base, dir } = path.posix.parse(name);
  return path.posix.join(dir, `${base}.${randomUUID().slice(0, 8)}${ext}`);
}

exports.storage = {
  async downloadStream(bucket, key) {
    const { Body } = await client.send(new GetObjectCommand({ Bucket: bucket, Key: key }));
    return Body.transformToByteArray();
  },

  async uploadStream(bucket, name, body) {
    const key = uniqueName(name);
    await client.send(new PutObjectCommand({ Bucket: bucket, Key: key, Body: body }));
    return key;
  },
};
