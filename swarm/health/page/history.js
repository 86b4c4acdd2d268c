// The last 24 hours as plots, each with its figures in words.

/** @import {History as Columns, Model} from "./types.js" */

import { heard } from "./ages.js";
import uPlot from "./uplot.js";
import { element, framed, one, table, write } from "./dom.js";
import { clockTime, count, duration, percent, rate, seconds } from "./units.js";

/** @type {any} */
const Plotter = uPlot;
const HOURS = [1, 6, 24];
const AGAIN_S = 30;
const HEIGHT_PX = 130;
const TICKS_S = [60, 300, 600, 1800, 3600, 7200, 10800, 21600];

/** @typedef {any} Chart a uPlot, which comes without types */
/**
 * @typedef {object} Plot
 * @property {string} title
 * @property {(keyof Columns)[]} columns
 * @property {string[]} names of the series
 * @property {(x: number|null|undefined) => string|null} text with its unit
 * @property {number} least the scale reaches up to this at least
 * @property {boolean} [share] from 0 to 1
 */
/** @type {Plot[]} */
const PLOTS = [
  {
    title: "Tokens per second",
    columns: ["tokens_per_s", "served_tokens_per_s"],
    names: ["a new session, predicted", "all sessions"],
    text: rate,
    least: 1,
  },
  { title: "Layers covered", columns: ["covered_share"], names: ["covered"], text: percent, least: 1, share: true },
  { title: "Servers", columns: ["servers"], names: ["serving"], text: count, least: 3 },
  {
    title: "Time of a step",
    columns: ["step_p50_s", "step_p99_s"],
    names: ["median", "p99"],
    text: seconds,
    least: 0.01,
  },
];

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** @param {Plot} plot @param {number} width @param {(at: number|null|undefined) => void} pointed */
function options(plot, width, pointed) {
  const axis = {
    stroke: () => colour("--quiet"),
    grid: { stroke: () => colour("--line"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const strokes = ["--line-a", "--line-b"];
  return {
    width,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { sync: { key: "history" }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      y: {
        range: (/** @type {Chart} */ _, /** @type {number|null} */ low, /** @type {number|null} */ high) => [
          0,
          plot.share ? 1 : Math.max((high ?? 0) * 1.1, plot.least),
        ],
      },
    },
    axes: [
      {
        ...axis,
        space: 60,
        size: 26,
        incrs: TICKS_S,
        values: (/** @type {Chart} */ _, /** @type {number[]} */ ticks) => ticks.map(clockTime),
      },
      {
        ...axis,
        size: 58,
        space: 34,
        values: (/** @type {Chart} */ _, /** @type {number[]} */ ticks) =>
          ticks.map((tick) => plot.text(tick)?.replace(" tokens/s", "") ?? ""),
      },
    ],
    series: [
      {},
      ...plot.columns.map((_, i) => ({
        stroke: () => colour(strokes[i]),
        width: 1.5,
        dash: i ? [5, 4] : [],
        points: { size: 4 },
        spanGaps: false,
      })),
    ],
    hooks: { setCursor: [(/** @type {Chart} */ it) => pointed(it.cursor.idx)] },
  };
}

class Figure {
  /** @param {Plot} plot */
  constructor(plot) {
    this._plot = plot;
    this._now = element("span", "note");
    this._place = element("div", "plot");
    this._place.setAttribute("aria-hidden", "true");
    const names = plot.names.length > 1 ? plot.names.map((name, i) => element("span", `key series${i}`, name)) : [];
    this.root = element(
      "figure",
      "",
      element("figcaption", "", element("b", "", plot.title), " ", ...names, this._now),
      this._place,
    );
    /** @type {Chart|null} */
    this._chart = null;
    /** @type {Columns|null} */
    this._data = null;
  }

  /** @param {Columns} data */
  update(data) {
    this._data = data;
    const series = [data.at, ...this._plot.columns.map((column) => /** @type {(number|null)[]} */ (data[column]))];
    if (this._chart) this._chart.setData(series);
    else if (this._place.clientWidth)
      this._chart = new Plotter(
        options(this._plot, this._place.clientWidth, (i) => this._tell(i)),
        series,
        this._place,
      );
    this._tell(null);
  }

  /** @param {number} width */
  fit(width) {
    if (this._chart && this._chart.width !== width) this._chart.setSize({ width, height: HEIGHT_PX });
  }

  get drawn() {
    return this._chart !== null;
  }

  redraw() {
    this._chart?.redraw(false, true);
  }

  /** @param {number|null|undefined} i the row pointed at; otherwise the newest */
  _tell(i) {
    const data = this._data;
    if (!data || !data.at.length) return write(this._now, "no figures yet");
    const at = i ?? data.at.length - 1;
    const columns = this._plot.columns.map((column) => /** @type {(number|null)[]} */ (data[column]));
    const texts = columns.map((column) => this._plot.text(column[at]) ?? "–");
    const newest = i === null || i === undefined;
    const range = newest && columns.length === 1 ? this._range(columns[0]) : "";
    write(this._now, `${newest ? "latest, " : ""}at ${clockTime(data.at[at])}: ${texts.join(" / ")}${range}`);
  }

  /** @param {(number|null)[]} column */
  _range(column) {
    const known = column.filter((x) => x !== null);
    return known.length > 1
      ? `, between ${this._plot.text(Math.min(...known))} and ${this._plot.text(Math.max(...known))}`
      : "";
  }
}

/** @param {Columns} data how much of the past it is, in words */
function kept({ at, step_s }) {
  const each = `a value every ${duration(step_s)}; a gap is time without figures`;
  if (at.length > 1) return `${duration(at[at.length - 1] - at[0])} are kept, ${each}.`;
  if (at.length) return `Kept since ${clockTime(at[0])}, ${each}.`;
  return "No history yet: the first figures come within a minute.";
}

export class History {
  constructor() {
    this._figures = PLOTS.map((plot) => new Figure(plot));
    this._hours = 24;
    this._model = "";
    this._asked_ms = -Infinity;
    this._note = element("p", "note");
    this._table = framed(element("table"), "Table of history");
    const grid = element("div", "plots", ...this._figures.map((figure) => figure.root));
    const details = element("details", "", element("summary", "", "History as a table"), this._table);
    details.addEventListener("toggle", () => this._fillTable(details.open));
    this._details = details;
    one("history").append(this._buttons(), this._note, grid, details);
    new ResizeObserver(() => this._fit()).observe(grid);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this._figures.forEach((figure) => figure.redraw()),
    );
  }

  /** @param {Model} model */
  show(model) {
    const again_ms = 1000 * AGAIN_S;
    if (model.model === this._model && performance.now() - this._asked_ms < again_ms) return;
    this._model = model.model;
    void this._load();
  }

  _buttons() {
    const group = element("div", "tools");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "How far back");
    for (const hours of HOURS) {
      const button = element("button", "small", `${hours} h`);
      button.type = "button";
      button.setAttribute("aria-pressed", String(hours === this._hours));
      button.addEventListener("click", () => {
        this._hours = hours;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        void this._load();
      });
      group.append(button);
    }
    return group;
  }

  async _load() {
    this._asked_ms = performance.now();
    const query = new URLSearchParams({ model: this._model, hours: String(this._hours) });
    const asked = query.toString();
    this._asked = asked;
    try {
      const response = await fetch(`api/v1/history?${query}`);
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      heard(Date.parse(response.headers.get("date") ?? "") / 1000 || -Infinity);
      const data = await response.json();
      if (asked === this._asked) this._show(data);
    } catch (error) {
      write(this._note, `The history cannot be had: ${/** @type {Error} */ (error).message}.`);
    }
  }

  /** @param {Columns} data */
  _show(data) {
    this._data = data;
    write(this._note, kept(data));
    for (const figure of this._figures) figure.update(data);
    this._fillTable(this._details.open);
  }

  _fit() {
    for (const figure of this._figures) {
      const width = figure.root.clientWidth;
      if (width) figure.fit(width);
    }
    if (this._data && !this._drawn()) this._show(this._data);
  }

  _drawn() {
    return this._figures.every((figure) => figure.drawn);
  }

  /** @param {boolean} open */
  _fillTable(open) {
    const data = this._data;
    if (!open || !data) return;
    const every = Math.max(1, Math.ceil(data.at.length / 48));
    const rows = [];
    for (let i = data.at.length - 1; i >= 0; i -= every) {
      const cells = PLOTS.flatMap((plot) =>
        plot.columns.map((column) => plot.text(/** @type {(number|null)[]} */ (data[column])[i]) ?? "–"),
      );
      rows.push([
        new Date(data.at[i] * 1000).toLocaleString("en-GB", { weekday: "short", hour: "2-digit", minute: "2-digit" }),
        ...cells,
      ]);
    }
    const heads = [
      "Time",
      ...PLOTS.flatMap((plot) =>
        plot.names.map((name) => (plot.names.length > 1 ? `${plot.title}, ${name}` : plot.title)),
      ),
    ];
    this._table.replaceChildren(table("History", heads, rows));
  }
}
