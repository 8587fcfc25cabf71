"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const rows = data.rows;
  const count = rows.row.length;
  const placeOf = new Map(rows.row.map((row, place) => [row, place]));
  // Named one by one: the default buttons include one that uploads the chart.
  const buttons = ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"];
  const options = { responsive: true, displaylogo: false, modeBarButtons: [buttons], plotlyServerURL: "" };
  const kept = new Array(count).fill(true);

  const valueAt = (name, place) => {
    const column = rows[name];
    return Array.isArray(column) ? column[place] : column.levels[column.codes[place]];
  };

  const formatted = (value) => {
    if (value === null || value === undefined || value === "") return "-";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "number") return value;
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };

  // ---- charts

  const keepOnly = (trace) => {
    const places = trace.customdata.map((row, index) => (row === null || kept[placeOf.get(row)] ? index : -1))
      .filter((index) => index >= 0);
    const pick = (values) => places.map((index) => values[index]);
    const rowNumbers = pick(trace.customdata);
    return {
      ...trace, x: pick(trace.x), y: pick(trace.y), customdata: rowNumbers,
      text: rowNumbers.map((row) => (row === null ? "" : rows.hover[placeOf.get(row)])),
    };
  };

  // The front of the points that are left: per model and workload, nothing is better in both axes.
  const frontOf = (front, traces) => {
    const groups = new Map();
    for (const trace of traces) {
      if (!trace.meta || trace.meta.role !== "feasible") continue;
      trace.customdata.forEach((row, index) => {
        const group = `${valueAt("model", placeOf.get(row))}\n${valueAt("workload", placeOf.get(row))}`;
        if (!groups.has(group)) groups.set(group, []);
        groups.get(group).push({ row, x: trace.x[index], y: trace.y[index] });
      });
    }
    const better = front.meta.more_is_better ? -1 : 1;
    const line = [];
    for (const points of groups.values()) {
      points.sort((a, b) => better * (a.x - b.x) || b.y - a.y || a.row - b.row);
      let best = -Infinity;
      if (line.length) line.push({ row: null, x: null, y: null });
      for (const point of points) {
        if (point.y > best) {
          best = point.y;
          line.push(point);
        }
      }
    }
    return { ...front, x: line.map((p) => p.x), y: line.map((p) => p.y), customdata: line.map((p) => p.row) };
  };

  const filtered = (figure) => {
    const points = figure.data.map((trace) => (trace.customdata ? keepOnly(trace) : trace));
    return points.map((trace) => (trace.meta && trace.meta.role === "front" ? frontOf(trace, points) : trace));
  };

  const narrow = () => window.innerWidth < 640;

  // Long labels would leave no room for the bars.
  const wrapped = (label, width) => label.split(/(?<=[-/ ])/).reduce((lines, part) => {
    const last = lines[lines.length - 1];
    if (last && last.length + part.length <= width) lines[lines.length - 1] = last + part;
    else lines.push(part);
    return lines;
  }, []).join("<br>");

  const draw = (id, figure) => {
    const element = document.getElementById(id);
    if (!element) return;
    const layout = JSON.parse(JSON.stringify(figure.layout));
    if (/^(ttft|tpot)-/.test(id)) layout.showlegend = false;
    if (narrow()) {
      layout.font.size = 11;
      layout.margin = { ...layout.margin, l: 44, r: 8 };
    }
    if (layout.yaxis.type === "category") {
      const labels = (bar) => bar.y.map((label) => wrapped(label, narrow() ? 18 : 46));
      figure = { ...figure, data: figure.data.map((bar) => ({ ...bar, y: labels(bar) })) };
      const lines = figure.data[0].y.map((label) => label.split("<br>").length);
      layout.height = 130 + lines.length * Math.max(26, 10 + 15 * Math.max(...lines));
    }
    Plotly.react(element, filtered(figure), layout, options);
    if (!element.dataset.drawn) {
      element.dataset.drawn = "yes";
      element.on("plotly_afterplot", () => scalable(element));
    }
    scalable(element);
  };

  // With a view box the drawing can be scaled by the style sheet, which print does.
  const scalable = (element) => {
    const full = element._fullLayout;
    element.style.setProperty("--ratio", `${full.width} / ${full.height}`);
    element.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("viewBox", `0 0 ${full.width} ${full.height}`));
  };

  const drawAll = () => {
    for (const id of Object.keys(data.charts)) draw(id, data.charts[id]);
  };

  // ---- filters

  const checked = (fieldset) => new Set([...fieldset.querySelectorAll("input:checked")].map((box) => Number(box.value)));

  const applyFilters = () => {
    const wanted = [...document.querySelectorAll("#filters fieldset")].map((fieldset) => [rows[fieldset.dataset.filter].codes, checked(fieldset)]);
    for (let place = 0; place < count; place += 1) kept[place] = wanted.every(([codes, set]) => set.has(codes[place]));
    const number = kept.filter(Boolean).length;
    document.getElementById("shown").textContent = `${number.toLocaleString("en-US")} of ${count.toLocaleString("en-US")} candidates shown`;
    for (const id of Object.keys(data.charts)) if (data.charts[id].data.some((trace) => trace.customdata)) draw(id, data.charts[id]);
    document.querySelectorAll("details.rows[open]").forEach(fillRows);
  };

  const makeFilters = () => {
    for (const fieldset of document.querySelectorAll("#filters fieldset")) {
      rows[fieldset.dataset.filter].levels.forEach((text, code) => {
        const label = document.createElement("label");
        const box = document.createElement("input");
        box.type = "checkbox";
        box.checked = true;
        box.value = String(code);
        box.addEventListener("change", applyFilters);
        label.append(box, ` ${text}`);
        label.title = text;
        fieldset.append(label);
      });
    }
    document.getElementById("reset").addEventListener("click", () => {
      document.querySelectorAll("#filters input").forEach((box) => { box.checked = true; });
      applyFilters();
    });
  };

  // ---- tables

  const tableOf = (caption, headings, lines) => {
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    const table = document.createElement("table");
    table.className = "sortable";
    table.createCaption().textContent = caption;
    const head = table.createTHead().insertRow();
    for (const text of headings) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const line of lines) {
      const tr = body.insertRow();
      for (const value of line) {
        const cell = tr.insertCell();
        cell.textContent = formatted(value);
        if (typeof value === "number") cell.dataset.v = String(value);
        else cell.className = "text";
      }
    }
    scroll.append(table);
    makeSortable(table);
    return scroll;
  };

  const replaceTable = (details, table) => {
    details.querySelectorAll(".scroll").forEach((old) => old.remove());
    details.append(table);
  };

  const rowsOfChart = (id) => {
    if (!id) return rows.row.map((_, place) => place).filter((place) => kept[place]);
    const numbers = filtered(data.charts[id]).flatMap((trace) => (trace.meta && trace.meta.role === "front" ? [] : trace.customdata));
    return numbers.filter((row) => row !== null).map((row) => placeOf.get(row)).sort((a, b) => a - b);
  };

  const fillRows = (details) => {
    const places = rowsOfChart(details.dataset.chart);
    const names = Object.keys(data.headings).filter((name) => places.some((place) => {
      const value = valueAt(name, place);
      return value !== null && value !== "";
    }));
    const lines = places.map((place) => names.map((name) => valueAt(name, place)));
    replaceTable(details, tableOf(`${lines.length} candidates`, names.map((name) => data.headings[name]), lines));
  };

  // ---- inside one prompt

  const showTrace = () => {
    const select = document.getElementById("trace");
    if (!select) return;
    const trace = data.traces[Number(select.value)];
    document.getElementById("trace-deployment").textContent = trace.deployment;
    document.getElementById("figure-chunks").hidden = trace.chunks === null;
    if (trace.chunks !== null) draw("chunks", trace.chunks);
    draw("timeline", trace.timeline);
    document.getElementById("timeline-note").textContent = trace.runs_per_segment > 1
      ? `Each segment is the mean of ${trace.runs_per_segment} runs of equal steps.` : "";
    document.querySelectorAll("details.columns[open]").forEach(fillColumns);
  };

  const fillColumns = (details) => {
    const columns = data.traces[Number(document.getElementById("trace").value)].columns[details.dataset.columns];
    const names = Object.keys(columns);
    const lines = columns[names[0]].map((_, index) => names.map((name) => columns[name][index]));
    replaceTable(details, tableOf(`${lines.length} rows`, names.map((name) => name.replaceAll("_", " ")), lines));
  };

  // ---- start

  sortableTables();
  document.querySelectorAll("details.rows").forEach((one) => one.addEventListener("toggle", () => one.open && fillRows(one)));
  document.querySelectorAll("details.columns").forEach((one) => one.addEventListener("toggle", () => one.open && fillColumns(one)));
  // A chart inside a closed or hidden part has no size; one that is opened later is drawn then.
  makeFilters();
  drawAll();
  applyFilters();
  const select = document.getElementById("trace");
  if (select) {
    select.addEventListener("change", showTrace);
    showTrace();
  }
  document.documentElement.dataset.ready = "yes";
})();
