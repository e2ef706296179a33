"use strict";
const box = document.getElementById("section"), said = document.getElementById("state");
let number = -1, missed = 0;

function show(found) {
  if (found.number !== number) {
    number = found.number;
    const open = [...box.querySelectorAll("details[open]")].map(d => d.id);
    box.innerHTML = found.section;  // made and escaped by the server; the page's policy lets no script in it run
    for (const id of open) { const d = document.getElementById(id); if (d) d.open = true; }
  }
  const alarm = found.alarm_at === null ? "alarm silent" : "ALARM at step " + found.alarm_at;
  said.textContent = (found.ended ? "The training has ended (" + found.ended + ")" : "Training") + " · step " + found.step + " · " + alarm;
  document.title = (found.alarm_at === null ? "" : "⚠ ") + "step " + found.step + " | leakgauge monitor";
  document.body.dataset.ended = found.ended || "";
}

async function look() {
  let ended = false;
  try {
    const answer = await fetch("state.json", { cache: "no-store" });
    const found = await answer.json();
    missed = 0;
    show(found);
    ended = Boolean(found.ended);
  } catch {
    missed += 1;
    said.textContent = "The training has ended or cannot be reached. These are the last figures received.";
  }
  if (!ended && missed < 5) setTimeout(look, 1000);
}
look();
