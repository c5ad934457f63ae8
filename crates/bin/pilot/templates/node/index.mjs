// __NAME__: gets an event and returns a response. If the function is called by its URL, the event is the request:
//
//     curl 'http://127.0.0.1:8080/fn/__NAME__/?name=Ada'
//
// Module-level code runs once in every worker.

const GREETING = process.env.GREETING ?? "Hello";

export const handler = async (event, context) => {
  const request = event.requestContext?.http; // there for a call of the URL, payload format 2.0
  const name = (request ? event.queryStringParameters?.name : event.name) ?? "world";
  console.log(`greeting ${name}`); // goes to `pilot logs __NAME__`
  const answer = { message: `${GREETING}, ${name}!`, request_id: context.awsRequestId };
  if (!request) {
    return answer;
  }
  return {
    statusCode: 200,
    headers: { "content-type": "application/json", "x-path": event.rawPath },
    body: JSON.stringify(answer),
  };
};
