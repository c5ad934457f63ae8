exports.handler = async (event) => ({ node: true, event });
