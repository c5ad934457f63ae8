'use strict';

exports.told = async (event, context) => ({
  environment: Object.fromEntries(Object.entries(process.env).filter(([name]) => /TRACE/.test(name))),
  context: [context.traceparent ?? null, context.tracestate ?? null],
});
