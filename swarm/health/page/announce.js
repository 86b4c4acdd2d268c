// What someone who listens to the page is told without asking: little, and only what matters.

import { one } from "./dom.js";

/** @param {string} text */
export function announce(text) {
  one("announcer").textContent = text;
}
