"use strict";
// Sorting by a click on a heading and filtering by text; without scripts the tables are complete.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const cell = row.cells[column];
        if (!cell.hasAttribute("data-order")) return cell.textContent;
        return cell.dataset.order === "" ? null : Number(cell.dataset.order);
      };
      const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b)) * (down ? -1 : 1);
      const rows = [...body.rows].map((row) => [value(row), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const form of document.querySelectorAll(".filter")) {
  const table = document.getElementById(form.dataset.table);
  const [search, shown] = [form.querySelector("input"), form.querySelector("output")];
  const all = form.querySelector(".all");
  let most = Number(form.dataset.most);  // rows at once; the others come with a narrower search, or all on demand
  const apply = () => {
    const words = search.value.trim().toLowerCase();
    let n = 0;
    for (const row of table.tBodies[0].rows) {
      const found = row.textContent.toLowerCase().includes(words);
      n += found;
      row.hidden = !found || n > most;
    }
    if (all) all.hidden = n <= most;
    shown.textContent = n > most ? `${most} of ${n} ${form.dataset.noun} shown` : `${n} ${n === 1 ? form.dataset.one : form.dataset.noun} shown`;
  };
  form.hidden = false;
  const box = table.closest(".scroll");
  search.addEventListener("focus", () => { box.style.minHeight = `${box.offsetHeight}px`; }, { once: true });  // fewer rows must not move the page
  search.addEventListener("input", apply);
  all?.addEventListener("click", () => { most = Infinity; apply(); });
  table.addEventListener("click", apply);  // after a heading has sorted the rows
  apply();
}
// What is wider than the page fades out where it is cut, and its caption says that it can be scrolled.
function showCut(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  box.classList.toggle("more", hidden - box.scrollLeft > 2);
  box.classList.toggle("moved", box.scrollLeft > 0);
  box.closest("figure")?.classList.toggle("cut", hidden > 2);
}
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => showCut(target)));
for (const box of document.querySelectorAll(".scroll")) {
  sizes.observe(box);
  box.addEventListener("scroll", () => showCut(box), { passive: true });
}
// Charts can be saved as SVG and tables as CSV; a cell that a spreadsheet would run as a formula is marked as text.
const csvCell = (cell) => {
  const value = cell.dataset.order || cell.textContent.trim();
  const text = cell.dataset.order === undefined && /^[=+\-@\t]/.test(value) ? `'${value}` : value;
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};
const savers = {
  "figure.drawn": ["svg", "image/svg+xml", (figure) => {
    const chart = figure.querySelector("svg.chart:not(.phone)").cloneNode(true);
    chart.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    chart.setAttribute("font-family", "sans-serif");
    return chart.outerHTML;
  }],
  "figure.tabled": ["csv", "text/csv", (figure) =>
    [...figure.querySelector("table").rows].map((row) => [...row.cells].map(csvCell).join(",")).join("\r\n") + "\r\n"],
};
for (const [kind, [suffix, type, text]] of Object.entries(savers)) {
  document.querySelectorAll(`${kind}:not(.explorer *)`).forEach((figure, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "save";
    button.textContent = `Save ${suffix.toUpperCase()}`;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text(figure)], { type }));
      link.download = `${figure.closest("section")?.id || "heatlas"}-${place + 1}.${suffix}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    figure.querySelector("figcaption").append(" ", button);
  });
}
// What the top of a page folds is printed.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details.cautions, .cautions details, .answers details, details.rest")) fold.open = true;
});
