// Numbers with their units, as text. Null in, null out: what is unknown is for the caller to say.

/** @typedef {number|null|undefined} Maybe */

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {number} x @param {number} digits significant ones, without trailing zeros */
function significant(x, digits) {
  return x >= 10 ** digits ? plain.format(x) : String(Number(x.toPrecision(digits)));
}

/** @param {(x: number) => string} text @returns {(x: Maybe) => string|null} */
function known(text) {
  return (x) => (x === null || x === undefined || !Number.isFinite(x) ? null : text(x));
}

export const count = known((x) => plain.format(x));
export const milliseconds = known((s) =>
  s === 0 ? "0 ms" : s < 0.00001 ? "<0.01 ms" : `${significant(s * 1000, 3)} ms`,
);
export const seconds = known((s) => (s < 1 ? /** @type {string} */ (milliseconds(s)) : `${significant(s, 3)} s`));
export const percent = known((x) => (x > 0 && x < 0.01 ? "<1 %" : `${Math.floor(x * 100 + 1e-9)} %`));
export const rate = known((x) => `${significant(x, 3)} tokens/s`);
export const megabits = known((x) =>
  x >= 1000 ? `${significant(x / 1000, 3)} Gbit/s` : `${significant(x, 3)} Mbit/s`,
);
export const bytes = known((x) =>
  x >= 2 ** 30 ? `${significant(x / 2 ** 30, 3)} GiB` : `${significant(x / 2 ** 20, 3)} MiB`,
);

/** Tokens, shortened above 10,000 (12.3k). */
export const tokens = known(
  (x) =>
    `${x >= 1e6 ? `${significant(x / 1e6, 3)}M` : x >= 1e4 ? `${significant(x / 1e3, 3)}k` : plain.format(x)} tokens`,
);

/** A length of time for people, two units at most: 4 s, 12 min, 3 h 20 min, 5 d 2 h. */
export const duration = known((s) => {
  if (s < 60) return `${Math.max(0, Math.floor(s))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  const [big, small, size, part] = s < 86400 ? ["h", "min", 3600, 60] : ["d", "h", 86400, 3600];
  const rest = Math.floor((s % size) / part);
  return `${Math.floor(s / size)} ${big}${rest ? ` ${rest} ${small}` : ""}`;
});

/** How long ago something was, in one unit: 14 h. */
export const ago = known((s) => {
  const units = /** @type {[number, string][]} */ ([
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
  ]);
  const [size, name] = units.find(([size]) => s >= size) ?? [1, "s"];
  return `${Math.max(0, Math.floor(s / size))} ${name}`;
});

/** @param {number} start @param {number} end layers [start, end), the last one included: 0–9 */
export function span(start, end) {
  return end - start === 1 ? String(start) : `${start}–${end - 1}`;
}

/** @param {number} start @param {number} end layers [start, end) in words */
export function layers(start, end) {
  return end - start === 1 ? `layer ${start}` : `layers ${start} to ${end - 1}`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export function plural(n, one, many = `${one}s`) {
  return `${plain.format(n)} ${n === 1 ? one : many}`;
}

const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const short = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

/** @param {number} at wall seconds since 1970 */
export function moment(at) {
  return Number.isFinite(at) ? exact.format(at * 1000) : "";
}

/** @param {number} at wall seconds since 1970 @returns {string} hours and minutes */
export function clockTime(at) {
  return short.format(at * 1000);
}
