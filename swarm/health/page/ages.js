// The time of the page's server, and ages that tick by it: the clocks of those who look may be wrong.

import { duration, moment } from "./units.js";
import { attribute, write } from "./dom.js";

const clock = { at: Date.now() / 1000, heard_ms: 0 };

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
 * An element that shows how long ago something was.
 * @param {string} [after] what stands behind it: "ago"
 */
export function age(after = "") {
  const node = document.createElement("time");
  node.className = "age";
  node.dataset.after = after && ` ${after}`;
  return node;
}

/** @param {HTMLTimeElement} node @param {number} at wall seconds since 1970 */
export function since(node, at) {
  if (node.dataset.at !== String(at)) {
    node.dataset.at = String(at);
    attribute(node, "datetime", new Date(at * 1000).toISOString());
    node.title = moment(at);
  }
  show(node, now());
}

/** @param {HTMLElement} node @param {number} now_s */
function show(node, now_s) {
  write(node, `${duration(Math.max(0, now_s - Number(node.dataset.at)))}${node.dataset.after}`);
}

/** Every age on the page, once: called each second. */
export function tick() {
  const now_s = now();
  for (const node of document.getElementsByClassName("age")) {
    if (/** @type {HTMLElement} */ (node).dataset.at) show(/** @type {HTMLElement} */ (node), now_s);
  }
}
