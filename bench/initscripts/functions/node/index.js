// What SeBS puts around a function for AWS Lambda.
'use strict';

const { handler } = require('./function');

exports.handler = async (event) => handler(event);
