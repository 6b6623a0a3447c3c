// A client that asks its user, made with the SDK: elicit.mjs FOLDER PACKAGE ERA ANSWERS ARGUMENTS SERVER...
//
// FOLDER has the packages. It calls run, answers each form with the next choice of ANSWERS, and prints the forms and the
// result. A choice of "decline" or "cancel" is an action.
import { createRequire } from "node:module";

const [folder, kind, era, answers, args, command, ...rest] = process.argv.slice(2);
const sdk = "@modelcontextprotocol/";
const load = createRequire(folder + "/");
const modern = kind === "client";
const { Client } = load(modern ? sdk + "client" : sdk + "sdk/client/index.js");
const { StdioClientTransport } = load(modern ? sdk + "client/stdio" : sdk + "sdk/client/stdio.js");
const options = { capabilities: { elicitation: { form: {} } } };
if (era === "modern") options.versionNegotiation = { mode: { pin: "2026-07-28" } };
const client = new Client({ name: "elicit", version: "1" }, options);
const forms = [], choices = JSON.parse(answers);
const answer = ({ params }) => {
  forms.push(params);
  const choice = choices.shift();
  return ["decline", "cancel"].includes(choice) ? { action: choice } : { action: "accept", content: { choice } };
};
if (modern) {
  client.setRequestHandler("elicitation/create", answer);
} else {
  const { ElicitRequestSchema } = load(sdk + "sdk/types.js");
  client.setRequestHandler(ElicitRequestSchema, answer);
}
await client.connect(new StdioClientTransport({ command, args: rest, env: process.env, stderr: "inherit" }));
const call = { name: "run", arguments: JSON.parse(args) };
const result = await client.callTool(call);
console.log(JSON.stringify({ forms, result }));
await client.close();
