// The links between servers: a matrix of round trips for a few, the slowest as a list for many.

/** @import {Link, Model, Server} from "./types.js" */

import { attribute, element, framed, hide, one, write } from "./dom.js";
import { count, megabits, milliseconds, seconds } from "./units.js";

const MATRIX_MOST = 12;
const LISTED = 30;
/** Upper bounds of the classes of round trips, in seconds. */
const CLASSES_S = [0.005, 0.02, 0.06, 0.15];

/** @param {number} rtt_s */
function speed(rtt_s) {
  const found = CLASSES_S.findIndex((bound_s) => rtt_s <= bound_s);
  return `rtt${found < 0 ? CLASSES_S.length : found}`;
}

/** @param {Server} server */
const named = (server) => element("bdi", "", server.name || `…${server.short}`);

/** @param {Link} link @returns {string} */
function rttText(link) {
  return `${link.estimated ? "≈ " : ""}${milliseconds(link.rtt_s)}`;
}

const MATRIX_NOTE =
  "Round trip from the server at the left to the one above; then goodput and the age of the last no-op (a sign of life that comes back), where the link is in use. ≈ is an estimate from network coordinates, never measured.";

// What stays through every change is made once: the frame keeps its place, and it and the button the focus.
export class Links {
  constructor() {
    /** @type {Link[]|null} */
    this._links = null;
    this._servers = "";
    this._all = false;
    this._text = element("span");
    this._more = element("button", "small");
    this._more.type = "button";
    this._more.addEventListener("click", () => {
      this._all = !this._all;
      this._draw();
    });
    this._frame = framed(element("table"), "Links");
    one("links").append(element("p", "note", this._text, " ", this._more), this._frame);
  }

  /** @param {Model} model */
  show(model) {
    const servers = model.servers.map((server) => `${server.peer} ${server.name}`).join("\n");
    if (model.links === this._links && servers === this._servers) return;
    this._links = model.links;
    this._servers = servers;
    this._model = model;
    this._draw();
  }

  _draw() {
    const model = /** @type {Model} */ (this._model);
    const known = new Set(model.links.flatMap((link) => [link.source, link.target]));
    const servers = model.servers.filter((server) => known.has(server.peer));
    const few = servers.length <= MATRIX_MOST;
    hide(this._frame, !model.links.length);
    hide(this._more, few || model.links.length <= LISTED);
    if (!model.links.length) {
      write(this._text, "No link is known yet: servers tell of those that they measured.");
    } else if (few) {
      servers.sort((a, b) => a.start - b.start || a.end - b.end || (a.peer < b.peer ? -1 : 1));
      write(this._text, MATRIX_NOTE);
      this._put(matrix(servers, model.links), "Matrix of round trips");
    } else {
      this._list(model);
    }
  }

  /** @param {Model} model */
  _list(model) {
    const total = model.links.length;
    const shown = slowest(model.links, this._all ? total : LISTED);
    const names = new Map(model.servers.map((server) => [server.peer, server]));
    write(this._more, this._all ? `Only the ${LISTED} slowest` : `All ${count(total)} links`);
    const text = this._all
      ? `All ${count(total)} links, the slowest first.`
      : `The ${shown.length} slowest of ${count(total)} links.`;
    write(this._text, text);
    this._put(list(shown, names), "List of links");
  }

  /** @param {HTMLElement} table @param {string} label */
  _put(table, label) {
    this._frame.replaceChildren(table);
    attribute(this._frame, "aria-label", label);
  }
}

/**
 * The slowest links, in order. A typed array sorts itself without calling back.
 * @param {Link[]} links @param {number} most
 */
function slowest(links, most) {
  if (links.length <= most) return [...links].sort((a, b) => b.rtt_s - a.rtt_s);
  const floor_s = new Float64Array(links.map((link) => link.rtt_s)).sort()[links.length - most];
  return links
    .filter((link) => link.rtt_s >= floor_s)
    .sort((a, b) => b.rtt_s - a.rtt_s)
    .slice(0, most);
}

/** @param {HTMLTableCellElement} cell @param {"row"|"col"} scope */
function scoped(cell, scope) {
  cell.scope = scope;
  return cell;
}

/** @param {Server[]} servers @param {Link[]} links */
function matrix(servers, links) {
  const by = new Map(links.map((link) => [`${link.source} ${link.target}`, link]));
  const head = element("tr", "", scoped(element("th", "corner", "from ↓ to →"), "col"));
  for (const server of servers) head.append(scoped(element("th", "", named(server)), "col"));
  const body = element("tbody");
  for (const source of servers) {
    const row = element("tr", "", scoped(element("th", "", named(source)), "row"));
    for (const target of servers) row.append(matrixCell(source, target, by.get(`${source.peer} ${target.peer}`)));
    body.append(row);
  }
  return element(
    "table",
    "matrix",
    element("caption", "unseen", "Round trips between servers"),
    element("thead", "", head),
    body,
  );
}

/** @param {Server} source @param {Server} target @param {Link|undefined} link */
function matrixCell(source, target, link) {
  if (source === target) {
    const self = element("td", "self", "·");
    self.title = "the server itself";
    return self;
  }
  if (!link) {
    const unknown = element("td", "unknown", "–");
    unknown.title = "not measured";
    return unknown;
  }
  const cell = element(
    "td",
    `${speed(link.rtt_s)}${link.estimated ? " estimated" : ""}`,
    element("b", "", rttText(link)),
  );
  if (link.goodput_mbps !== null) cell.append(element("small", "", megabits(link.goodput_mbps) ?? ""));
  if (link.noop_age_s !== null) cell.append(element("small", "", `no-op ${seconds(link.noop_age_s)}`));
  return cell;
}

/** @param {Link[]} links @param {Map<string, Server>} servers */
function list(links, servers) {
  const head = element("tr");
  for (const text of ["From", "To", "Round trip", "Goodput", "No-op age"])
    head.append(scoped(element("th", "", text), "col"));
  const body = element("tbody");
  for (const link of links) {
    const names = [link.source, link.target].map((peer) => {
      const server = servers.get(peer);
      return element("td", "", server ? named(server) : peer.slice(-8));
    });
    const rtt = element("td", `number ${speed(link.rtt_s)}`, rttText(link));
    body.append(
      element("tr", "", ...names, rtt, measured(megabits(link.goodput_mbps)), measured(seconds(link.noop_age_s))),
    );
  }
  return element(
    "table",
    "plain links",
    element("caption", "unseen", "Links between servers"),
    element("thead", "", head),
    body,
  );
}

/** @param {string|null} text */
function measured(text) {
  const cell = element("td", text === null ? "number unknown" : "number", text ?? "–");
  if (text === null) cell.title = "not measured: the link is not in use";
  return cell;
}
