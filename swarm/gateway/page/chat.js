// The chat page. Whatever comes from the model, its servers or the gateway becomes text, never markup.
"use strict";

const one = (id) => document.getElementById(id);
const talk = one("talk");
const state = { model: null, messages: [], running: null, key: sessionStorage.getItem("key") || "" };

function headers() {
  const all = { "Content-Type": "application/json" };
  if (state.key) all.Authorization = "Bearer " + state.key;
  return all;
}

function element(name, kind, text) {
  const made = document.createElement(name);
  made.className = kind;
  made.textContent = text;
  return made;
}

// One message on the page: its text, and a line about it.
function bubble(role, text) {
  const item = element("li", role, "");
  const said = element("p", "said", text);
  const note = element("p", "note", "");
  item.append(said, note);
  talk.append(item);
  item.scrollIntoView({ block: "end" });
  return {
    add(more) {
      said.append(document.createTextNode(more));
      item.scrollIntoView({ block: "end" });
    },
    note(line, wrong) {
      note.textContent = line;
      note.classList.toggle("wrong", Boolean(wrong));
      item.scrollIntoView({ block: "end" });
    },
  };
}

async function reason(response) {
  try {
    const error = (await response.json()).error;
    const later = response.headers.get("Retry-After");
    return error.message + (later ? ` (try again in ${later} s)` : "");
  } catch {
    return `the gateway answered ${response.status}`;
  }
}

function askForKey() {
  one("keyring").hidden = false;
  one("key").focus();
}

async function loadModel() {
  const shown = one("model");
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (response.status === 401) {
      shown.textContent = "this gateway asks for an API key";
      return askForKey();
    }
    if (!response.ok) throw new Error(await reason(response));
    const card = (await response.json()).data[0];
    state.model = card.id;
    shown.textContent = `${card.id}, ${card.swarm.layers} layers`;
  } catch (error) {
    shown.textContent = `no model: ${error.message}`;
  }
}

// The data of each server-sent event.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function provenance(swarm, tokens) {
  const answer = swarm.answers[0];
  const chain = answer.chain.map((stage) => {
    const name = stage.public_name || stage.peer.slice(-8);
    return `${name}[${stage.span[0]}:${stage.span[1]}]`;
  });
  const healed = answer.heals.length ? `, healed ${answer.heals.length} times` : "";
  const exact = answer.exact ? "" : ", not exact";
  return `${tokens} tokens, ${answer.tokens_per_s.toFixed(1)} tokens/s, ${chain.join(" → ")}${healed}${exact}`;
}

// Reads one streamed answer; returns its text, and throws if it was cut.
async function read(response, shown) {
  let text = "";
  let ended = false;
  let swarm = null;
  let tokens = 0;
  const began = performance.now();
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(`cut short: ${chunk.error.message}`);
    if (chunk.usage) tokens = chunk.usage.completion_tokens;
    if (chunk.swarm) swarm = chunk.swarm;
    for (const choice of chunk.choices) {
      if (choice.finish_reason) ended = true;
      if (!choice.delta.content) continue;
      text += choice.delta.content;
      tokens += 1;
      shown.add(choice.delta.content);
      const elapsed = (performance.now() - began) / 1000;
      if (elapsed > 0.5) shown.note(`${(tokens / elapsed).toFixed(1)} tokens/s`);
    }
  }
  if (!ended || !swarm) throw new Error("cut short: the connection ended");
  shown.note(provenance(swarm, tokens));
  return text;
}

function busy(controller) {
  state.running = controller;
  one("stop").hidden = !controller;
  one("send").hidden = Boolean(controller);
}

async function ask(question) {
  const controller = new AbortController();
  busy(controller);
  bubble("user", question);
  const shown = bubble("assistant", "");
  const messages = [...state.messages, { role: "user", content: question }];
  shown.note("looking for servers…");
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify({
        model: state.model,
        messages,
        temperature: 0.7,
        stream: true,
        stream_options: { include_usage: true },
      }),
      signal: controller.signal,
    });
    if (response.status === 401) askForKey();
    if (!response.ok) throw new Error(await reason(response));
    shown.note("");
    const text = await read(response, shown);
    state.messages = [...messages, { role: "assistant", content: text }];
  } catch (error) {
    const stopped = controller.signal.aborted;
    shown.note(stopped ? "stopped; not part of the conversation" : error.message, !stopped);
  } finally {
    busy(null);
    one("text").focus();
  }
}

one("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (state.running) return;
  if (!one("keyring").hidden) {
    state.key = one("key").value.trim();
    sessionStorage.setItem("key", state.key);
    one("keyring").hidden = true;
  }
  if (!state.model) await loadModel();
  const question = one("text").value.trim();
  if (!state.model || !question) return;
  one("text").value = "";
  await ask(question);
});

one("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    one("ask").requestSubmit();
  }
});

one("stop").addEventListener("click", () => state.running && state.running.abort());

one("fresh").addEventListener("click", () => {
  if (state.running) state.running.abort();
  state.messages = [];
  talk.replaceChildren();
  one("text").focus();
});

loadModel();
