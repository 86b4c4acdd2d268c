// A link to a proof that the page's machine checked.

import { element } from "./dom.js";

const SHOWN_DIGITS = 8;

/** @param {string} digest hex @returns {HTMLElement} */
export function proofLink(digest) {
  if (!/^[0-9a-f]{16,128}$/.test(digest)) return element("span", "", "(no proof)");
  const link = element("a", "", `proof ${digest.slice(0, SHOWN_DIGITS)}…`);
  link.href = `api/v1/proofs/${digest}`;
  link.title = digest;
  return link;
}
