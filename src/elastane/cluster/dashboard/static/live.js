// Keeps the parts of the page up to date, and shows times in the zone of the reader.
(() => {
  const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const showTimes = (within) => {
    for (const time of within.querySelectorAll("time[datetime]")) {
      time.title = time.textContent;
      time.textContent = zone.format(new Date(time.dateTime));
    }
  };
  showTimes(document);

  const main = document.querySelector("main[data-live]");
  if (!main || !main.dataset.live) return;
  const state = document.getElementById("connection");
  const say = (text) => { state.textContent = text; state.hidden = !text; };

  const replace = ([name, digest, html]) => {
    const part = document.getElementById(`part-${name}`);
    if (!part) { location.reload(); return; }
    if (part.dataset.digest === digest) return;
    const active = document.activeElement, inside = part.contains(active) && active !== part;
    const place = inside ? [...part.querySelectorAll("a, button, [tabindex]")].indexOf(active) : -1;
    const checked = [...part.querySelectorAll("input:checked")].map((input) => input.id);
    const scrolled = [...part.querySelectorAll(".scroll, .log, figure")].map((box) =>
      [box.scrollTop, box.scrollLeft, box.scrollHeight - box.scrollTop - box.clientHeight < 24]);
    part.innerHTML = html;
    part.dataset.digest = digest;
    showTimes(part);
    for (const id of checked) { const input = document.getElementById(id); if (input) input.checked = true; }
    part.querySelectorAll(".scroll, .log, figure").forEach((box, i) => {
      if (!scrolled[i]) return;
      box.scrollLeft = scrolled[i][1];
      box.scrollTop = box.matches(".log") && scrolled[i][2] ? box.scrollHeight : scrolled[i][0];
    });
    if (place >= 0) part.querySelectorAll("a, button, [tabindex]")[place]?.focus({ preventScroll: true });
  };

  for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight;
  let stream = null;
  const open = () => {
    stream = new EventSource(main.dataset.live);
    stream.addEventListener("open", () => say(""));
    stream.addEventListener("parts", (event) => { say(""); JSON.parse(event.data).forEach(replace); });
    stream.addEventListener("trouble", (event) => say(JSON.parse(event.data)));
    stream.addEventListener("ended", () => { stream.close(); setTimeout(() => location.reload(), 500); });
    stream.addEventListener("error", () => {
      say("The dashboard does not answer. This page tries again.");
      if (stream.readyState === EventSource.CLOSED) setTimeout(open, 2000);
    });
  };
  // A browser opens few connections to one server, so a hidden page gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stream?.close(); stream = null; } else if (!stream) open();
  });
  addEventListener("pagehide", () => stream?.close());
  open();
})();
