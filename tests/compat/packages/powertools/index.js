'use strict';

const { Logger } = require('@aws-lambda-powertools/logger');

const logger = new Logger({ serviceName: 'shop' });

exports.handler = async (event, context) => {
  logger.addContext(context);
  logger.appendKeys({ article: event.article });
  await new Promise((resolve) => setTimeout(resolve, event.wait_ms));
  logger.info('sold');
  return [context.awsRequestId, awslambda.InvokeStore.getRequestId(), awslambda.InvokeStore.getXRayTraceId() === context.xRayTraceId];
};
