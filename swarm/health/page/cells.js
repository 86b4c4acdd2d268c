// The cells of the table of servers: each kind is filled once, and then changed only where its text is another.

/** @import {Server} from "./types.js" */
/** @import {Column, Context, Update} from "./columns.js" */

import { age, since } from "./ages.js";
import { element, kind, title, value, write } from "./dom.js";
import { span } from "./units.js";

/** What each condition looks like: a mark that needs no colour. */
const CONDITIONS = {
  serving: "● serving",
  joining: "◔ joining",
  draining: "◑ draining",
  silent: "○ silent",
  ejected: "✕ ejected",
};

/**
 * A column of plain text.
 * @param {string} key @param {string} label @param {string} about
 * @param {(server: Server, context: Context) => string|number|null|undefined} sort
 * @param {(server: Server, context: Context) => string|null} text
 * @param {string|((server: Server) => string)} why
 * @returns {Column}
 */
export function plain(key, label, about, sort, text, why) {
  const reason = typeof why === "string" ? () => why : why;
  /** @param {HTMLElement} cell @returns {Update} */
  const fill = (cell) => {
    /** @type {string|null|undefined} */
    let shown;
    let told = "";
    return (server, context) => {
      const now = text(server, context);
      const because = now === null ? reason(server) : "";
      if (now === shown && because === told) return;
      value(cell, now, because);
      shown = now;
      told = because;
    };
  };
  return { key, label, about, sort, fill };
}

/**
 * A column of numbers.
 * @param {string} key @param {string} label @param {string} about
 * @param {(server: Server, context: Context) => number|null|undefined} number
 * @param {(x: number|null|undefined) => string|null} text
 * @param {string|((server: Server) => string)} why
 * @returns {Column}
 */
export function number(key, label, about, number, text, why) {
  return {
    ...plain(key, label, about, number, (server, context) => text(number(server, context)), why),
    kind: "number",
  };
}

/**
 * @param {string} key @param {string} label @param {string} about
 * @param {(server: Server) => number|null} at wall seconds since 1970
 * @param {(server: Server) => string} why
 * @returns {Column}
 */
export function ago(key, label, about, at, why) {
  /** @param {HTMLElement} cell @returns {Update} */
  const fill = (cell) => {
    const time = age("ago");
    const dash = element("span");
    cell.append(time, dash);
    return (server) => {
      const when = at(server);
      if (when !== null) since(time, when);
      time.hidden = when === null;
      dash.hidden = when !== null;
      if (when === null) value(dash, null, why(server));
    };
  };
  return {
    key,
    label,
    about,
    sort: (server) => (at(server) === null ? null : -Number(at(server))),
    fill,
    kind: "number",
  };
}

/** @param {HTMLElement} cell @returns {Update} */
export function nameCell(cell) {
  const name = element("bdi", "name");
  const short = element("span", "short");
  const button = element("button", "more", name);
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  cell.append(button, short);
  return (server) => {
    write(name, server.name || "(no name)");
    title(button, server.name ? `${server.name}: show all that is known` : "show all that is known");
    write(short, `…${server.short}`);
    title(short, server.peer);
  };
}

/** @param {HTMLElement} cell @returns {Update} */
export function spanCell(cell) {
  const bar = element("span", "bar");
  const intent = element("span", "intent");
  const track = element("span", "track", intent, bar);
  const text = element("span", "short");
  track.setAttribute("aria-hidden", "true");
  cell.append(track, text);
  let shown = "";
  return (server, { layers }) => {
    const now = `${server.start} ${server.end} ${server.intent} ${layers}`;
    if (now === shown) return;
    shown = now;
    place(bar, [server.start, server.end], layers);
    place(intent, server.intent, layers);
    const moving = server.intent ? ` → ${span(...server.intent)}` : "";
    title(text, `--blocks ${server.start}:${server.end}`);
    write(text, `${span(server.start, server.end)}${moving}`);
  };
}

/** @param {HTMLElement} bar @param {[number, number]|null} where @param {number} layers */
function place(bar, where, layers) {
  const [start, end] = where ?? [0, 0];
  bar.style.left = `${(100 * start) / Math.max(layers, 1)}%`;
  bar.style.width = `${(100 * Math.max(end - start, 0)) / Math.max(layers, 1)}%`;
}

/** @param {HTMLElement} cell @returns {Update} */
export function conditionCell(cell) {
  const state = element("span");
  const time = age();
  cell.append(state, element("span", "short", "for ", time));
  return (server) => {
    write(state, CONDITIONS[server.condition] ?? server.condition);
    kind(state, `condition ${server.condition}`);
    since(time, server.since_at);
  };
}
