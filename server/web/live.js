// The tab "Live": the server's figures, asked for every second while somebody looks.

import { call } from "./api.js";
import { element, make } from "./dom.js";
import { bytes, grown, milliseconds, percent, percentile, total } from "./figures.js";
import { number, t } from "./language.js";
import { shortName } from "./models.js";

const EVERY = 1000; // milliseconds
const KEPT = 120; // answers
const WINDOW = 30; // answers that rates and percentiles are of
const SVG = "http://www.w3.org/2000/svg";

// Name, value for the chart, shown text, text below it, and whether the card is shown.
const CARDS = [
  [t("Running"), (now) => total(now, "running"), String, (now) => t("{} waiting", total(now, "waiting"))],
  [t("Tokens a second"), rate, (value) => value.toFixed(1), (now) => t("{} since the start", number(now.generation_tokens))],
  [t("First token, median"), latency("time_to_first_token", 0.5), milliseconds, tail("time_to_first_token")],
  [t("Between tokens, median"), latency("inter_token_latency", 0.5), milliseconds, tail("inter_token_latency")],
  [t("KV cache in use"), (now) => Math.max(...now.models.map((model) => model.kv_usage)), percent, (now) => t("of {} tokens", number(total(now, "kv_tokens")))],
  [t("Prefix hits"), hits, percent, () => t("of prompt tokens")],
  [t("Tokens a step"), aStep, (value) => (value === null ? "–" : value.toFixed(2)), () => t("where drafts were verified"), drafts],
  [t("Memory"), (now) => Object.values(now.memory).reduce((sum, each) => sum + each, 0), bytes, shares],
];

let answers = []; // [time, answer], the oldest first
let timer = null;

function rate(now, before, seconds) {
  return seconds ? (now.generation_tokens - before.generation_tokens) / seconds : 0;
}

function latency(name, share) {
  return (now, before) => percentile(now[name], before?.[name], share);
}

function tail(name) {
  const at = (share) => (now, before) => milliseconds(latency(name, share)(now, before));
  return (now, before) => `p95 ${at(0.95)(now, before)}, p99 ${at(0.99)(now, before)}`;
}

function hits(now, before) {
  const asked = grown(now, before, "prefix_queries");
  return asked ? grown(now, before, "prefix_hits") / asked : null;
}

function drafts(now) {
  return total(now, "num_drafts") > 0;
}

function aStep(now, before) {
  const verified = grown(now, before, "num_drafts");
  return verified ? 1 + grown(now, before, "num_accepted_tokens") / verified : null;
}

function shares(now) {
  return Object.entries(now.memory).map(([role, size]) => `${role} ${bytes(size)}`).join(", ");
}

// A line through the values; those that are missing count as 0.
function sparkline(values) {
  const most = Math.max(...values, 0) || 1;
  const points = values.map((value, at) => `${KEPT - values.length + at},${29 - (28 * (value ?? 0)) / most}`);
  const drawing = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(SVG, "polyline");
  for (const [name, value] of [["viewBox", `0 0 ${KEPT} 30`], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) {
    drawing.setAttribute(name, value);
  }
  line.setAttribute("points", points.join(" "));
  drawing.append(line);
  return drawing;
}

// The value of a card at the time of one answer, compared with the one that is a window older.
function valueAt(value, at) {
  const [time, now] = answers[at];
  const [earlier, before] = answers[Math.max(at - WINDOW, 0)];
  return value(now, before === now ? null : before, (time - earlier) / 1000);
}

function draw() {
  const last = answers.length - 1;
  const [, now] = answers[last];
  const cards = CARDS.filter(([, , , , isShown]) => !isShown || isShown(now)).map(([name, value, written, below]) => {
    const values = answers.map((_, at) => valueAt(value, at));
    const small = make("small", {}, valueAt(below, last));
    return make("div", { className: "card" }, make("h2", {}, name), make("p", {}, written(values[last])), small, sparkline(values));
  });
  element("live-cards").replaceChildren(...cards);
  element("live-models").replaceChildren(...[...now.models, ...(now.speech ? [now.speech] : [])].map(row));
}

// A speech model has no engine, and none of an engine's figures.
function row(model) {
  const found = model.prefix_queries ? model.prefix_hits / model.prefix_queries : null;
  const cells = [
    shortName(model.model),
    model.ready ? t("ready") : t("starting"),
    model.running,
    model.waiting,
    percent(model.kv_usage ?? null),
    percent(found),
    model.preemptions,
    model.restarts ?? model.engine_restarts + model.worker_restarts,
    model.recovered,
  ];
  return make("tr", {}, ...cells.map((cell) => make("td", {}, String(cell ?? "–"))));
}

// A screen reader reads out changes only.
function tell(text) {
  const note = element("live-note");
  if (note.textContent !== text) note.textContent = text;
}

async function ask() {
  const mine = timer;
  let wait = EVERY;
  try {
    const now = await (await call("v1/stats")).json();
    if (mine !== timer) return;
    answers = [...answers, [performance.now(), now]].slice(-KEPT);
    draw();
    tell(t("Rates and percentiles are of the last half minute."));
  } catch (error) {
    if (mine !== timer) return;
    tell(t("No figures: {}", error.message));
    if (error.status) wait = 5 * EVERY;
  }
  timer = setTimeout(ask, wait);
}

// Begins or ends to ask.
export function showLive(shown) {
  clearTimeout(timer);
  timer = null;
  if (!shown) return;
  answers = [];
  timer = setTimeout(ask, 0);
}
