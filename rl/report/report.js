"use strict";
// Draws the charts from the metrics in the page, shows the values under the pointer, and loads the newest page every ten
// seconds while the run goes on.
(function () {
  const run = JSON.parse(document.getElementById("metrics").textContent);
  const WIDTH = 480, HEIGHT = 250, LEFT = 50, RIGHT = WIDTH - 20, TOP = 10, BOTTOM = HEIGHT - 30;
  const TICKS_ABOUT = 5, SERIES_MAX = 16, COLORS = 8;

  const escaped = (text) => text.replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "").replace(/[<>&"]/g, (c) =>
    ({ "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" })[c]);
  const find = (name) => run.series.find((series) => series.name === name);

  // --- the lines of a chart. Series of long runs consist of parts: "y" has their means at the last step "x" of each, "n"
  // how many values a part has, and low and high the smallest and the largest one.

  function extremes(series) {
    if (!series.low) return { x: series.x, y: series.y };
    const x = [], y = [];
    for (let i = 0; i < series.x.length; i++) {
      const ends = [[series.low_x[i], series.low[i]], [series.high_x[i], series.high[i]]].sort((a, b) => a[0] - b[0]);
      for (const [at, value] of ends[0][0] === ends[1][0] ? ends.slice(1) : ends) {
        x.push(at);
        y.push(value);
      }
    }
    return { x, y };
  }

  function averages(series, steps) {
    const width = Math.max(1, Math.round(series.n ? steps / Math.max(...series.n) : steps));
    const y = series.y.map((_, i) => {
      const part = series.y.slice(Math.max(0, i - width + 1), i + 1);
      return part.reduce((a, b) => a + b, 0) / part.length;
    });
    return { x: series.x, y };
  }

  // Means of the phase at each of the steps; 0 where it did not run.
  function phase(series, steps) {
    const parts = run.parts, first = run.first_step, span = run.last_step - first + 1;
    const key = (x) => (parts ? Math.floor((x - first) * parts / span) : x);
    const sums = new Map(series.x.map((x, i) => [key(x), series.y[i] * (series.n ? series.n[i] : 1)]));
    return { x: steps.x, y: steps.x.map((x, i) => (sums.get(key(x)) || 0) / (steps.n ? steps.n[i] : 1)) };
  }

  function linesOf(chart) {
    const lines = [], add = (label, kind, color, points) =>
      points.x.length && lines.length < SERIES_MAX &&
      lines.push({ label, kind, color: color % COLORS, second: color >= COLORS, ...points });
    const addLine = (label, color, series) => {
      const average = chart.average ? averages(series, chart.average) : series;
      if (chart.average || series.low) add(label, "faint", color, extremes(series));
      add(label, "line", color, { x: average.x, y: average.y });
    };
    const matches = run.series.filter((series) => chart.prefix && series.name.startsWith(chart.prefix));
    const names = Object.keys(chart.lines || {});

    names.forEach((name, color) => find(name) && addLine(chart.lines[name], color, find(name)));
    if (chart.of_all)
      for (const line of lines) line.y = line.y.map((y) => y * run.world_size);
    if (chart.suffix)
      matches.filter((series) => series.name.endsWith(chart.suffix)).forEach((series, color) =>
        lines.length + 1 < SERIES_MAX && addLine(series.name.slice(chart.prefix.length), color, series));
    if (chart.validation !== undefined && (!names.length || find(names[0])))
      for (const series of run.series)
        if (series.name.startsWith("val-core/") && series.name.includes(chart.validation) && !series.name.includes("/std"))
          add(series.name.slice("val-core/".length), "points", lines.length, extremes(series));
    if (chart.phases && find(chart.phases)) {
      const own = matches.filter((s) => s.name !== chart.phases && !s.name.slice(chart.prefix.length).includes("/"));
      const rare = (series) => chart.occasional.includes(series.name);
      for (const series of [...own.filter((s) => !rare(s)), ...own.filter(rare)])
        add(series.name.slice(chart.prefix.length), "area", lines.length, phase(series, find(chart.phases)));
    }
    return lines;
  }

  // --- drawing

  // A step of 1, 2 or 5 times a power of ten that cuts the range into about TICKS_ABOUT parts.
  function roundStep(range) {
    const power = 10 ** Math.floor(Math.log10(range / TICKS_ABOUT)), part = range / TICKS_ABOUT / power;
    return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
  }

  // The y axis ends at ticks, the x axis at its first and last step.
  function makeScale(min, max, endsAtTicks, origin, length) {
    if (max - min < 1e-9 * Math.max(1e-3, Math.abs(min), Math.abs(max))) { // one value: room around it
      const room = max === 0 || !endsAtTicks ? 0.5 : 0.1 * Math.abs(max);
      min -= room;
      max += room;
    }
    let step = roundStep(max - min);
    if (endsAtTicks) {
      min = Math.floor(min / step) * step;
      max = Math.ceil(max / step) * step;
    } else {
      step = Math.max(step, 1); // steps are whole numbers
    }
    const ticks = [];
    for (let i = endsAtTicks ? Math.round(min / step) : Math.ceil(min / step - 1e-9); i * step <= max + 1e-6 * step; i++)
      ticks.push(i * step || 0); // no -0
    return { min, max, ticks, pixel: (value) => +(origin + length * ((value - min) / (max - min))).toFixed(1) };
  }

  function short(value) {
    const size = Math.abs(value), of = (digits, unit) => +(value / unit).toPrecision(digits);
    if (size >= 999.5e9 || (size > 0 && size < 1e-4)) return of(3, 1).toExponential();
    if (size >= 999.5e6) return of(4, 1e9) + "G";
    if (size >= 999.5e3) return of(4, 1e6) + "M";
    return size >= 9999.5 ? of(4, 1e3) + "k" : "" + of(4, 1);
  }

  // The sums of all areas up to and with each of them; areas of a chart have the same x.
  function stack(lines) {
    let below = null;
    for (const line of lines)
      if (line.kind === "area") {
        line.below = below || line.x.map(() => 0);
        below = line.top = line.y.map((y, i) => y + line.below[i]);
      }
    return below;
  }

  function scales(chart, lines) {
    const sums = stack(lines), xs = lines.flatMap((line) => line.x);
    const ys = lines.flatMap((line) => (line.kind === "area" ? [] : line.y)).concat(sums || []);
    const low = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    const high = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
    if (run.first_step < run.last_step) xs.push(run.first_step, run.last_step);
    let min = low(ys), max = high(ys);
    if (min === 0 && max === 0) max = 1;
    if (sums || chart.from_zero) min = Math.min(min, 0);
    return [makeScale(low(xs), high(xs), false, LEFT, RIGHT - LEFT), makeScale(min, max, true, BOTTOM, TOP - BOTTOM)];
  }

  const path = (line, ys, x, y) => line.x.map((at, i) => `${i ? "L" : "M"}${x.pixel(at)} ${y.pixel(ys[i])}`).join("");

  function drawLine(line, x, y) {
    const kind = line.kind === "points" ? "line" : line.kind, color = `c${line.color}${line.second ? " second" : ""}`;
    let d = path(line, line.top || line.y, x, y), more = "";
    if (line.kind === "area") {
      d += line.x.map((at, i) => `L${x.pixel(at)} ${y.pixel(line.below[i])}`).reverse().join("") + "Z";
      if (line.second) more = `<path class="hatched" d="${d}"/>`;
    } else if (line.kind === "points" || line.x.length === 1) {
      more = line.x.map((at, i) =>
        `<circle class="dot c${line.color}" cx="${x.pixel(at)}" cy="${y.pixel(line.y[i])}" r="2.5"/>`).join("");
    }
    return `<path class="${kind} ${color}" d="${d}"/>${more}\n`;
  }

  function plot(chart, lines, x, y) {
    const grid = y.ticks.map((tick) => `<path d="M${LEFT} ${y.pixel(tick)}H${RIGHT}"/>`).join("");
    const texts = y.ticks.map((tick) => `<text x="${LEFT - 7}" y="${+(y.pixel(tick) + 4).toFixed(1)}" text-anchor="end">${short(tick)}</text>`)
      .concat(x.ticks.map((tick) => `<text x="${x.pixel(tick)}" y="${BOTTOM + 18}" text-anchor="middle">${short(tick)}</text>`));
    return `<svg class="plot" role="img" aria-label="${escaped(chart.title)}" viewBox="0 0 ${WIDTH} ${HEIGHT}">
<g class="grid">${grid}</g>\n<g class="labels">${texts.join("")}</g>\n<path class="axis" d="M${LEFT} ${BOTTOM}H${RIGHT}"/>
${lines.map((line) => drawLine(line, x, y)).join("")}</svg>\n`;
  }

  function legend(lines) {
    return '<ul class="legend">' + lines.filter((line) => line.kind !== "faint").map((line) =>
      `<li><span class="swatch c${line.color}${line.second ? " second" : ""}"></span>${escaped(line.label)}</li>`).join("") + "</ul>\n";
  }

  // --- the page's part

  const drawn = run.charts.map((chart) => ({ chart, lines: linesOf(chart) })).filter(({ lines }) => lines.length);
  let html = `<svg width="0" height="0" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><path class="hatching" d="M0 0V6"/></pattern></defs></svg>\n`;

  drawn.forEach((figure, i) => {
    const { chart, lines } = figure, before = i && drawn[i - 1].chart.section;
    [figure.x, figure.y] = scales(chart, lines);
    if (chart.section !== before)
      html += `${i ? "</div>\n</section>\n" : ""}<section>\n<h2>${escaped(chart.section)}</h2>\n<div class="charts">\n`;
    html += `<figure>\n<figcaption><b>${escaped(chart.title)}</b> <span>${escaped(chart.note)}</span></figcaption>\n` +
      plot(chart, lines, figure.x, figure.y) + legend(lines) + "</figure>\n";
  });
  document.getElementById("charts").innerHTML = html + (drawn.length ? "</div>\n</section>\n" : "");

  function nearest(xs, x) {
    let best = 0;
    for (let i = 1; i < xs.length; i++)
      if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  }

  [...document.querySelectorAll("svg.plot")].forEach((svg, index) => {
    const { x: scale, lines: all } = drawn[index], lines = all.filter((line) => line.kind !== "faint");
    const cursor = svg.querySelector(".axis").cloneNode();
    const tip = document.createElement("div");

    cursor.setAttribute("class", "cursor");
    tip.className = "tip";
    tip.hidden = true;
    svg.parentNode.append(tip);

    function hide() {
      tip.hidden = true;
      cursor.remove();
    }

    function show(event) {
      const box = svg.getBoundingClientRect(), zoom = WIDTH / box.width;
      const share = ((event.clientX - box.left) * zoom - LEFT) / (RIGHT - LEFT);
      const wanted = scale.min + Math.min(1, Math.max(0, share)) * (scale.max - scale.min);
      const xs = lines.flatMap((line) => line.x), x = xs[nearest(xs, wanted)], pixel = scale.pixel(x);

      tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: "step " + x }));
      for (const line of lines) {
        const i = nearest(line.x, x);
        if (line.x[i] !== x) continue;
        const row = document.createElement("div"), swatch = document.createElement("span");
        swatch.className = `swatch c${line.color}${line.second ? " second" : ""}`;
        row.append(swatch, line.label + "  " + +line.y[i].toPrecision(4));
        tip.append(row);
      }
      cursor.setAttribute("d", `M${pixel} ${TOP}V${BOTTOM}`);
      svg.append(cursor);
      tip.hidden = false;
      const place = pixel / zoom, room = box.width - tip.offsetWidth;
      tip.style.left = Math.max(4, Math.min(place + 24, place > box.width / 2 ? place - tip.offsetWidth : room)) + "px";
      tip.style.top = box.top - svg.parentNode.getBoundingClientRect().top + 4 + "px";
    }

    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", hide);
  });

  if (document.querySelector(".badge.running")) {
    let touched = 0;
    for (const kind of ["pointermove", "pointerdown", "scroll", "keydown"])
      addEventListener(kind, () => (touched = Date.now()), { passive: true });
    setInterval(() => {
      if (!document.hidden && Date.now() - touched > 10000 && !document.querySelector("details.sample[open]"))
        location.reload();
    }, 10000);
  }
})();
