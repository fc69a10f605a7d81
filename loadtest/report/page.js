// Says what lies under the pointer. The page needs none of it to be read.
"use strict";
const format = (v) => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en-US") : String(+v.toPrecision(3));
const scale = (text) => {
  const [ends, label, ...names] = text.split("|");
  const [low, high, start, end, log] = ends.split(" ").map(Number);
  const value = (pixel) => {
    const share = (pixel - start) / (end - start);
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
  const show = (pixel) => names.length ? names[Math.round(value(pixel))] ?? "" : format(value(pixel));
  return { label, show };
};
for (const svg of document.querySelectorAll("figure svg")) {
  const x = scale(svg.dataset.x), y = scale(svg.dataset.y);
  const marks = [...svg.querySelectorAll(".mark")].map((mark) => ({
    label: mark.dataset.label,
    points: [...mark.querySelectorAll(".line,.dots,.cross")].flatMap((path) =>
      [...path.getAttribute("d").matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map((m) => [+m[1], +m[2]])),
    loose: mark.querySelector(".dots,.cross") !== null,
  })).filter((mark) => mark.points.length);
  const tip = document.createElement("div");
  tip.className = "tip";
  svg.parentElement.append(tip);
  svg.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
    const px = (event.clientX - box.left) * width / box.width, py = (event.clientY - box.top) * width / box.width;
    let best = null;
    const near = marks.map((mark) => {
      const distance = ([a, b]) => Math.abs(a - px) + (mark.loose ? 1 : .01) * Math.abs(b - py);
      const point = mark.points.reduce((a, b) => distance(b) < distance(a) ? b : a);
      if (best === null || Math.abs(point[0] - px) < Math.abs(best - px)) best = point[0];
      return { mark, point };
    }).filter(({ point }) => Math.abs(point[0] - px) < 14);
    if (!near.length) { tip.style.display = "none"; return; }
    const lines = near.map(({ mark, point }) => `${mark.label ? mark.label + "  " : ""}${y.show(point[1])}`);
    tip.textContent = [`${x.show(best)} ${x.label}`, ...lines].join("\n");
    tip.style.display = "block";
    const frame = svg.parentElement.getBoundingClientRect();
    const left = event.clientX - frame.left;
    tip.style.left = `${left > frame.width / 2 ? left - tip.offsetWidth - 12 : left + 12}px`;
    tip.style.top = `${event.clientY - frame.top - 10}px`;
  });
}
