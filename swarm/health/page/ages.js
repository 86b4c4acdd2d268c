// The time of the page's server, and ages that tick by it: the clocks of those who look may be wrong.

import { ago, moment } from "./units.js";
import { write } from "./dom.js";

/** The server's wall time less this page's own, in seconds, as far as is known. */
let ahead_s = -Infinity;

/** @type {WeakMap<Element, {at: number, after: string, text: string}>} what each age on the page counts from */
const told = new WeakMap();

/**
 * Takes note of what the server's clock has reached. What is heard may be somewhat old, so the latest time counts.
 * @param {number} at the server's wall time, in seconds since 1970
 */
export function heard(at) {
  ahead_s = Math.max(ahead_s, at - performance.now() / 1000);
}

/** The server's wall time now, in seconds since 1970. */
export function now() {
  return performance.now() / 1000 + ahead_s;
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

/** Ages far from sight wait so many ticks: hundreds of rows that nobody sees would cost a layout each second. */
const FAR_TICKS = 20;
let ticks = 0;

/** The ages on the page: called each second. */
export function tick() {
  const now_s = now();
  const all = ticks++ % FAR_TICKS === 0;
  for (const node of document.getElementsByClassName("age"))
    if (all || node.checkVisibility({ contentVisibilityAuto: true })) show(node, now_s);
}

document.addEventListener("contentvisibilityautostatechange", (event) => {
  if (/** @type {any} */ (event).skipped) return;
  const now_s = now();
  for (const node of /** @type {Element} */ (event.target).getElementsByClassName("age")) show(node, now_s);
});
