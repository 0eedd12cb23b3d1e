// Three small charts of the last ten minutes: calls, the time of the upstream, the context saved.

import { counted, drawn, element, number, size } from "./draw.js";

const WIDE = 600;
const HIGH = 40;

function chart(label, marks) {
  const picture = drawn("svg",
    { viewBox: `0 0 ${WIDE} ${HIGH + 2}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
    drawn("line", { x1: 0, x2: WIDE, y1: HIGH + 0.5, y2: HIGH + 0.5, class: "axis" }), ...marks);
  return element("figure", { title: "The last ten minutes" }, element("figcaption", {}, label), picture);
}

function bars(steps) {
  const most = Math.max(1, ...steps.map((step) => step.calls + step.refused));
  const width = WIDE / steps.length;
  const paths = { calls: "", failures: "", refusals: "" };
  steps.forEach((step, at) => {
    let top = HIGH;
    for (const [kind, many] of [["calls", step.calls - step.failed], ["failures", step.failed],
      ["refusals", step.refused]]) {
      const height = (many / most) * (HIGH - 2);
      if (!height) continue;
      top -= height;
      paths[kind] += `M${(at * width + 1).toFixed(1)} ${top.toFixed(1)}h${(width - 2).toFixed(1)}v${height.toFixed(1)}h-${(width - 2).toFixed(1)}z`;
    }
  });
  const sum = (kind) => steps.reduce((all, step) => all + step[kind], 0);
  const label = `Last ten minutes: ${counted(sum("calls"), "call")}, ${number(sum("failed"))} failed, `
    + `${number(sum("refused"))} refused`;
  return chart(label, Object.entries(paths).map(([kind, d]) => drawn("path", { class: kind, d })));
}

function latency(steps) {
  const times = steps.map((step) => step.p50_ms);
  const most = Math.max(1, ...times.filter((time) => time !== null));
  const width = WIDE / steps.length;
  let [line, dots, isOn] = ["", "", false];
  times.forEach((time, at) => {
    if (time === null) { isOn = false; return; }
    const place = `${((at + 0.5) * width).toFixed(1)} ${(HIGH - 2 - (time / most) * (HIGH - 6)).toFixed(1)}`;
    line += `${isOn ? "L" : "M"}${place}`;
    dots += `M${place}h.01`;
    isOn = true;
  });
  return chart(`Median time of the upstream, at most ${most.toFixed(1)} ms`,
    [drawn("path", { class: "time", d: line }), drawn("path", { class: "dot", d: dots })]);
}

function savings(steps) {
  let sum = 0;
  const sums = steps.map((step) => (sum += step.saved_bytes));
  const width = WIDE / steps.length;
  const corners = sums.map((bytes, at) =>
    `${((at + 1) * width).toFixed(1)},${(HIGH - (bytes / Math.max(1, sum)) * (HIGH - 4)).toFixed(1)}`);
  const area = drawn("polygon", { points: `0,${HIGH} ${corners.join(" ")} ${WIDE},${HIGH}`, class: "savings" });
  return chart(`Context saved: ${size(sum)}, about ${number(Math.round(sum / 4))} tokens`, [area]);
}

// The steps of several processes are those of one: they count in the same steps of time.
function together(all) {
  return all[0].map((first, at) => {
    const steps = all.map((one) => one[at]);
    const sum = (name) => steps.reduce((total, step) => total + step[name], 0);
    const times = steps.map((step) => step.p50_ms).filter((time) => time !== null);
    return { calls: sum("calls"), failed: sum("failed"), refused: sum("refused"),
      saved_bytes: sum("saved_bytes"), p50_ms: times.length ? Math.max(...times) : null };
  });
}

export function charts(processes) {
  const all = processes.map((one) => one.state?.steps).filter(Boolean);
  if (!all.length) return [];
  const steps = together(all);
  return [bars(steps), latency(steps), savings(steps)];
}
