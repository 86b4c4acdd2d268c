// Elements and their text. Whatever comes from a peer passes here and becomes text, never markup.

/**
 * A new element.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {string} [kind] its class
 * @param {...(Node|string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(name, kind = "", ...children) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...children);
  return made;
}

/** @param {string} id @returns {HTMLElement} */
export function one(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/**
 * Sets text only where it differs: the layout is then left alone.
 * @param {Node} node @param {string} text
 */
export function write(node, text) {
  const only = node.firstChild;
  if (only && only.nodeType === Node.TEXT_NODE && !only.nextSibling) {
    if (/** @type {Text} */ (only).data !== text) /** @type {Text} */ (only).data = text;
  } else if (only || text) {
    node.textContent = text;
  }
}

/**
 * A value, or a dash that says why there is none.
 * @param {HTMLElement} node @param {string|null} text @param {string} why
 */
export function value(node, text, why) {
  write(node, text ?? "–");
  title(node, text === null ? why : "");
  node.classList.toggle("unknown", text === null);
}

/** @param {HTMLElement} node @param {string} text */
export function title(node, text) {
  if (node.title !== text) {
    if (text) node.title = text;
    else node.removeAttribute("title");
  }
}

/** @param {HTMLElement} node @param {string} kind */
export function kind(node, kind) {
  if (node.className !== kind) node.className = kind;
}

/** @param {Element} node @param {string} name @param {string} text */
export function attribute(node, name, text) {
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** @param {HTMLElement} node @param {boolean} hidden */
export function hide(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/**
 * Makes the children of a parent those given, in order, moving only what is out of place.
 * @param {Element} parent @param {Element[]} wanted
 */
export function arrange(parent, wanted) {
  const keep = new Set(wanted);
  for (let child = parent.firstElementChild; child;) {
    const next = child.nextElementSibling;
    if (!keep.has(child)) child.remove();
    child = next;
  }
  let at = parent.firstElementChild;
  for (const child of wanted) {
    if (child === at) at = at.nextElementSibling;
    else if (child === at?.nextElementSibling)
      at = child.nextElementSibling; // what was skipped has its turn later
    else parent.insertBefore(child, at);
  }
}

/**
 * Elements that outlive their data: made once per key, updated ever after.
 * @template D
 * @template {{root: Element, update: (data: D) => void}} V
 */
export class Keyed {
  /** @param {Element} parent @param {() => V} make */
  constructor(parent, make) {
    this._parent = parent;
    this._make = make;
    /** @type {Map<string, V>} */
    this.views = new Map();
  }

  /** @param {D[]} all in the order they are shown @param {(data: D) => string} key */
  show(all, key) {
    const kept = new Map();
    for (const data of all) {
      const view = this.views.get(key(data)) ?? this._make();
      view.update(data);
      kept.set(key(data), view);
    }
    this.views = kept;
    arrange(
      this._parent,
      [...kept.values()].map((view) => view.root),
    );
  }
}

/**
 * A frame that scrolls, by keyboard too.
 * @param {HTMLElement} content @param {string} label
 */
export function framed(content, label) {
  const frame = element("div", "scroller", content);
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", label);
  return frame;
}

/**
 * A table of text with a heading row.
 * @param {string} caption @param {string[]} heads @param {string[][]} rows
 */
export function table(caption, heads, rows) {
  const made = element("table", "plain", element("caption", "unseen", caption));
  const head = element("tr");
  for (const text of heads) {
    const cell = element("th", "", text);
    cell.scope = "col";
    head.append(cell);
  }
  const body = rows.map((row) => element("tr", "", ...row.map((text) => element("td", "", text))));
  made.append(element("thead", "", head), element("tbody", "", ...body));
  return made;
}
