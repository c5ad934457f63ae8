// An image becomes a small one (SeBS 210, for Node.js).
'use strict';

const sharp = require('sharp');

const { clock } = require('./clock');
const { storage } = require('./storage');

exports.handler = async ({ bucket, object }) => {
  const lap = clock();
  const image = await storage.downloadStream(bucket, object.key);
  const download = lap();
  const small = await sharp(image).resize(200, 200, { fit: 'inside' }).jpeg().toBuffer();
  const compute = lap();
  const key = await storage.uploadStream(bucket, 'output/thumbnail.jpg', small);
  const upload = lap();
  const measurement = { download_time: download, download_size: image.length, upload_time: upload, compute_time: compute };
  return { result: { bucket, key }, measurement };
};
