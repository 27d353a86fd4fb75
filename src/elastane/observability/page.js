(() => {
  const svg = document.getElementById("chart");
  const data = document.getElementById("hover");
  if (!svg || !data) return;
  const h = JSON.parse(data.textContent);
  const tip = document.getElementById("tip");
  const cross = document.getElementById("cross");
  const line = cross.querySelector("line");
  const dot = document.getElementById("dot");

  const show = (text, event) => {
    tip.textContent = text;
    tip.style.opacity = 1;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 18 + box.width < innerWidth;
    tip.style.left = (right ? event.clientX + 18 : Math.max(4, event.clientX - 18 - box.width)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY - 14, innerHeight - box.height - 4)) + "px";
  };
  const hide = () => {
    tip.style.opacity = 0;
    cross.setAttribute("visibility", "hidden");
  };
  const nearest = (step) => {
    let low = 0, high = h.points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (h.points[middle][0] < step) low = middle; else high = middle;
    }
    return Math.abs(h.points[low][0] - step) <= Math.abs(h.points[high][0] - step) ? h.points[low] : h.points[high];
  };
  const place = (step) => h.left + (step - h.first) / (h.last - h.first) * (h.right - h.left);

  svg.addEventListener("pointermove", (event) => {
    const mark = event.target.closest(".mark");
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (mark) { cross.setAttribute("visibility", "hidden"); show(mark.dataset.text, event); return; }
    if (at.x < h.left - 8 || at.x > h.right + 8 || at.y < h.yTop - 24) { hide(); return; }
    const [step, loss, smooth, workers, ms] = nearest(h.first + (at.x - h.left) / (h.right - h.left) * (h.last - h.first));
    const x = place(step);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    dot.setAttribute("visibility", smooth === null ? "hidden" : "inherit");
    if (smooth !== null) {
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", h.yBottom - (smooth - h.lossBottom) / (h.lossTop - h.lossBottom) * (h.yBottom - h.yTop));
    }
    cross.setAttribute("visibility", "visible");
    const words = [`step ${step.toLocaleString("en")}`, loss === null ? "loss not finite" : `loss ${loss}`];
    words.push(`${workers} ${workers === 1 ? "worker" : "workers"}, ${ms.toLocaleString("en")} ms`);
    show(words.join("\n"), event);
  });
  svg.addEventListener("pointerleave", hide);
})();
