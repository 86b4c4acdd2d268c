// What someone who listens to the page is told without asking: little, and only what matters.

import { element, one } from "./dom.js";

const KEPT = 3;

/** @param {string} text */
export function announce(text) {
  const place = one("announcer");
  place.append(element("span", "", `${text} `));
  while (place.childElementCount > KEPT) place.firstElementChild?.remove();
}
