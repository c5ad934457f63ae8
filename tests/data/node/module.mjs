// The same client as an ES module.
import { GetObjectCommand, S3Client } from '@aws-sdk/client-s3';

const client = new S3Client({});

export const handler = async ({ key }) => {
  const { Body, $metadata } = await client.send(new GetObjectCommand({ Bucket: 'photos', Key: key }));
  return { input: $metadata.requestId === 'PILOTLIGHT', body: await Body.transformToString() };
};
