// A button that copies a text: by the clipboard where the browser lets us, otherwise it selects the text for Ctrl+C.

import { element } from "./dom.js";
import { announce } from "./announce.js";

const SHOWN_MS = 2500;

/**
 * @param {HTMLElement} source holds the text
 * @param {string} label what is copied, for those who cannot see it
 * @param {() => string} [text] by default what the source shows
 */
export function copyButton(source, label, text = () => source.textContent ?? "") {
  const button = element("button", "small", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", `Copy ${label}`);
  let timer = 0;
  button.addEventListener("click", async () => {
    const done = await copied(source, text());
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    announce(done ? `Copied ${label}` : `Selected ${label}: press Control C`);
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = "Copy"), SHOWN_MS);
  });
  return button;
}

/** @param {HTMLElement} source @param {string} text @returns {Promise<boolean>} */
async function copied(source, text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const selection = getSelection();
    selection?.selectAllChildren(source);
    return source.textContent === text && document.execCommand("copy");
  }
}
