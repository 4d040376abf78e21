"use strict";
// The values under the pointer; and, while the run goes on, the newest page every ten seconds.
(function () {
  const numbers = (text) => (text ? text.split(" ").map(Number) : []);

  function nearest(xs, x) {
    let best = 0;
    for (let i = 1; i < xs.length; i++)
      if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
    return best;
  }

  document.querySelectorAll("svg.plot").forEach((svg) => {
    const { left, right, min, max, top, bottom } = svg.dataset;
    const lines = [...svg.querySelectorAll("[data-label]")].map((path) => ({
      label: path.dataset.label, color: /c[0-7]( second)?/.exec(path.getAttribute("class"))[0],
      x: numbers(path.dataset.x), y: numbers(path.dataset.y),
    }));
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
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const share = ((event.clientX - box.left) * scale - left) / (right - left);
      const wanted = +min + Math.min(1, Math.max(0, share)) * (max - min);
      const all = lines.flatMap((line) => line.x);
      if (!all.length) return;
      const x = all[nearest(all, wanted)], pixel = +left + ((x - min) / (max - min)) * (right - left);

      tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: "step " + x }));
      for (const line of lines) {
        const i = nearest(line.x, x);
        if (line.x[i] !== x) continue;
        const row = document.createElement("div"), swatch = document.createElement("span");
        swatch.className = "swatch " + line.color;
        row.append(swatch, line.label + "  " + +line.y[i].toPrecision(4));
        tip.append(row);
      }
      cursor.setAttribute("d", `M${pixel} ${top}V${bottom}`);
      svg.append(cursor);
      tip.hidden = false;
      const place = pixel / scale, room = box.width - tip.offsetWidth;
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
