// Elements and their text. Whatever comes from the model, its servers or the gateway becomes text, never markup.

const HEARD_MS = 100;

/** @param {string} id @returns {any} the element, which is on the page */
export const one = (id) => document.getElementById(id);

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name @param {string} kind its class @param {...(Node|string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(name, kind, ...children) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

/** @param {string} text @param {() => void} act */
export function button(text, act) {
  const made = element("button", "small", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** Told to who listens, once; the same text twice is told twice. @param {string} text */
export function say(text) {
  one("announcer").textContent = "";
  setTimeout(() => (one("announcer").textContent = text), HEARD_MS);
}
