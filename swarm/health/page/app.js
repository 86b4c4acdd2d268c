// The page: takes the stream, keeps the state, and lets each view show its part of it.

/** @import {Model, Patch, Swarm} from "./types.js" */

import { heard, tick } from "./ages.js";
import { announce } from "./announce.js";
import { Advice } from "./advice.js";
import { Chains } from "./chains.js";
import { Coverage } from "./coverage.js";
import { hide, one, write } from "./dom.js";
import { Events } from "./events.js";
import { History } from "./history.js";
import { Links } from "./links.js";
import { address, Sentences } from "./sentences.js";
import { Servers } from "./servers.js";
import { Status } from "./status.js";
import { applied } from "./store.js";
import { Stream } from "./stream.js";
import { Tiles } from "./tiles.js";

const TICK_MS = 1000;
const MEASURES_KEPT = 200;

const status = new Status();
const sentences = new Sentences();
const events = new Events();
const ofModel = [new Tiles(), new Coverage(), new Advice(), new Servers(), new Chains(), new Links(), new History()];

/** @type {Swarm|null} */
let swarm = null;
/** @type {Model|null} */
let shown = null;
let planned = false;
let waiting_ms = 0;

/** The model that the URL names, or the first. */
function chosen() {
  const models = swarm?.models ?? [];
  return (
    models.find((model) => location.hash === `#${address(model)}`) ??
    models.find((model) => model.model === shown?.model) ??
    models[0] ??
    null
  );
}

/** Everything that hangs on the state, in one go per frame however many patches came. */
function draw() {
  planned = false;
  if (!swarm) return;
  const began = performance.now();
  shown = chosen();
  sentences.show(swarm.models, shown);
  hide(one("empty"), swarm.models.length > 0);
  hide(one("model"), shown === null);
  if (shown) {
    write(one("model-title"), shown.name);
    for (const view of ofModel) view.show(shown);
  }
  events.show(swarm);
  status.show(swarm);
  document.title = title(swarm.models, shown);
  measure("swarm-draw", began - waiting_ms);
  waiting_ms = 0;
}

/** @param {Model[]} models @param {Model|null} model */
function title(models, model) {
  if (!model) return "swarm health";
  const broken = models.filter((one) => !one.usable).length;
  return `${broken ? "✕" : "✓"} ${model.name} – swarm health`;
}

/** @param {string} name @param {number} began */
function measure(name, began) {
  if (performance.getEntriesByName(name).length >= MEASURES_KEPT) performance.clearMeasures(name);
  performance.measure(name, { start: began, end: performance.now() });
}

function plan() {
  if (planned) return;
  planned = true;
  if (document.hidden)
    setTimeout(draw); // no frames there, but the title must tell
  else requestAnimationFrame(draw);
}

/** @param {Swarm} next */
function take(next) {
  if (swarm) tellChanges(swarm.models, next.models);
  swarm = next;
  heard(next.at);
  plan();
}

/** @param {Model[]} earlier @param {Model[]} models */
function tellChanges(earlier, models) {
  const before = new Map(earlier.map((model) => [model.model, model]));
  for (const model of models) {
    const old = before.get(model.model);
    if (old && old.usable !== model.usable) announce(`${model.name}: ${model.sentence}`);
  }
}

const stream = new Stream("api/v1/stream", {
  state: take,
  patch(patch) {
    const began = performance.now();
    const next = applied(swarm, patch);
    if (!next) return false;
    take(next);
    waiting_ms += performance.now() - began;
    return true;
  },
  live: (live) => status.live(live),
});

addEventListener("hashchange", () => {
  if (!location.hash) shown = null;
  plan();
});
setInterval(() => {
  tick();
  status.tick();
}, TICK_MS);
stream.open();
