// A model's main figures.

/** @import {Model} from "./types.js" */

import { element, kind, one, title, value, write } from "./dom.js";
import { count, percent, rate, seconds } from "./units.js";

/** Moves of one server an hour above which a swarm is restless. */
const RESTLESS = 1;
const KNEE = "Up to the knee sessions share what is idle; each one beyond makes the others slower.";

/**
 * @typedef {object} Figure
 * @property {string} text
 * @property {string|null} value
 * @property {string} [note]
 * @property {string} why there may be no value
 * @property {string} [about] more of it, for who points at it
 * @property {string} [mark] "warn": a sign of trouble, "bad": trouble
 */

/** How far apart its bounds may be before a prediction says them. */
const WIDE = 1.2;

/** @param {[number, number]|null|undefined} range of a prediction */
function doubt(range) {
  return range && range[1] > WIDE * range[0] ? `predicted: ${rate(range[0])} to ${rate(range[1])}` : "predicted";
}

/** @param {Model} model @returns {Figure[]} */
function figures(model) {
  const serving = model.servers.filter((server) => server.condition === "serving").length;
  const missing = model.missing.reduce((sum, [start, end]) => sum + end - start, 0);
  const restless = model.rebalances_per_hour > RESTLESS * Math.max(serving, 1);
  return [
    {
      text: "A new session",
      value: rate(model.tokens_per_s),
      note: doubt(model.tokens_per_s_range),
      about: "What routing predicts for a new session, from the servers' live metrics.",
      why: "there is no route through all layers",
    },
    {
      text: "All sessions",
      value: rate(model.served_tokens_per_s),
      note: "by the servers' own word",
      about: "What all sessions together got in the last 60 s.",
      why: "no server that samples tokens told of it",
    },
    {
      text: "Sessions open",
      value: count(model.sessions),
      note:
        model.knee_sessions === null
          ? "knee unknown"
          : `the knee is at ${count(model.knee_sessions)}: beyond, each gets slower`,
      why: "",
      about: KNEE,
    },
    {
      text: "Full",
      value: percent(model.fullness),
      note: (model.fullness ?? 0) >= 1 ? "⚠ at the knee: all get slower" : "open sessions, as a share of the knee",
      why: "the knee is not known",
      about: KNEE,
      mark: (model.fullness ?? 0) >= 1 ? "warn" : "",
    },
    {
      text: "Layers served",
      value: model.layers ? `${model.layers - missing} of ${model.layers}` : null,
      note: missing ? `✕ ${missing} missing` : "none missing",
      why: "nobody told yet how many there are",
      mark: missing ? "bad" : "",
    },
    {
      text: "Servers",
      value: `${serving} serving`,
      note: `of ${count(model.servers.length)} known`,
      why: "",
    },
    {
      text: "A server's step",
      value: seconds(model.step_p50_s),
      note: model.step_p99_s === null ? "median" : `median; p99 ${seconds(model.step_p99_s)}`,
      why: "no server told of a decode step lately",
      about: "A decode step at one server, from arrival to leaving, over all servers and the last 60 s.",
    },
    {
      text: "Rebalances",
      value: `${Number(model.rebalances_per_hour.toFixed(1))} an hour`,
      note: restless ? "⚠ servers keep moving" : "servers that moved",
      why: "",
      about: "Moves of servers to other layers in the last hour. More than one for each server is a sign of trouble.",
      mark: restless ? "warn" : "",
    },
  ];
}

class Tile {
  constructor() {
    this.text = element("dt");
    this.value = element("dd", "value");
    this.note = element("dd", "note");
    this.root = element("div", "tile", this.text, this.value, this.note);
  }

  /** @param {Figure} figure */
  update(figure) {
    write(this.text, figure.text);
    value(this.value, figure.value, figure.why);
    write(this.note, figure.value === null ? figure.why : (figure.note ?? ""));
    title(this.root, figure.about ?? "");
    kind(this.root, figure.mark ? `tile ${figure.mark}` : "tile");
  }
}

export class Tiles {
  constructor() {
    /** @type {Tile[]} */
    this._tiles = [];
  }

  /** @param {Model} model */
  show(model) {
    const all = figures(model);
    while (this._tiles.length < all.length) {
      const tile = new Tile();
      this._tiles.push(tile);
      one("tiles").append(tile.root);
    }
    all.forEach((figure, i) => this._tiles[i].update(figure));
  }
}
