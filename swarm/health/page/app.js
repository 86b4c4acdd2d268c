// The page: takes the stream, keeps the state, and lets each view show its part of it.

/** @import {Model, Patch, Swarm} from "./types.js" */

import { heard, tick } from "./ages.js";
import { announce } from "./announce.js";
import { Advice } from "./advice.js";
import { Chains } from "./chains.js";
import { Coverage } from "./coverage.js";
import { attribute, hide, one, write } from "./dom.js";
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
  hide(one("events-section"), false);
  if (shown) {
    write(one("model-title"), shown.name);
    for (const view of ofModel) view.show(shown);
  }
  events.show(swarm);
  status.show(swarm);
  entitle();
  measure("swarm-draw", began - waiting_ms);
  waiting_ms = 0;
}

/** What whoever looks at another tab should know, as title and icon: which model is broken, or that nothing is known. */
function entitle() {
  const models = swarm?.models ?? [];
  const broken = models.filter((model) => !model.usable);
  const old = status.old;
  const [mark, icon] = old ? ["◌", "icon-old.svg"] : broken.length ? ["✕", "icon-broken.svg"] : ["✓", "icon.svg"];
  const name = old ? shown?.name : (broken[0] ?? shown)?.name;
  const more = !old && broken.length > 1 ? ` and ${broken.length - 1} more` : "";
  document.title = name ? `${mark} ${name}${more} – swarm health` : `${old && swarm ? "◌ " : ""}swarm health`;
  attribute(one("icon"), "href", `page/${icon}`);
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
  live(live) {
    status.live(live);
    entitle();
  },
});

addEventListener("hashchange", () => {
  if (!location.hash) shown = null;
  draw();
  const title = one("model-title");
  if (location.hash && title.getBoundingClientRect().top > innerHeight / 2) title.scrollIntoView();
});
setInterval(() => {
  tick();
  status.tick();
  entitle();
}, TICK_MS);
addEventListener("online", () => stream.hurry());
document.addEventListener("visibilitychange", () => document.hidden || stream.hurry());
stream.open();
