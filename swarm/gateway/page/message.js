// One message on the page: its text, a line about it, and what can be done with it. All of it becomes text, never markup.

import { button, element, say } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`\n]*)$/;
const SHOWN_MS = 2000;

/** @typedef {{code: boolean, name: string, text: string}} Part a paragraph, or a block of code with its language's name */

/**
 * Paragraphs and fenced blocks of code; a fence that is still open reaches to the end.
 * @param {string} text @returns {Part[]}
 */
export function parts(text) {
  /** @type {Part[]} */
  const all = [];
  let fence = "";
  let fresh = true;
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence ? mark && !mark[2].trim() && mark[1].startsWith(fence) : mark) {
      if (!fence) all.push({ code: true, name: /** @type {RegExpExecArray} */ (mark)[2].trim(), text: "" });
      fence = fence ? "" : /** @type {RegExpExecArray} */ (mark)[1];
      fresh = true;
    } else if (!fence && !line.trim()) {
      fresh = true;
    } else {
      if (fresh && !fence) all.push({ code: false, name: "", text: line });
      else all[all.length - 1].text += fresh ? line : `\n${line}`;
      fresh = false;
    }
  }
  return all;
}

/** @param {string} label what is copied, for those who cannot see it @param {() => string} text */
function copyButton(label, text) {
  const word = document.createTextNode("Copy");
  let timer = 0;
  const made = button("", async () => {
    word.data = (await copied(text())) ? "Copied" : "Not possible here";
    say(`${word.data}: ${label}`);
    clearTimeout(timer);
    timer = setTimeout(() => (word.data = "Copy"), SHOWN_MS);
  });
  made.append(word, element("span", "unseen", ` ${label}`));
  return made;
}

/** @param {string} text @returns {Promise<boolean>} */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard is for secure origins only; plain HTTP from another machine has this.
    const place = element("textarea", "unseen");
    place.value = text;
    document.body.append(place);
    place.select();
    const done = document.execCommand("copy");
    place.remove();
    return done;
  }
}

/** @typedef {{root: HTMLElement, name: Text, text: Text, code: boolean}} Place where a part is shown */

/** @param {Part} part @returns {Place} */
function placed(part) {
  const [name, text] = [document.createTextNode(part.name), document.createTextNode(part.text)];
  if (!part.code) {
    const root = element("p", "", text);
    root.dir = "auto";
    return { root, name, text, code: false };
  }
  const block = element("pre", "", element("code", "", text));
  block.tabIndex = 0;
  block.setAttribute("aria-label", "Code");
  const head = element(
    "figcaption",
    "",
    element("span", "", name),
    copyButton("the code", () => text.data),
  );
  return { root: element("figure", "code", head, block), name, text, code: true };
}

/** @param {Text} node @param {string} text */
function write(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
  else node.data = text;
}

export class Message {
  /** @param {"user"|"assistant"} role @param {string} who @param {string} [text] */
  constructor(role, who, text = "") {
    this.text = "";
    this._said = element("div", "said");
    this._note = element("p", "note");
    this._actions = element("p", "actions");
    /** @type {Place[]} */
    this._parts = [];
    this.root = element("li", role, element("h2", "unseen", who), this._said, this._note, this._actions);
    this.set(text);
  }

  /** @param {string} text all of it; what was there before is left as it is */
  set(text) {
    this.text = text;
    const all = parts(text);
    while (this._parts.length > all.length) this._parts.pop()?.root.remove();
    all.forEach((part, i) => {
      const there = this._parts[i];
      if (there?.code === part.code) {
        write(there.name, part.name);
        write(there.text, part.text);
        return;
      }
      this._parts[i] = placed(part);
      if (there) there.root.replaceWith(this._parts[i].root);
      else this._said.append(this._parts[i].root);
    });
  }

  /** @param {(Node|string)[]} line @param {boolean} [wrong] */
  note(line, wrong = false) {
    this._note.replaceChildren(...line);
    this._note.classList.toggle("wrong", wrong);
  }

  /** @param {string} text @param {() => void} act */
  offer(text, act) {
    this._actions.append(button(text, act));
  }

  /** It changes no more: all that is offered is to copy it. */
  settle() {
    this._actions.replaceChildren();
    if (this.text) this._actions.append(copyButton("the answer", () => this.text));
  }
}
