// The time of the page's server, and ages that tick by it: the clocks of those who look may be wrong.

import { ago, moment } from "./units.js";
import { write } from "./dom.js";

const clock = { at: Date.now() / 1000, heard_ms: 0 };

/** @type {WeakMap<Element, {at: number, after: string, text: string}>} what each age on the page counts from */
const told = new WeakMap();

/** @param {number} at the server's wall time of what was just heard, in seconds */
export function heard(at) {
  clock.at = at;
  clock.heard_ms = performance.now();
}

/** The server's wall time now, in seconds since 1970. */
export function now() {
  return clock.at + (performance.now() - clock.heard_ms) / 1000;
}

/**
 * An element that shows how long ago something was, and when exactly to whoever points at it.
 * @param {string} [after] what stands behind it: "ago"
 */
export function age(after = "") {
  const node = document.createElement("time");
  node.className = "age";
  told.set(node, { at: NaN, after: after && ` ${after}`, text: "" });
  node.addEventListener("pointerenter", () => (node.title = moment(told.get(node)?.at ?? NaN)));
  return node;
}

/** @param {HTMLTimeElement} node made by age @param {number} at wall seconds since 1970 */
export function since(node, at) {
  const entry = told.get(node);
  if (!entry) return;
  if (entry.at !== at) {
    entry.at = at;
    node.dateTime = new Date(at * 1000).toISOString();
  }
  show(node, now());
}

/** @param {Element} node @param {number} now_s */
function show(node, now_s) {
  const entry = told.get(node);
  if (!entry || Number.isNaN(entry.at)) return;
  const text = `${ago(Math.max(0, now_s - entry.at))}${entry.after}`;
  if (text !== entry.text) write(node, (entry.text = text));
}

/** Every age on the page, once: called each second. */
export function tick() {
  const now_s = now();
  for (const node of document.getElementsByClassName("age")) show(node, now_s);
}
