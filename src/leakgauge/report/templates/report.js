"use strict";
// Sliders, sorting, colours. Without this script the page shows all frames, tables in their order, and the system's colours.
const root = document.documentElement;
root.classList.add("scripted");

// ---- colours: light or dark by the system, until the button is pressed; remembered nowhere
const button = document.getElementById("colours"), system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const label = () => { button.textContent = isDark() ? "Light colours" : "Dark colours"; };
button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
system.addEventListener("change", label);
button.hidden = false;
label();

// ---- original and reconstruction, over the steps
function copy(picture) {
  const made = picture.cloneNode();
  made.removeAttribute("id");
  return made;
}

for (const wipe of document.querySelectorAll(".wipe")) {
  const at = wipe.closest(".case");
  const frames = [...at.querySelectorAll(".frames li")].filter(one => one.querySelector("img"));
  const last = at.querySelector(".strip.reconstruction img"), original = at.querySelector(".strip.truth img");
  const shown = frames.length ? copy(frames.at(-1).querySelector("img")) : last && copy(last);
  const [step, cover] = ["step", "cover"].map(name => wipe.querySelector(`input[name=${name}]`));
  if (!shown || (!original && !step)) continue;
  const stage = wipe.querySelector(".stage");
  stage.append(shown);
  if (step) {
    const move = () => {
      const frame = frames[step.value], picture = frame.querySelector("img");
      shown.src = picture.src;
      shown.alt = picture.alt;
      const said = `step ${frame.dataset.step}`;
      step.setAttribute("aria-valuetext", `${said}, frame ${+step.value + 1} of ${frames.length}`);
      step.nextElementSibling.textContent = said;
    };
    step.max = frames.length - 1;
    step.value = step.max;
    step.addEventListener("input", move);
    move();
  }
  if (original) {
    const over = copy(original);
    over.classList.add("original");
    stage.append(over);
    const uncover = () => {
      stage.style.setProperty("--cover", `${cover.value}%`);
      cover.setAttribute("aria-valuetext", `original on the left ${cover.value} percent of each image`);
      cover.nextElementSibling.textContent = `${cover.value} %`;
    };
    cover.addEventListener("input", uncover);
    uncover();
  } else {
    cover.closest("p").hidden = true;
  }
  wipe.hidden = false;
  at.classList.add("slid");
}

// ---- tables
function cellAt(row, column) {
  let place = 0;
  for (const cell of row.cells) {
    if (place <= column && column < place + cell.colSpan) return cell.colSpan === 1 ? cell : null;
    place += cell.colSpan;
  }
  return null;
}

function valueOf(cell) {  // a number, a text, or null for what was not measured
  if (!cell) return null;
  const plain = cell.cloneNode(true);
  for (const aside of plain.querySelectorAll("small, .bound, .source")) aside.remove();
  const text = plain.textContent.replace(/\s+/g, " ").trim();
  if (/^(|–|not measured|undefined)$/.test(text)) return null;
  const number = text.replace(/−/g, "-").replace(/(?<=\d) (?=\d{3})/g, "").replace(/ ?(%|dB)$/, "");
  if (/^[-+]?∞$/.test(number)) return number.startsWith("-") ? -Infinity : Infinity;
  return /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?$/i.test(number) ? Number(number) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a < b ? -1 : 1;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

for (const table of document.querySelectorAll("table.overview, table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) continue;
  heads.forEach((head, column) => {
    const press = document.createElement("button");
    press.type = "button";
    press.className = "sort";
    press.append(...head.childNodes);
    head.append(press);
    press.addEventListener("click", () => {
      const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      const way = next === undefined ? "ascending" : next;
      for (const other of heads) other.removeAttribute("aria-sort");
      if (way) head.setAttribute("aria-sort", way);
      const sign = way === "descending" ? -1 : 1;
      const known = rows.map(row => [valueOf(cellAt(row, column)), row]);
      if (way) known.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b));
      body.append(...known.map(([, row]) => row));
    });
  });
}

// ---- folded parts open when one goes to them, and on paper
function reveal() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = target || null; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const one of closed) one.open = true;
});
addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
