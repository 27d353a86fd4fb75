(() => {
  const tip = document.getElementById("tip");
  const show = (text, event) => {
    tip.textContent = text;
    tip.style.opacity = 1;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 18 + box.width < innerWidth;
    tip.style.left = (right ? event.clientX + 18 : Math.max(4, event.clientX - 18 - box.width)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY - 14, innerHeight - box.height - 4)) + "px";
  };
  const nearest = (points, step) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < step) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
  };
  const under = (svg, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  // A page that goes on replaces its charts, so the data of a chart are kept with it.
  const read = new WeakMap();
  const once = (element, reading) => {
    if (!read.has(element)) read.set(element, reading());
    return read.get(element);
  };
  const hide = () => {
    tip.style.opacity = 0;
    document.getElementById("cross")?.setAttribute("visibility", "hidden");
  };

  const point = (small, event) => {
    const { first, last, left, right } = Object.fromEntries(Object.entries(small.dataset).map(([k, v]) => [k, Number(v)]));
    const [lines, labels] = once(small, () => [JSON.parse(small.dataset.lines), JSON.parse(small.dataset.labels)]);
    const step = first + (under(small, event).x - left) / (right - left) * (last - first);
    const found = lines.map((points) => nearest(points, step));
    const words = found.map(([at, value], i) =>
      (labels[i] ? labels[i] + ": " : "") + value.toLocaleString("en", { maximumSignificantDigits: 5 }));
    show([`step ${found[0][0].toLocaleString("en")}`, ...words].join("\n"), event);
  };

  const cross = (svg, event) => {
    const data = document.getElementById("hover");
    const h = data && once(data, () => JSON.parse(data.textContent));
    if (!h) return;
    const mark = event.target.closest(".mark");
    const at = under(svg, event);
    if (mark) { hide(); show(mark.dataset.text, event); return; }
    if (at.x < h.left - 8 || at.x > h.right + 8 || at.y < h.top) { hide(); return; }
    const wanted = h.first + (at.x - h.left) / (h.right - h.left) * (h.last - h.first);
    const [step, loss, smooth, workers, ms] = nearest(h.points, wanted);
    const x = h.left + (step - h.first) / (h.last - h.first) * (h.right - h.left);
    const lines = document.getElementById("cross"), dot = document.getElementById("dot");
    lines.querySelector("line").setAttribute("x1", x);
    lines.querySelector("line").setAttribute("x2", x);
    const chosen = document.querySelector("input[name=view]:checked");
    const [low, high, log] = h.views[chosen ? chosen.value : "focus"];
    const share = log ? Math.log(smooth / low) / Math.log(high / low) : (smooth - low) / (high - low);
    const y = smooth === null ? NaN : h.yBottom - share * (h.yBottom - h.yTop);
    const inside = y >= h.yTop && y <= h.yBottom;
    dot.setAttribute("visibility", inside ? "inherit" : "hidden");
    if (inside) {
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
    }
    lines.setAttribute("visibility", "visible");
    const words = [`step ${step.toLocaleString("en")}`, loss === null ? "loss not finite" : `loss ${loss}`];
    words.push(`${workers} ${workers === 1 ? "worker" : "workers"}, ${ms.toLocaleString("en")} ms`);
    show(words.join("\n"), event);
  };

  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.("svg#chart, svg.small");
    if (!svg) hide(); else if (svg.id === "chart") cross(svg, event); else point(svg, event);
  });
  document.documentElement.addEventListener("pointerleave", hide);
})();
