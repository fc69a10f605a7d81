// Pictures, sounds, videos and documents that go with the next message: chosen, pasted or dropped.

import { t } from "./language.js";

// Types for the file picker by kind, and the page's name of each kind.
const KINDS = {
  image: ["image/*", t("pictures")],
  audio: ["audio/*", t("sounds")],
  video: ["video/*", t("videos")],
  file: ["application/pdf,text/*", t("documents")],
};

function kindOf(file) {
  const kind = file.type.split("/")[0];
  if (["image", "audio", "video"].includes(kind)) return kind;
  return file.type === "application/pdf" || kind === "text" ? "file" : null;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(t("{} cannot be read.", file.name)));
    reader.readAsDataURL(file);
  });
}

// The content part that carries a file.
async function part({ kind, file }) {
  const url = await dataUrl(file);
  if (kind === "file") return { type: "file", file: { filename: file.name, file_data: url } };
  return { type: `${kind}_url`, [`${kind}_url`]: { url } };
}

// How a file is shown, before it is sent and in the conversation.
function preview({ kind, file, address }) {
  if (kind === "file") {
    const name = document.createElement("span");
    name.textContent = file.name;
    return name;
  }
  const shown = document.createElement(kind === "image" ? "img" : kind);
  shown.src = address;
  if (kind === "image") shown.alt = file.name;
  else shown.controls = true;
  return shown;
}

export class Attachments {
  // `list` shows the attachments, `onRefused(message)` is called for files of other kinds.
  constructor(list, onRefused) {
    this.list = list;
    this.onRefused = onRefused;
    this.attached = [];
    this.kinds = Object.keys(KINDS);
  }

  // Allows only attachments of these `modalities`. Returns the types for the file picker.
  limit(modalities) {
    this.kinds = Object.keys(KINDS).filter((kind) => modalities.includes(kind));
    return this.kinds.map((kind) => KINDS[kind][0]).join(",");
  }

  get empty() {
    return !this.attached.length;
  }

  add(files) {
    for (const file of files) {
      const kind = kindOf(file);
      if (!kind) {
        this.onRefused(t("{} is neither a picture, a sound, a video, a PDF nor a text.", file.name || "?"));
        continue;
      }
      if (!this.kinds.includes(kind)) {
        this.onRefused(t("{}: the model takes no {}.", file.name || "?", KINDS[kind][1]));
        continue;
      }
      this.attached.push({ kind, file, address: URL.createObjectURL(file) });
    }
    this.draw();
  }

  remove(attachment) {
    this.attached = this.attached.filter((each) => each !== attachment);
    URL.revokeObjectURL(attachment.address);
    this.draw();
  }

  // Takes all attachments: their previews, and, once read, their content parts.
  take() {
    const taken = this.attached;
    this.attached = [];
    this.draw();
    return { taken, shown: taken.map(preview), parts: () => Promise.all(taken.map(part)) };
  }

  // Attaches taken ones again.
  giveBack(taken) {
    this.attached = [...taken, ...this.attached];
    this.draw();
  }

  draw() {
    this.list.replaceChildren(
      ...this.attached.map((attachment) => {
        const item = document.createElement("li");
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = "×";
        button.setAttribute("aria-label", t("Remove {}", attachment.file.name));
        button.addEventListener("click", () => this.remove(attachment));
        item.append(preview(attachment), button);
        return item;
      }),
    );
    this.list.hidden = this.empty;
  }
}

// What is dropped on `place`, or pasted into it, is attached.
export function acceptFiles(place, attachments) {
  place.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    place.classList.add("target");
  });
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) place.classList.remove("target");
  });
  place.addEventListener("drop", (event) => {
    place.classList.remove("target");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    attachments.add(event.dataTransfer.files);
  });
  place.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attachments.add(event.clipboardData.files);
  });
}
