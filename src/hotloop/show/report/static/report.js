"use strict";
(() => {
  // Counted so that a page which cannot work says so, and so that tests can see it.
  let problems = 0;
  const note = () => {
    problems += 1;
    if (document.body) document.body.dataset.problems = String(problems);
  };
  addEventListener("error", note);
  addEventListener("unhandledrejection", note);
  document.addEventListener("securitypolicyviolation", note);

  const byId = (id) => document.getElementById(id);

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function formatDuration(ns) {
    const digits = (x) => (x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2));
    if (ns === 0) return "0 ms";
    if (ns < 999.5) return `${Math.round(ns)} ns`;
    if (ns < 999.5e3) return `${digits(ns / 1e3)} µs`;
    if (ns < 999.5e6) return `${digits(ns / 1e6)} ms`;
    return `${digits(ns / 1e9)} s`;
  }

  function startTheme(redraw) {
    const button = byId("theme");
    const names = ["system", "light", "dark"];
    let chosen = 0;
    const apply = () => {
      if (names[chosen] === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = names[chosen];
      button.textContent = `Theme: ${names[chosen]}`;
      redraw();
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = (chosen + 1) % names.length;
      apply();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open])")];
      opened.forEach((d) => { d.open = true; });
      document.documentElement.dataset.theme = "light";
      redraw();
    });
    addEventListener("afterprint", () => {
      opened.forEach((d) => { d.open = false; });
      apply();
    });
  }

  function startActions(text) {
    const expand = byId("expand");
    const all = [...document.querySelectorAll("details")];
    expand.hidden = all.length === 0;
    expand.addEventListener("click", () => {
      const open = all.some((d) => !d.open);
      all.forEach((d) => { d.open = open; });
      expand.textContent = open ? "Close all details" : "Open all details";
    });
    const save = byId("save");
    save.hidden = false;
    save.addEventListener("click", () => {
      const link = element("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      link.download = "hotloop-report.json";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    if (!navigator.clipboard) return;
    document.querySelectorAll(".copyable").forEach((place) => {
      const button = element("button", "Copy");
      button.type = "button";
      button.setAttribute("aria-label", "Copy the command");
      button.addEventListener("click", () => {
        navigator.clipboard.writeText(place.querySelector("code").textContent).then(
          () => { button.textContent = "Copied"; },
          () => { button.textContent = "Select it by hand"; },
        );
      });
      place.append(button);
    });
  }

  // Steps of bucket i as text; the length of the last bucket is taken to be that of the one before.
  function stepsOf(first, i) {
    const length = i + 1 < first.length ? first[i + 1] - first[i] : i > 0 ? first[i] - first[i - 1] : 1;
    return length > 1 ? `steps ${first[i]} to ${first[i] + length - 1}` : `step ${first[i]}`;
  }

  function niceStep(span, count) {
    const raw = span / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    return power * [1, 2, 5, 10].find((m) => m * power >= raw);
  }

  function startCharts(report) {
    const timelines = report.timelines.filter((t) => t.first_step.length > 0);
    if (timelines.length === 0) return () => {};
    const phases = Object.keys(timelines[0].phase_ns);
    const hidden = new Set();
    const canvases = [byId("chart-time"), byId("chart-share")];
    const clip = byId("clip");
    let timeline = timelines[0];
    let cursor = timeline.first_step.length - 1;
    let chosen = false;
    let totals = [];
    let heights = [];

    const shown = () => phases.filter((p) => !hidden.has(p));

    function measure() {
      totals = timeline.first_step.map((_, i) => phases.reduce((sum, p) => sum + timeline.phase_ns[p][i], 0));
      heights = timeline.first_step.map((_, i) => shown().reduce((sum, p) => sum + timeline.phase_ns[p][i], 0));
    }

    // A few tall steps (checkpoints, validation) would flatten all others; cutting them is said on the axis.
    function ceiling() {
      const sorted = [...heights].sort((a, b) => a - b);
      const top = sorted[sorted.length - 1] || 1;
      const usual = sorted[Math.floor((sorted.length - 1) * 0.9)] || top;
      const tall = top > 2.5 * usual;
      byId("clip-label").hidden = !tall;
      return tall && clip.checked ? usual * 1.6 : top * 1.05;
    }

    function draw(canvas, asShare) {
      const box = canvas.getBoundingClientRect();
      if (box.width < 10) return;
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(box.width * ratio);
      canvas.height = Math.round(box.height * ratio);
      const c = canvas.getContext("2d");
      c.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const color = (name) => style.getPropertyValue(`--${name}`).trim();
      const left = 64, right = 12, top = 12, bottom = 26;
      const width = box.width - left - right, height = box.height - top - bottom;
      const count = timeline.first_step.length;
      const limit = asShare ? 1 : ceiling();
      const x = (i) => left + (i / count) * width;
      const y = (v) => top + height - (Math.min(v, limit) / limit) * height;
      c.font = "12px system-ui, sans-serif";
      c.textBaseline = "middle";

      const step = asShare ? 0.25 : niceStep(limit, 4);
      c.textAlign = "right";
      for (let v = 0; v <= limit * 1.0001; v += step) {
        c.strokeStyle = color("line");
        c.lineWidth = 1;
        c.beginPath();
        c.moveTo(left, Math.round(y(v)) + 0.5);
        c.lineTo(left + width, Math.round(y(v)) + 0.5);
        c.stroke();
        c.fillStyle = color("dim");
        c.fillText(asShare ? `${Math.round(v * 100)}%` : formatDuration(v), left - 8, y(v));
      }

      const gap = width / count > 5 ? 1 : 0;
      for (let i = 0; i < count; i += 1) {
        let base = 0;
        const x0 = x(i), w = Math.max(0.6, x(i + 1) - x0 - gap);
        for (const p of shown()) {
          const ns = timeline.phase_ns[p][i];
          const v = asShare ? (totals[i] ? ns / totals[i] : 0) : ns;
          if (v <= 0) continue;
          c.fillStyle = color(p);
          c.fillRect(x0, y(base + v), w, Math.max(0, y(base) - y(base + v)));
          base += v;
        }
        if (timeline.excluded_ratio[i] >= 0.5) {
          c.fillStyle = color("card");
          c.globalAlpha = 0.55;
          c.fillRect(x0, top, w, height);
          c.globalAlpha = 1;
        }
        if (!asShare && base > limit) {
          const middle = x0 + w / 2, half = Math.max(4, w / 2);
          c.fillStyle = color("text");
          c.beginPath();
          c.moveTo(middle, 2);
          c.lineTo(middle + half, 10);
          c.lineTo(middle - half, 10);
          c.fill();
        }
      }

      c.fillStyle = color("dim");
      c.textAlign = "center";
      const labels = Math.max(1, Math.min(8, Math.floor(width / 90), count));
      for (let i = 0; i < count; i += Math.ceil(count / labels)) {
        c.fillText(String(timeline.first_step[i]), Math.max(left + 8, x(i + 0.5)), top + height + 14);
      }
      c.textAlign = "right";
      c.fillText("step", left - 8, top + height + 14);

      if (!chosen) return;
      c.strokeStyle = color("text");
      c.lineWidth = 1.5;
      c.strokeRect(x(cursor) - 0.5, top, Math.max(2, x(cursor + 1) - x(cursor) - gap + 1), height);
    }

    function describe() {
      const i = cursor;
      const parts = shown().filter((p) => timeline.phase_ns[p][i] > 0).map((p) => {
        const ns = timeline.phase_ns[p][i];
        return [p, `${formatDuration(ns)} (${((100 * ns) / totals[i]).toFixed(1)}%)`];
      });
      const leftOut = timeline.excluded_ratio[i] >= 0.5 ? ", left out of the shares" : "";
      const title = `${stepsOf(timeline.first_step, i)}: ${formatDuration(totals[i])} per step${leftOut}`;
      const out = byId("readout");
      out.replaceChildren(element("strong", title));
      for (const [phase, value] of parts) {
        const item = element("span");
        item.append(element("i", "", `swatch p-${phase}`), `${phase} ${value}`);
        out.append(item);
      }
      const spoken = [title, ...parts.map((p) => p.join(" "))].join(", ");
      for (const canvas of canvases) {
        canvas.setAttribute("aria-valuemax", String(timeline.first_step.length - 1));
        canvas.setAttribute("aria-valuenow", String(i));
        canvas.setAttribute("aria-valuetext", spoken);
      }
    }

    function redraw() {
      measure();
      draw(canvases[0], false);
      draw(canvases[1], true);
      describe();
    }

    function moveTo(i) {
      const next = Math.max(0, Math.min(timeline.first_step.length - 1, i));
      if (chosen && next === cursor) return;
      chosen = true;
      cursor = next;
      redraw();
    }

    const KEYS = {
      ArrowLeft: () => cursor - 1, ArrowDown: () => cursor - 1,
      ArrowRight: () => cursor + 1, ArrowUp: () => cursor + 1,
      PageUp: () => cursor + 10, PageDown: () => cursor - 10,
      Home: () => 0, End: () => timeline.first_step.length - 1,
    };
    for (const canvas of canvases) {
      canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const at = (event.clientX - box.left - 64) / (box.width - 76);
        moveTo(Math.floor(at * timeline.first_step.length));
      });
      canvas.addEventListener("keydown", (event) => {
        const key = KEYS[event.key];
        if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        moveTo(key());
      });
    }

    for (const phase of phases) {
      if (timelines.every((t) => t.phase_ns[phase].every((ns) => ns === 0))) continue;
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(element("i", "", `swatch p-${phase}`), phase);
      button.addEventListener("click", () => {
        if (hidden.has(phase)) hidden.delete(phase);
        else hidden.add(phase);
        button.setAttribute("aria-pressed", String(!hidden.has(phase)));
        redraw();
      });
      byId("legend").append(button);
    }

    const select = byId("rank");
    timelines.forEach((t, i) => {
      const option = element("option", t.rank === null ? `process ${i + 1}` : String(t.rank));
      option.value = String(i);
      select.append(option);
    });
    byId("rank-label").hidden = timelines.length < 2;
    select.addEventListener("change", () => {
      timeline = timelines[Number(select.value)];
      cursor = Math.min(cursor, timeline.first_step.length - 1);
      redraw();
    });
    clip.addEventListener("change", redraw);
    document.querySelector(".controls").hidden = false;
    new ResizeObserver(redraw).observe(canvases[0]);
    redraw();
    return redraw;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const text = byId("report-data").textContent;
    const report = JSON.parse(text);
    const redraw = byId("chart-time") ? startCharts(report) : () => {};
    startTheme(redraw);
    startActions(text);
    document.body.dataset.problems = String(problems);
    document.body.dataset.ready = "yes";
  });
})();
