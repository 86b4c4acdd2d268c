// The coverage strip: a cell per layer with the number of servers that serve it; holes cannot be overlooked.

/** @import {Model, Stretch} from "./types.js" */

import { attribute, element, framed, hide, kind, one, table, title, write } from "./dom.js";
import { layers, plural, span } from "./units.js";

const DEEPEST = 4;
/** The least width of a cell, with the gap beside it. */
const CELL_PX = 22;
const LEGEND = [
  ["hole", "0", "nobody"],
  ["claimed", "0", "only silent servers claim it"],
  ["deep1", "1", "one server: its loss makes a hole"],
  ["deep2", "2", "two"],
  ["deep3", "3", "three"],
  ["deep4", "4", "four or more"],
];

/** @param {Stretch} stretch */
function cellKind(stretch) {
  if (stretch.replicas) return `deep${Math.min(stretch.replicas, DEEPEST)}`;
  return stretch.silent ? "claimed" : "hole";
}

/** @param {Stretch} stretch @returns {string} */
function words(stretch) {
  const served = stretch.replicas ? plural(stretch.replicas, "server") : "nobody serves it";
  return stretch.silent
    ? `${served}, ${plural(stretch.silent, "silent server claims", "silent servers claim")} it`
    : served;
}

/** @param {Stretch} stretch */
function holeText(stretch) {
  return `${span(stretch.start, stretch.end)}${stretch.silent ? " (claimed by silent servers)" : ""}`;
}

/** @param {Stretch[]} stretches in order @returns {[start: number, end: number][]} those that touch made one */
function joined(stretches) {
  /** @type {[number, number][]} */
  const all = [];
  for (const { start, end } of stretches) {
    const last = all[all.length - 1];
    if (last && last[1] === start) last[1] = end;
    else all.push([start, end]);
  }
  return all;
}

/**
 * How many cells a row gets so that all have room and no few stand alone in the last one.
 * @param {number} cells @param {number} width_px
 */
function inRow(cells, width_px) {
  const rows = Math.ceil(cells / Math.max(1, Math.floor(width_px / CELL_PX)));
  return Math.ceil(cells / Math.max(rows, 1));
}

export class Coverage {
  constructor() {
    /** @type {{root: HTMLElement, number: HTMLElement}[]} */
    this._cells = [];
    this._shown = "";
    this._frame = framed(element("table"), "Table of coverage");
    one("coverage-table").append(this._frame);
    for (const [cell, number, text] of LEGEND) {
      const sample = element("span", `cell ${cell}`, number);
      sample.setAttribute("aria-hidden", "true");
      one("strip-legend").append(element("li", "", sample, text));
    }
    new ResizeObserver(() => this._arrange()).observe(one("strip"));
  }

  /** @param {Model} model */
  show(model) {
    const now = JSON.stringify([model.model, model.layers, model.coverage]);
    if (now === this._shown) return;
    this._shown = now;
    this._fit(model.layers);
    for (const stretch of model.coverage) {
      for (let layer = stretch.start; layer < Math.min(stretch.end, model.layers); layer++) {
        const cell = this._cells[layer];
        kind(cell.root, `cell ${cellKind(stretch)}`);
        write(cell.number, stretch.replicas > 99 ? "99+" : String(stretch.replicas));
        title(cell.root, `layer ${layer}: ${words(stretch)}`);
      }
    }
    this._tell(model);
  }

  /** @param {number} wanted */
  _fit(wanted) {
    while (this._cells.length > wanted) this._cells.pop()?.root.remove();
    while (this._cells.length < wanted) {
      const number = element("b");
      const root = element("span", "cell hole", number, element("small", "", String(this._cells.length)));
      this._cells.push({ root, number });
      one("strip").append(root);
    }
    this._arrange();
  }

  _arrange() {
    const strip = one("strip");
    if (!strip.clientWidth || !this._cells.length) return;
    const columns = `repeat(${inRow(this._cells.length, strip.clientWidth)}, minmax(0px, 2.5rem))`;
    if (strip.style.gridTemplateColumns !== columns) strip.style.gridTemplateColumns = columns;
  }

  /** @param {Model} model */
  _tell(model) {
    for (const id of ["strip", "strip-legend", "coverage-details"]) hide(one(id), !model.coverage.length);
    const holes = model.coverage.filter((stretch) => !stretch.replicas);
    const text = one("coverage-text");
    if (!model.coverage.length) {
      write(text, "Nobody told yet how many layers it has.");
    } else if (holes.length) {
      write(
        text,
        `Missing: ${holes.length === 1 && holes[0].end - holes[0].start === 1 ? "layer" : "layers"} ${holes.map((hole) => holeText(hole)).join(", ")}.`,
      );
    } else {
      const least = Math.min(...model.coverage.map((stretch) => stretch.replicas));
      const thin = joined(model.coverage.filter((stretch) => stretch.replicas === least)).map(([start, end]) =>
        span(start, end),
      );
      const where = `${thin.length === 1 && !thin[0].includes("–") ? "layer" : "layers"} ${thin.join(", ")}`;
      write(text, `Every layer is served; the fewest is ${plural(least, "server")}, at ${where}.`);
    }
    kind(text, holes.length ? "bad" : "");
    attribute(one("strip"), "aria-label", `${model.layers} layers, one cell each. ${text.textContent}`);
    const rows = model.coverage.map((stretch) => [
      layers(stretch.start, stretch.end),
      String(stretch.replicas),
      String(stretch.silent),
    ]);
    this._frame.replaceChildren(table("Coverage", ["Layers", "Servers", "Silent servers"], rows));
  }
}
