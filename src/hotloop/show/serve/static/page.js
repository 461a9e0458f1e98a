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
  const SVG = "http://www.w3.org/2000/svg";
  const REFRESH_MS = 5000;
  const POINTS = 300;

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // The list.

  function applyFilter() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("#runs tbody tr")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    byId("count").textContent = words.length ? `${shown} of ${rows.length} runs` : `${rows.length} runs`;
    const chosen = document.querySelectorAll("#runs input:checked").length;
    byId("compare").disabled = chosen !== 2;
    for (const box of document.querySelectorAll("#runs input:not(:checked)")) box.disabled = chosen >= 2;
  }

  function refreshList() {
    if (document.hidden) return;
    const request = new XMLHttpRequest(); // it parses the page without running anything of it
    request.open("GET", "/");
    request.responseType = "document";
    request.onloadend = () => {
      const rows = request.response && request.response.querySelector("#runs tbody");
      if (!rows) {
        byId("count").textContent = "stale: hotloop serve does not answer";
        return;
      }
      const chosen = new Set([...document.querySelectorAll("#runs input:checked")].map((box) => box.value));
      const focused = document.activeElement && document.activeElement.closest("#runs tr");
      const name = focused && focused.querySelector("input").value;
      const tag = focused && document.activeElement.tagName;
      document.querySelector("#runs tbody").replaceWith(document.adoptNode(rows));
      for (const box of document.querySelectorAll("#runs input")) {
        box.checked = chosen.has(box.value);
        if (box.value === name) box.closest("tr").querySelector(tag).focus();
      }
      applyFilter();
    };
    request.send();
  }

  function startList() {
    const filter = byId("filter");
    filter.value = decodeURIComponent(location.hash.slice(1));
    filter.addEventListener("input", () => {
      history.replaceState(null, "", `#${encodeURIComponent(filter.value)}`);
      applyFilter();
    });
    filter.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
    byId("runs").addEventListener("change", applyFilter);
    applyFilter();
    setInterval(refreshList, REFRESH_MS);
  }

  // A run.

  const points = [];

  function drawPoint(point) {
    const last = points[points.length - 1];
    if (point && (!last || last[0] !== point[0])) points.push(point);
    if (points.length > POINTS) points.shift();
    byId("chart").hidden = points.length < 2;
    if (points.length < 2) return;
    const tallest = Math.max(...points.map((one) => one[1]));
    const [first, end] = [points[0][0], points[points.length - 1][0]];
    const place = ([steps, ns]) => `${(600 * (steps - first) / (end - first)).toFixed(1)},${(118 - 100 * ns / tallest).toFixed(1)}`;
    document.querySelector("#chart polyline").setAttribute("points", points.map(place).join(" "));
    document.querySelector("#chart figcaption").textContent = `Steps ${first} to ${end}; the line begins at 0.`;
  }

  function fillTable(id, rows, makeCells) {
    byId(id).hidden = rows.length === 0;
    const body = document.querySelector(`#${id} tbody`);
    body.replaceChildren(...rows.map((row) => {
      const line = element("tr");
      line.append(...makeCells(row));
      return line;
    }));
  }

  function makeHead(text) {
    const head = element("th", text);
    head.scope = "row";
    return head;
  }

  function makePhase([name, ratio, share, mean]) {
    const head = makeHead(name);
    head.prepend(element("i", undefined, `swatch p-${name}`));
    const bar = document.createElementNS(SVG, "svg");
    bar.setAttribute("class", "share");
    bar.setAttribute("aria-hidden", "true");
    for (const [className, width] of [["track", 1], [`p-${name}`, ratio]]) {
      const part = document.createElementNS(SVG, "rect");
      part.setAttribute("class", className);
      part.setAttribute("width", `${width * 100}%`);
      part.setAttribute("height", "100%");
      bar.append(part);
    }
    const cell = element("td", undefined, "wide");
    cell.append(bar);
    return [head, cell, element("td", share), element("td", mean)];
  }

  function show(content) {
    const state = byId("state");
    state.textContent = content.state;
    state.className = `lead t-${content.tone}`;
    byId("problem").textContent = content.problem;
    byId("problem").hidden = !content.problem;
    byId("facts").replaceChildren(...content.facts.map(([name, value, remark]) => {
      const fact = element("div");
      const shown = element("dd");
      shown.append(element("strong", value), element("small", remark));
      fact.append(element("dt", name), shown);
      return fact;
    }));
    fillTable("phases", content.phases, makePhase);
    fillTable("ranks", content.ranks, ([name, ...cells]) => [makeHead(name), ...cells.map((text) => element("td", text))]);
    drawPoint(content.point);
  }

  function follow(address) {
    const source = new EventSource(address);
    let heardMs = Date.now();
    let isOver = false;
    source.onmessage = (event) => {
      heardMs = Date.now();
      const content = JSON.parse(event.data);
      show(content);
      isOver = content.is_over;
      if (!isOver) return;
      source.close();
      byId("report").querySelector("a").textContent = "The report of the whole run";
    };
    setInterval(() => {
      const silentS = Math.round((Date.now() - heardMs) / 1000);
      if (silentS < 5 || isOver) return;
      byId("state").textContent = `stale: hotloop serve does not answer for ${silentS} s`;
      byId("state").className = "lead t-fair";
    }, 1000);
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (byId("filter")) startList();
    const task = byId("live") ? byId("live").dataset : {};
    if (task.follow) follow(task.follow);
    if (task.next) location.replace(task.next);
  });
})();
