// The tab "Voice": a realtime session, by microphone or from a file.

import { Call, canCall } from "./call.js";
import { Captions } from "./captions.js";
import { element } from "./dom.js";
import { t } from "./language.js";
import { EventLog } from "./log.js";
import { Session } from "./session.js";
import { Player, fromBase64, levelOf, microphone, recording } from "./sound.js";
import { Stopwatch } from "./stopwatch.js";
import { Trace } from "./trace.js";

const captions = new Captions(element("voice-messages"));
const log = new EventLog({
  list: element("voice-log-list"),
  count: element("voice-log-count"),
  withAudio: element("voice-log-audio"),
  filter: element("voice-log-filter"),
  save: element("voice-log-save"),
});

const stopwatch = new Stopwatch();
const trace = new Trace(element("voice-trace"));
let session = null;
let source = null;
let opening = 0; // counts sessions that begin or end: results for an earlier one are closed
let closed = 0; // its value when the last session ended
let player = null;
let dropped = new Set(); // items whose audio is not to be played any more
let responding = false;
let silence = null; // milliseconds that end a turn, where they are fixed
let muted = false;
let calling = false; // by WebRTC: the server knows what was played, and truncates answers itself
let sounding = false; // something is played in a call
let held = null; // when the button to talk was pressed, in milliseconds of sound that have been sent
let hushed = Promise.resolve(); // resolves once the server knows about the last interruption

const WAITS = [500, 1000, 2000, 4000, 8000, 8000, 8000]; // milliseconds before each try to connect again
const LEAST_MS = 100; // of sound that is taken for something said
const SETTINGS = ["voice", "transcription", "modality", "turns", "silence", "instructions"].map((name) => `voice-${name}`);

function state(text) {
  element("voice-state").textContent = text;
}

function settings() {
  const turns = element("voice-turns").value;
  const transcription = element("voice-transcription").value;
  const voice = element("voice-voice").value;
  const format = { type: "audio/pcm", rate: 24000 };
  silence = turns === "server_vad" ? Number(element("voice-silence").value) || 500 : null;
  return {
    type: "realtime",
    output_modalities: [element("voice-modality").value],
    instructions: element("voice-instructions").value,
    audio: {
      input: {
        format,
        transcription: transcription ? { model: transcription } : null,
        turn_detection: detection(turns),
      },
      output: { format, ...(voice ? { voice } : {}) },
    },
  };
}

function detection(turns) {
  if (turns === "push") return null;
  return turns === "server_vad" ? { type: turns, silence_duration_ms: silence } : { type: turns };
}

// What has been changed in a session counts from here on. It cannot have another chat model, nor another voice once one
// has been heard.
function change() {
  session?.send({ type: "session.update", session: settings() });
}

function fix(fixed) {
  element("voice-model").disabled = fixed;
  if (!fixed) element("voice-voice").disabled = false;
}

// Stops playback, and tells the server how much of the answer was heard.
function hush() {
  hushed = hushed.then(silenceNow);
}

async function silenceNow() {
  if (sounding) session?.send({ type: "output_audio_buffer.clear" });
  if (!player?.playing) return;
  const { item, unfinished, ms } = await player.stop();
  if (item && unfinished) truncate(item, ms);
}

// Truncates the answer to its heard part: the server knows the words.
function truncate(item, ms) {
  if (dropped.has(item)) return;
  session?.send({ type: "conversation.item.truncate", item_id: item, content_index: 0, audio_end_ms: ms });
  drop(item);
}

// Shows the heard part of an answer, and no later text.
function drop(item) {
  dropped.add(item);
  captions.of(item, "assistant").classList.add("cut");
  session?.send({ type: "conversation.item.retrieve", item_id: item });
  stopwatch.silent();
}

const HANDLERS = {
  "input_audio_buffer.speech_started": ({ item_id, audio_start_ms }) => {
    state(t("Listening …"));
    trace.began(audio_start_ms);
    captions.of(item_id, "user");
    stopwatch.asked(null);
    if (player?.playing || sounding) stopwatch.interrupted();
    if (player?.playing) hush();
  },
  "input_audio_buffer.speech_stopped": ({ audio_end_ms }) => {
    trace.ended(audio_end_ms);
    // the time includes the silence that ended the turn
    stopwatch.asked(silence === null ? session.voicedUntil(audio_end_ms) : session.timeOf(audio_end_ms - silence));
    state(t("Thinking …"));
  },
  "input_audio_buffer.committed": ({ item_id }) => captions.of(item_id, "user"),
  "conversation.item.input_audio_transcription.delta": ({ item_id, delta }) => captions.write(item_id, "user", delta),
  "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) =>
    captions.write(item_id, "user", transcript.trim() || t("(nothing)"), { whole: true, done: true }),
  "conversation.item.input_audio_transcription.failed": ({ item_id, error }) =>
    captions.write(item_id, "user", t("(not understood: {})", error.message), { whole: true, done: true }),
  "response.created": () => {
    responding = true;
    element("voice-quiet").disabled = false;
  },
  "response.output_item.added": ({ item }) => {
    if (item.type === "message") captions.of(item.id, "assistant");
  },
  "response.output_audio_transcript.delta": ({ item_id, delta }) => words(item_id, delta),
  "response.output_text.delta": ({ item_id, delta }) => words(item_id, delta),
  "response.output_audio.delta": ({ item_id, delta }) => {
    stopwatch.sounded();
    if (dropped.has(item_id)) return;
    player.push(item_id, fromBase64(delta));
    element("voice-voice").disabled = true;
  },
  "output_audio_buffer.started": () => {
    stopwatch.sounded();
    sounding = element("voice-voice").disabled = true;
    state(t("Speaking …"));
  },
  "output_audio_buffer.stopped": quieted,
  "output_audio_buffer.cleared": () => {
    stopwatch.silent();
    quieted();
  },
  "conversation.item.truncated": ({ item_id }) => {
    if (calling && !dropped.has(item_id)) drop(item_id);
  },
  "conversation.item.retrieved": ({ item }) => {
    if (!dropped.has(item.id)) return;
    captions.write(item.id, "assistant", item.content[0]?.transcript ?? "", { whole: true, done: true });
  },
  "response.done": async ({ response }) => {
    responding = false;
    element("voice-quiet").disabled = !(player?.playing || sounding);
    stopwatch.answered();
    captions.settle(response.output.map(({ id }) => id));
    const last = response.output.findLast(({ type }) => type === "message")?.id;
    if (response.status_details?.reason === "max_output_tokens") captions.mark(last, "limited");
    if (response.status === "cancelled") {
      captions.mark(last, "cut");
      const opened = session;
      await hushed;
      // audio that was played before the rest arrived
      const spoken = response.output.filter(({ content }) => content?.[0]?.type === "output_audio");
      if (session === opened && !calling) for (const { id } of spoken) truncate(id, player.heard(id));
    }
    if (response.status === "failed") captions.complain(response.status_details?.error?.message ?? t("The answer failed."));
    if (!(player?.playing || sounding)) state(t("Listening …"));
  },
  error: ({ error }) => {
    if (error.code !== "shutting_down") captions.complain(error.message);
  },
};

function quieted() {
  sounding = false;
  if (responding) return;
  element("voice-quiet").disabled = true;
  state(t("Listening …"));
}

function words(item, delta) {
  if (dropped.has(item)) return;
  stopwatch.worded();
  captions.write(item, "assistant", delta);
}

function heard(piece) {
  const quiet = muted ? new Int16Array(piece.length) : piece; // audio continues while muted, so that time advances
  const level = levelOf(quiet);
  element("voice-level").value = level;
  if (!session || (pushes() && held === null)) return;
  session.hear(quiet, level);
  trace.show(session.times);
}

function pushes() {
  return element("voice-turns").value === "push";
}

// Shows the buttons' current actions.
function showButtons() {
  const on = element("voice").classList.contains("on");
  const speaks = on && source?.muting;
  const start = element("voice-start");
  start.disabled = opening > closed && !speaks;
  const turn = muted ? t("Unmute microphone") : t("Mute microphone");
  start.textContent = speaks ? turn : t("Start microphone");
  if (speaks) start.setAttribute("aria-pressed", String(!muted));
  else start.removeAttribute("aria-pressed");
  element("voice-hold").hidden = !(on && pushes());
  element("voice-file-button").disabled = opening > closed;
}

function press() {
  if (!session || held !== null || !pushes()) return;
  if (responding) session.send({ type: "response.cancel" });
  if (calling) session.send({ type: "input_audio_buffer.clear" }); // a call also sent the audio before
  hush();
  held = session.sentMs;
  element("voice-hold").classList.add("held");
  state(t("Listening …"));
}

function release() {
  if (held === null) return;
  const said = (session?.sentMs ?? 0) - held;
  held = null;
  element("voice-hold").classList.remove("held");
  if (said < LEAST_MS) {
    session?.send({ type: "input_audio_buffer.clear" });
    return;
  }
  stopwatch.asked(performance.now());
  session.send({ type: "input_audio_buffer.commit" });
  session.send({ type: "response.create" });
  state(t("Thinking …"));
}

// Resolves with a session whose events are shown, until another takes its place.
async function connect() {
  let opened = null; // later events of a session that was ended here are ignored
  const model = element("voice-model").value;
  const handlers = {
    onEvent: (event) => {
      if (session !== opened) return;
      log.add(event, false);
      HANDLERS[event.type]?.(event);
    },
    onSent: (event) => log.add(event, true),
    onClose: (why, code) => {
      if (opened === null || session !== opened) return;
      if (code === 1000 || code === 1008) {
        if (why) captions.complain(t("The session has ended: {}", why));
        end();
      } else resume(why);
    },
  };
  opened = await (calling ? Call.open(model, handlers, source.stream) : Session.open(model, handlers));
  return opened;
}

// Connects again after a lost connection, and sends the conversation so far.
async function resume(why) {
  const mine = opening;
  session.close();
  session = held = null;
  responding = sounding = false;
  player?.stop();
  element("voice-hold").classList.remove("held");
  state(t("Connecting again …"));
  for (const wait of WAITS) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    if (mine !== opening) return;
    const opened = await connect().catch(() => null);
    if (mine !== opening) opened?.close();
    if (mine !== opening) return;
    if (!opened) continue;
    session = opened;
    trace.clear();
    change();
    captions.settle();
    for (const item of captions.items()) session.send({ type: "conversation.item.create", item });
    state(t("Listening …"));
    return;
  }
  captions.complain(t("The session has ended: {}", why));
  end();
}

// `live`: it opens a microphone, which a call takes along.
async function begin(open, live = false) {
  end();
  calling = live && canCall && !pushes();
  const mine = ++opening;
  const isMine = (opened) => {
    if (mine !== opening) opened.close();
    return mine === opening;
  };
  showButtons();
  state(t("Connecting …"));
  log.clear();
  trace.clear();
  captions.clear();
  dropped = new Set();
  stopwatch.reset();
  try {
    const speaker = await Player.open({
      onBegan: () => state(t("Speaking …")),
      onDrained: () => {
        if (!responding) {
          element("voice-quiet").disabled = true;
          state(t("Listening …"));
        }
      },
    });
    if (!isMine(speaker)) return;
    player = speaker;
    const openSource = async () => {
      const opened = await open();
      if (isMine(opened)) source = opened;
      return mine === opening;
    };
    if (calling && !(await openSource())) return;
    const opened = await connect();
    if (!isMine(opened)) return;
    session = opened;
    change();
    if (!calling && !(await openSource())) return;
    state(t("Listening …"));
    for (const id of ["voice-end", "voice-input", "voice-send"]) element(id).disabled = false;
    element("voice").classList.add("on");
    fix(true);
    showButtons();
    offerDevices();
  } catch (error) {
    if (mine !== opening) return;
    captions.complain(error.message);
    end();
  }
}

function end() {
  closed = ++opening;
  muted = false;
  held = null;
  const [oldSource, oldSession, oldPlayer] = [source, session, player];
  source = session = player = null;
  responding = sounding = false;
  oldSource?.close();
  oldSession?.close();
  oldPlayer?.close();
  for (const id of ["voice-end", "voice-quiet", "voice-input", "voice-send"]) element(id).disabled = true;
  captions.settle();
  element("voice-level").value = 0;
  element("voice").classList.remove("on");
  element("voice-hold").classList.remove("held");
  showButtons();
  fix(false);
  state(t("Not connected"));
}

// The microphones to choose from; a browser names them once it was allowed to open one.
async function offerDevices() {
  const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  const found = devices.filter(({ kind, deviceId, label }) => kind === "audioinput" && label && deviceId !== "default");
  const list = element("voice-device");
  const before = list.value;
  list.replaceChildren(new Option(t("the default"), ""), ...found.map(({ deviceId, label }) => new Option(label, deviceId)));
  if (found.some(({ deviceId }) => deviceId === before)) list.value = before;
}

// Whoever goes to another tab is not listened to there.
export function leaveVoice() {
  if (opening > closed) end();
}

export function startVoice() {
  offerDevices();
  navigator.mediaDevices?.addEventListener("devicechange", offerDevices);
  element("voice-messages").dataset.empty = t("Start the microphone and say something, or play a recording.");
  element("voice-start").addEventListener("click", () => {
    if (opening === closed) begin(() => microphone(heard, element("voice-device").value), true);
    else source?.mute(muted = !muted);
    showButtons();
  });
  const hold = element("voice-hold");
  hold.addEventListener("pointerdown", (event) => {
    hold.setPointerCapture(event.pointerId);
    press();
  });
  for (const name of ["pointerup", "pointercancel", "blur"]) hold.addEventListener(name, release);
  for (const [name, act] of [["keydown", press], ["keyup", release]]) {
    hold.addEventListener(name, (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      act();
    });
  }
  element("voice-end").addEventListener("click", end);
  element("voice-file-button").addEventListener("click", () => element("voice-file").click());
  element("voice-file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    target.value = ""; // the same file may be played again
    if (file) begin(() => recording(file, heard));
  });
  element("voice-quiet").addEventListener("click", () => {
    if (responding) session.send({ type: "response.cancel" });
    hush();
  });
  element("voice-turns").addEventListener("change", ({ target }) => {
    element("voice-silence").disabled = target.value !== "server_vad";
    release();
    showButtons();
  });
  for (const id of SETTINGS) element(id).addEventListener("change", change);
  element("voice-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = element("voice-input").value.trim();
    if (!text || !session) return;
    element("voice-input").value = "";
    const id = `item_${crypto.getRandomValues(new Uint32Array(3)).join("")}`;
    captions.write(id, "user", text, { done: true });
    const content = [{ type: "input_text", text }];
    session.send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content } });
    stopwatch.asked(performance.now());
    session.send({ type: "response.create" });
  });
}
