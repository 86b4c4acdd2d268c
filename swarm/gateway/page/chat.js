// The chat page: asks, shows the answer as it comes, and loses nothing that was typed.

import { button, element, one, say } from "./dom.js";
import { Message } from "./message.js";
import { asked, events, Problem } from "./wire.js";
import { ended, missing } from "./words.js";

const AGAIN_MS = 10000;
const NEAR_PX = 60;
const SETTLED_S = 0.5;
const HEARD_CHARS = 2000;

/** @typedef {{role: "user"|"assistant", content: string}} Said */

const [talk, box, keyring] = [one("talk"), one("text"), one("keyring")];
const scroller = /** @type {HTMLElement} */ (document.querySelector("main"));
const touch = matchMedia("(pointer: coarse)");
const state = {
  model: "",
  key: sessionStorage.getItem("key") ?? "",
  /** @type {Said[]} */ messages: [],
  /** @type {AbortController|null} */ running: null,
  /** @type {() => void} what becomes of an answer that failed when the next is asked */ forget: () => {},
  /** @type {{messages: Said[], nodes: Node[]}|null} */ last: null,
  following: true,
};

// -- what is there ------------------------------------------------------------------------------------------

/** @param {string} text @param {boolean} [wrong] */
function tellModel(text, wrong = false) {
  if (one("model").textContent !== text) one("model").textContent = text;
  one("model").classList.toggle("wrong", wrong);
}

/** @returns {Promise<boolean>} whether there is a model to ask */
async function loadModel() {
  try {
    const card = (await (await asked("v1/models", state.key)).json()).data[0];
    state.model = card.id;
    keyring.hidden = true;
    tellModel(`${card.id}, ${card.swarm.layers} layers`);
    void watch(`${card.id}, ${card.swarm.layers} layers`);
    return true;
  } catch (error) {
    if (/** @type {Problem} */ (error).status === 401) askForKey();
    else tellModel(`no model: ${/** @type {Error} */ (error).message}`, true);
    return false;
  } finally {
    entitle("");
  }
}

// Before anybody types in vain: whether an answer can be had now; asked again until it can.
async function watch(/** @type {string} */ name) {
  try {
    const health = await (await fetch("health")).json();
    const trouble = missing(health);
    tellModel(trouble ? `${name}; ${trouble}` : name, Boolean(trouble));
    if (trouble) setTimeout(() => watch(name), AGAIN_MS);
  } catch {
    // The next question will tell.
  }
}

function askForKey() {
  tellModel(state.key ? "this API key is not known here" : "this gateway asks for an API key", true);
  keyring.hidden = false;
  one("key").focus();
}

/** @param {string} mark what whoever looks at another tab should know */
function entitle(mark) {
  document.title = `${mark ? `${mark} ` : ""}${state.model ? `${state.model} – ` : ""}swarm chat`;
}

/** @param {AbortController|null} controller */
function busy(controller) {
  state.running = controller;
  one("stop").hidden = !controller;
  one("send").hidden = Boolean(controller);
  one("fresh").hidden = !talk.childElementCount;
  one("start").hidden = Boolean(talk.childElementCount);
  one("back").hidden = !state.last;
  talk.setAttribute("aria-busy", String(Boolean(controller)));
  one("latest").hidden = !controller || state.following;
}

// Whoever reads further up, or marks a text, is left there.
function follow() {
  if (state.following) talk.lastElementChild?.scrollIntoView({ block: "end" });
  one("latest").hidden = !state.running || state.following;
}

function near() {
  const seen_px = Math.min(scroller.getBoundingClientRect().bottom, innerHeight);
  return talk.getBoundingClientRect().bottom < seen_px + NEAR_PX;
}

// -- asking -------------------------------------------------------------------------------------------------

/**
 * Shows the answer as it comes, one drawing a frame.
 * @param {Response} response @param {Message} shown
 * @returns {Promise<{reason: string, swarm: any, tokens: number}>}
 */
async function read(response, shown) {
  let [text, reason, tokens, planned] = ["", "", 0, false];
  /** @type {any} */
  let swarm = null;
  let began_ms = 0;
  const draw = () => {
    planned = false;
    shown.set(text);
    const elapsed_s = (performance.now() - began_ms) / 1000;
    if (!reason && elapsed_s > SETTLED_S) shown.note([`${((tokens - 1) / elapsed_s).toFixed(1)} tokens/s`]);
    follow();
  };
  try {
    for await (const chunk of events(response)) {
      tokens = chunk.usage?.completion_tokens ?? tokens;
      swarm = chunk.swarm ?? swarm;
      for (const { delta, finish_reason } of chunk.choices) {
        reason = finish_reason ?? reason;
        if (!delta.content) continue;
        began_ms ||= performance.now();
        text += delta.content;
        tokens += 1;
        if (!planned) requestAnimationFrame(draw);
        planned = true;
      }
    }
  } finally {
    shown.set(text);
  }
  if (!reason || !swarm) throw new Problem("cut short: the connection ended");
  return { reason, swarm, tokens };
}

/** @param {string} question @param {AbortSignal} signal */
function send(question, signal) {
  const body = {
    model: state.model,
    messages: [...state.messages, { role: "user", content: question }],
    temperature: 0.7,
    stream: true,
    stream_options: { include_usage: true },
  };
  return asked("v1/chat/completions", state.key, { method: "POST", body: JSON.stringify(body), signal });
}

/** @param {string} question */
async function ask(question) {
  const controller = new AbortController();
  state.forget();
  state.forget = () => {};
  const mine = new Message("user", "You", question);
  const shown = new Message("assistant", state.model);
  talk.append(mine.root, shown.root);
  state.following = true;
  busy(controller);
  entitle("…");
  const done = waiting(shown);
  follow();
  try {
    const response = await send(question, controller.signal);
    done();
    shown.note([]);
    const answer = await read(response, shown);
    shown.note(ended(answer));
    keep(question, shown, controller);
    say(shown.text.slice(0, HEARD_CHARS) || "An empty answer");
    entitle(document.hidden ? "✓" : "");
  } catch (error) {
    done();
    failed(/** @type {Problem} */ (error), question, mine, shown, controller);
  } finally {
    if (state.running === controller) busy(null);
    follow();
    if (!touch.matches && [document.body, null, one("stop")].includes(document.activeElement))
      box.focus({ preventScroll: true });
  }
}

/** How long it takes until the first word, told as it passes. @param {Message} shown @returns {() => void} ends it */
function waiting(shown) {
  const began_ms = performance.now();
  const tell = () => {
    const passed_s = Math.floor((performance.now() - began_ms) / 1000);
    shown.note([passed_s < 2 ? "looking for servers…" : `waiting for the first word… ${passed_s} s`]);
  };
  tell();
  const timer = setInterval(tell, 1000);
  return () => clearInterval(timer);
}

/** @param {string} question @param {Message} shown @param {AbortController} controller */
function keep(question, shown, controller) {
  shown.settle();
  if (state.running !== controller) return; // another chat has begun
  state.last = null;
  state.messages.push({ role: "user", content: question }, { role: "assistant", content: shown.text });
}

/** @param {Problem} error @param {string} question @param {Message} mine @param {Message} shown @param {AbortController} controller */
function failed(error, question, mine, shown, controller) {
  const stopped = controller.signal.aborted;
  entitle(document.hidden ? "✕" : "");
  if (stopped && shown.text) {
    shown.note(["stopped; what came so far stays in the conversation"]);
    return keep(question, shown, controller);
  }
  const line = stopped ? "stopped before the first word" : error.message;
  shown.note([shown.text ? `${line}; not part of the conversation` : line], !stopped);
  say(line);
  shown.settle();
  if (state.running !== controller) return;
  state.forget = () => (shown.text ? shown.settle() : [mine, shown].forEach(({ root }) => root.remove()));
  if (!box.value) box.value = question;
  shown.offer("Try again", () => {
    if (state.running) return;
    if (box.value.trim() === question) box.value = "";
    void ask(question);
  });
  if (error.status === 401) askForKey();
  if (error.status === 503) void loadModel();
}

// -- what people do -----------------------------------------------------------------------------------------

one("ask").addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  if (state.running) return;
  if (!keyring.hidden) {
    state.key = one("key").value.trim();
    sessionStorage.setItem("key", state.key);
    state.model = "";
  }
  if (!state.model && !(await loadModel())) return;
  const question = box.value.trim();
  if (state.running) return;
  if (!question) return box.focus();
  box.value = "";
  await ask(question);
});

box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  // keyCode 229: Safari ends a composition before it tells of the key that ended it.
  const composing = event.isComposing || event.keyCode === 229;
  if (event.key !== "Enter" || event.shiftKey || composing || touch.matches) return;
  event.preventDefault();
  one("ask").requestSubmit();
});

addEventListener("keydown", (event) => event.key === "Escape" && !event.isComposing && state.running?.abort());
one("stop").addEventListener("click", () => state.running?.abort());
one("latest").addEventListener("click", () => {
  state.following = true;
  follow();
});
for (const where of [scroller, window]) where.addEventListener("scroll", () => ((state.following = near()), follow()));
document.addEventListener("visibilitychange", () => document.hidden || state.running || entitle(""));

one("fresh").addEventListener("click", () => {
  const controller = state.running;
  const last = { messages: state.messages, nodes: [...talk.childNodes] };
  state.messages = [];
  state.forget = () => {};
  state.last = last;
  talk.replaceChildren();
  busy(null);
  controller?.abort();
  entitle("");
  box.focus();
});

one("back").addEventListener("click", () => {
  if (!state.last || state.running) return;
  talk.replaceChildren(...state.last.nodes);
  state.messages = state.last.messages;
  state.last = null;
  busy(null);
  follow();
  box.focus();
});

one("ask").hidden = false;
one("keys").hidden = touch.matches;
tellModel("looking for the model…");
busy(null);
void loadModel();
