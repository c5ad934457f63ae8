// The function that a pre-warmed process plays (lib/rehearsal.js).
'use strict';

/**
 * @param {Record<string, unknown>} event
 * @param {{getRemainingTimeInMillis: () => number}} context
 */
exports.handler = async (event, context) => ({ ...event, left: context.getRemainingTimeInMillis() });
