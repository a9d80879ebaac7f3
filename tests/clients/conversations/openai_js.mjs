// OpenAI's client for JavaScript: node openai_js.mjs URL MODEL IMAGE QUESTION...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { OpenAI } = createRequire(process.cwd() + "/")("openai"); // installed where it runs
const [url, model, path, ...questions] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x", maxRetries: 0 });
const image = "data:image/png;base64," + readFileSync(path).toString("base64");

async function hold(streamed) {
  const messages = [], texts = [];
  for (const [i, text] of questions.entries()) {
    const parts = [{ type: "text", text }];
    if (i === 0) parts.unshift({ type: "image_url", image_url: { url: image } });
    messages.push({ role: "user", content: parts });
    const asked = { model, messages, temperature: 0 };
    const message = streamed
      ? await client.chat.completions.stream(asked).finalMessage()
      : (await client.chat.completions.create(asked)).choices[0].message;
    messages.push(message);
    texts.push(message.content);
  }
  return texts;
}

console.log(JSON.stringify({ whole: await hold(false), streamed: await hold(true) }));
