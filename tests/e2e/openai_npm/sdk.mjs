// `node sdk.mjs CASE`: one use of OpenAI's client, unmodified. What it got is printed as a line of JSON.
// The client itself reads OPENAI_BASE_URL and OPENAI_API_KEY.
import { once } from "node:events";
import OpenAI from "openai";

const model = process.env.MODEL;
const client = new OpenAI({ maxRetries: 0, timeout: 20_000 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const city = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const weather = { name: "weather", description: "The weather of a city.", parameters: city };
const calling = {
  model,
  messages: [{ role: "user", content: "How is the weather?" }],
  tools: [{ type: "function", function: weather }],
  tool_choice: "required",
  parallel_tool_calls: false,
  temperature: 0,
};
const response = { model, input: "What is the capital of France?", temperature: 0 };

const cases = {
  async chat() {
    return client.chat.completions.create({ model, messages, temperature: 0 });
  },

  async stream() {
    const options = { stream: true, stream_options: { include_usage: true } };
    return all(await client.chat.completions.create({ model, messages, temperature: 0, ...options }));
  },

  async tools() {
    const called = await client.chat.completions.create(calling);
    const { message } = called.choices[0];
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" };
    const history = [...calling.messages, message, result];
    const after = { ...calling, messages: history, tool_choice: "auto", max_tokens: 20 };
    return { called, answered: await client.chat.completions.create(after) };
  },

  async tools_stream() {
    const stream = client.chat.completions.stream(calling);
    const chunks = await all(stream);
    return { chunks, final: await stream.finalChatCompletion() };
  },

  async json_schema() {
    const json_schema = { name: "city", schema: city, strict: true };
    const response_format = { type: "json_schema", json_schema };
    return client.chat.completions.parse({ model, messages, temperature: 1.5, seed: 1, response_format });
  },

  async responses() {
    const whole = await client.responses.create(response);
    const stream = client.responses.stream(response);
    return { whole, events: await all(stream), final: await stream.finalResponse() };
  },

  async responses_tools() {
    const tools = [{ type: "function", ...weather, strict: true }];
    const options = { tools, tool_choice: "required", parallel_tool_calls: false };
    const asked = { ...response, ...options, input: "How is the weather?" };
    const stream = client.responses.stream(asked);
    const events = await all(stream);
    return { whole: await client.responses.create(asked), events, final: await stream.finalResponse() };
  },

  async models() {
    return { listed: await all(client.models.list()), one: await client.models.retrieve(model) };
  },

  async errors() {
    const { completions } = client.chat;
    return {
      wrong_key: await refused(client.withOptions({ apiKey: "ifx_wrong" }).models.list()),
      bad_value: await refused(completions.create({ model, messages, temperature: -1 })),
      bad_value_of_a_stream: await refused(completions.create({ model, messages, top_p: 2, stream: true })),
      unknown_model: await refused(completions.create({ model: `${model}:nothing`, messages })),
    };
  },

  // Aborts with the third chunk.
  async abort_stream() {
    const controller = new AbortController();
    const stream = await client.chat.completions.create(
      { model, messages, stream: true, ignore_eos: true },
      { signal: controller.signal, headers: { "x-request-id": process.env.REQUEST_ID } },
    );
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) controller.abort();
    return { chunks };
  },

  // Aborts when it is told to.
  async abort_whole() {
    const controller = new AbortController();
    const answer = client.chat.completions.create(
      { model, messages, ignore_eos: true },
      { signal: controller.signal, headers: { "x-request-id": process.env.REQUEST_ID } },
    );
    const error = refused(answer);
    await once(process.stdin, "data");
    controller.abort();
    return error;
  },
};

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

async function refused(call) {
  try {
    await call;
  } catch (error) {
    const { status, code, param, type } = error;
    return { name: error.constructor.name, status, code, param, type };
  }
  throw new Error("no error came");
}

const got = await cases[process.argv[2]]();
process.stdout.write(`${JSON.stringify(got)}\n`);
// To leave would end the connections, whatever the client did. The test closes stdin when it has seen enough.
process.stdin.resume();
