// Reads the ends of its input, which is there when the handler is called.
exports.handler = async (event, context) => {
  const bytes = context.inputs.x;
  return { bytes: bytes.length, ends: [bytes[0], bytes[bytes.length - 1]] };
};
