// The function that the warm-up of a pre-warmed process calls (lib/warmup.js).
'use strict';

/**
 * @param {Record<string, unknown>} event
 * @param {{getRemainingTimeInMillis: () => number}} context
 */
exports.handler = async (event, context) => ({ ...event, left: context.getRemainingTimeInMillis() });
