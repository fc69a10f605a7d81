// The tab "More": transcription, speech, embeddings and ranking, each a form.

import { call } from "./api.js";
import { download, element, make } from "./dom.js";
import { t } from "./language.js";
import { offer } from "./models.js";

// Forms by name, and the kind of model that they need.
const FORMS = { transcribe: "transcription", speak: "speech", embed: "embedding", rank: "embedding" };
const EXTENSIONS = { text: "txt", verbose_json: "txt", srt: "srt", vtt: "vtt" };

const value = (id) => document.getElementById(id).value.trim();

function linesOf(id) {
  return value(id).split("\n").filter((line) => line.trim());
}

// Says something in `note`; errors in another colour.
function tell(note, text, wrong = false) {
  note.textContent = text;
  note.classList.toggle("wrong", wrong);
}

// Runs `act` when a form is sent, one at a time; its error is shown in `note`.
function onSent(name, note, act) {
  const form = document.getElementById(name);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = form.querySelector("button.main");
    button.disabled = true;
    tell(note, "…");
    try {
      tell(note, (await act()) ?? "");
    } catch (error) {
      tell(note, error.message, true);
    }
    button.disabled = false;
  });
}

async function transcribe() {
  const [file] = element("transcribe-file").files;
  const format = value("transcribe-format");
  const body = new FormData();
  body.append("file", file);
  body.append("model", value("transcribe-model"));
  body.append("response_format", format);
  if (value("transcribe-language")) body.append("language", value("transcribe-language"));
  const response = await call("v1/audio/transcriptions", { body });
  const text = format === "verbose_json" ? segments(await response.json()) : await response.text();
  element("transcribe-save").disabled = false;
  element("transcribe-save").onclick = () =>
    download(`${file.name.replace(/\.[^.]*$/, "")}.${EXTENSIONS[format]}`, "text/plain", text);
  return text.trim() || t("(nothing was said)");
}

function segments({ segments: found, text }) {
  if (!found?.length) return text;
  return found.map(({ start, end, text: said }) => `${start.toFixed(2)}–${end.toFixed(2)} s  ${said.trim()}`).join("\n");
}

async function speak() {
  const began = performance.now();
  const body = { model: value("speak-model"), input: value("speak-text"), response_format: "wav" };
  if (value("speak-voice")) body.voice = value("speak-voice");
  if (value("speak-speed")) body.speed = Number(value("speak-speed"));
  const sound = await (await call("v1/audio/speech", { body })).blob();
  const player = element("speak-sound");
  URL.revokeObjectURL(player.src);
  player.src = URL.createObjectURL(sound);
  player.hidden = false;
  player.play().catch(() => {}); // a browser may want the reader to press play
  return t("{} s until the whole sound was here", ((performance.now() - began) / 1000).toFixed(2));
}

async function embed() {
  const lines = linesOf("embed-lines");
  const body = { model: value("embed-model"), input: lines };
  const { data, usage } = await (await call("v1/embeddings", { body })).json();
  const vectors = data.map(({ embedding }) => embedding);
  const head = make("tr", {}, make("td", {}), ...lines.map((_, at) => make("th", {}, String(at + 1))));
  const rows = lines.map((line, at) => {
    const cells = vectors.map((other) => make("td", {}, cosine(vectors[at], other).toFixed(3)));
    return make("tr", {}, make("th", { title: line }, `${at + 1}  ${line.slice(0, 40)}`), ...cells);
  });
  element("embed-table").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  return t("Cosines of vectors of {} numbers, from {} tokens", vectors[0].length, usage.prompt_tokens);
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, each, at) => sum + each * y[at], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

async function rank() {
  const documents = linesOf("rank-lines");
  const body = { model: value("rank-model"), query: value("rank-query"), documents };
  const { results } = await (await call("v1/rerank", { body })).json();
  const items = results.map(({ index, relevance_score }) => make("li", {}, make("b", {}, relevance_score.toFixed(3)), ` ${documents[index]}`));
  element("rank-list").replaceChildren(...items);
}

// Shows the forms with a model: `named(kind)` are those of a kind, `voices` the speech model's.
export function offerTools(named, voices) {
  for (const [name, kind] of Object.entries(FORMS)) {
    document.getElementById(name).hidden = !named(kind).length;
    offer(document.getElementById(`${name}-model`), named(kind));
  }
  element("tools-none").hidden = Object.values(FORMS).some((kind) => named(kind).length);
  element("speak-voice").replaceChildren(new Option(t("the default"), ""), ...voices.map(({ id, name }) => new Option(name ?? id, id)));
}

export function startTools() {
  onSent("transcribe", element("transcribe-text"), transcribe);
  onSent("speak", element("speak-note"), speak);
  onSent("embed", element("embed-note"), embed);
  onSent("rank", element("rank-note"), rank);
}
